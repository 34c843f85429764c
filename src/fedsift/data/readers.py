"""Site files and frames to `FederatedData`; what is wrong with them is said in one line."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fedsift.data.coding import (
    Coded,
    Label,
    by_label,
    check_labels,
    code_labels,
    code_survival,
    code_target,
    encode,
    target_columns,
    target_name,
)
from fedsift.data.columns import Roles, check_stems, common_features
from fedsift.data.covariates import code_covariates, columns_of, read_covariates
from fedsift.data.errors import DataError, DataWarning, counted, listed, nearest
from fedsift.data.federated import FederatedData
from fedsift.data.files import load_table
from fedsift.data.frames import table_of_frame
from fedsift.data.grouping import group_rows
from fedsift.data.missing import refuse_empty, refuse_missing
from fedsift.data.notes import (
    columns_lost,
    columns_unplanned,
    notes_on_columns,
    notes_on_rows,
    notes_on_target,
)
from fedsift.data.paths import site_files, site_name
from fedsift.data.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedsift.data.coding import Outcome
    from fedsift.data.covariates import Covariate
    from fedsift.data.dictionary import Dictionary
    from fedsift.data.tables import Table

__all__ = ["PredictionTable", "from_frame", "read_as", "read_sites", "read_table"]


def read_sites(
    paths: str | Path | Sequence[str | Path],
    target: str | Sequence[str],
    *,
    site_column: str | None = None,
    id_column: str | None = None,
    weight_column: str | None = None,
    time_column: str | None = None,
    features_in_common: bool = False,
    impute: Literal["mean"] | None = None,
    outcome: str = "auto",
    drop: Sequence[str] = (),
    covariates: Sequence[str] = (),
    separator: str | None = None,
) -> FederatedData:
    """Read site files: one file a site, or files with a column that names the site of each row.

    Every column that has no other purpose is a feature and must be numeric. Features may stand in
    another order in another file. What a reader of the result should know is kept in the notes and
    said in a `DataWarning`: columns that do not vary or that look like ids, sites with one class,
    classes of few rows or almost one name, columns left out and values filled.

    Args:
        paths: CSV (.csv), TSV (.tsv, .tab, .txt), both also packed (.csv.gz), Parquet (.parquet)
            or AnnData (.h5ad) files; a folder stands for those in it. Without a site column a site
            has the name of its file, less the ending. Of AnnData the features are those of X.
        target: column to predict; several, as a list or with commas between, are labels, each 1 or
            yes, 0 or no, or empty where it is not known (outcome "multilabel").
        site_column: column that names the site.
        id_column: column that names the person; rows of one id stay together in splits. Without
            it a row is called "file:line".
        weight_column: column of positive sample weights.
        time_column: column of the time until an event or the last sight; the target is then 1 where
            the event was seen and 0 where not, and the outcome "survival".
        features_in_common: keep the columns that all files have, in the order of the first file;
            otherwise files with different columns are refused.
        impute: "mean" marks missing features, to be filled with the (weighted) mean of the training
            rows of all sites when `Standardiser` has seen these. None refuses missing values.
        outcome: "auto" (`code_target` says how it is inferred), "regression", "binary",
            "multiclass", "multilabel", "poisson", "negative_binomial" or "survival".
        drop: columns to leave out.
        covariates: columns that stay in the model whatever is chosen; text, and whole numbers with
            few different values, become levels (`fedsift.data.covariates`).
        separator: separator of text files, where it is not the usual one of the ending.

    Raises:
        DataError: anything is wrong with the files, in one line with file, line, column and value.

    """
    files = site_files(paths)
    check_stems(files)
    staying = tuple(dict.fromkeys(covariates))
    targets = target_columns(target_name(target), outcome if time_column is None else "survival")
    roles = Roles(targets, site_column, id_column, weight_column, tuple(drop), staying, time_column)
    tables = Tables(tuple(load_table(path, separator) for path in files))
    return _joined(tables, roles, outcome, impute, features_in_common=features_in_common)


def read_as(paths: str | Path | Sequence[str | Path], dictionary: Dictionary) -> FederatedData:
    """Read site files as a data dictionary says: its columns by name, its classes and levels.

    Other columns are left alone, with a note.

    Raises:
        DataError: a column is absent, a value is no class or level, or as `read_sites` says.
    """
    files = site_files(paths)
    check_stems(files)
    tables = Tables(tuple(load_table(path, dictionary.separator) for path in files))
    for table in tables.parts:
        _check_present(table, dictionary.features)
    return _joined(tables, dictionary.roles, dictionary.outcome, dictionary.impute, dictionary)


def from_frame(
    frame: Any,
    target: str | Sequence[str],
    *,
    site_column: str,
    id_column: str | None = None,
    weight_column: str | None = None,
    time_column: str | None = None,
    impute: Literal["mean"] | None = None,
    outcome: str = "auto",
    drop: Sequence[str] = (),
    covariates: Sequence[str] = (),
) -> FederatedData:
    """Take the rows of a polars or pandas frame, as `read_sites` does those of files.

    Example:
        >>> import fedsift, polars
        >>> frame = polars.DataFrame({"age": [1, 2, 3], "sick": [0, 1, 0], "at": ["a", "b", "a"]})
        >>> fedsift.data.from_frame(frame, "sick", site_column="at").sizes
        (2, 1)

    Args:
        frame: a polars DataFrame or LazyFrame, or a pandas DataFrame, whose index is not looked at.
        target: column to predict, or several labels, as for `read_sites`.
        site_column: column that names the site.
        id_column: as the following for `read_sites`.
        weight_column: column of positive sample weights.
        time_column: column of the time until an event or the last sight.
        impute: "mean" or None.
        outcome: as for `read_sites`.
        drop: columns to leave out.
        covariates: columns that stay in the model whatever is chosen.

    Raises:
        DataError: anything is wrong with the frame, in one line with row, column and value.
    """
    staying = tuple(dict.fromkeys(covariates))
    targets = target_columns(target_name(target), outcome if time_column is None else "survival")
    roles = Roles(targets, site_column, id_column, weight_column, tuple(drop), staying, time_column)
    return _joined(Tables((table_of_frame(frame),)), roles, outcome, impute)


def _joined(
    tables: Tables,
    roles: Roles,
    outcome: str,
    impute: Literal["mean"] | None,
    dictionary: Dictionary | None = None,
    *,
    features_in_common: bool = False,
) -> FederatedData:
    """Return the rows of all tables, with notes, which are said as a warning to the user's line."""
    roles.check(tables.parts)
    target = target_name(roles.targets)
    if dictionary is None:
        features = common_features(tables.parts, roles, intersect=features_in_common)
        lost = columns_lost(tables.parts, roles, features)
    else:
        features = list(dictionary.features)
        lost = columns_unplanned(tables.parts, {*features, *dictionary.taken})
    planned = None if dictionary is None else dictionary.classes
    y, kind, classes = _coded(tables, roles, outcome, planned)
    sites, ids = _sites(tables, roles.site), row_ids(tables, roles.id)
    _check_ids(tables, ids, sites)
    weight = row_weights(tables, roles.weight)
    staying = (
        read_covariates(tables, roles.covariates) if dictionary is None else dictionary.staying
    )
    values = np.concatenate([tables.numbers(features), code_covariates(tables, staying)], axis=1)
    candidates, n_candidates = features, len(features)
    features = [*features, *columns_of(staying)]
    if impute == "mean":
        refuse_empty(tables, features, values)
    else:
        refuse_missing(tables, features, values)
    order, names, offsets = group_rows(sites)
    missing = torch.from_numpy(np.isnan(values[order]))
    data = FederatedData(
        x=torch.from_numpy(values[order].astype(np.float32)).masked_fill(missing, 0.0),
        y=y[order],
        weight=torch.from_numpy(weight[order].astype(np.float32)),
        offsets=offsets,
        sites=names,
        features=tuple(features),
        rows=tuple(ids[row] for row in order),
        outcome=kind,
        classes=classes,
        target=target,
        missing=missing if impute == "mean" else None,
        covariates=staying,
    )
    notes = (
        *lost,
        *notes_on_columns(candidates, values[:, :n_candidates], ids=roles.id is not None),
        *notes_on_rows(values[order], dict(zip(names, data.slices, strict=True))),
        *notes_on_target(data),
    )
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=3)
    return replace(data, notes=notes)


