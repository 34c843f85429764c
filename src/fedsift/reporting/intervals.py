"""Effects with their intervals for people: a table, what they are, and a forest plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from fedsift.data.errors import counted
from fedsift.reporting.page import Figure
from fedsift.reporting.page import Table as PageTable
from fedsift.reporting.rich_tables import searches, simple_table
from fedsift.reporting.svg import Mark, Row, axis_of, row_chart
from fedsift.runs import Run

MOST = 30  # effects that are shown
TITLES = {"split": "Effects, with intervals of a sample split", "ensemble": "Spread of the effects"}


def intervals_table(run: Run) -> Group:
    """Return the effects of the chosen features with their intervals, and what those are."""
    told = run.results["intervals"]
    if told["reason"] is not None:
        return Group(Text(f"No intervals: {told['reason']}."))
    split = told["how"] == "split"
    table = simple_table()
    table.add_column("feature")
    head = ("effect", "95 % interval", "all together, 95 %")
    head = head if split else ("mean effect", "least to largest", "runs")
    for name in head:
        table.add_column(name, justify="right", no_wrap=True)
    for effect in told["effects"][:MOST]:
        last = _range(effect, "_all") if split else f"{effect['runs']}"
        table.add_row(Text(_name(effect), style="bold"), *_figures(effect), last)
    return Group(table, Text(explained(run)))


def explained(run: Run) -> str:
    """Return what the intervals are of, in a few sentences."""
    told = run.results["intervals"]
    unit = f"Effects are {_unit(run)}, the other features equal."
    more = len(told["effects"]) - MOST
    left = f" {more} more are in run.json." if more > 0 else ""
    if told["how"] == "ensemble":
        over = searches(run.settings)
        return f"Spread over {over}: run seeds, not a confidence interval. {unit}{left}"
    names = dict.fromkeys(effect["name"] for effect in told["effects"])
    model = {feature.name for feature in run.features}
    shared = f"{sum(name in model for name in names)} of these {counted(len(names), 'feature')}"
    rows = "" if told["rows"] is None else f" ({counted(told['rows'], 'row')})"
    return (
        f"Intervals of a sample split: half of the rows chose the features, the other half{rows}"
        f" gave these, without a penalty; the model above, of all rows, has {shared}."
        f" {unit} Standard errors are {told['errors']}. The last column holds all"
        f" {counted(len(told['effects']), 'effect')} at once with 95 % (Bonferroni).{left}"
    )


def intervals_figure(run: Run) -> Figure:
    """Draw the effects with both intervals, or their spread, over one axis."""
    told = run.results["intervals"]
    split = told["how"] == "split"
    title, shown = TITLES[told["how"]], told["effects"][:MOST]
    ends = ("low_all", "high_all") if split else ("low", "high")
    values = [0.0, *(e[k] for e in shown for k in ("estimate", *ends) if e[k] is not None)]
    rows = [
        Row(_name(effect), _marks(effect, split=split), _figures(effect)[0]) for effect in shown
    ]
    clear = sum(e["low"] is not None and e["low"] * e["high"] > 0 for e in shown)
    svg = row_chart(
        title,
        f"{counted(len(shown), 'effect')}, of which {clear} are clear of 0.",
        rows,
        axis_of(_unit(run), values, "{:.3g}".format),
        target=("no effect", 0.0),
        legend=("95 % interval", "all together, 95 %") if split else (),
    )
    last = "all together, 95 %" if split else "runs"
    head = ("feature", "effect", "95 % interval" if split else "least to largest", last)
    cells = [
        (_name(e), *_figures(e), _range(e, "_all") if split else f"{e['runs']}") for e in shown
    ]
    return Figure(title, svg, explained(run), PageTable(title, head, cells, frozenset({1, 2, 3})))


def _marks(effect: Mapping[str, Any], *, split: bool) -> list[Mark]:
    middle = effect["estimate"]
    if middle is None:
        return []
    marks = [Mark(middle, effect["low"], effect["high"])]
    return [*marks, Mark(middle, effect["low_all"], effect["high_all"], 1)] if split else marks


def _name(effect: Mapping[str, Any]) -> str:
    """Return the feature, and with several classes which one against which."""
    if effect["output"] is None:
        return str(effect["name"])
    return f"{effect['name']}: {effect['output']}, not {effect['reference']}"


def _figures(effect: Mapping[str, Any]) -> tuple[str, str]:
    middle = effect["estimate"]
    return ("-" if middle is None else f"{middle:+.3g}"), _range(effect)


def _range(effect: Mapping[str, Any], which: str = "") -> str:
    low, high = effect[f"low{which}"], effect[f"high{which}"]
    return "-" if low is None else f"{low:+.3g} to {high:+.3g}"


def _unit(run: Run) -> str:
    """Return what an effect is of, and per what."""
    data = run.facts["data"]
    what = {
        "binary": f"log-odds of {data['classes'][-1]}" if data["classes"] else "",
        "multiclass": "log-odds",
        "survival": f"log hazard of {data['target']}",
        "poisson": f"log of the expected {data['target']}",
        "negative_binomial": f"log of the expected {data['target']}",
    }.get(data["outcome"], data["target"])
    return f"{what} per standard unit"
