"""Before the first round: which sites take part, and whether they speak of the same things."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedsift._version import __version__
from fedsift.data import DataError, RemoteData
from fedsift.data.coding import check_labels, has_classes
from fedsift.data.covariates import Covariate, agree, columns_of
from fedsift.data.errors import listed
from fedsift.engines.flower.link import GridLink, Policy, SitesError
from fedsift.engines.flower.nodes import Nodes
from fedsift.engines.flower.parts import Part

if TYPE_CHECKING:
    from flwr.serverapp import Grid


@dataclass
class Roster:
    """The sites of a run.

    Attributes:
        expected: their names; empty: any ``count`` sites.
        count: how many there are.
        said: what each told of its columns.
        declined: who does not take part, and why.
        fixed: whether the run has begun: others are refused then.
    """

    expected: tuple[str, ...]
    count: int
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    fixed: bool = False

    def admit(self, site: str, part: Part) -> str | None:
        """Return why a site may not take part, or None."""
        facts = part.facts
        if self.expected and site not in self.expected:
            return "it is not named in the plan"
        if facts.get("version") != __version__:
            return f"it has fedsift {facts.get('version')}, the server {__version__}"
        if "declines" in facts:
            self.declined[site] = str(facts["declines"])
            return f"it declines: {facts['declines']}"
        if self.fixed:
            if site not in self.said:
                return "the run began without it"
            return difference(site, facts, "the beginning of the run", self.said[site])
        self.said[site] = facts
        return None

    @property
    def complete(self) -> bool:
        """Whether all have answered."""
        if self.expected:
            return set(self.expected) == {*self.said, *self.declined}
        return len(self.said) + len(self.declined) >= self.count


def difference(
    site: str, said: Mapping[str, Any], where: str, other: Mapping[str, Any]
) -> str | None:
    """Return how a site's columns differ from another's, or None."""
    own, theirs = list(said["features"]), list(other["features"])
    if own == theirs:
        return None
    known, present = set(theirs), set(own)
    absent = [name for name in theirs if name not in present]
    extra = [name for name in own if name not in known]
    if absent or extra:
        parts = [f"lacks {listed(absent)}"] if absent else []
        parts += [f"has {listed(extra)} besides"] if extra else []
        return f"site '{site}' {' and '.join(parts)}, compared with {where}"
    moved = [a for a, b in zip(own, theirs, strict=True) if a != b]
    return f"site '{site}' has columns in another order than {where}: {listed(moved)}"


def classes_of(said: Mapping[str, Mapping[str, Any]], outcome: str) -> tuple[str, tuple[str, ...]]:
    """Return the outcome and the names of the classes, from what sites say of their targets.

    Raises:
        DataError: their targets are of different kinds.
    """
    kinds = {site: facts["labels"]["kind"] for site, facts in said.items()}
    if "labels" in kinds.values():  # a site reads them as the plan says, and so do all
        told = [facts["labels"] for facts in said.values()]
        labels = tuple(told[0]["names"])
        check_labels({name: {c for one in told for c in one["seen"][name]} for name in labels})
        return "multilabel", labels
    number = outcome != "auto" and not has_classes(outcome)
    if number or (outcome == "auto" and "measured" in kinds.values()):
        odd = [site for site, kind in kinds.items() if kind == "text"]
        if odd:
            raise DataError(f"the target is text at {listed(odd)}, and measured at other sites")
        return (outcome if number else "regression"), ()
    odd = [site for site, kind in kinds.items() if kind == "measured"]
    if odd:
        raise DataError(
            f"the target at {listed(odd)} has too many values for classes; ask for"
            " outcome='regression'"
        )
    names = {name for facts in said.values() for name in facts["labels"]["names"]}
    try:
        classes = tuple(sorted(names, key=float))
    except ValueError:
        classes = tuple(sorted(names))
    if len(classes) < 2:
        raise DataError(f"the target has one value at all sites: {listed(classes)}")
    if outcome == "binary" and len(classes) != 2:
        raise DataError(f"the target has {len(classes)} classes ({listed(classes)}), not two")
    return ("binary" if len(classes) == 2 else "multiclass"), classes


def covariates_of(said: Mapping[str, Mapping[str, Any]]) -> tuple[Covariate, ...]:
    """Return the covariates, with the levels that some site has.

    Raises:
        DataError: sites do not agree on what they are.
    """
    names = list(next(iter(said.values())).get("covariates", {}))
    return tuple(
        agree(name, {site: facts["covariates"][name] for site, facts in said.items()})
        for name in names
    )


def connect(
    grid: Grid,
    run: str,
    wanted: Mapping[str, Any],
    *,
    sites: Sequence[str] | int,
    policy: Policy | None = None,
    wait: float = 600.0,
) -> RemoteData:
    """Wait for the sites, compare their columns, and return their roster.

    Args:
        grid: Flower's.
        run: name of the run, under which sites keep their state.
        wanted: what is asked of the columns: ``target``, ``outcome`` and what the sites' reader
            needs.
        sites: their names, or how many there are.
        policy: whom to wait for in a round.
        wait: seconds to wait for the sites now; with fewer the run begins if the quorum is there.

    Raises:
        SitesError: too few came.
        DataError: they disagree; the text names the site and the columns.
    """
    policy = policy or Policy()
    names = () if isinstance(sites, int) else tuple(sites)
    roster = Roster(names, sites if isinstance(sites, int) else len(names))
    nodes = Nodes(grid, Part({"kind": "hello", **wanted}), roster.admit)
    began = time.monotonic()
    while not roster.complete and time.monotonic() - began < wait:
        nodes.find()
        time.sleep(policy.poll)
    _check_present(roster, nodes, policy, wait)
    present = sorted(roster.said)
    for site in present[1:]:
        reason = difference(
            site, roster.said[site], f"site '{present[0]}'", roster.said[present[0]]
        )
        if reason is not None:
            raise DataError(f"{reason}; correct the files so that all have the same columns")
    outcome, classes = classes_of(roster.said, str(wanted["outcome"]))
    covariates = covariates_of(roster.said)
    roster.fixed = True
    features = tuple(roster.said[present[0]]["features"])
    features += columns_of(covariates)
    agreed = {
        **wanted,
        "outcome": outcome,
        "classes": list(classes),
        "covariates": [covariate.to_dict() for covariate in covariates],
    }
    nodes.head = Part({"kind": "head", "run": run, **agreed})
    like: dict[str, Any] = {
        "features": features,
        "outcome": outcome,
        "classes": classes,
        "target": wanted["target"],
        "covariates": covariates,
        "descriptions": {},
        "notes": tuple(f"site '{s}' declined: {why}" for s, why in sorted(roster.declined.items())),
        "missing": wanted.get("impute") is not None,
        "link": GridLink(nodes, policy),
    }
    return RemoteData.roster(like, present)


def _check_present(roster: Roster, nodes: Nodes, policy: Policy, wait: float) -> None:
    there = len(roster.said)
    absent = sorted(set(roster.expected) - {*roster.said, *roster.declined})
    if there >= max(1, policy.needed(roster.count)) or (roster.complete and there):
        return
    reasons = [f"{name}: {why}" for name, why in sorted(nodes.refused.items())]
    reasons += [f"{name}: not seen" for name in absent if name not in nodes.refused]
    msg = (
        f"{there} of {roster.count} sites are there after {wait:.0f} s ({'; '.join(reasons)}); "
        "start their SuperNodes, or lower the quorum"
    )
    raise SitesError(msg)
