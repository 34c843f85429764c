"""What a reader of a result should know about the rows behind it, one sentence each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsift.data.coding import has_classes
from fedsift.data.duplicates import shared_rows
from fedsift.data.errors import DataError, counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fedsift.data.columns import Roles
    from fedsift.data.federated import FederatedData
    from fedsift.data.tables import Table

__all__ = [
    "columns_lost",
    "columns_unplanned",
    "notes_on_columns",
    "notes_on_rows",
    "notes_on_target",
]

_ROUNDED = "once rounded to single precision (float32; subtract what they share to keep the rest)"
_FEW_ROWS = 2
_MANY_ROWS = 20
_FEW_IDS = 3


def columns_lost(tables: Sequence[Table], roles: Roles, features: Iterable[str]) -> Iterator[str]:
    """Name the columns that not all files have."""
    kept = set(features)
    every = dict.fromkeys(name for table in tables for name in roles.features(table))
    lost = [name for name in every if name not in kept]
    if lost:
        yield f"{counted(len(lost), 'column')} left out, not being in all files: {listed(lost)}"


def columns_unplanned(tables: Sequence[Table], known: set[str]) -> Iterator[str]:
    """Name the columns that no plan has a purpose for."""
    every = dict.fromkeys(
        name for table in tables for name in table.frame.columns if name not in table.annotations
    )
    others = [name for name in every if name not in known]
    if others:
        yield f"{counted(len(others), 'column')} left out, not being planned: {listed(others)}"


def notes_on_columns(features: Sequence[str], values: np.ndarray, *, ids: bool) -> Iterator[str]:
    """Count filled values, and name columns that do not vary or look like ids.

    A column that does not vary is kept: that of the training rows becomes 0 when standardised,
    whatever the test rows hold, so that these cannot reach the training.

    Args:
        features: d names.
        values: float64 [N, d], NaN where a value is missing; a value at least in each column.
        ids: whether a column of ids is known already.

    Raises:
        DataError: no feature varies.

    """
    missing = np.isnan(values)
    if missing.any():
        yield (
            f"{counted(missing.sum(), 'missing value')} in"
            f" {counted(missing.any(axis=0).sum(), 'column')} filled with the means of the training"
            " rows over all sites"
        )
    single = values.astype(np.float32)
    constant = np.nanmin(values, axis=0) == np.nanmax(values, axis=0)
    rounded = (np.nanmin(single, axis=0) == np.nanmax(single, axis=0)) & ~constant
    reasons = {"one value in all rows": constant, f"one value in all rows {_ROUNDED}": rounded}
    if (constant | rounded).all():
        reason = f" {_ROUNDED}" if rounded.any() else ""
        raise DataError(
            f"every feature has one value in all {len(values)} rows{reason} ({listed(features)});"
            " nothing can be learned from them: add rows or columns"
        )
    for reason, found in reasons.items():
        names = _named(features, found)
        if names:
            yield f"{counted(len(names), 'column')} with {reason}, of no use: {listed(names)}"
    if not ids and len(values) >= _MANY_ROWS:
        whole = (values == np.floor(values)).all(axis=0)
        unlike = (np.diff(np.sort(values[:, whole], axis=0), axis=0) != 0).all(axis=0)
        names = _named(_named(features, whole), unlike)
        # Many such columns, or all of them, are counts that were measured.
        if 0 < len(names) <= min(_FEW_IDS, len(features) - 1):
            yield (
                f"{counted(len(names), 'column')} with another whole number in each row:"
                f" {listed(names)}; if it is an id, name it as such or leave it out"
            )


def notes_on_rows(values: np.ndarray, rows: Mapping[str, slice]) -> Iterator[str]:
    """Count rows that are equal at several sites: then a held-out row may have been trained on."""
    shared = shared_rows(values, rows)
    if shared.at_several_sites:
        pairs = ", ".join(f"{pair} ({count})" for pair, count in shared.by_pair.items())
        yield (
            f"{counted(shared.at_several_sites, 'row')} with all values equal at more than one"
            f" site: {pairs}; if these are the same patients, remove one of each pair, or"
            " scores on rows held out are too good"
        )


def notes_on_target(data: FederatedData) -> Iterator[str]:
    """Name sites with one class or no event, rare classes, and classes spelt almost alike.

    Of a measured target: tell whether it looks like an id; of labels, where they are not known.
    """
    if data.outcome == "regression":
        whole = bool((data.y == data.y.floor()).all())
        if whole and data.n_samples >= _MANY_ROWS and len(data.y.unique()) == data.n_samples:
            yield (
                f"the target '{data.target}' has another whole number in each row; if it is an id,"
                " predict another column"
            )
    if data.outcome == "survival":
        seen = data.strata
        none = [
            name
            for name, rows in zip(data.sites, data.slices, strict=True)
            if not bool(seen[rows].any())
        ]
        if none:
            yield (
                f"sites without an event of '{data.target}': {listed(none)}; they add nothing to"
                " the choice of features"
            )
    if data.outcome == "multilabel":
        yield from _notes_on_labels(data)
    if not has_classes(data.outcome):
        return
    single = [
        name
        for name, rows in zip(data.sites, data.slices, strict=True)
        if len(data.y[rows].unique()) == 1
    ]
    if single:
        yield (
            f"sites with one class of '{data.target}' only: {listed(single)}; there, what tells"
            " sites apart can pass for what tells classes apart"
        )
    counts = torch.bincount(data.y, minlength=len(data.classes)).tolist()
    rare = [name for name, n in zip(data.classes, counts, strict=True) if n <= _FEW_ROWS]
    if rare and data.n_samples >= _MANY_ROWS:
        yield f"classes of '{data.target}' with one or two rows: {listed(rare)}"
    plain = {name: "".join(name.split()).casefold() for name in data.classes}
    shared = Counter(plain.values())
    alike = [name for name in data.classes if shared[plain[name]] > 1]
    if alike:
        yield f"classes of '{data.target}' that differ in case or blanks only: {listed(alike)}"


def _notes_on_labels(data: FederatedData) -> Iterator[str]:
    gaps = [f"{name} ({count})" for name, count in data.unknown.items() if count]
    if gaps:
        yield (
            f"rows that do not know a label count for the others: {', '.join(gaps)}; none is filled"
        )
    yes = (data.y > 0).sum(0)
    fewer = torch.minimum(yes, (data.y == 0).sum(0)).tolist()
    rare = [name for name, n in zip(data.classes, fewer, strict=True) if n <= _FEW_ROWS]
    if rare and data.n_samples >= _MANY_ROWS:
        yield f"labels of one value but for one or two rows: {listed(rare)}"


def _named(names: Sequence[str], chosen: np.ndarray) -> list[str]:
    return [name for name, take in zip(names, chosen.tolist(), strict=True) if take]
