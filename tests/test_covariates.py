"""Covariates stay in the model, are counted apart, and are what least squares makes of them."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsift
from fedsift import models, random, trees
from fedsift.data import FederatedData, Standardiser, read_sites
from fedsift.estimators import FederatedSparseClassifier, FederatedSparseRegressor
from fedsift.exports import coefficients, predictions
from fedsift.forgetting import remade
from fedsift.linear_problems import linear_problem, problem_of
from fedsift.outcomes import make_outcome
from fedsift.problems import Batch, supervised
from fedsift.reporting.tables import fit_report, to_text
from fedsift.runs import load_run
from fedsift.settings import Settings
from fedsift.studies import check_request

QUICK: dict[str, Any] = {
    "seeds": 2, "splits": 0, "rounds": 25, "tuning_rounds": 25, "beside": (),
}  # fmt: skip
KEPT = 2


def drawn(outcome: str = "regression", n: int = 90, d: int = 8) -> FederatedData:
    """Make rows at three sites that follow two features, an age and a sex."""
    draw = np.random.default_rng(5)
    x, age = draw.normal(size=(n, d)), draw.normal(60, 10, size=n)
    sex = draw.integers(0, 2, size=n)
    score = 2 * x[:, 0] - x[:, 1] + 0.1 * (age - 60) + 1.5 * (sex - 0.5) + draw.normal(size=n)
    cuts = {"regression": None, "binary": [0.0], "multiclass": [-1.0, 1.0]}[outcome]
    y = score if cuts is None else np.digitize(score, cuts)
    data = FederatedData.from_arrays(
        np.column_stack([age, x, sex]),
        y,
        sites=[f"site {row % 3}" for row in range(n)],
        features=["age", *(f"g{i}" for i in range(d)), "sex"],
        outcome=outcome,
    )
    return data.with_covariates(["age", "sex"])


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_slopes_of_covariates_are_those_of_autograd(outputs):
    data = drawn("multiclass" if outputs == 3 else "binary")
    params = {
        leaf: random.normal(random.key(leaf), value.shape)
        for leaf, value in linear_problem(data).init(torch.zeros((), dtype=torch.int64)).items()
    }
    batch = Batch(data.x, data.y, data.weight, torch.zeros((), dtype=torch.int64))
    model = models.with_covariates(models.linear(data.n_candidates, outputs), 2, outputs)
    outcome = make_outcome(data.outcome, outputs)
    by_hand, by_autograd = (
        supervised(m, outcome).operators["loss"](params, batch)
        for m in (model, replace(model, pullback=None))
    )
    for leaf, value in by_hand.items():
        torch.testing.assert_close(value, by_autograd[leaf], rtol=1e-4, atol=1e-4)
    if outputs == 1:
        assert model.apart is not None
        apart = supervised(model.apart, outcome).operators["loss"](params, batch)
        for leaf, value in apart.items():
            torch.testing.assert_close(value, by_hand[leaf], rtol=1e-4, atol=1e-4)


def test_a_problem_with_a_start_and_a_penalty_is_made_again_elsewhere():
    problem = linear_problem(drawn()).with_ridge(0.3, ("covariate",))
    start = {"covariate": torch.tensor([[0.1, -2.0]]), "bias": torch.tensor([0.7])}
    again = remade(problem.beginning(start).told(), problem_of)
    key = torch.zeros((), dtype=torch.int64)
    params = again.init(key)
    assert torch.equal(params["covariate"], start["covariate"])
    assert torch.equal(params["bias"], start["bias"])
    data = Standardiser.fit(drawn()).apply(drawn())
    batch = Batch(data.x, data.y, data.weight, key)
    one, other = (p.operators["loss"](params, batch) for p in (problem, again))
    plain = linear_problem(data).operators["loss"](params, batch)
    for leaf in one:
        assert torch.equal(one[leaf], other[leaf])
    added = one["covariate"] - plain["covariate"]
    torch.testing.assert_close(added, 0.3 * start["covariate"], rtol=1e-4, atol=1e-5)
    assert torch.equal(one["weight"], plain["weight"])


@pytest.mark.parametrize(
    ("method", "outcome"),
    [
        ("eflops", "binary"),
        ("eflops", "regression"),
        ("flops", "regression"),
        ("fedavg", "binary"),
        ("fedht", "regression"),
        ("fediterht", "binary"),
        ("oneshot", "regression"),
    ],
)
def test_every_method_keeps_them_in_and_counts_them_apart(method, outcome):
    if method == "oneshot":
        pytest.importorskip("abess", reason="the extra oneshot (abess) is not installed")
    run = fedsift.fit(drawn(outcome), method=method, features=KEPT, **QUICK)
    assert {f.name for f in run.features} == {"g0", "g1"}
    assert int((run.params["weight"] != 0).any(0).sum()) == KEPT
    found = {effect.covariate: effect.coefficient for effect in run.effects}
    assert list(found) == ["age", "sex"]
    assert 0.05 < found["age"] < 0.3
    assert found["sex"] > 0.5


def test_without_penalties_the_fit_is_least_squares():
    """On the chosen features and the covariates; the sites' split does not matter."""
    data = drawn()
    knobs = QUICK | {"ridge": 0.0, "tuning_rounds": 150}
    run = fedsift.fit(data, features=KEPT, **knobs)
    names = ["g0", "g1", "age", "sex"]
    columns = [data.features.index(name) for name in names]
    design = np.column_stack([data.x[:, columns], np.ones(data.n_samples)])
    exact, *_ = np.linalg.lstsq(design.astype(float), data.y.numpy().astype(float), rcond=None)
    rows = list(csv.reader(io.StringIO(coefficients(run))))[1:]
    found = {name: float(value) for name, value, _ in rows}
    for name, value in zip([*names, "(intercept)"], exact, strict=True):
        assert found[name] == pytest.approx(value, rel=2e-3, abs=2e-3)


