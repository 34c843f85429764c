"""A batch's files: staged first, then put in the places of the run's own, then recorded."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsift._version import __version__
from fedsift.data import FederatedData, of_role
from fedsift.data.federated import FORGET, RETAIN
from fedsift.data.paths import site_name
from fedsift.profiles import profiles
from fedsift.run_folder import VERSION, checksum, clear_states, clear_unfinished, write_facts
from fedsift.runs import Run
from fedsift.sealed import seal, write_atomic
from fedsift.unlearning.audit import append_record
from fedsift.unlearning.figures import measure_run
from fedsift.unlearning.rows import RunRows
from fedsift.unlearning.scope import Scope, hashed_name
from fedsift.unlearning.work import Work
from fedsift.workflows import events

FILES = ("model.safetensors", "features.csv", "history.jsonl")


def stage(
    folder: Path,
    models: Mapping[str, Run],
    rows: RunRows,
    scope: Scope,
    done: Work,
    salt: str,
) -> dict[str, Any]:
    """Write a batch's files into a folder; return what is to be made of them.

    ``models``: what is measured, by name; ``before`` is the run as it was.
    """
    assert rows.data is not None  # noqa: S101  a batch has rows to keep
    data = scope.roles(rows.data)
    assert data.role is not None  # noqa: S101  roles were given
    run = models["before"]
    found = {when: measure_run(model, data, rows.held_out) for when, model in models.items()}
    facts = dict(done.run.facts)
    if done.status == "verified":
        files = _contents(run, done, scope, salt)
        for name, content in files.items():
            write_atomic(folder / name, content)
        facts = _facts(facts, data, scope, salt, [f.name for f in done.run.features])
        facts["files"] = {name: checksum(content) for name, content in files.items()}
        write_atomic(folder / "facts.json", json.dumps(facts).encode())
    result = done.result
    return {
        "status": done.status,
        "stop_reason": result.stop_reason,
        "guarantee": done.guarantee,
        "measures": {when: figures.values for when, figures in found.items()},
        "intervals": {when: figures.intervals for when, figures in found.items()},
        "rounds": result.rounds,
        "bytes_total": result.bytes_total,
        "local_steps": result.local_steps,
        "notes": [*done.notes, *_on_resolution(rows)],
        "model_before": run.facts["files"]["model.safetensors"],
        "model_after": facts["files"]["model.safetensors"],
        "data_after": facts["data"]["fingerprint"],
        "rows_forgotten": int((data.role == FORGET).sum()),
        "rows_held_out": 0 if rows.held_out is None else rows.held_out.n_samples,
    }


def _on_resolution(rows: RunRows) -> tuple[str, ...]:
    """Return what a reader should know of a rate at 1 % false positives of few rows."""
    count = 100 if rows.held_out is None else rows.held_out.n_samples
    line = (
        f"{count} rows held out resolve a false positive rate of {1 / count:.2g} at best, so that "
        "tpr_at_1_fpr is the rate without any false positive"
    )
    return (line,) if count < 100 else ()


def _contents(run: Run, done: Work, scope: Scope, salt: str) -> dict[str, bytes]:
    meta = {"version": VERSION, "standardiser": done.run.standardiser.to_dict()}
    table = io.StringIO()
    names = list(asdict(done.run.features[0])) if done.run.features else ["name"]
    writer = csv.DictWriter(table, names)
    writer.writeheader()
    writer.writerows(
        {k: "" if v is None or v != v else v for k, v in asdict(f).items()}  # noqa: PLR0124  NaN
        for f in done.run.features
    )
    lines = [_purged(r, scope, salt) for r in _records(run, done)]
    return {
        "model.safetensors": seal(done.run.params, meta),
        "features.csv": table.getvalue().encode(),
        "history.jsonl": ("\n".join(json.dumps(r) for r in lines) + "\n").encode(),
    }


def _records(run: Run, done: Work) -> list[dict[str, Any]]:
    """Return the history: the old one and the method's rounds, or a retraining's alone."""
    case = {"version": VERSION, "case": "all rows"}
    new = [{**case, **record} for record in done.history]
    if done.guarantee != "empirical" or run.path is None:
        return new
    old = [json.loads(s) for s in (run.path / "history.jsonl").read_text().splitlines()]
    return old + new


def _purged(record: dict[str, Any], scope: Scope, salt: str) -> dict[str, Any]:
    """Return a record without the names of the sites."""
    sites = record.get("sites")
    if not sites:
        return record
    named = {
        (f"forgotten:{hashed_name(salt, 'site', k)[:12]}" if k in scope.sites else k): v
        for k, v in sites.items()
    }
    return {**record, "sites": named}


def _facts(
    facts: dict[str, Any], data: FederatedData, scope: Scope, salt: str, features: Sequence[str]
) -> dict[str, Any]:
    """Return a run's facts about the rows that are left; counts of rows held out go."""
    assert data.role is not None  # noqa: S101  the data come with roles
    rest = of_role(data, RETAIN)
    gone = int((data.role == FORGET).sum())
    note = (
        f"{gone} rows were forgotten; scores on rows held out are those of the model before, "
        "see unlearning/audit.jsonl"
    )
    described = facts["data"] | {
        "fingerprint": rest.fingerprint(),
        "samples": rest.n_samples,
        "sites": dict(zip(rest.sites, rest.sizes, strict=True)),
        "class_counts": rest.class_sizes,
        "unknown": rest.unknown,
        "events": dict(zip(rest.sites, events(rest), strict=True))
        if rest.outcome == "survival"
        else {},
        "notes": [n for n in facts["data"]["notes"] if not _names(n, scope)] + [note],
    }
    source = facts["source"]
    if source is not None and source["files"] and source["site_column"] is None:
        left = [f for f in source["files"] if site_name(f) not in scope.sites]
        source = source | {"files": left}
    old = facts["results"].get("beside", {})
    results = facts["results"] | {"beside": _without_sites(old, scope, salt)}
    results.pop("intervals", None)  # they counted what was forgotten
    shown: dict[str, Any] = {"held_out": None}
    if "profiles" in facts:
        shown["profiles"] = profiles(rest, features, facts["settings"]["min_cell"])
    return facts | {"data": described, "source": source, "results": results} | shown


