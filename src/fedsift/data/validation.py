"""What must hold for `FederatedData`, whoever made it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

import torch

from fedsift.data.coding import Outcome, has_classes, is_count
from fedsift.data.covariates import columns_of
from fedsift.data.errors import DataError, counted, listed

if TYPE_CHECKING:
    from fedsift.data.federated import FederatedData

__all__ = ["check"]

_PIECE = 1 << 22  # numbers that are checked at a time


def check(data: FederatedData) -> None:
    """Refuse data that contradict themselves.

    Raises:
        DataError: lengths, names, codes or values do not fit together.

    """
    _check_rows(data)
    _check_missing(data)
    _check_role(data)
    _check_names(data)
    _check_target(data)


def _check_rows(data: FederatedData) -> None:
    count = len(data.x)
    lengths = {"y": len(data.y), "weight": len(data.weight), "rows": len(data.rows)}
    for name, length in lengths.items():
        if length != count:
            raise DataError(
                f"{name} has length {length} for {counted(count, 'row')} of x; give one a row"
            )
    ends = list(data.offsets)
    if len(ends) != len(data.sites) + 1 or ends[0] != 0 or ends[-1] != count or min(data.sizes) < 1:
        raise DataError(
            f"offsets must rise from 0 to {count} with a row at least for each of"
            f" {counted(len(data.sites), 'site')}"
        )
    if data.x.dtype not in {torch.float32, torch.float64} or not _finite(data):
        raise DataError(
            "x must be float32 (or float64) and finite; remove or fill missing and infinite values"
        )
    if not bool((torch.isfinite(data.weight) & (data.weight > 0)).all()):
        raise DataError(
            "sample weights must be positive and finite; leave out rows that should not count"
        )


def _check_role(data: FederatedData) -> None:
    role = data.role
    if role is None:
        return
    if role.shape != data.weight.shape or role.dtype != torch.int8:
        raise DataError(
            f"role is {role.dtype} of shape {list(role.shape)}; give an int8 number for each of"
            f" {counted(len(data.x), 'row')}"
        )
    if int(role.min()) < 0 or int(role.max()) > 2:
        raise DataError("role must be 0 (retain), 1 (forget) or 2 (held out) in every row")


def _finite(data: FederatedData) -> bool:
    """Return whether all of x is finite; read in pieces, and not again where that is known."""
    if data.x is data.checked:
        return True
    rows = max(1, _PIECE * len(data.x) // max(1, data.x.numel()))
    return all(bool(torch.isfinite(piece).all()) for piece in data.x.split(rows))


def _check_missing(data: FederatedData) -> None:
    if data.missing is None:
        return
    fits = data.missing.dtype == torch.bool and data.missing.shape == data.x.shape
    if not fits or not data.features or bool(data.x[data.missing].any()):
        raise DataError(
            "missing must be a boolean tensor of the shape of x, with 0 in x where it is True, and"
            " the features need names"
        )


def _check_names(data: FederatedData) -> None:
    for kind, names in (("site", data.sites), ("feature", data.features)):
        if len(set(names)) < len(names):
            repeated = [name for name, count in Counter(names).items() if count > 1]
            raise DataError(f"{kind} names must differ; repeated: {listed(repeated)}")
    if data.features and tuple(data.x.shape[1:]) != (len(data.features),):
        raise DataError(
            f"{counted(len(data.features), 'feature name')} for rows of shape"
            f" {tuple(data.x.shape[1:])}"
        )
    columns = columns_of(data.covariates)
    if columns and data.features[-len(columns) :] != columns:
        raise DataError(
            f"the last features must be the columns of the covariates ({listed(columns)}); make"
            " such data with FederatedData.with_covariates"
        )


def _check_target(data: FederatedData) -> None:
    if data.outcome not in get_args(Outcome):
        raise DataError(f"outcome '{data.outcome}' is unknown; choose {listed(get_args(Outcome))}")
    if data.outcome == "multilabel":
        valid = (
            data.y.dtype == torch.int64
            and tuple(data.y.shape) == (len(data.x), len(data.classes))
            and len(set(data.classes)) == len(data.classes) > 0
            and -1 <= int(data.y.min()) <= int(data.y.max()) <= 1
        )
    elif not has_classes(data.outcome):
        valid = (
            data.y.dtype == torch.float32
            and bool(torch.isfinite(data.y).all())
            and not (is_count(data.outcome) and float(data.y.min()) < 0)
            and not (data.outcome == "survival" and bool((data.y == 0).any()))
            and not data.classes
        )
    else:
        valid = data.y.dtype == torch.int64 and 0 <= int(data.y.min()) <= int(data.y.max()) < len(
            data.classes
        )
    if not valid:
        raise DataError(
            f"y does not fit the outcome '{data.outcome}' with"
            f" {counted(len(data.classes), 'class')}"
        )
