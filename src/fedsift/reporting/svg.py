"""Charts as small SVG elements: they take the colours of the page and need no script.

Sizes are in units of a chart that is `WIDTH` wide, about a phone's width, so that its letters stay
readable there; the page scales it. Every chart has a title and a description for readers who do
not see it. All texts are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import NamedTuple

WIDTH, LETTER = 400, 6.4  # a letter's mean width at 12 units
LEFT, RIGHT, BOTTOM = 56, 18, 44
HEIGHT, ROW, STEP = 200, 34, 8
MOST_POINTS, MOST_MARKERS = 200, 24


class Axis(NamedTuple):
    """What an axis shows: its name, its ends, and how numbers are written there.

    ``whole``: of whole numbers, so that there are no ticks between them.
    """

    name: str
    low: float
    high: float
    write: Callable[[float], str] = "{:g}".format
    logarithmic: bool = False
    whole: bool = False


class Line(NamedTuple):
    """A line of points; ``style`` is its colour, dash and marker; without ``joined`` dots alone."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0
    joined: bool = True


class Mark(NamedTuple):
    """A value on a row, with the ends of its interval; as a bar from 0 or as a dot."""

    value: float
    low: float | None = None
    high: float | None = None
    style: int = 0
    bar: bool = False


class Row(NamedTuple):
    """A row of a chart: its name, marks, and the figure at its end."""

    name: str
    marks: Sequence[Mark]
    figure: str = ""
    strong: bool = False


@dataclass
class _Drawing:
    """Elements that are collected, and the frame around them."""

    title: str
    description: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
            f"{escape(text)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'
        )

    def bar(self, x: float, y: float, width: float, kind: str) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="10" '
            f'class="{kind}"/>'
        )

    def marker(self, x: float, y: float, style: int) -> None:
        """Draw a dot whose shape tells the style, too."""
        kind = f"m s{style % 6}"
        shapes = (
            "",
            f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
            f"M{x:.1f} {y - 5:.1f}l5 9h-10z",
            f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
            f"M{x:.1f} {y + 5:.1f}l5 -9h-10z",
            f"M{x - 1.5:.1f} {y - 5:.1f}h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
        )
        shape = shapes[style % len(shapes)]
        if shape:
            self.parts.append(f'<path d="{shape}" class="{kind}"/>')
        else:
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" class="{kind}"/>')

    def path(self, points: Sequence[tuple[float, float]], style: int) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{joined}" class="l s{style % 6} d{style % 6}"/>')

    def legend(self, names: Sequence[tuple[str, int, bool]], top: float) -> float:
        """Write what the styles stand for in as many lines as needed; return where they end."""
        x, y = 2.0, top
        for name, style, joined in names:
            shown = shortened(name, 34)
            width = 28 + LETTER * len(shown)
            if x > 2 and x + width > WIDTH:
                x, y = 2.0, y + 17
            if joined:
                self.path([(x, y - 4), (x + 18, y - 4)], style)
            self.marker(x + 9, y - 4, style)
            self.text(x + 23, y, shown)
            x += width + 10
        return y + 8

    def done(self, height: float) -> str:
        title, description = escape(self.title), escape(self.description)
        return (
            f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'aria-label="{title}. {description}"><title>{title}</title>'
            f"<desc>{description}</desc>{''.join(self.parts)}</svg>"
        )


def line_chart(
    title: str,
    description: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    reference: Sequence[tuple[float, float]] = (),
    target: tuple[str, float] | None = None,
    shaded: tuple[str, float] | None = None,
) -> str:
    """Return lines or points over two axes.

    ``reference``: a thin dashed line, such as the diagonal; ``target``: a height to compare with,
    and its name; ``shaded``: where a last phase begins on the x axis, and its name.
    """
    drawing = _Drawing(title, description)
    top = 20.0
    if len(lines) > 1:
        top = drawing.legend([(line.name, line.style, line.joined) for line in lines], 12) + 20
    drawing.text(2, top - 6, shortened(y.name, 60), "axis")
    plot = _Plot(x, y, top + 6, top + 6 + HEIGHT)
    if shaded is not None:
        _shade(drawing, plot, *shaded)
    _draw_axes(drawing, plot)
    if target is not None:
        drawing.line(LEFT, plot.up(target[1]), plot.right, plot.up(target[1]), "target")
        drawing.text(LEFT + 4, plot.up(target[1]) - 4, target[0], "small")
    for start, stop in pairwise(reference):
        drawing.line(*plot.place(*start), *plot.place(*stop), "target")
    for line in lines:
        _draw_line(drawing, plot, line)
    return drawing.done(plot.bottom + BOTTOM)


