"""Stability selection with complementary pairs: how often halves of the rows choose a feature.

A method that keeps q of d features is run on 2B halves of the rows, in pairs that share no row. A
feature is selected if at least a share τ of the halves chose it. Of features that a half chooses
with a probability of q/d at most (no better than chance), the expected number of selected ones is
then bounded.

Source: Shah & Samworth, "Variable selection with error control: another look at stability
selection", J. R. Statist. Soc. B 75 (2013), pages 55-80; [SS] below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["Assumption", "bound", "most_chosen", "threshold"]

Assumption = Literal["none", "unimodal", "r-concave"]
USUAL_THRESHOLD: Final = 0.75
_A_RANGE: Final = (1e-5, 1e5)


def bound(chosen: float, features: int, threshold: float, pairs: int, assume: Assumption) -> float:
    """Return the bound on the expected number of selected features that are no better than chance.

    With θ = q/d, τ the threshold and B pairs, d times

    * ``none``: θ²/(2τ - 1), for any distribution ([SS], theorem 1, with θ = q/d);
    * ``unimodal``: C(τ, B) θ², for simultaneous selection by both halves of a pair whose
      probability falls from a single peak ([SS], theorem 2; θ at most 1/√3, and τ above
      min(1/2 + θ², 1/2 + 1/(2B) + 3θ²/4)): C = 1/(2(2τ - 1 - 1/(2B))) up to τ = 3/4, and
      4(1 - τ + 1/(2B))/(1 + 1/B) above;
    * ``r-concave``: min(D(θ², 2τ - 1, B, -1/2), D(θ, τ, 2B, -1/4)), with D of `largest_tail`
      ([SS], section 3.3).

    Args:
        chosen: q, features that a half keeps, or their mean number.
        features: d.
        threshold: τ, above 1/2 and at most 1, which counts as the multiple of 1/(2B) at or above.
        pairs: B.
        assume: what is assumed of the distribution over data sets of the share of halves.

    Raises:
        ValueError: a number is out of range, or the assumption is unknown.
    """
    _check(chosen, features, pairs, assume)
    if not 0.5 < threshold <= 1.0:
        msg = f"the threshold is {threshold}; give a share of the halves above .5, at most 1"
        raise ValueError(msg)
    votes = math.ceil(2 * pairs * threshold - 1e-9)
    tau, theta = votes / (2 * pairs), chosen / features
    if assume == "none":
        share = theta**2 / (2 * tau - 1)
    elif assume == "unimodal":
        share = _unimodal(tau, theta, pairs) * theta**2
    else:
        both = largest_tail(theta**2, votes - pairs, pairs, -1 / 2)
        share = min(both, largest_tail(theta, votes, 2 * pairs, -1 / 4))
    return features * min(share, 1.0)


def _unimodal(tau: float, theta: float, pairs: int) -> float:
    """Return C(τ, B), infinite where the theorem says nothing."""
    lowest = 0.5 + min(theta**2, 1.0 / (2.0 * pairs) + 0.75 * theta**2)
    if theta > 1.0 / math.sqrt(3.0) or tau <= lowest:
        return math.inf
    if tau <= 0.75:
        return 1.0 / (2.0 * (2.0 * tau - 1.0 - 1.0 / (2.0 * pairs)))
    return 4.0 * (1.0 - tau + 1.0 / (2.0 * pairs)) / (1.0 + 1.0 / pairs)


def threshold(
    expected: float, chosen: float, features: int, pairs: int, assume: Assumption
) -> float | None:
    """Return the smallest threshold whose `bound` is at most ``expected``; None if there is none.

    Raises:
        ValueError: as `bound`.
    """
    for votes in range(pairs + 1, 2 * pairs + 1):
        if bound(chosen, features, votes / (2 * pairs), pairs, assume) <= expected:
            return votes / (2 * pairs)
    return None


def most_chosen(expected: float, features: int, pairs: int, assume: Assumption) -> int:
    """Return the largest q whose `bound` at the threshold .75 is at most ``expected``, 0 if none.

    Raises:
        ValueError: as `bound`.
    """
    low, high = 0, features
    while low < high:
        middle = (low + high + 1) // 2
        if bound(middle, features, USUAL_THRESHOLD, pairs, assume) <= expected:
            low = middle
        else:
            high = middle - 1
    return low


@lru_cache(maxsize=4096)
def largest_tail(mean: float, least: int, steps: int, r: float) -> float:
    """Return D(ξ, t, B, r): the largest P(X ≥ t) of an r-concave X on {0, 1/B, ..., 1}, EX ≤ ξ.

    The extreme distributions have f(i) ∝ (a + i)^(1/r) on 0..k, less at k + 1 and nothing above;
    with Σ over 0..k of f and i f, the mean gives f its factor ([SS], appendix):

        P(X ≥ t) = 1 - (k + 1 - Bξ) Σ_{i<Bt} (a + i)^(1/r) / Σ_i (k + 1 - i)(a + i)^(1/r)

    and a lies between its values for k and for k + 1 with nothing at the end. 1 where Bt is within
    2Bξ, where they are others.

    Args:
        mean: ξ.
        least: Bt.
        steps: B.
        r: below 0.
    """
    from scipy.optimize import minimize_scalar  # takes a moment to import

    wanted = mean * steps
    first = math.ceil(2 * wanted) + 1
    if least < first or first > steps:
        return 1.0

    def weights(a: float, last: int) -> NDArray[np.float64]:
        return np.asarray((a + np.arange(last + 1)) ** (1.0 / r), dtype=np.float64)

    def excess(a: float, last: int) -> float:
        w = weights(a, last)
        return float(np.arange(last + 1) @ w / w.sum()) - wanted

    def missed(a: float, last: int) -> float:
        """1 - P(X ≥ t)."""
        w = weights(a, last)
        total = float((last + 1 - np.arange(last + 1)) @ w)
        return (last + 1 - wanted) * float(w[:least].sum()) / total

    start = max(least - 1, first)
    ends = {k: _root(excess, k) for k in range(start, steps + 1)}
    best = missed(ends[steps], steps)
    for k in range(start, steps):
        found = minimize_scalar(missed, bounds=(ends[k + 1], ends[k]), args=(k,), method="bounded")
        best = min(best, float(found.fun), missed(ends[k], k), missed(ends[k + 1], k))
    return 1.0 - best


def _root(rising: Callable[[float, int], float], last: int) -> float:
    """Return the a, of those that count, where a rising function is 0."""
    from scipy.optimize import brentq  # takes a moment to import

    low, high = _A_RANGE
    if rising(high, last) <= 0:
        return high
    return float(brentq(rising, low, high, args=(last,), xtol=1e-12))


def _check(chosen: float, features: int, pairs: int, assume: str) -> None:
    if assume not in get_args(Assumption):
        msg = f"the assumption {assume!r} is unknown; choose from {', '.join(get_args(Assumption))}"
        raise ValueError(msg)
    if not 0 < chosen <= features or pairs < 1:
        msg = (
            f"{chosen} of {features} features in {pairs} pairs of halves: give a positive number up"
            " to all features, and one pair at least"
        )
        raise ValueError(msg)
