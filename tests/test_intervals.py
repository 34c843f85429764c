"""Intervals of a fit: who chose, who was asked, and what is refused."""

import json
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.cli import main
from fedsift.data import FederatedData, Standardiser
from fedsift.inference import estimate, halves
from fedsift.intervals import half_case
from fedsift.reporting.tables import fit_report, to_text
from fedsift.selection import t_quantile
from fedsift.settings import Settings
from fedsift.studies import Case

KNOBS: dict[str, Any] = {
    "features": 2, "seeds": 3, "splits": 0, "rounds": 8, "tuning_rounds": 10, "beside": (),
}  # fmt: skip


def drawn(n: int = 90, d: int = 6, classes: bool = False) -> FederatedData:
    """Make three sites, y = 4 x0 - 2 x1 + noise, in units of its own; or its sign."""
    numbers = np.random.default_rng(1)
    x, sites = numbers.normal(size=(n, d)), np.array(list("abc"))[np.arange(n) % 3]
    y = 10.0 + 4.0 * x[:, 0] - 2.0 * x[:, 1] + 2.0 * numbers.normal(size=n)
    return FederatedData.from_arrays(x, (y > 10).astype(int) if classes else y, sites=sites)


def test_they_are_least_squares_of_the_half_that_did_not_choose():
    """By hand: the half in standard units of the other, an intercept, units of the target."""
    data = drawn()
    told = fedsift.fit(data, intervals="split", **KNOBS).results["intervals"]
    names = [effect["name"] for effect in told["effects"]]
    first, second = halves(data, 0)
    units = Standardiser.fit(first, "feature")
    rows = units.apply(second)
    x = np.hstack([rows.x[:, [rows.features.index(n) for n in names]], np.ones((len(rows.y), 1))])
    x = x.astype(np.float64)
    weights, *_ = np.linalg.lstsq(x, rows.y.double().numpy(), rcond=None)
    inverse = np.linalg.inv(x.T @ x)
    rest = (rows.y.double().numpy() - x @ weights) / (1 - np.einsum("np,pq,nq->n", x, inverse, x))
    errors = units.target_scale * np.sqrt(np.diag(inverse @ (x.T * rest**2) @ x @ inverse))
    freedom = second.n_samples - 3
    for place, effect in enumerate(told["effects"]):
        middle = units.target_scale * weights[place]
        assert effect["estimate"] == pytest.approx(middle, abs=1e-8)
        assert effect["error"] == pytest.approx(errors[place], abs=1e-8)
        half = t_quantile(0.025, freedom) * errors[place]
        assert effect["low"] == pytest.approx(middle - half, abs=1e-8)
        every = t_quantile(0.0125, freedom) * errors[place]
        assert effect["high_all"] == pytest.approx(middle + every, abs=1e-8)
    assert told["rows"] == second.n_samples


def test_the_half_that_chose_is_not_asked():
    """Other targets there leave a given choice's effects as they are."""
    settings = Settings(features=2, intervals="split")
    case, second = half_case(Case("all rows", drawn()), settings)
    assert not set(case.train.rows) & set(second.rows)
    assert case.train.fingerprint() == halves(drawn(), settings.seed)[0].fingerprint()


def test_engines_agree_and_the_model_is_of_all_rows():
    asked: list[dict[str, Any]] = [
        {"intervals": "split"},
        {"intervals": "split", "engine": "loop"},
        {},
    ]
    runs = [fedsift.fit(drawn(), **how, **KNOBS) for how in asked]
    one, other = (run.results["intervals"]["effects"] for run in runs[:2])
    assert [e["name"] for e in one] == [e["name"] for e in other]
    assert [e["low"] for e in one] == pytest.approx([e["low"] for e in other], abs=1e-6)
    assert runs[0].params["weight"].equal(runs[2].params["weight"])
    assert "intervals" not in runs[2].results


def test_covariates_stay_in_the_model_of_the_second_half():
    data = drawn().with_covariates(["x5"])
    told = fedsift.fit(data, intervals="split", **KNOBS).results["intervals"]
    case, second = half_case(Case("all rows", data), Settings(features=2))
    rows = Standardiser.fit(case.train, "feature").apply(second)
    names = [effect["name"] for effect in told["effects"]]
    found = estimate(rows.select_features(names))
    unit = Standardiser.fit(case.train, "feature").target_scale
    assert told["effects"][0]["estimate"] == pytest.approx(unit * float(found.effects[0, 0]))
    assert len(found.effects) == 4  # two features, the covariate, the intercept


