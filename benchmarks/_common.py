"""What the benchmarks share: one thread, options, interleaved medians, targets, JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
REPEATS = 5

Results = dict[str, Any]
Measure = Callable[[argparse.Namespace], Results]


class MissingPeerError(Exception):
    """A package that is compared is not installed."""


@dataclass(frozen=True)
class Target:
    """A figure to reach: ``at_most`` or else at least ``bound``."""

    name: str
    bound: float
    at_most: bool = True

    def judge(self, measured: float | None) -> Results:
        """Return the target beside what was measured; None where it was not."""
        sign = "<=" if self.at_most else ">="
        met: bool | None = None
        if measured is not None:
            met = measured <= self.bound if self.at_most else measured >= self.bound
        return {
            "name": self.name,
            "target": f"{sign} {self.bound:.3g}",
            "measured": measured,
            "met": met,
        }


def run_script(doc: str, measure: Measure, plot: Callable[[Results, Path], None]) -> None:
    """Parse the options, measure on one thread, print one JSON object and draw it if asked."""
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # Libraries read these when they are loaded, so they must be there from the start.
        os.execve(  # noqa: S606 - this script again
            sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD}
        )
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases, within a minute")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="interleaved repeats")
    parser.add_argument("--plot", type=Path, help="also draw the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        results = measure(arguments)
    except MissingPeerError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    name = Path(sys.argv[0]).stem
    results = {"benchmark": name, "quick": arguments.quick, "machine": machine(), **results}
    print(json.dumps(results, indent=1))
    if arguments.plot is not None:
        plot(results, arguments.plot)


def require(module: str, requirement: str) -> Any:
    """Import a peer.

    Raises:
        MissingPeerError: it is not installed; the text says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        msg = (
            f"{module} cannot be imported ({error}): install {requirement}, "
            "or all peers with 'make bench-peers'"
        )
        raise MissingPeerError(msg) from error


def machine() -> Results:
    """Return what the figures were measured on."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": 1,
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Return the installed versions of fedsift, torch, numpy and more; None where missing."""
    found: dict[str, str | None] = {}
    for package in ("fedsift", "torch", "numpy", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def interleaved(
    tasks: Mapping[str, Callable[[], object]], repeats: int, least: float = 0.05
) -> dict[str, float]:
    """Return the median seconds of a call of each task, over repeats that take turns.

    A repeat calls a task until ``least`` seconds are over; two warm-up calls come before.
    """
    calls = {}
    for name, task in tasks.items():
        task()
        calls[name] = max(1, int(least / max(_seconds(task, 1), 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            times[name].append(_seconds(task, calls[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def _seconds(task: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        task()
    return (time.perf_counter() - began) / calls