def _coded(tables: Tables, roles: Roles, outcome: str, classes: tuple[str, ...] | None) -> Coded:
    """Return the target as numbers; ``classes`` and outcome are those of a dictionary, if any."""
    target, *others = roles.targets
    if roles.time is not None:
        return Coded(event_times(tables, target, roles.time), "survival", ())
    if others or outcome == "multilabel":
        y = read_labels(tables, roles.targets)
        if classes is None:
            check_labels(by_label(y, roles.targets))
        return Coded(y, "multilabel", roles.targets)
    labels = complete_labels(tables, target)
    if not classes:
        return code_target(labels, outcome, target, tables.where)
    kind: Outcome = "binary" if outcome == "binary" else "multiclass"
    return Coded(encode(labels, classes, target, tables.where), kind, classes)


def read_labels(tables: Tables, names: Sequence[str]) -> Tensor:
    """Return several labels of each row as codes (`code_labels`), [N, K]."""
    return code_labels([tables.labels(name) for name in names], names, tables.where)


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """Rows to predict: x float32 [N, d], ids, and y [N] where the file has the target.

    The last columns of x are those of the covariates.
    """

    x: Tensor
    features: tuple[str, ...]
    rows: tuple[str, ...]
    y: Tensor | None


def read_table(
    path: str | Path,
    features: Sequence[str],
    *,
    target: str | None = None,
    classes: Sequence[str] = (),
    id_column: str | None = None,
    usual_id: str | None = None,
    fills: Mapping[str, float] | None = None,
    covariates: Sequence[Covariate] = (),
    separator: str | None = None,
) -> PredictionTable:
    """Read rows for a model that is already there.

    Args:
        path: a file, or a folder of files, as for `read_sites`; other columns than those named are
            ignored.
        features: columns to read, in the model's order, without those of covariates.
        target: column with the truth; ignored where the file has no such column.
        classes: names of the classes of the target; empty for a measured target.
        id_column: column that names the row; None for "file:line".
        usual_id: column that does so where there is one of this name and no ``id_column``.
        fills: value for a missing feature (`Standardiser.fills`); without it none may be missing.
        covariates: of the model, with its levels.
        separator: separator of a text file, where it is not the usual one of the ending.

    Raises:
        DataError: a feature or the id column is absent, or a value is wrong, as in `read_sites`.

    """
    tables = Tables(tuple(load_table(file, separator) for file in site_files(path)))
    for table in tables.parts:
        _check_present(table, [*features, *(covariate.name for covariate in covariates)])
    if id_column is None and usual_id is not None and tables.have(usual_id):
        id_column = usual_id
    if id_column is not None:
        for table in tables.parts:
            table.require(id_column, "id")
    values = np.concatenate([tables.numbers(features), code_covariates(tables, covariates)], axis=1)
    columns = (*features, *columns_of(covariates))
    for column, name in enumerate(columns):
        if fills and name in fills:
            values[np.isnan(values[:, column]), column] = fills[name]
    refuse_missing(tables, columns, values)
    y: Tensor | None = None
    if target is not None and tables.have(target):
        labels = complete_labels(tables, target)
        y = (
            encode(labels, classes, target, table.where)
            if classes
            else torch.from_numpy(tables.numbers([target])[:, 0]).float()
        )
    x = torch.from_numpy(values.astype(np.float32))
    return PredictionTable(x, columns, tuple(row_ids(tables, id_column)), y)


