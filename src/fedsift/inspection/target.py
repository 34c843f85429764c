"""The target of site files: its kind, its classes by site, and whether the rows are enough."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsift.data.coding import by_label, check_labels, code_target, target_columns
from fedsift.data.errors import DataError
from fedsift.data.readers import read_labels
from fedsift.information import (
    fewest_samples,
    most_features,
    nats_of_classes,
    nats_of_measured,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fedsift.data.tables import Tables
    from fedsift.inspection.cells import Cells

SNR = 1.0
"""What is supposed of a measured target: its features explain half of the variance."""

ROOM = 2
"""Rows over the information limit from which most of the features are found, about."""

_MOST_CLASSES = 10
_GUESSES = 5


def target_facts(
    tables: Tables, target: str, outcome: str, rows: Mapping[str, np.ndarray], min_cell: int
) -> dict[str, Any]:
    """Return the outcome, the classes and their counts in all and by site, and what is wrong.

    ``problem`` is None, ``one value``, ``text`` (as many texts as rows, or nearly), ``mixed`` (text
    among numbers) or ``unlike`` (another whole number in each row, as ids have). Of several labels
    the counts are of rows where each is 1; ``unknown`` those that do not know it, and the problem
    ``labels`` comes with a ``reason``.
    """
    names = target_columns(target, outcome)
    if outcome == "multilabel" or len(names) > 1:
        return _labels(tables, names, target, rows, min_cell)
    labels = tables.labels(target)
    known = [row for row, label in enumerate(labels) if label is not None]
    present = [label for label in labels if label is not None]
    facts: dict[str, Any] = {"name": target, "missing": len(labels) - len(known)}
    nothing: dict[str, Any] = {"outcome": None, "classes": {}, "by_site": {}}
    try:
        coded = code_target(present, outcome, target)
    except DataError:
        return facts | nothing | {"problem": _problem(present)}
    codes = np.full(len(labels), -1)
    if not coded.classes:
        values = np.sort(coded.y.double().numpy())
        unlike = len(values) > _MOST_CLASSES and bool(
            (values == np.floor(values)).all() and (np.diff(values) != 0).all()
        )
        problem = "unlike" if unlike else None
        return facts | nothing | {"outcome": coded.outcome, "problem": problem}
    codes[known] = coded.y.numpy()
    by_site = {
        site: _counts(codes[chosen], coded.classes, min_cell) for site, chosen in rows.items()
    }
    return facts | {
        "outcome": coded.outcome,
        "classes": _counts(codes, coded.classes, min_cell),
        "by_site": by_site,
        "problem": None,
    }


def _labels(
    tables: Tables,
    names: Sequence[str],
    target: str,
    rows: Mapping[str, np.ndarray],
    min_cell: int,
) -> dict[str, Any]:
    """Return the same of several labels."""
    facts: dict[str, Any] = {"name": target, "outcome": "multilabel", "missing": 0}
    try:
        coded = read_labels(tables, names)
        check_labels(by_label(coded, names))
    except DataError as error:
        nothing: dict[str, Any] = {"classes": {}, "by_site": {}, "unknown": {}}
        return facts | nothing | {"outcome": None, "problem": "labels", "reason": str(error)}

    def counts(codes: np.ndarray, code: int) -> dict[str, int | None]:
        each = zip(names, (codes == code).sum(0).tolist(), strict=True)
        return {name: count if count >= min_cell else None for name, count in each}

    codes = coded.numpy()
    return facts | {
        "classes": counts(codes, 1),
        "by_site": {site: counts(codes[chosen], 1) for site, chosen in rows.items()},
        "unknown": counts(codes, -1),
        "problem": None,
    }


def _counts(codes: np.ndarray, classes: Iterable[str], min_cell: int) -> dict[str, int | None]:
    counts = Counter(codes.tolist())
    return {
        name: counts[code] if counts[code] >= min_cell else None
        for code, name in enumerate(classes)
    }


def _problem(labels: list[Any]) -> str:
    if len(set(labels)) < 2:
        return "one value"
    numbers = sum(_is_number(label) for label in labels)
    return "mixed" if numbers > len(labels) / 2 else "text"


def _is_number(label: Any) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def candidates(tables: Tables, cells: Cells, taken: Iterable[str]) -> list[str]:
    """Return columns that could be a target: those of two to ten texts, then of two numbers."""
    others = {name for part in tables.parts for name in part.annotations} - {*taken}
    texts = dict(cells.text) | {
        name: len({*tables.labels(name)} - {None}) for name in sorted(others) if tables.have(name)
    }
    found = [name for name, count in texts.items() if 2 <= count <= _MOST_CLASSES]
    for name, column in zip(cells.names, cells.values.T, strict=True):
        if len(found) >= _GUESSES:
            break
        if len(np.unique(column[~np.isnan(column)])) == 2:
            found.append(name)
    return found[:_GUESSES]


def limit(
    target: Mapping[str, Any] | None, samples: int, total: int, kept: int | None
) -> dict[str, Any] | None:
    """Return how many features can be named from so many samples (`fewest_samples`).

    ``features`` asked for, or without a wish the most for which there are `ROOM` times as many rows
    as the bound; ``samples_needed`` for them by the bound; ``most_features`` by the bound alone,
    ``safe_features`` with `ROOM`; ``nats`` a sample tells at most. A measured target is supposed to
    have the signal-to-noise ratio `SNR`; labels tell their entropies together.
    """
    if target is None or target["outcome"] is None or not total:
        return None
    counts = [count or 0 for count in target["classes"].values()]
    if target["outcome"] == "multilabel":
        known = [samples - (count or 0) for count in target["unknown"].values()]
        pairs = list(zip(counts, known, strict=True))
        nats = sum(n / samples * nats_of_classes([yes, n - yes]) for yes, n in pairs)
        nats = nats or nats_of_measured(SNR)  # counts that are too small to be told
    else:
        nats = nats_of_classes(counts) if sum(map(bool, counts)) > 1 else nats_of_measured(SNR)
    safe = max(1, most_features(samples // ROOM, total, nats))
    wanted = min(safe if kept is None else kept, total)
    return {
        "features": wanted,
        "asked": kept,
        "samples_needed": fewest_samples(wanted, total, nats),
        "most_features": most_features(samples, total, nats),
        "safe_features": safe,
        "nats": nats,
        "snr": None if target["classes"] else SNR,
    }
