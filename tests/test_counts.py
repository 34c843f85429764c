"""Counts: coefficients against other solvers, units, and the way from files to a report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_tweedie_score

import fedsift
from fedsift.algorithms import Tuning
from fedsift.cli import main
from fedsift.data import DataError, FederatedData, Standardiser
from fedsift.data.site_files import SiteFile
from fedsift.engines.flower.roster import classes_of
from fedsift.exports import original_units
from fedsift.linear_problems import constants_of, linear_problem, problem_of
from fedsift.problems import Batch
from tests.laws import normal

SITES = (30, 1, 55, 14)
QUICK: dict[str, Any] = {"seeds": 2, "rounds": 60, "features": 3, "splits": 1, "beside": ()}


def counts(d: int = 5, spread: float = 0.0, seed: int = 0) -> FederatedData:
    """Make counts of mean exp(1 + .6 x0 - .4 x1 + .3 x2); ``spread``: of a further factor."""
    n = sum(SITES)
    x = normal(n, d, seed=seed).double()
    log_mean = 1.0 + 0.6 * x[:, 0] - 0.4 * x[:, 1] + 0.3 * x[:, 2]
    log_mean = log_mean + spread * normal(n, seed=seed + 1).double()
    y = np.random.default_rng(seed).poisson(log_mean.exp().numpy())
    sites = [f"s{c}" for c, size in enumerate(SITES) for _ in range(size)]
    return FederatedData.from_arrays(x, y, sites=sites, outcome="poisson")


def dense_fit(data: FederatedData, constants: dict[str, float]) -> dict[str, torch.Tensor]:
    """Return the unpenalised fit of all features."""
    problem = linear_problem(data, constants=constants)
    run = fedsift.train(problem, data, Tuning(rounds=300, local_steps=1), compile=False)
    return {name: leaf[0].double() for name, leaf in run.params.items()}


def test_coefficients_are_scikit_learns() -> None:
    data = counts()
    x, y = data.x.double().numpy(), data.y.numpy()
    expected = PoissonRegressor(alpha=0.0, tol=1e-10, max_iter=1000).fit(x, y)
    standardiser = Standardiser.fit(data, "none")
    assert standardiser.target_scale == pytest.approx(y.mean())
    found = dense_fit(standardiser.apply(data), {})
    np.testing.assert_allclose(found["weight"][0], expected.coef_, atol=1e-4)
    intercept = float(found["bias"]) + np.log(standardiser.target_scale)
    assert intercept == pytest.approx(expected.intercept_, abs=1e-4)


def newton(x: NDArray[Any], y: NDArray[Any], alpha: float) -> NDArray[Any]:
    """Return the negative binomial coefficients, the intercept last, by Fisher scoring."""
    design = np.column_stack([x, np.ones(len(y))])
    beta = np.append(np.zeros(x.shape[1]), np.log(y.mean()))
    for _ in range(50):
        mean = np.exp(design @ beta)
        weight = mean / (1.0 + alpha * mean)
        information = (design.T * weight) @ design
        beta += np.linalg.solve(information, design.T @ ((y - mean) / (1.0 + alpha * mean)))
    return beta


def test_negative_binomial_coefficients_are_those_of_fisher_scoring() -> None:
    data = counts(spread=0.7)
    data = FederatedData.from_arrays(data.x, data.y, outcome="negative_binomial")
    rows = Standardiser.fit(data, "none").apply(data)
    unit = float(data.y.mean())
    constants = constants_of(rows, unit)
    found = dense_fit(rows, constants)
    expected = newton(data.x.double().numpy(), data.y.numpy(), constants["dispersion"] / unit)
    np.testing.assert_allclose(found["weight"][0], expected[:-1], atol=1e-4)
    assert float(found["bias"]) + np.log(unit) == pytest.approx(expected[-1], abs=1e-4)


@pytest.mark.parametrize("outcome", ["poisson", "negative_binomial"])
def test_a_fit_finds_the_features_and_predicts_counts(outcome: str) -> None:
    made = counts(d=12, spread=0.2)
    data = FederatedData.from_arrays(
        made.x, made.y, sites=["ab"[row % 2] for row in range(100)], outcome=outcome
    )
    run = fedsift.fit(data, **QUICK)
    assert {f.name for f in run.features} == {"x0", "x1", "x2"}
    predicted = torch.tensor(run.predict(made.x, data.features), dtype=torch.float64)
    names, slopes, intercept = original_units(run)
    by_hand = (
        made.x[:, [data.features.index(n) for n in names]].double() @ slopes.T + intercept
    ).exp()
    torch.testing.assert_close(predicted, by_hand[:, 0], rtol=1e-4, atol=1e-4)
    explained = d2_tweedie_score(made.y.numpy(), predicted.numpy(), power=1)
    assert run.results["test_deviance_explained"]["mean"] == pytest.approx(explained, abs=0.25)


def test_a_problem_is_told_with_its_constants() -> None:
    data = counts(spread=0.7)
    data = FederatedData.from_arrays(data.x, data.y, outcome="negative_binomial")
    problem = linear_problem(data, constants={"dispersion": 4.0, "null_loss": 0.25})
    again = problem_of(json.loads(json.dumps(problem.told())))
    assert again.null_loss == problem.null_loss == 0.25
    batch = Batch(data.x, data.y, data.weight, torch.zeros((), dtype=torch.int64))
    params = {"weight": normal(1, 5), "bias": normal(1)}
    torch.testing.assert_close(
        again.operators["loss"](params, batch), problem.operators["loss"](params, batch)
    )


def test_values_that_are_no_counts_are_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(DataError, match=r"row 2: 'target' is 1.5, and counts are whole"):
        FederatedData.from_arrays(np.zeros((2, 1)), [1, 1.5], outcome="poisson")
    file = tmp_path / "a.csv"
    file.write_text("x,visits\n1,2\n2,-1\n3,0\n")
    command = ["fit", str(file), "--target", "visits", "--outcome", "poisson", "--features", "1"]
    assert main(command) == 2
    assert "a.csv, line 3: 'visits' is -1" in capsys.readouterr().err
    with pytest.raises(DataError, match="line 3"):
        SiteFile(file, "a", "visits", min_rows=1).read("poisson", ())


def test_sites_agree_on_counts_without_telling_a_value() -> None:
    said = {"a": {"labels": {"kind": "measured", "names": []}}}
    assert classes_of(said, "poisson") == ("poisson", ())


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"method": "oneshot"}, "oneshot is for a linear model of a measured target"),
        (
            {
                "privacy": fedsift.Privacy(noise=1.0, clip=1.0, delta=1e-5),
                "splits": 0, "standardise": "none", "learning_rate": 0.1, "weights": "uniform",
            },
            "privacy takes classes alone",
        ),
    ],
)  # fmt: skip
def test_what_counts_do_not_go_with_is_refused(knobs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fedsift.fit(counts(), **{**QUICK, **knobs})