def test_a_penalty_shrinks_covariates_alone():
    """Orthogonal columns: with the ridge r n/2 of mean (y - ŷ)² a slope falls to 1/(1 + r/2)."""
    signs = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]] * 8, dtype=float)
    y = signs @ [2.0, 1.0, 3.0]
    data = FederatedData.from_arrays(signs, y, sites=["a", "b"] * 16, features=["g", "h", "z"])
    data = data.with_covariates(["z"])
    n = data.n_samples
    knobs = QUICK | {"ridge": 0.0, "tuning_rounds": 60, "features": 2, "standardise": "none"}
    run = fedsift.fit(data, covariate_ridge=2.0 * n, **knobs)
    scale = run.standardiser.target_scale
    assert run.params["covariate"].item() * scale == pytest.approx(1.5, abs=1e-2)
    torch.testing.assert_close(
        run.params["weight"] * scale, torch.tensor([[2.0, 1.0]]), rtol=1e-2, atol=1e-2
    )


def test_engines_agree():
    data = drawn("binary")
    one, other = (
        fedsift.fit(data, features=KEPT, engine=engine, **QUICK | {"rounds": 6})
        for engine in ("vectorized", "loop")
    )
    for leaf, value in one.params.items():
        torch.testing.assert_close(value, other.params[leaf], rtol=1e-5, atol=1e-5)
    assert one.results["bytes_up"] == other.results["bytes_up"]


def test_what_cannot_keep_them_says_so():
    data = drawn()
    with pytest.raises(ValueError, match="lasso weighs all columns alike"):
        check_request(Settings(features=KEPT), ["lasso"], data)
    private = fedsift.Privacy(epsilon=1.0, delta=1e-5, clip=1.0)
    settings = Settings(
        features=KEPT, privacy=private, splits=0, standardise="none", learning_rate=0.1,
        weights="uniform",
    )  # fmt: skip
    with pytest.raises(ValueError, match="covariates are fitted first"):
        check_request(settings, ["eflops"], drawn("binary"))


def files(folder: Path) -> list[Path]:
    draw, paths = np.random.default_rng(2), [folder / f"{name}.csv" for name in "ab"]
    for path, stages in zip(paths, (["I", "II"], ["I", "II", "III"]), strict=True):
        lines = ["y,age,stage,g0,g1,g2"]
        for _ in range(30):
            stage, age, g = draw.choice(stages), draw.normal(60, 10), draw.normal(size=3)
            y = 2 * g[0] + 0.1 * age + len(stage) + 0.1 * draw.normal()
            lines.append(f"{y},{age},{stage},{g[0]},{g[1]},{g[2]}")
        path.write_text("\n".join(lines) + "\n")
    return paths


