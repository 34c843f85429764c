"""From the values of a target column to numbers: which outcome it is, and which classes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast, get_args

import torch

from fedsift.data.errors import DataError, counted, listed, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

__all__ = [
    "Coded",
    "Label",
    "Outcome",
    "as_number",
    "code_of",
    "code_target",
    "encode",
    "label_facts",
    "label_name",
]

Label = str | float | bool
Outcome = Literal["regression", "binary", "multiclass"]

_MOST_CLASSES = 10
_ENOUGH_ROWS = 4
_LARGEST = torch.finfo(torch.float32).max


class Coded(NamedTuple):
    """A target as numbers: y [N], its outcome, the names of its classes (none for regression)."""

    y: Tensor
    outcome: Outcome
    classes: tuple[str, ...]


def _row(index: int) -> str:
    return f"row {index + 1}"


def code_target(
    labels: Sequence[Label],
    outcome: str = "auto",
    target: str = "target",
    where: Callable[[int], str] = _row,
) -> Coded:
    """Decide what kind of outcome a target is, and code it.

    With ``outcome="auto"``: text and booleans are classes; two different numbers are classes;
    numbers that are the whole numbers 0 .. K-1 or 1 .. K with 3 <= K <= 10, each at least twice,
    are classes; all else is measured. Small counts can look like classes: name the outcome then.
    Classes are sorted (as numbers where they are numbers); the second of two is the positive one.

    Args:
        labels: the N values; text that reads as a number everywhere counts as numbers.
        outcome: "auto", "regression", "binary" or "multiclass".
        target: name for messages.
        where: place of a row for messages.

    Returns:
        y (float32 values or int64 codes, [N]), the outcome, the class names.

    Raises:
        DataError: the target has one value only, text where numbers are needed, an infinite value,
            more or fewer classes than the outcome allows, or looks like an id.

    """
    if outcome not in ("auto", *get_args(Outcome)):
        choices = ("auto", *get_args(Outcome))
        raise DataError(f"outcome '{outcome}' is unknown; {nearest(outcome, choices)}")
    numbers = _numbers(labels, where, target)
    values: Sequence[Label] = labels if numbers is None else numbers
    distinct = sorted(set(values), key=str if numbers is None else float)
    if len(distinct) < 2:
        value = (
            f"the same value ({label_name(distinct[0])}) in all {counted(len(labels), 'row')}"
            if distinct
            else "no rows"
        )
        raise DataError(f"the target '{target}' has {value}; choose another")
    kind = _inferred(numbers, len(distinct)) if outcome == "auto" else cast("Outcome", outcome)
    if kind == "regression":
        if numbers is None:
            _refuse_text(labels, target, where)
        return Coded(torch.tensor(numbers, dtype=torch.float32), kind, ())
    names = tuple(dict.fromkeys(label_name(value) for value in distinct))
    if kind == "binary" and len(names) != 2:
        raise DataError(
            f"the target '{target}' has {counted(len(names), 'class')} ({listed(names)}), not two;"
            " ask for outcome='multiclass'"
        )
    if outcome == "auto" and len(labels) >= _ENOUGH_ROWS and 2 * len(names) > len(labels):
        _refuse_many_classes(labels, names, target, where)
    return Coded(encode(values, names, target, where), kind, names)


def encode(
    labels: Sequence[Label],
    classes: Sequence[str],
    target: str = "target",
    where: Callable[[int], str] = _row,
) -> Tensor:
    """Return the int64 codes [N] of labels whose classes are known.

    Raises:
        DataError: a label is not among the classes.

    """
    codes = {name: code for code, name in enumerate(classes)}
    coded: list[int] = []
    for row, label in enumerate(labels):
        code = code_of(label, codes)
        if code is None:
            raise DataError(
                f"{where(row)}: '{label_name(label)}' is not a class of '{target}';"
                f" {nearest(label_name(label), classes)}"
            )
        coded.append(code)
    return torch.tensor(coded, dtype=torch.int64)


def label_facts(
    labels: Sequence[Label], outcome: str = "auto", target: str = "target"
) -> dict[str, Any]:
    """Return what one site may tell of its labels, for all to agree on the outcome.

    ``kind``: "text"; "whole" for whole numbers from 0 to 10, which may be classes; "measured" for
    other numbers. ``names``: of the classes, in no order; of measured values nothing is told.

    Raises:
        DataError: there are as many texts as rows, or nearly: they look like ids.
    """
    numbers = [as_number(label) for label in labels]
    known = [number for number in numbers if number is not None]
    if outcome == "regression":
        return {"kind": "measured" if len(known) == len(labels) else "text", "names": []}
    if len(known) == len(labels) and outcome == "auto":
        whole = all(number == int(number) and 0 <= number <= _MOST_CLASSES for number in known)
        names = sorted({label_name(number) for number in known}) if whole else []
        return {"kind": "whole" if whole else "measured", "names": names}
    names = sorted({label_name(label) for label in labels})
    if len(labels) >= _ENOUGH_ROWS and 2 * len(names) > len(labels) + _MOST_CLASSES:
        _refuse_many_classes(labels, names, target, _row)
    return {"kind": "text", "names": names}


def as_number(label: Label) -> float | None:
    """Read a label as a number, or None; a boolean is a class, not a number."""
    if isinstance(label, bool) or (isinstance(label, str) and "_" in label):
        return None  # Python reads 1_000 as a number, a table does not
    try:
        return float(label)
    except ValueError:
        return None


def _numbers(
    labels: Sequence[Label], where: Callable[[int], str], target: str
) -> list[float] | None:
    numbers = [as_number(label) for label in labels]
    found = [number for number in numbers if number is not None]
    if not found or len(found) < len(labels):
        return None
    for row, number in enumerate(found):
        if not abs(number) <= _LARGEST:
            raise DataError(
                f"{where(row)}: the target '{target}' is {number}; correct it or remove the row"
            )
    return found


def code_of(label: Label, codes: Mapping[str, int]) -> int | None:
    """Return the code of a class or level, None if it is none; "1", "1.0" and 1 are one."""
    number, own = as_number(label), codes.get(label_name(label))
    return own if number is None else codes.get(label_name(number), own)


def label_name(value: Label) -> str:
    """Return the name of a class or level: a whole number without its decimals."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _inferred(numbers: list[float] | None, distinct: int) -> Outcome:
    if distinct == 2:
        return "binary"
    if numbers is None:
        return "multiclass"
    counts = Counter(numbers)
    first = min(counts)
    consecutive = first in {0.0, 1.0} and set(counts) == {first + step for step in range(distinct)}
    if consecutive and distinct <= _MOST_CLASSES and min(counts.values()) > 1:
        return "multiclass"
    return "regression"


def _refuse_many_classes(
    labels: Sequence[Label], names: Sequence[str], target: str, where: Callable[[int], str]
) -> NoReturn:
    if any(as_number(label) is not None for label in labels):
        _refuse_text(labels, target, where)
    raise DataError(
        f"the target '{target}' has {len(names)} different texts in {len(labels)} rows"
        f" ({listed(names)}) and looks like an id; choose another target, or ask for"
        " outcome='multiclass' if these are classes"
    )


def _refuse_text(labels: Sequence[Label], target: str, where: Callable[[int], str]) -> NoReturn:
    texts = [row for row, label in enumerate(labels) if as_number(label) is None]
    raise DataError(
        f"{where(texts[0])}: the target '{target}' is '{labels[texts[0]]}', not a number"
        f" ({counted(len(texts), 'such row')}); correct it, or ask for classes with"
        " outcome='multiclass'"
    )
