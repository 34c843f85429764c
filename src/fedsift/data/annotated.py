"""AnnData files (.h5ad), as single-cell work keeps its data, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fedsift.data.errors import DataError, listed
from fedsift.data.frames import from_pandas
from fedsift.data.tables import Table, check_names

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MOST_VALUES", "load_h5ad"]

MOST_VALUES = 1 << 30  # of X once it is dense: 4 GB as float32
_INDEX = "obs_names"


def load_h5ad(path: Path) -> Table:
    """Read X, dense or sparse, and obs of an AnnData file; layers and the rest are not looked at.

    The features are the columns of X, called as ``var_names``. Columns of obs, and its index as
    ``obs_names``, can be target, site, id or weight, and are no features.

    Source of the format: https://anndata.readthedocs.io/en/stable/fileformat-prose.html.

    Raises:
        DataError: anndata is not installed, the file cannot be read, has no X, more than
            `MOST_VALUES` values, or names that are repeated.
    """
    x, obs, var = _read(path)
    names = [str(name) for name in var.index]
    repeated = sorted({*var.index[var.index.duplicated()].astype(str)})
    if repeated:
        raise DataError(
            f"{path.name}: var_names are repeated: {listed(repeated)}; rename them, as"
            " adata.var_names_make_unique() does"
        )
    annotations = from_pandas(obs)
    if _INDEX not in annotations.columns:
        index = pl.Series(_INDEX, [str(name) for name in obs.index], dtype=pl.String)
        annotations = annotations.with_columns(index)
    check_names(path, [*names, *annotations.columns])
    values = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    frame = pl.DataFrame(values, schema=names).hstack(annotations)
    rows = tuple(range(1, frame.height + 1))
    return Table(path, frame, rows, "row", frozenset(annotations.columns))


def _read(path: Path) -> tuple[Any, Any, Any]:
    """Return X (an array, or sparse) and the frames obs and var."""
    try:
        import h5py
        from anndata.io import read_elem
    except ImportError as error:
        raise DataError(
            f"{path.name}: .h5ad files need anndata: pip install 'fedsift[anndata]'"
        ) from error
    try:
        with h5py.File(path) as file:
            obs, var = read_elem(file["obs"]), read_elem(file["var"])
            if len(obs) * len(var) > MOST_VALUES:
                raise DataError(
                    f"{path.name}: X has {len(obs)} × {len(var)} values, too many to hold at once;"
                    " keep fewer variables, such as the highly variable genes"
                )
            return read_elem(file["X"]), obs, var
    except (OSError, KeyError) as error:
        raise DataError(
            f"{path.name}: is not an AnnData file with X, obs and var ({error}); write it anew with"
            " adata.write_h5ad"
        ) from error
