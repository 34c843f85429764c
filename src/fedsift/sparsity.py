"""Which parameters share a gate, which gates are kept, and how the density falls over a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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
    the leaf's own shape is one gate a scalar, ``(out, 1, 1, 1)`` one gate a channel. ``of``: the
    number in the range of each entry's gate, where entries of the shape share gates.
    """

    start: int
    shape: tuple[int, ...]
    of: tuple[int, ...] | None = None

    @property
    def n_gates(self) -> int:
        """The number of gates in the range."""
        return math.prod(self.shape) if self.of is None else max(self.of) + 1


@dataclass(frozen=True)
class GateMap:
    """Maps a flat vector of G gates onto the leaves of the parameters.

    ``views`` names the gated leaves; a leaf that is not named (a bias, a covariate) has no gate.
    Leaves that name the same range share their gates.
    """

    views: Mapping[str, GateView]
    size: int = field(init=False)  # the number of gates, G
    _of: Mapping[str, Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ends = [view.start + view.n_gates for view in self.views.values()]
        shared = {k: torch.tensor(v.of) for k, v in self.views.items() if v.of is not None}
        object.__setattr__(self, "size", max(ends, default=0))
        object.__setattr__(self, "_of", shared)

    def expand(self, gates: Tensor) -> Tree:
        """Return the gates [G] as one broadcastable factor for each gated leaf."""
        factors = {}
        for leaf, view in self.views.items():
            own = gates[view.start : view.start + view.n_gates]
            if leaf in self._of:
                own = own.index_select(0, self._of[leaf])
            factors[leaf] = own.reshape(view.shape)
        return factors

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
            if leaf in self._of:
                summed = summed.new_zeros(view.n_gates).index_add(0, self._of[leaf], summed)
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


class Grouping(NamedTuple):
    """Gates of d columns that are grouped, and of copies of those that are in several groups.

    The first gates are the groups', in their order, the others those of the columns in no group.

    Attributes:
        gates: the gate of each of d columns, then of each copy.
        copies: the columns that are copied, one number for each group after the first.
    """

    gates: tuple[int, ...]
    copies: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of gates, G."""
        return max(self.gates) + 1

    def total(self, values: Tensor) -> Tensor:
        """Return, for each column [..., d], the sum of the values [..., d + copies] of its own."""
        own = len(self.gates) - len(self.copies)
        copies = torch.tensor(self.copies, dtype=torch.int64)
        return values[..., :own].index_add(-1, copies, values[..., own:])

    def columns_of(self, mask: Tensor) -> Tensor:
        """Return 1 for each column [..., d] with a gate that the mask [..., G] keeps, else 0."""
        return self.total(mask[..., torch.tensor(self.gates)]).clamp(max=1.0)


def grouping(columns: int, groups: Sequence[Sequence[int]]) -> Grouping:
    """Return one gate for each group of columns, and one for each column in no group.

    A column in several groups has a copy in each, so that a group can be chosen without the others
    (Jacob, Obozinski & Vert, "Group lasso with overlap and graph lasso", ICML 2009).
    """
    own: list[int | None] = [None] * columns
    copies: list[tuple[int, int]] = []
    for gate, members in enumerate(groups):
        for column in members:
            if own[column] is None:
                own[column] = gate
            else:
                copies.append((column, gate))
    free = itertools.count(len(groups))
    gates = [next(free) if gate is None else gate for gate in own]
    gates += [gate for _, gate in copies]
    return Grouping(tuple(gates), tuple(column for column, _ in copies))


def scheduled_density(density: float, schedule: Schedule, progress: Tensor) -> Tensor:
    """Return the density asked for at ``progress`` in [0, 1] of the run.

    ``constant`` asks for ``density`` from the first round; ``cubic`` starts dense and falls as
    density + (1 - density)(1 - progress / .7)³ (Zhu & Gupta, 2017).
    """
    if schedule == "constant":
        return torch.full_like(progress, density)
    remaining = (1.0 - progress / RAMP).clamp(min=0.0)
    return density + (1.0 - density) * remaining**3
