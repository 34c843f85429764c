"""The covariates of site files: their levels, the missing values, and what a fit would refuse."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fedsift.data.coding import as_number, code_of, label_name
from fedsift.data.covariates import read_covariates
from fedsift.data.errors import DataError

if TYPE_CHECKING:
    from fedsift.data.coding import Label
    from fedsift.data.tables import Tables


def covariate_facts(tables: Tables, name: str, min_cell: int) -> dict[str, Any]:
    """Return how often each level of a covariate is there, none of a measured one.

    ``problem`` is None, ``one value``, ``mixed`` (text among numbers) or ``texts`` (too many
    different ones for levels). Counts below ``min_cell`` are None.
    """
    labels = tables.labels(name)
    present = [label for label in labels if label is not None]
    facts: dict[str, Any] = {"name": name, "missing": len(labels) - len(present)}
    try:
        (covariate,) = read_covariates(tables, [name])
    except DataError:
        return facts | {"levels": {}, "problem": _problem(present)}
    place = {level: number for number, level in enumerate(covariate.levels)}
    counts = Counter(code_of(label, place) for label in present)
    levels = {
        level: counts[code] if counts[code] >= min_cell else None for level, code in place.items()
    }
    return facts | {"levels": levels, "problem": None}


def _problem(present: list[Label]) -> str:
    if len(set(map(label_name, present))) < 2:
        return "one value"
    numbers = sum(as_number(label) is not None for label in present)
    return "mixed" if numbers else "texts"
