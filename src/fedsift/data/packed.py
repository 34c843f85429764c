"""Text files as streams of bytes, unpacked on the way if gzip packed them."""

from __future__ import annotations

import gzip
import io
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedsift.data.errors import DataError
from fedsift.data.paths import is_packed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any, BinaryIO

__all__ = ["MOST_TIMES", "UNSUSPECTED", "opened"]

UNSUSPECTED = 1 << 28  # bytes that any packed file may hold
MOST_TIMES = 200  # of its own size; tables pack 3 to 50 times smaller


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, unpacked if its name ends in .gz.

    No more is unpacked than `UNSUSPECTED` bytes or `MOST_TIMES` the file's size, whichever is more:
    a small file can be made that unpacks to fill any memory.

    Raises:
        DataError: the file holds more than that, is no gzip file, or ends too early.
    """
    if not is_packed(path):
        with path.open("rb") as stream:
            yield stream
        return
    try:
        with gzip.open(path) as stream:
            yield io.BufferedReader(_Bounded(path, stream))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path.name}: is not a gzip file that can be read ({error}); pack it anew, or give it"
            " the ending of its format"
        ) from error


class _Bounded(io.RawIOBase):
    """What a gzip stream holds, up to a bound."""

    def __init__(self, path: Path, stream: gzip.GzipFile) -> None:
        self._path, self._stream, self._read = path, stream, 0
        self._bound = max(UNSUSPECTED, MOST_TIMES * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self._stream.readinto(buffer)
        self._read += count
        if self._read > self._bound:
            raise DataError(
                f"{self._path.name}: unpacks to more than {self._bound >> 20} MB, which no table of"
                " its size does; if you trust it, unpack it and give the file that comes out"
            )
        return count
