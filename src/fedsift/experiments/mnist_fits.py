"""The work of the MNIST experiment: a method on the digits, all seeds as lanes of one run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import models, trees
from fedsift.algorithms import EFLoPS, FedAvg, FedHT, FedIterHT, LocalTraining, Tuning
from fedsift.data import DataError, FederatedData, digits5000, digits_test, dirichlet_labels, split
from fedsift.evaluation import evaluate
from fedsift.macs import count_macs
from fedsift.models import GateUnit
from fedsift.outcomes import Softmax
from fedsift.problems import Problem, supervised
from fedsift.training import Training, train

IMAGES, TRAINING = 5000, 1184
SITES, ALPHA, PARTICIPATION = 5, 0.5, 0.6
LOCAL_STEPS, BATCH = 5, 32
VALIDATION = 0.2  # share of the training images that choose
TRIAL = {"seeds": 1, "rounds": 200, "tuning_rounds": 30}
# What a method begins with, and what it tries in turn: five more trials for each.
FIRST = {"learning_rate": 0.1, "ridge": 0.0}
STEPS = ("learning_rate", (0.05, 0.2))
TRIED: dict[str, tuple[tuple[str, tuple[float, ...]], ...]] = {
    "E-FLoPS": (STEPS, ("ridge", (1e-3, 3e-3)), ("entropy", (0.01,))),
    "others": (STEPS, ("ridge", (1e-3, 3e-3, 1e-2))),
}
FALL = (1.0, 0.3, 0.1)  # of the step over the tuning, so that its noise falls, too
DENSITY = 0.025
CHANNELS = 0.3  # share of channels and neurons that the structured form keeps
SHAPE = (1, 28, 28)
OUTPUT = "11.weight"  # its rows are the digits

# name in the tables → (algorithm, its knobs, unit of its gates)
METHODS: dict[str, tuple[Callable[..., LocalTraining], dict[str, Any], GateUnit]] = {
    "E-FLoPS": (EFLoPS.deep, {}, "scalar"),
    "FedIter-HT": (FedIterHT, {"schedule": "cubic"}, "scalar"),
    "Fed-HT": (FedHT, {"schedule": "cubic"}, "scalar"),
    "FLoPS (T=0)": (EFLoPS.deep, {"entropy": 0.0}, "scalar"),
    "FedAvg + top-m": (FedAvg, {}, "scalar"),
    "E-FLoPS, channels": (EFLoPS.deep, {}, "channel"),
}


@cache
def make_digits() -> tuple[FederatedData, FederatedData]:
    """Return 1184 images at five sites, and the images to test."""
    rows, rest = split(digits5000(), 0, (IMAGES - TRAINING) / IMAGES)
    with contextlib.suppress(DataError):
        rest = digits_test()
    return dirichlet_labels(rows, SITES, ALPHA, 0), rest


def make_problem(gate: GateUnit, ridge: float) -> Problem:
    """Return the network's problem, with a ridge on what has gates."""
    ungated = (OUTPUT,) if gate == "channel" else ()
    model = models.from_module(models.digits_cnn(), gate=gate, ungated=ungated)
    return supervised(model, Softmax(10)).with_ridge(ridge)


def fit_digits(
    method: str,
    seeds: int,
    rounds: int,
    tuning_rounds: int,
    *,
    choosing: bool = True,
) -> dict[str, Any]:
    """Return what a method makes of the digits, one value a seed, and its training curve.

    ``choosing``: it chooses its knobs, and whether the support found is tuned, by `choose`.
    """
    sites, test = make_digits()
    chosen, trials = dict(FIRST), list[dict[str, float]]()
    if choosing:
        shown, held_back = split(sites, 0, VALIDATION)
        chosen, trials = choose(method, shown, held_back)
        whole = _fit(method, shown, held_back, chosen, 1, rounds, tuning_rounds)
        if whole["cross_entropy_before_tuning"] < whole["cross_entropy"]:
            tuning_rounds = 0
    found = _fit(method, sites, test, chosen, seeds, rounds, tuning_rounds)
    facts = {"tuning_rounds": tuning_rounds, "trials": trials, "tested_on": test.n_samples}
    return found | facts | {"chosen": chosen}


