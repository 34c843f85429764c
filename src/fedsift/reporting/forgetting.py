"""What people read of a request to forget: a few lines, and a picture before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsift.reporting.charts import Chart, Series, save_chart
from fedsift.unlearning.methods import find_forgetter
from fedsift.unlearning.process import FOLDER
from fedsift.unlearning.report import UnlearningReport

PICTURE = "forget.png"
WORDS = {
    "target_met": "the target was met",
    "retrained": "it was trained anew",
    "max_rounds": "the rounds were used up",
    "stationary": "forgetting and keeping pull in opposite directions",
    "retain_budget_broken": "every step made the rest worse than its budget allows",
    "lost_in_the_cut": "the target was met, but not by the model cut to its features",
    "already_forgotten": "it was forgotten before",
    "site_offline": "the site cannot be reached",
    "nothing_to_forget": "there was nothing to forget",
}


NAMES = {"membership_auc": "membership AUC", "tpr_at_1_fpr": "TPR at 1 % FPR"}
PARTS = {"retain": "kept", "forget": "forgotten", "held_out": "unseen"}
AGAIN = {"rounds": "more --rounds", "target": "a larger --target"}
NO_MEMBERSHIP = (
    "membership was not tested: it takes rows of the site that the run never saw (--held-out FILE)"
)


def forget_text(run: Path, report: UnlearningReport) -> str:
    """Return the report in words."""
    why = WORDS.get(report.stop_reason, report.stop_reason)
    lines = [f"Request {report.request_id}: {report.status} ({why})."]
    if report.measures:
        lines += _table(report)
        lines.append(
            f"{report.method}: {report.rounds} rounds, {report.bytes_total:,} bytes, "
            f"{report.seconds:.1f} seconds"
        )
    if report.status == "target_not_met":
        own = find_forgetter(report.method).options
        more = [text for name, text in AGAIN.items() if name in own]
        lines.append(f"the model stays as before; give {' or '.join([*more, '--method retrain'])}")
    lines.append(f"guarantee: {report.guarantee}. {report.statement}")
    lines += [f"note: {note}" for note in report.notes]
    if report.audit_record is not None:
        lines.append(
            f"audit record {report.audit_record['number']} in {report.audit_record['file']}"
        )
        lines.append(f"Next: fedsift verify {run}")
    return "\n".join(lines)


def _table(report: UnlearningReport) -> list[str]:
    """Return a line a figure, a column a model, with 95 % intervals where there are some."""
    lines = [f"{'':<18}" + "".join(f"{when:>22}" for when in report.measures)]
    names = list(dict.fromkeys(k for values in report.measures.values() for k in values))
    for name in names:
        cells = [
            _cell(values.get(name), report.intervals[when].get(name))
            for when, values in report.measures.items()
        ]
        lines.append(f"{name_of(name):<18}" + "".join(f"{cell:>22}" for cell in cells))
    with_classes = any("forget_accuracy" in told for told in report.intervals.values())
    if "membership_auc" not in names and with_classes:
        lines.append(NO_MEMBERSHIP)
    return lines


def _cell(value: float | None, ends: tuple[float, float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" + ("" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]")


def name_of(figure: str) -> str:
    """Return the name of a figure in words."""
    return NAMES.get(figure, figure.replace("_", " "))


def record_text(record: Mapping[str, Any]) -> str:
    """Return an audit record in words: what was done, and what membership inference found."""
    head = (
        f"record {record['number']}: {record['method']}, {record['status']}, "
        f"{record['rows_forgotten']} rows, guarantee: {record['guarantee']}"
    )
    lines = [
        f"  {name_of(name)}: "
        + ", ".join(
            f"{when} {_cell(values[name], record['intervals'][when][name])}"
            for when in ("before", "after", "retrain")
            if name in (values := record["measures"].get(when, {}))
        )
        for name in NAMES
        if name in record["measures"]["before"]
    ]
    return "\n".join([head, *(lines or [f"  {NO_MEMBERSHIP}"])])


def before_after_chart(report: UnlearningReport) -> Chart:
    """Return bars of shares before, after, and of a retrained model, with 95 % intervals."""
    series, lines = {}, ["lines: 95 % intervals"]
    for when, values in report.measures.items():
        bars = _bars(values, report.intervals[when])
        label = "retrain" if (when, report.method) == ("after", "retrain") else when
        labels, heights, ends = zip(*bars, strict=True)
        series[label] = Series(labels, heights, [e[0] for e in ends], [e[1] for e in ends])
    measured = report.measures["before"]
    if "forget_accuracy" in report.intervals["before"]:
        lines[0] += "; probability: exp(-loss)"
    if "membership_auc" in measured:
        lines[0] += "; AUC ½: cannot be told from unseen rows"
    if "retrain" not in report.measures and report.method != "retrain":
        lines.append("no model was trained anew to compare with: --reference makes one")
    changed = "" if report.status == "verified" else ": target not met, the model stays as before"
    title = f"Before and after {report.method} (guarantee: {report.guarantee}){changed}"
    return Chart(title, "", "share", series, kind="bars", note="\n".join(lines))


def _bars(
    values: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]
) -> list[tuple[str, float, tuple[float, float]]]:
    """Return (label, height, ends of its interval) of what is a share."""
    bars = []
    for name, value in values.items():
        if name in NAMES:
            label = NAMES[name].replace(" ", "\n", 1)
            bars.append((label, value, intervals[name]))
            continue
        part = next(part for part in PARTS if name.startswith(f"{part}_"))
        kind = name.removeprefix(f"{part}_").replace("_", " ")
        if kind not in {"loss", "cross entropy"}:
            ends = intervals.get(name, (value, value))
            bars.append((f"{PARTS[part]}:\n{kind}", value, ends))
        elif f"{part}_accuracy" in intervals:
            chance = math.exp(-value)
            bars.append((f"{PARTS[part]}:\nprobability", chance, (chance, chance)))
    return bars


def write_forget_picture(run: Path, report: UnlearningReport) -> Path:
    """Write the picture of a request into the run's folder."""
    return save_chart(before_after_chart(report), run / FOLDER / PICTURE)
