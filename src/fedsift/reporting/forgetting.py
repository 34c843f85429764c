"""What people read of a request to forget: a few lines, and a picture before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedsift.reporting.charts import Chart, Series, save_chart
from fedsift.unlearning.process import FOLDER
from fedsift.unlearning.report import UnlearningReport

PICTURE = "forget.png"
WORDS = {
    "target_met": "the target was met",
    "retrained": "it was trained anew",
    "max_rounds": "the rounds were used up",
    "stationary": "forgetting and keeping pull in opposite directions",
    "retain_budget_broken": "every step made the rest worse than its budget allows",
    "already_forgotten": "it was forgotten before",
    "site_offline": "the site cannot be reached",
    "nothing_to_forget": "there was nothing to forget",
}


def forget_text(run: Path, report: UnlearningReport) -> str:
    """Return the report in words."""
    why = WORDS.get(report.stop_reason, report.stop_reason)
    lines = [f"Request {report.request_id}: {report.status} ({why})."]
    if report.measures:
        before, after = report.measures["before"], report.measures["after"]
        lines.append(f"{'':<18}{'before':>10}{'after':>10}")
        lines += [
            f"{k.replace('_', ' '):<18}{v:>10.3f}{after[k]:>10.3f}" for k, v in before.items()
        ]
        lines.append(
            f"{report.method}: {report.rounds} rounds, {report.bytes_total:,} bytes, "
            f"{report.seconds:.1f} seconds"
        )
    lines.append(f"guarantee: {report.guarantee}. {report.statement}")
    lines += [f"note: {note}" for note in report.notes]
    if report.audit_record is not None:
        lines.append(
            f"audit record {report.audit_record['number']} in {report.audit_record['file']}"
        )
        lines.append(f"Next: fedsift verify {run}")
    return "\n".join(lines)


def before_after_chart(
    measures: Mapping[str, Mapping[str, float]], title: str, note: str = ""
) -> Chart:
    """Return bars of accuracies before and after, and of a retrained model where it is known."""
    names = list(dict.fromkeys(k for figures in measures.values() for k in figures))
    shown = [k for k in names if not k.endswith("loss")]
    series = {
        when: Series([k.replace("_", " ") for k in shown], [figures.get(k, 0.0) for k in shown])
        for when, figures in measures.items()
    }
    return Chart(title, "", "share", series, kind="bars", note=note)


def write_forget_picture(run: Path, report: UnlearningReport) -> Path:
    """Write the picture of a request into the run's folder."""
    title = f"Before and after {report.method} (guarantee: {report.guarantee})"
    chart = before_after_chart(report.measures, title)
    return save_chart(chart, run / FOLDER / PICTURE)
