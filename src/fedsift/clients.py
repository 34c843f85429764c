"""What sites keep between rounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.rows import Rows


class Kept(NamedTuple):
    """What is kept of a site, for S seeds.

    ``slots``: two states, leaves [rows, 2, S, ...]; ``current`` [rows, S]: which of them was
    accepted, the other is for the pending one; ``pending_tick`` [rows, S]: one more than the
    exchange of the pending state, 0 for none.
    """

    slots: Any
    current: Tensor
    pending_tick: Tensor


class ClientStore:
    """States of the sites that were visited, for every run seed, in two versions.

    A site that has uploaded does not know whether the server took the upload. It keeps the state
    before (*accepted*) and after (*pending*) with the number of the exchange, and the next request
    tells which exchange of this site was accepted last: `load` rolls forward or stays accordingly.
    One lost, doubled or rejected upload would otherwise break sums over sites for ever.

    Rows are made on a site's first visit, so storage follows the sites visited; see `Rows` for
    where it lies. `mark` remembers the present, of which only rows that change afterwards are
    copied, for `roll_back`.

    Attributes:
        row_of: the row of each site that was visited.
    """

    def __init__(self, template: Any, n_seeds: int) -> None:
        """Start empty; ``template`` is the state of a site that was never asked, leaves [...]."""
        slots = trees.map_tensors(lambda t: t.new_zeros((2, n_seeds, *t.shape)), template)
        none = torch.zeros(n_seeds, dtype=torch.int64)
        self.row_of: dict[int, int] = {}
        self._rows = Rows(Kept(slots, none, none))
        self._before = Rows(Kept(slots, none, none))
        self._changed: dict[int, int] = {}
        self._marked: int | None = None

    @property
    def kept(self) -> Kept:
        """What is kept, a row for each site of ``row_of``."""
        kept: Kept = self._rows.used()
        return kept

    def restore(self, sites: list[int], kept: Kept) -> None:
        """Begin anew with what was kept of some sites."""
        self.row_of = {site: row for row, site in enumerate(sites)}
        self._rows.fill(kept)
        self._marked = None

    def rows(self, sites: Tensor) -> Tensor:
        """Return the row of each site [L], making rows for new ones."""
        row_of = self.row_of
        rows = [row_of.setdefault(site, len(row_of)) for site in sites.tolist()]
        self._rows.grow(len(row_of))
        return torch.tensor(rows)

    def load(self, rows: Tensor, seeds: Tensor, last_accepted: Tensor) -> Any:
        """Return the states [L, ...] of the lanes (row, seed), given the exchange accepted last."""
        self._remember(rows)
        slots, current, pending_tick = self._rows.values
        slot = self._accepted(rows, seeds, last_accepted)
        current[rows, seeds] = slot
        pending_tick[rows, seeds] = 0
        return trees.map_tensors(lambda t: t[rows, slot, seeds], slots)

    def peek(self, rows: Tensor, seeds: Tensor, last_accepted: Tensor) -> Any:
        """Return what `load` would, and leave all as it is."""
        slot = self._accepted(rows, seeds, last_accepted)
        return trees.map_tensors(lambda t: t[rows, slot, seeds], self._rows.values.slots)

    def stage(self, rows: Tensor, seeds: Tensor, after: Any, tick: int) -> None:
        """Keep the states [L, ...] after exchange ``tick`` as pending, beside those `load` gave."""
        slots, current, pending_tick = self._rows.values
        slot = 1 - current[rows, seeds]

        def put(slots: Tensor, value: Tensor) -> None:
            slots[rows, slot, seeds] = value

        trees.map_tensors(put, slots, after)
        pending_tick[rows, seeds] = tick + 1

    def mark(self) -> None:
        """Remember the present, instead of what was remembered before."""
        self._changed, self._before.count = {}, 0
        self._marked = self._rows.count

    def roll_back(self, seeds: Tensor) -> None:
        """Bring some seeds [s] back to the last `mark`; sites new since then are as never asked.

        Raises:
            RuntimeError: there was no mark.
        """
        if self._marked is None:
            msg = "nothing to go back to; call mark first"
            raise RuntimeError(msg)
        rows = torch.tensor(list(self._changed), dtype=torch.int64).unsqueeze(1)
        new = slice(self._marked, self._rows.count)

        def put(now: Tensor, before: Tensor) -> None:
            now[rows, seeds] = before[:, seeds]
            now[new, seeds] = 0

        def put_both(now: Tensor, before: Tensor) -> None:
            for slot in (0, 1):
                put(now[:, slot], before[:, slot])

        now, before = self._rows.values, self._before.used()
        trees.map_tensors(put_both, now.slots, before.slots)
        put(now.current, before.current)
        put(now.pending_tick, before.pending_tick)

    def _accepted(self, rows: Tensor, seeds: Tensor, last_accepted: Tensor) -> Tensor:
        """Return the slots [L] of the states that were accepted last."""
        _, current, pending_tick = self._rows.values
        pending, now = pending_tick[rows, seeds], current[rows, seeds]
        forward = (pending > 0) & (pending == last_accepted + 1)
        return torch.where(forward, 1 - now, now)

    def _remember(self, rows: Tensor) -> None:
        """Copy the rows of the mark that change for the first time since."""
        if self._marked is None:
            return
        changed, marked = self._changed, self._marked
        asked = dict.fromkeys(rows.tolist())
        new = [row for row in asked if row < marked and row not in changed]
        if new:
            start = len(changed)
            changed.update((row, start + place) for place, row in enumerate(new))
            self._before.grow(len(changed))

            def put(before: Tensor, now: Tensor) -> None:
                before[start : len(changed)] = now[new]

            trees.map_tensors(put, self._before.values, self._rows.values)
