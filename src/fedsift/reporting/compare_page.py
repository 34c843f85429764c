"""The page of a comparison: a line a method, on the same splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsift.reporting.commands import changed_settings
from fedsift.reporting.limits import SAME_SITES, SIMULATED
from fedsift.reporting.page import Figure, Figures, Page, Points, Section, Table, Words
from fedsift.reporting.rich_tables import blocks
from fedsift.reporting.svg import Axis, Mark, Row, axis_of, row_chart
from fedsift.reporting.tables import MEASURES, compare_report
from fedsift.visible import all_visible

BEST = (
    "Who takes the best of several methods takes a score that is too good: try it on samples that "
    "were not looked at."
)


def compare_page(facts: Mapping[str, Any]) -> Page:
    """Return the page of a comparison from what ``run.json`` holds."""
    facts = all_visible(facts)
    found = blocks(compare_report(facts), "Methods on the same splits")
    first, rest = found[0], found[1:]
    assert isinstance(first, Words)  # noqa: S101  a report begins with a sentence
    # Seconds differ from run to run, and a report of equal runs is equal.
    rest = [_without(block, "seconds") if isinstance(block, Table) else block for block in rest]
    chart = _scores(facts["results"]["methods"])
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    rows = [
        ("versions", versions),
        ("fingerprint of the data", facts["data"]["fingerprint"]),
        *changed_settings(facts).items(),
    ]
    return Page(
        title=f"Methods that predict {facts['data']['target']}",
        subtitle="fedsift report of a comparison",
        summary=first.text,
        sections=[
            Section("methods", "Methods", [*rest, *([Figures([chart])] if chart else [])]),
            Section("limits", "What was not checked", [Points([SIMULATED, SAME_SITES, BEST])]),
            Section("again", "How to reproduce it", [Table("Settings", ("what", "value"), rows)]),
        ],
    )


def _without(table: Table, head: str) -> Table:
    kept = [n for n, name in enumerate(table.head) if name != head]
    return Table(
        table.caption,
        [table.head[n] for n in kept],
        [[row[n] for n in kept] for row in table.rows],
        frozenset(place for place, n in enumerate(kept) if n in table.numbers),
    )


def _scores(methods: Mapping[str, Any]) -> Figure | None:
    """Draw the held-out scores with their intervals."""
    first = next(iter(methods.values()))
    measure = next((name for name in MEASURES if name in first), None)
    if measure is None:
        return None
    percent = measure == "test_accuracy"
    write = "{:.0%}".format if percent else "{:.2f}".format
    rows = []
    for name, figures in methods.items():
        score = figures[measure]
        known = score["low"] is not None and score["low"] < score["high"]
        low, high = (score["low"], min(score["high"], 1.0)) if known else (None, None)
        rows.append(Row(name, [Mark(score["mean"], low, high)], write(score["mean"])))
    values = [
        v for row in rows for m in row.marks for v in (m.value, m.low, m.high) if v is not None
    ]
    label = f"held-out {MEASURES[measure]}"
    title = "Scores on samples held out"
    axis = Axis(label, 0, 1, write) if percent else axis_of(label, values, write)
    svg = row_chart(title, f"{len(rows)} methods.", rows, axis)
    return Figure(title, svg, "Lines: 95 % intervals over the splits.")
