"""What is asked for is checked before anything is done, and is not silently ignored."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsift
from fedsift import models, outcomes, random
from fedsift.algorithms import EFLoPS, FedAvg
from fedsift.data import FederatedData
from fedsift.findings import guessing
from fedsift.methods import METHODS
from fedsift.problems import supervised
from fedsift.settings import Settings
from fedsift.studies import check_request
from fedsift.training import train
from tests.laws import linear_problem, normal, rows


@pytest.mark.parametrize(
    ("changes", "methods", "text"),
    [
        ({"participation": 9}, ["eflops"], "participation is 9 sites a round, the data have 5"),
        ({"schedule": "cubic"}, ["fedavg"], "fedavg has no density schedule"),
        ({"messages": "paper"}, ["eflops", "fedht"], "messages 'paper'"),
        ({"features": 7}, ["eflops"], "features=7 keeps 7 of 6"),
        ({}, [], "no method is named"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(changes, methods, text) -> None:
    settings = Settings(**({"features": 2} | changes))
    with pytest.raises(ValueError, match=text):
        check_request(settings, methods, rows("binary", d=6))


def test_a_schedule_is_accepted_where_one_of_the_methods_has_one() -> None:
    check_request(Settings(features=2, schedule="cubic"), ["fedavg", "fedht"], rows("binary", d=6))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": -1}, "rounds is -1"),
        ({"seeds": []}, "seeds is"),
        ({"weights": "foo"}, "weights is 'foo'"),
        ({"participation": 9}, "participation is 9"),
        ({"participation": 1.5}, r"participation is 1\.5"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
    ],
)
def test_train_refuses_numbers_out_of_range(arguments, text) -> None:
    data = rows("binary", d=6)
    with pytest.raises(ValueError, match=text):
        train(linear_problem(data), data, FedAvg(), **arguments)


def test_a_problem_for_another_target_is_refused() -> None:
    with pytest.raises(ValueError, match="is for a regression target"):
        train(linear_problem(rows("regression", d=6)), rows("binary", d=6), FedAvg(), rounds=1)


@pytest.mark.parametrize("density", [0.0, -0.1, 1.5])
def test_an_algorithm_refuses_a_density_out_of_range(density) -> None:
    with pytest.raises(ValueError, match="density is"):
        EFLoPS(density=density)


def test_an_output_that_does_not_fit_the_target_is_named() -> None:
    wide = supervised(models.from_module(nn.Linear(6, 2)), outcomes.Logistic())
    with pytest.raises(ValueError, match=r"output of shape .* a binary target needs"):
        train(wide, rows("binary", d=6), FedAvg(), rounds=1)


def test_a_module_that_draws_numbers_without_a_key_is_refused() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.layer(nn.functional.dropout(x, 0.5, self.training))
            return output

    problem = supervised(models.from_module(Noisy()), outcomes.Logistic())
    with pytest.raises(ValueError, match="random numbers that no key decides"):
        train(problem, rows("binary", d=6), FedAvg(), rounds=1)


def test_a_frozen_parameter_stays_as_it_is() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    network[0].weight.requires_grad = False
    problem = supervised(models.from_module(network), outcomes.Logistic())
    run = train(problem, rows("binary", d=6), FedAvg(density=0.5), rounds=2)
    assert "0.weight" not in run.params
    assert set(run.params) == {"0.bias", "2.weight", "2.bias"}


def test_a_module_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter to train"):
        models.from_module(nn.ReLU())


def test_two_modules_of_one_make_start_alike() -> None:
    key = random.key("start")
    one, other = (
        models.from_module(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))).init(key)
        for _ in range(2)
    )
    assert all(torch.equal(one[leaf], other[leaf]) for leaf in one)
    assert one["1.weight"].tolist() == [1.0, 1.0]


def test_guessing_is_scored_on_the_held_out_rows() -> None:
    """Four of five training rows are a, one of three held-out rows: guessing gives 1/3."""
    x = normal(8, 2)
    data = FederatedData.from_arrays(x, ["a"] * 4 + ["b"] + ["a", "b", "b"])
    assert guessing(data.take(range(5)), data.take(range(5, 8))) == pytest.approx(1 / 3)
    heavy = FederatedData.from_arrays(
        x, ["a"] * 4 + ["b"] + ["a", "b", "b"], weight=[1, 1, 1, 1, 1, 4, 1, 1]
    )
    assert guessing(heavy.take(range(5)), heavy.take(range(5, 8))) == pytest.approx(4 / 6)


def test_what_is_known_from_few_rows_is_left_out(tmp_path: Path) -> None:
    """A site of 3 rows, and every site's own score from one or two test rows."""
    data = rows("binary", sizes=(20, 3, 25), d=6)
    options: dict[str, Any] = {
        "features": 2, "seeds": 2, "rounds": 3, "splits": 2, "tuning_rounds": 2,
    }  # fmt: skip
    run = fedsift.fit(data, **options, min_cell=5, out=tmp_path / "run")
    assert run.facts["data"]["sites"] == {"hospital a": 20, "hospital b": None, "hospital c": 25}
    assert run.facts["data"]["notes"] == []
    by_site = run.results["beside"]["local"]["test_accuracy_by_site"]
    assert "hospital b" not in by_site
    stored = fedsift.load_run(tmp_path / "run").results
    assert stored["beside"]["local"]["test_accuracy_by_site"].keys() == by_site.keys()
    everything = fedsift.fit(data, **options)
    assert everything.results["test_accuracy"] == run.results["test_accuracy"]
    assert torch.equal(everything.params["weight"], run.params["weight"])