def test_a_run_keeps_its_levels_and_predicts_with_them(tmp_path):
    paths = files(tmp_path)
    data = read_sites(paths, "y", covariates=["age", "stage"])
    run = fedsift.fit(data, features=1, out=tmp_path / "run", **QUICK | {"tuning_rounds": 100})
    kept = load_run(tmp_path / "run")
    assert [(e.covariate, e.level, e.reference) for e in kept.effects] == [
        ("age", None, None),
        ("stage", "II", "I"),
        ("stage", "III", "I"),
    ]
    assert kept.results["covariates"][2]["coefficient"] == pytest.approx(2.0, abs=0.3)
    assert kept.needed == ("g0", "age", "stage=II", "stage=III")
    told = list(csv.DictReader(io.StringIO(predictions(kept, paths[1]))))
    by_run = run.predict(data.site("b").x, data.features)
    assert [float(row["predicted_y"]) for row in told] == pytest.approx(by_run)
    assert "III, not I" in to_text(fit_report(kept))


def test_the_command_line_takes_them(tmp_path, capsys):
    from fedsift.cli import main

    paths = [str(path) for path in files(tmp_path)]
    asked = ["--target", "y", "--features", "1", "--seeds", "1", "--splits", "0", "--rounds", "5"]
    common = ["fit", *paths, *asked, "--out", str(tmp_path / "r"), "--quiet"]
    assert main([*common, "--covariates", "age,stage"]) == 0
    assert "Covariates stay in" in capsys.readouterr().out
    assert main([*common, "--overwrite", "--covariates", "age,stages"]) == 2
    assert "did you mean 'stage'?" in capsys.readouterr().err


@pytest.mark.parametrize("standardise", ["feature", "array"])
def test_estimators_keep_columns_in(standardise):
    data = drawn()
    x = np.column_stack([data.x[:, 8], data.x[:, :8], data.x[:, 9]])
    knobs: dict[str, Any] = {
        "n_seeds": 2, "rounds": 25, "tuning_rounds": 25, "standardise": standardise,
    }  # fmt: skip
    model = FederatedSparseRegressor(KEPT, covariates=[0, 9], **knobs)
    model.fit(x, data.y.numpy(), sites=data.site_of_row.numpy())
    assert np.flatnonzero(model.covariates_).tolist() == [0, 9]
    assert model.support_.sum() == KEPT
    assert model.coef_[[0, 9]].all()
    assert model.transform(x).shape == (len(x), KEPT + 2)
    assert model.score(x, data.y.numpy()) > 0.5
    if standardise == "feature":
        np.testing.assert_allclose(model.predict(x), x @ model.coef_ + model.intercept_, rtol=1e-6)
    with pytest.raises(ValueError, match="X has no column 'ages'"):
        FederatedSparseClassifier(KEPT, covariates=["ages"], **knobs).fit(x, data.y.numpy() > 0)


def test_sums_with_covariates_are_least_squares_on_the_best_subset():
    pytest.importorskip("abess", reason="the extra oneshot (abess) is not installed")
    from fedsift.regression import Moments, best_subset

    data = drawn()
    x, y = data.x.numpy().astype(float), data.y.numpy().astype(float)
    weights, intercept = best_subset(Moments.of_rows(x, y), KEPT, len(y), covariates=2)
    assert np.flatnonzero(weights).tolist() == [0, 1, 8, 9]
    design = np.column_stack([x[:, [0, 1, 8, 9]], np.ones(len(y))])
    exact, *_ = np.linalg.lstsq(design, y, rcond=None)
    np.testing.assert_allclose([*weights[[0, 1, 8, 9]], intercept], exact, rtol=1e-5)


def test_the_search_begins_where_covariates_explain_what_they_can():
    """At the first state the slopes of intercept and covariates vanish."""
    from fedsift.methods import find_method
    from fedsift.studies import _covariates_first

    data = drawn()
    rows = Standardiser.fit(data).apply(data)
    problem = linear_problem(rows)
    settings = Settings(features=KEPT)
    run = _covariates_first(problem, rows, settings, find_method("eflops"), None, None)
    assert run is not None
    params = trees.unstack(run.params, 0)
    assert not params["weight"].any()
    batch = Batch(rows.x, rows.y, rows.weight, torch.zeros((), dtype=torch.int64))
    field = problem.operators["loss"](params, batch)
    assert float(field["covariate"].abs().max()) < 1e-4
    assert float(field["bias"].abs().max()) < 1e-4
