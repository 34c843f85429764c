"""What the benchmarks train: rows of sites, and runs that do one round at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsift.algorithms import Algorithm, FedAvg
from fedsift.data import FederatedData
from fedsift.models import from_module, mlp
from fedsift.outcomes import make_outcome
from fedsift.problems import Problem, supervised
from fedsift.training import train

ROUNDS = 300  # the length of the runs of which a few rounds are timed
PIXELS, CLASSES = 784, 10


class SteppedRun:
    """A training run that does a round when asked, so that runs can take turns.

    ``first_round`` is what a user waits for it, in seconds from the call of `train`.
    """

    def __init__(
        self,
        problem: Problem,
        data: FederatedData,
        algorithm: Algorithm,
        *,
        threads: int = 1,
        **options: Any,
    ) -> None:
        """Start `fedsift.training.train` with its own defaults and wait for the first round.

        Evaluation is off but for the first round's, which `train` always does.
        """
        self._go: queue.Queue[bool] = queue.Queue()
        self._done: queue.Queue[float | BaseException] = queue.Queue()
        self._began = time.perf_counter()
        self._threads = threads
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
        torch.set_num_threads(self._threads)
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

    def start(self, threads: int = 1) -> SteppedRun:
        """Start it in fedsift."""
        problem = supervised(from_module(mlp(self.layers)), make_outcome("multiclass", CLASSES))
        algorithm = FedAvg(
            learning_rate=self.learning_rate,
            batch_size=self.batch,
            local_steps=self.local_steps,
        )
        return SteppedRun(problem, image_sites(self.sites, self.rows), algorithm, threads=threads)
