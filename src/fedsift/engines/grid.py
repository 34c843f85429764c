"""How sites and seeds are laid out as lanes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift import trees

PADDING = 1.2  # rows of a class of sites, padding included, over real rows
SPARE = 64  # rows of a site that may be padding in any case


class Grid(NamedTuple):
    """Which seeds are at which sites.

    ``sites`` [U]; ``seeds`` [U, Q]; ``real`` [U, Q] the places that are lanes; ``lane`` [S, K]
    where a seed's lanes are in the flattened grid, in its order, and ``site`` [S, K] whose they
    are; ``asks`` [S, 1] False for a seed without lanes, whose places stand for nothing;
    ``complete``: every seed is at each of these sites; ``full``: and they are all there are.
    """

    sites: Tensor
    seeds: Tensor
    real: Tensor
    lane: Tensor
    site: Tensor
    asks: Tensor
    complete: bool
    full: bool

    def by_seed(self, of_places: Any) -> Any:
        """Return leaves [U·Q, ...] of the places as [S, K, ...]: views where that can be."""
        if not self.complete:
            return trees.map_tensors(lambda t: t[self.lane], of_places)
        seeds = len(self.lane)
        return trees.map_tensors(
            lambda t: t.view(-1, seeds, *t.shape[1:]).transpose(0, 1), of_places
        )


def lay_out(participants: Tensor, rank: Tensor) -> Grid:
    """Return the grid for participants [S, C], with sites in the order of their ranks [C].

    Its width is the number of seeds, or a power of two where half of them would do, so that it
    seldom changes from round to round.
    """
    n_seeds, n_sites = participants.shape
    if n_seeds == 1:
        return _lay_out_one(participants, rank)
    seed, site = participants.nonzero(as_tuple=True)
    position = rank[site]
    in_order = torch.argsort(position * n_seeds + seed)
    position, seed, site = position[in_order], seed[in_order], site[in_order]
    _, row, counts = torch.unique_consecutive(position, return_inverse=True, return_counts=True)
    starts = counts.cumsum(0) - counts
    column = torch.arange(len(seed)) - starts[row]
    needed = int(counts.max())
    width = n_seeds if 2 * needed > n_seeds else 1 << (needed - 1).bit_length()
    seeds = seed[starts].unsqueeze(1).repeat(1, width)
    seeds[row, column] = seed
    real = torch.zeros_like(seeds, dtype=torch.bool)
    real[row, column] = True
    by_seed = torch.argsort(seed * n_sites + position)
    asks = participants.any(1)
    # A seed without lanes gets those of another.
    whose = torch.where(asks, asks.cumsum(0) - 1, 0)
    lane, whom = (
        t[by_seed].reshape(int(asks.sum()), -1)[whose] for t in (row * width + column, site)
    )
    complete = len(seed) == len(starts) * n_seeds
    full = complete and len(starts) == n_sites
    return Grid(site[starts], seeds, real, lane, whom, asks.unsqueeze(1), complete, full)


def _lay_out_one(participants: Tensor, rank: Tensor) -> Grid:
    """Return what `lay_out` does for one seed, in a few operations."""
    whom = participants.nonzero()[:, 1]
    site = whom[torch.argsort(rank[whom])]
    real = torch.ones((len(site), 1), dtype=torch.bool)
    lane, full = torch.arange(len(site)), len(site) == participants.shape[1]
    return Grid(site, real.long() - 1, real, lane[None], site[None], real[:1], True, full)


def block_rows(sizes: Tensor) -> Tensor:
    """Return how many rows, with padding, each site's block has: few sizes for many sites.

    From the largest site on, sites share a size while the padding is within its bounds: a multiple
    of 8, or 1, since a row of such sites may be a large matrix.
    """
    order = sizes.argsort(descending=True, stable=True)
    found: list[int] = []
    whole, start, real = 0, 0, 0
    for place, size in enumerate(sizes[order].tolist()):
        count = place + 1 - start
        if place == 0 or whole * count > PADDING * (real + size) + SPARE * count:
            whole, start, real = -(-size // 8) * 8 if size > 1 else 1, place, 0
        real += size
        found.append(whole)
    blocks = torch.empty_like(sizes)
    blocks[order] = torch.tensor(found)
    return blocks
