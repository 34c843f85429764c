"""Which parameters share a gate, which gates are kept, and how the density falls over a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.trees import Tree

Schedule = Literal["constant", "cubic"]
RAMP = 0.7  # share of the rounds over which a cubic schedule falls
FLOOR = 0.25  # share of the kept gates that is dealt out evenly to the layers


def kept_count(density: float, size: int) -> int:
    """Return m = ⌊density · size⌋, proof against the rounding of the product (0.29 · 100)."""
    return math.floor(density * size + 1e-9)


def top_mask(scores: Tensor, kept: int | Tensor) -> Tensor:
    """Return 1 for exactly the ``kept`` largest of ``scores`` [G], else 0; ties by position.

    A Tensor ``kept`` may change from call to call (and lane to lane) without a new trace.
    """
    if isinstance(kept, int):
        chosen = torch.topk(scores, min(kept, scores.shape[-1])).indices
        return torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    order = torch.argsort(scores, descending=True, stable=True)
    positions = torch.arange(scores.shape[-1], device=scores.device)
    ranks = torch.zeros_like(order).scatter(-1, order, positions)
    return (ranks < kept).to(scores.dtype)


class GateView(NamedTuple):
    """Where the gates of a leaf lie: ``gates[start:start + prod(shape)]``, seen as ``shape``.

    The shape broadcasts against the leaf: ``(1, d)`` for a weight ``(K, d)`` is one gate a feature,
    the leaf's own shape is one gate a scalar, ``(out, 1, 1, 1)`` one gate a channel.
    """

    start: int
    shape: tuple[int, ...]

    @property
    def n_gates(self) -> int:
        """The number of gates in the range."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GateMap:
    """Maps a flat vector of G gates onto the leaves of the parameters.

    ``views`` names the gated leaves; a leaf that is not named (a bias, a covariate) has no gate.
    Leaves that name the same range share their gates.
    """

    views: Mapping[str, GateView]
    size: int = field(init=False)  # the number of gates, G

    def __post_init__(self) -> None:
        ends = [view.start + math.prod(view.shape) for view in self.views.values()]
        object.__setattr__(self, "size", max(ends, default=0))

    def expand(self, gates: Tensor) -> Tree:
        """Return the gates [G] as one broadcastable factor for each gated leaf."""
        return {
            leaf: gates[view.start : view.start + view.n_gates].reshape(view.shape)
            for leaf, view in self.views.items()
        }

    def multiply(self, params: Tree, gates: Tensor) -> Tree:
        """Return the parameters times their gates; leaves without a gate stay as they are."""
        factors = self.expand(gates)
        return {k: v * factors[k] if k in factors else v for k, v in params.items()}

    def reduce(self, tree: Tree) -> Tensor:
        """Return, for each gate, the sum of the entries it governs: the transpose of `expand`."""
        total: Tensor | None = None
        for leaf, view in self.views.items():
            value = tree[leaf]
            axes = [
                i for i, (n, g) in enumerate(zip(value.shape, view.shape, strict=True)) if g < n
            ]
            summed = (value.sum(axes, keepdim=True) if axes else value).reshape(-1)
            after = self.size - view.start - view.n_gates
            padded = (
                torch.nn.functional.pad(summed, (view.start, after))
                if view.start or after
                else summed
            )
            total = padded if total is None else total + padded
        if total is None:
            msg = "this problem has no gated parameter: nothing can be selected"
            raise ValueError(msg)
        return total

    def magnitude(self, params: Tree) -> Tensor:
        """Return, for each gate, the Euclidean norm of the parameters it governs."""
        return self.reduce(trees.multiply(params, params)).sqrt()

    def keep(self, scores: Tensor, kept: int | Tensor, final: int) -> Tensor:
        """Return the 0/1 mask of the ``kept`` best gates, with a floor for every layer.

        With several layers a global threshold can empty one, and no signal passes any more. Of the
        ``final`` gates of the whole run a share `FLOOR`, dealt out evenly, is reserved.
        """
        ranges = sorted({(view.start, view.n_gates) for view in self.views.values()})
        if len(ranges) > 1:
            floor = max(1, int(FLOOR * final / len(ranges)))
            top = scores.max() + 1.0
            reserved = [
                top_mask(scores[start : start + count], min(floor, count))
                for start, count in ranges
            ]
            scores = scores + top * torch.cat(reserved)
        return top_mask(scores, kept)


def scheduled_density(density: float, schedule: Schedule, progress: Tensor) -> Tensor:
    """Return the density asked for at ``progress`` in [0, 1] of the run.

    ``constant`` asks for ``density`` from the first round; ``cubic`` starts dense and falls as
    density + (1 - density)(1 - progress / .7)³ (Zhu & Gupta, 2017).
    """
    if schedule == "constant":
        return torch.full_like(progress, density)
    remaining = (1.0 - progress / RAMP).clamp(min=0.0)
    return density + (1.0 - density) * remaining**3
