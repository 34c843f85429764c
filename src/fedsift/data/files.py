"""From a file to a `Table`; what is wrong with the file's form is said here."""

from __future__ import annotations

import csv
import io
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedsift.data.annotated import load_h5ad
from fedsift.data.errors import DataError, counted, nearest
from fedsift.data.packed import opened
from fedsift.data.paths import BINARY, READABLE, SEPARATORS, ending, is_packed
from fedsift.data.tables import Table, check_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

__all__ = ["load_table"]

_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "vertical bar"}


def load_table(path: str | Path, separator: str | None = None) -> Table:
    """Read a CSV, TSV, Parquet or AnnData file without interpreting its cells.

    Args:
        path: file ending in .csv (commas), .tsv, .tab, .txt (tabs), each also packed as .gz,
            .parquet or .h5ad (`load_h5ad` says how it becomes a table).
        separator: another separator of a text file, one character.

    Raises:
        DataError: the file is absent, of another kind, empty, has a header only, nameless or
            repeated columns, lines of different lengths, another separator, or is not UTF-8.

    """
    path = Path(path)
    _check_file(path, separator)
    kind = ending(path)
    if kind == ".parquet":
        table = _parquet(path)
    elif kind == ".h5ad":
        table = load_h5ad(path)
    else:
        table = _text(path, separator or SEPARATORS[kind])
    if not table.frame.height:
        raise DataError(f"{path.name}: has a header but no rows; add the samples")
    return table


def _check_file(path: Path, separator: str | None) -> None:
    if not path.is_file():
        folder = path.parent
        others = sorted(file.name for file in folder.glob("*") if file.is_file())
        hint = nearest(path.name, others) if others else f"'{folder}' is not a folder with files"
        raise DataError(f"{path}: no such file; {hint}")
    if separator is not None and len(separator.encode()) != 1:
        raise DataError(f"the separator {separator!r} is not one ASCII character; give one, as ';'")
    if is_packed(path) and ending(path) in BINARY:
        raise DataError(f"{path.name}: only text is read packed; unpack it with gunzip")
    if ending(path) not in {*BINARY, *SEPARATORS} and separator is None:
        raise DataError(
            f"{path.name}: files ending in '{path.suffix}' are not read; save it as {READABLE}, or"
            " name its separator"
        )


def _parquet(path: Path) -> Table:
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"{path.name}: is not a Parquet file that can be read ({_first_line(error)});"
            " write it anew, or give it the ending of its format"
        ) from error
    check_names(path, frame.columns)
    return Table(path, frame, tuple(range(1, frame.height + 1)), "row")


def _text(path: Path, separator: str) -> Table:
    try:
        return _parsed(path, separator)
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: is not UTF-8 text; save it as 'CSV UTF-8'") from error
    except csv.Error as error:
        raise DataError(f"{path.name}: is not a text table ({error}); save it anew") from error


def _parsed(path: Path, separator: str) -> Table:
    names, header_line = _header(path, separator)
    try:
        if is_packed(path):
            with opened(path) as stream:
                frame = pl.read_csv(stream.read(), separator=separator, infer_schema=False)
        else:
            frame = pl.read_csv(path, separator=separator, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        _check_lengths(path, separator)
        raise DataError(
            f"{path.name}: cannot be read ({_first_line(error)}); check its quotation marks"
        ) from error
    if len(frame.columns) != len(names):
        raise DataError(f"{path.name}: a column name contains a line break; write it on one line")
    frame.columns = names
    lines = np.arange(frame.height) + header_line + 1
    if frame.get_column(names[0]).null_count():
        # Blank lines are read as rows without a value.
        filled = ~frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
        frame, lines = frame.filter(filled), lines[filled.to_numpy()]
    if len(names) > 1 and frame.get_column(names[-1]).null_count():
        # A line that ends too early is read as one with empty cells.
        _check_lengths(path, separator)
    return Table(path, frame, tuple(lines.tolist()), "line")


def _header(path: Path, separator: str) -> tuple[list[str], int]:
    """Return the column names and their line, because polars renames repeated names silently."""
    with _text_of(path) as stream:
        filled = ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
        number, line = next(filled, (0, ""))
    if not number:
        raise DataError(f"{path.name}: the file is empty; it needs a header and a row a sample")
    line = line.rstrip("\r\n")
    other = max(_NAMES, key=line.count)
    if separator not in line and other in line:
        raise DataError(
            f"{path.name}: the header has no {_NAMES.get(separator, separator)} but"
            f" {counted(line.count(other), _NAMES[other])}; give separator={other!r}, or save the"
            " file anew"
        )
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    check_names(path, names)
    return names, number


def _check_lengths(path: Path, separator: str) -> None:
    """Refuse a text file whose lines do not all have as many values as the header."""
    with _text_of(path) as stream:
        reader = csv.reader(stream, delimiter=separator)
        rows = (row for row in reader if row)
        expected = len(next(rows))
        for row in rows:
            if len(row) != expected:
                raise DataError(
                    f"{path.name}, line {reader.line_num}: {counted(len(row), 'value')} for"
                    f" {counted(expected, 'column')}; complete the line, or quote values that"
                    f" contain a {_NAMES.get(separator, separator)}"
                )


@contextmanager
def _text_of(path: Path) -> Iterator[TextIO]:
    with opened(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        yield text


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
