"""Stability selection: the bounds against published numbers, the halves, the choice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsift import fit
from fedsift.algorithms import FedAvg
from fedsift.controlled import by_halves
from fedsift.data import FederatedData, halved
from fedsift.stability import bound, largest_tail, most_chosen, threshold
from fedsift.training import train
from tests.laws import (
    ENGINES,
    job,
    largest_gap,
    linear_problem,
    normal,
    proceed,
    relative_gap,
    rows,
)

# q of 100 features, 50 pairs, threshold .6: what the R package stabs 0.6-4 prints for them in its
# regression tests (Hofner & Hothorn; tests/regtest-inference.Rout.save).
STABS = {2: (0.1052632, 0.03342845), 5: (0.6578947, 0.2605329), 10: (2.631579, 1.141338)}


@pytest.mark.parametrize("q", STABS)
def test_the_bounds_are_the_published_ones(q):
    unimodal, concave = STABS[q]
    assert bound(q, 100, 0.6, 50, "none") == pytest.approx(q**2 / 20)
    assert bound(q, 100, 0.6, 50, "unimodal") == pytest.approx(unimodal, rel=1e-6)
    # Theirs ends its search a little below the largest value.
    assert concave <= bound(q, 100, 0.6, 50, "r-concave") <= 1.001 * concave


def test_bounds_derived_by_hand():
    """θ = 1/10, B = 50, τ = .96: 4(1 - .96 + .01)/1.02 = .196; times 10 · .09. At τ = .75, q = 2 of
    9: 1/(2(.5 - .01)) = 1.0204; times 4/9 (stabs prints .176 and .454)."""
    assert bound(3, 10, 0.96, 50, "unimodal") == pytest.approx(4 * 0.05 / 1.02 * 10 * 0.09)
    assert bound(2, 9, 0.75, 50, "unimodal") == pytest.approx(4 / 9 / 0.98)


def test_thresholds_and_sizes_are_the_published_ones():
    """Of 200 features, expected false .2: stabs gives the thresholds .62 and .81 for q = 7, and q =
    2 of 9 features for one expected false one at .75."""
    assert threshold(0.2, 7, 200, 50, "r-concave") == 0.62
    assert threshold(0.2, 7, 200, 50, "unimodal") == 0.81
    assert most_chosen(1.0, 9, 50, "unimodal") == 2
    assert threshold(0.01, 50, 200, 50, "none") is None


def test_weaker_assumptions_give_larger_bounds_and_votes_are_whole():
    for tau in (0.6, 0.75, 0.9):
        sizes = [bound(8, 200, tau, 25, a) for a in ("r-concave", "unimodal", "none")]
        assert sizes == sorted(sizes)
    assert bound(8, 200, 0.601, 25, "none") == bound(8, 200, 0.62, 25, "none")


def test_no_r_concave_distribution_has_a_larger_tail():
    """f^r is convex for f = h^(1/r) with h convex: sums of hinges."""
    draws = np.random.default_rng(0)
    i = np.arange(21)
    for _ in range(300):
        hinges = draws.exponential(size=(4, 1)) * (i - draws.uniform(-5, 20, (4, 1))).clip(0)
        h = 0.01 + draws.exponential() + draws.exponential() * i + hinges.sum(0)
        f = h ** (1 / -0.5)
        f /= f.sum()
        mean = float(i @ f) / 20
        for least in (12, 16, 20):
            assert f[least:].sum() <= largest_tail(mean, least, 20, -0.5) + 1e-9


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0, 10, 0.8, 5, "none"), "0 of 10 features"),
        ((3, 10, 0.5, 5, "none"), "threshold is 0.5"),
        ((3, 10, 0.8, 5, "normal"), "'normal' is unknown"),
    ],
)
def test_bad_numbers_are_refused(numbers, text):
    with pytest.raises(ValueError, match=text):
        bound(*numbers)


def test_halves_are_complementary_and_drawn_inside_each_site():
    data = rows(sizes=(9, 1, 14))
    half = halved(data, 0, 20)
    for where, size in zip(data.slices, data.sizes, strict=True):
        for side in (0, 1):
            assert ((half[:, where] == side).sum(1) == size // 2).all()
    assert len(half.unique(dim=0)) == 20
    # A site's halves are its own business.
    assert torch.equal(halved(data.site("hospital c"), 0, 20), half[:, data.slices[2]])
    assert torch.equal(halved(data, 0, 5), half[:5])


def test_rows_of_one_patient_are_in_one_half():
    ids = [f"p{i // 2}" for i in range(20)]
    data = FederatedData.from_arrays(normal(20, 2), normal(20), ids=ids)
    half = halved(data, 1, 10).reshape(10, 10, 2)
    assert torch.equal(half[..., 0], half[..., 1])


def test_engines_agree_on_halves():
    data = rows(sizes=(9, 1, 14, 2))
    made = job(
        linear_problem(data), data, FedAvg(density=0.25, rounds=4), seeds=(0, 1, 2, 3), halves=7
    )
    ends = [proceed(made, engine(), 4, 0.5) for engine in ENGINES.values()]
    assert relative_gap(ends[0][0].server, ends[1][0].server) <= 1e-5
    assert torch.equal(ends[0][1], ends[1][1])


def test_a_lane_is_a_training_on_its_half_alone():
    data = rows(sizes=(10, 14, 6))
    knobs: dict[str, Any] = {"evaluate_every": 5, "compile": False}
    algorithm = FedAvg(density=0.25, rounds=5, learning_rate=0.05)
    lanes = train(linear_problem(data), data, algorithm, seeds=range(4), halves=3, **knobs)
    half = halved(data, 3, 2)
    for lane in range(4):
        part = data.take(half[lane // 2] == lane % 2)
        alone = train(linear_problem(part), part, algorithm, seeds=[lane], **knobs)
        assert largest_gap(alone.params["weight"][0], lanes.params["weight"][lane]) <= 1e-6


def test_all_that_are_tied_at_the_threshold_are_in_and_nothing_is_cut_by_position():
    """Of 20 halves 16 chose features 3 to 7, and the others fewer: five are in, or none."""
    masks = torch.zeros(20, 50)
    masks[:16, 3:8] = 1.0
    masks[16:, 10:15] = 1.0
    names = [f"x{j}" for j in range(50)]
    tau = threshold(1.0, 5, 50, 10, "unimodal")
    assert tau is not None
    assert tau <= 0.8
    chosen = by_halves(masks, 5, 1.0, "unimodal", names)
    assert chosen.support.nonzero().squeeze(1).tolist() == [3, 4, 5, 6, 7]
    assert chosen.facts["reason"] is None
    few = by_halves(masks[[0, 16] * 10], 5, 1.0, "unimodal", names)
    assert not few.support.any()
    assert "no feature was chosen by a share of" in few.facts["reason"]
    assert "0.50, by them was x3" in few.facts["reason"]


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_a_fit_keeps_the_expected_number_of_false_features(engine):
    """Noise alone: no feature is chosen by most halves, and none is taken in their place."""
    data = rows(sizes=(20, 21, 24))
    knobs: dict[str, Any] = {"features": 3, "pfer": 1.0, "pairs": 4, "splits": 0, "engine": engine}
    knobs |= {"method": "fediterht", "rounds": 8, "tuning_rounds": 4}
    run = fit(data, **knobs)
    control = run.results["error_control"]
    assert {f.name for f in run.features} >= {"x0", "x1"}
    assert control["expected_false"] <= 1.0
    assert control["chosen"] == len(run.features)
    noise = replace(data, y=normal(65, seed=9))
    nothing = fit(noise, **knobs | {"pfer": 0.3, "features": 1})
    assert nothing.features == ()
    assert nothing.results["error_control"]["reason"]
    assert len(nothing.predict(data.x.numpy(), data.features)) == 65


def test_what_cannot_be_kept_is_refused_before_anything_is_done():
    data = rows(sizes=(9, 6))
    with pytest.raises(ValueError, match=r"pfer=0.1 cannot be kept .* 6 of 12"):
        fit(data, features=6, pfer=0.1)
    with pytest.raises(ValueError, match="pairs goes with pfer only"):
        fit(data, features=6, pairs=5)
