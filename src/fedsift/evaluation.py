"""The figures of a problem on rows: loss and measure, for all seeds, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import trees
from fedsift.data import FederatedData, RemoteData
from fedsift.data.remote import OwnThere
from fedsift.forgetting import median_margin
from fedsift.outcomes.survival import cumulative_hazard
from fedsift.problems import Batch, Problem
from fedsift.trees import Tree

Sums: TypeAlias = dict[str, tuple[Tensor, Tensor]]
# Site → values of its own of some leaves, [S, ...]; of sites on other machines, where they are.
OwnValues: TypeAlias = Mapping[str, Tree] | OwnThere

EVALUATION_ROWS = 8192  # rows of one evaluation call, which bounds its memory
GATHERED_ROWS = 1024  # the same where rows must be copied together


def evaluate(
    problem: Problem,
    params: Tree,
    data: FederatedData,
    sites: Sequence[int] | None = None,
    own: OwnValues = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Return the figures [S] of a problem for parameters [S, ...] on the rows of sites; all: None.

    The rows of a site in ``own`` have its own values of some leaves. Memory does not depend on the
    number of rows, unless those of a site must be seen together.
    """
    return vmap(problem.summarise)(mean_measures(problem, params, data, sites, own))


def mean_measures(
    problem: Problem,
    params: Tree,
    data: FederatedData,
    sites: Sequence[int] | None = None,
    own: OwnValues = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Return the means [S] over rows that the figures are made of."""
    if isinstance(data, RemoteData):
        there = own if isinstance(own, OwnThere) else None
        sums = data.way.evaluate(problem, params, data, sites, there)
    elif own:
        assert not isinstance(own, OwnThere)  # noqa: S101  the rows are here
        sums = {}
        for site in range(data.n_sites) if sites is None else sites:
            at_site = {**params, **own.get(data.sites[site], {})}
            _add(sums, measure_sums(problem, at_site, data, [site]))
    else:
        sums = measure_sums(problem, params, data, sites)
    return {name: total / weight for name, (total, weight) in sums.items()}


def measure_sums(
    problem: Problem, params: Tree, data: FederatedData, sites: Sequence[int] | None = None
) -> Sums:
    """Return {measure: (weighted sum, weight)}, float64 [S] each, over the rows of sites."""
    sums: Sums = {}
    for rows in _blocks(data, sites) if problem.decomposable else _by_site(data, sites):
        x, y, weight = (
            _gathered([tensor[piece] for piece in rows]) for tensor in (data.x, data.y, data.weight)
        )
        batch = Batch(x, y, weight, torch.zeros((), dtype=torch.int64))
        _add(sums, _per_seed(problem, params, batch))
    return sums


def _add(sums: Sums, part: Sums) -> None:
    for name, (total, weight) in part.items():
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + total.double(), before[1] + weight.double())


def typical_margin(problem: Problem, params: Tree, data: FederatedData) -> float:
    """Return how sure a model is of rows: the median margin at each site, its mean over the rows.

    Sites on other machines tell one number each.
    """
    if isinstance(data, RemoteData):
        answers = data.way.ask("margin", data, {"problem": problem.told()}, params)
        margins = [float(answers[site]["margin"]) for site in data.sites]
    else:
        margins = [float(median_margin(problem, params, data.x[rows])) for rows in data.slices]
    total = sum(margin * size for margin, size in zip(margins, data.sizes, strict=True))
    return total / data.n_samples


def baseline_hazards(
    problem: Problem, params: Tree, data: FederatedData, times: Sequence[float]
) -> dict[str, list[float]]:
    """Return each site's cumulative baseline hazard at some times, of a model of survival.

    Sites on other machines tell these numbers and nothing of when their events were.
    """
    if isinstance(data, RemoteData):
        facts = {"problem": problem.told(), "times": list(times)}
        answers = data.way.ask("hazard", data, facts, params)
        return {site: answers[site]["hazard"].tolist() for site in data.sites}
    hazards = site_hazards(problem, params, data, times)
    return dict(zip(data.sites, hazards.tolist(), strict=True))


def site_hazards(
    problem: Problem, params: Tree, data: FederatedData, times: Sequence[float]
) -> Tensor:
    """Return the same of C sites whose rows are here, [C, T]."""
    assert problem.predict is not None  # noqa: S101  every outcome has a prediction
    output, grid = problem.predict(params, data.x), torch.tensor(times, dtype=torch.float64)
    return torch.stack(
        [cumulative_hazard(output[s], data.y[s], data.weight[s], grid) for s in data.slices]
    )


def _blocks(data: FederatedData, sites: Sequence[int] | None) -> Iterator[list[slice]]:
    """Yield the rows of sites in blocks of bounded size, each as a few runs of rows."""
    if sites is None:
        for start in range(0, data.n_samples, EVALUATION_ROWS):
            yield [slice(start, start + EVALUATION_ROWS)]
        return
    block: list[slice] = []
    room = GATHERED_ROWS
    for site in sites:
        start, stop = data.offsets[site], data.offsets[site + 1]
        while start < stop:
            piece = slice(start, min(stop, start + room))
            block.append(piece)
            room -= piece.stop - start
            start = piece.stop
            if not room:
                yield block
                block, room = [], GATHERED_ROWS
    if block:
        yield block


def _by_site(data: FederatedData, sites: Sequence[int] | None) -> Iterator[list[slice]]:
    """Yield the rows of each site, all together."""
    for site in range(data.n_sites) if sites is None else sites:
        yield [data.slices[site]]


def _gathered(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _per_seed(problem: Problem, params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    if problem.batched:
        return vmap(lambda p: problem.evaluate(p, batch))(params)
    count = len(next(iter(params.values())))
    figures: dict[str, tuple[Tensor, Tensor]] = trees.stack(
        problem.evaluate(trees.unstack(params, s), batch) for s in range(count)
    )
    return figures
