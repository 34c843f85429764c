"""Several labels at once: one label is a binary target, a gap a row that is not there, and more."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import hamming_loss, log_loss, roc_auc_score
from torch.func import vmap

import fedsift
from fedsift.algorithms import EFLoPS, FedAvg, Tuning
from fedsift.data import DataError, FederatedData, split
from fedsift.data.notes import notes_on_target
from fedsift.engines.loop import Loop
from fedsift.engines.vectorized import Vectorized
from fedsift.evaluation import evaluate
from fedsift.linear_problems import linear_problem
from fedsift.outcomes import Logistic, Multilabel
from tests.laws import bit_equal, job, largest_gap, normal, proceed

NAMES = ("relapse", "toxicity", "death")


def labels(
    n: int = 240, d: int = 10, seed: int = 0, *, gaps: bool = True, sites: int = 3
) -> FederatedData:
    """Make three labels: of x0 and x1, of x0 alone, of x2; a fifth of the second is not known."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, d))
    scores = np.stack([2 * x[:, 0] - 2 * x[:, 1], 2 * x[:, 0] - 0.5, 2 * x[:, 2]], 1)
    y = (random.uniform(size=(n, 3)) < 1 / (1 + np.exp(-scores))).astype(float)
    if gaps:
        y[random.uniform(size=n) < 0.2, 1] = np.nan
    where = [f"s{row % sites}" for row in range(n)]
    return FederatedData.from_arrays(x, y, sites=where, target=NAMES)


def label(data: FederatedData, place: int) -> FederatedData:
    """Return the binary data of a label: the rows that know it."""
    rows = data.take(data.y[:, place] >= 0)
    return replace(
        rows, y=rows.y[:, place], outcome="binary", classes=("0", "1"), target=data.classes[place]
    )


def only(data: FederatedData, *places: int) -> FederatedData:
    names = tuple(data.classes[place] for place in places)
    return replace(data, y=data.y[:, list(places)], classes=names, target=",".join(names))


def test_the_slope_is_that_of_finite_differences() -> None:
    """In double precision, with labels that are not known, whose slope is 0."""
    outcome, data, h = Multilabel(3), labels(40), 1e-6
    output, weight = normal(40, 3, dtype=torch.float64), torch.rand(40, dtype=torch.float64)
    slope = outcome.mean_slope(output, data.y, weight)
    for seed in range(3):
        step = h * normal(40, 3, seed=seed, dtype=torch.float64)
        ahead, behind = (outcome.mean_loss(output + s * step, data.y, weight) for s in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2, (slope * step).sum(), rtol=1e-5, atol=0)
    assert not slope[data.y < 0].any()
    by_torch = torch.func.grad(lambda o: outcome.mean_loss(o, data.y, weight))(output)
    torch.testing.assert_close(slope, by_torch)


def test_one_label_is_a_binary_target_bit_for_bit() -> None:
    data = only(labels(gaps=False), 0)
    output, y = normal(len(data.y), 1), data.y[:, 0]
    assert torch.equal(Multilabel(1).loss(output, data.y), Logistic().loss(output, y))
    assert torch.equal(Multilabel(1).slope(output, data.y), Logistic().slope(output, y))
    assert Multilabel(1).null_loss == Logistic().null_loss
    knobs: dict[str, Any] = {"features": 2, "seeds": 2, "rounds": 8, "splits": 1, "beside": ()}
    several, one = (fedsift.fit(rows, tuning_rounds=8, **knobs) for rows in (data, label(data, 0)))
    assert bit_equal(several.params, one.params)
    assert several.features == one.features
    for name in ("test_accuracy", "bytes_up", "bytes_down"):
        assert several.results[name] == one.results[name]


def test_without_gates_each_label_is_fitted_as_if_alone() -> None:
    """scikit-learn's logistic regression of each label, on the rows that know it, C = 1/ridge.

    So a row that does not know a label counts for that label as if it had been removed.
    """
    data, ridge = labels(), 4.0
    problem = linear_problem(data).with_ridge(ridge / data.n_samples)
    run = fedsift.train(problem, data, Tuning(rounds=400, local_steps=1), compile=False)
    for place in range(3):
        own = label(data, place)
        fitted = LogisticRegression(C=1 / ridge, tol=1e-8).fit(own.x.numpy(), own.y.numpy())
        found = run.params["weight"][0, place].numpy()
        np.testing.assert_allclose(found, fitted.coef_[0], atol=1e-3)
        assert float(run.params["bias"][0, place]) == pytest.approx(fitted.intercept_[0], abs=1e-3)