def _check_present(table: Table, wanted: Sequence[str]) -> None:
    present = set(table.frame.columns)
    absent = [name for name in wanted if name not in present]
    if absent:
        raise DataError(
            f"{table.path.name}: {len(absent)} of {counted(len(wanted), 'feature')} absent:"
            f" {listed(absent)}; {nearest(absent[0], table.frame.columns)}"
        )


def complete_labels(tables: Tables, target: str) -> list[Label]:
    labels = tables.labels(target)
    empty = [row for row, label in enumerate(labels) if label is None]
    if empty:
        raise DataError(
            f"{tables.where(empty[0])}: the target '{target}' is missing"
            f" ({len(empty)} of {counted(len(labels), 'row')}); fill it in or remove the rows"
        )
    return [label for label in labels if label is not None]


def event_times(tables: Tables, target: str, time_column: str) -> Tensor:
    """Return times with signs (`code_survival`), [N]."""
    times = tables.numbers([time_column])
    refuse_missing(tables, [time_column], times)
    labels = complete_labels(tables, target)
    return code_survival(labels, times[:, 0].tolist(), target, tables.where)


def _sites(tables: Tables, column: str | None) -> list[str]:
    if column is not None:
        return tables.strings(column, "site")
    return [site_name(part.path) for part in tables.parts for _ in part.lines]


def row_ids(tables: Tables, column: str | None) -> list[str]:
    if column is not None:
        return tables.strings(column, "id")
    return [f"{site_name(part.path)}:{line}" for part in tables.parts for line in part.lines]


def _check_ids(tables: Tables, ids: Sequence[str], sites: Sequence[str]) -> None:
    first: dict[str, int] = {}
    clashes: dict[str, int] = {}
    for row, name in enumerate(ids):
        if sites[first.setdefault(name, row)] != sites[row]:
            clashes.setdefault(name, row)
    for name, row in clashes.items():
        raise DataError(
            f"id '{name}' is at site '{sites[first[name]]}' ({tables.where(first[name])}) and at"
            f" site '{sites[row]}' ({tables.where(row)}); such ids: {len(clashes)}. Remove one of"
            " each pair, or give different people different ids"
        )


def row_weights(tables: Tables, column: str | None) -> np.ndarray:
    if column is None:
        return np.ones(tables.starts[-1])
    weight = tables.numbers([column])[:, 0]
    bad = np.flatnonzero(~(weight > 0)).tolist()
    if bad:
        raise DataError(
            f"{tables.where(bad[0])}: the weight '{column}' is {weight[bad[0]]}"
            f" ({counted(len(bad), 'such row')}); weights must be positive: remove rows that should"
            " not count"
        )
    return weight
