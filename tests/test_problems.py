"""Operators against finite differences, rows that do not count, curvature against eigenvalues."""

import pytest
import torch
from torch import Tensor

from fedsift import models, outcomes, random, trees
from fedsift.outcomes import weighted_mean
from fedsift.problems import Batch, Problem, curvature, supervised
from tests.laws import linear_problem, normal, rows

KEY = random.key(1, "problem")
OUTCOMES = ("regression", "binary", "multiclass", "poisson", "negative_binomial")


def batch_of(outcome: str, n: int = 11, d: int = 4) -> tuple[Problem, Batch]:
    data = rows(outcome, sizes=(n,), d=d)
    weight = 0.5 + random.uniform(KEY, (n,))
    return linear_problem(data, torch.float64), Batch(data.x, data.y, weight, KEY)


def point(problem: Problem, seed: int = 2) -> trees.Tree:
    return {
        leaf: normal(*value.shape, seed=seed, dtype=value.dtype)
        for leaf, value in problem.init(KEY).items()
    }


def loss_of(problem: Problem, params: trees.Tree, batch: Batch) -> Tensor:
    total, weight = problem.evaluate(params, batch)["loss"]
    return total / weight


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_operator_is_the_gradient_of_the_evaluated_loss(outcome: str) -> None:
    """Central differences in float64 along random directions, relative 1e-6."""
    problem, batch = batch_of(outcome)
    params = point(problem)
    field = problem.operators["loss"](params, batch)
    for seed in range(5):
        direction, h = point(problem, 10 + seed), 1e-5
        ahead, behind = (
            loss_of(problem, trees.add_scaled(params, s * h, direction), batch) for s in (1, -1)
        )
        slope = trees.dot(field, direction)
        torch.testing.assert_close((ahead - behind) / (2 * h), slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_rows_of_weight_zero_do_not_matter(outcome: str) -> None:
    problem, batch = batch_of(outcome)
    params = point(problem)
    padded = Batch(
        torch.cat([batch.x, 100 * normal(3, batch.x.shape[1])]),
        torch.cat([batch.y, batch.y[:3]]),
        torch.cat([batch.weight, torch.zeros(3)]),
        batch.key,
    )
    for name in ("loss",):
        torch.testing.assert_close(
            problem.operators[name](params, padded), problem.operators[name](params, batch)
        )
    for measure, figures in problem.evaluate(params, batch).items():
        torch.testing.assert_close(problem.evaluate(params, padded)[measure], figures)


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    problem, batch = batch_of("binary")
    whole = batch._replace(weight=torch.ones(11))
    doubled = whole._replace(weight=torch.tensor([2.0] + [1.0] * 10))
    x, y, weight = (torch.cat([t, t[:1]]) for t in (whole.x, whole.y, whole.weight))
    repeated = Batch(x, y, weight, batch.key)
    params = point(problem)
    torch.testing.assert_close(
        problem.operators["loss"](params, doubled), problem.operators["loss"](params, repeated)
    )


def test_no_row_at_all_gives_a_field_of_zero() -> None:
    problem, batch = batch_of("regression")
    field = problem.operators["loss"](point(problem), batch._replace(weight=torch.zeros(11)))
    assert trees.norm(field) == 0
    assert weighted_mean(normal(3), torch.zeros(3)) == 0


def test_a_ridge_adds_its_strength_times_the_gated_parameters() -> None:
    problem, batch = batch_of("multiclass")
    params = point(problem)
    plain = problem.operators["loss"](params, batch)
    ridged = problem.with_ridge(0.3).operators["loss"](params, batch)
    torch.testing.assert_close(ridged["weight"], plain["weight"] + 0.3 * params["weight"])
    assert torch.equal(ridged["bias"], plain["bias"])


def hessian(
    problem: Problem, params: trees.Tree, batch: Batch, scaling: trees.Tree | None
) -> Tensor:
    sizes = {leaf: value.numel() for leaf, value in params.items()}

    def flat_field(flat: Tensor) -> Tensor:
        pieces = dict(zip(sizes, flat.split(list(sizes.values())), strict=True))
        tree = {leaf: piece.reshape(params[leaf].shape) for leaf, piece in pieces.items()}
        return torch.cat([v.reshape(-1) for v in problem.operators["loss"](tree, batch).values()])

    flat = torch.cat([v.reshape(-1) for v in params.values()])
    d = torch.cat([v.reshape(-1) for v in scaling.values()]) if scaling else torch.ones_like(flat)
    jacobian = torch.func.jacrev(flat_field)(flat)
    assert isinstance(jacobian, Tensor)
    return d[:, None] * jacobian * d


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("scaled", [False, True])
def test_the_curvature_is_the_largest_eigenvalue(outcome: str, scaled: bool) -> None:
    """Within 5 % after 10 steps; exact for a quadratic loss, a chord's slope for the others."""
    problem, batch = batch_of(outcome)
    params = point(problem)
    scaling = {k: 0.2 + random.uniform(KEY, v.shape, v.dtype) for k, v in params.items()}
    chosen = scaling if scaled else None
    exact = float(torch.linalg.eigvalsh(hessian(problem, params, batch, chosen)).max())
    few = float(curvature(problem.operators["loss"], params, batch, KEY, chosen))
    many = float(curvature(problem.operators["loss"], params, batch, KEY, chosen, iterations=300))
    assert few == pytest.approx(many, rel=0.05)
    # exp(η) bends away from its chord more than the others do.
    close = {"regression": 1e-6, "poisson": 0.5}.get(outcome, 0.25)
    assert many == pytest.approx(exact, rel=close)


def test_the_curvature_of_a_flat_field_is_zero() -> None:
    problem, batch = batch_of("regression")
    flat = curvature(lambda p, _: trees.zeros_like(p), problem.init(KEY), batch, KEY)
    assert float(flat) == 0.0


def test_dropout_reaches_the_operator_through_the_key_of_the_batch() -> None:
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 9), torch.nn.Dropout(0.5), torch.nn.Linear(9, 1)
    )
    problem = supervised(models.from_module(network), outcomes.Squared())
    _, batch = batch_of("regression")
    params = problem.init(KEY)
    one, again = (problem.operators["loss"](params, batch) for _ in range(2))
    other = problem.operators["loss"](params, batch._replace(key=random.key(9)))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["2.weight"], other["2.weight"])
    losses = [loss_of(problem, params, batch._replace(key=random.key(i))) for i in range(2)]
    assert torch.equal(*losses)


def test_predict_is_the_output_in_evaluation() -> None:
    problem, batch = batch_of("multiclass")
    params = point(problem)
    assert problem.predict is not None
    expected = batch.x.double() @ params["weight"].T + params["bias"]
    torch.testing.assert_close(problem.predict(params, batch.x), expected)


def test_the_curvature_of_a_layer_without_forward_derivative() -> None:
    """A recurrent layer is differenced: the same as the Jacobian's norm to a tenth."""

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = torch.nn.LSTM(2, 3, batch_first=True), torch.nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.out(self.layer(x)[0][:, -1])
            return output

    problem = supervised(models.from_module(Recurrent()), outcomes.Squared())
    x, y = normal(6, 4, 2), normal(6, seed=1)
    batch = Batch(x, y, torch.ones(6), KEY)
    params = problem.init(KEY)
    value = curvature(problem.operators["loss"], params, batch, KEY, iterations=30)
    assert torch.isfinite(value)
    assert float(value) > 0
