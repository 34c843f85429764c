"""Data whose rows are at their sites: what the server knows of them, and how it asks for more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar

import torch

from fedsift.data.coding import has_classes
from fedsift.data.errors import DataError, counted
from fedsift.data.federated import FORGET, RETAIN, FederatedData
from fedsift.data.grouping import Numbered
from fedsift.data.harmonise import check_table

if TYPE_CHECKING:
    from torch import Tensor

    from fedsift.data.harmonise import Harmonise
    from fedsift.data.standardise import How, Standardiser

__all__ = ["Link", "OwnThere", "RemoteData", "Step"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Answers = Mapping[str, Mapping[str, "Tensor"]]


class Step(NamedTuple):
    """What a site does with its rows before it works on them.

    ``facts``: JSON values; those under "by_site" are told to the site of that name alone.
    """

    kind: str
    facts: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class OwnThere:
    """Where sites on other machines find the values of their own that a training has left there.

    Attributes:
        of_site: site → JSON values: the keys of the ``work`` and of the ``data`` that it was on,
            and of some ``seeds`` the number of the ``last`` exchange that counted.
    """

    of_site: Mapping[str, dict[str, Any]]

    def of_seeds(self, seeds: slice) -> OwnThere:
        """Return the same of some seeds."""
        told = {
            site: {**there, **{name: there[name][seeds] for name in ("seeds", "last")}}
            for site, there in self.of_site.items()
        }
        return OwnThere(told)


class Link(Protocol):
    """The way to the sites; they know the run by its name."""

    @property
    def run(self) -> str:
        """The name."""

    def ask(
        self, kind: str, data: RemoteData, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> Answers:
        """Return what every site of ``data`` answers to a question of this kind."""

    def together(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Sequence[Result]:
        """Return the function of each item; questions asked at the same time share messages."""

    def evaluate(
        self,
        problem: Any,
        params: dict[str, Tensor],
        data: RemoteData,
        sites: Sequence[int] | None,
        own: OwnThere | None,
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return {measure: (sum, weight)}, [S] each, over the rows of sites.

        ``own``: where sites find values of their own of some leaves.
        """

    def own(self, job: Any, ledger: Tensor) -> OwnThere:
        """Return where sites find their own values after the exchanges of a ledger [S, C]."""

    def keep(self, data: RemoteData, own: OwnThere) -> tuple[str, ...]:
        """Let sites keep their own values in a file, of one seed; return those that have not."""

    def engine(self) -> Any:
        """Return the engine that runs exchanges with these sites."""

    def end(self, data: RemoteData) -> None:
        """Tell the sites of ``data`` that the run is over; those that do not hear it do no harm."""


