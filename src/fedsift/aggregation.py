"""Aggregators: the uploads of one round → totals.

An aggregator sees the uploads of a group stacked over the K participants, and their weights; the
weight is 0 for an upload that did not arrive or was rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedsift import random, robust, trees
from fedsift.trees import Tree


class Aggregator(Protocol):
    """A rule that combines uploads."""

    def __call__(self, stacked: Tree, weight: Tensor) -> Tree:
        """Return the combined tree from leaves [K, ...] and weights [K]."""


def mean(stacked: Tree, weight: Tensor) -> Tree:
    """Return the weighted mean x̂ + Σ w_k (x_k - x̂) / Σ w_k.

    x̂ is the first upload that counts: where all agree, the mean is exactly what they say, and a
    number that nobody changed costs no message. Uploads that do not count must be finite; when none
    counts, the result is the first of them. Shares are taken in float64: a state that follows a sum
    over sites would feel their rounding.
    """
    share = robust.shares(weight)
    first = (weight > 0).to(torch.int8).argmax().reshape(1)

    def combine(x: Tensor) -> Tensor:
        anchor = x.index_select(0, first)
        change: Tensor = torch.tensordot(share.to(x.dtype), x - anchor, dims=1)
        return anchor.squeeze(0) + change

    combined: Tree = trees.map_tensors(combine, stacked)
    return combined


def mean_by_region(stacked: Tree, weight: Tensor, region: Tensor) -> tuple[Tree, Tensor]:
    """Return the mean of each region, leaves [K, ...], and its weight [K].

    Their weighted mean is that of all uploads: Σ_r w_r x̄_r / Σ_r w_r with w_r = Σ_{k in r} w_k.
    As in `mean`, a region's sum starts from its first upload that counts.

    Args:
        stacked: uploads, leaves [K, ...].
        weight: [K], 0 for an upload that does not count.
        region: [K] numbers from 0 to K-1; a number that no upload has gets the weight 0.
    """
    count = len(weight)
    exact = weight.double()
    total = torch.zeros_like(exact).index_add(0, region, exact)
    share = exact / total[region].clamp(min=torch.finfo(torch.float64).tiny)
    places = torch.arange(count)
    counts = (region == places.unsqueeze(1)) & (weight > 0)  # [regions, uploads]
    first = counts.to(torch.int8).argmax(1)

    def combine(x: Tensor) -> Tensor:
        anchor = x.index_select(0, first)
        shares = share.to(x.dtype).reshape(count, *(1 for _ in x.shape[1:]))
        return anchor.index_add(0, region, shares * (x - anchor.index_select(0, region)))

    means: Tree = trees.map_tensors(combine, stacked)
    return means, total.to(weight.dtype)


def assign_regions(sites: Sequence[str], regions: int | Mapping[str, str]) -> Tensor:
    """Return the region of each site, numbers [C].

    Args:
        sites: names.
        regions: how many, drawn by a hash of the site's name so that a site keeps its region
            whoever else is there; or the name of each site's region.

    Raises:
        ValueError: no region, more regions than sites, or a site without one.
    """
    if isinstance(regions, int):
        if not 1 <= regions <= len(sites):
            msg = f"regions is {regions}; give 1 to {len(sites)}, the number of sites"
            raise ValueError(msg)
        return random.keys("region", last=sites).remainder(regions)
    absent = next((name for name in sites if name not in regions), None)
    if absent is not None:
        msg = f"regions names no region for site {absent!r}; name one for every site"
        raise ValueError(msg)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(regions.values()))}
    return torch.tensor([numbers[regions[name]] for name in sites])


def renumbered(regions: Tensor) -> Tensor:
    """Number the regions [S, K] of each seed's participants from 0 on, as `mean_by_region` asks."""
    return torch.stack([torch.unique(row, return_inverse=True)[1] for row in regions])


Rule = Literal["mean", "median", "trimmed_mean", "geometric_median", "multi_krum", "clipped_mean"]
AGGREGATORS: dict[Rule, Aggregator] = {
    "mean": mean,
    "median": robust.Median(),
    "trimmed_mean": robust.TrimmedMean(),
    "geometric_median": robust.GeometricMedian(),
    "multi_krum": robust.MultiKrum(),
    "clipped_mean": robust.ClippedMean(),
}


def name_of(aggregator: Aggregator) -> str:
    """Return an aggregator's name for people."""
    own = getattr(aggregator, "__name__", repr(aggregator))
    return next((name for name, rule in AGGREGATORS.items() if rule == aggregator), own)
