"""From many seeds to one answer: how often a feature is chosen, and how stable the choice is."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Interval(NamedTuple):
    """A mean with the ends of its 95 % interval (NaN for one value), and the number of values."""

    mean: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, float | int]:
        """Return the interval as the command line prints it."""
        return self._asdict()


class Swap(NamedTuple):
    """``other`` was chosen in ``seeds`` of the ``without`` seeds that did not choose ``gate``."""

    gate: int
    other: int
    seeds: int
    without: int


def t_interval(values: Tensor | list[float], overlap: float = 0.0) -> Interval:
    """Return the mean of values and its 95 % t-interval.

    Args:
        values: one value a repetition.
        overlap: n_test / n_train for repeated splits of the same rows: their training sets overlap,
            so the variance of the mean is s² (1/n + n_test/n_train) (Nadeau & Bengio, 2003).

    Source: Nadeau & Bengio, "Inference for the generalization error", Machine Learning 52 (2003).
    """
    numbers = torch.as_tensor(values, dtype=torch.float64)
    count, centre = len(numbers), float(numbers.mean())
    if count < 2:
        return Interval(centre, math.nan, math.nan, count)
    error = math.sqrt(float(numbers.var()) * (1.0 / count + overlap))
    half = t_quantile(0.025, count - 1) * error
    return Interval(centre, centre - half, centre + half, count)


def t_quantile(tail: float, freedom: float = math.inf) -> float:
    """Return the quantile at 1 - ``tail`` of Student's t; of the normal with infinite freedom."""
    from scipy.special import ndtri, stdtrit  # takes a moment to import

    return float(ndtri(1.0 - tail) if math.isinf(freedom) else stdtrit(freedom, 1.0 - tail))


def paired_p_value(differences: Tensor | list[float], overlap: float = 0.0) -> float:
    """Return the two-sided p-value of the t-test that the mean of paired differences is 0.

    ``overlap`` as in `t_interval`, of whose interval this is the inverse: p < .05 where 0 is
    outside. 1 where all differences are 0; NaN for one.
    """
    from scipy.special import stdtr  # takes a moment to import

    numbers = torch.as_tensor(differences, dtype=torch.float64)
    count, centre = len(numbers), float(numbers.mean())
    if count < 2:
        return math.nan
    error = math.sqrt(float(numbers.var()) * (1.0 / count + overlap))
    if error == 0.0:
        return 1.0 if centre == 0.0 else 0.0
    return float(2.0 * stdtr(count - 1, -abs(centre) / error))


def inclusion_probability(masks: Tensor) -> Tensor:
    """Return how often each gate was chosen, [G], from 0/1 masks [S, G]."""
    return masks.double().mean(0)


def ensemble_support(masks: Tensor, magnitudes: Tensor, kept: int) -> Tensor:
    """Return the 0/1 mask [G] of the ``kept`` gates chosen most often; ties by mean magnitude.

    ``masks`` and ``magnitudes`` are [S, G].
    """
    weight = magnitudes.double().mean(0)
    score = masks.double().sum(0) + 0.5 * weight / weight.max().clamp(min=1e-300)
    chosen = torch.topk(score, kept).indices
    return torch.zeros_like(masks[0]).scatter(0, chosen, 1.0)


