"""Thirty seeds in one run, against thirty runs of one seed.

E-FLoPS on a linear model, d = 1000, 10 sites of 40 rows, batches of 32, 2 local steps, whole
messages, as `fedsift.train` does it for a run of 300 rounds; evaluation off.

- `ratio_to_separate_runs`: a round of all seeds over 30 rounds of one seed, both compiled;
  `ratio_to_separate_runs_by_default`: where `train` decides itself whether a run of one seed is
  compiled.
- `ratio_to_elementwise_floor`: the same round over 2 x the element-wise work of a step of 300 lanes
  in one fused kernel: noise, gates, entropy and update, without any product;
  `ratio_to_both_floors`: over that and the bare matrix products of the 2 steps, by `torch.mm`.

Medians of interleaved repeats on one thread, warm.
Run: `python benchmarks/seeds.py [--quick] [--repeats 5] [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

if __name__ == "__main__":
    # From the root of the repository: names in this folder would hide packages of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import _floors as floors
from benchmarks._common import Results, Target, interleaved, run_script, versions
from benchmarks._jobs import SteppedRun, regression_sites
from benchmarks._plots import bars
from fedsift.algorithms import EFLoPS
from fedsift.linear_problems import linear_problem

SITES, ROWS, BATCH, SEEDS = 10, 40, 32, 30


def measure_seeds(d: int, seeds: int, repeats: int, *, compiled: bool = True) -> Results:
    """Return the figures for a number of features and seeds."""
    data = regression_sites(SITES, ROWS, d)
    problem = linear_problem(data)
    algorithm = EFLoPS(density=0.05, learning_rate=0.01, batch_size=BATCH, local_steps=2)
    runs = {
        "together": SteppedRun(problem, data, algorithm, seeds=range(seeds), compile=compiled),
        "separate": SteppedRun(problem, data, algorithm, compile=compiled),
        "default": SteppedRun(problem, data, algorithm),
    }
    rates = floors.rates_of(algorithm, problem)
    bare_work = {
        "elementwise": floors.elementwise(SITES * seeds, d, rates, compiled=compiled),
        "products": floors.shared_products(SITES, seeds, BATCH, d),
    }
    times: dict[str, list[float]] = {name: [] for name in (*runs, *bare_work)}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            rounds = [run.round() for _ in range(3 if name == "together" else 10)]
            if repeat:  # the first is a warm-up
                times[name].append(statistics.median(rounds))
        for name, value in interleaved(bare_work, 1).items():
            times[name].append(value)
    for run in runs.values():
        run.stop()
    seconds = {name: statistics.median(values) for name, values in times.items()}
    step = {name: seconds.pop(name) for name in bare_work}
    return {
        "round_ms": {name: 1e3 * value for name, value in seconds.items()},
        **{f"{name}_ms": 1e3 * value for name, value in step.items()},
        "ratio_to_separate_runs": seconds["together"] / (seeds * seconds["separate"]),
        "ratio_to_separate_runs_by_default": seconds["together"] / (seeds * seconds["default"]),
        "ratio_to_elementwise_floor": seconds["together"] / (2 * step["elementwise"]),
        "ratio_to_both_floors": seconds["together"] / (2 * sum(step.values())),
    }


def measure(arguments: argparse.Namespace) -> Results:
    """Return the figures."""
    figures = measure_seeds(1000, SEEDS, min(arguments.repeats, 3 if arguments.quick else 99))
    return {
        "versions": versions(),
        "settings": {
            "d": 1000,
            "sites": SITES,
            "seeds": SEEDS,
            "rows": ROWS,
            "batch": BATCH,
            "local_steps": 2,
        },
        "targets": [
            Target("30 seeds / 30 runs", 1 / 3).judge(figures["ratio_to_separate_runs"]),
            Target("30 seeds / element-wise floor", 1.5).judge(
                figures["ratio_to_elementwise_floor"]
            ),
        ],
        **figures,
    }


def plot(results: Results, path: Path) -> None:
    """Draw the ratios."""
    names = {
        "ratio_to_separate_runs": "to 30 runs, compiled",
        "ratio_to_separate_runs_by_default": "to 30 runs as by default",
        "ratio_to_elementwise_floor": "to the element-wise floor",
    }
    values = {text: results[name] for name, text in names.items()}
    bars(path, "A round of 30 seeds together", "time over that of the other", values, (1 / 3, 1.5))


if __name__ == "__main__":
    run_script(__doc__, measure, plot)
