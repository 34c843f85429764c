"""Rules that combine uploads of which some may be wrong, by accident or on purpose.

Each takes leaves [K, ...] and weights [K], as `aggregation.Aggregator` says; a weight of 0 marks an
upload that does not count. They compare whole uploads: where a site sends the largest entries alone
most of these are zeros, and `training.check_pair` refuses that. A site's weight is its share of the
samples as the run knows it, so that nobody can claim more. Weighted quantiles stand where the
published rules count sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsift import trees
from fedsift.trees import Tree


def shares(weight: Tensor) -> Tensor:
    """Return weights [K] as shares of their sum, float64; zeros where none counts."""
    return weight.double() / weight.double().sum().clamp(min=torch.finfo(torch.float64).tiny)


def _per_upload(values: Tensor, like: Tensor) -> Tensor:
    """Return values [K] with as many dimensions as ``like`` [K, ...]."""
    return values.reshape(-1, *(1 for _ in like.shape[1:])).to(like.dtype)


def _sorted_masses(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of each coordinate in order, and where their shares begin and end."""
    share = shares(weight)
    # What does not count goes to the end, where it has no share.
    pushed = torch.where(_per_upload(weight, x) > 0, x, torch.inf)
    values, order = pushed.sort(0)
    width = share[order]
    end = width.cumsum(0)
    return torch.where(width > 0, values, 0.0), end - width, end


def quantile(x: Tensor, weight: Tensor, level: float) -> Tensor:
    """Return the weighted quantile of every coordinate, [...] from [K, ...].

    The smallest value whose share, with all below it, reaches ``level``; halfway to the next where
    it is reached exactly, as the median of an even number of values is.
    """
    values, start, end = _sorted_masses(x, weight)
    close = 1e-12
    chosen = (start <= level + close) & (end >= level - close) & (end > start)
    return (values * chosen).sum(0) / chosen.sum(0).clamp(min=1)


@dataclass(frozen=True)
class Median:
    """The weighted median of every coordinate (Yin et al., 2018)."""

    def __call__(self, stacked: Tree, weight: Tensor) -> Tree:
        """Return the medians."""
        medians: Tree = trees.map_tensors(lambda x: quantile(x, weight, 0.5), stacked)
        return medians


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every coordinate without the lowest and the highest share (Yin et al., 2018).

    Attributes:
        trimmed: the share of the weight that is left out at either end, in [0, .5).
    """

    trimmed: float = 0.25

    def __post_init__(self) -> None:
        """Refuse a share that leaves nothing."""
        if not 0.0 <= self.trimmed < 0.5:
            msg = f"trimmed is {self.trimmed}; give a share from 0 up to, not including, .5"
            raise ValueError(msg)

    def __call__(self, stacked: Tree, weight: Tensor) -> Tree:
        """Return the trimmed means."""

        def combine(x: Tensor) -> Tensor:
            values, start, end = _sorted_masses(x, weight)
            kept = end.clamp(max=1.0 - self.trimmed) - start.clamp(min=self.trimmed)
            share = (kept.clamp(min=0.0) / (1.0 - 2.0 * self.trimmed)).to(x.dtype)
            return (share * values).sum(0)

        means: Tree = trees.map_tensors(combine, stacked)
        return means


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the smallest weighted sum of distances to the uploads.

    Weiszfeld's iteration from the coordinates' medians, with distances held above a small number
    (Pillutla et al., 2022).

    Attributes:
        iterations: how many.
    """

    iterations: int = 32

    def __call__(self, stacked: Tree, weight: Tensor) -> Tree:
        """Return the geometric median."""
        centre = Median()(stacked, weight)
        for _ in range(self.iterations):
            distance = distances(stacked, centre)
            floor = 1e-6 * torch.where(weight > 0, distance, 0.0).amax() + 1e-30
            centre = _mean(stacked, weight.to(distance.dtype) / torch.maximum(distance, floor))
        return centre


@dataclass(frozen=True)
class MultiKrum:
    """The mean of the uploads that are nearest to their neighbours (Blanchard et al., 2017).

    An upload's score is the sum of squared distances to its K - f - 2 nearest, with K the uploads
    that count; the K - f best scores are averaged, all alike.

    Attributes:
        hostile: f, how many uploads may be wrong.
    """

    hostile: int = 1

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        if self.hostile < 0:
            msg = f"hostile is {self.hostile}; give the number of uploads that may be wrong"
            raise ValueError(msg)

    def __call__(self, stacked: Tree, weight: Tensor) -> Tree:
        """Return the mean of the chosen."""
        counts = weight > 0
        present = counts.sum()
        count = len(weight)
        pairs = torch.stack(
            [distances(stacked, trees.unstack(stacked, k)).square() for k in range(count)]
        )
        other = counts & ~torch.eye(count, dtype=torch.bool)
        nearest = torch.where(other, pairs, torch.inf).sort(1).values
        place = torch.arange(count)
        near = place < (present - self.hostile - 2).clamp(min=1)
        score = torch.where(near & torch.isfinite(nearest), nearest, 0.0).sum(1)
        rank = torch.where(counts, score, torch.inf).argsort(stable=True).argsort()
        return _mean(stacked, counts & (rank < (present - self.hostile).clamp(min=1)))


@dataclass(frozen=True)
class ClippedMean:
    """The weighted mean after every upload was cut to the median length of all.

    A bound on what one site can do, not a defence against several that agree.
    """

    def __call__(self, stacked: Tree, weight: Tensor) -> Tree:
        """Return the mean of the clipped uploads."""
        zero: Tree = trees.map_tensors(lambda x: torch.zeros_like(x[0]), stacked)
        length = distances(stacked, zero)
        scale = (quantile(length, weight, 0.5) / length.clamp(min=1e-30)).clamp(max=1.0)
        clipped: Tree = trees.map_tensors(lambda x: x * _per_upload(scale, x), stacked)
        return _mean(clipped, weight)


def distances(stacked: Tree, centre: Tree) -> Tensor:
    """Return the Euclidean distance of every upload to a point, over all leaves, float64 [K]."""
    squares = [
        (stacked[leaf] - value).double().square().flatten(1).sum(1)
        if value.ndim
        else (stacked[leaf] - value).double().square()
        for leaf, value in centre.items()
    ]
    return torch.stack(squares).sum(0).sqrt()


def _mean(stacked: Tree, weight: Tensor) -> Tree:
    share = shares(weight)
    combined: Tree = trees.map_tensors(
        lambda x: torch.tensordot(share.to(x.dtype), x, dims=1), stacked
    )
    return combined