def choose(
    method: str, shown: FederatedData, held_back: FederatedData
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return a method's knobs and its trials, each with its loss on images that were held back.

    One knob after the other is tried, the best value kept, in short runs on the other images.
    """

    def trial(knobs: dict[str, float]) -> float:
        loss = _fit(method, shown, held_back, knobs, **TRIAL)["cross_entropy"]
        trials.append({**knobs, "loss": loss[0]})
        return float(loss[0])

    trials: list[dict[str, float]] = []
    chosen = dict(FIRST)
    lowest = trial(chosen)
    for name, values in TRIED.get(method, TRIED["others"]):
        before = dict(chosen)
        for value in values:
            asked = before | {name: value}
            if (loss := trial(asked)) < lowest:
                chosen, lowest = asked, loss
    return chosen, trials


def _fit(
    method: str,
    sites: FederatedData,
    test: FederatedData,
    chosen: Mapping[str, float],
    seeds: int,
    rounds: int,
    tuning_rounds: int,
) -> dict[str, Any]:
    build, knobs, gate = METHODS[method]
    own = {name: value for name, value in chosen.items() if name not in FIRST}
    problem, rate = make_problem(gate, chosen["ridge"]), chosen["learning_rate"]
    shared: dict[str, Any] = {
        "learning_rate": rate,
        "local_steps": LOCAL_STEPS,
        "batch_size": BATCH,
    }
    density = CHANNELS if gate == "channel" else DENSITY
    algorithm = build(density=density, rounds=rounds, **{**knobs, **own}, **shared)
    often: dict[str, Any] = {
        "seeds": list(range(seeds)),
        "participation": PARTICIPATION,
        "evaluate_every": max(1, rounds // 10),
        "compile": False,
    }
    search = train(problem, sites, algorithm, **often)
    masks = (vmap(problem.gates.magnitude)(search.params) > 0).float()
    params, curve, moved = search.params, _curve(search, 0), search.bytes_up + search.bytes_down
    for stage in range(len(FALL) if tuning_rounds else 0):
        tuning = Tuning(rounds=tuning_rounds // 3, **shared | {"learning_rate": rate * FALL[stage]})
        begin = vmap(lambda p, m, t=tuning: t.start(problem, p, m))(params, masks)
        tuned = train(problem, sites, tuning, start=begin, data_seed=stage + 1, **often)
        curve += _curve(tuned, rounds + stage * (tuning_rounds // 3))
        params, moved = tuned.params, moved + tuned.bytes_up + tuned.bytes_down
    before = evaluate(problem, search.params, test)
    after = evaluate(problem, params, test)
    costs = [_layers(params, seed) for seed in range(seeds)]
    return {
        "accuracy": after["accuracy"].tolist(),
        "cross_entropy": after["loss"].tolist(),
        "accuracy_before_tuning": before["accuracy"].tolist(),
        "cross_entropy_before_tuning": before["loss"].tolist(),
        "macs": [sum(layer["sparse"] for layer in layers) for layers in costs],
        "macs_compact": [sum(layer["compact"] for layer in layers) for layers in costs],
        "layers": costs,
        "weights": _kept(params).tolist(),
        "bytes": moved.tolist(),
        "curve": curve,
    }


def _curve(run: Training, shift: int) -> list[list[float]]:
    """Return [round, loss, accuracy] on the training images, the mean of the seeds."""
    return [[r["round"] + shift, r["loss"], r["accuracy"]] for r in run.history if "loss" in r]


def _layers(params: trees.Tree, seed: int) -> list[dict[str, Any]]:
    counts = count_macs(models.digits_cnn(), trees.unstack(params, seed), SHAPE)
    return [count._asdict() for count in counts]


def _kept(params: trees.Tree) -> Tensor:
    """Return the number of weights, without biases, that are not 0, [S]."""
    return torch.stack([(v != 0).flatten(1).sum(1) for v in params.values() if v.ndim > 2]).sum(0)
