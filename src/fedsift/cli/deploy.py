"""``fedsift deploy``: a fit on real machines, as a Flower app, or all of it on this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.failures import UsageError
from fedsift.cli.interrupts import stopping_in_order
from fedsift.cli.options import METHOD, USUAL, PlanFile, Request, Signed
from fedsift.cli.plan import Planned, planned

if TYPE_CHECKING:
    from fedsift.deployment.plan import Plan
    from fedsift.runs import Run
    from fedsift.settings import Settings
    from fedsift.sources import Source

PLACE, WAIT = "Where", "Sites that do not answer"


def _option(*names: str, text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(
        *names, help=text, metavar=metavar, rich_help_panel=panel, show_default=False
    )


@dataclass(frozen=True)
class _Asked:
    """What belongs to a deployment, and not to its study; None for what was not said."""

    method: str
    follows: Planned | None
    sites: list[str]
    min_rows: int | None
    below_min_rows: str | None
    quorum: float | None
    deadline: float | None
    patience: float | None
    wait: float | None


def deploy(
    request: Request,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="eflops, flops, fedavg, fedht, fediterht.",
            metavar="NAME",
            rich_help_panel=METHOD,
            show_default=USUAL,
        ),
    ] = None,
    plan: PlanFile = None,
    signed: Signed = None,
    loopback: Annotated[
        int | None,
        _option(
            "--loopback", text="Run it on this machine with N sites.", panel=PLACE, metavar="N"
        ),
    ] = None,
    site: Annotated[
        list[str] | None,
        _option("--site", text="Name of a site; repeat it for each.", panel=PLACE, metavar="NAME"),
    ] = None,
    keys: Annotated[
        str | None,
        _option(
            "--keys",
            text="Write certificates and keys into the app DIR, for a server of this name.",
            panel=PLACE,
            metavar="SERVER",
        ),
    ] = None,
    sites_per_node: Annotated[
        int,
        _option("--sites-per-node", text="Sites of one SuperNode: 1.", panel=PLACE, metavar="N"),
    ] = 1,
    tls: Annotated[
        bool, _option("--tls", text="With --loopback: certificates, and a key a node.", panel=PLACE)
    ] = False,
    check: Annotated[
        bool, _option("--check", text="With --loopback: compare with the simulator.", panel=PLACE)
    ] = False,
    min_rows: Annotated[
        int | None,
        _option("--min-rows", text="Rows below which a site is small: 5.", panel=WAIT, metavar="N"),
    ] = None,
    below_min_rows: Annotated[
        str | None,
        _option(
            "--below-min-rows",
            text="What a small site does: decline, or uniform (it weighs as N rows).",
            panel=WAIT,
            metavar="WHAT",
        ),
    ] = None,
    quorum: Annotated[
        float | None,
        _option(
            "--quorum",
            text="Sites that must answer a round, a number or a fraction; all.",
            panel=WAIT,
            metavar="K",
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        _option(
            "--deadline",
            text="Seconds after which a round goes on with the quorum: 60.",
            panel=WAIT,
            metavar="S",
        ),
    ] = None,
    patience: Annotated[
        float | None,
        _option(
            "--patience",
            text="Seconds after which a run without a quorum ends: 600.",
            panel=WAIT,
            metavar="S",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        _option(
            "--wait", text="Seconds to wait for sites at the start: 600.", panel=WAIT, metavar="S"
        ),
    ] = None,
) -> None:
    """Run a fit on real machines with Flower: write the app, or try all of it here.

    [bold]Examples[/bold]

    fedsift deploy app --target diagnosis --features 5 --site berlin --site paris --site rome

    fedsift deploy app --plan plan.toml --site berlin --site paris --site rome --signed signed

    fedsift deploy app --keys server.example.org

    fedsift deploy --loopback 3 --demo golub

    fedsift deploy --loopback 3 berlin.csv paris.csv rome.csv --target diagnosis --features 5
    """
    asked = _Asked(
        method or USUAL,
        planned(plan, method, signed),
        site or [],
        min_rows,
        below_min_rows,
        quorum,
        deadline,
        patience,
        wait,
    )
    if loopback is not None:
        _loopback(request, asked, loopback, sites_per_node, tls=tls, check=check)
        return
    if len(request.files or []) != 1:
        raise UsageError("name the folder of the app, or run it on this machine with --loopback N")
    folder = Path((request.files or [""])[0])
    if keys is not None:
        _keys(folder, keys)
        return
    if not asked.sites:
        raise UsageError("--site is missing: name each site that takes part, --site A --site B")
    named = replace(request, files=[f"{name}.csv" for name in asked.sites], out=None)
    deployment = _plan(named, asked, asked.sites, str(request.out or "runs/deployment"))
    _write(folder, deployment, overwrite=request.overwrite)


def _study(request: Request, asked: _Asked) -> tuple[Source, Settings]:
    """Return the files and settings: those of the analysis plan, or what was said."""
    from fedsift.deployment.plan import DEFAULTS

    if asked.follows is not None:
        return asked.follows.request(request)
    source = request.source()
    unsaid = {k: v for k, v in DEFAULTS.items() if getattr(request, k, None) is None}
    return source, request.settings(source, asked.method).model_copy(update=unsaid)


def _analysis_plan(asked: _Asked, sites: Sequence[str]) -> dict[str, Any]:
    """Return what a deployment has of its analysis plan, nothing without one."""
    from fedsift.data.dictionary import columns_fingerprint

    if asked.follows is None:
        return {}
    data = asked.follows.plan.data
    if asked.min_rows not in {None, data.min_rows}:
        raise UsageError(
            f"--min-rows {asked.min_rows} contradicts {asked.follows.path}, which has"
            f" {data.min_rows}; leave the option out, or change the plan"
        )
    return {
        "analysis_plan": asked.follows.facts(dict.fromkeys(sites)),
        "columns": columns_fingerprint(data),
        "min_rows": data.min_rows,
    }


def _plan(request: Request, asked: _Asked, sites: Sequence[str], out: str) -> Plan:
    """Return the plan of a request."""
    from fedsift.deployment.plan import Plan

    source, settings = _study(request, asked)
    for name in ("site_column", "features_in_common"):
        if getattr(source, name):
            raise UsageError(
                "a site's file is read at the site: one file a site, all columns alike"
            )
    names = ("min_rows", "below_min_rows", "quorum", "deadline", "patience", "wait")
    given = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    columns = (
        "id_column", "weight_column", "time_column", "outcome", "drop", "impute", "covariates",
        "separator",
    )  # fmt: skip
    given |= _analysis_plan(asked, sites)
    return Plan(
        settings=settings,
        sites=tuple(sites),
        target=source.target or "",
        out=out,
        overwrite=request.overwrite,
        **given,
        **{name: getattr(source, name) for name in columns},
    )


def _write(folder: Path, plan: Plan, *, overwrite: bool) -> None:
    from fedsift.deployment.writing import write_app

    for path in write_app(folder, plan, overwrite=overwrite):
        print(path)
    print(f"\nThe commands for the server and the sites are in {folder / 'README.md'}.")


def _keys(folder: Path, host: str) -> None:
    from fedsift.deployment.keys import write_keys
    from fedsift.deployment.writing import read_plan

    keys = write_keys(folder / "keys", host, read_plan(folder).sites)
    print(f"Certificates and keys are in {keys.folder}; who gets which: {folder / 'README.md'}.")


def _loopback(
    request: Request,
    asked: _Asked,
    count: int,
    per_node: int,
    *,
    tls: bool,
    check: bool,
) -> None:
    from fedsift.cli.commands import free_folder
    from fedsift.cli.output import notes, show, show_json
    from fedsift.data.paths import site_name
    from fedsift.deployment.loopback import Loopback
    from fedsift.reporting import fit_report
    from fedsift.reporting.tables import next_steps
    from fedsift.run_folder import check_free

    if count < 1 or per_node < 1:
        raise UsageError(f"--loopback {count} --sites-per-node {per_node}; give 1 or more")
    with _folder() as work, notes(quiet=request.quiet), stopping_in_order():
        path = request.out or free_folder(_study(request, asked)[0], "fit", make=False)
        check_free(path, overwrite=request.overwrite)
        request, files = _files(request, count, work)
        plan = _plan(request, asked, [site_name(f) for f in files], str(path.absolute()))
        if check and plan.settings.privacy is not None:
            raise UsageError("--check compares two runs, and private ones differ; leave it out")
        simulated = _simulated(plan, files) if check else None
        loop = Loopback(plan, files, work, per_node, tls=tls)
        run = _followed(loop, request)
    results = run.results | {
        "engine": "flower",
        "rounds_per_minute": run.facts["deployment"]["rounds_per_minute"],
    }
    if simulated is not None:
        results["max_abs_difference_to_simulator"] = max(
            float((run.params[name] - value).abs().max())
            for name, value in simulated.params.items()
        )
    if request.json:
        show_json(results)
        return
    show(fit_report(run))
    pace = results["rounds_per_minute"]
    print(f"\n{count} sites on this machine by Flower, {pace or 0:.1f} rounds a minute.")
    if simulated is not None:
        gap = results["max_abs_difference_to_simulator"]
        print(f"Largest difference of a weight to the simulator's: {gap:.1g}.")
    print(next_steps(run))


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder for the app and Flower's logs, which stays if a process of Flower failed."""
    from fedsift.deployment.processes import ProcessError

    work = Path(tempfile.mkdtemp(prefix="fedsift-"))
    try:
        yield work
    except ProcessError as error:
        msg = f"{error} (the logs are in {work})"
        raise ProcessError(msg) from error
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


