"""The commands. Slow libraries are imported inside, so that help is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.demo import demo
from fedsift.cli.deploy import deploy
from fedsift.cli.failures import DONE, NOT_MET, StoppedError, UsageError
from fedsift.cli.forget import forget, requests, verify
from fedsift.cli.inspect import inspect
from fedsift.cli.interrupts import stopping_in_order
from fedsift.cli.options import METHOD, OUTPUT, USUAL, PlanFile, Request, Signed, takes_request
from fedsift.cli.plan import Planned, check_site, plan, planned
from fedsift.cli.reproduce import reproduce
from fedsift.cli.rerun import rerun
from fedsift.cli.solve import solve
from fedsift.cli.tune import tune
from fedsift.visible import visible

if TYPE_CHECKING:
    from fedsift.settings import Settings
    from fedsift.sources import Source
    from fedsift.studies import Case
    from fedsift.trackers import Tracker

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Where figures go round by round: csv[:FILE], tensorboard[:DIR], mlflow[:EXPERIMENT].",
        metavar="KIND",
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]
COMPARED = "eflops,fediterht,fedavg,central"


def _print_version(value: bool) -> None:
    if value:
        from fedsift._version import __version__

        print(f"fedsift {__version__}")
        raise typer.Exit(DONE)


@app.callback(epilog="Start with: fedsift fit --demo golub. Help on a command: fedsift fit --help")
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of a failure.")
    ] = False,
) -> None:
    """Find the few features that matter, in data that stay at their sites."""


app.command()(demo)
app.command()(inspect)
app.command()(plan)
app.command("check-site")(check_site)
app.command()(reproduce)
app.command()(rerun)
app.command()(tune)
app.command()(takes_request(deploy))
app.command()(solve)
for command in (forget, verify, requests):
    app.command()(command)


@app.command()
@takes_request
def fit(
    request: Request,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="eflops, flops, fedavg, fedht, fediterht, oneshot, central, abess, lasso, local.",
            metavar="NAME",
            rich_help_panel=METHOD,
            show_default="eflops",
        ),
    ] = None,
    plan: PlanFile = None,
    signed: Signed = None,
    track: Track = None,
) -> None:
    """Find the features that predict a target, and how well they do it.

    [bold]Examples[/bold]

    fedsift fit --demo golub

    fedsift fit berlin.csv paris.csv rome.csv --target diagnosis --features 5

    fedsift fit all.parquet --target response --site-column hospital --id patient --density .01

    fedsift fit --plan plan.toml berlin.csv paris.csv rome.csv --signed signed

    fedsift fit --demo synthetic --samples 400 --features-total 1000 --json
    """
    _study(request, "fit", [method or USUAL], track, planned(plan, method, signed))


@app.command()
@takes_request
def compare(
    request: Request,
    methods: Annotated[
        str,
        typer.Option(
            "--methods", help="Names with commas between.", metavar="A,B", rich_help_panel=METHOD
        ),
    ] = COMPARED,
    track: Track = None,
) -> None:
    """Run several methods on the same splits of the same data.

    [bold]Examples[/bold]

    fedsift compare --demo golub --methods eflops,fediterht,fedavg

    fedsift compare berlin.csv paris.csv --target diagnosis --features 5 --splits 5
    """
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise UsageError(
            "--methods names none; give some with commas between, such as eflops,fedavg"
        )
    _study(request, "compare", list(dict.fromkeys(names)), track)


@app.command()
def resume(
    run: RunFolder, *, track: Track = None, json: Json = False, quiet: Quiet = False
) -> None:
    """Go on with a run that was stopped, from its last checkpoint.

    [bold]Example[/bold]

    fedsift resume runs/golub-1
    """
    from fedsift.cli.output import notes, show_json
    from fedsift.locks import claim
    from fedsift.run_folder import RunError, read_facts
    from fedsift.settings import Settings
    from fedsift.sources import Source

    facts = read_facts(run)
    if facts["status"] == "done":
        if json:
            show_json(facts["results"])
        else:
            print(f"{run} is finished already; see it with: fedsift report {run}")
        return
    if facts["plan"].get("engine") == "flower":
        msg = f"{run} is a deployment; go on with its app: flwr run DIR here --stream"
        raise RunError(msg)
    if facts["source"] is None:
        msg = (
            f"{run} was started from Python with data in memory; go on there, with"
            f" fedsift.{facts['command']}(data, ..., out={str(run)!r}, resume=True)"
        )
        raise RunError(msg)
    source, settings = Source(**facts["source"]), Settings(**facts["settings"])
    methods = facts.get("methods", [settings.method])
    trackers = _trackers(track, run, settings)
    with notes(quiet=quiet):
        cases = source.cases(settings)
        with stopping_in_order(), claim(run, resume=True):
            results, text = _run(
                facts["command"], source, settings, methods, cases, run, trackers, quiet=quiet
            )
    _finish(results, text, json=json)


@app.command()
def predict(
    run: RunFolder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Rows to predict: a file like those of the fit, or a folder."
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="CSV file to write; else it is printed.", metavar="FILE"),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Column that names the row; that of the run if it is there.",
            metavar="COLUMN",
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            "--site",
            help="Site of the rows, whose own intercept counts (--site-intercepts); of a "
            "deployment the file that the site has kept.",
            metavar="NAME",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Predict new rows with the model of a run.

    The file needs the chosen features (all features of the run if it standardised arrays).

    [bold]Example[/bold]

    fedsift predict runs/golub-1 new.csv --out predictions.csv
    """
    from fedsift.exports import predictions, write_text
    from fedsift.runs import load_run

    text = predictions(load_run(run), file, id_column, site)
    if out is None:
        print(visible(text, lines=True) if sys.stdout.isatty() else text, end="")
    else:
        write_text(out, text, overwrite=overwrite)
        print(f"{text.count(chr(10)) - 1} predictions in {out}")