def test_a_row_that_knows_no_label_changes_nothing() -> None:
    data = labels(60)
    blank = data.y.clone()
    blank[::3] = -1
    known = torch.arange(60) % 3 > 0
    params = {"weight": normal(1, 3, 10), "bias": normal(1, 3)}
    gaps, fewer = replace(data, y=blank), data.take(known)
    problem = linear_problem(data)
    one, other = (evaluate(problem, params, rows) for rows in (gaps, fewer))
    for name in ("accuracy", "cross_entropy", "hamming_loss", "accuracy_1", "prevalence_2"):
        assert float(one[name][0]) == pytest.approx(float(other[name][0]), rel=1e-5), name
    lost = float(one["loss"][0]) * 60
    assert lost == pytest.approx(float(other["loss"][0]) * 40, rel=1e-5)


def test_the_figures_are_those_of_scikit_learn() -> None:
    data = labels(gaps=False)
    params = {"weight": normal(1, 3, 10), "bias": normal(1, 3)}
    figures = {k: float(v[0]) for k, v in evaluate(linear_problem(data), params, data).items()}
    output = data.x @ params["weight"][0].T + params["bias"][0]
    y, said = data.y.numpy(), (output > 0).numpy()
    chance = torch.sigmoid(output).double().numpy()
    assert figures["hamming_loss"] == pytest.approx(hamming_loss(y, said), rel=1e-5)
    assert figures["accuracy"] == pytest.approx(1 - hamming_loss(y, said), rel=1e-5)
    assert figures["subset_accuracy"] == pytest.approx((y == said).all(1).mean(), rel=1e-5)
    each = [log_loss(y[:, k], chance[:, k]) for k in range(3)]
    for k, expected in enumerate(each):
        assert figures[f"cross_entropy_{k}"] == pytest.approx(expected, rel=1e-5)
        assert figures[f"prevalence_{k}"] == pytest.approx(y[:, k].mean(), rel=1e-5)
    assert figures["cross_entropy"] == pytest.approx(np.mean(each), rel=1e-5)
    assert figures["loss"] == pytest.approx(np.sum(each), rel=1e-5)


def test_a_label_that_no_row_knows_is_left_out_of_the_means() -> None:
    outcome, y = Multilabel(2), torch.tensor([[1, -1], [0, -1]])
    output = torch.tensor([[1.0, 3.0], [1.0, -2.0]])
    sums = outcome.sums(output, y, torch.ones(2))
    figures = outcome.summarise({name: total / weight for name, (total, weight) in sums.items()})
    assert float(figures["accuracy"]) == 0.5
    assert math.isnan(float(figures["accuracy_1"]))
    assert float(figures["hamming_loss"]) == 0.5


@pytest.mark.parametrize("algorithm", [EFLoPS(density=0.3), FedAvg(density=0.3)])
def test_engines_agree(algorithm: Any) -> None:
    data = labels(60)
    work = job(linear_problem(data), data, algorithm, seeds=(0, 1))
    ends = [proceed(work, engine(), 4, 0.8)[0].server for engine in (Loop, Vectorized)]
    assert largest_gap(*ends) < 1e-5


def test_padding_changes_nothing() -> None:
    """Rows of weight 0, and sites side by side under vmap."""
    outcome, data = Multilabel(3), labels(60)
    output, weight = normal(60, 3), torch.ones(60)
    weight[45:] = 0.0
    alone = outcome.mean_slope(output[:45], data.y[:45], weight[:45])
    several = vmap(outcome.mean_slope)(*(t.expand(2, *t.shape) for t in (output, data.y, weight)))
    torch.testing.assert_close(several[1, :45], alone)
    assert not several[:, 45:].any()


@pytest.mark.slow
def test_the_compiled_work_is_the_same() -> None:
    data = labels(60)
    runs = [
        fedsift.train(linear_problem(data), data, EFLoPS(density=0.3), rounds=3, compile=how)
        for how in (False, True)
    ]
    assert largest_gap(runs[0].params, runs[1].params) < 1e-5


def test_splits_share_out_rows_by_how_many_labels_they_have() -> None:
    data = labels()
    _, test = split(data, 0)
    for count in range(4):
        whole, part = (int((rows.strata == count).sum()) for rows in (data, test))
        assert abs(part - 0.2 * whole) <= 1


