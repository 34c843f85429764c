"""What the command line shows: notes and progress on stderr, results on stdout."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedsift.callbacks import label
from fedsift.cli.failures import as_options
from fedsift.visible import visible

WIDTH = 100


class Stage(NamedTuple):
    """A part of the work: a method on a case, the search or the refit."""

    label: str
    method: str
    part: str
    rounds: int


def plan(methods: Mapping[str, Sequence[str]], settings: Any) -> list[Stage]:
    """Return the stages of a study in their order, from the names of each method's cases."""
    from fedsift.methods import find_method

    stages = []
    for name, cases in methods.items():
        rounds = find_method(name).build(density=0.5, rounds=settings.rounds).rounds
        for case in cases:
            for part, count in (("search", rounds), ("refit", settings.tuning_rounds)):
                stages.append(Stage(f"{name} · {case} · {part}", name, part, count))
    return stages


@dataclass
class Bar:
    """Progress over all stages, as the callback of a fit."""

    stages: Sequence[Stage]
    progress: Progress
    task: TaskID
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    shown: float = 0.0

    def __call__(self, record: dict[str, Any]) -> None:
        """Show a round that is done."""
        where, round_number = label(record), record["round"]
        number = next((i for i, s in enumerate(self.stages) if s.label == where), None)
        if number is None:
            return
        stage = self.stages[number]
        self.seconds.setdefault((stage.method, stage.part), []).append(float(record["seconds"]))
        if round_number == 1:
            self.last = {}
        self.last |= {k: record[k] for k in ("loss", "density", "multiplier") if k in record}
        if time.monotonic() - self.shown < 0.1 and round_number < stage.rounds:
            return
        self.shown = time.monotonic()
        done = sum(s.rounds for s in self.stages[:number]) + round_number
        figures = " ".join(f"{_SHORT[k]} {v:.3g}" for k, v in self.last.items())
        self.progress.update(
            self.task,
            completed=done,
            description=where,
            figures=figures,
            left=self.left(number, round_number),
        )

    def left(self, number: int, round_number: int) -> str:
        """Return the time left over all stages."""
        from fedsift.reporting.tables import duration

        rest = [(s, s.rounds) for s in self.stages[number + 1 :]]
        rest.append((self.stages[number], self.stages[number].rounds - round_number))
        return f"{duration(sum(count * self._rate(stage) for stage, count in rest))} left"

    def _rate(self, stage: Stage) -> float:
        """Return the seconds a round of the stage takes, from its like."""
        same = self.seconds.get((stage.method, stage.part))
        like = [
            v for (_, part), values in self.seconds.items() if part == stage.part for v in values
        ]
        values = same or like or [v for values in self.seconds.values() for v in values]
        return sum(values) / len(values)


_SHORT = {"loss": "loss", "density": "density", "multiplier": "λ"}


@contextmanager
def bar(stages: Sequence[Stage], *, quiet: bool) -> Iterator[Bar | None]:
    """Show progress on stderr, if that is a terminal."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[figures]}  {task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        total = sum(stage.rounds for stage in stages)
        yield Bar(stages, progress, progress.add_task("starting", total=total, figures="", left=""))


@contextmanager
def notes(*, quiet: bool) -> Iterator[None]:
    """Show warnings about data, and the training's log, as lines on stderr."""
    from fedsift.data import DataWarning

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    handler = _Handler(console)
    logger = logging.getLogger("fedsift")
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", DataWarning)
        else:
            warnings.simplefilter("always", DataWarning)
            logger.addHandler(handler)
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, DataWarning):
                console.print(f"note: {visible(as_options(str(message)))}", markup=False)
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = show
        try:
            yield
        finally:
            logger.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.print(f"note: {visible(record.getMessage())}", markup=False)


def show(content: RenderableType) -> None:
    """Print a result on stdout."""
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, emoji=False, markup=False, width=WIDTH)
    console.print(content)


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    from fedsift.run_folder import without_nan

    sys.stdout.write(json.dumps(without_nan(dict(value)), indent=2, ensure_ascii=False) + "\n")
