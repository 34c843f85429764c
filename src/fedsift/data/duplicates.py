"""Rows that are equal at several sites, as patients are whom two hospitals treated."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Shared", "shared_rows"]

_COLUMNS = 64  # that are looked at to tell whether equal rows can be chance
_PAIRS = 5


class Shared(NamedTuple):
    """Rows whose values are all equal.

    Attributes:
        told: False where so few or so coarse columns may agree by chance; then all else is 0.
        at_several_sites: different rows that are at more than one site.
        by_pair: how many of them by sites, the five most frequent.
        within_sites: rows that repeat another one of their site.
    """

    told: bool = False
    at_several_sites: int = 0
    by_pair: Mapping[str, int] = {}
    within_sites: int = 0


def shared_rows(values: np.ndarray, rows: Mapping[str, np.ndarray | slice]) -> Shared:
    """Count equal rows, as single precision has them.

    Chance is ruled out where N² pairs of rows are few beside Π (different values of a column): by a
    factor of 64 at least, over 64 columns at most, supposing that columns are independent.

    Args:
        values: [N, d], NaN where a value is missing.
        rows: the rows of each site.
    """
    count, width = values.shape
    some = np.unique(np.linspace(0, max(width - 1, 0), min(width, _COLUMNS)).astype(int))
    bits = sum(math.log2(len(np.unique(values[:, column]))) for column in some) if count else 0
    if count < 2 or bits < 2 * math.log2(count) + 6:
        return Shared()
    homes: dict[bytes, Counter[str]] = {}
    for site, chosen in rows.items():
        for row in values[chosen].astype(np.float32):
            name = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            homes.setdefault(name, Counter())[site] += 1
    several = [tuple(sites) for sites in homes.values() if len(sites) > 1]
    pairs = Counter(" and ".join(sites) for sites in several)
    within = sum(count - 1 for sites in homes.values() for count in sites.values())
    return Shared(True, len(several), dict(pairs.most_common(_PAIRS)), within)
