"""What goes wrong with a user's data, said in one line."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DataError", "DataWarning", "NamesError", "counted", "listed", "nearest"]

_SHOWN = 5


class DataError(ValueError):
    """The data cannot be used as given.

    The message is one line that says where it is, what it is and what to do.
    """

    def __init__(self, message: str) -> None:
        # A value or a name from a file may contain a line break.
        super().__init__(message.replace("\r", "\\r").replace("\n", "\\n"))


class NamesError(DataError):
    """A name that was given is not there; the message holds what was given, and may travel."""


class DataWarning(UserWarning):
    """The data can be used, but a reader of the result should know something about it."""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 row", "2 rows"; "1 class", "2 classes"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def listed(names: Iterable[str]) -> str:
    """Join names for a message: quoted, at most five, the rest as a count."""
    names = list(names)
    text = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"


def nearest(name: str, candidates: Sequence[str]) -> str:
    """Return the sentence that suggests a name for a misspelt one (never empty)."""
    exact = {candidate.casefold(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.casefold(), list(exact), n=1)
    if close:
        return f"did you mean '{exact[close[0]]}'?"
    return f"there are {listed(candidates)}"
