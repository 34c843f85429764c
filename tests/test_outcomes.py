"""Losses against their definitions, measures that add up over sites."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift.outcomes import (
    OUTCOMES,
    Counts,
    Logistic,
    NegativeBinomial,
    Poisson,
    Softmax,
    Squared,
)
from tests.laws import normal

CASES = {
    "regression": (normal(9, 1), normal(9, seed=1)),
    "binary": (normal(9, 1), (normal(9, seed=1) > 0).long()),
    "multiclass": (normal(9, 3), torch.arange(9) % 3),
    "poisson": (normal(9, 1), torch.arange(9.0) % 4),
    "negative_binomial": (normal(9, 1), torch.arange(9.0) % 4),
    "multilabel": (normal(9, 2), torch.arange(18).reshape(9, 2) % 3 - 1),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_loss_is_the_negative_log_likelihood(name: str) -> None:
    output, y = CASES[name]
    loss = OUTCOMES[name].loss(output, y)
    if name == "regression":
        expected = (output[:, 0] - y) ** 2
    elif name == "poisson":
        expected = deviance(torch.distributions.Poisson(output[:, 0].exp()), y)
    elif name == "negative_binomial":
        # of dispersion α = 1: 1/α failures, the logit of a success is log(αμ)
        counts = torch.distributions.NegativeBinomial(1.0, logits=output[:, 0])
        expected = deviance(counts, y)
    elif name == "multilabel":
        each = torch.distributions.Bernoulli(logits=output).log_prob((y > 0).float())
        expected = -(each * (y >= 0)).sum(1)
    elif name == "binary":
        expected = -torch.distributions.Bernoulli(logits=output[:, 0]).log_prob(y.float())
    else:
        expected = -torch.distributions.Categorical(logits=output).log_prob(y)
    torch.testing.assert_close(loss, expected)
    assert loss.shape == y.shape[:1]


def deviance(fitted: torch.distributions.Distribution, y: torch.Tensor) -> torch.Tensor:
    """Return how far the log-likelihood is below that of means equal to the counts, [n]."""
    perfect = y.clamp(min=1e-30)
    saturated: torch.distributions.Distribution = (
        torch.distributions.Poisson(perfect)
        if isinstance(fitted, torch.distributions.Poisson)
        else torch.distributions.NegativeBinomial(1.0, logits=perfect.log())
    )
    difference: torch.Tensor = saturated.log_prob(y) - fitted.log_prob(y)
    return difference


def test_losses_stay_finite_far_out() -> None:
    """softplus(500) - 500 · 1 = 0 and softplus(500) - 0 = 500."""
    far = torch.tensor([[500.0], [500.0], [-500.0]])
    assert Logistic().loss(far, torch.tensor([1, 0, 1])).tolist() == [0.0, 500.0, 500.0]
    wide = torch.tensor([[0.0, 1e4, -1e4]])
    assert Softmax().loss(wide, torch.tensor([1])).tolist() == [0.0]
    assert torch.isfinite(Softmax().loss(wide, torch.tensor([2]))).all()


def test_two_classes_by_softmax_are_the_logistic_loss_of_the_difference() -> None:
    output, y = normal(7, 2), torch.arange(7) % 2
    difference = (output[:, 1] - output[:, 0]).unsqueeze(1)
    torch.testing.assert_close(Softmax().loss(output, y), Logistic().loss(difference, y))


@given(st.integers(1, 8), st.sampled_from(sorted(OUTCOMES)))
def test_measures_add_up_over_sites(cut: int, name: str) -> None:
    """The figures of all rows come from the sums of two groups of rows."""
    outcome, (output, y) = OUTCOMES[name], CASES[name]
    whole = outcome.measures(output, y)
    parts = [outcome.measures(output[s], y[s]) for s in (slice(cut), slice(cut, None))]
    added = {k: torch.stack([p[k].sum() for p in parts]).sum() / len(y) for k in whole}
    from_parts, from_all = (
        outcome.summarise(added),
        outcome.summarise({k: v.mean() for k, v in whole.items()}),
    )
    for figure in (outcome.measure, "loss"):
        torch.testing.assert_close(from_parts[figure], from_all[figure])


def test_r2_is_one_minus_the_loss_over_the_variance() -> None:
    y = torch.tensor([1.0, 2.0, 3.0, 6.0])
    outcome = Squared()

    def r2(output: torch.Tensor) -> float:
        means = {k: v.mean() for k, v in outcome.measures(output.unsqueeze(1), y).items()}
        return float(outcome.summarise(means)["r2"])

    assert r2(y) == 1.0
    assert math.isclose(r2(torch.full((4,), 3.0)), 0.0, abs_tol=1e-6)
    # errors 1, 1, 0, -1: mean square .75; variance of y 3.5
    assert math.isclose(r2(y + torch.tensor([1.0, 1.0, 0.0, -1.0])), 1 - 0.75 / 3.5, rel_tol=1e-5)


@pytest.mark.parametrize("outcome", [Poisson(), NegativeBinomial(dispersion=0.5)])
def test_deviance_explained_is_0_for_the_mean_and_1_for_the_counts(outcome: Counts) -> None:
    y = torch.tensor([0.0, 1.0, 2.0, 9.0])
    for output, expected in ((torch.full((4,), 3.0).log(), 0.0), (y.log().clamp(min=-30), 1.0)):
        rows = outcome.measures(output.unsqueeze(1), y)
        figures = outcome.summarise({k: v.mean() for k, v in rows.items()})
        assert math.isclose(float(figures["deviance_explained"]), expected, abs_tol=1e-6)


@pytest.mark.parametrize("outcome", [Poisson(), NegativeBinomial(dispersion=0.5)])
def test_counts_divided_by_a_unit_have_the_loss_over_the_unit(outcome: Counts) -> None:
    """Of y/u and log(μ/u) with the dispersion αu; u = 4."""
    y, output = torch.tensor([0.0, 4.0, 12.0]), torch.tensor([[0.3], [1.0], [2.0]])
    scaled = replace(outcome, dispersion=2.0) if isinstance(outcome, NegativeBinomial) else outcome
    loss = scaled.loss(output - math.log(4.0), y / 4.0)
    torch.testing.assert_close(4.0 * loss, outcome.loss(output, y))


def test_a_small_dispersion_is_the_poisson_loss() -> None:
    output, y = (t.double() for t in CASES["poisson"])
    nearly = NegativeBinomial(dispersion=1e-7).loss(output, y)
    torch.testing.assert_close(nearly, Poisson().loss(output, y), rtol=1e-5, atol=1e-5)


def test_the_dispersion_comes_from_the_moments() -> None:
    """Mean 4, variance 36 and unit 4: α = (36 - 4)/16 = 2, and αu = 8.

    The null loss is 9/4/(2 · 9) = 1/8; for Poisson 9/8, nearest to 1.
    """
    means = {"y": 1.0, "y_squared": 1.0 + 36 / 16}
    assert NegativeBinomial().constants(means, 4.0) == {"dispersion": 8.0, "null_loss": 0.125}
    assert Poisson().constants(means, 4.0) == {"null_loss": 1.0}
    assert NegativeBinomial().constants({"y": 1.0, "y_squared": 1.01}, 4.0)["dispersion"] == 2**-6


def test_accuracy_counts_what_predict_says() -> None:
    assert Logistic().predict(torch.tensor([[0.1], [-0.1], [0.0]])).tolist() == [1, 0, 0]
    assert Softmax().predict(torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])).tolist() == [1, 0]
    for name in ("binary", "multiclass"):
        outcome, (output, y) = OUTCOMES[name], CASES[name]
        right = (outcome.predict(output) == y).float()
        assert torch.equal(outcome.measures(output, y)["accuracy"], right)
    assert torch.equal(Squared().predict(normal(3, 1)), normal(3, 1)[:, 0])
