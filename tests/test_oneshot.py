"""One exchange of sums gives what the rows in one place give."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import fit, regression
from fedsift.algorithms import OneShot, SolvedAtSite
from fedsift.data import FederatedData, Standardiser, synthetic_regression
from fedsift.linear_problems import linear_problem
from fedsift.methods import METHODS
from fedsift.regression import Moments, lasso, pseudo_rows, ridge_on
from fedsift.settings import Settings
from fedsift.studies import check_request
from fedsift.training import train

KEPT = 6


@pytest.fixture
def _abess():
    pytest.importorskip("abess", reason="the extra oneshot (abess) is not installed")


def drawn(samples=90, **options):
    options = {"n_features": 80, "n_informative": KEPT, "n_test": 50, "seed": 3} | options
    return synthetic_regression(n_samples=samples, **options)


def rows(samples=90, **options):
    train_rows = drawn(samples, **options).train
    return Standardiser.fit(train_rows, "feature").apply(train_rows)


@given(st.integers(2, 30), st.integers(2, 12), st.integers(0, 99))
@settings(max_examples=25)
def test_pseudo_rows_have_the_sums_of_the_rows(count, d, seed):
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(count, d)), draw.normal(size=count)
    gram, xy = Moments.of_rows(x, y).centred()
    pseudo, target = pseudo_rows(gram, xy)
    assert len(target) <= min(count - 1, d)
    np.testing.assert_allclose(pseudo.T @ pseudo, gram, atol=1e-5)
    np.testing.assert_allclose(pseudo.T @ target, xy, atol=1e-5)


def test_ridge_on_a_support_is_stationary():
    """At the minimum of mean (y - xw - b)² + r/2 ‖w‖²: -2 xᵀe/n + r w = 0 inside, Σe = 0."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(30, 8)) + 2.0, draw.normal(size=30)
    support = np.arange(8) < 3
    weights, intercept = ridge_on(Moments.of_rows(x, y), support, 0.3)
    error = y - x @ weights - intercept
    slope = -2.0 * x.T @ error / len(y) + 0.3 * weights
    np.testing.assert_allclose(slope[:3], 0.0, atol=1e-12)
    np.testing.assert_array_equal(weights[3:], 0.0)
    assert abs(error.sum()) < 1e-10


def test_the_lasso_keeps_its_largest_weights_and_centres():
    data = rows()
    x, y = data.x.double().numpy() + 1.0, data.y.double().numpy() + 5.0
    weights, intercept = lasso(x, y, KEPT)
    assert (weights != 0).sum() == KEPT
    assert abs((y - x @ weights - intercept).mean()) < 1e-9


@pytest.mark.usefixtures("_abess")
@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_sums_of_sites_give_the_pooled_answer(engine):
    data = rows()
    problem = linear_problem(data)
    once = train(problem, data, OneShot(density=KEPT / 80), engine=engine)
    pooled = train(
        problem, data.pooled(), SolvedAtSite(density=KEPT / 80, solver="abess"), engine=engine
    )
    for leaf, value in once.params.items():
        torch.testing.assert_close(value, pooled.params[leaf], atol=1e-5, rtol=1e-5)
    numbers = 81 * 84 // 2  # (d+1)(d+4)/2, of four bytes
    assert 0 <= int(once.bytes_up) - 5 * 4 * numbers < 5 * 150


@pytest.mark.usefixtures("_abess")
def test_the_intercept_is_that_of_centred_data():
    """Without standardisation: at the optimum the residuals of all rows have mean 0."""
    data = drawn().train
    shifted = FederatedData.from_arrays(data.x + 3.0, data.y + 7.0, outcome="regression")
    run = train(linear_problem(shifted), shifted, OneShot(density=KEPT / 80))
    weight, bias = run.params["weight"][0, 0], run.params["bias"][0]
    assert abs(float((shifted.y - shifted.x @ weight - bias).mean())) < 1e-3
    true = drawn().coefficients != 0
    assert float(((weight != 0) & true).sum()) / KEPT >= 0.8


@pytest.mark.usefixtures("_abess")
@pytest.mark.parametrize("method", ["oneshot", "abess", "lasso"])
def test_users_can_name_it(method):
    run = fit(drawn().train, method=method, features=KEPT, seeds=4, splits=2, beside=())
    assert len(run.features) == KEPT
    assert all(f.inclusion_probability == 1.0 for f in run.features)
    assert run.results["bytes_per_seed"] == run.results["bytes_up"] + run.results["bytes_down"]
    assert METHODS[method].once


@pytest.mark.usefixtures("_abess")
def test_what_it_cannot_do_is_refused():
    wide = drawn(8, n_features=20_000, n_informative=3).train
    with pytest.raises(ValueError, match="oneshot would send 800 MB from each site"):
        check_request(Settings(features=3, method="oneshot"), ["oneshot"], wide)
    binary = FederatedData.from_arrays(drawn().train.x, drawn().train.y > 0)
    with pytest.raises(ValueError, match="oneshot is for a linear model of a measured target"):
        check_request(Settings(features=3, method="oneshot"), ["oneshot"], binary)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(regression, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'fedsift\[oneshot\]'"):
        check_request(Settings(features=3, method="abess"), ["abess"], drawn().train)
