"""``--dry-run``: what would be done, and, from three rounds of each method, how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsift.cli.output import plan
from fedsift.data import Standardiser
from fedsift.data.coding import has_classes
from fedsift.intervals import HALF
from fedsift.methods import METHODS
from fedsift.private_fits import promise
from fedsift.reporting.tables import duration, promise_text, size
from fedsift.settings import Settings
from fedsift.studies import Case, fit_case, planned_privacy

ROUNDS = 3


def forecast(
    work: Mapping[str, Sequence[str]], settings: Settings, cases: Sequence[Case], path: Path
) -> dict[str, Any]:
    """Return the facts of a run that is not done; the expected figures are rough."""
    data = cases[-1].train
    private, gates = planned_privacy(data, settings), settings.gates(data)
    seconds, sent, rounds = 0.0, 0.0, {}
    for method, names in work.items():
        timed = _timed(cases[0], settings.model_copy(update={"method": method}))
        for stage in plan({method: names[:1]}, settings):
            first, later, pace = timed[stage.part]
            seconds += len(names) * stage.rounds * pace
            if METHODS[method].rows == "federated":  # else nothing need travel
                sent += len(names) * (first + (stage.rounds - 1) * later)
            if stage.part == "search":
                rounds[method] = stage.rounds
    return {
        "samples": data.n_samples,
        "features": data.n_candidates,
        "features_kept": settings.kept(gates),
        **({} if settings.groups is None else {"gates": gates}),
        "sites": dict(zip(data.sites, data.sizes, strict=True)),
        "target": data.target,
        "outcome": data.outcome,
        "classes": list(data.classes),
        "cases": [case.name for case in cases],
        "rounds": rounds,
        "tuning_rounds": settings.tuning_rounds,
        "seeds": settings.lanes,
        "participation": settings.participation,
        "messages": settings.messages,
        "bytes_expected": round(sent),
        "seconds_expected": seconds,
        "run": str(path),
        **({} if private is None else {"privacy": promise(*private)}),
    }


def _timed(case: Case, settings: Settings) -> dict[str, tuple[float, float, float]]:
    """Run three rounds that are thrown away; return (first bytes, later bytes, seconds) a round."""
    records: dict[str, list[dict[str, Any]]] = {"covariates": [], "search": [], "refit": []}
    fit_case(
        case,
        settings.model_copy(update={"rounds": ROUNDS, "tuning_rounds": ROUNDS}),
        Standardiser.fit(case.train, settings.standardise),
        callback=lambda record: records[record["stage"]].append(record),
    )
    timed = {}
    for part, rows in ((part, rows) for part, rows in records.items() if rows):
        sent = [row["bytes_up"] + row["bytes_down"] for row in rows]
        pace = statistics.median(row["seconds"] for row in rows)
        timed[part] = (sent[0], (sent[-1] - sent[0]) / max(1, len(sent) - 1), pace)
    return timed


def forecast_text(facts: Mapping[str, Any]) -> str:
    """Return the facts as lines for people."""
    classes = facts["classes"] if has_classes(facts["outcome"]) else []
    what = f"{facts['target']} ({' or '.join(classes)})" if classes else facts["target"]
    sites = ", ".join(f"{name} {count}" for name, count in list(facts["sites"].items())[:8])
    more = ", ..." if len(facts["sites"]) > 8 else ""
    cases = facts["cases"]
    rest = f" to {cases[-2]}, then {cases[-1]}" if len(cases) > 2 else ""
    methods = ", ".join(f"{name} ({rounds} rounds)" for name, rounds in facts["rounds"].items())
    return "\n".join(
        (
            "Nothing is written. This would be done:",
            f"  data      {facts['samples']} samples x {facts['features']} features, target {what}",
            f"  sites     {len(facts['sites'])}: {sites}{more}",
            f"  keep      {facts['features_kept']} of {_choice(facts)}",
            f"  cases     {len(cases)}: {cases[0]}{rest}",
            f"  methods   {methods}",
            f"  each      {facts['seeds']} seeds, and a refit of {facts['tuning_rounds']} rounds",
            f"  messages  {facts['messages']}, about {size(facts['bytes_expected'])} in all",
            f"  time      about {duration(facts['seconds_expected'])} on this machine",
            *([f"  privacy   {promise_text(facts['privacy'])}"] if "privacy" in facts else []),
            f"  run       {facts['run']}",
        )
    )


def _choice(facts: Mapping[str, Any]) -> str:
    """Return what is chosen among."""
    if "gates" in facts:
        return f"{facts['gates']} gates of groups and features"
    return f"{facts['features']} features"


def work(
    command: str, methods: list[str], cases: tuple[Case, ...], settings: Settings
) -> dict[str, list[str]]:
    """Return the names of the cases of each method, in the order in which they are fitted."""
    from fedsift.workflows import BESIDE, validation_cases

    everything = {name: [case.name for case in cases] for name in methods}
    tested = [case.name for case in cases if case.test is not None]
    if command == "fit":
        held, splits = validation_cases(cases, settings)
        known = everything[methods[0]]
        known += [case.name for case in (*splits, *held) if case.name not in known]
        known += [HALF] if settings.intervals == "split" else []
        everything |= {name: tested for name in BESIDE if name not in methods and tested}
    return everything
