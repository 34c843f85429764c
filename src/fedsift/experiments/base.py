"""What an experiment is: cells of work, and what is made of their results.

A cell is small (seconds to minutes) and depends on nothing but its arguments, so that an experiment
goes on where it stopped, and several processes can work at it. Its folder holds
``experiment.json`` (what runs, by which release, its status), ``cells.jsonl`` (a line a finished
cell) and, when all are done, ``results.json``, ``results.csv``, ``page.md`` and the pictures.
"""

from __future__ import annotations

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from fedsift._version import __version__
from fedsift.experiments.tables import table_csv
from fedsift.locks import locked
from fedsift.reporting.charts import Chart, save_chart
from fedsift.run_folder import LOCK, RunError, without_nan
from fedsift.sealed import write_atomic

VERSION = 1
FACTS, CELLS = "experiment.json", "cells.jsonl"
OWN_FILES = (FACTS, CELLS, "results.json", "results.csv", "page.md")


@dataclass(frozen=True)
class Cell:
    """A piece of an experiment.

    Attributes:
        name: its name in the experiment, for people too: ``N=250 · seed 3 · eflops``.
        work: a function at the top of a module; it returns JSON values and reads no cell.
        arguments: its keyword arguments, JSON values.
        cost: expected seconds, or any number in proportion to them.
    """

    name: str
    work: Callable[..., dict[str, Any]]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cost: float = 1.0


class Outcome(NamedTuple):
    """What an experiment has to say.

    ``results``: JSON values, among them ``rows``, a list of flat objects, the table; ``page``:
    Markdown; ``charts``: file stem → picture.
    """

    results: dict[str, Any]
    page: str
    charts: dict[str, Chart]


class Progress(NamedTuple):
    """How far an experiment is: cells and the share of the expected work, and seconds left."""

    cell: str
    done: int
    total: int
    share: float
    seconds_left: float


class Experiment(ABC):
    """A paper's experiment, or one of ours."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def cells(self, *, quick: bool) -> list[Cell]:
        """Return the cells; ``quick``: a small form of all of it, in under three minutes.

        Raises:
            ValueError: something that it needs is not here; the text says what to install or set.
        """

    @abstractmethod
    def outcome(self, found: Mapping[str, dict[str, Any]], *, quick: bool) -> Outcome:
        """Return what the results of cells, by name, show: all of them, or those done so far."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    quick: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
    so_far: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Run an experiment, or go on with it, in a folder; return its results.

    Args:
        experiment: what to run.
        folder: where its files are kept; cells that are done there are not run again.
        quick: run its small form.
        overwrite: forget what is done there.
        jobs: processes that work at cells side by side.
        so_far: run nothing; write what the cells that are done show, also beside a process that
            works there.
        progress: called after each cell.

    Raises:
        RunError: the folder holds something else, or another process works there.
    """
    facts = {
        "version": VERSION,
        "experiment": experiment.name,
        "quick": quick,
        "fedsift": __version__,
        "torch": torch.__version__,
    }
    check_folder(folder, facts, overwrite=overwrite)
    cells = experiment.cells(quick=quick)
    if so_far:
        return _so_far(experiment, cells, folder, quick=quick)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if overwrite:
            clear(folder)
        _write_json(folder / FACTS, facts | {"status": "running"})
        done = _records(folder)
        found = {c.name: done[c.name]["result"] for c in cells if _is_done(c, done)}
        found.update(_worked(cells, found, folder, jobs, progress))
        outcome = experiment.outcome(found, quick=quick)
        _write(folder, outcome)
        _write_json(folder / FACTS, facts | {"status": "done"})
    return outcome.results


def _so_far(
    experiment: Experiment, cells: Sequence[Cell], folder: Path, *, quick: bool
) -> dict[str, Any]:
    """Write what the cells that are done show.

    Raises:
        RunError: none is done.
    """
    done = read_cells(folder)
    found = {cell.name: done[cell.name] for cell in cells if cell.name in done}
    if not found:
        msg = f"nothing is done yet in {folder}; run the experiment first, without --so-far"
        raise RunError(msg)
    outcome = experiment.outcome(found, quick=quick)
    _write(folder, outcome)
    return outcome.results


def check_folder(folder: Path, facts: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Refuse a folder that holds anything but this experiment, by this release.

    Raises:
        RunError: it does; the text says what to do.
    """
    content = [] if not folder.is_dir() else [f for f in folder.iterdir() if f.name != LOCK]
    if folder.is_file() or (content and not (folder / FACTS).exists()):
        msg = f"{folder} is no folder of an experiment; choose another with --out"
        raise RunError(msg)
    if content and not overwrite:
        there = read_experiment(folder)
        for key, value in facts.items():
            if there.get(key) != value:
                msg = (
                    f"{folder} holds an experiment whose {key} is {there.get(key)!r}, not "
                    f"{value!r}; choose another folder with --out, or add --overwrite"
                )
                raise RunError(msg)


