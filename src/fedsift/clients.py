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
    tells which exchange of this site was accepted last: `load` rolls forward or stays accordingly.
    One lost, doubled or rejected upload would otherwise break sums over sites for ever.

    Rows are made on a site's first visit, so memory follows the sites visited.

    Attributes:
        slots: the states, leaves [2, rows, S, ...].
        current: [rows, S] which slot holds the accepted state; the other is for the pending one.
        pending_tick: [rows, S] the exchange of the pending state, -1 for none.
    """

    def __init__(self, template: Any, n_seeds: int) -> None:
        """Start empty; ``template`` is the state of a site that was never asked, leaves [...]."""
        self.row_of: dict[int, int] = {}
        self.current = torch.zeros((0, n_seeds), dtype=torch.int64)
        self.pending_tick = torch.zeros((0, n_seeds), dtype=torch.int64)
        self.slots = trees.map_tensors(lambda t: t.new_zeros((2, 0, n_seeds, *t.shape)), template)

    def rows(self, sites: Tensor) -> Tensor:
        """Return the row of each site [L], making rows for new ones."""
        numbers = sites.tolist()
        for site in numbers:
            self.row_of.setdefault(site, len(self.row_of))
        self._grow(len(self.row_of))
        return torch.tensor([self.row_of[site] for site in numbers])

    def _grow(self, needed: int) -> None:
        have, seeds = self.current.shape
        if needed <= have:
            return
        more = max(needed, 2 * have) - have
        self.current = torch.cat([self.current, self.current.new_zeros((more, seeds))])
        self.pending_tick = torch.cat(
            [self.pending_tick, self.pending_tick.new_full((more, seeds), -1)]
        )
        self.slots = trees.map_tensors(
            lambda t: torch.cat([t, t.new_zeros((2, more, *t.shape[2:]))], 1), self.slots
        )

    def load(self, rows: Tensor, seeds: Tensor, last_accepted: Tensor) -> Any:
        """Return the states [L, ...] of the lanes (row, seed), given the exchange accepted last."""
        pending = self.pending_tick[rows, seeds]
        forward = (pending >= 0) & (pending == last_accepted)
        slot = torch.where(forward, 1 - self.current[rows, seeds], self.current[rows, seeds])
        self.current[rows, seeds] = slot
        self.pending_tick[rows, seeds] = -1
        return trees.map_tensors(lambda t: t[slot, rows, seeds], self.slots)

    def stage(self, rows: Tensor, seeds: Tensor, after: Any, tick: int) -> None:
        """Keep the states [L, ...] after exchange ``tick`` as pending, beside those `load` gave."""
        slot = 1 - self.current[rows, seeds]

        def put(slots: Tensor, value: Tensor) -> None:
            slots[slot, rows, seeds] = value

        trees.map_tensors(put, self.slots, after)
        self.pending_tick[rows, seeds] = tick

    def copy(self) -> ClientStore:
        """Return an independent copy."""
        twin = ClientStore((), self.current.shape[1])
        twin.row_of = dict(self.row_of)
        twin.current, twin.pending_tick = self.current.clone(), self.pending_tick.clone()
        twin.slots = trees.map_tensors(torch.clone, self.slots)
        return twin

    def replace_seeds(self, seeds: Tensor, other: ClientStore) -> None:
        """Bring some seeds back to what an earlier copy of this store holds."""
        have = other.current.shape[0]
        self.current[:have, seeds] = other.current[:, seeds]
        self.pending_tick[:have, seeds] = other.pending_tick[:, seeds]
        self.pending_tick[have:, seeds] = -1

        def put(slots: Tensor, earlier: Tensor) -> None:
            slots[:, :have, seeds] = earlier[:, :, seeds]
            slots[:, have:, seeds] = 0

        trees.map_tensors(put, self.slots, other.slots)
