"""What the benchmarks share: one thread, interleaved medians, runs one round at a time, JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsift.algorithms import Algorithm, FedAvg
from fedsift.data import FederatedData
from fedsift.models import from_module, mlp
from fedsift.outcomes import make_outcome
from fedsift.problems import Problem, supervised
from fedsift.training import train

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
ROUNDS = 300  # the length of the runs of which a few rounds are timed
REPEATS = 5
PIXELS, CLASSES = 784, 10

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
        met = None if measured is None else (measured <= self.bound) == self.at_most
        sign = "<=" if self.at_most else ">="
        return {"name": self.name, "target": f"{sign} {self.bound:g}", "measured": measured} | {
            "met": met if measured != self.bound else True
        }


def run_script(doc: str, measure: Measure, plot: Callable[[Results, Path], None]) -> None:
    """Parse the options, measure on one thread, print one JSON object and draw it if asked."""
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # Libraries read these when they are loaded, so they must be there from the start.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
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


class SteppedRun:
    """A training run that does a round when asked, so that runs can take turns.

    ``first_round`` is what a user waits for it, in seconds from the call of `train`.
    """

    def __init__(
        self, problem: Problem, data: FederatedData, algorithm: Algorithm, **options: Any
    ) -> None:
        """Start `fedsift.training.train` with its own defaults and wait for the first round.

        Evaluation is off but for the first round's, which `train` always does.
        """
        self._go: queue.Queue[bool] = queue.Queue()
        self._done: queue.Queue[float | BaseException] = queue.Queue()
        self._began = time.perf_counter()
        call = {"rounds": ROUNDS, "evaluate_every": 10 * ROUNDS, "callback": self._pause, **options}
        self._thread = threading.Thread(
            target=self._train, args=(problem, data, algorithm), kwargs=call, daemon=True
        )
        self._thread.start()
        self.first_round = self._next()

    def round(self) -> float:
        """Do a round and return its seconds."""
        self._go.put(item=True)
        return self._next()

    def stop(self) -> None:
        """End the run."""
        self._go.put(item=False)
        self._thread.join()

    def _next(self) -> float:
        answer = self._done.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _train(self, *args: Any, **options: Any) -> None:
        torch.set_num_threads(1)
        try:
            train(*args, **options)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
            self._done.put(error)

    def _pause(self, record: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._done.put(time.perf_counter() - self._began)
        if not self._go.get():
            raise _StoppedError
        self._began = time.perf_counter()


class _StoppedError(Exception):
    pass


def site_rows(site: int, rows: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x [rows, d] and y [rows] of a site: standard normal features, five that matter."""
    draw = np.random.default_rng(site)
    x = draw.standard_normal((rows, d), dtype=np.float32)
    return x, x[:, :5].sum(1) + 0.5 * draw.standard_normal(rows, dtype=np.float32)


def regression_sites(sites: int, rows: int, d: int) -> FederatedData:
    """Return the rows of equal sites."""
    x, y = (np.concatenate(t) for t in zip(*(site_rows(c, rows, d) for c in range(sites))))  # noqa: B905
    names = np.repeat([f"site{c}" for c in range(sites)], rows)
    return FederatedData.from_arrays(x, y, sites=names, outcome="regression")


def image_rows(site: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x [rows, 784] and labels 0 .. 9 [rows] of a site."""
    draw = np.random.default_rng(site)
    labels = draw.permutation(np.arange(rows) % CLASSES)
    x = draw.standard_normal((rows, PIXELS), dtype=np.float32)
    x[np.arange(rows), labels] += 3.0
    return x, labels


def image_sites(sites: int, rows: int) -> FederatedData:
    """Return the labelled rows of equal sites."""
    x, y = (np.concatenate(t) for t in zip(*(image_rows(c, rows) for c in range(sites))))  # noqa: B905
    names = np.repeat([f"site{c}" for c in range(sites)], rows)
    return FederatedData.from_arrays(x, y, sites=names, outcome="multiclass")


@dataclass(frozen=True)
class NetworkJob:
    """Federated averaging of a 784-128-10 network: what fedsift, Flower and pfl all do.

    20 local steps are one pass over a site's 640 rows in batches of 32.
    """

    sites: int = 100
    rows: int = 640
    batch: int = 32
    local_steps: int = 20
    learning_rate: float = 0.05
    layers: tuple[int, ...] = (PIXELS, 128, CLASSES)

    def start(self) -> SteppedRun:
        """Start it in fedsift."""
        problem = supervised(from_module(mlp(self.layers)), make_outcome("multiclass", CLASSES))
        algorithm = FedAvg(
            learning_rate=self.learning_rate,
            batch_size=self.batch,
            local_steps=self.local_steps,
        )
        return SteppedRun(problem, image_sites(self.sites, self.rows), algorithm)
