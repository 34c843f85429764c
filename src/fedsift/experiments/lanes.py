"""Several data sets in one training run: the seeds of each are lanes, kept to its own sites.

A run of few lanes spends its time on the many small steps around the numbers. Ten data sets of
eight seeds side by side take about as long as two one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms import Algorithm
from fedsift.channels import Channel
from fedsift.data import FederatedData, Standardiser
from fedsift.data.synthetic import SyntheticRegression
from fedsift.problems import Problem
from fedsift.selection import ensemble_support
from fedsift.training import Training, train


@dataclass(frozen=True)
class Prepared:
    """A data set with standardised training and test rows, and its truth as a 0/1 mask [d]."""

    seed: int
    train: FederatedData
    test: FederatedData
    true: Tensor

    @property
    def kept(self) -> int:
        """How many features matter."""
        return int(self.true.sum())


def prepare(seed: int, drawn: SyntheticRegression) -> Prepared:
    """Standardise a data set by its training rows."""
    standardiser = Standardiser.fit(drawn.train, "feature")
    return Prepared(
        seed,
        standardiser.apply(drawn.train),
        standardiser.apply(drawn.test),
        (drawn.coefficients != 0).float(),
    )


def joined(parts: Sequence[FederatedData]) -> tuple[FederatedData, Tensor]:
    """Return the sites of all parts together, and the part [C] of each site.

    Sites are called "1·site_1", ...; all parts have the same features.
    """
    sites = [f"{number}·{name}" for number, part in enumerate(parts, 1) for name in part.sites]
    sizes = torch.tensor([size for part in parts for size in part.sizes])
    whole = replace(
        parts[0],
        x=torch.cat([part.x for part in parts]),
        y=torch.cat([part.y for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
        offsets=(0, *sizes.cumsum(0).tolist()),
        sites=tuple(sites),
        rows=tuple(f"{n}·{row}" for n, part in enumerate(parts, 1) for row in part.rows),
    )
    return whole, torch.repeat_interleave(
        torch.arange(len(parts)), torch.tensor([part.n_sites for part in parts])
    )


def train_side_by_side(
    problem: Problem,
    parts: Sequence[FederatedData],
    algorithm: Algorithm,
    *,
    seeds: int,
    participation: float,
    channel: Channel,
    rounds: int | None = None,
) -> Training:
    """Train ``seeds`` run seeds on every part; the lanes [P · S] are those of each part in turn.

    The recorded losses are those on the rows of all parts together, and say little of any.
    """
    data, part_of_site = joined(parts)
    owner = torch.arange(len(parts)).repeat_interleave(seeds)
    return train(
        problem,
        data,
        algorithm,
        rounds=rounds,
        seeds=[seed for _ in parts for seed in range(seeds)],
        eligible=owner.unsqueeze(1) == part_of_site.unsqueeze(0),
        participation=participation,
        channel=channel,
        compile=False,
        evaluate_every=100,
    )


def by_part(run: Training, n_parts: int) -> list[dict[str, Any]]:
    """Return of each part its seeds' parameters, leaves [S, ...], and bytes up and down, [S]."""
    params = [
        trees.map_tensors(lambda t, k=k: t.reshape(n_parts, -1, *t.shape[1:])[k], run.params)
        for k in range(n_parts)
    ]
    up, down = (b.reshape(n_parts, -1) for b in (run.bytes_up, run.bytes_down))
    return [{"params": params[k], "bytes_up": up[k], "bytes_down": down[k]} for k in range(n_parts)]


def choices(weight: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Return the 0/1 choices [S, d] of seeds with weights [S, d], and their ensemble's [d]."""
    size = weight.abs()
    masks = (size > 0).to(size.dtype)
    return masks, ensemble_support(masks, size, kept)
