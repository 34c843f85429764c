"""``fedsift reproduce``: the experiments of the papers, run anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsift.cli.failures import StoppedError

if TYPE_CHECKING:
    from fedsift.experiments.base import Progress


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The experiment.")],
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small form of it, in under three minutes.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for tables, pictures and the page.",
            metavar="DIR",
            show_default="runs/reproduce-NAME",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", help="Processes that work side by side.", metavar="N", min=1)
    ] = 1,
    so_far: Annotated[
        bool,
        typer.Option("--so-far", help="Run nothing; write what the parts that are done show."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start afresh in the folder.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
) -> None:
    """Run an experiment of the papers anew, and write its tables, pictures and page.

    The same command goes on where it was stopped.

    [bold]Examples[/bold]

    fedsift reproduce synthetic --quick

    fedsift reproduce golub --jobs 2 --out golub-page
    """
    from fedsift.cli.output import notes, show_json
    from fedsift.experiments import find_experiment
    from fedsift.experiments.base import run_experiment

    experiment = find_experiment(name)
    folder = out or Path("runs", f"reproduce-{name}" + ("-quick" if quick else ""))
    try:
        with notes(quiet=quiet), _bar(quiet=quiet) as progress:
            results = run_experiment(
                experiment,
                folder,
                quick=quick,
                overwrite=overwrite,
                jobs=jobs,
                so_far=so_far,
                progress=progress,
            )
    except KeyboardInterrupt as error:
        raise StoppedError("stopped; the same command goes on from here") from error
    if json:
        show_json(results)
        return
    print((folder / "page.md").read_text())
    print(f"The page, its tables and pictures are in {folder}.")


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Show the cells that are done on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Display

    from fedsift.reporting.tables import duration

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield None
        return
    text = TextColumn("{task.percentage:>3.0f}%  {task.fields[text]}")
    with Display(BarColumn(bar_width=20), text, console=console, transient=True) as display:
        task = display.add_task("", total=1.0, text="starting")

        def show(progress: Progress) -> None:
            left = duration(progress.seconds_left)
            line = f"{progress.done} of {progress.total} done ({progress.cell}), {left} left"
            display.update(task, completed=progress.share, text=line)

        yield show
