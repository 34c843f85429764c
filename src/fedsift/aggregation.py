"""Aggregators: the uploads of one round → totals.

An aggregator sees the uploads of a group stacked over the K participants, and their weights; the
weight is 0 for an upload that did not arrive or was rejected.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedsift import trees
from fedsift.trees import Tree


class Aggregator(Protocol):
    """A rule that combines uploads."""

    def __call__(self, stacked: Tree, weight: Tensor) -> Tree:
        """Return the combined tree from leaves [K, ...] and weights [K]."""


def mean(stacked: Tree, weight: Tensor) -> Tree:
    """Return the weighted mean Σ w_k x_k / Σ w_k; zeros when no upload counts."""
    share = weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    return trees.map_tensors(lambda x: torch.tensordot(share.to(x.dtype), x, dims=1), stacked)


AGGREGATORS: dict[str, Aggregator] = {"mean": mean}
