"""Stability, intervals and ensembles against values worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsift import random
from fedsift.selection import (
    ensemble_support,
    inclusion_probability,
    jaccard_stability,
    nogueira_stability,
    paired_p_value,
    swaps,
    t_interval,
)
from fedsift.sparsity import top_mask
from tests.laws import normal

THREE = torch.tensor([[1.0, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]])


def random_sets(seeds: int, gates: int, kept: int, seed: int = 0) -> torch.Tensor:
    draw = random.uniform(random.key(seed, "sets"), (seeds, gates))
    return torch.stack([top_mask(row, kept) for row in draw])


def test_nogueira_by_hand() -> None:
    """Frequencies 1, 2/3, 1/3, 0: s² = 3/2 f(1-f), mean 1/6; density 1/2: 1 - (1/6)/(1/4)."""
    assert math.isclose(nogueira_stability(THREE), 1 / 3, rel_tol=1e-12)


def test_nogueira_knows_certainty_chance_and_opposition() -> None:
    always = top_mask(normal(50), 7).repeat(6, 1)
    assert nogueira_stability(always) == 1.0
    assert abs(nogueira_stability(random_sets(200, 300, 30))) < 0.02
    # Two sets that share nothing: s² = 1/2 everywhere, density 1/2, 1 - (1/2)/(1/4) = -1.
    assert math.isclose(nogueira_stability(torch.tensor([[1.0, 0], [0, 1.0]])), -1.0)


@pytest.mark.parametrize("masks", [torch.ones(1, 4), torch.ones(3, 4), torch.zeros(3, 4)])
def test_stability_without_a_choice_is_undefined(masks: torch.Tensor) -> None:
    assert math.isnan(nogueira_stability(masks))


def test_jaccard_by_hand() -> None:
    """Pairs 1-2 and 2-3 share 1 of 3, pair 1-3 shares 2 of 2: (1/3 + 1 + 1/3)/3."""
    assert math.isclose(jaccard_stability(THREE), 5 / 9, rel_tol=1e-12)
    assert math.isnan(jaccard_stability(THREE[:1]))


@given(st.integers(2, 8), st.integers(3, 30), st.integers(0, 9))
def test_stability_does_not_depend_on_order(seeds: int, gates: int, seed: int) -> None:
    masks = random_sets(seeds, gates, gates // 2, seed)
    turned = masks.flip(0).flip(1)
    assert math.isclose(nogueira_stability(masks), nogueira_stability(turned), abs_tol=1e-12)
    assert math.isclose(jaccard_stability(masks), jaccard_stability(turned), abs_tol=1e-12)
    assert nogueira_stability(masks) <= 1.0


def test_inclusion_probability_is_a_frequency() -> None:
    assert inclusion_probability(THREE).tolist() == [1.0, 2 / 3, 1 / 3, 0.0]


def test_an_ensemble_ranks_by_frequency_then_by_magnitude() -> None:
    masks = torch.tensor([[1.0, 1, 0, 0], [1, 0, 1, 0]])
    magnitudes = torch.tensor([[0.1, 0.2, 9.0, 99.0], [0.1, 0.2, 0.3, 99.0]])
    # Gate 0 twice; gates 1 and 2 once each, 2 is larger; gate 3 never, however large.
    assert ensemble_support(masks, magnitudes, 1).tolist() == [1, 0, 0, 0]
    assert ensemble_support(masks, magnitudes, 2).tolist() == [1, 0, 1, 0]
    assert ensemble_support(masks, magnitudes, 3).tolist() == [1, 1, 1, 0]


@given(st.integers(1, 6), st.integers(2, 20), st.data())
def test_an_ensemble_keeps_exactly_as_many_and_agrees_with_a_unanimous_vote(
    seeds: int, gates: int, draw: st.DataObject
) -> None:
    kept = draw.draw(st.integers(1, gates))
    assert (
        ensemble_support(torch.zeros(seeds, gates), torch.zeros(seeds, gates), kept).sum() == kept
    )
    same = top_mask(normal(gates, seed=seeds), kept)
    support = ensemble_support(same.repeat(seeds, 1), normal(seeds, gates).abs(), kept)
    assert torch.equal(support, same)


def test_the_t_interval_by_hand() -> None:
    """1, 2, 3: mean 2, s = 1, t(.975, 2) = 4.3027: ± 4.3027/√3."""
    interval = t_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)
    assert interval.to_json() == pytest.approx(
        {"mean": 2.0, "low": 2 - half, "high": 2 + half, "n": 3}
    )


def test_overlapping_splits_widen_the_interval() -> None:
    """Nadeau and Bengio: variance s²(1/n + n_test/n_train); 10 splits of 80/20: √(1/10 + 1/4)."""
    values = normal(10).tolist()
    plain, wide = t_interval(values), t_interval(values, overlap=0.25)
    s = float(torch.tensor(values, dtype=torch.float64).std())
    assert wide.high - wide.mean == pytest.approx(stats.t.ppf(0.975, 9) * s * math.sqrt(0.35))
    assert plain.mean == wide.mean
    assert (wide.high - wide.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(3.5))


def test_one_value_has_no_spread() -> None:
    """Not an interval of no width, which would look like certainty."""
    interval = t_interval([0.7])
    assert interval.mean == 0.7
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_the_interval_covers_as_often_as_it_says() -> None:
    """Of 1000 intervals of 5 normal numbers 950 hold the mean; standard deviation 7."""
    draws = normal(1000, 5)
    held = sum(i.low <= 0 <= i.high for i in map(t_interval, draws))
    assert 920 <= held <= 980


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=12).filter(lambda v: max(v) > min(v)),
    st.sampled_from([0.0, 15 / 57]),
)
def test_a_small_p_value_is_an_interval_without_zero(values, overlap) -> None:
    interval = t_interval(values, overlap)
    outside = interval.low > 0 or interval.high < 0
    assert (paired_p_value(values, overlap) < 0.05) == outside
    if overlap == 0.0:
        expected = stats.ttest_1samp(torch.tensor(values).double().numpy(), 0.0).pvalue
        assert paired_p_value(values) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_p_values_of_differences_that_are_all_the_same() -> None:
    assert paired_p_value([0.0, 0.0, 0.0]) == 1.0
    assert paired_p_value([0.5, 0.5]) == 0.0
    assert math.isnan(paired_p_value([0.5]))


ALL = torch.ones(4, dtype=torch.bool)


def test_swaps_by_hand() -> None:
    """Gates 0 and 1 take turns, 5 of 8 seeds and 3: P(none has both) = 1/C(8, 3) = 1/56 < .05."""
    first = torch.tensor([1.0, 1, 1, 1, 1, 0, 0, 0])
    masks = torch.stack([first, 1 - first, torch.ones(8), torch.zeros(8)], 1)
    assert swaps(masks, ALL) == [(0, 1, 3, 3), (1, 0, 5, 5)]
    assert swaps(masks, ALL, level=1 / 57) == []
    assert swaps(masks, torch.tensor([True, False, True, False])) == [(0, 1, 3, 3)]
    assert swaps(masks[:, 2:], ALL[2:]) == []


@given(st.integers(4, 12), st.integers(1, 11), st.integers(0, 12))
def test_the_chance_of_a_swap_is_hypergeometric(seeds: int, a: int, b: int) -> None:
    a, b = min(a, seeds - 1), min(max(b, 1), seeds - 1)
    masks = torch.zeros(seeds, 2)
    masks[:a, 0] = 1.0
    masks[seeds - b :, 1] = 1.0  # as few seeds with both as there can be
    chance = float(stats.hypergeom.cdf(max(0, a + b - seeds), seeds, a, b))
    found = swaps(masks, ALL[:2], level=2 * chance * (1 + 1e-9))
    assert [swap.gate for swap in found] == [0, 1]  # two pairs, of one chance
    assert swaps(masks, ALL[:2], level=2 * chance * (1 - 1e-6)) == []


def test_gates_that_do_not_mind_each_other_do_not_swap() -> None:
    """Of 200 tables of independent choices, at most the promised share names any pair."""
    named = 0
    for table in range(200):
        often = 0.2 + 0.6 * random.uniform(random.key(table, "often"), (1, 8))
        masks = (random.uniform(random.key(table, "sets"), (30, 8)) < often).float()
        named += bool(swaps(masks, torch.ones(8, dtype=torch.bool)))
    assert named <= 0.05 * 200 + 3 * math.sqrt(0.05 * 0.95 * 200)