def _names(note: str, scope: Scope) -> bool:
    """Tell whether a note speaks of a site that is forgotten."""
    return any(re.search(rf"(?<!\w){re.escape(site)}(?!\w)", note) for site in scope.sites)


def _without_sites(value: Any, scope: Scope, salt: str) -> Any:
    """Return JSON values without the names of sites as keys."""
    if isinstance(value, dict):
        return {
            (f"forgotten:{hashed_name(salt, 'site', k)[:12]}" if k in scope.sites else k):
            _without_sites(v, scope, salt)
            for k, v in value.items()
        }  # fmt: skip
    return value


def apply(
    path: Path,
    folder: Path,
    audit: Path,
    batch: str,
    plan: dict[str, Any],
    staged: dict[str, Any],
    requests: Sequence[tuple[str, str]],
    key_file: Path | None,
) -> dict[str, Any]:
    """Put the staged files in place and record what was done; to repeat it changes nothing."""
    if staged["status"] == "verified":
        facts = json.loads((folder / "facts.json").read_bytes())
        for name in FILES:
            content = (folder / name).read_bytes()
            if checksum(content) != facts["files"][name]:
                raise ValueError(f"the staged file {folder / name} was changed; delete {folder}")
            write_atomic(path / name, content)
        write_facts(path, facts)
        clear_states(path)
        clear_unfinished(path)
    record = {
        "batch": batch,
        "at": staged["at"],
        "requests": [{"id": name, "scope_hash": hashed} for name, hashed in requests],
        "method": plan["method"],
        "options": plan["options"],
        "fallback_used": plan["fallback_used"],
        "fedsift": __version__,
        **{k: staged[k] for k in (
            "status", "stop_reason", "guarantee", "measures", "intervals", "rounds", "bytes_total",
            "local_steps", "seconds", "notes", "model_before", "model_after", "data_after",
            "rows_forgotten", "rows_held_out",
        )},
    }  # fmt: skip
    return append_record(audit, record, key_file)
