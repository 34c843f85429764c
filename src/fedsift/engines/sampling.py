"""Which sites take part in a round."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsift import random

DRAWN = 1 << 14  # numbers that are drawn at a time for the orders to come


@dataclass
class Sampling:
    """Draws who takes part in a round: the next K sites in a random order, for every run seed.

    K = ⌊share · eligible sites⌋ for a fraction, at least one, or the count itself. The order is
    drawn anew when fewer than K sites are left of it, so none is asked twice before that: what
    sites have said is younger than with a draw a round. It is that of a hash of seed, order number
    and site name, so a site's luck does not depend on who else is there.

    Attributes:
        run_keys: [S].
        site_keys: [C].
        eligible: [S, C], for every seed the same number.
    """

    run_keys: Tensor
    site_keys: Tensor
    eligible: Tensor
    _first: int = field(default=0, repr=False)
    _draws: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)

    def __post_init__(self) -> None:
        self.available = int(self.eligible[0].sum())

    def of_round(self, number: int, share: float) -> Tensor:
        """Return who takes part, [S, C] bool."""
        count, turns = turns_of(self.available, share)
        if count == self.available:
            return self.eligible
        order, turn = divmod(number, turns)
        draw = self._order(order)
        chosen = draw <= draw.kthvalue((turn + 1) * count, dim=1, keepdim=True).values
        if turn:
            chosen &= draw > draw.kthvalue(turn * count, dim=1, keepdim=True).values
        return chosen

    def _order(self, number: int) -> Tensor:
        """Return the numbers [S, C] whose order is asked for; largest where a site may not."""
        if not self._first <= number < self._first + len(self._draws):
            orders = torch.arange(number, number + max(1, DRAWN // self.eligible.numel()))
            keys = random.fold(self.run_keys, "participation", orders.unsqueeze(1))
            draws = random.fold(keys.unsqueeze(2), self.site_keys)
            last = torch.iinfo(torch.int64).max
            self._first, self._draws = number, torch.where(self.eligible, draws, last)
        return self._draws[number - self._first]


def turns_of(available: int, share: float) -> tuple[int, int]:
    """Return how many sites are asked in a round, and how many rounds there are to an order.

    If both are the same without some sites, so is who is asked in the rounds before theirs.
    """
    if isinstance(share, int):
        count = min(share, available)
    else:
        count = max(1, int(share * available + 1e-9))
    return count, available // count