class _Plot(NamedTuple):
    """Where values of two axes lie."""

    x: Axis
    y: Axis
    top: float
    bottom: float
    right: float = WIDTH - RIGHT

    def across(self, value: float) -> float:
        return LEFT + (self.right - LEFT) * _share(value, self.x)

    def up(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * _share(value, self.y)

    def place(self, x: float, y: float) -> tuple[float, float]:
        return self.across(x), self.up(y)


def _shade(drawing: _Drawing, plot: _Plot, name: str, start: float) -> None:
    """Shade what lies right of a value, and name it."""
    edge = plot.across(start)
    drawing.parts.append(
        f'<rect x="{edge:.1f}" y="{plot.top:.1f}" width="{plot.right - edge:.1f}" '
        f'height="{plot.bottom - plot.top:.1f}" class="shade"/>'
    )
    drawing.text(plot.right - 4, plot.top + 13, name, "tick", "end")


def _draw_axes(drawing: _Drawing, plot: _Plot) -> None:
    """Draw both axes with their ticks, lines across, and the name of the lower one."""
    for value in ticks(plot.y):
        height = plot.up(value)
        drawing.line(LEFT, height, plot.right, height, "grid")
        drawing.text(LEFT - 6, height + 4, plot.y.write(value), "tick", "end")
    for value in ticks(plot.x):
        place = plot.across(value)
        drawing.line(place, plot.bottom, place, plot.bottom + 4, "tickline")
        drawing.text(place, plot.bottom + 17, plot.x.write(value), "tick", "middle")
    drawing.line(LEFT, plot.bottom, plot.right, plot.bottom, "tickline")
    middle = (LEFT + plot.right) / 2
    drawing.text(middle, plot.bottom + 36, shortened(plot.x.name, 52), "axis", "middle")


def _draw_line(drawing: _Drawing, plot: _Plot, line: Line) -> None:
    """Draw a line, with markers where it has few points."""
    points = [plot.place(*p) for p in thinned(list(zip(line.x, line.y, strict=True)))]
    if line.joined and len(points) > 1:
        drawing.path(points, line.style)
    if not line.joined or len(points) <= MOST_MARKERS:
        for point in points:
            drawing.marker(*point, line.style)


def row_chart(
    title: str,
    description: str,
    rows: Sequence[Row],
    x: Axis,
    *,
    legend: Sequence[str] = (),
    target: tuple[str, float] | None = None,
) -> str:
    """Return rows, each with its name above its bars or dots, over one axis.

    ``legend``: names of the styles 0, 1, ...; ``target``: a value to compare with, and its name.
    """
    drawing = _Drawing(title, description)
    top = 4.0
    if legend:
        top = drawing.legend([(name, style, False) for style, name in enumerate(legend)], 12) + 2
    if target is not None:
        top += 16
    height = ROW + STEP * (max(len(legend), 1) - 1)
    bottom = top + height * len(rows) + 4
    left, right = 18.0, WIDTH - RIGHT

    def across(value: float) -> float:
        return left + (right - left) * _share(value, x)

    for value in ticks(x):
        drawing.line(across(value), top, across(value), bottom, "grid")
        drawing.text(across(value), bottom + 15, x.write(value), "tick", "middle")
    if target is not None:
        place = across(target[1])
        anchor = "end" if place > WIDTH / 2 else "start"
        drawing.line(place, top - 3, place, bottom, "target")
        drawing.text(place, top - 7, target[0], "small", anchor)
    for number, row in enumerate(rows):
        base = top + height * number
        room = WIDTH - 16 - LETTER * 1.1 * len(row.figure)
        most = int(room / (LETTER * (1.2 if row.strong else 1.06)))
        kind = "label strong" if row.strong else "label"
        drawing.text(4, base + 14, shortened(row.name, most), kind)
        drawing.text(WIDTH - 4, base + 14, row.figure, "label", "end")
        for mark in row.marks:
            _draw_mark(drawing, mark, base + 25 + STEP * (mark.style if legend else 0), across)
    drawing.text((left + right) / 2, bottom + 33, x.name, "axis", "middle")
    return drawing.done(bottom + BOTTOM)


def _draw_mark(drawing: _Drawing, mark: Mark, y: float, across: Callable[[float], float]) -> None:
    if mark.bar:
        drawing.bar(across(0), y - 5, across(mark.value) - across(0), f"b s{mark.style % 6}")
    if mark.low is not None and mark.high is not None:
        kind = "whisker" if mark.bar else f"l s{mark.style % 6}"
        drawing.line(across(mark.low), y, across(mark.high), y, kind)
        for end in (mark.low, mark.high):
            drawing.line(across(end), y - 3, across(end), y + 3, kind)
    if not mark.bar:
        drawing.marker(across(mark.value), y, mark.style)


def ticks(axis: Axis) -> list[float]:
    """Return three to seven round numbers within an axis."""
    if axis.logarithmic:
        powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
        steps = (1, 2, 5) if axis.high < 100 * axis.low else (1,)
        found = [s * 10.0**p for p in powers for s in steps if axis.low <= s * 10.0**p <= axis.high]
        return found[:: math.ceil(len(found) / 7)] if found else [axis.low, axis.high]
    span = axis.high - axis.low
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
    step = max(step, 1.0) if axis.whole else step
    first = math.ceil(axis.low / step - 1e-9)
    last = math.floor(axis.high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def axis_of(
    name: str,
    values: Sequence[float],
    write: Callable[[float], str] = "{:g}".format,
    *,
    zero: bool = False,
    logarithmic: bool = False,
) -> Axis:
    """Return an axis with room for values; from 0 on with ``zero``.

    Logarithmic where that is asked for and the values are positive and differ much.
    """
    low, high = min(values), max(values)
    if logarithmic and low > 0 and high >= 5 * low:
        return Axis(name, low * 0.9, high * 1.1, write, logarithmic=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Axis(name, low if zero and low == 0 else low - room, high + room, write)


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `MOST_POINTS` points, evenly taken, the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    step = math.ceil(len(points) / (MOST_POINTS - 1))
    kept = points[::step]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def shortened(text: str, most: int) -> str:
    """Return a text of at most ``most`` letters."""
    return text if len(text) <= most else f"{text[: max(most - 1, 1)].rstrip()}…"


def _share(value: float, axis: Axis) -> float:
    """Return where a value lies on an axis, 0 to 1; beyond its ends at the end."""
    low, high, here = axis.low, axis.high, value
    if axis.logarithmic:
        low, high, here = math.log(low), math.log(high), math.log(max(value, axis.low))
    return min(max((here - low) / (high - low), 0.0), 1.0)
