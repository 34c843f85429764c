"""Callbacks: functions of one record, a dict of what a round of a fit came to."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

Callback = Callable[[dict[str, Any]], None]

PLACE = ("method", "case", "stage")  # what a fit's record says besides the figures of its round


class CallbackError(RuntimeError):
    """A callback failed, and the run was stopped; the text names the callback and the round."""


def label(record: dict[str, Any]) -> str:
    """Return where in a fit a record is of, such as ``eflops · split 1 · search``."""
    return " · ".join(record[name] for name in PLACE if name in record)


def adding(callback: Callback, **entries: Any) -> Callback:
    """Return a callback whose records begin with more entries."""
    return lambda record: callback({**entries, **record})


def calling(callbacks: Sequence[Callback]) -> Callback | None:
    """Return one function that calls all of them in their order; None for none.

    Each is given a copy of its own, so that none can change the run's history or what another
    sees, and they are never called twice at once.

    Raises:
        CallbackError: when called, if a callback raises an exception.
    """
    if not callbacks:
        return None
    lock = threading.Lock()

    def call(record: dict[str, Any]) -> None:
        with lock:
            for callback in callbacks:
                try:
                    callback(copy.deepcopy(record))
                except Exception as error:
                    raise CallbackError(_line(callback, record, error)) from error

    return call


def _line(callback: Callback, record: dict[str, Any], error: Exception) -> str:
    name = getattr(callback, "__qualname__", type(callback).__qualname__)
    where = f"round {record['round']} of {label(record)}"
    return (
        f"the callback {name} failed in {where}: {type(error).__name__}: {error}; "
        "mend it, or go on without it"
    )
