"""The work of the MNIST experiment: a method on the digits, all seeds as lanes of one run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
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
RATES = (0.1, 0.05, 0.2)  # among which every method chooses, for search and tuning
TRIAL = {"seeds": 2, "rounds": 100, "tuning_rounds": 30}
VALIDATION = 0.2  # share of the training images that choose
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


def make_problem(gate: GateUnit) -> Problem:
    """Return the network's problem."""
    ungated = (OUTPUT,) if gate == "channel" else ()
    model = models.from_module(models.digits_cnn(), gate=gate, ungated=ungated)
    return supervised(model, Softmax(10))


def fit_digits(
    method: str,
    seeds: int,
    rounds: int,
    tuning_rounds: int,
    rates: Sequence[float] = RATES,
) -> dict[str, Any]:
    """Return what a method makes of the digits, one value a seed, and its training curve.

    Its step is the one of ``rates`` with the lowest loss on training images that were held back at
    every site, after a short run on the others.
    """
    sites, test = make_digits()
    rate, losses = rates[0], []
    if len(rates) > 1:
        shown, held_back = split(sites, 0, VALIDATION)
        trials = [_fit(method, shown, held_back, r, **TRIAL)["cross_entropy"] for r in rates]
        losses = [sum(trial) / len(trial) for trial in trials]
        rate = rates[losses.index(min(losses))]
    numbers = {"seeds": seeds, "rounds": rounds, "tuning_rounds": tuning_rounds}
    found = _fit(method, sites, test, rate, **numbers)
    return found | {"learning_rate": rate, "validation": losses, "tested_on": test.n_samples}


def _fit(
    method: str,
    sites: FederatedData,
    test: FederatedData,
    rate: float,
    seeds: int,
    rounds: int,
    tuning_rounds: int,
) -> dict[str, Any]:
    build, knobs, gate = METHODS[method]
    problem = make_problem(gate)
    shared: dict[str, Any] = {
        "learning_rate": rate,
        "local_steps": LOCAL_STEPS,
        "batch_size": BATCH,
    }
    density = CHANNELS if gate == "channel" else DENSITY
    algorithm = build(density=density, rounds=rounds, **knobs, **shared)
    often: dict[str, Any] = {
        "seeds": list(range(seeds)),
        "participation": PARTICIPATION,
        "evaluate_every": max(1, rounds // 10),
        "compile": False,
    }
    search = train(problem, sites, algorithm, **often)
    masks = (vmap(problem.gates.magnitude)(search.params) > 0).float()
    params, curve, moved = search.params, _curve(search, 0), search.bytes_up + search.bytes_down
    for stage in range(len(FALL)):
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
