"""The rows of a run as they are now: without what was forgotten, and what is out of reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsift import random
from fedsift.data import FederatedData, of_role
from fedsift.data.federated import FORGET, RETAIN
from fedsift.data.paths import site_name
from fedsift.engines.sampling import Sampling
from fedsift.methods import find_method
from fedsift.run_folder import RunError
from fedsift.runs import Run
from fedsift.sources import Source
from fedsift.unlearning.ledger import Ledger
from fedsift.unlearning.scope import Scope


@dataclass(frozen=True)
class RunRows:
    """The rows of a run, with roles for a request.

    Attributes:
        data: the rows that can be reached, with roles; None where there are none.
        offline: names of sites to forget that cannot be reached.
        nothing_to_do: why nothing is to be done, or None: ``unknown``, ``already_forgotten``.
        notes: lines that say more.
        held_out: rows that the run has not seen, of the sites that forget, where they were given.
    """

    data: FederatedData | None
    offline: tuple[str, ...] = ()
    nothing_to_do: str | None = None
    notes: tuple[str, ...] = ()
    held_out: FederatedData | None = None

    def would_leave_nothing(self, scope: Scope) -> bool:
        """Tell whether every row is to be forgotten."""
        if self.data is None:
            return False
        role = scope.roles(self.data).role
        assert role is not None  # noqa: S101  roles were given
        return bool((role == FORGET).all())


def read_rows(run: Run, scope: Scope, ledger: Ledger, data: FederatedData | None = None) -> RunRows:
    """Return the rows of a run with the roles of a scope.

    Raises:
        RunError: the rows are not those that the run was made with, or a site that is to be kept
            cannot be reached.
    """
    away: tuple[str, ...] = ()
    if data is None:
        data, away = _from_source(run)
    data = without_forgotten(data, ledger)
    kept_away = [name for name in away if name not in scope.sites]
    kept_away = [name for name in kept_away if not ledger.is_forgotten("site", name)]
    if kept_away:
        raise RunError(
            f"the file of {', '.join(kept_away)} is not there: forgetting pauses until every site "
            "that is kept can be reached, rather than step without its gradients"
        )
    offline = tuple(name for name in away if name in scope.sites)
    expected = run.facts["data"]["fingerprint"]
    if data is not None and not offline and data.fingerprint() != expected:
        raise RunError(
            f"the data are not those that {run.path} was made with (the fingerprint differs); "
            "restore them, or fit anew"
        )
    if data is None:
        return RunRows(None, offline)
    unknown = [line for line in scope.unknown(data) if not _excused(line, offline, ledger, scope)]
    if unknown:
        return RunRows(data, offline, "unknown", tuple(unknown))
    marked = scope.roles(data)
    assert marked.role is not None  # noqa: S101  roles were given
    if not offline and not bool((marked.role == FORGET).any()):
        return RunRows(marked, offline, "already_forgotten")
    return RunRows(marked, offline)


def _excused(line: str, offline: tuple[str, ...], ledger: Ledger, scope: Scope) -> bool:
    """Tell whether a name that the data do not have is known all the same."""
    for kind, names in (("site", scope.sites), ("row", scope.rows), ("class", scope.classes)):
        for name in names:
            if line.startswith(f"no {kind} is called {name!r};"):
                away = kind == "site" and name in offline
                return away or ledger.is_forgotten(kind, name)
    return False


def without_forgotten(data: FederatedData | None, ledger: Ledger) -> FederatedData | None:
    """Return the rows that were not forgotten: those that were never take part again."""
    if data is None:
        return None
    gone = Scope(
        sites=tuple(n for n in data.sites if ledger.is_forgotten("site", n)),
        classes=tuple(n for n in data.classes if ledger.is_forgotten("class", n)),
        rows=tuple(n for n in set(data.rows) if ledger.is_forgotten("row", n)),
    )
    if not gone:
        return data
    marked = gone.roles(data)
    assert marked.role is not None  # noqa: S101  roles were given
    return of_role(marked, RETAIN) if bool((marked.role == RETAIN).any()) else None


def _from_source(run: Run) -> tuple[FederatedData | None, tuple[str, ...]]:
    """Return the rows that a run's source has, and the sites whose files are not there."""
    described = run.facts["source"]
    if described is None:
        raise RunError(
            f"{run.path} was made from Python with data in memory; forget there, with "
            "fedsift.forget(run, data=..., sites=[...])"
        )
    source = Source(**described)
    there = tuple(f for f in source.files if Path(f).exists())
    away = tuple(site_name(f) for f in source.files if f not in there)
    if source.files and not there:
        raise RunError(f"none of the files of {run.path} is there: {', '.join(source.files)}")
    source = source.model_copy(update={"files": there})
    return source.cases(run.settings)[-1].train, away


def participation(run: Run) -> list[tuple[str, str, int, int, int]]:
    """Return (site, stage, seed, first round, rounds) of the search that made a run's model.

    Participants are a function of seed, round and the sites' names, so they are computed again.
    """
    settings, sites = run.settings, list(run.facts["data"]["sites"])
    seeds = list(range(settings.seed, settings.seed + settings.lanes))
    rounds = settings.rounds or find_method(settings.method).build(density=0.5).rounds
    share: Any = settings.participation
    share = share if share <= 1 else int(share)
    keys = torch.stack([random.key("run", seed) for seed in seeds])
    names = random.keys("site", last=sites)
    everyone = torch.ones((len(seeds), len(sites)), dtype=torch.bool)
    drawn = Sampling(keys, names, everyone)
    taken = torch.stack([drawn.of_round(number, share) for number in range(rounds)])
    count, first = taken.sum(0), taken.to(torch.int8).argmax(0)
    return [
        (site, "search", seed, int(first[s, c]), int(count[s, c]))
        for s, seed in enumerate(seeds)
        for c, site in enumerate(sites)
        if count[s, c]
    ]
