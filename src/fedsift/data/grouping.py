"""Rows brought together by site, and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.coding import Label

__all__ = ["group_rows", "numbered", "plain_values", "texts"]


def group_rows(labels: Sequence[str]) -> tuple[list[int], tuple[str, ...], tuple[int, ...]]:
    """Bring the rows of a site together.

    Returns:
        the rows in their new order, the sites in the order of their first row, and the offsets.

    """
    members: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault(label, []).append(row)
    order = [row for rows in members.values() for row in rows]
    return order, tuple(members), (0, *np.cumsum([len(rows) for rows in members.values()]).tolist())


def plain_values(values: object) -> list[Label]:
    """Return a list of plain Python values from a list, an array or a tensor."""
    array = values if isinstance(values, torch.Tensor) else np.asarray(values, dtype=object)
    return cast("list[Label]", array.tolist())


def texts(values: object) -> list[str]:
    """Return a list of text from a list, an array or a tensor."""
    return [str(value) for value in plain_values(values)]


def numbered(names: Sequence[str], offsets: Sequence[int]) -> tuple[str, ...]:
    """Name rows "site:number"."""
    sizes = np.diff(offsets).tolist()
    return tuple(
        f"{name}:{row}"
        for name, size in zip(names, sizes, strict=True)
        for row in range(1, size + 1)
    )
