"""A process that is killed at any time loses nothing: every algorithm ends bit-equal."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from fedsift import trees
from fedsift.algorithms import FUMEGS, Algorithm, EFLoPSPaper
from fedsift.algorithms.erasers import StoredFedAvg
from fedsift.channels import TopM
from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData
from fedsift.forgetting import forgetting
from fedsift.outcomes import OUTCOMES
from fedsift.problems import Problem
from fedsift.sealed import fingerprint, write_atomic
from fedsift.solvers import SOLVERS
from fedsift.training import train
from fedsift.vi import named
from tests.laws import every_algorithm, linear_problem, rows

ROUNDS = 12
Work = tuple[Problem, FederatedData, Algorithm, dict[str, Any]]


def fits() -> dict[str, Callable[[], Work]]:
    def of(algorithm: Algorithm, **knobs: Any) -> Callable[[], Work]:
        data = rows("binary")
        return lambda: (linear_problem(data), data, algorithm, {"participation": 0.6, **knobs})

    every = every_algorithm(0.25, rounds=ROUNDS, batch_size=4)
    sparse = {f"{name}, top m": of(a, channel=TopM(3)) for name, a in every.items()}
    dense = {name: of(a) for name, a in every.items()}
    paper = of(EFLoPSPaper(density=0.25, rounds=ROUNDS))
    return sparse | dense | {"paper": paper, "stored": of(StoredFedAvg(rounds=ROUNDS))}


def solves() -> dict[str, Callable[[], Work]]:
    def of(name: str) -> Callable[[], Work]:
        def work() -> Work:
            problem = named.bilinear_ball(n_sites=4)
            return problem.problem, problem.data, SOLVERS[name].build(), {"rounds": ROUNDS}

        return work

    return {f"solve by {name}": of(name) for name in SOLVERS}


def forgets() -> Work:
    data = rows("binary")
    role = torch.zeros(data.n_samples, dtype=torch.int8)
    role[data.slices[2]] = 1
    problem = forgetting(linear_problem(data), OUTCOMES["binary"])
    algorithm = FUMEGS(rounds=ROUNDS)
    start = algorithm.start(problem.init(torch.tensor(5)))
    return problem, replace(data, role=role), algorithm, {"start": trees.stack([start, start])}


WORKS = fits() | solves() | {"fumegs": forgets}


def run(name: str, folder: Path) -> None:
    """Run to the end, from where an earlier process was stopped; write a digest of all there is."""
    torch.set_num_threads(1)
    problem, data, algorithm, knobs = WORKS[name]()
    done = train(
        problem,
        data,
        algorithm,
        seeds=(0, 1),
        evaluate_every=2,
        compile=False,
        checkpoint=StageCheckpoint(folder / "state.safetensors", every=0.0),
        **knobs,
    )
    state = (done.carried.server, done.carried.broadcast, done.carried.store.kept, done.bytes_up)
    tensors = {str(i): leaf.clone() for i, leaf in enumerate(trees.leaves(state))}
    history = [{k: v for k, v in r.items() if k != "seconds"} for r in done.history]
    digest = fingerprint(hashlib.sha256(save(tensors)).hexdigest(), history)
    write_atomic(folder / "digest", digest.encode())


@pytest.mark.parametrize(
    "kills", [pytest.param(20), pytest.param(200, marks=pytest.mark.acceptance_long)]
)
def test_killed_at_any_time_it_ends_bit_equal(kills: int, tmp_path: Path, figure: Any) -> None:
    """kill -9 at random moments of a run, several times in some, all algorithms in turn."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.acceptance.test_kills"])
    draw, done, hit, equal = random.Random(0), dict[str, tuple[str, float]](), 0, 0

    def started(name: str, folder: Path) -> Any:
        process = context.Process(target=run, args=(name, folder))
        process.start()
        return process

    names = itertools.cycle(WORKS)
    while hit < kills:
        name = next(names)
        if name not in done:
            folder = tmp_path / f"{name} whole"
            folder.mkdir()
            began = time.monotonic()
            started(name, folder).join()
            done[name] = (folder / "digest").read_text(), time.monotonic() - began
        folder = tmp_path / f"{name} {hit}"
        folder.mkdir()
        process = started(name, folder)
        process.join(draw.uniform(0.0, done[name][1]))
        killed = process.is_alive()
        process.kill()
        process.join()
        if not killed:
            continue
        hit += 1
        again = started(name, folder)
        again.join()
        assert again.exitcode == 0, f"{name}: {folder}"
        equal += (folder / "digest").read_text() == done[name][0]
    figure(f"kill -9 over {len(WORKS)} methods: killed, bit-equal after resuming", [hit, equal])
    assert equal == hit