def test_classes_have_effects_against_the_first():
    numbers = np.random.default_rng(2)
    x = numbers.normal(size=(150, 4))
    y = np.digitize(x[:, 0] + numbers.logistic(size=150), [-1, 1])
    data = FederatedData.from_arrays(x, y, sites=np.arange(150) % 3, outcome="multiclass")
    for how in ("split", "ensemble"):
        told = fedsift.fit(data, intervals=how, **KNOBS).results["intervals"]
        assert {e["output"] for e in told["effects"]} == {"1", "2"}
        assert {e["reference"] for e in told["effects"]} == {"0"}


def test_the_spread_is_that_of_the_seeds_and_no_interval():
    run = fedsift.fit(drawn(), intervals="ensemble", **KNOBS)
    told = run.results["intervals"]
    for effect in told["effects"]:
        assert effect["low"] <= effect["estimate"] <= effect["high"]
    often = {f.name: round(3 * f.inclusion_probability) for f in run.features}
    assert {e["name"]: e["runs"] for e in told["effects"]} == often
    text = " ".join(to_text(fit_report(run)).split())
    assert "Spread over 3 seeds: run seeds, not a confidence interval." in text
    assert "95 %" not in text


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"intervals": "split", "aggregation": "median"}, "may say wrong things"),
        ({"intervals": "split", "site_intercepts": "own"}, "of a model with one intercept"),
        ({"intervals": "ensemble", "seeds": 1}, "one run has no spread"),
        ({"intervals": "ensemble", "method": "lasso"}, "one run has no spread"),
        ({"intervals": "half"}, "intervals 'half' is unknown"),
        ({"intervals": "split", "features": 60}, "60 features make 61 parameters"),
    ],
)
def test_what_has_no_intervals_is_refused_in_a_line(knobs, said):
    data = drawn(d=70)
    with pytest.raises(ValueError, match=said) as refused:
        fedsift.fit(data, **KNOBS | knobs)
    assert "\n" not in str(refused.value)


def test_comparisons_have_none():
    with pytest.raises(ValueError, match="use it with fit"):
        fedsift.compare(drawn(), ["eflops"], features=1, seeds=1, intervals="split")


def test_a_run_goes_on_and_forgets_them_with_its_rows(tmp_path):
    knobs = KNOBS | {"out": tmp_path / "run", "intervals": "split"}

    def stop(record: dict[str, Any]) -> None:
        if record["case"] == "half that chooses" and record["round"] == 4:
            raise RuntimeError

    with pytest.raises(fedsift.CallbackError):
        fedsift.fit(drawn(), callbacks=[stop], **knobs)
    run = fedsift.fit(drawn(), resume=True, **knobs)
    whole = fedsift.fit(drawn(), intervals="split", **KNOBS)
    assert run.results["intervals"] == whole.results["intervals"]
    assert {record["case"] for record in run.history()} == {"all rows"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Intervals of a sample split: half of the rows chose the features" in page
    fedsift.forget(run, sites=["a"], data=drawn(), method="retrain")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "intervals" not in facts["results"]


def test_the_command_line_says_why_there_are_none(tmp_path, capsys):
    """Classes that one feature separates have no finite effect; the run is finished, code 3."""
    data, paths = drawn(classes=True), []
    for site in data.sites:
        own = data.site(site)
        rows = np.column_stack([own.y, np.where(own.y > 0, 1.0, -1.0), own.x[:, 2:]])
        paths.append(tmp_path / f"{site}.csv")
        np.savetxt(paths[-1], rows, delimiter=",", header="y,p,q,r,s,t", comments="")
    asked = "--target y --features 1 --seeds 1 --splits 0 --rounds 9 --tuning-rounds 3 --quiet"
    command = ["fit", *map(str, paths), *asked.split(), "--out", str(tmp_path / "run"), "--json"]
    command += ["--method", "fedavg"]
    assert main([*command, "--intervals", "split"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["intervals"]["effects"] == []
    assert said.err.startswith("no intervals: the chosen features")
    assert said.err.count("\n") == 1
