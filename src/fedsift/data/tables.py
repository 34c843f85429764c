"""One file as a table that knows where each of its cells is, so that an error can say it."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedsift.data.errors import DataError, counted, listed, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.coding import Label

__all__ = ["MISSING", "Table", "Tables", "check_names"]

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None", ".")
"""What counts as a missing value in text, after spaces around it are removed."""

_TEXT = (pl.String, pl.Categorical, pl.Enum)
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")


@dataclass(frozen=True, eq=False)
class Table:
    """A file's cells as read; row i stands on line (text) or row (others) ``lines[i]``.

    ``annotations``: columns that say something about the rows and are never features.
    """

    path: Path
    frame: pl.DataFrame
    lines: tuple[int, ...]
    unit: str
    annotations: frozenset[str] = frozenset()

    def where(self, row: int) -> str:
        """Return the place of a row for a message."""
        return f"{self.path.name}, {self.unit} {self.lines[row]}"

    def require(self, column: str, role: str) -> None:
        """Refuse a file without a column that was named."""
        if column not in self.frame.columns:
            raise DataError(
                f"{self.path.name}: no column '{column}' ({role});"
                f" {nearest(column, self.frame.columns)}"
            )

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """Return columns as float64 [N, len(columns)]; NaN where a value is missing.

        Raises:
            DataError: text, an infinite value, or a column of dates, lists and the like.

        """
        frame = self.frame.select(columns)
        for name, dtype in frame.schema.items():
            if not (dtype in _TEXT or dtype.is_numeric() or dtype in {pl.Boolean, pl.Null}):
                raise DataError(
                    f"{self.path.name}: column '{name}' holds {dtype}, not numbers;"
                    f" leave it out with drop=['{name}']"
                )
        text = frame.select(
            pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String).str.strip_chars()
        )
        parsed = text.select(pl.all().cast(pl.Float64, strict=False))
        self._refuse_text(text, parsed)
        values = (
            frame.with_columns(parsed.get_columns()).select(pl.all().cast(pl.Float64)).to_numpy()
        )
        infinite = np.argwhere(np.abs(values) > np.finfo(np.float32).max)
        if len(infinite):
            row, column = infinite[0].tolist()
            raise DataError(
                f"{self.where(row)}, column '{columns[column]}': the value {values[row, column]} is"
                f" infinite in single precision ({counted(len(infinite), 'such value')}); correct"
                " it, or leave the cell empty if it is missing"
            )
        return values

    def strings(self, column: str, role: str) -> list[str]:
        """Return a column as text.

        Raises:
            DataError: a value is missing.

        """
        values = [value if value is None else str(value) for value in self.labels(column)]
        empty = [row for row, value in enumerate(values) if value is None]
        if empty:
            raise DataError(
                f"{self.where(empty[0])}: the {role} '{column}' is missing ({len(empty)} of"
                f" {counted(len(values), 'row')}); fill it in or remove the rows"
            )
        return [value for value in values if value is not None]

    def labels(self, column: str) -> list[Label | None]:
        """Return a column's values as they are, None where one is missing."""
        series = self.frame.get_column(column)
        if series.dtype in _TEXT:
            stripped = series.cast(pl.String).str.strip_chars()
            return [None if value in MISSING else value for value in stripped.to_list()]
        if series.dtype.is_float():
            return series.fill_nan(None).to_list()
        if series.dtype.is_numeric() or series.dtype == pl.Boolean:
            return series.to_list()
        return series.cast(pl.String).to_list()

    def _refuse_text(self, text: pl.DataFrame, parsed: pl.DataFrame) -> None:
        # Only a column with more empty cells after parsing than before can hold text.
        for name, before, after in zip(
            text.columns, text.null_count().row(0), parsed.null_count().row(0), strict=True
        ):
            if after == before:
                continue
            column = text.get_column(name)
            bad = parsed.get_column(name).is_null() & column.is_not_null() & ~column.is_in(MISSING)
            rows = bad.arg_true().to_list()
            if rows:
                value = column[rows[0]]
                hint = " (write a decimal point)" if _DECIMAL_COMMA.fullmatch(value) else ""
                # A column of numbers but for some cells is a feature, not an id.
                feature = hint or parsed.get_column(name).count() > len(rows)
                action = (
                    "Write numbers there, or leave empty what is missing"
                    if feature
                    else f"Correct them, or leave the column out with drop=['{name}']"
                )
                raise DataError(
                    f"{self.where(rows[0])}, column '{name}': '{value}' is not a number{hint};"
                    f" {len(rows)} of {counted(len(column), 'value')}"
                    f" {'is' if len(rows) == 1 else 'are'} not. {action}"
                )


@dataclass(frozen=True, eq=False)
class Tables:
    """Several tables, one below the other."""

    parts: tuple[Table, ...]

    @cached_property
    def starts(self) -> list[int]:
        """First row of each table, and the number of all rows."""
        return [0, *np.cumsum([part.frame.height for part in self.parts]).tolist()]

    def have(self, column: str) -> bool:
        """Tell whether all tables have a column."""
        return all(column in part.frame.columns for part in self.parts)

    def where(self, row: int) -> str:
        """Return the place of a row for a message."""
        part = bisect.bisect_right(self.starts, row) - 1
        return self.parts[part].where(row - self.starts[part])

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """Return columns as float64 [N, len(columns)]; NaN where a value is missing."""
        return np.concatenate([part.numbers(columns) for part in self.parts])

    def strings(self, column: str, role: str) -> list[str]:
        """Return a column as text."""
        return [value for part in self.parts for value in part.strings(column, role)]

    def labels(self, column: str) -> list[Label | None]:
        """Return a column's values as they are, None where one is missing."""
        return [value for part in self.parts for value in part.labels(column)]


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse columns without a name, or of one name."""
    for place, name in enumerate(names, start=1):
        if not name:
            raise DataError(
                f"{path.name}: column {place} of {len(names)} has no name; name it in the header,"
                " or remove it"
            )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        places = [place for place, name in enumerate(names, start=1) if name == repeated[0]]
        some = ", ".join(map(str, places[:5])) + (", ..." if len(places) > 5 else "")
        raise DataError(
            f"{path.name}: column names are repeated: {listed(repeated)} (the first in columns"
            f" {some}); rename or remove them"
        )
