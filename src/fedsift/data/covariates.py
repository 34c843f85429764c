"""Covariates: columns that stay in a model whatever is chosen, and how their values become numbers.

A measured covariate is one column. One of L levels is L - 1 columns of 0 and 1, against its first
level, the same at every site: each site tells its levels, and all agree on their union.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsift.data.coding import as_number, code_of, label_name
from fedsift.data.errors import DataError, counted, listed, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedsift.data.coding import Label
    from fedsift.data.tables import Tables

__all__ = [
    "Covariate", "agree", "code_covariates", "columns_of", "covariate_facts", "read_covariates",
]  # fmt: skip

FEW_LEVELS = 5
LARGEST_LEVEL = 10.0
MOST_LEVELS = 20


@dataclass(frozen=True)
class Covariate:
    """A column that stays in the model.

    Attributes:
        name: of the column.
        levels: its L values in order, the first is what others are compared with; empty for a
            measured covariate.
    """

    name: str
    levels: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of numbers that it becomes."""
        return tuple(f"{self.name}={level}" for level in self.levels[1:]) or (self.name,)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {"name": self.name, "levels": list(self.levels)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Covariate:
        """Rebuild a covariate from `to_dict`."""
        return cls(str(stored["name"]), tuple(stored["levels"]))


def columns_of(covariates: Sequence[Covariate]) -> tuple[str, ...]:
    """Return the names of all columns of numbers that covariates become, in their order."""
    return tuple(column for covariate in covariates for column in covariate.columns)


def covariate_facts(labels: Sequence[Label | None], name: str) -> dict[str, Any]:
    """Return what one site may tell of a covariate, for all to agree on its levels.

    ``kind``: "text", whose different values are told under ``names``; "whole" for at most five
    different whole numbers from 0 to 10, which are told, too; "measured" for other numbers, of
    which nothing is told. None is a missing value.

    Raises:
        DataError: there are too many texts for levels: they may be ids.
    """
    present = [label for label in labels if label is not None]
    known = [number for number in map(as_number, present) if number is not None]
    if len(known) == len(present):
        values = sorted(set(known))
        whole = all(0 <= value <= LARGEST_LEVEL and value == int(value) for value in values)
        if not whole or len(values) > FEW_LEVELS:
            return {"kind": "measured", "names": []}
        return {"kind": "whole", "names": [label_name(value) for value in values]}
    names = sorted({label_name(label) for label in present})
    if len(names) > MOST_LEVELS:
        raise DataError(
            f"the covariate '{name}' has {len(names)} different texts ({listed(names)}), at most"
            f" {MOST_LEVELS} can be levels; group them, or leave it out"
        )
    return {"kind": "text", "names": names}


def agree(name: str, said: Mapping[str, Mapping[str, Any]]) -> Covariate:
    """Return a covariate as all sites see it, from their `covariate_facts`.

    It has levels where it is text at some site, or where its whole numbers are at most five
    different ones at all sites together; a site need not have every level.

    Raises:
        DataError: it is text at one site and measured at another, or has one value only.
    """
    kinds = {site: facts["kind"] for site, facts in said.items()}
    text = [site for site, kind in kinds.items() if kind == "text"]
    measured = [site for site, kind in kinds.items() if kind == "measured"]
    if text and measured:
        raise DataError(
            f"the covariate '{name}' is text at {listed(text)} and measured at {listed(measured)};"
            " write it in one way"
        )
    names = {level for facts in said.values() for level in facts["names"]}
    if measured or (not text and len(names) > FEW_LEVELS):
        return Covariate(name)
    if len(names) < 2:
        value = listed(names) if names else "no value"
        raise DataError(f"the covariate '{name}' has {value} in all rows; leave it out")
    if len(names) > MOST_LEVELS:
        raise DataError(
            f"the covariate '{name}' has {len(names)} levels at all sites together ({listed(names)}"
            f"), at most {MOST_LEVELS} can be told apart; group them, or leave it out"
        )
    try:
        return Covariate(name, tuple(sorted(names, key=float)))
    except ValueError:
        return Covariate(name, tuple(sorted(names)))


def read_covariates(tables: Tables, names: Sequence[str]) -> tuple[Covariate, ...]:
    """Return the covariates of these columns, agreed over the tables, a file after the other.

    Raises:
        DataError: as `covariate_facts` and `agree` say.
    """
    return tuple(
        agree(
            name,
            {
                part.path.name: covariate_facts(part.labels(name), name)
                for part in tables.parts
            },
        )
        for name in names
    )  # fmt: skip


def code_covariates(tables: Tables, covariates: Sequence[Covariate]) -> np.ndarray:
    """Return the numbers of covariates, float64 [N, q], NaN where a value is missing.

    Raises:
        DataError: a value is no number, or no level of the covariate; file and row are named.
    """
    parts = [
        _levels(tables, covariate) if covariate.levels else tables.numbers([covariate.name])
        for covariate in covariates
    ]
    return np.concatenate([np.empty((tables.starts[-1], 0)), *parts], axis=1)


def _levels(tables: Tables, covariate: Covariate) -> np.ndarray:
    """Return 0 and 1 for each level but the first, [N, L - 1]."""
    place = {level: number for number, level in enumerate(covariate.levels)}
    labels = tables.labels(covariate.name)
    coded = np.zeros((len(labels), len(place)))
    for row, label in enumerate(labels):
        if label is None:
            coded[row] = np.nan
            continue
        known = code_of(label, place)
        if known is None:
            name = label_name(label)
            raise DataError(
                f"{tables.where(row)}: '{name}' is none of the"
                f" {counted(len(place), 'level')} of the covariate '{covariate.name}';"
                f" {nearest(name, covariate.levels)}"
            )
        coded[row, known] = 1.0
    return coded[:, 1:]
