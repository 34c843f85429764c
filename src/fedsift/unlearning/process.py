"""A request to forget, from its receipt to the audit record, on a run folder of `fedsift fit`.

Every step leaves the folder such that the same call goes on after a crash, with the same result:
the ledger says how far a batch is, the training's checkpoint where in it, and finished files are
staged and named in the ledger before the first of the run's own files is replaced.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData
from fedsift.locks import locked
from fedsift.private_fits import refuse
from fedsift.run_folder import RunError
from fedsift.runs import Run, load_run
from fedsift.signing import check_key
from fedsift.unlearning import commit
from fedsift.unlearning.audit import STATEMENTS, read_audit
from fedsift.unlearning.figures import measure_run, read_held_out
from fedsift.unlearning.ledger import Ledger, Request
from fedsift.unlearning.methods import check_options, find_forgetter
from fedsift.unlearning.report import UnlearningReport
from fedsift.unlearning.retraining import retrain
from fedsift.unlearning.rows import RunRows, read_rows
from fedsift.unlearning.scope import Scope
from fedsift.unlearning.work import Work, do_work

FOLDER = "unlearning"
LEDGER, AUDIT = "ledger.sqlite", "audit.jsonl"
DAY = 86_400.0
DEADLINE = 30.0  # days: what a site that cannot be reached has, by default


@dataclass(frozen=True)
class Orders:
    """How requests are to be carried out.

    Attributes:
        method: a name in `FORGETTERS`.
        fallback: what runs after the deadline when a site to forget cannot be reached.
        deadline_days: how long such a site is waited for.
        tuning_redone: the operator declares that settings and features on offer were chosen again
            without what is forgotten, so that a retraining may be called exact.
        key_file: signs the audit record.
        held_out: file of rows that the run has not seen, of the sites that forget: what is to be
            forgotten is told from them (membership inference), and their loss says when to stop.
        reference: train anew too, to measure that model beside.
        options: of the method.
        clock, fault: for tests; see `Ledger`.
    """

    method: str = "fumegs"
    fallback: str = "retrain"
    deadline_days: float = DEADLINE
    tuning_redone: bool = False
    key_file: Path | None = None
    held_out: Path | None = None
    reference: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    fault: Callable[[str], None] | None = None


def open_ledger(path: Path, orders: Orders | None = None) -> Ledger:
    """Return the ledger of a run folder.

    Raises:
        RunError: it is damaged; or it is gone or empty, and with it what must not come back.
    """
    orders, file = orders or Orders(), path / FOLDER / LEDGER
    if file.parent.exists() and not file.parent.is_dir():
        raise RunError(f"{file.parent} is in the place of the requests' folder; rename it")
    if (path / FOLDER / AUDIT).exists() and not (file.exists() and file.stat().st_size):
        raise RunError(
            f"{file} is gone, and with it the names that the audit record beside it speaks of; "
            "restore it from a copy"
        )
    return Ledger(file, clock=orders.clock, fault=orders.fault)


def forget_in_run(
    path: Path, scope: Scope, orders: Orders, data: FederatedData | None = None
) -> UnlearningReport:
    """Take a request down and carry it out, together with others that wait; or go on after a crash.

    Args:
        path: folder of a finished fit.
        scope: what to forget.
        orders: how.
        data: the rows of a run that was started from Python with data in memory.

    Raises:
        RunError: the folder cannot be used, or the data are not those of the run.
        ValueError: nothing is named, all sites are, or the method cannot be run.
    """
    check_options(orders.method, orders.options)
    if find_forgetter(orders.fallback).needs_forget_site:
        raise ValueError(
            f"{orders.fallback} needs the site that leaves, so it is nothing to fall back on; give "
            "retrain or continue"
        )
    if not scope:
        raise ValueError("nothing is named to forget; name a site, a row's id or a class")
    if orders.key_file is not None:
        check_key(orders.key_file)
    check_fit(path)
    read_audit(path / FOLDER / AUDIT)
    with locked(path), open_ledger(path, orders) as ledger:
        resumed = finish_open(path, ledger, orders, data)
        run = load_run(path)
        note_participation(ledger, run)
        model = run.facts["files"]["model.safetensors"]
        due = ledger.clock() + DAY * orders.deadline_days
        request = ledger.receive(
            scope, model, orders.method, fallback=orders.fallback, deadline=due
        )
        if resumed is not None and request.id in resumed[0]:
            return replace(resumed[1], request_id=request.id)
        if request.state == "verified":
            return no_op(request, "already_forgotten")
        rows = read_rows(run, scope, ledger, data)
        if orders.held_out is not None and rows.data is not None:
            read_held_out(run, orders.held_out, rows.data)
        reason = rows.nothing_to_do
        if reason is not None:
            ledger.move(request.id, "no_op", stop_reason=reason)
            return no_op(ledger.request(request.id), reason, rows.notes)
        admit(ledger, request, run, rows, scope)
        return carry_out(path, ledger, orders, data, request.id)


def check_fit(path: Path) -> None:
    """Check that there is a finished fit, before anything is written next to it."""
    from fedsift.run_folder import read_finished

    facts = read_finished(path)
    if facts["command"] != "fit":
        raise RunError(
            f"{path} is a comparison of methods and holds no model; name the folder of a fit"
        )
    refuse(facts.get("privacy"), "forgotten from")
    if facts["settings"].get("harmonise"):
        msg = "the rows of a harmonised fit depend on others of their site; fit anew without them"
        raise ValueError(msg)
    if facts["settings"].get("site_intercepts"):
        msg = "forgetting does not reach the intercepts that sites keep; fit anew without the rows"
        raise ValueError(msg)


def admit(ledger: Ledger, request: Request, run: Run, rows: RunRows, scope: Scope) -> None:
    """Validate a request and put it into the queue, with what can be measured now."""
    if request.state == "received":
        if rows.data is not None and rows.would_leave_nothing(scope):
            ledger.move(request.id, "failed", error="nothing would be left")
            raise ValueError(
                "every row is to be forgotten, so nothing would be left to keep; start a new model "
                "with fedsift fit"
            )
        ledger.move(request.id, "validated")
    if ledger.request(request.id).state == "validated":
        measured = {} if rows.data is None else {"before": measure_run(run, rows.data).values}
        ledger.move(request.id, "queued", measures=measured)


def carry_out(
    path: Path, ledger: Ledger, orders: Orders, data: FederatedData | None, name: str
) -> UnlearningReport:
    """Merge what waits for the same method into one run, and do it."""
    run = load_run(path)
    request = ledger.request(name)
    assert request.scope is not None  # noqa: S101  names are purged at the end only
    rows = read_rows(run, request.scope, ledger, data)
    method, waiting = effective_method(ledger, request, rows)
    if waiting is not None:
        return UnlearningReport(
            name, "queued", "site_offline", request.method, "none", STATEMENTS["none"],
            notes=(waiting,),
        )  # fmt: skip
    batch = [
        r
        for r in ledger.requests(("queued",))
        if r.scope is not None
        and r.method == request.method
        and effective_method(ledger, r, read_rows(run, r.scope, ledger, data)) == (method, None)
    ]
    as_asked = method == request.method
    plan = {
        "method": method,
        "options": orders.options if as_asked else {},
        "scope": merged(batch).model_dump(mode="json"),
        "tuning_redone": orders.tuning_redone,
        "fallback_used": not as_asked,
        "held_out": None if orders.held_out is None else str(orders.held_out.resolve()),
        "reference": orders.reference and method != "retrain",
        "model": run.facts["files"]["model.safetensors"],
    }
    number = ledger.start_batch(batch, plan)
    work(path, ledger, data, number, plan)
    return settled(path, ledger, orders, number, name)


def merged(requests: Sequence[Request]) -> Scope:
    """Return what all requests name together."""
    whole = Scope()
    for request in requests:
        whole = whole | (request.scope or Scope())
    return whole


def effective_method(ledger: Ledger, request: Request, rows: RunRows) -> tuple[str, str | None]:
    """Return the method to run, and why it is waited instead, if it is."""
    method = request.method
    if not rows.offline or not find_forgetter(method).needs_forget_site:
        return method, None
    left = (request.deadline or 0.0) - ledger.clock()
    fallback = request.fallback or "retrain"
    if left > 0:
        names = ", ".join(rows.offline)
        return method, (
            f"{method} needs the gradients of {names}, whose file is not there; it is waited for "
            f"{left / DAY:.1f} days more, then {fallback} runs. Run {fallback} now with --method "
            f"{fallback}"
        )
    return fallback, None


def work(
    path: Path,
    ledger: Ledger,
    data: FederatedData | None,
    batch: str,
    plan: dict[str, Any],
) -> None:
    """Run the method and stage its files, unless that is done."""
    run = load_run(path)
    scope = Scope(**plan["scope"])
    rows = read_rows(run, scope, ledger, data)
    stem = path / FOLDER / f"work-{batch}"
    checkpoint = StageCheckpoint(stem, every=0.0, fingerprint=batch)
    try:
        if plan["held_out"] is not None and rows.data is not None:
            unseen = read_held_out(run, Path(plan["held_out"]), rows.data)
            rows = replace(rows, held_out=unseen)
        done: Work = do_work(run, rows, scope, plan, checkpoint)
        models = {"before": run, "after": done.run}
        if plan["reference"] and rows.data is not None:
            beside = replace(checkpoint, path=stem.with_name(f"reference-{batch}"))
            models["retrain"] = retrain(run, scope, rows.data, beside)[0]
    except (ValueError, RunError) as error:
        ledger.abandon_batch(batch, str(error))
        raise
    folder = path / FOLDER / f"staged-{batch}"
    staged = commit.stage(folder, models, rows, scope, done, ledger.salt)
    ledger.stage(batch, staged | {"seconds": done.result.seconds, "at": ledger.clock()})


def finish_open(
    path: Path, ledger: Ledger, orders: Orders, data: FederatedData | None
) -> tuple[list[str], UnlearningReport] | None:
    """Go on with a batch that a crash left open; return its requests and the report."""
    found = ledger.open_batch()
    if found is None:
        tidy(path, ledger)
        return None
    batch, plan, staged = found
    if staged is None:
        work(path, ledger, data, batch, plan)
    members = [r.id for r in ledger.requests(("running",)) if r.batch == batch]
    return members, settled(path, ledger, orders, batch, None)


def settled(
    path: Path, ledger: Ledger, orders: Orders, batch: str, name: str | None
) -> UnlearningReport:
    """Put staged files in their places, record what was done, purge, and close the batch."""
    found = ledger.open_batch()
    assert found is not None  # noqa: S101  it was started above
    _, plan, staged = found
    assert staged is not None  # noqa: S101  and staged
    members = [r for r in ledger.requests(("running",)) if r.batch == batch]
    record = commit.apply(
        path, path / FOLDER / f"staged-{batch}", path / FOLDER / AUDIT, batch, plan, staged,
        [(r.id, r.scope_hash) for r in members], orders.key_file,
    )  # fmt: skip
    ledger.finish_batch(batch, staged["status"], staged["stop_reason"], staged["measures"])
    tidy(path, ledger)
    return UnlearningReport(
        request_id=name or (members[0].id if members else batch),
        status=staged["status"],
        stop_reason=staged["stop_reason"],
        method=plan["method"],
        guarantee=staged["guarantee"],
        statement=STATEMENTS[staged["guarantee"]],
        measures=staged["measures"],
        intervals=staged["intervals"],
        rounds=staged["rounds"],
        bytes_total=staged["bytes_total"],
        seconds=staged["seconds"],
        audit_record={
            "number": record["number"],
            "hash": record["hash"],
            "file": str(path / FOLDER / AUDIT),
        },
        notes=tuple(staged["notes"]),
        params=load_run(path).params,
    )


def tidy(path: Path, ledger: Ledger) -> None:
    """Remove the files of batches that are done, and what is left of names in the ledger's file."""
    folder = path / FOLDER
    names = ("work-*", "reference-*", "staged-*", "*.tmp")
    left = {file for name in names for file in folder.glob(name)}
    if left:
        ledger.vacuum()
    for file in left:
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def no_op(request: Request, reason: str, notes: Sequence[str] = ()) -> UnlearningReport:
    """Return the report of a request that changes nothing."""
    return UnlearningReport(
        request.id, "no_op", reason, request.method, "none", STATEMENTS["none"], notes=tuple(notes)
    )


def note_participation(ledger: Ledger, run: Run) -> None:
    """Write down who took part in the search: first round and number of rounds, by seed."""
    if ledger.fact("participation") is None:
        from fedsift.unlearning.rows import participation

        ledger.note_participation(participation(run))
