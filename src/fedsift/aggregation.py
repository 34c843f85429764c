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
    """Return the weighted mean x̂ + Σ w_k (x_k - x̂) / Σ w_k.

    x̂ is the first upload that counts: where all agree, the mean is exactly what they say, and a
    number that nobody changed costs no message. Uploads that do not count must be finite; when none
    counts, the result is the first of them. Shares are taken in float64: a state that follows a sum
    over sites would feel their rounding.
    """
    share = weight.double() / weight.double().sum().clamp(min=torch.finfo(torch.float64).tiny)
    first = (weight > 0).to(torch.int8).argmax().reshape(1)

    def combine(x: Tensor) -> Tensor:
        anchor = x.index_select(0, first)
        change: Tensor = torch.tensordot(share.to(x.dtype), x - anchor, dims=1)
        return anchor.squeeze(0) + change

    combined: Tree = trees.map_tensors(combine, stacked)
    return combined


AGGREGATORS: dict[str, Aggregator] = {"mean": mean}
