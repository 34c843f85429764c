"""``fedsift forget``, ``verify`` and ``requests``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsift.cli.failures import NOT_MET, UsageError
from fedsift.visible import visible

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")]
Key = Annotated[
    Path | None,
    typer.Option("--key", help="Ed25519 key (PEM) of the record's signature.", metavar="FILE"),
]


def forget(
    run: RunFolder,
    *,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="Site to forget; may be repeated.", metavar="NAME"),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", help="Id of rows to forget; may be repeated.", metavar="ID"),
    ] = None,
    class_name: Annotated[
        list[str] | None,
        typer.Option("--class", help="Class to forget; may be repeated.", metavar="NAME"),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="fumegs, retrain, continue, orthogonal, mgda, pcgrad, ascent.",
            metavar="NAME",
        ),
    ] = "fumegs",
    fallback: Annotated[
        str,
        typer.Option("--fallback", help="When a site stays away: this method.", metavar="NAME"),
    ] = "retrain",
    deadline: Annotated[
        float, typer.Option("--deadline", help="Days that a site is waited for.", min=0.0)
    ] = 30.0,
    target: Annotated[
        float | None,
        typer.Option(
            "--target",
            help="Largest mean probability of the labels; else the loss on rows held out.",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            "--held-out",
            help="Rows of the site that the run never saw: membership is told from them.",
            metavar="FILE",
        ),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Retrain too, and show that model's figures beside."),
    ] = False,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Most rounds.", metavar="N", min=1)
    ] = None,
    tuning_redone: Annotated[
        bool,
        typer.Option(
            "--tuning-redone",
            help="Settings and features were chosen again without what is forgotten.",
        ),
    ] = False,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take the influence of a site, of rows or of a class out of a run's model.

    The model of the run is replaced, and the audit record says how. FU-MEGS is empirical: it ends
    when the measures cannot tell any more, which is no proof that nothing is left.

    [bold]Examples[/bold]

    fedsift forget runs/golub-1 --site site_3

    fedsift forget RUN --site berlin --held-out berlin-new.csv --reference

    fedsift forget RUN --row patient-17 --method retrain --json
    """
    from fedsift.cli.interrupts import stopping_in_order
    from fedsift.cli.output import notes, show_json
    from fedsift.reporting import write_report
    from fedsift.reporting.forgetting import write_forget_picture
    from fedsift.unlearning.process import Orders, forget_in_run
    from fedsift.unlearning.scope import Scope

    scope = Scope(sites=tuple(site or ()), rows=tuple(row or ()), classes=tuple(class_name or ()))
    if not scope:
        raise UsageError("nothing is named to forget; give --site, --row or --class")
    given = {"target": target, "rounds": rounds}
    options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    orders = Orders(
        method=method,
        fallback=fallback,
        deadline_days=deadline,
        tuning_redone=tuning_redone,
        key_file=key,
        held_out=held_out,
        reference=reference,
        options=options,
    )
    with notes(quiet=quiet), stopping_in_order():
        report = forget_in_run(run, scope, orders)
    if report.audit_record is not None:
        write_forget_picture(run, report)
    if report.status == "verified":
        write_report(run)  # the old one names the sites
    if report.stop_reason == "unknown":
        raise UsageError(f"{report.notes[0]}; nothing was changed, the request is noted as no_op")
    if json:
        show_json(report.to_json())
    else:
        from fedsift.reporting.forgetting import forget_text

        print(visible(forget_text(run, report), lines=True))
    if report.status in {"target_not_met", "queued"}:
        raise typer.Exit(NOT_MET)


def verify(run: RunFolder, *, key: Key = None, json: Json = False, quiet: Quiet = False) -> None:
    """Check a run's audit record, its chain, and that model and measures are what it says.

    [bold]Example[/bold]

    fedsift verify runs/golub-1
    """
    from fedsift.cli.output import notes, show_json
    from fedsift.reporting.forgetting import record_text
    from fedsift.unlearning.verify import verify_run

    with notes(quiet=quiet):
        found = verify_run(run, key_file=key)
    if json:
        show_json(found.to_json())
    else:
        words = {True: "holds", False: "FAILS", None: "not checked"}
        for name, holds in found.checks.items():
            print(f"{name:<12} {words[holds]}")
        for line in found.lines:
            print(visible(line))
        for record in found.records:
            print(visible(record_text(record), lines=True))
        print("This checks what was recorded. It is no proof that nothing is left in the model.")
    if not found.holds:
        raise typer.Exit(NOT_MET)


def requests(run: RunFolder, *, json: Json = False) -> None:
    """List the requests to forget of a run, and what is due.

    [bold]Example[/bold]

    fedsift requests runs/golub-1
    """
    from fedsift.cli.output import show_json
    from fedsift.run_folder import read_facts
    from fedsift.unlearning.process import FOLDER, open_ledger

    read_facts(run)
    found: list[dict[str, Any]] = []
    if (run / FOLDER).exists():
        with open_ledger(run) as ledger:
            now = ledger.clock()
            found = [
                {
                    "request_id": r.id,
                    "status": r.state,
                    "scope": None if r.scope is None else r.scope.text,
                    "method": r.method,
                    "stop_reason": r.stop_reason,
                    "received": _date(r.received),
                    "due_in_days": None
                    if r.deadline is None or r.state not in {"received", "validated", "queued"}
                    else round((r.deadline - now) / 86400, 2),
                }
                for r in ledger.requests()
            ]
    if json:
        show_json({"requests": found})
        return
    for r in found:
        due = "" if r["due_in_days"] is None else f", due in {r['due_in_days']:.1f} days"
        what = visible(r["scope"] or "names purged")
        print(f"{r['request_id']}  {r['status']:<15} {r['received']}  {r['method']}  {what}{due}")
    if not found:
        print(f"nobody asked {run} to forget anything")


def _date(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat(timespec="seconds")
