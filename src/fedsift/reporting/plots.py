"""Pictures of a run: how often features were chosen, and how the training went."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from fedsift.reporting.readable import readable
from fedsift.reporting.rich_tables import searches
from fedsift.runs import Run
from fedsift.sealed import write_atomic

# Okabe & Ito: told apart with every common form of colour blindness, and in grey.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#B0B0B0"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "savefig.dpi": 150,
}
BARS = 20
PANELS = ("loss", "density", "multiplier")  # of the training; a private one has no loss
LETTERS = 48


def write(run: Run) -> list[Path]:
    """Write the pictures of a run into its folder; return the files."""
    path = run.path
    if path is None:
        return []
    reported = run.history()
    run = readable(run)
    figures = {"inclusion.png": inclusion(run)}
    if any(name in record for record in reported for name in PANELS):
        figures["training.png"] = training(run, reported)
    return [save(figure, path / name) for name, figure in figures.items()]


def inclusion(run: Run) -> Figure:
    """Draw how often the features were chosen over the seeds, the chosen ones marked."""
    rows: list[dict[str, Any]] = run.facts["candidates"][:BARS]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 1.4 + 0.28 * max(len(rows), 3)), layout="constrained")
        axes = figure.subplots()
        places = range(len(rows))
        axes.barh(
            places,
            [row["inclusion_probability"] for row in rows],
            color=[BLUE if row["chosen"] else GREY for row in rows],
            height=0.7,
        )
        axes.set_yticks(places, [_label(row) for row in rows])
        for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_fontweight("bold" if row["chosen"] else "normal")
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(max(len(rows), 3) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel(f"share of {searches(run.settings)} that chose the feature")
        chosen, shown = len(run.features), sum(row["chosen"] for row in rows)
        more = f" ({shown} shown)" if shown < chosen else ""
        colours = " in blue, runners-up in grey" if shown < len(rows) else ""
        figure.suptitle(
            f"Features chosen for {run.facts['data']['target']}: {chosen} kept{more}{colours}",
            x=0.01,
            ha="left",
            fontsize=11,
        )
        axes.xaxis.grid(visible=True, color="#E5E5E5")
        axes.set_axisbelow(True)
    return figure


def training(run: Run, records: Sequence[dict[str, Any]]) -> Figure:
    """Draw loss, density and multiplier by round, for the reported fit; the mean over seeds."""
    search = [record for record in records if record["stage"] == "search"]
    refit = [record for record in records if record["stage"] == "refit"]
    panels = [name for name in PANELS if any(name in r for r in search)]
    last = search[-1]["round"] if search else 0
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 0.9 + 1.7 * len(panels)), layout="constrained")
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(grid, panels, strict=True):
            points = [(r["round"], r[name]) for r in search if r.get(name) is not None]
            axes.plot(
                *zip(*points, strict=True), color=BLUE, marker="o" if len(points) < 15 else "", ms=4
            )
            axes.set_ylabel(name)
            axes.grid(visible=True, color="#E5E5E5")
            axes.yaxis.set_major_locator(MaxNLocator(4))
            if name == "loss":
                _logarithmic(axes, [value for _, value in points])
        if "density" in panels:
            _draw_target(grid[panels.index("density")], run, [r["density"] for r in search])
        end = [(last + r["round"], r["loss"]) for r in refit if r.get("loss") is not None]
        if end:
            _draw_refit(grid, last, end, [r["loss"] for r in search if r.get("loss") is not None])
        grid[-1].set_xlabel("round")
        grid[-1].set_xlim(0, end[-1][0] if end else None)
        method, case = run.settings.method, records[-1]["case"]
        grid[0].set_title(f"Training of {method} on {case}, mean of {searches(run.settings)}")
    return figure


def _draw_target(axes: Any, run: Run, densities: Sequence[float]) -> None:
    """Mark the density that is asked for."""
    total = run.settings.columns * run.facts["data"]["features"]
    kept = run.settings.kept(total)
    _logarithmic(axes, [kept / total, *densities])
    axes.axhline(kept / total, color="black", lw=1, ls="--")
    style = {"textcoords": "offset points", "fontsize": 9, "va": "bottom"}
    axes.annotate("target", (0, kept / total), xytext=(2, 3), **style)


def _draw_refit(
    grid: Any, last: int, points: Sequence[tuple[int, float]], before: Sequence[float]
) -> None:
    """Draw the loss of the refit behind that of the search, on a shaded ground."""
    loss = grid[0]
    loss.plot(*zip(*points, strict=True), color=ORANGE, marker="o", ms=4)
    _logarithmic(loss, [*before, *(value for _, value in points)])
    for axes in grid:
        axes.axvspan(last, points[-1][0], color=ORANGE, alpha=0.08, lw=0)
    place = {"transform": loss.get_xaxis_transform(), "ha": "center", "va": "top"}
    loss.text((last + points[-1][0]) / 2, 0.95, "refit", color=ORANGE, **place)


def _logarithmic(axes: Any, values: Sequence[float]) -> None:
    """Use a logarithmic axis where the values differ much, with ticks that can be read."""
    if min(values) <= 0 or max(values) < 5 * min(values):
        return
    axes.set_yscale("log")
    narrow = max(values) < 100 * min(values)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _label(row: dict[str, Any]) -> str:
    text = f"{row['name']}  {row['description']}".strip()
    # A dollar sign would start a formula.
    return (text if len(text) <= LETTERS else f"{text[: LETTERS - 1].rstrip()}…").replace(
        "$", r"\$"
    )


def save(figure: Figure, path: Path) -> Path:
    """Write a picture as a PNG file, whole or not at all."""
    content = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(content, format="png")
    write_atomic(path, content.getvalue())
    return path