@dataclass(frozen=True, eq=False)
class RemoteData(FederatedData):
    """A roster of sites in the place of their rows.

    It has the shape of the data: each site's number of rows, their weights and how many are of
    which class, or have an event; ``x`` is 0 throughout and takes no memory. ``steps`` lead from a
    site's own rows to those that are meant: splits, standardisation, chosen features. What is done
    with the roster is noted there, and the sites repeat it.
    """

    link: Link | None = field(default=None, repr=False)
    steps: tuple[Step, ...] = ()

    @classmethod
    def of(cls, like: Mapping[str, Any], counts: Answers) -> RemoteData:
        """Return the roster of sites that said how many rows they have.

        Args:
            like: the fields that are not counted; ``missing`` True where values may be missing.
            counts: of each site, ``rows`` and ``weight`` as `block_counts` gives them. A site
                without a row is left out.
        """
        there = {name: c for name, c in counts.items() if int(c["rows"].sum())}
        sizes = [int(c["rows"].sum()) for c in there.values()]
        blocks = [torch.repeat_interleave(c["rows"].flatten()) for c in there.values()]
        each = [
            (c["weight"] / c["rows"].clamp(min=1)).flatten()[block]
            for c, block in zip(there.values(), blocks, strict=True)
        ]
        offsets = (0, *torch.tensor(sizes).cumsum(0).tolist())
        sites = tuple(there)
        block, kinds = torch.cat(blocks), max(1, len(like["classes"]))
        several, survival = (like["outcome"] == name for name in ("multilabel", "survival"))
        kinds = 2 if survival else kinds + several
        with_roles = next(iter(there.values()))["rows"].ndim == 2
        y = block % kinds
        if several:  # as many labels that are 1, whichever they are
            y = (torch.arange(kinds - 1) < y.unsqueeze(1)).long()
        elif not has_classes(like["outcome"]):
            y = 2.0 * y - 1.0 if survival else torch.zeros(len(y))
        x = torch.zeros(1, len(like["features"])).expand(len(y), -1)
        missing = torch.zeros(1, 1, dtype=torch.bool).expand(x.shape) if like["missing"] else None
        return cls(
            **{**like, "missing": missing},
            x=x,
            checked=x,
            y=y,
            weight=torch.cat(each).float(),
            role=(block // kinds).to(torch.int8) if with_roles else None,
            offsets=offsets,
            sites=sites,
            rows=Numbered(sites, offsets),
        )

    @classmethod
    def roster(cls, like: Mapping[str, Any], sites: Sequence[str]) -> RemoteData:
        """Return the roster of all rows at these sites, which are asked how many they have."""
        unit = torch.ones(1, dtype=torch.int64)
        nobody = {site: {"rows": unit, "weight": unit.double()} for site in sites}
        return cls.of(like, cls.of(like, nobody).counts())

    def counts(self) -> Answers:
        """Return how many rows each site says to have, by class and role."""
        return self.way.ask("counts", self, {}, {})

    def known_counts(self) -> dict[str, Mapping[str, Tensor]]:
        """Return the same as far as this roster knows."""
        return {
            site: block_counts(self, rows)
            for site, rows in zip(self.sites, self.slices, strict=True)
        }

    @property
    def class_sizes(self) -> dict[str, int]:
        """Rows of each class; of each label sites tell none."""
        return {} if self.outcome == "multilabel" else super().class_sizes

    @property
    def unknown(self) -> dict[str, int]:
        """Nothing: sites do not tell it."""
        return {}

    @property
    def way(self) -> Link:
        """The link, which is there."""
        if self.link is None:
            raise DataError("these data have no link to their sites; they are rows' shape alone")
        return self.link

    def end(self) -> None:
        """Tell the sites that the run is over and will not go on: they remove what they kept of it.

        A site that is away at the moment keeps it.
        """
        self.way.end(self)

    def refuse_single(self, done: str) -> None:
        """Refuse to publish as a sum over sites what is one site's own.

        Raises:
            DataError: there is one site.
        """
        if self.n_sites < 2:
            raise DataError(
                f"rows at one site ('{self.sites[0]}') cannot be {done} without telling its means;"
                " let two sites take part at least, or leave it out: standardise='none'"
            )

    def together(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Sequence[Result]:
        """Return the function of each item; see `Link`."""
        return self.way.together(function, items)

    def sums(
        self,
        how: How,
        fills: Mapping[str, float] | None = None,
        around: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return what `data.standardise.site_sums` does for rows that are here."""
        facts = {"how": how, "fills": None if fills is None else dict(fills)}
        answers = self.way.ask("sums", self, facts, dict(around or {}))
        names = next(iter(answers.values()))
        return {name: torch.cat([answers[site][name] for site in self.sites]) for name in names}

    def split(self, seed: int, test_fraction: float) -> tuple[RemoteData, RemoteData]:
        """Return training and test data as `data.split` does, from the sites' counts of ids."""
        answers = self.way.ask("strata", self, {}, {})
        strata = {site: answers[site]["ids"].tolist() for site in self.sites}
        totals = [sum(counts) for counts in zip(*strata.values(), strict=True)]
        before, so_far = {}, [0] * len(totals)
        for site in sorted(self.sites):
            before[site] = so_far
            so_far = [a + b for a, b in zip(so_far, strata[site], strict=True)]
        if max(totals) < 2:
            count = counted(sum(totals), "id")
            raise DataError(f"{count} cannot be split: no class has two; add rows")
        facts = {"seed": seed, "fraction": test_fraction, "totals": totals, "by_site": before}
        parts = [replace(self, steps=(*self.steps, Step("split", facts | {"test": test}, {})))
                 for test in (False, True)]  # fmt: skip
        whole, trained = self.counts(), parts[0].counts()
        rest = {
            site: {name: whole[site][name] - trained[site][name] for name in ("rows", "weight")}
            for site in self.sites
        }
        train, test = (
            RemoteData.of(part.like() | {"steps": part.steps}, counts)
            for part, counts in zip(parts, (trained, rest), strict=True)
        )
        return train, test

    def like(self) -> dict[str, Any]:
        """Return the fields that do not depend on which rows are meant."""
        names = (
            "features", "outcome", "classes", "target", "descriptions", "notes", "covariates",
            "link",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"missing": self.missing is not None}

    def standardised(self, standardiser: Standardiser) -> RemoteData:
        """Return the data in standard units."""
        facts = standardiser.to_dict()
        tensors = {name: getattr(standardiser, name) for name in ("mean", "scale")}
        del facts["mean"], facts["scale"], facts["features"], facts["covariates"]
        steps = (*self.steps, Step("standardise", facts, tensors))
        return replace(self, missing=None, steps=steps)

    def moments(self, scale: Tensor | None) -> dict[str, Tensor]:
        """Return what `decoys.site_moments` does for rows that are here."""
        self.refuse_single("given decoys by their products")
        answers = self.way.ask("moments", self, {}, {} if scale is None else {"scale": scale})
        names = next(iter(answers.values()))
        return {name: torch.cat([answers[site][name] for site in self.sites]) for name in names}

    def with_decoys(
        self, how: str, seed: int, tensors: Mapping[str, Tensor], features: Sequence[str]
    ) -> RemoteData:
        """Return the data with a decoy beside every feature, under these names."""
        x = torch.zeros(1, len(features)).expand(self.n_samples, -1)
        step = Step("decoys", {"how": how, "seed": seed}, dict(tensors))
        return replace(
            self, x=x, checked=x, features=tuple(features), steps=(*self.steps, step), missing=None
        )

    def with_roles(
        self, forget: Mapping[str, Sequence[str] | None], held_out: Mapping[str, Sequence[str]]
    ) -> RemoteData:
        """Return the data with a role for each row; see `data.with_roles`.

        Sites of which some ids are named say how many rows those are; the others are not asked.
        """
        facts: dict[str, dict[str, Any]] = {}
        role = torch.full((self.n_samples,), RETAIN, dtype=torch.int8)
        for site, rows in zip(self.sites, self.slices, strict=True):
            ids = forget.get(site, ())
            facts[site] = {
                "forget": None if ids is None else list(ids),
                "held_out": list(held_out.get(site, ())),
            }
            role[rows] = FORGET if ids is None else RETAIN
        steps = (*self.steps, Step("roles", {"by_site": facts}, {}))
        marked = replace(self, role=role, steps=steps)
        counts, like = marked.known_counts(), self.like() | {"steps": steps}
        asked = {site: counts[site] for site, own in facts.items() if any(own.values())}
        if not asked:
            return marked
        return RemoteData.of(like, counts | dict(RemoteData.of(like, asked).counts()))

    def of_role(self, role: int) -> RemoteData:
        """Return the rows of a role, and nothing of roles; no site is asked.

        Raises:
            DataError: there is none.
        """
        counts = {
            site: {name: count[role] for name, count in known.items()}
            for site, known in self.known_counts().items()
        }
        if not any(int(count["rows"].sum()) for count in counts.values()):
            raise DataError(f"no row is {('retained', 'to be forgotten', 'held out')[role]}")
        steps = (*self.steps, Step("role", {"role": role}, {}))
        return RemoteData.of(self.like() | {"steps": steps}, counts)

    def select_features(self, chosen: Sequence[str] | Sequence[int] | Tensor) -> RemoteData:
        """Return some features; see `FederatedData`."""
        narrow: Any = super().select_features(chosen)
        places = {name: place for place, name in enumerate(self.candidates)}
        columns = torch.tensor([places[name] for name in narrow.candidates], dtype=torch.int64)
        x = torch.zeros(1, narrow.n_features).expand(self.n_samples, -1)
        step = Step("select", {}, {"columns": columns})
        chosen_only: RemoteData = replace(narrow, x=x, checked=x, steps=(*self.steps, step))
        return chosen_only

    def at_sites(self, names: Sequence[str]) -> RemoteData:
        """Return the data of some sites; see `FederatedData`. The others are not asked."""
        counts = self.known_counts()
        chosen = {name: counts[name] for name in self.sites if name in names}
        return RemoteData.of(self.like() | {"steps": self.steps}, chosen)

    def harmonised(self, how: Harmonise | None) -> RemoteData:
        """Return the rows in the units of their own site, which each site sees to itself."""
        if how is None:
            return self
        check_table(self)
        return replace(self, steps=(*self.steps, Step("harmonise", {"how": how}, {})))

    def with_covariates(self, names: Sequence[str]) -> NoReturn:  # noqa: ARG002
        """Refuse: sites read their covariates themselves, by the plan."""
        _refuse("given other covariates; name them in the plan")

    def take(self, indices: Any) -> NoReturn:  # noqa: ARG002
        """Refuse: rows cannot be chosen from afar."""
        _refuse("chosen one by one")

    def pooled(self) -> NoReturn:
        """Refuse: that is what must not happen."""
        _refuse("brought to one place; this method is for a simulation")

    def with_sites(self, site_of_row: Tensor, sites: Sequence[str]) -> NoReturn:  # noqa: ARG002
        """Refuse: rows cannot be dealt out anew."""
        _refuse("dealt to other sites")


def block_counts(data: FederatedData, rows: slice) -> dict[str, Tensor]:
    """Return how many ``rows`` of each kind there are among some rows, and their ``weight``.

    [K] by class, [K + 1] by how many of K labels are 1, [2] without and with an event, [1] for a
    measured target; [3, K] by role and kind where rows have roles.
    """
    codes, kinds = data.strata[rows], data.n_strata
    shape = (kinds,) if data.role is None else (3, kinds)
    if data.role is not None:
        codes = codes + kinds * data.role[rows]
    weight = torch.bincount(codes, data.weight[rows].double(), math.prod(shape))
    count = torch.bincount(codes, minlength=math.prod(shape))
    return {"rows": count.reshape(shape), "weight": weight.reshape(shape)}


def _refuse(done: str) -> NoReturn:
    raise DataError(f"the rows stay at their sites and cannot be {done}")
