"""What Ctrl-C does: it stops at once until there is something to keep, then in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from fedsift.cli.failures import INTERRUPTED


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process with one line.

    An exception instead would be raised within the native code of a library, which makes a panic
    or an abort of it.
    """

    def stop(_signal: int, _frame: FrameType | None) -> NoReturn:
        os.write(2, b"stopped\n")
        os._exit(INTERRUPTED)

    with _handling(stop):
        yield


@contextmanager
def stopping_in_order() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, for a state to be kept and a lock to be released."""
    with _handling(signal.default_int_handler):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], NoReturn]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
