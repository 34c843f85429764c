"""Pictures of experiments: lines with bands, bars, and dots by name, from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's colours, without the yellow, which is lost on white; told apart by markers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")


class Series(NamedTuple):
    """Points of one method: ``x`` (numbers; names for bars and dots), ``y``, ends of intervals."""

    x: Sequence[Any]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Chart:
    """What to draw.

    Attributes:
        title: what it shows, in words.
        x, y: names of the axes, with units.
        series: name → points.
        kind: ``lines``, ``points`` (not joined), ``bars`` (side by side, x names the groups) or
            ``dots`` (a row a name, the values along the lower axis).
        logarithmic: the axes with logarithmic scales, of ``x`` and ``y``.
        marks: text → height of a dashed line across: a target, a bound.
        upright: place on the x axis of a dashed line up: the end of a phase.
        note: a line below, for what a reader would else misread.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Series]
    kind: Literal["lines", "points", "bars", "dots"] = "lines"
    logarithmic: str = ""
    marks: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    upright: float | None = None


def draw_chart(chart: Chart) -> Figure:
    """Return the picture."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from fedsift.reporting.plots import STYLE

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        {"bars": _bars, "dots": _dots}.get(chart.kind, _lines)(axes, chart)
        for text, height in chart.marks.items():
            axes.axhline(height, color="black", lw=1, ls="--")
            place: Any = {"xytext": (-2, 3), "textcoords": "offset points", "ha": "right"}
            axes.annotate(
                text, (1, height), xycoords=("axes fraction", "data"), fontsize=9, **place
            )
        if chart.upright is not None:
            axes.axvline(chart.upright, color="black", lw=1, ls="--")
        axes.set_title(chart.title)
        axes.set_xlabel(chart.x + (f"\n{chart.note}" if chart.note else ""))
        axes.set_ylabel(chart.y)
        across: Any = {"bars": "y", "dots": "x"}.get(chart.kind, "both")
        axes.grid(visible=True, axis=across, color="#E5E5E5")
        axes.set_axisbelow(True)
        if len(chart.series) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def save_chart(chart: Chart, path: Path) -> Path:
    """Write the picture as a PNG file."""
    from fedsift.reporting.plots import save

    return save(draw_chart(chart), path)


def _lines(axes: Any, chart: Chart) -> None:
    for number, (name, points) in enumerate(chart.series.items()):
        colour = COLOURS[number % len(COLOURS)]
        style = {
            "color": colour,
            "marker": MARKERS[number % len(MARKERS)] if len(points.x) <= 30 else "",
            "ms": 5,
            "ls": "" if chart.kind == "points" else DASHES[number // len(COLOURS) % len(DASHES)],
        }
        axes.plot(points.x, points.y, label=name, **style)
        if points.low is None or points.high is None:
            continue
        if chart.kind == "points":
            axes.vlines(points.x, points.low, points.high, color=colour, lw=1)
        else:
            axes.fill_between(points.x, points.low, points.high, color=colour, alpha=0.15, lw=0)
    if "x" in chart.logarithmic:
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis)
    if "y" in chart.logarithmic:
        axes.set_yscale("log")


def _plain_ticks(axis: Any) -> None:
    """Label 1, 2 and 5 of each decade in full, if there are few; matplotlib's texts overlap."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axis.get_view_interval()
    if high / low <= 300.0:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def _bars(axes: Any, chart: Chart) -> None:
    groups = _names(chart)
    width = 0.8 / len(chart.series)
    for number, (name, points) in enumerate(chart.series.items()):
        shift = (number - (len(chart.series) - 1) / 2) * width
        places = [groups.index(x) + shift for x in points.x]
        axes.bar(places, points.y, width, label=name, color=COLOURS[number % len(COLOURS)])
        if points.low is not None and points.high is not None:
            axes.vlines(places, points.low, points.high, color="#404040", lw=1)
    axes.set_xticks(range(len(groups)), groups)
    widest = max(len(line) for group in groups for line in str(group).split("\n"))
    crowded = widest * len(groups)
    axes.tick_params(axis="x", labelsize=9 if crowded > 70 else 10)
    if crowded > 90:
        axes.tick_params(axis="x", rotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    if "y" in chart.logarithmic:
        axes.set_yscale("log")


def _dots(axes: Any, chart: Chart) -> None:
    names = _names(chart)
    for number, (name, points) in enumerate(chart.series.items()):
        shift = 0.3 * (number - (len(chart.series) - 1) / 2)
        places = [names.index(x) + shift for x in points.x]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(points.y, places, label=name, color=colour, marker=marker, ms=6, ls="")
        if points.low is not None and points.high is not None:
            axes.hlines(places, points.low, points.high, color=colour, lw=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def _names(chart: Chart) -> list[Any]:
    return list(dict.fromkeys(x for points in chart.series.values() for x in points.x))