@app.command()
def report(
    run: RunFolder,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file to write the page to, too.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file.")] = False,
) -> None:
    """Show a finished run again, and write its page, pictures and text anew.

    [bold]Examples[/bold]

    fedsift report runs/golub-1

    fedsift report runs/golub-1 -o genes.html
    """
    from fedsift.cli.output import show
    from fedsift.exports import write_text
    from fedsift.reporting import compare_report, fit_report, page_of, write_report
    from fedsift.run_folder import read_facts
    from fedsift.runs import load_run

    written = write_report(run)
    if out is not None:
        write_text(out, page_of(run), overwrite=overwrite)
        written.append(out)
    facts = read_facts(run)
    show(compare_report(facts) if facts["command"] == "compare" else fit_report(load_run(run)))
    print(f"\nwritten: {', '.join(str(path) for path in written)}")


@app.command()
def export(
    run: RunFolder,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="coefficients (.csv), state_dict (.safetensors), onnx, or a file so named.",
            metavar="WHAT",
            show_default=False,
        ),
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write the model in a form for other programs.

    [bold]Examples[/bold]

    fedsift export runs/golub-1 --to coefficients

    fedsift export runs/golub-1 --to model.onnx
    """  # fmt: skip
    from fedsift.exports import export_run
    from fedsift.runs import load_run

    print(export_run(load_run(run), to, overwrite=overwrite))


def _study(
    request: Request,
    command: str,
    methods: list[str],
    track: list[str] | None,
    follows: Planned | None = None,
) -> None:
    """Check everything that can be checked, then do the work of fit or compare."""
    from fedsift.cli.output import notes
    from fedsift.cli.targets import known_results, missed, parse
    from fedsift.locks import claim
    from fedsift.methods import find_method
    from fedsift.private_fits import refuse
    from fedsift.studies import check_request

    if follows is None:
        source = request.source()
        for name in methods:
            find_method(name)
        settings = request.settings(source, methods[0])
    else:
        source, settings = follows.request(request)
        methods = [settings.method]
    if command == "compare":
        refuse(settings.privacy, "compared")
    with notes(quiet=request.quiet):
        cases = source.cases(settings)
        data = cases[-1].train
        analysis_plan = None if follows is None else follows.check(data)
        check_request(settings, methods, data)
        known = known_results(
            data.outcome,
            tested=any(c.test is not None for c in cases),
            private=settings.privacy is not None,
            synthetic=cases[-1].truth is not None,
            methods=methods if command == "compare" else (),
        )
        targets = parse(request.require or [], known)
        path = request.out or free_folder(source, command, make=False)
        _trackers(track, path, settings)  # refused before there is a folder
        if request.dry_run:
            _dry_run(request, command, settings, methods, cases, path)
            return
        if request.out is None:
            path = free_folder(source, command, make=True)
        trackers = _trackers(track, path, settings)
        with (
            stopping_in_order(),
            claim(path, overwrite=request.overwrite, inputs=source.files),
        ):
            results, text = _run(
                command,
                source,
                settings,
                methods,
                cases,
                path,
                trackers,
                analysis_plan,
                quiet=request.quiet,
            )
    figures = results["methods"] if command == "compare" else results
    lines = missed(targets, figures)
    for name, what in (("error_control", "no feature is chosen"), ("intervals", "no intervals")):
        reason = results.get(name, {}).get("reason")
        if reason is not None:
            lines.insert(0, f"{what}: {reason}")
    _finish(results, text, json=request.json)
    if lines:
        typer.echo("\n".join(lines), err=True)
        raise typer.Exit(NOT_MET)


def _trackers(track: list[str] | None, path: Path, settings: Settings) -> list[Tracker]:
    from fedsift.trackers import make_tracker

    asked = settings.model_dump(exclude_none=True, exclude={"groups"})
    return [make_tracker(text, path, asked) for text in track or ()]


def _run(
    command: str,
    source: Source,
    settings: Settings,
    methods: list[str],
    cases: tuple[Case, ...],
    path: Path,
    trackers: Sequence[Tracker],
    analysis_plan: Mapping[str, Any] | None = None,
    *,
    quiet: bool,
) -> tuple[dict[str, Any], Callable[[], None]]:
    """Do the work; return the results and what prints them for people."""
    from fedsift.callbacks import Callback, CallbackError
    from fedsift.cli.forecast import work
    from fedsift.cli.output import bar, plan, show
    from fedsift.reporting import compare_report, fit_report, write_report
    from fedsift.reporting.tables import next_steps
    from fedsift.workflows import run_compare, run_fit

    described = source.model_dump(mode="json")
    stages = plan(work(command, methods, cases, settings), settings)
    content: Callable[[], Any]
    try:
        with ExitStack() as stack:
            callbacks: list[Callback] = [stack.enter_context(tracker) for tracker in trackers]
            shown = stack.enter_context(bar(stages, quiet=quiet))
            callbacks += [] if shown is None else [shown]
            if command == "compare":
                facts = run_compare(
                    cases, settings, methods, source=described, path=path, callbacks=callbacks
                )
                results, content, last = (
                    facts["results"],
                    lambda: compare_report(facts),
                    f"The run is in {path}.",
                )
            else:
                run = run_fit(
                    cases,
                    settings,
                    source=described,
                    path=path,
                    callbacks=callbacks,
                    analysis_plan=analysis_plan,
                )
                results, content, last = run.results, lambda: fit_report(run), next_steps(run)
    except (KeyboardInterrupt, CallbackError) as error:
        if not (path / "run.json").exists():
            raise
        way = f"go on with: fedsift resume {path}"
        if settings.privacy is not None:
            way = f"what was told is in {path}; start afresh with --overwrite"
        if isinstance(error, CallbackError):
            raise CallbackError(f"{error}; {way}") from error
        raise StoppedError(f"stopped; {way}") from error
    write_report(path)

    def text() -> None:
        show(content())
        print(f"\n{last}")

    return results, text


def _finish(results: Mapping[str, Any], text: Callable[[], None], *, json: bool) -> None:
    from fedsift.cli.output import show_json

    if json:
        show_json(results)
    else:
        text()


def _dry_run(
    request: Request,
    command: str,
    settings: Settings,
    methods: list[str],
    cases: tuple[Case, ...],
    path: Path,
) -> None:
    from fedsift.cli.forecast import forecast, forecast_text, work
    from fedsift.cli.output import show_json

    facts = forecast(work(command, methods, cases, settings), settings, cases, path)
    if request.json:
        show_json(facts)
    else:
        print(visible(forecast_text(facts), lines=True))


def free_folder(source: Source, command: str, *, make: bool) -> Path:
    """Return runs/NAME-N with the next free number; making it keeps others from taking it."""
    name = source.name if command == "fit" else f"{source.name}-compare"
    numbered = (Path("runs", f"{name}-{number}") for number in count(1))
    return next(path for path in numbered if (_made(path) if make else not path.exists()))


def _made(path: Path) -> bool:
    """Make a folder, if nothing has its name."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    return True
