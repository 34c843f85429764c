"""Laws of the forget losses and of the measures."""

from __future__ import annotations

import math

import pytest
import torch

from fedsift import forgetting, measures
from fedsift.models import linear
from fedsift.outcomes import OUTCOMES, Softmax
from fedsift.problems import Batch, supervised


@pytest.mark.parametrize(("classes", "margin"), [(2, 2.4), (10, 3.5), (100, 5.4)])
def test_margin_of_the_steepest_entropy(classes: int, margin: float) -> None:
    assert forgetting.peak_margin(classes) == pytest.approx(margin, abs=0.05)


def logits_of(p: float, classes: int = 10) -> torch.Tensor:
    """Logits of a row whose class 0 has probability p, the others equal shares."""
    rest = (1 - p) / (classes - 1)
    return torch.tensor([[math.log(p)] + [math.log(rest)] * (classes - 1)], dtype=torch.float64)


def slope(loss: forgetting.RowLoss, p: float) -> float:
    """The norm of the gradient in the logits."""
    logits = logits_of(p).requires_grad_()
    (found,) = torch.autograd.grad(loss(logits, torch.tensor([0])).sum(), logits)
    return float(found.norm())


@pytest.mark.parametrize(
    ("name", "temperature", "expected"),
    [
        ("entropy", 1, 0.0042),
        ("entropy", 3, 0.098),
        ("entropy", 10, 0.007),
        ("bounded_ce", 1, 0.0011),
        ("ascent", 1, 0.0011),
    ],
)
def test_slopes_on_a_memorised_row(
    name: forgetting.ForgetLoss, temperature: float, expected: float
) -> None:
    """1 - p_y = 1e-3: at τ = 1 the entropy says almost nothing."""
    found = slope(forgetting.row_loss(name, temperature), 0.999)
    assert found == pytest.approx(expected, rel=0.35)


@pytest.mark.parametrize("name", ["entropy", "mixed"])
def test_bounds_of_the_entropy_losses(name: forgetting.ForgetLoss) -> None:
    """0 for the uniform answer (entropy), 1 at most for the sure one."""
    loss = forgetting.row_loss(name, 2.0)
    y = torch.tensor([0])
    assert float(loss(logits_of(1 - 1e-12), y)) <= 1.0
    assert float(forgetting.entropy_loss(2.0)(logits_of(0.1), y)) == pytest.approx(0.0, abs=1e-12)


def test_bounded_ce_has_its_bounds_and_ascent_has_none() -> None:
    y = torch.tensor([0])
    sure, wrong = logits_of(1 - 1e-12), logits_of(1e-12)
    assert float(forgetting.bounded_ce(sure, y)) == pytest.approx(math.log(2.0))
    assert float(forgetting.bounded_ce(wrong, y)) == pytest.approx(0.0, abs=1e-9)
    assert float(forgetting.ascent(wrong, y)) < -25
    assert float(forgetting.uniform_ce(1e3 * sure, y)) == forgetting.CLIP


def test_regression_is_refused() -> None:
    problem = supervised(linear(3), OUTCOMES["regression"])
    with pytest.raises(ValueError, match="regression has no classes"):
        forgetting.forgetting(problem, OUTCOMES["regression"])


def test_unknown_losses_and_temperatures_are_refused() -> None:
    with pytest.raises(ValueError, match="no forget loss 'x'; use one of entropy"):
        forgetting.row_loss("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="temperature is 0"):
        forgetting.row_loss("entropy", 0)


def test_operators_are_the_gradients_of_the_objectives() -> None:
    """Central differences along a random direction, in float64."""
    problem = forgetting.forgetting(
        supervised(linear(4, 3, dtype=torch.float64), Softmax(3)), Softmax(3), "mixed", 2.0
    )
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    batch = Batch(
        draw(5, 4), torch.tensor([0, 1, 2, 0, 1]), torch.ones(5), torch.zeros((), dtype=torch.int64)
    )
    params = {"weight": draw(3, 4), "bias": draw(3)}
    way = {"weight": draw(3, 4), "bias": draw(3)}
    for name, f in problem.objectives.items():
        ends = [f({k: v + h * way[k] for k, v in params.items()}, batch) for h in (1e-5, -1e-5)]
        field = problem.operators[name](params, batch)
        along = sum(float((field[k] * way[k]).sum()) for k in params)
        assert along == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_one_logit_is_two_classes() -> None:
    z = torch.tensor([[0.3], [-2.0]])
    assert torch.allclose(
        torch.softmax(forgetting.class_logits(z), -1)[:, 1], torch.sigmoid(z[:, 0])
    )


def test_auc_counts_pairs() -> None:
    """Members 3, 1, 1 and others 2, 1, 0: 3+0 ties; 1: (½+1) twice, of 9 pairs: 6/9."""
    members, others = torch.tensor([3.0, 1.0, 1.0]), torch.tensor([2.0, 1.0, 0.0])
    ones = torch.ones(3)
    assert float(measures.auc(members, ones, others, ones)) == pytest.approx(6 / 9)
    assert float(measures.auc(others, ones, members, ones)) == pytest.approx(3 / 9)


def test_auc_does_not_look_at_rows_without_weight() -> None:
    members, others = torch.tensor([3.0, 9.0]), torch.tensor([2.0, 10.0])
    first = torch.tensor([1.0, 0.0])
    assert float(measures.auc(members, first, others, first)) == 1.0
    assert float(measures.auc(members, 0 * first, others, first)) == 0.5
