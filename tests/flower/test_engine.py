"""The Flower engine gives the simulator's result: the same model, and the same bytes exactly."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift import fit
from fedsift.algorithms import EFLoPSPaper
from fedsift.data import DataError
from fedsift.linear_problems import linear_problem
from fedsift.methods import METHODS
from fedsift.training import train
from tests.flower.fake import FakeGrid, connected, nodes_of
from tests.laws import CHANNELS, KEPT, every_algorithm, largest_gap, relative_gap, rows

SIZES = (9, 5, 14, 6)
ROUNDS = 5
FEDERATED = [name for name, method in METHODS.items() if method.rows == "federated"]


def algorithms() -> dict[str, Any]:
    paper = EFLoPSPaper(density=0.25, rounds=ROUNDS, gate_rate=0.3)
    return every_algorithm(0.25, rounds=ROUNDS) | {"paper": paper}


def assert_same(one: Any, other: Any) -> None:
    assert relative_gap(one.carried.server, other.carried.server) <= 1e-5
    assert largest_gap(one.params, other.params) <= 1e-5
    for name in ("bytes_up", "bytes_down", "retries"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert torch.equal(one.carried.ledger, other.carried.ledger)
    assert torch.equal(one.carried.seen, other.carried.seen)
    for mine, theirs in zip(one.history, other.history, strict=True):
        assert mine["sites"] == theirs["sites"]
        assert "remarks" not in mine
        if "loss" in theirs:
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "channel", "outcome"),
    [
        ("eflops", "feedback", "binary"),
        ("eflops", "dense", "regression"),
        ("fedavg", "one index set", "multiclass"),
        ("fedht", "dense", "binary"),
        ("fediterht", "no feedback", "regression"),
        ("tuning", "dense", "multiclass"),
        ("eflops", "half precision", "regression"),
        ("paper", "dense", "binary"),
    ],
)
def test_every_algorithm_is_the_simulators(
    name: str, channel: str, outcome: str, tmp_path: Path
) -> None:
    """Two seeds, some sites absent in each round, two sites at a node, batches of rows."""
    data = rows(outcome, sizes=SIZES)
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path, per_node=2)))
    knobs: Any = {
        "seeds": (3, 4),
        "data_seed": 3,
        "participation": 0.6,
        "channel": CHANNELS[channel],
        "evaluate_every": 3,
    }
    algorithm = algorithms()[name]
    far = train(linear_problem(remote), remote, algorithm, **knobs)
    near = train(linear_problem(data), data, algorithm, compile=False, **knobs)
    assert_same(far, near)


@pytest.mark.parametrize("method", FEDERATED)
def test_a_fit_is_the_simulators(method: str, tmp_path: Path) -> None:
    """Splits, standardisation, search, refit and scores; three cases share the messages."""
    if method == "oneshot":
        pytest.importorskip("abess", reason="the extra oneshot (abess) is not installed")
    outcome = ("binary", "regression")[FEDERATED.index(method) % 2]
    data = rows(outcome, sizes=(9, 6, 8))
    grid = FakeGrid(nodes_of(data, tmp_path))
    remote = connected(data, grid)
    knobs: Any = {
        "method": method,
        "features": KEPT,
        "seeds": 2,
        "splits": 2,
        "rounds": 3,
        "tuning_rounds": 3,
        "evaluate_every": 2,
        "beside": (),
    }
    if method == "eflops":
        knobs |= {"early_stop": 2, "standardise": "array"}
    far, near = fit(remote, **knobs), fit(data, **knobs)
    assert largest_gap(far.params, near.params) <= 1e-5
    assert far.standardiser.to_dict() == near.standardiser.to_dict()
    assert [f.name for f in far.features] == [f.name for f in near.features]
    assert far.results.keys() == near.results.keys()
    for name in ("bytes_up", "bytes_down", "bytes_dense", "bytes_formula"):
        assert far.results[name] == near.results[name]
    score = "test_accuracy" if outcome == "binary" else "test_r2"
    assert far.results[score]["mean"] == pytest.approx(near.results[score]["mean"], abs=1e-5)
    other = FakeGrid(nodes_of(data, tmp_path / "alone"))
    alone = connected(data, other, run="alone")
    fit(alone, **knobs | {"splits": 0})
    messages = len(other.sent)
    assert len(grid.sent) <= messages + 3 * 4  # ids, rows of the splits, scores


def test_a_fit_with_covariates_is_the_simulators(tmp_path: Path) -> None:
    """They are fitted first, and that start is told with the problem."""
    data = rows("regression", sizes=(9, 6, 8)).with_covariates(["x4", "x1"])
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    assert remote.features == data.features
    knobs: Any = {"features": KEPT, "seeds": 2, "splits": 1, "rounds": 3, "tuning_rounds": 3}
    knobs |= {"covariate_ridge": 0.5, "beside": ()}
    far, near = fit(remote, **knobs), fit(data, **knobs)
    assert largest_gap(far.params, near.params) <= 1e-5
    for name in ("bytes_up", "bytes_down", "bytes_dense"):
        assert far.results[name] == near.results[name]


@pytest.mark.parametrize("kind", ["own", "random"])
def test_a_fit_with_intercepts_of_sites_is_the_simulators(kind: str, tmp_path: Path) -> None:
    """Each site keeps its own, scores its rows with it, and no question or answer has it."""
    data = rows("regression", sizes=(9, 6, 8))
    levels = torch.tensor([0.0, 2.0, -1.0])[data.site_of_row]
    data = replace(data, y=data.y + levels)
    grid = FakeGrid(nodes_of(data, tmp_path))
    remote = connected(data, grid)
    knobs: Any = {"features": KEPT, "seeds": 2, "splits": 2, "rounds": 3, "tuning_rounds": 3}
    knobs |= {"site_intercepts": kind, "evaluate_every": 1, "beside": ()}
    knobs |= {"validation": "leave-one-site-out", "participation": 2.0}
    far, near = fit(remote, **knobs), fit(data, **knobs)
    assert largest_gap(far.params, near.params) <= 1e-5
    for name in ("bytes_up", "bytes_down", "bytes_dense"):
        assert far.results[name] == near.results[name]
    score = near.results["test_r2"]["mean"]
    assert far.results["test_r2"]["mean"] == pytest.approx(score, abs=1e-5)
    for name, site in near.results["sites_held_out"]["sites"].items():
        mine = far.results["sites_held_out"]["sites"][name]
        assert mine["score"] == pytest.approx(site["score"], abs=1e-4)
    assert not far.own
    remote.end()
    for name in data.sites:
        (file,) = (tmp_path / name).iterdir()
        told = json.loads(file.read_text())
        assert (told["site"], told["run"]) == (name, "test")
        own = far._intercept(str(file))
        assert own == pytest.approx(near.own[name], abs=1e-5)
        x, names = data.site(name).x, data.features
        known = near.predict(x, names, name)
        assert far.predict(x, names, str(file)) == pytest.approx(known, abs=1e-4)
    with pytest.raises(ValueError, match="give the file that the site has kept of this run, test-"):
        far.predict(x, names, name)
    file.write_text(json.dumps(told | {"run": "another"}))
    with pytest.raises(ValueError, match="is of the run 'another'"):
        far.predict(x, names, str(file))


def test_a_fit_with_groups_is_the_simulators(tmp_path: Path) -> None:
    """Sites know of groups what the problem says; x2 is in both."""
    data = rows("binary", sizes=(9, 6, 8))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    groups = {"one": ["x0", "x1", "x2"], "other": ["x2", "x3"]}
    knobs: Any = {"features": 2, "seeds": 2, "splits": 1, "rounds": 3, "tuning_rounds": 3}
    knobs |= {"groups": groups, "beside": ()}
    far, near = fit(remote, **knobs), fit(data, **knobs)
    assert largest_gap(far.params, near.params) <= 1e-5
    for name in ("bytes_up", "bytes_down", "bytes_dense", "alternatives"):
        assert far.results[name] == near.results[name]
    names = [[group["name"] for group in run.results["groups"]] for run in (far, near)]
    assert names[0] == names[1]


def test_sites_held_out_and_in_their_own_units_are_the_simulators(tmp_path: Path) -> None:
    """A site that is held out is not asked to train; each takes its means off by itself."""
    data = rows("regression", sizes=(9, 6, 8))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    knobs: Any = {"features": KEPT, "seeds": 1, "splits": 0, "rounds": 2, "tuning_rounds": 2}
    knobs |= {"validation": "leave-one-site-out", "harmonise": "location", "beside": ()}
    far, near = (fit(where, **knobs).results["sites_held_out"] for where in (remote, data))
    assert far["sites"].keys() == near["sites"].keys()
    for name, site in near["sites"].items():
        assert far["sites"][name]["score"] == pytest.approx(site["score"], abs=1e-4)


def test_intervals_are_the_simulators(tmp_path: Path) -> None:
    """Sites deal their rows to halves by themselves, and tell sums of their scores."""
    data = rows("binary", sizes=(25, 20, 30))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    knobs: Any = {"features": 2, "seeds": 1, "splits": 0, "rounds": 2, "tuning_rounds": 2}
    knobs |= {"intervals": "split", "beside": ()}
    far, near = (fit(where, **knobs).results["intervals"] for where in (remote, data))
    assert far["rows"] == near["rows"]
    assert far["reason"] == near["reason"]
    for mine, theirs in zip(far["effects"], near["effects"], strict=True):
        assert mine["name"] == theirs["name"]
        for name in ("estimate", "error", "low_all"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-5)


def test_intervals_of_one_site_would_be_its_own(tmp_path: Path) -> None:
    data = rows("binary", sizes=(25,))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    with pytest.raises(ValueError, match="let two sites take part"):
        fit(remote, features=2, seeds=1, splits=0, standardise="none", intervals="split")


def test_rows_cannot_be_pooled_or_standardised_by_one_site(tmp_path: Path) -> None:
    data = rows("binary", sizes=(9, 6))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    with pytest.raises(DataError, match="stay at their sites"):
        fit(remote, method="central", features=KEPT, seeds=1, splits=0, beside=())
    one = rows("binary", sizes=(9,))
    remote = connected(one, FakeGrid(nodes_of(one, tmp_path / "one")))
    with pytest.raises(DataError, match="two sites"):
        fit(remote, features=KEPT, seeds=1, splits=0, beside=())


def test_a_problem_that_nobody_can_make_again_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    data = rows("binary", sizes=(9, 6))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    problem = replace(linear_problem(remote), recipe=None)
    with pytest.raises(ValueError, match="recipe"):
        train(problem, remote, algorithms()["fedavg"], rounds=2)


@pytest.mark.parametrize("control", [{"fdr": 0.34}, {"pfer": 2.0, "pairs": 3}], ids=["fdr", "pfer"])
def test_errors_are_controlled_as_by_the_simulator(control: dict[str, Any], tmp_path: Path) -> None:
    """Sites make decoys, and halves, of their own rows."""
    data = rows(sizes=(19, 16, 18))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    knobs: Any = {"features": 3, "seeds": 2, "splits": 1, "rounds": 3, "tuning_rounds": 3}
    far, near = (fit(rows_, beside=(), **knobs, **control) for rows_ in (remote, data))
    assert largest_gap(far.params, near.params) <= 1e-5
    assert far.results["error_control"] == pytest.approx(near.results["error_control"])
    assert far.results["bytes_up"] == near.results["bytes_up"]


@pytest.mark.parametrize("outcome", ["negative_binomial", "survival", "multilabel"])
def test_a_fit_of_counts_times_or_labels_is_the_simulators(outcome: str, tmp_path: Path) -> None:
    """The null loss, the splits by event and the hazards at agreed times are asked of the sites."""
    data = rows(outcome, sizes=(9, 6, 8))
    remote = connected(data, FakeGrid(nodes_of(data, tmp_path)))
    knobs: Any = {
        "features": KEPT, "seeds": 2, "splits": 1, "rounds": 3, "tuning_rounds": 3, "beside": (),
    }  # fmt: skip
    if outcome == "survival":
        knobs["hazard_times"] = (1.0, 2.0)
    far, near = fit(remote, **knobs), fit(data, **knobs)
    assert largest_gap(far.params, near.params) <= 1e-5
    assert far.standardiser.to_dict() == near.standardiser.to_dict()
    if outcome == "multilabel":
        for name, figures in near.results["labels"].items():
            told = far.results["labels"][name]
            assert told["test_accuracy"] == pytest.approx(figures["test_accuracy"], nan_ok=True)
        assert far.facts["data"]["classes"] == ["a", "b"]
    if outcome == "survival":
        assert far.facts["data"]["events"] == near.facts["data"]["events"]
        for site, hazard in near.facts["baseline"]["sites"].items():
            assert far.facts["baseline"]["sites"][site] == pytest.approx(hazard, abs=1e-6)
