"""Tables of an experiment: from rows, flat JSON objects with intervals, to CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of all rows in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; the mean, ends and number of values of an interval are columns."""
    flat = [
        {name: value for key, given in row.items() for name, value in _flattened(key, given)}
        for row in rows
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(flat), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flattened(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for part, inner in value.items():
            yield key if part == "mean" else f"{key}_{part}", inner
    else:
        yield key, value


def table_markdown(
    rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str] | None = None
) -> str:
    """Return rows as a Markdown table; ``titles``: column → heading, in order, None for all."""
    titles = titles or {name: name for name in columns(rows)}
    lines = [f"| {' | '.join(titles.values())} |", f"|{' --- |' * len(titles)}"]
    lines += [f"| {' | '.join(shown(row.get(name)) for name in titles)} |" for row in rows]
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """Return a JSON value as a table shows it; an interval as its mean and ends."""
    if isinstance(value, Mapping) and "mean" in value:
        low, high = value.get("low"), value.get("high")
        known = low is not None and math.isfinite(low)
        ends = f" ({shown(low)} to {shown(high)})" if known else ""
        return f"{shown(value['mean'])}{ends}"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def paragraph(text: str) -> str:
    """Return text as one line, however it was broken in the source."""
    return " ".join(text.split())
