"""Trackers: callbacks that write the figures of every round to a file, TensorBoard or MLflow.

    with fedsift.trackers.TensorBoard("runs/board") as board:
        fedsift.fit(data, features=3, callbacks=[board])

A run that goes on writes to the same place; rounds it did again are there twice, and the last ones
count.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from fedsift.callbacks import PLACE
from fedsift.data.errors import nearest

COLUMNS = (*PLACE, "round", "figure", "value")
EVERY = 5.0  # seconds between two messages to MLflow
MOST = 500  # figures of a message; MLflow takes 1000


class Tracker(AbstractContextManager["Tracker"]):
    """A callback that is closed after the fit, by ``with``."""

    def __call__(self, record: dict[str, Any]) -> None:
        """Write a round's figures."""
        raise NotImplementedError

    def close(self, *, failed: bool = False) -> None:
        """Write what is still held back; ``failed``: the fit did not end well."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(failed=kind is not None)


class FigureFile(Tracker):
    """A file that grows by every round: CSV with a line a figure, or JSON lines, a line a record.

    CSV has the columns method, case, stage, round, figure and value.

    Args:
        path: its name, which ends in ``.csv`` or ``.jsonl``.

    Raises:
        ValueError: the name has another ending, or the file is a table of something else.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix not in {".csv", ".jsonl"}:
            msg = f"{path} ends in {self.path.suffix!r}; name a file that ends in .csv or .jsonl"
            raise ValueError(msg)
        if self.path.suffix == ".csv" and self.path.exists():
            with self.path.open(newline="") as file:
                first = next(csv.reader(file), list(COLUMNS))
            if first != list(COLUMNS):
                msg = f"{path} is a table of something else; name another file"
                raise ValueError(msg)

    def __call__(self, record: dict[str, Any]) -> None:
        """Write a round's figures."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            if self.path.suffix == ".jsonl":
                file.write(json.dumps(record) + "\n")
                return
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow(COLUMNS)
            place = [*(record[name] for name in PLACE), record["round"]]
            writer.writerows([*place, *figure] for figure in figures(record).items())


class TensorBoard(Tracker):
    """TensorBoard's event files: a curve a figure, a folder for every method, case and stage.

    Args:
        folder: what ``tensorboard --logdir`` is given.

    Raises:
        ValueError: the package tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._make = _wanted("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writers: dict[Path, Any] = {}

    def __call__(self, record: dict[str, Any]) -> None:
        """Write a round's figures."""
        folder, step = self.folder.joinpath(*(record[name] for name in PLACE)), record["round"]
        if folder not in self._writers:  # what an earlier process wrote of later rounds is dropped
            self._writers[folder] = self._make(log_dir=str(folder), purge_step=step)
        for name, value in figures(record).items():
            self._writers[folder].add_scalar(name, value, step)
        self._writers[folder].flush()

    def close(self, *, failed: bool = False) -> None:  # noqa: ARG002  a curve says so itself
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class MLflow(Tracker):
    """An MLflow run: metrics ``method/case/stage/figure`` by round, sent every few seconds.

    Where to is MLflow's own setting (``MLFLOW_TRACKING_URI``); a run that is active, or that
    ``MLFLOW_RUN_ID`` names, is gone on with.

    Args:
        experiment: name of the experiment that a new run belongs to.
        parameters: what the run was asked, by name.

    Raises:
        ValueError: the package mlflow is not installed.
    """

    def __init__(
        self, experiment: str = "fedsift", parameters: Mapping[str, Any] | None = None
    ) -> None:
        self.experiment, self.parameters = experiment, dict(parameters or {})
        self._mlflow = _wanted("mlflow", "mlflow")
        self._run: str | None = None
        self._own = False
        self._held: list[Any] = []
        self._sent = time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        """Write a round's figures."""
        metric, now = self._mlflow.entities.Metric, int(1000 * time.time())
        place = "/".join(record[name] for name in PLACE)
        self._held += [
            metric(f"{place}/{name}", value, now, record["round"])
            for name, value in figures(record).items()
        ]
        if len(self._held) >= MOST or time.monotonic() - self._sent > EVERY:
            self._send()

    def close(self, *, failed: bool = False) -> None:
        """Send what is left, and end the run if it was begun here."""
        with (
            suppress(Exception) if failed else nullcontext()
        ):  # the first failure is the one to say
            if self._held:
                self._send()
            if self._own:
                self._mlflow.end_run("FAILED" if failed else "FINISHED")
        self._run, self._own = None, False

    def _send(self) -> None:
        if self._run is None:
            self._run = self._begin()
        held, self._held, self._sent = self._held, [], time.monotonic()
        for first in range(0, len(held), MOST):
            self._mlflow.MlflowClient().log_batch(self._run, metrics=held[first : first + MOST])

    def _begin(self) -> str:
        """Return the id of the run that figures are written to."""
        flow = self._mlflow
        run = flow.active_run()
        self._own = run is None
        if run is None:
            known = flow.get_experiment_by_name(self.experiment)
            number = known.experiment_id if known else flow.create_experiment(self.experiment)
            run = flow.start_run(experiment_id=number)
        flow.log_params(self.parameters)
        return str(run.info.run_id)


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, without that of its round."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and name != "round"
    }


TRACKERS: dict[str, Callable[[str | Path, Mapping[str, Any]], Tracker]] = {
    "csv": lambda where, _: FigureFile(where),
    "tensorboard": lambda where, _: TensorBoard(where),
    "mlflow": lambda where, asked: MLflow(str(where), asked),
}


def make_tracker(text: str, folder: Path, parameters: Mapping[str, Any]) -> Tracker:
    """Return the tracker that a text such as ``csv`` or ``tensorboard:runs/board`` names.

    Args:
        text: ``csv[:FILE]``, ``tensorboard[:FOLDER]`` or ``mlflow[:EXPERIMENT]``.
        folder: of the run: ``track.csv`` and ``tensorboard`` there are written by default.
        parameters: what the run was asked, by name.

    Raises:
        ValueError: there is no such tracker, or its package is not installed.
    """
    kind, _, where = text.partition(":")
    usual = {"csv": folder / "track.csv", "tensorboard": folder / "tensorboard"}
    if kind not in TRACKERS:
        msg = f"no tracker is called {kind!r}; {nearest(kind, list(TRACKERS))}"
        raise ValueError(msg)
    return TRACKERS[kind](where or usual.get(kind, "fedsift"), parameters)


def _wanted(module: str, package: str) -> Any:
    """Import what a tracker needs.

    Raises:
        ValueError: it is not installed; the text says how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        msg = f"the package {package} is not installed; pip install 'fedsift[track]'"
        raise ValueError(msg) from error
