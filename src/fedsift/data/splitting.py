"""One split into training and test rows, the same on every machine."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsift.data.errors import DataError, counted
from fedsift.data.remote import RemoteData
from fedsift.random import fold, key, keys, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.federated import FederatedData

__all__ = ["apportion", "halved", "in_test", "split", "strata_counts"]


def split(
    data: FederatedData, seed: int, test_fraction: float = 0.2
) -> tuple[FederatedData, FederatedData]:
    """Split into training and test rows, stratified by class and site, whole ids at a time.

    ``ceil(test_fraction G)`` of the G ids are for the test, shared out over the classes by largest
    remainders. Within a class, ids stand by site and then by a hash of (seed, id), and every
    1/f-th is taken from a random start: each has the same chance, and a site's share of the test
    rows is within one id a class of its share of all rows.

    Args:
        data: any data; an id with rows of several classes counts as its most frequent one.
        seed: number of the split.
        test_fraction: part of the ids for the test, between 0 and 1.

    Returns:
        training and test data; no id is in both, and a class with two ids or more has rows in both.
        A site without a row in one of them is absent there.

    Raises:
        DataError: the fraction is not between 0 and 1, or no class has two ids.

    Source: systematic sampling, W. G. Cochran, Sampling Techniques, 1977, chapter 8.

    """
    if not 0 < test_fraction < 1:
        raise DataError(
            f"test_fraction is {test_fraction}; give a number between 0 and 1, such as 0.2"
        )
    if isinstance(data, RemoteData):
        return data.split(seed, test_fraction)
    _, _, strata = _groups(data)
    test = in_test(data, seed, test_fraction, np.bincount(strata).tolist())
    if not test.any():
        count = counted(len(strata), "id")
        raise DataError(f"{count} cannot be split: no class has two; add rows")
    return data.take(np.flatnonzero(~test)), data.take(np.flatnonzero(test))


def strata_counts(data: FederatedData) -> list[int]:
    """Return the ids of each class: what a split must know of a site whose rows it cannot see."""
    _, _, strata = _groups(data)
    counts: list[int] = np.bincount(strata, minlength=data.n_strata).tolist()
    return counts


def in_test(
    data: FederatedData,
    seed: int,
    test_fraction: float,
    totals: Sequence[int],
    before: Sequence[int] | None = None,
) -> np.ndarray:
    """Return which rows [N] are for the test.

    Args:
        data: rows of all sites, or of one.
        seed: number of the split.
        test_fraction: part of the ids for the test.
        totals: ids of each class at all sites.
        before: those at sites whose names come before this one's; None where the data are whole.
    """
    group_of_row, site, strata = _groups(data)
    groups = list(dict.fromkeys(data.rows))
    keys = torch.stack([key(seed, "split", name) for name in groups])
    rank = uniform(keys, (), torch.float64).numpy()
    wanted = apportion(math.ceil(test_fraction * sum(totals) - 1e-9), totals)
    test = np.zeros(len(groups), dtype=bool)
    for stratum, size in enumerate(totals):
        count = 0 if size < 2 else min(max(wanted[stratum], 1), size - 1)
        members = np.flatnonzero(strata == stratum)
        members = members[np.lexsort((rank[members], site[members]))]
        start = uniform(key(seed, "split start", stratum), (), torch.float64).item()
        steps = np.floor(np.arange(size + 1) * (count / max(size, 1)) + start)
        # The last step is exact by definition, whatever the product was rounded to.
        steps[-1] = steps[0] + count
        first = 0 if before is None else before[stratum]
        test[members[np.diff(steps[first : first + len(members) + 1]) > 0]] = True
    rows: np.ndarray = test[group_of_row]
    return rows


def halved(data: FederatedData, seed: int, pairs: int) -> torch.Tensor:
    """Return the half of every row in pairs of halves, int8 [pairs, N]: 0, 1, or 2 for neither.

    Each half has ⌊n/2⌋ of the n ids of a site, drawn inside the site, whole ids at a time; of an
    odd number one id is in neither. A row's half depends on nothing outside its site.

    Source: complementary pairs, R. D. Shah & R. J. Samworth, J. R. Statist. Soc. B 75 (2013).

    """
    numbers, parts = torch.arange(pairs).unsqueeze(1), []
    for site, rows in zip(data.sites, data.slices, strict=True):
        own = list(data.rows[rows])
        place = {name: number for number, name in enumerate(dict.fromkeys(own))}
        draws = uniform(
            fold(keys(seed, "halves", site, last=list(place)), numbers), (), torch.float64
        )
        rank = draws.argsort(1).argsort(1)
        half = (rank // max(1, len(place) // 2)).clamp(max=2)
        half = half if len(place) > 1 else torch.full_like(half, 2)
        parts.append(half[:, [place[name] for name in own]])
    return torch.cat(parts, 1).to(torch.int8)


def _groups(data: FederatedData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the id [N] of each row as a number, and the site and the class of each id [G]."""
    groups = list(dict.fromkeys(data.rows))
    number = {name: place for place, name in enumerate(groups)}
    group_of_row = np.array([number[name] for name in data.rows])
    site = np.zeros(len(groups), dtype=np.int64)
    # Sites by name, so that the order of the files does not matter; rows in reverse, so that a
    # group belongs to the site of its first row.
    by_name = np.argsort(np.argsort(data.sites))
    site[group_of_row[::-1]] = by_name[data.site_of_row.numpy()][::-1]
    return group_of_row, site, _strata(data, group_of_row, len(groups))


def apportion(total: int, shares: Sequence[float] | np.ndarray) -> list[int]:
    """Share out a whole number in proportion to ``shares``, the rest by largest remainders."""
    exact = total * np.asarray(shares, dtype=np.float64) / np.sum(shares)
    parts = np.floor(exact)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return [int(part) for part in parts]


def _strata(data: FederatedData, group_of_row: np.ndarray, n_groups: int) -> np.ndarray:
    """Return the kind of each group (`FederatedData.strata`), that of most of its rows."""
    votes: list[Counter[int]] = [Counter() for _ in range(n_groups)]
    for group, code in zip(group_of_row.tolist(), data.strata.tolist(), strict=True):
        votes[group][code] += 1
    return np.array([vote.most_common(1)[0][0] for vote in votes])
