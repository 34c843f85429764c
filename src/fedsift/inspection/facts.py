"""All that is told of site files, as one object that JSON can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedsift.data.coding import target_columns, target_name
from fedsift.data.columns import Roles, check_stems
from fedsift.data.duplicates import shared_rows
from fedsift.data.errors import DataError, listed
from fedsift.data.files import load_table
from fedsift.data.grouping import group_rows
from fedsift.data.paths import site_files, site_name
from fedsift.data.tables import Tables
from fedsift.inspection import sites
from fedsift.inspection.cells import Cells, read_cells
from fedsift.inspection.covariates import covariate_facts
from fedsift.inspection.target import candidates, limit, target_facts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SHOWN = 5


def inspect_files(
    paths: str | Path | Sequence[str | Path],
    *,
    target: str | Sequence[str] | None = None,
    site_column: str | None = None,
    id_column: str | None = None,
    weight_column: str | None = None,
    drop: Sequence[str] = (),
    covariates: Sequence[str] = (),
    outcome: str = "auto",
    separator: str | None = None,
    features: int | None = None,
    min_cell: int = 0,
) -> dict[str, Any]:
    """Return what site files hold: counts, names and statistics over rows, no row's values.

    What `fedsift.data.read_sites` would refuse (missing values, text among numbers, columns that
    differ, a target that cannot be one) is counted instead.

    Args:
        paths: site files, as for `read_sites`.
        target: column to predict, or several labels; without it columns that could be one are
            named.
        site_column: column that names the site.
        id_column: column that names the person.
        weight_column: column of sample weights.
        drop: columns to leave out.
        covariates: columns that stay in the model whatever is chosen; they are no features.
        outcome: kind of the target, as for `read_sites`.
        separator: separator of text files.
        features: how many features are wanted; whether there are rows enough is said for this many.
        min_cell: counts of fewer rows than that are None, and such sites are not compared.

    Returns:
        ``samples``, ``sites``, ``features``, ``columns`` (those that are lost, text, constant, or
        not readable in places), ``covariates`` (`inspection.covariates`), ``missing``, ``scale``
        and ``drift`` (`inspection.sites`), ``duplicates``, ``target`` and ``limit``
        (`inspection.target`).

    Raises:
        DataError: a file cannot be read as a table, or a named column is absent.
    """
    files = site_files(paths)
    check_stems(files)
    tables = Tables(tuple(load_table(path, separator) for path in files))
    staying = tuple(dict.fromkeys(covariates))
    target = None if target is None else target_name(target)
    targets = () if target is None else target_columns(target, outcome)
    roles = Roles(targets, site_column, id_column, weight_column, tuple(drop), staying)
    for table in tables.parts:
        for purpose, column in roles.uses:
            table.require(column, purpose)
        for column in staying:
            table.require(column, "covariate")
    common, lost = _columns(tables, roles)
    cells = read_cells(tables, common)
    rows = _rows_of_sites(tables, site_column)
    large = {site: chosen for site, chosen in rows.items() if len(chosen) >= min_cell}
    taken = {*(column for _, column in roles.uses), *staying}
    told = None if target is None else target_facts(tables, target, outcome, rows, min_cell)
    facts: dict[str, Any] = {
        "samples": int(tables.starts[-1]),
        "sites": {site: counted_from(len(chosen), min_cell) for site, chosen in rows.items()},
        "features": len(cells.names),
        "covariates": [covariate_facts(tables, name, min_cell) for name in staying],
        "columns": _column_facts(cells, lost),
        "missing": _missing(cells),
        "scale": sites.scale(cells.values, large),
        "drift": sites.drift(cells.names, cells.values, large),
        "duplicates": shared_rows(cells.values, rows)._asdict(),
        "target": told,
        "candidates": candidates(tables, cells, taken) if target is None else [],
        "limit": limit(told, int(tables.starts[-1]), len(cells.names), features),
    }
    if id_column is not None:
        shared = sites.shared_ids(tables.labels(id_column), rows)
        facts["duplicates"]["ids_at_several_sites"] = shared
    return facts


def counted_from(count: int, min_cell: int) -> int | None:
    """Return a count of rows, or None below ``min_cell``."""
    return count if count >= min_cell else None


def _columns(tables: Tables, roles: Roles) -> tuple[list[str], list[str]]:
    """Return the features that all tables have, and those that some lack."""
    first = roles.features(tables.parts[0])
    every = dict.fromkeys(name for part in tables.parts for name in roles.features(part))
    for column in roles.drop:
        if not any(column in part.frame.columns for part in tables.parts):
            raise DataError(f"no file has a column '{column}' to drop; there are {listed(every)}")
    present = [set(roles.features(part)) for part in tables.parts]
    common = [name for name in first if all(name in names for names in present)]
    if not common:
        raise DataError("no column is in all files; give files of the same columns")
    return common, [name for name in every if name not in set(common)]


def _rows_of_sites(tables: Tables, column: str | None) -> dict[str, np.ndarray]:
    if column is None:
        labels = [site_name(part.path) for part in tables.parts for _ in part.lines]
    else:
        labels = tables.strings(column, "site")
    order, names, offsets = group_rows(labels)
    pieces = np.split(np.array(order), offsets[1:-1])
    return dict(zip(names, pieces, strict=True))


def _column_facts(cells: Cells, lost: Sequence[str]) -> dict[str, Any]:
    low, high = (function(cells.values) for function in (_lowest, _highest))
    present = ~np.isnan(cells.values).all(0)
    constant = [
        name
        for name, same in zip(cells.names, (present & (low == high)).tolist(), strict=True)
        if same
    ]
    empty = [name for name, some in zip(cells.names, present.tolist(), strict=True) if not some]
    return {
        "lost": list(lost),
        "text": dict(cells.text),
        "constant": constant,
        "empty": empty,
        "unreadable": {name: wrong._asdict() for name, wrong in cells.unreadable.items()},
    }


def _lowest(values: np.ndarray) -> np.ndarray:
    lowest: np.ndarray = np.where(np.isnan(values), np.inf, values).min(0)
    return lowest


def _highest(values: np.ndarray) -> np.ndarray:
    return -_lowest(-values)


def _missing(cells: Cells) -> dict[str, Any]:
    holes = np.isnan(cells.values)
    by_column = dict(zip(cells.names, holes.sum(0).tolist(), strict=True))
    worst = sorted((n for n in by_column if by_column[n]), key=lambda n: -by_column[n])
    return {
        "values": int(holes.sum()),
        "share": float(holes.mean()) if holes.size else 0.0,
        "rows": int(holes.any(1).sum()),
        "columns": len(worst),
        "worst": {name: by_column[name] for name in worst[:_SHOWN]},
    }
