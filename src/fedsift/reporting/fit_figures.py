"""The charts of a fit, each with the numbers it shows as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsift.findings import Feature
from fedsift.reporting.page import Figure, Table
from fedsift.reporting.svg import Axis, Line, Mark, Row, axis_of, line_chart, row_chart
from fedsift.reporting.tables import size
from fedsift.unlearning.membership import wilson

MOST_ROWS = 20
NOTE = (
    "Dots: means; none where a group has too few samples. Lines: one standard deviation each way."
)
Records = Sequence[dict[str, Any]]


def percent(value: float) -> str:
    """Return a share for people."""
    return f"{value:.0%}"


def number(value: float | None) -> str:
    """Return a number of four digits, a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def inclusion(candidates: Records, seeds: int) -> Figure:
    """Draw how often features were chosen over the seeds, with intervals."""
    shown = candidates[:MOST_ROWS]
    rows, lines = [], []
    for one in shown:
        share = one["inclusion_probability"]
        _, low, high = wilson(round(share * seeds), seeds)
        name = f"{one['name']}  {one['description']}".strip()
        style = 0 if one["chosen"] else 5
        rows.append(
            Row(name, [Mark(share, low, high, style, bar=True)], percent(share), one["chosen"])
        )
        lines.append(
            (
                name,
                percent(share),
                f"{percent(low)} to {percent(high)}",
                "yes" if one["chosen"] else "no",
            )
        )
    kept = sum(one["chosen"] for one in shown)
    title = "How often features were chosen"
    svg = row_chart(
        title,
        f"Bars of {len(shown)} features, of which {kept} were kept; the first is "
        f"{shown[0]['name']} with {percent(shown[0]['inclusion_probability'])}.",
        rows,
        Axis(f"share of {seeds} seeds that chose the feature", 0, 1, percent),
    )
    note = (
        "Blue: kept. Grey: runners-up. Lines: 95 % intervals of what more seeds would give on the "
        "same rows."
    )
    head = ("feature", "chosen", "95 % interval", "kept")
    return Figure(title, svg, note, Table(title, head, lines, frozenset({1, 2})))


def agreement(points: Records) -> Figure:
    """Draw how far ensembles of s seeds agree with others of s seeds."""
    title = "Stability against the number of seeds"
    x = [p["seeds"] for p in points]
    svg = line_chart(
        title,
        f"From {percent(points[0]['shared'])} at {x[0]} to "
        f"{percent(points[-1]['shared'])} at {x[-1]}.",
        [Line("agreement", x, [p["shared"] for p in points])],
        axis_of("seeds in each group", x, zero=True)._replace(whole=True),
        Axis("chosen by both groups", 0, 1.04, percent),
    )
    rows = [
        (f"{p['seeds']}", f"{p['groups']}", percent(p["shared"]), percent(p["least"]))
        for p in points
    ]
    note = (
        "The seeds were dealt to groups that share none, and each group chose its features. The "
        "height is the mean share of features that two groups have in common."
    )
    head = ("seeds in a group", "groups", "in common, mean", "in common, least")
    return Figure(title, svg, note, Table(title, head, rows, frozenset({0, 1, 2, 3})))


def training(records: Records, target_density: float) -> list[Figure]:
    """Draw loss, density and multiplier by round, means over the seeds, where measured."""
    search = [r for r in records if r["stage"] == "search"]
    rest = [r for r in records if r["stage"] not in {"covariates", "search"}]
    last = search[-1]["round"] if search else 0
    named = {
        "loss": ("Loss while training", "loss on training rows"),
        "density": ("Density while training", "share of features in use"),
        "multiplier": ("Multiplier while training", "price of a feature, λ"),
    }
    return [
        _training(
            name,
            named[name],
            [(r["round"], r[name]) for r in search if r.get(name) is not None],
            [(last + r["round"], r[name]) for r in rest if r.get(name) is not None],
            last,
            target_density,
        )
        for name in named
        if any(r.get(name) is not None for r in records)
    ]


