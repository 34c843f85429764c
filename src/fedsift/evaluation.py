"""The figures of a problem on rows: loss and measure, for all seeds, in blocks of bounded size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import trees
from fedsift.data import FederatedData
from fedsift.problems import Batch, Problem
from fedsift.trees import Tree

EVALUATION_ROWS = 8192  # rows of one evaluation call, which bounds its memory


def evaluate(problem: Problem, params: Tree, data: FederatedData) -> dict[str, Tensor]:
    """Return the figures [S] of a problem for parameters [S, ...] on the rows of all sites."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for start in range(0, data.n_samples, EVALUATION_ROWS):
        rows = slice(start, start + EVALUATION_ROWS)
        batch = Batch(
            data.x[rows], data.y[rows], data.weight[rows], torch.zeros((), dtype=torch.int64)
        )
        part = _per_seed(problem, params, batch)
        for name, (total, weight) in part.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total.double(), before[1] + weight.double())
    means = {name: total / weight for name, (total, weight) in sums.items()}
    return vmap(problem.summarise)(means)


def _per_seed(problem: Problem, params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    if problem.batched:
        return vmap(lambda p: problem.evaluate(p, batch))(params)
    count = len(next(iter(params.values())))
    figures: dict[str, tuple[Tensor, Tensor]] = trees.stack(
        problem.evaluate(trees.unstack(params, s), batch) for s in range(count)
    )
    return figures
