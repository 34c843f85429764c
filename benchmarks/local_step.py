"""The local step of E-FLoPS on the vectorized engine, against what it cannot be done without.

A step has noise, gates, entropy and the updates of weights, gates and multiplier, for a linear
model with squared loss, batches of 32 rows, each lane with rows of its own, in float32. The engine
runs it compiled, inside a round, as `train` does. The time of a step is (time of a round of 6
local steps - time of a round of 2) / 4, so that what a round costs once is not in it; `round_ms` is
the round of 2. It is compared with

- `ratio_to_floor`: the two bare batched products of a step, x θ and xᵀ r, by `torch.bmm` or in a
  compiled kernel, whichever is faster here (`ratio_to_bmm`: by `torch.bmm`);
- `ratio_to_elementwise_floor`: the element-wise work of a step in one fused kernel, no products;
- `ratio_to_both_floors`: the sum of the two;
- `ratio_to_jax`: the same step, with the same random numbers, in JAX (jit of vmap, the difference
  of 6 and 2 steps too); null without jax.

One thread each, warm; medians of interleaved repeats. Cases that would need more than 3 GB for rows
are in `skipped`. Run: `python benchmarks/local_step.py [--quick] [--repeats 5] [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # From the root of the repository: names in this folder would hide packages of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import _floors as floors
from benchmarks import jax_step
from benchmarks._common import MissingPeerError, Results, Target, interleaved, run_script, versions
from benchmarks._jobs import regression_sites
from benchmarks._plots import bars
from fedsift.aggregation import mean
from fedsift.algorithms import EFLoPS
from fedsift.channels import Lossless
from fedsift.data import FederatedData
from fedsift.engines import Plan, make_engine
from fedsift.engines.base import Carried, Job, begin
from fedsift.linear_problems import linear_problem

LANES, FEATURES, BATCH = (6, 60, 600), (1_000, 10_000, 100_000), 32
FEW, MANY = 2, 6
LARGEST = 3e9

Call = Callable[[], object]


def engine_round(data: FederatedData, local_steps: int) -> tuple[Call, Job]:
    """Return a call of a compiled round at all sites, and its job."""
    algorithm = EFLoPS(density=0.05, learning_rate=0.01, batch_size=BATCH, local_steps=local_steps)
    job = Job(linear_problem(data), data, algorithm, Lossless(), mean, (0,))
    engine, carried = make_engine("vectorized", Plan(fused=True)), begin(job)

    def call() -> Carried:
        return engine.exchange(job, carried, 1, "round", job.eligible)[0]

    return call, job


def jax_steps(data: FederatedData, job: Job, count: int) -> Call:
    """Return a call of ``count`` steps in JAX from the same start."""
    lanes, d = data.n_sites, data.n_features
    server = job.algorithm.server_init(job.problem, job.run_keys[0])
    assert isinstance(job.algorithm, EFLoPS)
    step = jax_step.make_steps(count, floors.rates_of(job.algorithm, job.problem))
    zeros = data.x.new_zeros(lanes)
    arguments = jax_step.arrays(
        (
            data.x.new_zeros(lanes, d),
            zeros,
            server.phi.repeat(lanes, 1),
            zeros,
            data.x.reshape(lanes, BATCH, d),
            data.y.reshape(lanes, BATCH),
            jax_step.key_words(job.site_keys, count),
        )
    )
    return lambda: [leaf.block_until_ready() for leaf in step(*arguments)]


def measure_case(lanes: int, d: int, repeats: int) -> Results:
    """Return the figures of a number of lanes and features."""
    data = regression_sites(lanes, BATCH, d)
    (few, job), (many, _) = (engine_round(data, count) for count in (FEW, MANY))
    assert isinstance(job.algorithm, EFLoPS)
    tasks: dict[str, Call] = {
        "few": few,
        "many": many,
        "elementwise": floors.elementwise(lanes, d, floors.rates_of(job.algorithm, job.problem)),
    } | floors.products(data.x.reshape(lanes, BATCH, d))
    try:
        tasks |= {f"jax_{count}": jax_steps(data, job, count) for count in (FEW, MANY)}
    except MissingPeerError as error:
        print(error, file=sys.stderr)
    seconds = interleaved(tasks, repeats)
    products = min(seconds["bmm"], seconds["fused"])
    step = (seconds["many"] - seconds["few"]) / (MANY - FEW)
    jax = None
    if f"jax_{FEW}" in seconds:
        jax = (seconds[f"jax_{MANY}"] - seconds[f"jax_{FEW}"]) / (MANY - FEW)
    return {
        "lanes": lanes,
        "d": d,
        "step_ms": 1e3 * step,
        "round_ms": 1e3 * seconds["few"],
        "products_ms": 1e3 * products,
        "elementwise_ms": 1e3 * seconds["elementwise"],
        "jax_ms": None if jax is None else 1e3 * jax,
        "ratio_to_floor": step / products,
        "ratio_to_bmm": step / seconds["bmm"],
        "ratio_to_elementwise_floor": step / seconds["elementwise"],
        "ratio_to_both_floors": step / (products + seconds["elementwise"]),
        "ratio_to_jax": None if jax is None else step / jax,
    }


def measure(arguments: argparse.Namespace) -> Results:
    """Return the figures of all cases, and what was skipped."""
    cases: list[Results] = []
    skipped: list[Results] = []
    for lanes in LANES[1:2] if arguments.quick else LANES:
        for d in FEATURES[:1] if arguments.quick else FEATURES:
            needed = 4.0 * lanes * BATCH * d
            if needed > LARGEST:
                skipped.append({"lanes": lanes, "d": d, "gigabytes_of_rows": needed / 1e9})
                print(f"skipped: {lanes} lanes of {d} features", file=sys.stderr)
            else:
                cases.append(measure_case(lanes, d, arguments.repeats))
    return {
        "versions": versions("jax", "jaxlib"),
        "settings": {"batch": BATCH, "local_steps": [FEW, MANY], "dtype": "float32"},
        "targets": targets(cases),
        "cases": cases,
        "skipped": skipped,
    }


def targets(cases: list[Results]) -> list[Results]:
    """Return the targets of the cases that were measured."""
    judged = []
    for case in cases:
        if case["d"] == FEATURES[0] and case["lanes"] > LANES[0]:
            name = f"{case['lanes']} lanes, d={case['d']}"
            for other, bound, key in (
                ("bare products by the faster kernel", 2.0, "ratio_to_floor"),
                ("bare products by torch.bmm", 2.0, "ratio_to_bmm"),
                ("JAX", 1.0, "ratio_to_jax"),
            ):
                judged.append(Target(f"step / {other}, {name}", bound).judge(case[key]))
    return judged


def plot(results: Results, path: Path) -> None:
    """Draw the ratios."""
    values: dict[str, Any] = {}
    for case in results["cases"]:
        name = f"{case['lanes']} lanes, d={case['d']}"
        values[f"{name}: to products"] = case["ratio_to_floor"]
        values[f"{name}: to JAX"] = case["ratio_to_jax"]
    bars(path, "A local step of E-FLoPS", "time over that of the other", values, (1.0, 2.0))


if __name__ == "__main__":
    run_script(__doc__, measure, plot)