def test_a_fit_finds_the_features_of_every_label_and_says_of_which() -> None:
    data = labels(360)
    run = fedsift.fit(data, features=3, seeds=2, rounds=40, splits=2, beside=(), tuning_rounds=40)
    assert {f.name for f in run.features} == {"x0", "x1", "x2"}
    assert run.facts["data"]["unknown"]["toxicity"] == int((data.y[:, 1] < 0).sum()) > 0
    weights = {row["name"]: row["weights"] for row in run.results["features"]}
    assert min(weights["x0"]["relapse"], weights["x0"]["toxicity"], weights["x2"]["death"]) > 1
    assert weights["x1"]["relapse"] < -1
    assert max(abs(weights["x2"][name]) for name in ("relapse", "toxicity")) < 0.5
    told = run.results["labels"]
    assert tuple(told) == NAMES
    for figures in told.values():
        assert figures["test_accuracy"]["mean"] > figures["guessing_accuracy"] + 0.1
        assert figures["test_auc"]["mean"] > 0.8
    chance = run.predict_probability(data.x, data.features)
    assert chance.shape == (360, 3)
    assert torch.equal(torch.tensor(run.predict(data.x, data.features)), (chance > 0.5).long())
    assert roc_auc_score(data.y[:, 2], chance[:, 2]) > 0.85
    groups = run.facts["held_out"]["groups"]["toxicity"]
    known = {row for rows in (split(data, s)[1] for s in (0, 1)) for row in known_rows(rows)}
    assert sum(group["rows"] for group in groups) == len(known)


def known_rows(rows: FederatedData) -> list[str]:
    return [name for name, code in zip(rows.rows, rows.y[:, 1].tolist(), strict=True) if code >= 0]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_shared_gate_finds_weak_features_that_fits_of_single_labels_miss(seed: int) -> None:
    """Five weak features matter for all of four labels: together they are seen in fewer rows."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(200, 60))
    scores = x[:, :5] @ (0.4 * random.choice([-1, 1], size=(5, 4)))
    y = random.uniform(size=(200, 4)) < 1 / (1 + np.exp(-scores))
    data = FederatedData.from_arrays(x, y, sites=[f"s{row % 4}" for row in range(200)])
    knobs: dict[str, Any] = {"seeds": 3, "rounds": 60, "splits": 0, "tuning_rounds": 2}
    truth = {f"x{place}" for place in range(5)}

    def found(rows: FederatedData) -> float:
        run = fedsift.fit(rows, features=5, **knobs)
        return len(truth & {f.name for f in run.features}) / 5

    together, alone = found(data), np.mean([found(label(data, place)) for place in range(4)])
    print(f"of the true features: {together:.2f} by shared gates, {alone:.2f} by single fits")
    assert together >= 0.8
    assert together > alone + 0.15


def test_a_covariate_has_a_coefficient_for_each_label() -> None:
    data = labels(120).with_covariates(["x9"])
    run = fedsift.fit(data, features=3, seeds=2, rounds=8, splits=0, tuning_rounds=8)
    assert {(effect.covariate, effect.output) for effect in run.effects} == {
        ("x9", name) for name in NAMES
    }


def test_a_private_fit_keeps_its_budget_and_tells_no_counts_of_labels() -> None:
    run = fedsift.fit(
        labels(60),
        features=2,
        seeds=1,
        rounds=2,
        tuning_rounds=2,
        splits=0,
        learning_rate=0.1,
        local_steps=1,
        standardise="row",
        weights="uniform",
        privacy=fedsift.Privacy(clip=1.0, epsilon=5.0, delta=1e-5, level="sample"),
    )
    assert run.results["epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert run.facts["data"]["unknown"] == run.facts["data"]["class_counts"] == {}


@pytest.mark.parametrize(
    ("y", "target", "said"),
    [
        ([[1, 0], [0, 2], [1, 1]], ["a", "b"], r"row 2: the label 'b' is '2', not 1 or yes, 0 or"),
        ([[1, 0], [0, 0], [1, None]], ["a", "b"], "the label 'b' is 0 in all rows of all sites"),
        ([[1, None], [0, None]], ["a", "b"], "the label 'b' is not known in any row"),
        ([[1, 0], [0, 1]], ["a", "a"], "the target 'a,a' names 'a' twice; name each label once"),
        ([[1, 0], [0, 1]], ["a"], "rows of 2 labels, and the target has 1 name"),
        ([[1, 0], [0, 1]], ["a", "b,c"], "the label 'b,c' has a comma in its name"),
    ],
)
def test_what_is_no_label_is_refused(y: list[list[Any]], target: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        FederatedData.from_arrays(np.zeros((len(y), 1)), y, target=target)


def test_labels_are_written_in_several_ways() -> None:
    written: Any = [["yes", True], ["NO", 0.0], ["1", math.nan], ["false", 1]]
    data = FederatedData.from_arrays(normal(4, 1), written)
    assert data.y.tolist() == [[1, 1], [0, 0], [1, -1], [0, 1]]
    assert (data.outcome, data.target, data.classes) == ("multilabel", "y0,y1", ("y0", "y1"))
    assert next(notes_on_target(data)).startswith("rows that do not know a label count for")


def test_what_is_for_other_outcomes_is_refused() -> None:
    data = labels(60)
    with pytest.raises(ValueError, match="target is multilabel: use eflops"):
        fedsift.fit(data, features=2, method="oneshot", seeds=1, splits=0)
