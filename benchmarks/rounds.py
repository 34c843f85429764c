"""What a round costs beside its arithmetic: sampling, noise, messages, history, for many sites.

E-FLoPS on a nearly empty model (2 features, 4 rows a site, 2 local steps), one seed, as
`fedsift.train` does it, evaluation off. `sites` is how many take part in a round, drawn from a
quarter more. `overhead_ms` is the time of a whole warm round with `compile=True`, from the end of
one round's record to the end of the next, `uncompiled_ms` that with `compile=False`;
`first_round_seconds` is the wait for the first round from the call of `train`, with a start and an
evaluation, uncompiled; `first_round_compiled_seconds` the same with the compile (little where an
earlier process left it on disk); `first_round_of_the_process_seconds` is that of an uncompiled run
before all others, with what is loaded once.

Medians of interleaved repeats on one thread; a repeat is a few rounds of every size in turn.
Run: `python benchmarks/rounds.py [--quick] [--repeats 5] [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    # From the root of the repository: names in this folder would hide packages of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks._common import Results, Target, run_script, versions
from benchmarks._jobs import SteppedRun, regression_sites
from benchmarks._plots import bars
from fedsift.algorithms import EFLoPS
from fedsift.linear_problems import linear_problem

SITES = (10, 100, 1_000, 10_000)
FEATURES, ROWS, BATCH = 2, 4, 32
ALGORITHM = EFLoPS(density=0.5, learning_rate=0.01, batch_size=BATCH, local_steps=2)
OVERHEAD = {10: 1.0, 1_000: 20.0}
FIRST_ROUND = 1.0


def start(sites: int, *, compiled: bool) -> SteppedRun:
    """Start a run in which ``sites`` take part in every round."""
    data = regression_sites(sites + sites // 4, ROWS, FEATURES)
    return SteppedRun(linear_problem(data), data, ALGORITHM, participation=sites, compile=compiled)


def measure_sizes(sizes: Sequence[int], repeats: int) -> list[Results]:
    """Return the figures for numbers of sites."""
    runs = {
        (sites, compiled): start(sites, compiled=compiled)
        for sites in sizes
        for compiled in (False, True)
    }
    times: dict[tuple[int, bool], list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for (sites, compiled), run in runs.items():
            rounds = [run.round() for _ in range(max(1, min(20, 2000 // sites)))]
            if repeat:  # the first is a warm-up
                times[sites, compiled].append(statistics.median(rounds))
    for run in runs.values():
        run.stop()
    return [
        {
            "sites": sites,
            "overhead_ms": 1e3 * statistics.median(times[sites, True]),
            "uncompiled_ms": 1e3 * statistics.median(times[sites, False]),
            "first_round_seconds": runs[sites, False].first_round,
            "first_round_compiled_seconds": runs[sites, True].first_round,
        }
        for sites in sizes
    ]


def measure(arguments: argparse.Namespace) -> Results:
    """Return the figures of all sizes."""
    first = start(SITES[0], compiled=False)
    first.stop()
    cases = measure_sizes(SITES[:3] if arguments.quick else SITES, arguments.repeats)
    targets = [
        Target(f"overhead in ms, {case['sites']} sites", OVERHEAD[case["sites"]]).judge(
            case["overhead_ms"]
        )
        for case in cases
        if case["sites"] in OVERHEAD
    ] + [
        Target(f"first round in seconds, {case['sites']} sites", FIRST_ROUND).judge(
            case["first_round_seconds"]
        )
        for case in cases
        if case["sites"] in OVERHEAD
    ]
    return {
        "versions": versions(),
        "settings": {"d": FEATURES, "rows": ROWS, "batch": BATCH, "local_steps": 2},
        "targets": targets,
        "first_round_of_the_process_seconds": first.first_round,
        "cases": cases,
    }


def plot(results: Results, path: Path) -> None:
    """Draw the overhead."""
    values = {f"{case['sites']} sites": case["overhead_ms"] for case in results["cases"]}
    bars(path, "A round of a nearly empty model", "ms", values)


if __name__ == "__main__":
    run_script(__doc__, measure, plot)
