"""How sites differ: the scale of their values, drift of their columns, patients they share."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEVEL = 0.01  # chance that drift is called where there is none, over all columns and sites
FEWEST = 3  # rows of a site whose columns are compared
_FACTOR = 5.0  # between the values of a site and of the others, from which units differ
_SHOWN = 5


def scale(values: np.ndarray, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return what the numbers look like, and sites whose values are of another size.

    ``kind``: ``standardised`` (columns of mean 0 and deviation 1), ``counts`` (whole numbers from 0
    on, large ones among them), ``logarithms`` (not negative, 99 % below 30), ``raw`` (not negative,
    1 % above 1000: intensities before a logarithm), else ``measured``. ``units``: the deviation of
    columns at the 90th percentile over that at the 10th. ``sites``: by site the factor between its
    mean absolute values and those of the others (median over columns), where it is 5 or more.

    Args:
        values: [N, d], NaN where a value is missing.
        rows: the rows of each site.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns and sites without a value
        mean, deviation = np.nanmean(values, 0), np.nanstd(values, 0)
        varies = deviation > 0
        low, high = np.nanpercentile(deviation[varies], (10, 90)) if varies.any() else (1, 1)
        factors = {site: _factor(values, chosen) for site, chosen in rows.items()}
    return {
        "kind": _kind(values, mean[varies], deviation[varies]),
        "units": float(high / low),
        "sites": {
            site: factor
            for site, factor in factors.items()
            if factor is not None and not 1 / _FACTOR < factor < _FACTOR
        },
    }


def _kind(values: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> str:
    present = values[~np.isnan(values)]
    if not len(present) or not len(mean):
        return "measured"
    if np.median(np.abs(mean)) < 0.1 and np.median(np.abs(deviation - 1)) < 0.1:
        return "standardised"
    if present.min() < 0:
        return "measured"
    top = np.percentile(present, 99)
    if top > 20 and bool((present == np.floor(present)).all()):
        return "counts"
    return "raw" if top > 1000 else "logarithms" if top < 30 else "measured"


def _factor(values: np.ndarray, chosen: np.ndarray) -> float | None:
    rest = np.setdiff1d(np.arange(len(values)), chosen)
    if not len(rest) or not values.shape[1]:
        return None
    here, there = (np.nanmean(np.abs(values[part]), 0) for part in (chosen, rest))
    both = (here > 0) & (there > 0)
    return float(np.exp(np.median(np.log(here[both] / there[both])))) if both.any() else None


def drift(
    names: Sequence[str], values: np.ndarray, rows: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return which columns have another mean at a site than at the others.

    The standardised mean difference of site s and the others, SMD = (mean_s - mean_o) / deviation
    (pooled), counts where t = SMD / √(1/n_s + 1/n_o) is beyond Student's t at the level .01 divided
    by columns times sites (Bonferroni).

    Args:
        names: d columns.
        values: [N, d], NaN where a value is missing.
        rows: the rows of each site.

    Returns:
        ``columns`` compared, ``by_site``: how many differ, ``worst``: column, site and SMD of the
        five largest, one a column. Sites of fewer than three rows are not compared.
    """
    tests = max(1, len(names) * len(rows))
    found: list[tuple[float, str, str]] = []
    by_site: dict[str, int] = {}
    for site, chosen in rows.items():
        rest = np.setdiff1d(np.arange(len(values)), chosen)
        if min(len(chosen), len(rest)) < FEWEST:
            continue
        smd, beyond = _differences(values[chosen], values[rest], LEVEL / tests)
        by_site[site] = int(beyond.sum())
        places: list[int] = np.flatnonzero(beyond).tolist()
        found += [(float(smd[place]), names[place], site) for place in places]
    largest: dict[str, dict[str, Any]] = {}
    for difference, name, site in sorted(found, key=lambda entry: -abs(entry[0])):
        largest.setdefault(name, {"column": name, "site": site, "smd": difference})
    return {
        "columns": len(names),
        "differing": len(largest),
        "by_site": by_site,
        "worst": list(largest.values())[:_SHOWN],
    }


def _differences(
    here: np.ndarray, there: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the SMD of each column [d], and whether it is beyond chance."""
    n, m = (~np.isnan(here)).sum(0), (~np.isnan(there)).sum(0)
    enough = (n >= FEWEST) & (m >= FEWEST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        gap = np.nanmean(here, 0) - np.nanmean(there, 0)
        squares = n * np.nanvar(here, 0) + m * np.nanvar(there, 0)
        smd = gap / np.sqrt(squares / (n + m - 2))
        t = np.abs(smd) / np.sqrt(1 / n + 1 / m)
    beyond = enough & (t > stats.t.isf(level / 2, np.maximum(n + m - 2, 1)))
    return smd, beyond & ~np.isnan(smd)


def shared_ids(ids: Sequence[object], rows: Mapping[str, np.ndarray]) -> int:
    """Count ids that are at several sites."""
    homes: dict[object, set[str]] = {}
    for site, chosen in rows.items():
        for row in chosen.tolist():
            homes.setdefault(ids[row], set()).add(site)
    homes.pop(None, None)
    return sum(len(sites) > 1 for sites in homes.values())
