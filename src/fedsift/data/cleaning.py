"""Missing values, constant columns and sites with one class: filled, refused, left out or noted."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsift.data.errors import DataError, DataWarning, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.federated import FederatedData
    from fedsift.data.tables import Tables

__all__ = ["impute_means", "refuse_missing", "with_single_class_note", "without_constants"]


def impute_means(
    tables: Tables, features: Sequence[str], values: np.ndarray, weight: np.ndarray
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Fill missing values in place with the weighted mean of their feature over all sites.

    Args:
        tables: where the rows come from, for messages.
        features: d names.
        values: float64 [N, d], NaN where a value is missing; changed.
        weight: N sample weights.

    Returns:
        the mean of each feature, and a note on what was filled.

    Raises:
        DataError: a feature has no value at all.

    """
    missing = np.isnan(values)
    present = weight[:, None] * ~missing
    total = present.sum(axis=0)
    empty = [name for name, mass in zip(features, total, strict=True) if mass == 0]
    if empty:
        raise DataError(
            f"{tables.parts[0].path.name}: no row of any site has a value of {listed(empty)};"
            f" leave out such columns with drop={empty[:1]}"
        )
    means = (present * np.where(missing, 0.0, values)).sum(axis=0) / total
    np.copyto(values, means, where=missing)
    note = (
        f"{missing.sum()} missing values in {missing.any(axis=0).sum()} columns were filled with"
        " the means over all sites"
    )
    return dict(zip(features, means.tolist(), strict=True)), (note,) if missing.any() else ()


def refuse_missing(tables: Tables, features: Sequence[str], values: np.ndarray) -> None:
    """Raise for NaN in values [N, d]: the first place, and how many in which columns."""
    missing = np.isnan(values)
    if not missing.any():
        return
    counts = dict(zip(features, missing.sum(axis=0).tolist(), strict=True))
    columns = [f"'{name}' {count}" for name, count in counts.items() if count]
    more = f" and {len(columns) - 5} more columns" if len(columns) > 5 else ""
    row, column = np.argwhere(missing)[0].tolist()
    raise DataError(
        f"{tables.where(row)}, column '{features[column]}': a value is missing; missing in all:"
        f" {missing.sum()} ({', '.join(columns[:5])}{more}). Remove these rows or columns, or fill"
        " with the means over all sites: impute='mean'"
    )


def with_single_class_note(data: FederatedData) -> FederatedData:
    """Warn about sites that have seen one class only, and note it."""
    if data.outcome == "regression":
        return data
    single = [
        name
        for name, rows in zip(data.sites, data.slices, strict=True)
        if len(data.y[rows].unique()) == 1
    ]
    if not single:
        return data
    return _noted(data, f"sites with one class of '{data.target}' only: {listed(single)}")


def without_constants(data: FederatedData) -> FederatedData:
    """Leave out features with one value in all rows, with a warning and a note.

    Raises:
        DataError: no feature would be left.

    """
    varies = (data.x != data.x[0]).any(dim=0)
    constant = [
        name for name, moves in zip(data.features, varies.tolist(), strict=True) if not moves
    ]
    if not constant:
        return data
    if len(constant) == data.n_features:
        raise DataError(
            f"every feature has one value in all {data.n_samples} rows ({listed(constant)});"
            " nothing can be learned from them: add rows or columns"
        )
    kept = data.select_features(varies.nonzero().flatten())
    return _noted(
        kept,
        f"columns with one value in all rows, left out: {len(constant)} ({listed(constant)})",
    )


def _noted(data: FederatedData, note: str) -> FederatedData:
    # The caller of the caller's caller is the user, whose line a warning should name.
    warnings.warn(note, DataWarning, stacklevel=4)
    return replace(data, notes=(*data.notes, note))
