"""The cells of site files as numbers where they are some; what is wrong is counted, not refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from fedsift.data.tables import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.tables import Tables

_TEXT = (pl.String, pl.Categorical, pl.Enum)


class Unreadable(NamedTuple):
    """Cells of a column that are no numbers: how many, and where the first is."""

    cells: int
    first: str


@dataclass(frozen=True)
class Cells:
    """The columns of all rows.

    Attributes:
        names: d columns of numbers.
        values: float64 [N, d], NaN where a value is missing or no number.
        unreadable: columns of numbers with cells that are none.
        text: columns with more text than numbers, with the number of different values in each.
    """

    names: tuple[str, ...]
    values: np.ndarray
    unreadable: dict[str, Unreadable]
    text: dict[str, int]


def read_cells(tables: Tables, columns: Sequence[str]) -> Cells:
    """Read columns that all tables have."""
    pieces: list[np.ndarray] = []
    bad: dict[str, Unreadable] = {}
    for part, start in zip(tables.parts, tables.starts, strict=False):
        values, wrong = _numbers(part.frame.select(columns))
        pieces.append(values)
        for name, rows in wrong.items():
            count, first = bad.get(name, (0, tables.where(start + int(rows[0]))))
            bad[name] = Unreadable(count + len(rows), first)
    values = np.concatenate(pieces)
    present = dict(zip(columns, (~np.isnan(values)).sum(0).tolist(), strict=True))
    text = [name for name, cells in bad.items() if cells.cells > present[name]]
    numbers = [place for place, name in enumerate(columns) if name not in set(text)]
    return Cells(
        names=tuple(columns[place] for place in numbers),
        values=values[:, numbers],
        unreadable={name: cells for name, cells in bad.items() if name not in text},
        text={name: len({*tables.labels(name)} - {None}) for name in text},
    )


def _numbers(frame: pl.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return float64 [n, d], and by column the rows whose cell is there but no finite number."""
    other = [
        name
        for name, dtype in frame.schema.items()
        if not (dtype in _TEXT or dtype.is_numeric() or dtype in {pl.Boolean, pl.Null})
    ]
    frame = frame.with_columns(pl.col(other).cast(pl.String, strict=False))
    text = frame.select(pl.col(*_TEXT).cast(pl.String).str.strip_chars())
    parsed = text.select(pl.all().cast(pl.Float64, strict=False))
    values = frame.with_columns(parsed.get_columns()).select(pl.all().cast(pl.Float64)).to_numpy()
    values = np.array(values)
    wrong = {}
    before, after = text.null_count(), parsed.null_count()
    for name in text.columns:
        if after[name][0] > before[name][0]:
            column = text[name]
            absent = column.is_null() | column.is_in(MISSING)
            wrong[name] = (parsed[name].is_null() & ~absent).arg_true().to_numpy()
    infinite = np.abs(values) > np.finfo(np.float32).max
    for place in np.flatnonzero(infinite.any(0)).tolist():
        name, rows = frame.columns[place], np.flatnonzero(infinite[:, place])
        wrong[name] = np.sort(np.concatenate([wrong.get(name, rows[:0]), rows]))
    values[infinite] = np.nan
    return values, {name: rows for name, rows in wrong.items() if len(rows)}
