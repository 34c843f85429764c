"""Privacy: nothing else is told of the rows, and what would tell it is refused."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedsift import trees
from fedsift.algorithms import (
    Algorithm,
    EFLoPS,
    EFLoPSPaper,
    FedAvg,
    FedIterHT,
    Lippax,
    OneShot,
    Scaffold,
)
from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData
from fedsift.privacy import Privacy
from fedsift.training import EarlyStop, train
from tests.laws import linear_problem, rows
from tests.private import DELTA, METHODS, SAMPLE, SITE, STEP, fitted


@pytest.mark.parametrize("privacy", [SITE, SAMPLE])
def test_nothing_is_evaluated(privacy, monkeypatch):
    def evaluate(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("fedsift.training.evaluate", evaluate)
    run = fitted(METHODS["eflops"], privacy, evaluate_every=1)
    names = {"round", "density", "multiplier", "exchanges", "bytes_up", "bytes_down", "seconds"}
    assert set(run.history[-1]) == names | {"sites", "epsilon", "delta"}


def test_wrong_numbers_at_a_site_are_not_told():
    data = rows("binary")
    spoiled = data.x.clone()
    object.__setattr__(data, "x", spoiled)
    spoiled[3, 2] = torch.nan
    for privacy in (SITE, SAMPLE):
        run = train(
            linear_problem(data),
            data,
            METHODS["fedavg"],
            rounds=2,
            weights="uniform",
            privacy=privacy,
        )
        assert "rejected" not in run.history[-1]
        assert trees.all_finite(run.params)


def with_role(data: FederatedData) -> FederatedData:
    return replace(data, role=torch.zeros(data.n_samples, dtype=torch.int8))


AUTOMATIC = FedAvg(local_steps=1)
REFUSED: list[tuple[Privacy, Algorithm, dict[str, Any], str]] = [
    (
        SITE,
        AUTOMATIC,
        {},
        "FedAvg measures its step on the rows, .*; give learning_rate",
    ),
    (SAMPLE, Lippax(), {}, "Lippax measures its step on the rows, without noise; give gamma"),
    (SITE, Scaffold(), {}, "measures its step on the rows, without noise; give step"),
    (SITE, METHODS["fedavg"], {"weights": "samples"}, "tells how many rows a site has"),
    (SITE, EFLoPS(density=0.5, learning_rate=1.0), {}, "give local_steps=1"),
    (SITE, FedIterHT(density=0.5, **STEP), {}, "use FedHT"),
    (SITE, EFLoPSPaper(density=0.5, **STEP), {}, "messages='auto'"),
    (SITE, OneShot(density=0.5), {}, "no gradients"),
    (SAMPLE, OneShot(density=0.5), {}, "no gradients"),
    (SITE, Lippax(gamma=1.0, certified=True), {}, "the certificate needs exact field values"),
    (SAMPLE, Lippax(gamma=1.0, certified=True), {}, "the certificate needs exact field values"),
    (SAMPLE, FedAvg(batch_size=4, **STEP), {}, "batch_size is 4; batches are drawn from"),
    (SITE, METHODS["fedavg"], {"seeds": (0, 3, 0)}, "two that are equal would have the same noise"),
    (SITE, METHODS["fedavg"], {"early_stop": True}, "early stopping looks at the loss"),
    (SITE, METHODS["fedavg"], {"checkpoint": True}, "spend privacy again"),
    (SITE, METHODS["fedavg"], {"joins": True}, "spend privacy again"),
]


@pytest.mark.parametrize(("privacy", "method", "knobs", "text"), REFUSED)
def test_what_would_tell_more_is_refused(privacy, method, knobs, text, tmp_path):
    data = rows("binary")
    values = {
        "early_stop": EarlyStop(data),
        "checkpoint": StageCheckpoint(tmp_path / "a"),
        "joins": tmp_path,
    }
    given = {name: values.get(name, value) for name, value in knobs.items()}
    with pytest.raises(ValueError, match=text):
        fitted(method, privacy, **given)


def test_rows_that_do_more_than_others_are_refused():
    data = rows("binary")
    problem, method = linear_problem(data), METHODS["fedavg"]
    weighted = replace(data, weight=torch.linspace(1, 2, data.n_samples))
    with pytest.raises(ValueError, match="sample weights would make rows count more"):
        train(problem, weighted, method, privacy=SAMPLE, rounds=1)
    with pytest.raises(ValueError, match="roles of rows do not go together"):
        train(problem, with_role(data), method, privacy=SAMPLE, rounds=1)
    with pytest.raises(ValueError, match="none can be clipped alone; use level='site'"):
        train(replace(problem, decomposable=False), data, method, privacy=SAMPLE, rounds=1)


def test_an_algorithm_without_an_operator_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Idle(FedAvg):
        def local_steps_from(self, problem: Any, theta: Any, *rest: Any) -> Any:
            return theta

    with pytest.raises(ValueError, match="Idle does not work by an operator on the rows"):
        fitted(Idle(**STEP), SAMPLE)


def test_an_algorithm_that_remembers_uploads_must_say_what_was_sent():
    @dataclass(frozen=True, kw_only=True)
    class Forgetful(Scaffold):
        sent = Algorithm.sent

    with pytest.raises(ValueError, match=r"define Algorithm\.sent"):
        fitted(Forgetful(step=0.1), SITE)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({}, "give the noise or the epsilon of privacy, and not both"),
        ({"noise": 1.0, "epsilon": 1.0}, "and not both"),
        ({"noise": 0.0}, "noise is 0.0; give a positive number"),
        ({"noise": torch.inf}, "noise is inf"),
        ({"epsilon": -1.0}, "epsilon is -1.0; give a positive number"),
        ({"noise": 1.0, "clip": 0.0}, "clip is 0.0; give a positive number"),
        ({"noise": 1.0, "clip": float("nan")}, "clip is nan"),
        ({"noise": 1.0, "delta": 0.0}, "delta is 0.0; give a number above 0 and below 1"),
        ({"noise": 1.0, "level": "row"}, "level is 'row'; give 'site' or 'sample'"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers, text):
    with pytest.raises(ValueError, match=text):
        Privacy(**{"clip": 1.0, "delta": DELTA, **numbers})


def test_without_the_accountant_nothing_begins(monkeypatch):
    monkeypatch.setattr("fedsift.privacy.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'fedsift\[dp\]'"):
        fitted(METHODS["fedavg"], SITE)