def _files(request: Request, count: int, work: Path) -> tuple[Request, list[Path]]:
    """Return the request for site files, and the files, those of a demo written first."""
    from fedsift.data.paths import site_files
    from fedsift.deployment.demo import write_sites
    from fedsift.settings import Settings

    if request.demo is None:
        files = site_files(request.files or [])
        if len(files) != count:
            raise UsageError(f"--loopback {count}, and {len(files)} site files; give one a site")
        return request, files
    if request.demo == "synthetic":
        raise UsageError("--loopback takes --demo golub or golub72, or your own site files")
    source = replace(request, sites=count).source()
    settings = request.settings(source, "eflops")
    data = source.cases(Settings(**settings.model_dump() | {"splits": 0}))[-1].train
    files = write_sites(data, work / "sites")
    chosen: dict[str, Any] = {
        k: v for k, v in source.defaults.items() if getattr(request, k, None) is None
    }
    own: dict[str, Any] = {
        "demo": None,
        "sites": None,
        "partition": None,
        "alpha": None,
        "shift": False,
    }
    columns: dict[str, Any] = {
        "target": data.target,
        "id_column": "id",
        "outcome": data.outcome,
        "data": None,
    }
    named = [str(file) for file in files]
    return replace(request, files=named, **own, **columns, **chosen), files


def _followed(loop: Any, request: Request) -> Run:
    """Run it and show how far it is."""
    from fedsift.cli.output import bar, plan
    from fedsift.deployment.loopback import run_loopback

    settings = loop.plan.settings
    stages = plan({settings.method: ["all rows"]}, settings)
    with bar(stages, quiet=request.quiet) as shown:

        def tell(told: dict[str, Any]) -> None:
            if shown is not None and "record" in told:
                shown(told["record"])

        finished: Run = run_loopback(loop, tell)
    return finished


def _simulated(plan: Plan, files: Sequence[Path]) -> Run:
    """Return what the simulator makes of the same files."""
    from fedsift.data import read_sites
    from fedsift.workflows import run_fit, split_cases

    data = read_sites(
        list(files),
        plan.target,
        id_column=plan.id_column,
        weight_column=plan.weight_column,
        time_column=plan.time_column,
        impute=plan.impute,
        outcome=plan.outcome,
        drop=plan.drop,
        covariates=plan.covariates,
        separator=plan.separator,
    )
    settings = plan.settings.model_copy(update={"splits": 0})
    return run_fit(split_cases(data, settings), settings, beside=())