def _training(
    name: str,
    titles: tuple[str, str],
    search: list[tuple[int, float]],
    refit: list[tuple[int, float]],
    last: int,
    target_density: float,
) -> Figure:
    points = search + refit
    rounds, values = [p[0] for p in points], [p[1] for p in points]
    target = ("asked for", target_density) if name == "density" else None
    shown = [*values, target_density] if target else values
    lines = [
        Line(label, [p[0] for p in part], [p[1] for p in part], style)
        for label, part, style in (("search", search, 0), ("refit", refit, 1))
        if part
    ]
    title, label = titles
    svg = line_chart(
        title,
        f"{name} goes from {number(values[0])} to {number(values[-1])} in {rounds[-1]} rounds.",
        lines,
        Axis("round", 0, max(rounds[-1], 1), whole=True),
        axis_of(
            label, shown, "{:.3g}".format, zero=name != "loss", logarithmic=name != "multiplier"
        ),
        target=target,
        shaded=("refit", last) if refit and search else None,
    )
    step = max(1, len(points) // 30)
    rows = [(f"{r}", number(v)) for r, v in [*points[::step], points[-1]]]
    note = "Mean of the seeds, all rows."
    if name == "density":
        note += " In the end as many features are kept as were asked for."
    if refit and search:
        note = (
            "Mean of the seeds, all rows. The refit trains the chosen features alone, to the end."
        )
    return Figure(title, svg, note, Table(title, ("round", name), rows, frozenset({0, 1})))


def profiles(profile: dict[str, Any], feature: Feature, classes: Sequence[str]) -> Figure:
    """Draw the mean and deviation of a feature by site and class."""
    kinds = list(next(iter(profile["sites"].values())))
    groups = {**profile["sites"], "all sites": profile["all"]}
    rows, lines, values = [], [], []
    for site, by_kind in groups.items():
        marks = []
        for style, kind in enumerate(kinds):
            group = by_kind[kind]
            label = (site, kind) if classes else (site,)
            if group is None:
                lines.append((*label, "few", "–", "–", *(() if classes else ("–",))))
                continue
            mean, spread = group["mean"], group["deviation"]
            marks.append(Mark(mean, mean - spread, mean + spread, style))
            values += [mean - spread, mean + spread]
            more = () if classes else (number(group["correlation"]),)
            lines.append((*label, f"{group['rows']}", number(mean), number(spread), *more))
        figure = "" if marks else "too few rows"
        rows.append(Row(site, marks, figure, strong=site == "all sites"))
    title = f"{feature.name} {feature.description}".strip()
    svg = row_chart(
        f"Values of {title}",
        f"Means and deviations at {len(profile['sites'])} sites"
        + (f" for {', '.join(kinds)}." if classes else "."),
        rows,
        axis_of("value in the units of the data", values or [0.0, 1.0], "{:.3g}".format),
        legend=kinds if classes else (),
    )
    head = ("site", *(("class",) if classes else ()), "rows", "mean", "deviation")
    head = head if classes else (*head, "correlation with the target")
    first = len(head) - (3 if classes else 4)
    table = Table(f"Values of {title}", head, lines, frozenset(range(first, len(head))))
    return Figure(title, svg, NOTE, table)


def roc(groups: dict[str, Records], areas: dict[str, Any]) -> Figure:
    """Draw the ROC curve of each class from its groups of predictions."""
    lines, rows = [], []
    for style, (name, found) in enumerate(groups.items()):
        points = roc_points(found)
        lines.append(Line(name, [p[0] for p in points], [p[1] for p in points], style))
        rows += [(name, percent(a), percent(b)) for a, b in points]
    title = "ROC: right alarms against false alarms"
    svg = line_chart(
        title,
        " ".join(f"{name}: area {_area(areas[name])}." for name in groups),
        lines,
        Axis("false alarms", 0, 1, percent),
        Axis("right alarms", 0, 1, percent),
        reference=((0, 0), (1, 1)),
    )
    note = (
        "The nearer to the upper left corner the better; the dashed line is guessing. Area under "
        "the curve, mean of the splits: "
        + "; ".join(f"{name} {_area(areas[name])}" for name in groups)
        + ". The corners are groups of rows, for no single row is kept."
    )
    head = ("class", "false alarms", "right alarms")
    return Figure(title, svg, note, Table(title, head, rows, frozenset({1, 2})))


def roc_points(groups: Records) -> list[tuple[float, float]]:
    """Return (false alarms, right alarms) as the threshold falls from one group to the next."""
    right = sum(g["rows"] * g["observed"] for g in groups)
    wrong = sum(g["rows"] * (1 - g["observed"]) for g in groups)
    points, hits, misses = [(0.0, 0.0)], 0.0, 0.0
    for group in reversed(groups):
        hits += group["rows"] * group["observed"]
        misses += group["rows"] * (1 - group["observed"])
        points.append((misses / wrong if wrong else 0.0, hits / right if right else 0.0))
    return points


def calibration(groups: dict[str, Records], *, classes: bool) -> Figure:
    """Draw what was predicted against what was observed, by groups of rows."""
    lines = [
        Line(name, [g["predicted"] for g in found], [g["observed"] for g in found], style)
        for style, (name, found) in enumerate(groups.items())
    ]
    rows = [
        (name, f"{g['rows']:.0f}", number(g["predicted"]), number(g["observed"]))
        for name, found in groups.items()
        for g in found
    ]
    every = [g[k] for found in groups.values() for g in found for k in ("predicted", "observed")]
    title = "Calibration: what was predicted and what was seen"
    one = next(iter(groups))
    if classes:
        what = f"of {one}" if len(groups) == 1 else "of the class"
        x = Axis(f"predicted probability {what}", -0.02, 1.02, percent)
        y = Axis(
            f"share of rows that are {one if len(groups) == 1 else 'of the class'}",
            -0.02,
            1.02,
            percent,
        )
    else:
        x = axis_of(f"predicted {one}, mean of a group", every, "{:.4g}".format)
        y = axis_of(f"observed {one}, mean of the group", every, "{:.4g}".format)
    low, high = min(x.low, y.low), max(x.high, y.high)
    x, y = x._replace(low=low, high=high), y._replace(low=low, high=high)
    svg = line_chart(
        title,
        f"{len(rows)} groups of rows; the dashed line is where both are equal.",
        lines,
        x,
        y,
        reference=((low, low), (high, high)),
    )
    note = (
        "Each dot is a group of rows with neighbouring predictions. On the dashed line a "
        "prediction means what it says."
    )
    head = ("class" if classes else "target", "rows", "predicted", "observed")
    return Figure(title, svg, note, Table(title, head, rows, frozenset({1, 2, 3})))


def by_site(sites: dict[str, dict[str, float]], overall: float | None, measure: str) -> Figure:
    """Draw the score of the model at each site, on rows held out."""
    rows, values = [], []
    lines: list[tuple[str, ...]] = []
    for site, found in sites.items():
        value, count = found[measure], int(found["rows"])
        if measure == "accuracy":
            _, low, high = wilson(round(value * count), count)
            rows.append(Row(site, [Mark(value, low, high)], f"{percent(value)} of {count}"))
            lines.append((site, f"{count}", percent(value), f"{percent(low)} to {percent(high)}"))
        else:
            rows.append(Row(site, [Mark(value)], f"{number(value)} ({count})"))
            lines.append((site, f"{count}", number(value)))
        values.append(value)
    title = "The model at each site"
    accuracy = measure == "accuracy"
    label = "right predictions" if accuracy else "typical error (root mean square)"
    axis = Axis(label, 0, 1, percent) if accuracy else axis_of(label, values, zero=True)
    svg = row_chart(
        title,
        f"{len(sites)} sites from {number(min(values))} to {number(max(values))}.",
        rows,
        axis,
        target=None if overall is None else ("all splits", overall),
    )
    note = "Rows held out, each counted once." + (
        " Lines: 95 % intervals, which are wide where a site has few rows." if accuracy else ""
    )
    head = ("site", "rows", label, *(("95 % interval",) if accuracy else ()))
    return Figure(title, svg, note, Table(title, head, lines, frozenset({1, 2, 3})))


def traffic(records: Records) -> Figure:
    """Draw the bytes sent up and down so far, by round of the reported fit."""
    sums = {name: [0.0, *totals(records, name)] for name in ("bytes_up", "bytes_down")}
    rounds = list(range(len(records) + 1))
    title = "Bytes sent so far, by round"
    svg = line_chart(
        title,
        f"{size(sums['bytes_up'][-1])} up and {size(sums['bytes_down'][-1])} down after "
        f"{len(records)} rounds.",
        [
            Line("up, to the server", rounds, sums["bytes_up"], 0),
            Line("down, to the sites", rounds, sums["bytes_down"], 1),
        ],
        Axis("round, the refit's after the search's", 0, max(len(records), 1), whole=True),
        axis_of("sent so far", [*sums["bytes_up"], *sums["bytes_down"], 1.0], size, zero=True),
    )
    step = max(1, len(rounds) // 30)
    rows = [
        (f"{r}", size(sums["bytes_up"][r]), size(sums["bytes_down"][r]))
        for r in [*rounds[::step], rounds[-1]]
    ]
    note = "The fit on all rows, all its seeds and sites together."
    return Figure(
        title, svg, note, Table(title, ("round", "up", "down"), rows, frozenset({0, 1, 2}))
    )


def totals(records: Records, name: str) -> list[float]:
    """Return the bytes sent so far after each round; each stage's records count from 0."""
    found: list[float] = []
    before, stage, last = 0.0, None, 0.0
    for record in records:
        if record["stage"] != stage:
            before, stage, last = before + last, record["stage"], 0.0
        last = float(record.get(name) or last)
        found.append(before + last)
    return found


def _area(area: dict[str, Any] | None) -> str:
    if area is None:
        return "not known"
    low, high = area["low"], area["high"]
    if low is None or math.isnan(low) or low == high:
        return f"{area['mean']:.2f}"
    return f"{area['mean']:.2f} ({max(low, 0):.2f} to {min(high, 1):.2f})"
