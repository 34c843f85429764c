"""Whether a site's file is what a plan asks for: each thing by itself, counted and not refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedsift.data.coding import (
    as_number,
    check_times,
    code_events,
    code_numbers,
    code_of,
    is_count,
    label_name,
)
from fedsift.data.errors import DataError, counted, listed, nearest
from fedsift.data.files import load_table
from fedsift.data.paths import site_name
from fedsift.data.readers import complete_labels, read_labels, row_weights
from fedsift.data.tables import Tables
from fedsift.inspection.cells import read_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from fedsift.data.coding import Label
    from fedsift.data.covariates import Covariate
    from fedsift.data.dictionary import Dictionary
    from fedsift.data.tables import Table

State = Literal["fits", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """What was found of one thing.

    Attributes:
        what: rows, target, features, a covariate, id, weight or site.
        state: ``wrong`` is in the way of a fit; ``note`` is not.
        text: names of columns, names that the plan has, and counts: what may leave the site.
        here: values that do not fit, for the site alone.
    """

    what: str
    state: State
    text: str
    here: str = ""


def check_file(path: Path, dictionary: Dictionary, site: str | None = None) -> dict[str, Any]:
    """Return what a site's file has of what a plan asks for.

    Args:
        path: file of the site.
        dictionary: what the plan asks for.
        site: its name; by default the file's, less the ending.

    Returns:
        ``site``, ``rows``, ``fits`` (nothing is wrong), and ``findings``, those of `Finding`.

    Raises:
        DataError: the file cannot be read as a table.
    """
    table = load_table(path, dictionary.separator)
    checks = (_rows, _target, _features, _missing, _covariates, _others)
    found = [finding for check in checks for finding in check(table, dictionary)]
    return {
        "site": site or site_name(path),
        "rows": table.frame.height,
        "fits": not any(finding.state == "wrong" for finding in found),
        "findings": [asdict(finding) for finding in found],
    }


def _rows(table: Table, dictionary: Dictionary) -> Iterator[Finding]:
    column = dictionary.site_column
    sites = [None] if column is None or column not in table.frame.columns else table.labels(column)
    least = min(Counter(sites).values()) if len(sites) > 1 else table.frame.height
    few = least < dictionary.min_rows
    asked = f"; the plan asks for {dictionary.min_rows} of a site" if few else ""
    where = f", {least} at the smallest site" if least < table.frame.height else ""
    text = f"{table.frame.height}{where}{asked}"
    yield Finding("rows", "wrong" if few else "fits", text)


def _target(table: Table, dictionary: Dictionary) -> Iterator[Finding]:
    if dictionary.outcome == "multilabel":
        yield from _labels(table, dictionary)
        return
    name, classes = dictionary.target, dictionary.classes
    if name not in table.frame.columns:
        yield _absent("target", name, table)
        return
    labels = table.labels(name)
    yield from _empty("target", name, labels, filled=False)
    if classes:
        yield from _named("target", name, labels, classes, "class")
        return
    if dictionary.outcome == "survival":
        yield from _values("target", name, table, _read_events, "an event (1) or none (0)")
    else:
        noun = "a count" if is_count(dictionary.outcome) else "a number"
        read = partial(_read_numbers, outcome=dictionary.outcome)
        yield from _values("target", name, table, read, noun)


def _read_events(rows: Tables, name: str) -> None:
    code_events(complete_labels(rows, name), name, rows.where)


def _read_numbers(rows: Tables, name: str, outcome: str) -> None:
    code_numbers(complete_labels(rows, name), outcome, name, rows.where)


def _read_times(rows: Tables, name: str, target: str) -> None:
    check_times(rows.numbers([name])[:, 0].tolist(), target, rows.where)


def _labels(table: Table, dictionary: Dictionary) -> Iterator[Finding]:
    """Look at the labels, which may be missing in some rows."""
    for name in dictionary.classes:
        if name not in table.frame.columns:
            yield _absent("target", name, table)
            continue
        try:
            coded = read_labels(Tables((table,)), [name])
        except DataError as error:
            yield Finding("target", "wrong", f"{name}: not a label in every row", str(error))
            continue
        unknown = int((coded < 0).sum())
        gaps = f", not known in {counted(unknown, 'row')}" if unknown else ""
        yield Finding("target", "fits", f"{name}: a label{gaps}")
        lacks = [str(code) for code in (0, 1) if not (coded == code).any()]
        if lacks:
            yield Finding("target", "note", f"{name}: no row of {listed(lacks)}")


def _features(table: Table, dictionary: Dictionary) -> Iterator[Finding]:
    have, features = table.frame.columns, dictionary.features
    lost = [name for name in features if name not in set(have)]
    known = {*features, *dictionary.taken, *table.annotations}
    extra = [name for name in have if name not in known]
    there = [name for name in have if name in set(features)]
    whole = f"{len(there)} of {len(features)}"
    if lost:
        names = f"{whole}; not there: {listed(lost)} ({nearest(lost[0], extra or have)})"
        yield Finding("features", "wrong", names)
    elif there != list(features):
        yield Finding("features", "note", f"{whole}, in another order, which does not matter")
    else:
        yield Finding("features", "fits", whole)
    if extra:
        text = f"{counted(len(extra), 'column')} that the plan does not read: {listed(extra)}"
        yield Finding("other columns", "note", text)


def _missing(table: Table, dictionary: Dictionary) -> Iterator[Finding]:
    """Look at the cells of the features that are there."""
    there = [name for name in dictionary.features if name in set(table.frame.columns)]
    if not there:
        return
    cells = read_cells(Tables((table,)), there)
    bad = {name: wrong.cells for name, wrong in cells.unreadable.items()}
    for name in cells.text:
        bad[name] = sum(
            label is not None and as_number(label) is None for label in table.labels(name)
        )
    if bad:
        text = f"{counted(sum(bad.values()), 'cell')} with no number, in {listed(bad)}"
        first = next((wrong.first for wrong in cells.unreadable.values()), "")
        yield Finding("numbers", "wrong", text, first and f"the first: {first}")
    gaps = np.isnan(cells.values).sum(0).tolist()
    gaps = {name: n - bad.get(name, 0) for name, n in zip(cells.names, gaps, strict=True)}
    empty = [name for name, n in gaps.items() if n > 0]
    if empty:
        count = sum(gaps[name] for name in empty)
        where = f"{counted(count, 'cell')} in {counted(len(empty), 'column')}: {listed(empty)}"
        filled = dictionary.impute is not None
        way = "filled with means" if filled else "the plan fills none (impute)"
        yield Finding("missing values", "note" if filled else "wrong", f"{where}; {way}")


def _covariates(table: Table, dictionary: Dictionary) -> Iterator[Finding]:
    for covariate in dictionary.staying:
        yield from _covariate(table, covariate, filled=dictionary.impute is not None)


def _covariate(table: Table, covariate: Covariate, *, filled: bool) -> Iterator[Finding]:
    name = covariate.name
    if name not in table.frame.columns:
        yield _absent("covariate", name, table)
        return
    labels = table.labels(name)
    yield from _empty("covariate", name, labels, filled=filled)
    if covariate.levels:
        yield from _named("covariate", name, labels, covariate.levels, "level")
    else:
        yield from _values("covariate", name, table, _read_covariate, "a number")


def _read_covariate(rows: Tables, name: str) -> None:
    rows.numbers([name])


def _others(table: Table, dictionary: Dictionary) -> Iterator[Finding]:
    for what, name in dictionary.roles.uses:
        if what == "target":
            continue
        if name not in table.frame.columns:
            yield _absent(what, name, table)
            continue
        labels = table.labels(name)
        yield from _empty(what, name, labels, filled=False)
        if what == "weight":
            yield from _values(what, name, table, row_weights, "a weight above 0")
        elif what == "time":
            read = partial(_read_times, target=dictionary.target)
            yield from _values(what, name, table, read, "a time above 0")
        elif None not in labels:
            yield Finding(what, "fits", name)


def _absent(what: str, name: str, table: Table) -> Finding:
    return Finding(what, "wrong", f"no column '{name}' ({nearest(name, table.frame.columns)})")


def _empty(
    what: str, name: str, labels: Sequence[Label | None], *, filled: bool
) -> Iterator[Finding]:
    count = sum(label is None for label in labels)
    if count:
        way = "; filled with means" if filled else ""
        text = f"{name}: {counted(count, 'value')} missing{way}"
        yield Finding(what, "note" if filled else "wrong", text)


def _values(
    what: str, name: str, table: Table, read: Callable[[Tables, str], object], noun: str
) -> Iterator[Finding]:
    """Look at the cells that are filled, with ``read``, which refuses what a fit refuses."""
    filled = [row for row, label in enumerate(table.labels(name)) if label is not None]
    lines = tuple(table.lines[row] for row in filled)
    if not filled:
        return
    try:
        part = replace(table, frame=table.frame.select(name)[filled], lines=lines)
        read(Tables((part,)), name)
    except DataError as error:
        yield Finding(what, "wrong", f"{name}: not {noun} in every row", str(error))
    else:
        yield Finding(what, "fits", f"{name}: {noun}")


def _named(
    what: str, name: str, labels: Iterable[Label | None], known: Sequence[str], noun: str
) -> Iterator[Finding]:
    """Look for values among those that are known."""
    places = {level: place for place, level in enumerate(known)}
    present = [label for label in labels if label is not None]
    codes = [code_of(label, places) for label in present]
    unknown = [
        label_name(label) for label, code in zip(present, codes, strict=True) if code is None
    ]
    if unknown:
        text = f"{name}: {counted(len(unknown), 'row')} of no {noun} that the plan has"
        yield Finding(what, "wrong", text, f"they are {listed(dict.fromkeys(unknown))}")
    absent = [level for level, place in places.items() if place not in set(codes)]
    if absent:
        yield Finding(what, "note", f"{name}: no row of {listed(absent)}")
    elif not unknown:
        yield Finding(what, "fits", f"{name}: {counted(len(known), noun)}")
