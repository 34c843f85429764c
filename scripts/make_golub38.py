"""Make the payload of ``fedsift.data.golub38`` from the R package multtest.

Usage::

    python scripts/make_golub38.py golub.RData [OUTPUT]

``golub.RData`` is ``usr/lib/R/site-library/multtest/data/golub.RData`` in Debian's package
r-bioc-multtest (2.54.0-1; multtest is LGPL-3+), and in Bioconductor's source package. It holds
the 38 training patients x 3051 genes of Golub et al., Science 286:531 (1999), filtered, log10
and standardised array by array by Dudoit, Fridlyand and Speed, JASA 97:77 (2002), to 5 decimals.

The payload keeps those 5 decimals exactly, as integers of 1e-5, in a NumPy archive (no pickle)
inside xz. It holds ``values`` (genes x patients), ``aml`` (0 = ALL, 1 = AML, a patient each),
``accessions`` and ``descriptions`` (UTF-8 text, a line a gene).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DEFAULT_OUTPUT = Path(__file__).parents[1] / "src" / "fedsift" / "data" / "golub38.npz.xz"
DECIMALS = 5


class RDataReader:
    """The part of R's serialisation format (XDR, version 2 or 3) that vectors and lists need.

    Source: "Serialization Formats", R Internals, section 1.8.
    """

    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)
        self._symbols: list[str] = []
        self._readers: dict[int, Callable[[], object]] = {
            1: self._symbol,
            9: self._characters,
            10: lambda: self._array(">i4"),
            13: lambda: self._array(">i4"),
            14: lambda: self._array(">f8"),
            16: self._list,
            19: self._list,
            254: lambda: None,
        }

    def read(self) -> dict[str, Any]:
        """Return the saved objects by name."""
        if self._stream.read(7) not in {b"RDX2\nX\n", b"RDX3\nX\n"}:
            raise ValueError("not an RData file in XDR format; give golub.RData of multtest")
        version, _, _ = (self._integer() for _ in range(3))
        if version == 3:
            self._stream.read(self._integer())  # the native encoding
        return self._pairlist(self._integer())

    def _integer(self) -> int:
        return int(struct.unpack(">i", self._stream.read(4))[0])

    def _item(self) -> object:
        flags = self._integer()
        kind = flags & 0xFF
        if kind == 2:
            return self._pairlist(flags)
        if kind == 255:  # a symbol seen before; its number takes the place of the other flags
            return self._symbols[(flags >> 8) - 1]
        if kind not in self._readers:
            raise ValueError(f"R type {kind} is not read by this script")
        value = self._readers[kind]()
        if flags & 0x200:
            self._item()  # attributes: here the dimensions of a matrix, known from its other side
        return value

    def _pairlist(self, flags: int) -> dict[str, Any]:
        """Read a list that is nested to the right and ends at R's NULL."""
        entries: dict[str, Any] = {}
        while flags & 0xFF == 2:
            if flags & 0x200:
                self._item()
            tag = str(self._item()) if flags & 0x400 else str(len(entries))
            entries[tag] = self._item()
            flags = self._integer()
        return entries

    def _symbol(self) -> str:
        self._symbols.append(str(self._item()))
        return self._symbols[-1]

    def _characters(self) -> str | None:
        length = self._integer()
        return None if length < 0 else self._stream.read(length).decode("latin-1")

    def _array(self, dtype: str) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        return np.frombuffer(self._stream.read(self._integer() * size), dtype)

    def _list(self) -> list[object]:
        return [self._item() for _ in range(self._integer())]


def decompressed(content: bytes) -> bytes:
    """Return the content of a file that gzip, bzip2, xz or nothing has compressed."""
    for magic, decompress in (
        (b"\x1f\x8b", gzip.decompress),
        (b"BZh", bz2.decompress),
        (b"\xfd7zXZ", lzma.decompress),
    ):
        if content.startswith(magic):
            return decompress(content)
    return content


def main(source: Path, output: Path) -> None:
    """Write the payload and print what it holds."""
    objects = RDataReader(decompressed(source.read_bytes())).read()
    aml = np.asarray(objects["golub.cl"]).astype(np.uint8)
    # R stores matrices column by column: a patient after the other; three columns of names.
    values = np.asarray(objects["golub"], dtype=np.float64).reshape(len(aml), -1).T
    names = np.array(objects["golub.gnames"]).reshape(3, -1)
    whole = np.round(values * 10**DECIMALS)
    loss = float(np.abs(whole / 10**DECIMALS - values).max())
    archive = io.BytesIO()
    np.savez(
        archive,
        values=whole.astype("<i4"),
        decimals=np.int64(DECIMALS),
        aml=aml,
        accessions=_text(names[2]),
        descriptions=_text(names[1]),
    )
    packed = lzma.compress(archive.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    output.write_bytes(packed)
    print(f"{output}: {values.shape[0]} genes x {values.shape[1]} patients, {int(aml.sum())} AML,")
    print(f"{len(packed)} bytes, largest difference from the source {loss:.1e}")


def _text(lines: np.ndarray) -> np.ndarray:
    stripped = [str(line).strip() for line in lines]
    return np.frombuffer("\n".join(stripped).encode(), np.uint8)


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT_OUTPUT)
