"""From the values of a target column to numbers: which outcome it is, and which classes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast, get_args

import torch

from fedsift.data.errors import DataError, counted, listed, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor

__all__ = [
    "Asked",
    "Coded",
    "Label",
    "Outcome",
    "as_number",
    "by_label",
    "check_counts",
    "check_labels",
    "check_times",
    "code_events",
    "code_labels",
    "code_numbers",
    "code_of",
    "code_survival",
    "code_target",
    "encode",
    "has_classes",
    "has_unit",
    "is_count",
    "label_facts",
    "label_name",
    "labels_seen",
    "target_columns",
    "target_name",
]

Label = str | float | bool
Outcome = Literal[
    "regression", "binary", "multiclass", "multilabel", "poisson", "negative_binomial", "survival"
]
Asked = Literal[
    "auto",
    "regression",
    "binary",
    "multiclass",
    "multilabel",
    "poisson",
    "negative_binomial",
    "survival",
]

_EVENTS = {"1": True, "true": True, "0": False, "false": False}
_LABELS = _EVENTS | {"yes": True, "no": False}
_MOST_CLASSES = 10
_ENOUGH_ROWS = 4
_LARGEST = torch.finfo(torch.float32).max


class Coded(NamedTuple):
    """A target as numbers: y [N], its outcome, the names of its classes (none for numbers).

    Of several labels y is [N, K], and the names are theirs.
    """

    y: Tensor
    outcome: Outcome
    classes: tuple[str, ...]


def has_classes(outcome: str) -> bool:
    """Return whether a target of this outcome is the code of a class; else it is a number."""
    return outcome in {"binary", "multiclass"}


def is_count(outcome: str) -> bool:
    """Return whether a target of this outcome is a number from 0 on, with a logarithmic link."""
    return outcome in {"poisson", "negative_binomial"}


def has_unit(outcome: str) -> bool:
    """Return whether a target of this outcome is divided by a unit that training rows tell."""
    return outcome == "regression" or is_count(outcome)


def target_name(target: str | Sequence[str]) -> str:
    """Return the name of a target, of several labels their names with commas between.

    Raises:
        DataError: a name has a comma in it.
    """
    if isinstance(target, str):
        return target
    odd = next((name for name in target if "," in name), None)
    if odd is not None and len(target) > 1:
        raise DataError(f"the label '{odd}' has a comma in its name, which parts labels; rename it")
    return ",".join(target)


def target_columns(target: str, outcome: str) -> tuple[str, ...]:
    """Return the columns of a target: those of "a,b" where it is or may be several labels.

    Raises:
        DataError: a column is named twice, or none.
    """
    if outcome not in {"auto", "multilabel"} or (outcome == "auto" and "," not in target):
        return (target,)
    names = tuple(name.strip() for name in target.split(","))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice or "" in names:
        what = f"names '{twice[0]}' twice" if twice else "has no name between commas"
        raise DataError(f"the target '{target}' {what}; name each label once")
    return names


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
    are classes; all else is measured. Counts are never guessed: name their outcome.
    Classes are sorted (as numbers where they are numbers); the second of two is the positive one.

    Args:
        labels: the N values; text that reads as a number everywhere counts as numbers.
        outcome: "auto" or an `Outcome`.
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
    if outcome == "survival":
        raise DataError(
            f"survival needs the time of '{target}', too; name its column (--time), or give time="
        )
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
    if not has_classes(kind):
        return Coded(code_numbers(labels, kind, target, where), kind, ())
    names = tuple(dict.fromkeys(label_name(value) for value in distinct))
    if kind == "binary" and len(names) != 2:
        raise DataError(
            f"the target '{target}' has {counted(len(names), 'class')} ({listed(names)}), not two;"
            " ask for outcome='multiclass'"
        )
    if outcome == "auto" and len(labels) >= _ENOUGH_ROWS and 2 * len(names) > len(labels):
        _refuse_many_classes(labels, names, target, where)
    return Coded(encode(values, names, target, where), kind, names)


def code_numbers(
    labels: Sequence[Label],
    outcome: str,
    target: str = "target",
    where: Callable[[int], str] = _row,
) -> Tensor:
    """Return a measured target, or counts, as float32 [N].

    Raises:
        DataError: a value is text or infinite, or of counts negative or not whole.
    """
    numbers = _numbers(labels, where, target)
    if numbers is None:
        _refuse_text(labels, target, where)
    if is_count(outcome):
        check_counts(numbers, target, where)
    return torch.tensor(numbers, dtype=torch.float32)


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


def code_survival(
    events: Sequence[Label],
    times: Sequence[float],
    target: str = "event",
    where: Callable[[int], str] = _row,
) -> Tensor:
    """Return right-censored times as one number a row, float32 [N].

    The time is positive where the event was seen, negative where the row was lost from sight
    before.

    Args:
        events: 1 or true where the event was seen, 0 or false where not.
        times: N times above 0, until the event or the last sight.
        target: name of the event for messages.
        where: place of a row for messages.

    Raises:
        DataError: a value is neither 0 nor 1, or a time is not above 0.
    """
    seen = code_events(events, target, where)
    check_times(times, target, where)
    signs = [1.0 if value else -1.0 for value in seen]
    return torch.tensor(signs) * torch.tensor(times, dtype=torch.float32)


def code_events(
    events: Sequence[Label], target: str = "event", where: Callable[[int], str] = _row
) -> list[bool]:
    """Return whether the event was seen, of N values 1 or true, 0 or false.

    Raises:
        DataError: a value is another one.
    """
    seen = [_EVENTS.get(str(label).strip().lower().removesuffix(".0")) for label in events]
    odd = [row for row, value in enumerate(seen) if value is None]
    if odd:
        raise DataError(
            f"{where(odd[0])}: '{target}' is '{label_name(events[odd[0]])}', not 1 (the event was"
            f" seen) or 0 (it was not; {counted(len(odd), 'such row')}); write it so"
        )
    return [value is True for value in seen]


def check_times(
    times: Sequence[float], target: str = "event", where: Callable[[int], str] = _row
) -> None:
    """Refuse times until an event, or the last sight, that are not above 0.

    Raises:
        DataError: there is one.
    """
    short = [row for row, time in enumerate(times) if not 0 < time <= _LARGEST]
    if short:
        raise DataError(
            f"{where(short[0])}: the time of '{target}' is {times[short[0]]:g}"
            f" ({counted(len(short), 'such row')}); times must be above 0: add half a unit to"
            " those of the first one, or correct them"
        )


def code_labels(
    columns: Sequence[Sequence[Label | None]],
    names: Sequence[str],
    where: Callable[[int], str] = _row,
) -> Tensor:
    """Return K labels of each row, int64 [N, K]: 1 or 0, -1 where it is not known.

    Args:
        columns: of each label N values: 1, true or yes; 0, false or no; None or NaN.
        names: of the labels.
        where: place of a row for messages.

    Raises:
        DataError: a value is another one.
    """
    coded = []
    for name, values in zip(names, columns, strict=True):
        codes = [_label_code(value) for value in values]
        odd = [row for row, code in enumerate(codes) if code is None]
        if odd:
            raise DataError(
                f"{where(odd[0])}: the label '{name}' is '{values[odd[0]]}', not 1 or yes, 0 or no,"
                f" or empty where it is not known ({counted(len(odd), 'such row')}); write it so"
            )
        coded.append([code for code in codes if code is not None])
    return torch.tensor(coded, dtype=torch.int64).T.contiguous()


def _label_code(value: Label | None) -> int | None:
    """Return 1, 0, -1 if it is not known, None for another value."""
    if value is None or value != value:  # noqa: PLR0124  NaN
        return -1
    seen = _LABELS.get(str(value).strip().lower().removesuffix(".0"))
    return None if seen is None else int(seen)


def by_label(y: Tensor, names: Sequence[str]) -> dict[str, list[int]]:
    """Return the codes of each label of y [N, K]."""
    return dict(zip(names, y.T.tolist(), strict=True))


def labels_seen(y: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Return what one site may tell of its labels [n, K]: the codes that each has."""
    seen = {name: sorted(set(codes)) for name, codes in by_label(y, names).items()}
    return {"kind": "labels", "names": list(names), "seen": seen}


def check_labels(values: Mapping[str, Collection[int]]) -> None:
    """Refuse a label that all rows which know it share, by the codes that each label has.

    Raises:
        DataError: the text names it.
    """
    for name, codes in values.items():
        known = [code for code in (0, 1) if code in codes]
        if len(known) < 2:
            what = f"is {known[0]} in all rows" if known else "is not known in any row"
            raise DataError(f"the label '{name}' {what} of all sites; leave it out")


def check_counts(
    values: Sequence[float], target: str = "target", where: Callable[[int], str] = _row
) -> None:
    """Refuse values that are no counts.

    Raises:
        DataError: a value is negative or not whole.
    """
    odd = [row for row, value in enumerate(values) if value < 0 or value != int(value)]
    if odd:
        raise DataError(
            f"{where(odd[0])}: '{target}' is {values[odd[0]]:g}, and counts are whole numbers from"
            f" 0 ({counted(len(odd), 'such row')}); correct it, or ask for outcome='regression'"
        )


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
    if outcome != "auto" and not has_classes(outcome):
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
