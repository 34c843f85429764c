"""What sites keep between rounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsift import trees


class ClientStore:
    """States of the sites that were visited, for every run seed, in two versions.

    A site that has uploaded does not know whether the server took the upload. It keeps the state
    before (*accepted*) and after (*pending*) with the number of the exchange, and the next request
    tells which exchange of this site was accepted last: `load` rolls forward or back accordingly.
    One lost, doubled or rejected upload would otherwise break sums over sites for ever.

    Rows are made on a site's first visit, so memory follows the sites visited.
    """

    def __init__(self, template: Any, n_seeds: int) -> None:
        """Start empty; ``template`` is the state of a site that was never asked, leaves [...]."""
        self.template = template
        self.n_seeds = n_seeds
        self.row_of: dict[int, int] = {}
        self.pending_tick = torch.empty((0, n_seeds), dtype=torch.int64)
        self.accepted = trees.map_tensors(lambda t: t.new_zeros((0, n_seeds, *t.shape)), template)
        self.pending = trees.map_tensors(torch.clone, self.accepted)

    def rows(self, sites: Tensor) -> Tensor:
        """Return the row of each site [L], making rows for new ones."""
        numbers = sites.tolist()
        for site in numbers:
            self.row_of.setdefault(site, len(self.row_of))
        self._grow(len(self.row_of))
        return torch.tensor([self.row_of[site] for site in numbers])

    def _grow(self, needed: int) -> None:
        if needed <= self.pending_tick.shape[0]:
            return
        rows = max(needed, 2 * self.pending_tick.shape[0])

        def enlarge(old: Tensor) -> Tensor:
            grown = old.new_zeros((rows, *old.shape[1:]))
            grown[: old.shape[0]] = old
            return grown

        self.accepted = trees.map_tensors(enlarge, self.accepted)
        self.pending = trees.map_tensors(enlarge, self.pending)
        ticks = torch.full((rows, self.n_seeds), -1, dtype=torch.int64)
        ticks[: self.pending_tick.shape[0]] = self.pending_tick
        self.pending_tick = ticks

    def load(self, rows: Tensor, seeds: Tensor, last_accepted: Tensor) -> Any:
        """Return the states [L, ...] of the lanes (row, seed), given the exchange accepted last."""
        pending_tick = self.pending_tick[rows, seeds]
        forward = (pending_tick == last_accepted) & (pending_tick >= 0)
        pick = lambda t: t[rows, seeds]  # noqa: E731
        return trees.where(
            forward, trees.map_tensors(pick, self.pending), trees.map_tensors(pick, self.accepted)
        )

    def stage(self, rows: Tensor, seeds: Tensor, before: Any, after: Any, tick: int) -> None:
        """Keep the state an exchange started from and the one it ended with."""

        def put(slot: Tensor, value: Tensor) -> None:
            slot[rows, seeds] = value

        trees.map_tensors(put, self.accepted, before)
        trees.map_tensors(put, self.pending, after)
        self.pending_tick[rows, seeds] = tick