def read_experiment(folder: Path) -> dict[str, Any]:
    """Return what an experiment's folder says of it.

    Raises:
        RunError: it is damaged.
    """
    file = folder / FACTS
    try:
        return dict(json.loads(file.read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        msg = f"{file} is damaged ({error}); start afresh with --overwrite"
        raise RunError(msg) from error


def clear(folder: Path) -> None:
    """Remove what an experiment wrote, and nothing else."""
    results = folder / "results.json"
    charts = json.loads(results.read_bytes()).get("charts", []) if results.exists() else []
    for name in (*OWN_FILES, *charts):
        (folder / name).unlink(missing_ok=True)


def read_cells(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of the cells that are done; a line cut off by a crash does not count."""
    return {name: dict(record["result"]) for name, record in _records(folder).items()}


def _is_done(cell: Cell, done: Mapping[str, dict[str, Any]]) -> bool:
    """Return whether a cell was worked at with these arguments, in the form that they are kept."""
    asked = json.loads(json.dumps(without_nan(dict(cell.arguments))))
    return cell.name in done and bool(done[cell.name]["arguments"] == asked)


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is kept of each cell that is done, its arguments and its result."""
    file = folder / CELLS
    if not file.exists():
        return {}
    found = {}
    for line in file.read_text().splitlines():
        try:
            record = json.loads(line)
            found[str(record["cell"])] = {k: dict(record[k]) for k in ("arguments", "result")}
        except (ValueError, TypeError, KeyError):
            continue
    return found


def _worked(
    cells: Sequence[Cell],
    found: Mapping[str, Any],
    folder: Path,
    jobs: int,
    progress: Callable[[Progress], None] | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Work at the cells that are not done; keep and return each result."""
    rest = [cell for cell in cells if cell.name not in found]
    total = sum(cell.cost for cell in cells)
    started, spent, left = time.monotonic(), 0.0, sum(cell.cost for cell in rest)
    for count, (cell, result) in enumerate(_run(rest, jobs), 1):
        _append(folder / CELLS, cell, result)
        spent, left = spent + cell.cost, left - cell.cost
        if progress is not None:
            rate = (time.monotonic() - started) / spent
            finished = len(cells) - len(rest) + count
            progress(Progress(cell.name, finished, len(cells), 1 - left / total, rate * left))
        yield cell.name, result


def _run(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if jobs == 1:
        for cell in cells:
            yield cell, cell.work(**cell.arguments)
        return
    with (
        _one_thread_each(),
        ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)
        ) as pool,
    ):
        asked: dict[Future[dict[str, Any]], Cell] = {
            pool.submit(cell.work, **cell.arguments): cell for cell in cells
        }
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def end_with(parent: int) -> None:
    """Let this process end when its parent has: a cell's result would have nobody to keep it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Have processes that start here use one thread: several share the machine."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _append(file: Path, cell: Cell, result: Mapping[str, Any]) -> None:
    record = {"cell": cell.name, "arguments": dict(cell.arguments), "result": result}
    with file.open("a") as opened:
        # The line break comes first: the line before may have been cut off.
        opened.write("\n" + json.dumps(without_nan(record)))
        opened.flush()
        os.fsync(opened.fileno())


def _write(folder: Path, outcome: Outcome) -> None:
    """Write the results in every form."""
    names = [f"{stem}.png" for stem in outcome.charts]
    for name, chart in zip(names, outcome.charts.values(), strict=True):
        save_chart(chart, folder / name)
    write_atomic(folder / "results.csv", table_csv(outcome.results["rows"]).encode())
    shown = zip(names, outcome.charts.values(), strict=True)
    pictures = "".join(f"\n![{chart.title}]({name})\n" for name, chart in shown)
    write_atomic(folder / "page.md", (outcome.page + pictures).encode())
    _write_json(folder / "results.json", outcome.results | {"charts": names})


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    write_atomic(file, json.dumps(without_nan(dict(value)), indent=1, allow_nan=False).encode())
