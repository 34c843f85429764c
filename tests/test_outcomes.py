"""Losses against their definitions, measures that add up over sites."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift.outcomes import OUTCOMES, Logistic, Softmax, Squared
from tests.laws import normal

CASES = {
    "regression": (normal(9, 1), normal(9, seed=1)),
    "binary": (normal(9, 1), (normal(9, seed=1) > 0).long()),
    "multiclass": (normal(9, 3), torch.arange(9) % 3),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_loss_is_the_negative_log_likelihood(name: str) -> None:
    output, y = CASES[name]
    loss = OUTCOMES[name].loss(output, y)
    if name == "regression":
        expected = (output[:, 0] - y) ** 2
    elif name == "binary":
        expected = -torch.distributions.Bernoulli(logits=output[:, 0]).log_prob(y.float())
    else:
        expected = -torch.distributions.Categorical(logits=output).log_prob(y)
    torch.testing.assert_close(loss, expected)
    assert loss.shape == y.shape


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


def test_accuracy_counts_what_predict_says() -> None:
    assert Logistic().predict(torch.tensor([[0.1], [-0.1], [0.0]])).tolist() == [1, 0, 0]
    assert Softmax().predict(torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])).tolist() == [1, 0]
    for name in ("binary", "multiclass"):
        outcome, (output, y) = OUTCOMES[name], CASES[name]
        right = (outcome.predict(output) == y).float()
        assert torch.equal(outcome.measures(output, y)["accuracy"], right)
    assert torch.equal(Squared().predict(normal(3, 1)), normal(3, 1)[:, 0])
