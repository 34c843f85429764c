"""Time of a round on the vectorized engine against the loop engine, both in this run.

Prints JSON: sites, seeds, d; `loop_ms`, `eager_ms` (vectorized, unfused) and `vectorized_ms`
(fused by `torch.compile`); `speedup` and `speedup_eager` over the loop; `pays` from how many rounds
on a run fuses by itself. Medians of interleaved repeats on one thread, without evaluation and
without the compile itself (`compile_seconds`). Run: `python benchmarks/engines.py [--repeats 5]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from fedsift.aggregation import mean
from fedsift.algorithms import EFLoPS
from fedsift.channels import TopM
from fedsift.data import synthetic_regression
from fedsift.engines import Plan, make_engine
from fedsift.engines.base import Job, begin
from fedsift.engines.plan import compile_pays
from fedsift.linear_problems import linear_problem


def measure(sites: int, seeds: int, d: int, repeats: int) -> dict[str, float]:
    """Return medians over repeats; the first round of either engine is not counted."""
    train = synthetic_regression(
        n_samples=40 * sites, n_features=d, n_sites=sites, n_test=2, alpha=10.0
    ).train
    algorithm = EFLoPS(density=0.05, learning_rate=0.01, batch_size=32, local_steps=2)
    job = Job(linear_problem(train), train, algorithm, TopM(d // 20), mean, tuple(range(seeds)))
    engines = {
        "vectorized": make_engine("vectorized", Plan(fused=True)),
        "eager": make_engine("vectorized"),
        "loop": make_engine("loop"),
    }
    carried = {name: begin(job) for name in engines}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(repeats + 1):
        for name, engine in engines.items():
            began = time.perf_counter()
            carried[name], _ = engine.exchange(job, carried[name], number, "round", job.eligible)
            times[name].append(time.perf_counter() - began)
    first = times["vectorized"][0]
    medians = {f"{name}_ms": 1e3 * statistics.median(t[1:]) for name, t in times.items()}
    return {
        "sites": sites,
        "seeds": seeds,
        "d": d,
        "pays": next(n for n in range(0, 10**6, 100) if compile_pays(job, job.eligible, n)),
        "compile_seconds": first,
        **medians,
        "speedup": medians["loop_ms"] / medians["vectorized_ms"],
        "speedup_eager": medians["loop_ms"] / medians["eager_ms"],
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(10, 30, 1000, arguments.repeats), indent=1))


if __name__ == "__main__":
    main()
