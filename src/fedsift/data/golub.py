"""Leukemia (Golub et al., Science 286:531, 1999): gene expression of patients with ALL or AML."""

from __future__ import annotations

import importlib.resources
import io
import lzma
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
import torch

from fedsift.data.errors import DataError
from fedsift.data.federated import FederatedData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["KNOWN_GENES", "golub38", "golub72", "golub_raw", "golub_recipe"]

KNOWN_GENES = {
    "M27891_at": "CST3",
    "M19507_at": "MPO",
    "X95735_at": "zyxin",
    "M23197_at": "CD33",
    "M84526_at": "adipsin",
}
"""Genes that tell AML from ALL, as biologists know them: accession number to the usual name."""

_FLOOR, _CEILING, _FOLD, _RANGE = 100.0, 16_000.0, 5.0, 500.0
_TRAINING_PATIENTS = 38
_EXPRESSION_FILES = ("data_set_ALL_AML_train.csv", "data_set_ALL_AML_independent.csv")
_LABEL_FILE = "actual.csv"
_SITE = "golub"


def golub38() -> FederatedData:
    """Return the 38 training patients x 3051 genes; embedded, works offline.

    ``log10`` expression, clipped, filtered and standardised array by array as in `golub_recipe`,
    to 5 decimals. Features are accession numbers with descriptions; rows "patient 1" to "patient
    38"; the outcome "diagnosis" is ALL (27) or AML (11); one site "golub".

    Source: Bioconductor's package multtest (LGPL-3+), object ``golub``; S. Dudoit, J. Fridlyand &
    T. P. Speed, JASA 97:77 (2002). ``scripts/make_golub38.py`` makes the file.

    """
    packed = (importlib.resources.files(__package__) / "golub38.npz.xz").read_bytes()
    with np.load(io.BytesIO(lzma.decompress(packed)), allow_pickle=False) as stored:
        values = stored["values"] / 10.0 ** int(stored["decimals"])
        aml = stored["aml"].tolist()
        accessions, descriptions = (
            bytes(stored[name]).decode().split("\n") for name in ("accessions", "descriptions")
        )
    patients = range(1, _TRAINING_PATIENTS + 1)
    labels = ["AML" if code else "ALL" for code in aml]
    return _assembled(
        torch.from_numpy(values.T),
        labels,
        patients,
        dict(zip(accessions, descriptions, strict=True)),
    )


def golub72(
    folder: str | Path | None = None, *, filter_on: Literal["all", "train38"] = "all"
) -> FederatedData:
    """Return the 72 patients with the genes that pass `golub_recipe`, built from the raw files.

    Args:
        folder: folder with the raw files or with ``golub/`` in it; None for ``FEDSIFT_DATA``.
        filter_on: "all" chooses genes on all 72 patients (3571 genes, as the literature does, test
            patients included); "train38" on patients 1 to 38 (3051 genes).

    Raises:
        DataError: the folder or a file is absent.

    """
    raw = golub_raw(folder)
    return golub_recipe(raw, None if filter_on == "all" else range(_TRAINING_PATIENTS))


def golub_recipe(raw: FederatedData, fit_on: Sequence[int] | Tensor | None = None) -> FederatedData:
    """Clip, filter, take logarithms and standardise each array.

    Raw values are clipped to [100, 16000]; genes with max/min > 5 and max - min > 500 are kept;
    ``log10``; each array gets mean 0 and standard deviation 1 (divisor d-1) over the genes kept.

    Args:
        raw: raw expression, as `golub_raw` gives it.
        fit_on: rows on which genes are chosen (the training rows); None for all.

    Returns:
        the same rows with the genes kept.

    Source: S. Dudoit, J. Fridlyand & T. P. Speed, JASA 97:77 (2002), section 3.

    """
    clipped = raw.x.double().clamp(_FLOOR, _CEILING)
    seen = clipped if fit_on is None else clipped[torch.as_tensor(fit_on)]
    high, low = seen.amax(0), seen.amin(0)
    kept = ((high / low > _FOLD) & (high - low > _RANGE)).nonzero().flatten()
    values = clipped[:, kept].log10()
    values = (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)
    return replace(raw.select_features(kept), x=values.float())


def golub_raw(folder: str | Path | None = None) -> FederatedData:
    """Return the raw expression of 72 patients, in the order of their numbers, x 7129 genes.

    Args:
        folder: folder with the raw files or with ``golub/`` in it; None for ``FEDSIFT_DATA``.

    Raises:
        DataError: the folder or a file is absent.

    """
    files = _folder(folder)
    columns: dict[int, np.ndarray] = {}
    genes: dict[str, str] = {}
    for name in _EXPRESSION_FILES:
        frame = pl.read_csv(files / name, infer_schema=False)
        genes = dict(
            zip(
                _stripped(frame, "Gene Accession Number"),
                _stripped(frame, "Gene Description"),
                strict=True,
            )
        )
        # The other columns are the calls (present, absent, marginal) of the patient before them.
        for patient in (column for column in frame.columns if column.strip().isdigit()):
            columns[int(patient)] = frame.get_column(patient).cast(pl.Float64).to_numpy()
    patients = sorted(columns)
    values = np.stack([columns[patient] for patient in patients])
    labels = pl.read_csv(files / _LABEL_FILE, schema_overrides={"patient": pl.Int64})
    diagnosis = dict(labels.select("patient", "cancer").iter_rows())
    return _assembled(
        torch.from_numpy(values), [diagnosis[patient] for patient in patients], patients, genes
    )


def _assembled(
    x: Tensor, labels: Sequence[str], patients: Sequence[int], genes: dict[str, str]
) -> FederatedData:
    data = FederatedData.from_arrays(
        x,
        labels,
        sites=[_SITE] * len(labels),
        features=list(genes),
        ids=[f"patient {number}" for number in patients],
        outcome="binary",
        target="diagnosis",
    )
    return replace(data, descriptions=genes)


def _stripped(frame: pl.DataFrame, column: str) -> list[str]:
    return frame.get_column(column).str.strip_chars().to_list()


def _folder(folder: str | Path | None) -> Path:
    """Return the folder of the raw files, or say how to get one."""
    named = folder if folder is not None else os.environ.get("FEDSIFT_DATA")
    wanted = f"{', '.join(_EXPRESSION_FILES)} and {_LABEL_FILE}"
    if not named:
        raise DataError(
            f"the 72 patients need {wanted} in a folder 'golub'; set FEDSIFT_DATA to the folder"
            " that holds it. golub38 needs none"
        )
    path = Path(named)
    path = path / "golub" if (path / "golub").is_dir() else path
    absent = [name for name in (*_EXPRESSION_FILES, _LABEL_FILE) if not (path / name).is_file()]
    if absent:
        raise DataError(
            f"{path}: {', '.join(absent)} not found; put the raw files there, or name their folder."
            " golub38 needs none"
        )
    return path
