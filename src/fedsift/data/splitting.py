"""One split into training and test rows, the same on every machine."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsift.data.errors import DataError, counted
from fedsift.random import key, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.federated import FederatedData

__all__ = ["apportion", "split"]


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
    groups = list(dict.fromkeys(data.rows))
    number = {name: place for place, name in enumerate(groups)}
    group_of_row = np.array([number[name] for name in data.rows])
    strata = _strata(data, group_of_row, len(groups))
    site = np.zeros(len(groups), dtype=np.int64)
    # Sites by name, so that the order of the files does not matter; rows in reverse, so that a
    # group belongs to the site of its first row.
    by_name = np.argsort(np.argsort(data.sites))
    site[group_of_row[::-1]] = by_name[data.site_of_row.numpy()][::-1]
    keys = torch.stack([key(seed, "split", name) for name in groups])
    rank = uniform(keys, (), torch.float64).numpy()
    sizes = np.bincount(strata)
    wanted = apportion(math.ceil(test_fraction * len(groups) - 1e-9), sizes)
    test = np.zeros(len(groups), dtype=bool)
    for stratum, size in enumerate(sizes.tolist()):
        count = 0 if size < 2 else min(max(wanted[stratum], 1), size - 1)
        members = np.flatnonzero(strata == stratum)
        members = members[np.lexsort((rank[members], site[members]))]
        start = uniform(key(seed, "split start", stratum), (), torch.float64).item()
        steps = np.floor(np.arange(size + 1) * (count / max(size, 1)) + start)
        # The last step is exact by definition, whatever the product was rounded to.
        steps[-1] = steps[0] + count
        test[members[np.diff(steps) > 0]] = True
    if not test.any():
        raise DataError(f"{counted(len(groups), 'id')} cannot be split: no class has two; add rows")
    in_test = test[group_of_row]
    return data.take(np.flatnonzero(~in_test)), data.take(np.flatnonzero(in_test))


def apportion(total: int, shares: Sequence[float] | np.ndarray) -> list[int]:
    """Share out a whole number in proportion to ``shares``, the rest by largest remainders."""
    exact = total * np.asarray(shares, dtype=np.float64) / np.sum(shares)
    parts = np.floor(exact)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return [int(part) for part in parts]


def _strata(data: FederatedData, group_of_row: np.ndarray, n_groups: int) -> np.ndarray:
    """Return the class of each group; one stratum for a measured outcome."""
    if data.outcome == "regression":
        return np.zeros(n_groups, dtype=np.int64)
    votes: list[Counter[int]] = [Counter() for _ in range(n_groups)]
    for group, code in zip(group_of_row.tolist(), data.y.tolist(), strict=True):
        votes[group][code] += 1
    return np.array([vote.most_common(1)[0][0] for vote in votes])
