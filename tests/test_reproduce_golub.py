"""Golub: splits are clean, lanes do not touch each other, the page says what it saw."""

import json
import math

import pytest
import torch

from fedsift.cli import main
from fedsift.experiments.golub import FULL, Golub
from fedsift.experiments.golub_fits import METHODS, POOLED, fit_splits, fit_tuned, make_splits
from fedsift.experiments.golub_page import golub_page


@pytest.fixture(autouse=True)
def _embedded_patients(monkeypatch):
    monkeypatch.delenv("FEDSIFT_DATA", raising=False)
    make_splits.cache_clear()
    yield
    make_splits.cache_clear()


def test_no_patient_is_trained_on_and_tested():
    splits = make_splits("feature", 0, 2)
    for number, test in enumerate(splits.tests):
        sites = (splits.split_of_site == number).nonzero().squeeze(1).tolist()
        rows = torch.cat([splits.train.x[splits.train.slices[site]] for site in sites])
        assert len(rows) + test.n_samples == 38
        assert test.n_samples == 8
        assert not (rows.unsqueeze(1) == test.x).all(2).any()
        known = rows.std(0) > 0
        torch.testing.assert_close(rows.mean(0), torch.zeros(3051), atol=1e-4, rtol=0)
        assert (test.x[:, ~known] == 0).all()


@pytest.mark.parametrize("method", ["E-FLoPS", "FedIter-HT"])
def test_a_split_is_fitted_the_same_beside_others(method):
    options: dict = {"kept": 3, "gate": "feature", "seeds": 2, "rounds": 6, "tuning_rounds": 4}
    both = fit_splits("array", method, splits=2, **options)
    second = fit_splits("array", method, splits=1, first=1, **options)
    assert both["accuracy"][1] == second["accuracy"][0]
    assert both["accuracy_seeds"][1] == second["accuracy_seeds"][0]
    chosen = {g["gene"] for g in second["genes"] if g["split_frequency"]}
    assert chosen <= {g["gene"] for g in both["genes"]}
    assert len(chosen) == 3


def test_seven_weights_of_a_softmax():
    options: dict = {"seeds": 1, "rounds": 4, "tuning_rounds": 2, "splits": 1}
    result = fit_splits("array", "FedIter-HT", 7, "scalar", **options)
    genes = [gene for gene in result["genes"] if gene["split_frequency"]]
    assert 4 <= len(genes) <= 7


def test_a_method_is_tuned_within_each_split():
    options: dict = {"seeds": 2, "rounds": 4, "tuning_rounds": 2}
    found = fit_tuned("array", "FedIter-HT", splits=2, trials=2, **options)
    for number, knobs in enumerate(found["knobs"]):
        alone = fit_splits(
            "array", "FedIter-HT", 3, "feature", 1, first=number, knobs=knobs, **options
        )
        assert alone["accuracy"] == [found["accuracy"][number]]
    plain = fit_splits("array", "FedIter-HT", 3, "feature", 2, **options)
    assert found["by_default"] == plain["accuracy"]


@pytest.mark.parametrize("method", POOLED)
def test_pooled_solvers_know_every_patient(method):
    result = fit_splits("array", method, 3, "feature", 2, 1, 1, 1)
    assert min(result["accuracy"]) > 0.7


def test_the_page_says_whether_the_targets_were_met():
    def found(accuracy, stability, varies):
        return {
            "accuracy": [accuracy, accuracy - 0.1, accuracy],
            "accuracy_seeds": [[accuracy] * 3] * 3,
            "stability_splits": stability,
            "stability_seeds": 0.5 if varies else None,
            "bytes_total": 10,
            "by_default": [accuracy - 0.1] * 3,
            "genes": [
                {
                    "gene": "M27891_at",
                    "description": "CST3 Cystatin C",
                    "split_frequency": 1.0,
                    "run_frequency": 0.9,
                    "more_speaks_for": "AML",
                }
            ],
        }

    cells = Golub().cells(quick=False)
    results = {cell.name: found(0.9, 0.4, cell.arguments["seeds"] > 1) for cell in cells}
    for name in results:
        if name.endswith("E-FLoPS"):
            results[name] = found(1.0, 0.6, True)
    outcome = Golub().outcome(results, quick=False)
    row = outcome.results["rows"][1]
    assert row["method"] == "FedIter-HT"
    assert row["p_value_vs_eflops"] == 0.0
    assert {"method", "features", "test_accuracy", "p_value_vs_eflops"} <= set(row)
    assert outcome.results["genes"][0]["known_as"] == "CST3"
    assert "accuracy 0.967, reaches 0.95" in outcome.page
    assert "every method had 8 trials" in outcome.page
    assert outcome.results["tuned"][1]["gap_to_eflops"]["mean"] == pytest.approx(0.1)
    assert "1.50 times as stable over splits as that of FedIter-HT (0.600 against" in outcome.page
    assert golub_page(json.loads(json.dumps(outcome.results))) == outcome.page
    assert set(outcome.charts) == {"accuracy-3", "accuracy-7", "genes"}
    assert FULL["splits"] == 30
    early = {"array · 3 · E-FLoPS": results["array · 3 · E-FLoPS"]}
    page = Golub().outcome(early, quick=False).page
    assert "tuned alike" not in page
    assert "many runs on one split" not in page


@pytest.mark.acceptance
@pytest.mark.acceptance_long
def test_the_small_form_from_the_command_line(tmp_path, capsys):
    options = ["reproduce", "golub", "--quick", "--json", "--out", str(tmp_path / "golub")]
    assert main(options) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in result["rows"]] == [*METHODS, *POOLED]
    assert all(0.5 < row["test_accuracy"]["mean"] <= 1.0 for row in result["rows"])
    assert result["patients"] == [30, 8]
    ours = result["rows"][0]
    assert not math.isnan(ours["stability_splits"])
    assert "`FEDSIFT_DATA` has no more" in (tmp_path / "golub" / "page.md").read_text()
    assert (tmp_path / "golub" / "genes.png").stat().st_size > 10_000