def test_counts_are_told_in_multiples() -> None:
    """Of 5: 20, 3, 25 rows and 48 in all are told as 20, 5, 25 and 50."""
    data = rows("binary", sizes=(20, 3, 25), d=6)
    run = fedsift.fit(
        data, features=2, seeds=1, rounds=2, splits=0, tuning_rounds=2, round_counts=5
    )
    told = run.facts["data"]
    assert told["sites"] == {"hospital a": 20, "hospital b": 5, "hospital c": 25}
    assert told["samples"] == 50
    assert all(count % 5 == 0 for count in told["class_counts"].values())
    assert told["notes"] == []


def test_local_gives_scores_by_site_and_no_common_model() -> None:
    data = rows("binary", d=6)
    options: dict[str, Any] = {
        "features": 2,
        "seeds": 2,
        "rounds": 3,
        "splits": 2,
        "tuning_rounds": 2,
    }
    with pytest.raises(ValueError, match="no common one"):
        fedsift.fit(data, method="local", **options)
    run = fedsift.fit(data, **options)
    local = run.results["beside"]["local"]
    by_site = local["test_accuracy_by_site"]
    assert set(by_site) <= set(data.sites)
    assert max(figure["n"] for figure in by_site.values()) == 2
    assert all(0 <= figure["mean"] <= 1 for figure in by_site.values())
    assert "features" not in local


def test_the_papers_count_of_bytes() -> None:
    """d = 1000, m = 50: 4d, 8m and 4m."""
    counts = [METHODS[name].formula(1000, 50) for name in ("fedavg", "eflops", "fediterht")]
    assert counts == [4000, 400, 200]


def test_adam_steps_gates_of_any_slope_alike() -> None:
    """The first step of Adam is the sign of the slope."""
    from fedsift.algorithms.eflops import adam_direction

    slope = torch.tensor([1e-3, -50.0, 0.0])
    direction, _ = adam_direction(slope, (torch.zeros(3), torch.zeros(3)), 1)
    torch.testing.assert_close(direction, torch.tensor([1.0, -1.0, 0.0]), rtol=1e-4, atol=0)
    data = rows("binary", d=6)
    run = train(linear_problem(data), data, EFLoPS(density=0.34, gate_optimiser="adam"), rounds=5)
    assert torch.isfinite(run.params["weight"]).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"features": 0}, "features is 0; it should be at least 1"),
        ({"features": 2, "ridge": float("nan")}, "ridge is nan; it should be"),
        ({"features": 2, "rigde": 1.0}, "rigde is not a setting; did you mean 'ridge'?"),
        ({"features": 2, "messages": "dens"}, "messages 'dens' is unknown; did you mean 'dense'?"),
        ({}, "give how many features to keep"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(expected)) as caught:
        fedsift.fit(rows("binary", d=6), **options)
    assert "\n" not in str(caught.value)


def test_predictions_take_arrays_and_refuse_what_is_missing() -> None:
    data = rows("binary", d=6)
    run = fedsift.fit(data, features=2, seeds=1, splits=0, rounds=2, tuning_rounds=2, beside=())
    table = data.x.numpy()
    assert run.predict(table, data.features) == run.predict(data.x, data.features)
    table = table.copy()
    table[1] = float("nan")
    with pytest.raises(ValueError, match="missing"):
        run.predict(table, data.features)
