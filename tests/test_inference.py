"""Effects and their errors from sums over sites are those of all rows in one place."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedsift.data import FederatedData
from fedsift.inference import NotEstimableError, check_half, estimate, halves

N, D = 120, 4


def drawn(outcome: str, seed: int = 0, n: int = N) -> FederatedData:
    """Make rows at three sites, two rows of a patient here and there."""
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(n, D))
    score = 0.3 + x @ np.array([1.0, -0.5, 0.0, 0.2])
    knobs: dict[str, Any] = {"outcome": outcome}
    if outcome == "regression":
        y = score + numbers.normal(size=n) * (0.5 + np.abs(x[:, 0]))
    elif outcome == "binary":
        y = (numbers.random(n) < 1 / (1 + np.exp(-score))).astype(int)
    elif outcome == "multiclass":
        y = np.digitize(score + numbers.logistic(size=n), [-1, 1])
    elif outcome == "survival":
        y = numbers.random(n) < 0.7
        knobs = {"time": numbers.exponential(np.exp(-score))}
    else:
        y = numbers.poisson(np.exp(score))
    ids = [f"patient {row - (row % 7 == 0)}" for row in range(n)]
    return FederatedData.from_arrays(
        x, y, sites=np.sort(numbers.integers(0, 3, n)), ids=ids, **knobs
    )


def design(data: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    x = data.x.double().numpy()
    return np.hstack([x, np.ones((len(x), 1))]), data.y.double().numpy()


def sandwich(data: FederatedData, scores: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """Return the standard errors of scores [n, p], those of an id added up, and a curvature."""
    names = list(dict.fromkeys(zip(data.site_of_row.tolist(), data.rows, strict=True)))
    summed = np.zeros((len(names), scores.shape[1]))
    for row, name in enumerate(zip(data.site_of_row.tolist(), data.rows, strict=True)):
        summed[names.index(name)] += scores[row]
    inverse = np.linalg.inv(bend)
    return np.asarray(np.sqrt(np.diag(inverse @ summed.T @ summed @ inverse)))


def test_squares_are_least_squares_with_errors_of_hc3():
    data = drawn("regression")
    x, y = design(data)
    found = estimate(data)
    weights, *_ = np.linalg.lstsq(x, y, rcond=None)
    leverage = np.einsum("np,pq,nq->n", x, np.linalg.inv(x.T @ x), x)
    errors = sandwich(data, x * ((y - x @ weights) / (1 - leverage))[:, None], x.T @ x)
    np.testing.assert_allclose(found.effects[:, 0], weights, atol=1e-8)
    np.testing.assert_allclose(found.errors[:, 0], errors, atol=1e-8)
    assert found.freedom == len(set(data.rows)) - D - 1


@pytest.mark.parametrize("outcome", ["binary", "poisson"])
def test_a_likelihood_is_at_its_largest_and_has_the_corrected_sandwich(outcome):
    data = drawn(outcome)
    x, y = design(data)

    def mean(weights: np.ndarray) -> np.ndarray:
        rise = np.exp(x @ weights)
        return np.asarray(rise / (1 + rise) if outcome == "binary" else rise)

    def loss(weights: np.ndarray) -> float:
        score = x @ weights
        whole = np.logaddexp(0, score) if outcome == "binary" else np.exp(score)
        return float((whole - y * score).sum())

    best = minimize(loss, np.zeros(D + 1), jac=lambda w: x.T @ (mean(w) - y), method="BFGS").x
    for _ in range(3):  # to the last digits
        m = mean(best)
        bend = x.T @ (x * (m * (1 - m) if outcome == "binary" else m)[:, None])
        best = best - np.linalg.solve(bend, x.T @ (m - y))
    m = mean(best)
    variance = m * (1 - m) if outcome == "binary" else m
    leverage = variance * np.einsum("np,pq,nq->n", x, np.linalg.inv(bend), x)
    found = estimate(data)
    np.testing.assert_allclose(found.effects[:, 0], best, atol=1e-8)
    errors = sandwich(data, x * ((y - m) / (1 - leverage))[:, None], bend)
    np.testing.assert_allclose(found.errors[:, 0], errors, atol=1e-8)


def test_effects_on_classes_are_against_the_first():
    """At the maximum every class has as many rows, and sums of features, as the model expects."""
    data = drawn("multiclass")
    x, y = design(data)
    output = np.hstack([np.zeros((len(x), 1)), x @ estimate(data).effects.numpy()])
    share = np.exp(output) / np.exp(output).sum(1, keepdims=True)
    np.testing.assert_allclose(x.T @ share, x.T @ np.eye(3)[y.astype(int)], atol=1e-8)


def test_of_two_classes_softmax_and_logistic_say_the_same():
    """The general formulas for K classes against those of one output."""
    three, two = drawn("multiclass"), drawn("binary")
    rare = replace(three, y=two.y.clone())
    rare.y[0] = 2  # one row of a third class hardly moves the other two
    soft, plain = (
        estimate(replace(rare, weight=rare.weight.clone().index_fill_(0, torch.tensor([0]), 1e-9))),
        estimate(two.take(range(1, N))),
    )
    np.testing.assert_allclose(soft.effects[:, 0], plain.effects[:, 0], atol=1e-5)
    np.testing.assert_allclose(soft.errors[:, 0], plain.errors[:, 0], rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_times_have_the_robust_errors_of_a_stratified_model():
    lifelines = pytest.importorskip("lifelines")
    import pandas as pd

    data = drawn("survival")
    data = replace(data, rows=tuple(map(str, range(N))))
    frame = pd.DataFrame(data.x.double().numpy(), columns=list("abcd"))
    frame["time"], frame["event"] = data.y.abs().double().numpy(), (data.y > 0).numpy()
    frame["site"] = data.site_of_row.numpy()
    fit = lifelines.CoxPHFitter().fit(
        frame, "time", "event", strata=["site"], robust=True, fit_options={"precision": 1e-12}
    )
    found = estimate(data)
    np.testing.assert_allclose(found.effects[:, 0], fit.params_, atol=1e-7)
    np.testing.assert_allclose(found.errors[:, 0], fit.standard_errors_, atol=1e-7)


@pytest.mark.parametrize(
    "outcome", ["regression", "binary", "multiclass", "poisson", "negative_binomial"]
)
def test_it_does_not_matter_where_rows_are(outcome):
    data = drawn(outcome)
    data = replace(data, rows=tuple(map(str, range(N))))
    dealt = data.with_sites(torch.arange(N) % 7, [f"s{k}" for k in range(7)])
    constants = {"dispersion": 0.5} if outcome == "negative_binomial" else {}
    one, other = estimate(data.pooled(), constants), estimate(dealt, constants)
    np.testing.assert_allclose(one.effects, other.effects, atol=1e-9)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-9)


@pytest.mark.parametrize("outcome", ["regression", "binary", "survival"])
def test_the_unit_of_weights_does_not_matter(outcome):
    data = drawn(outcome)
    one, other = estimate(data), estimate(replace(data, weight=3.0 * data.weight))
    np.testing.assert_allclose(one.effects, other.effects, atol=1e-9)
    np.testing.assert_allclose(one.errors, other.errors, atol=1e-9)


def test_what_rows_do_not_determine_is_said():
    data = drawn("binary")
    separated = replace(data, y=(data.x[:, 0] > 0).long())
    with pytest.raises(NotEstimableError, match="separate"):
        estimate(separated)
    constant = data.x.clone()
    constant[:, 2] = 0.0
    with pytest.raises(NotEstimableError, match="'x2' does not vary"):
        estimate(replace(data, x=constant))
    twice = data.x.clone()
    twice[:, 2] = twice[:, 0]
    with pytest.raises(NotEstimableError, match="collinear"):
        estimate(replace(data, x=twice))
    alone = data.x.clone()
    alone[:, 2] = (torch.arange(N) == 5).float()
    with pytest.raises(NotEstimableError, match="alone decides"):
        estimate(replace(drawn("regression"), x=alone))
    with pytest.raises(NotEstimableError, match="5 rows for 5 parameters"):
        estimate(drawn("regression").take(range(5)))


def test_halves_that_are_too_small_are_refused_before():
    data = drawn("binary")
    check_half(data, 0, 4)
    with pytest.raises(ValueError, match="60 features make 61 parameters"):
        check_half(data, 0, 60)
    lonely = replace(data, y=(torch.arange(N) == 3).long(), rows=tuple(map(str, range(N))))
    with pytest.raises(ValueError, match="none of the class '1'"):
        check_half(lonely, 0, 4)
    timed = drawn("survival")
    with pytest.raises(ValueError, match="no event of 'target'"):
        check_half(replace(timed, y=-timed.y.abs()), 0, 4)


def test_the_halves_share_no_patient():
    data = drawn("regression")
    first, second = halves(data, 4)
    assert not set(first.rows) & set(second.rows)
    assert first.n_samples + second.n_samples == N
    assert abs(len(set(first.rows)) - len(set(second.rows))) <= 1
