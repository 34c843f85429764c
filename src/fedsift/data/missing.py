"""Missing values of site files that cannot be used with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsift.data.errors import DataError, counted, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.tables import Tables

__all__ = ["refuse_empty", "refuse_missing"]


def refuse_empty(tables: Tables, features: Sequence[str], values: np.ndarray) -> None:
    """Raise for columns of values [N, d] that are NaN throughout: no mean can fill them."""
    absent = np.isnan(values).all(axis=0).tolist()
    empty = [name for name, nothing in zip(features, absent, strict=True) if nothing]
    if empty:
        raise DataError(
            f"{tables.parts[0].path.name}: no row of any site has a value of {listed(empty)};"
            f" leave out such columns with drop={empty[:1]}"
        )


def refuse_missing(tables: Tables, features: Sequence[str], values: np.ndarray) -> None:
    """Raise for NaN in values [N, d]: the first place, and how many in which columns."""
    missing = np.isnan(values)
    if not missing.any():
        return
    counts = dict(zip(features, missing.sum(axis=0).tolist(), strict=True))
    columns = [f"'{name}' {count}" for name, count in counts.items() if count]
    more = f" and {counted(len(columns) - 5, 'more column')}" if len(columns) > 5 else ""
    row, column = np.argwhere(missing)[0].tolist()
    raise DataError(
        f"{tables.where(row)}, column '{features[column]}': a value is missing; missing in all:"
        f" {missing.sum()} ({', '.join(columns[:5])}{more}). Remove these rows or columns, or fill"
        " with the means of the training rows: impute='mean'"
    )
