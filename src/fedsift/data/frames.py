"""Frames in memory, of polars or pandas, as tables of polars."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fedsift.data.errors import DataError
from fedsift.data.tables import Table, check_names

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["from_pandas", "table_of_frame"]


def table_of_frame(frame: Any, name: str = "frame") -> Table:
    """Return a polars or pandas frame as a table; row i is called "row i", from 1 on.

    Raises:
        DataError: it is neither, has no rows, or has repeated or nameless columns.
    """
    path = Path(name)
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, pl.DataFrame):
        if not (hasattr(frame, "columns") and hasattr(frame, "iloc")):
            raise DataError(
                f"the frame is a {type(frame).__name__}; give a polars or pandas DataFrame, and"
                " arrays to FederatedData.from_arrays"
            )
        check_names(path, [str(column) for column in frame.columns])
        frame = from_pandas(frame)
    if not frame.height:
        raise DataError(f"{name}: has no rows; add the samples")
    return Table(path, frame, tuple(range(1, frame.height + 1)), "row")


def from_pandas(frame: Any) -> pl.DataFrame:
    """Return a pandas frame, without its index, as one of polars.

    Numbers and booleans stay what they are, categories and objects become their values. (The
    conversion of polars needs pyarrow.)
    """
    return pl.DataFrame(
        [_series(str(name), column) for name, column in frame.items()], strict=False
    )


def _series(name: str, column: Any) -> pl.Series:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return pl.Series(name, column.to_numpy())
    values = [
        None if absent else value
        for absent, value in zip(column.isna(), column.astype(object), strict=True)
    ]
    return pl.Series(name, _of_one_type(values), strict=False)


def _of_one_type(values: Sequence[Any]) -> Sequence[Any]:
    """Return plain values as they are, and a mixture of kinds as text."""
    present = [value for value in values if value is not None]
    for kind in (bool | np.bool_, int | float | np.number, dt.date):
        if all(isinstance(value, kind) for value in present):
            return values
    return [None if value is None else str(value) for value in values]
