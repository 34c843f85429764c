"""Rows brought together by site, and their names."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast, overload

import numpy as np
import torch

if TYPE_CHECKING:
    from fedsift.data.coding import Label

__all__ = ["Numbered", "Texts", "group_rows", "plain_values", "texts"]


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


class _OnDemand(Sequence[str]):
    """Texts that are made as they are asked for, by ``_at`` from a row number from 0 on."""

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(self[row] for row in range(*place.indices(len(self))))
        return self._at(range(len(self))[place])

    @abstractmethod
    def _at(self, row: int) -> str: ...


class Numbered(_OnDemand):
    """The names "site:number" of the rows of sites, made as they are asked for."""

    def __init__(self, sites: Sequence[str], offsets: Sequence[int]) -> None:
        self._sites, self._offsets = sites, offsets

    def __len__(self) -> int:
        return self._offsets[-1]

    def _at(self, row: int) -> str:
        site = bisect_right(self._offsets, row) - 1
        return f"{self._sites[site]}:{row - self._offsets[site] + 1}"


class Texts(_OnDemand):
    """Texts that lie one after the other in an array of UTF-8 bytes; ``ends`` [N] says where."""

    def __init__(self, content: np.ndarray, ends: np.ndarray) -> None:
        self._content, self._ends = content, ends

    def __len__(self) -> int:
        return len(self._ends)

    def _at(self, row: int) -> str:
        start = self._ends[row - 1] if row else 0
        return self._content[start : self._ends[row]].tobytes().decode()