def agreement(masks: Tensor, magnitudes: Tensor, kept: int) -> list[dict[str, float | int]]:
    """Return how far ensembles of some seeds agree with ensembles of others, by their number.

    The seeds [S] are dealt to as many groups of s as there are, s = 1, 2, 4, ... and S // 2; groups
    share no seed. ``shared`` is the mean over pairs of groups of the share of the ``kept`` gates
    that both choose, ``least`` that of the pair that agrees least. Empty where none is kept.
    """
    if not kept:
        return []
    seeds = len(masks)
    sizes = {1 << power for power in range(seeds.bit_length()) if 2 << power <= seeds}
    found: list[dict[str, float | int]] = []
    for size in sorted(sizes | ({seeds // 2} if seeds > 1 else set())):
        groups = seeds // size
        chosen = torch.stack(
            [
                ensemble_support(masks[at : at + size], magnitudes[at : at + size], kept)
                for at in range(0, groups * size, size)
            ]
        ).double()
        upper = torch.triu_indices(groups, groups, 1)
        shares = (chosen @ chosen.T / kept)[upper[0], upper[1]]
        found.append(
            {
                "seeds": size,
                "groups": groups,
                "shared": float(shares.mean()),
                "least": float(shares.min()),
            }
        )
    return found


def swaps(masks: Tensor, kept: Tensor, level: float = 0.05) -> list[Swap]:
    """Return which gates took the place of others: present where those are absent, beyond chance.

    Of a kept gate a and another b, chosen by N_a and N_b of S seeds, the number of seeds with both
    is hypergeometric if one does not mind the other; they swap if so few have both with a
    probability of at most ``level``, divided by the number of pairs that could show it (Tarone, "A
    modified Bonferroni method for discrete data", Biometrics 46, 1990). Sorted by kept gate, then
    by the most seeds.

    Args:
        masks: 0/1 [S, G].
        kept: bool [G], the gates whose alternatives are asked for.
        level: the probability of naming any pair if no gate minds another.
    """
    chosen = masks.double()
    seeds, often = len(chosen), chosen.sum(0)
    some = (often > 0) & (often < seeds)
    mine, others = (some & kept).nonzero().squeeze(1), some.nonzero().squeeze(1)
    if not len(mine):
        return []
    a, b = often[mine].unsqueeze(1), often[others].unsqueeze(0)
    both = chosen[:, mine].T @ chosen[:, others]
    fewest = (a + b - seeds).clamp(min=0.0)
    pairs = mine.unsqueeze(1) != others
    chance, least = (_at_most(count, a, b, seeds) for count in (both, fewest))
    possible = least[pairs]
    tests = next(
        (k for k in range(1, len(possible) + 1) if int((possible <= level / k).sum()) <= k), 1
    )
    instead = b - both
    found = [
        Swap(int(mine[i]), int(others[j]), int(instead[i, j]), seeds - int(often[mine[i]]))
        for i, j in ((chance <= level / tests) & pairs).nonzero().tolist()
    ]
    return sorted(found, key=lambda swap: (swap.gate, -swap.seeds))


def _at_most(count: Tensor, a: Tensor, b: Tensor, seeds: int) -> Tensor:
    """Return P(X ≤ count) of the number X of seeds with both, hypergeometric, [A, B]."""

    def choose(n: Tensor, k: Tensor) -> Tensor:
        inside = (k >= 0) & (k <= n)
        k = torch.where(inside, k, 0.0)
        ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        return torch.where(inside, ways, -math.inf)

    total = torch.zeros_like(count)
    for number in range(int(count.max()) + 1):
        x = torch.full_like(count, number)
        ways = choose(a.expand_as(x), x) + choose(seeds - a.expand_as(x), b - x)
        chance = torch.exp(ways - choose(torch.full_like(b, seeds), b))
        total += torch.where(x <= count, chance, 0.0)
    return total


def nogueira_stability(masks: Tensor) -> float:
    """Return the stability of selections [S, G]: 1 for always the same set, 0 for chance.

    1 - mean_f s_f² / (k̄/G (1 - k̄/G)), with s_f² the unbiased variance of feature f's selection.

    Source: Nogueira, Sechidis & Brown, JMLR 18 (2018), equation 4.
    """
    chosen = masks.double()
    density = float(chosen.mean())
    if len(chosen) < 2 or density in {0.0, 1.0}:
        return math.nan
    return 1.0 - float(chosen.var(0).mean()) / (density * (1.0 - density))


def jaccard_stability(masks: Tensor) -> float:
    """Return the mean of |A ∩ B| / |A ∪ B| over pairs of selections [S, G]."""
    chosen = masks.double()
    if len(chosen) < 2:
        return math.nan
    both = chosen @ chosen.T
    sizes = chosen.sum(1)
    union = sizes.unsqueeze(0) + sizes.unsqueeze(1) - both
    upper = torch.triu_indices(len(chosen), len(chosen), 1)
    return float((both / union.clamp(min=1.0))[upper[0], upper[1]].mean())
