"""Tables, text and pictures of solved variational inequalities."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsift.comparing import Answers
from fedsift.reporting.charts import Chart, Series, save_chart
from fedsift.reporting.tables import size, to_text
from fedsift.run_folder import without_nan
from fedsift.sealed import write_atomic
from fedsift.vi.diagnosis import Diagnosis

MEASURES = ("accuracy", "worst_accuracy", "density", "multiplier")


def equilibria_table(
    problem: str, found: Mapping[str, Any], tolerance: float, seeds: int
) -> RenderableType:
    """Return what each method reached, and how it ended."""
    names = [name for name in MEASURES if any(name in f for f in found.values())]
    over = "" if seeds == 1 else f", means of {seeds} problems"
    table = Table(
        title=f"{problem}: exchanges to a residual of {tolerance:g} of the start{over}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="",
    )
    heads = ("method", "exchanges", "residual", "gap", "proven gap", "sent", "seconds")
    for head in (*heads, *(name.replace("_", " ") for name in names)):
        table.add_column(head, justify="left" if head == "method" else "right")
    for name, f in found.items():
        table.add_row(name, *_cells(f, seeds), *(_number(f.get(key)) for key in names))
    ends = [Text(f"{name}: {f['verdict']}") for name, f in found.items()]
    return Group(table, *ends, Text(_caption(found)))


def _cells(f: Mapping[str, Any], seeds: int) -> tuple[str, ...]:
    reached = f["exchanges_to_tolerance"]
    never = "never" if not f["solved"] else f"{f['solved']} of {seeds}"
    sent = (f["bytes_up"] or 0) + (f["bytes_down"] or 0)
    return (
        never if reached is None else f"{reached:.0f}",
        _number(f["residual"]),
        _number(f["gap"]),
        _number(f["gap_bound"]),
        size(sent),
        f"{f['seconds']:.1f}",
    )


def _caption(found: Mapping[str, Any]) -> str:
    solved = {k: f for k, f in found.items() if f["exchanges_to_tolerance"] is not None}
    if len(solved) < 2:
        return ""
    first, second = sorted(solved, key=lambda k: float(solved[k]["exchanges_to_tolerance"]))[:2]
    least = min(solved, key=lambda k: float(solved[k]["bytes_up"] + solved[k]["bytes_down"]))
    return f"Fewest exchanges: {first}, then {second}. Fewest bytes: {least}."


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 or value == 0 else f"{value:.1e}"


def diagnosis_text(problem: str, found: Diagnosis) -> RenderableType:
    """Return what was measured of a problem, and the advice."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    rows = {
        "Lipschitz constant, mean over sites": found.lipschitz,
        "smallest sampled ⟨F(x)-F(y), x-y⟩": found.smallest,
        "the same over ‖x-y‖²": found.modulus,
        "rotation (0 gradient, 1 bilinear)": found.rotation,
        "dissimilarity of the sites, δ": found.dissimilarity,
        "residual at the start": found.residual,
    }
    for name, value in rows.items():
        table.add_row(name, f"{value:.3g}")
    table.add_row("the set is bounded", "yes" if found.bounded else "no")
    title = Text(f"{problem}, measured at its start")
    return Group(title, table, Text(f"Use {found.method}: {found.advice}."))


def residual_charts(problem: str, answers: Answers, tolerance: float) -> dict[str, Chart]:
    """Return the residual against exchanges and against bytes, of the first problem."""
    charts = {}
    for stem, axis in (("exchanges", "exchanges"), ("bytes", "bytes sent, both ways")):
        series = {}
        for name, found in answers.items():
            records = [r for r in found[0].history if r.get("residual", 0) > 0]
            x = [r["exchanges"] if stem == "exchanges" else r["sent"] for r in _summed(records)]
            series[name] = Series(x, [min(max(r["residual"], 1e-16), 1e6) for r in records])
        charts[f"residual_{stem}"] = Chart(
            title=f"{problem}: natural residual, the better of last iterate and average",
            x=axis,
            y="residual over that of the start",
            series={k: v for k, v in series.items() if v.x},
            logarithmic="xy" if stem == "bytes" else "y",
            marks={"tolerance": tolerance},
        )
    return charts


def _summed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**r, "sent": r["bytes_up"] + r["bytes_down"]} for r in records]


def write_equilibria(
    folder: Path, problem: str, answers: Answers, found: Mapping[str, Any], tolerance: float
) -> list[Path]:
    """Write ``report.txt``, ``results.json``, ``history.jsonl`` and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = len(next(iter(answers.values())))
    text = to_text(equilibria_table(problem, found, tolerance, seeds), width=120)
    lines = [
        json.dumps(without_nan({"method": name, "problem": number, **record}))
        for name, group in answers.items()
        for number, answer in enumerate(group)
        for record in answer.history
    ]
    contents = {
        "report.txt": text,
        "results.json": json.dumps(without_nan({"methods": dict(found)}), indent=1),
        "history.jsonl": "\n".join(lines) + "\n",
    }
    written = []
    for name, content in contents.items():
        write_atomic(folder / name, content.encode())
        written.append(folder / name)
    charts = residual_charts(problem, answers, tolerance)
    return written + [
        save_chart(c, folder / f"{stem}.png") for stem, c in charts.items() if c.series
    ]
