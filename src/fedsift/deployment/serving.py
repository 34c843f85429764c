"""The server's part of a deployment, as the written app calls it."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsift.callbacks import PLACE, label
from fedsift.checkpoints import CheckpointError
from fedsift.data.dictionary import columns_fingerprint
from fedsift.data.errors import DataError
from fedsift.deployment.plan import Plan
from fedsift.engines.flower import GridLink, SitesError
from fedsift.engines.flower.roster import connect
from fedsift.locks import claim
from fedsift.reporting import write_report
from fedsift.run_folder import DEPLOYMENT, RunError, read_facts, write_facts
from fedsift.sealed import write_atomic
from fedsift.studies import check_request
from fedsift.workflows import run_fit, split_cases

log = logging.getLogger("fedsift")


@dataclass
class Diary:
    """What a deployment says of itself while it runs, in a file of its run folder.

    ``run`` names it to the sites; whoever watches reads ``state``, ``label`` and ``round``.
    """

    path: Path
    run: str
    began: float = field(default_factory=time.time)
    rounds: int = 0
    seconds: float = 0.0
    written: float = 0.0

    @classmethod
    def open(cls, folder: Path) -> Diary:
        """Go on with a folder's diary, or begin one."""
        path = folder / DEPLOYMENT
        try:
            told = json.loads(path.read_text())
            return cls(path, str(told["run"]))
        except (OSError, ValueError, KeyError):
            return cls(path, f"run-{uuid.uuid4().hex[:12]}")

    def write(self, state: str, **facts: Any) -> None:
        """Say where the run stands."""
        told = {"run": self.run, "state": state, "pid": os.getpid(), **facts}
        write_atomic(self.path, json.dumps(told).encode())

    def note(self, record: dict[str, Any]) -> None:
        """Note a round; concurrent cases share it."""
        if record["case"] != "all rows":
            return
        where, number = label(record), record["round"]
        self.rounds += 1
        self.seconds += float(record["seconds"])
        named = (*PLACE, "round", "seconds", "loss", "density", "multiplier", "remarks")
        kept = {k: record[k] for k in named if k in record}
        log.info("%s, round %d: %s", where, number, kept)
        for site, why in record.get("remarks", {}).items():
            log.warning("%s, round %d: site %r: %s", where, number, site, why)
        self.write("running", label=where, round=number, record=kept)


def serve(grid: Any, config: Mapping[str, Any]) -> None:
    """Carry out a plan: the server's main.

    A run that stands unfinished in the plan's folder goes on; a finished one is left as it is, or
    replaced with ``overwrite``.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    plan = Plan.from_config(config)
    out = Path(plan.out)
    try:
        unfinished = (out / DEPLOYMENT).exists() and _status(out) != "done"
        with claim(out, resume=unfinished, overwrite=plan.overwrite):
            diary = Diary.open(out)
            _fit(grid, plan, out, diary)
    except (DataError, RunError, SitesError, CheckpointError, ValueError) as error:
        Diary.open(out).write("failed", error=str(error), kind=type(error).__name__)
        log.error("%s", error)  # noqa: TRY400  one line that says what to do
        raise
    except BaseException as error:
        Diary.open(out).write("failed", error=f"{type(error).__name__}: {error}", kind="unexpected")
        raise


def _status(out: Path) -> str | None:
    return str(read_facts(out)["status"]) if (out / "run.json").exists() else None


def _fit(grid: Any, plan: Plan, out: Path, diary: Diary) -> None:
    diary.write("waiting for sites")
    data = connect(
        grid, diary.run, plan.wanted, sites=plan.sites, policy=plan.policy, wait=plan.wait
    )
    if plan.columns is not None and plan.columns != columns_fingerprint(data):
        raise DataError(
            "the sites' columns, classes or levels are not those of the analysis plan, in its"
            " order; check the file of each: fedsift check-site"
        )
    check_request(plan.settings, [plan.settings.method], data)
    diary.write("running", label="counting rows", round=0)
    cases = split_cases(data, plan.settings)
    run = run_fit(
        cases,
        plan.settings,
        path=out,
        callbacks=[diary.note],
        beside=(),
        analysis_plan=plan.analysis_plan,
    )
    assert isinstance(data.link, GridLink)  # noqa: S101  what connect made
    run.facts["deployment"] = costs(data.link, diary)
    write_facts(out, run.facts)
    write_report(out)
    data.end()
    diary.write("done")


def costs(link: GridLink, diary: Diary) -> dict[str, Any]:
    """Return what the deployment sent besides the exchanges, and how fast it was.

    ``bytes_down``, ``bytes_up``: by kind of question. ``bytes_packed_*``: whole messages with the
    facts beside, as they were handed to Flower; since the last start of the server.
    """
    tally = link.nodes.tally
    return {
        "messages": tally.messages,
        "bytes_down_by_kind": dict(tally.down),
        "bytes_up_by_kind": dict(tally.up),
        "bytes_packed_down": tally.packed_down,
        "bytes_packed_up": tally.packed_up,
        "rounds": diary.rounds,
        "rounds_per_minute": 60.0 * diary.rounds / diary.seconds if diary.seconds else None,
    }
