"""Rounds of Flower's simulator against fedsift's, the same job, in turns in one process.

- E-FLoPS: a linear model of 1000 features with squared loss, 40 rows a site, batches of 32, 2 local
  steps, every site in every round; gates, their noise's distribution, entropy, multiplier and
  update as in fedsift, in NumPy at Flower's clients; a message is the dense (θ̃, bias, φ, λ).
- FedAvg: a 784-128-10 network, 100 sites of 640 rows, 20 local steps in batches of 32; torch at
  Flower's clients.

Flower: `run_simulation`, whose round loop is that of `flwr run`; strategy FedAvg with
min_train_nodes the exact number, one core a client and so as many worker processes as there are
cores; clients keep rows and networks between messages. fedsift: `train` for a run of 300
rounds, one process with a thread for every core; E-FLoPS once with `compile=True` and once with
`compile=False` (what `train` does by itself in so short a run of few sites), FedAvg as `train` does
by itself. Neither evaluates; a round of Flower goes from one call of its server hook to the next.
Rounds take turns; the first of either is a warm-up. `speedup` is the median seconds of Flower's
rounds over those of fedsift, compiled; `speedup_uncompiled` over the others.

Needs flwr[simulation]. Run: `python benchmarks/flower.py [--quick] [--repeats 5] [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    # From the root of the repository: names in this folder would hide packages of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import _floors as floors
from benchmarks._common import Results, Target, require, run_script, versions
from benchmarks._jobs import NetworkJob, SteppedRun, regression_sites
from benchmarks._plots import bars
from fedsift.algorithms import EFLoPS
from fedsift.linear_problems import linear_problem
from fedsift.models import mlp

REQUIREMENT = "flwr[simulation]==1.42.0"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
FEATURES, ROWS, BATCH, STEPS = 1000, 40, 32, 2
SITES = (10, 100, 1000)
TARGETS = {("eflops", 10): 30.0, ("eflops", 1000): 100.0, ("fedavg", 100): 4.0}
THREADS = os.cpu_count() or 1
OURS_EACH = 3  # rounds of fedsift for one of Flower


@dataclass(frozen=True)
class Case:
    """A job on both sides: fedsift's run, what Flower's clients are told, and its first arrays."""

    model: str
    sites: int
    run: SteppedRun
    plain: SteppedRun | None
    config: Mapping[str, Any]
    arrays: Any


def eflops_case(sites: int) -> Case:
    """Return E-FLoPS on a linear model."""
    data = regression_sites(sites, ROWS, FEATURES)
    problem = linear_problem(data)
    algorithm = EFLoPS(density=0.05, learning_rate=0.01, batch_size=BATCH, local_steps=STEPS)
    rates = floors.rates_of(algorithm, problem)
    phi = np.random.default_rng(0).normal(rates.prior, 0.1, FEATURES).astype(np.float32)
    zeros = np.zeros(FEATURES, np.float32)
    start = [zeros, zeros[:1], phi, zeros[:1]]
    config = {"rows": ROWS, "batch": BATCH, "local-steps": STEPS, "rates": list(rates)}
    run, plain = (
        SteppedRun(problem, data, algorithm, compile=compiled, threads=THREADS)
        for compiled in (True, False)
    )
    return Case("eflops", sites, run, plain, config, start)


def fedavg_case(job: NetworkJob) -> Case:
    """Return federated averaging of a network."""
    config = {
        "rows": job.rows,
        "batch": job.batch,
        "local-steps": job.local_steps,
        "learning-rate": job.learning_rate,
        "layers": list(job.layers),
    }
    run = job.start(THREADS)
    return Case("fedavg", job.sites, run, None, config, mlp(job.layers).state_dict())


def measure_case(case: Case, repeats: int) -> Results:
    """Simulate in Flower, with rounds of fedsift between its rounds."""
    from benchmarks._flower_app import simulate

    theirs: list[float] = []
    ours: list[float] = []
    plain: list[float] = []
    left = time.perf_counter()

    def between(server_round: int, arrays: Any) -> None:  # noqa: ARG001
        nonlocal left
        if server_round > 1:
            theirs.append(time.perf_counter() - left)
        for run, kept in ((case.run, ours), (case.plain, plain)):
            rounds = [run.round() for _ in range(OURS_EACH)] if run else []
            if server_round:
                kept.extend(rounds)
        left = time.perf_counter()

    simulate(case.model, case.sites, case.arrays, case.config, 1 + repeats, between)
    for run in filter(None, (case.run, case.plain)):
        run.stop()
    assert len(theirs) == repeats
    theirs_seconds, our_seconds = statistics.median(theirs), statistics.median(ours)
    plain_seconds = statistics.median(plain) if plain else None
    return {
        "model": case.model,
        "sites": case.sites,
        "flower_ms": 1e3 * theirs_seconds,
        "fedsift_ms": 1e3 * our_seconds,
        "fedsift_first_round_seconds": case.run.first_round,
        "speedup": theirs_seconds / our_seconds,
        "speedup_uncompiled": theirs_seconds / plain_seconds if plain_seconds else None,
    }


def measure(arguments: argparse.Namespace) -> Results:
    """Return the figures of all cases."""
    os.environ.update(QUIET)
    require("flwr", REQUIREMENT)
    require("ray", REQUIREMENT)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    cases = [
        measure_case(eflops_case(sites), arguments.repeats)
        for sites in (SITES[:1] if arguments.quick else SITES)
    ]
    if not arguments.quick:
        cases.append(measure_case(fedavg_case(NetworkJob()), arguments.repeats))
    targets = [
        Target(f"{model}, {sites} sites", bound, at_most=False).judge(case["speedup"])
        for (model, sites), bound in TARGETS.items()
        for case in cases
        if (case["model"], case["sites"]) == (model, sites)
    ]
    return {
        "versions": versions("flwr", "ray"),
        "settings": {
            "flower": {"backend": "ray", "num_cpus_per_client": 1, "processes": "one a core"},
            "eflops": {"d": FEATURES, "rows": ROWS, "batch": BATCH, "local_steps": STEPS},
            "fedavg": {"layers": [784, 128, 10], "rows": 640, "batch": 32, "local_steps": 20},
        },
        "targets": targets,
        "cases": cases,
    }


def plot(results: Results, path: Path) -> None:
    """Draw the speedups."""
    values = {f"{c['model']}, {c['sites']} sites": c["speedup"] for c in results["cases"]}
    bars(path, "fedsift against Flower's simulator", "times as fast", values, (1.0,))


if __name__ == "__main__":
    run_script(__doc__, measure, plot)
