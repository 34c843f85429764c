"""Which files are tables, what their sites are called, and the site files of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedsift.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BINARY", "READABLE", "SEPARATORS", "ending", "is_packed", "site_files", "site_name"]

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "\t"}
"""What separates the columns of a text file, by its ending."""

BINARY = (".parquet", ".h5ad")
READABLE = ".csv, .tsv (also .gz), .parquet or .h5ad"

_PACKED = ".gz"
_IN_FOLDERS = {*SEPARATORS, *BINARY} - {".txt"}  # a folder's .txt is seldom a table


def is_packed(path: Path) -> bool:
    """Tell whether a file's name says that it is packed with gzip."""
    return path.suffix.lower() == _PACKED


def ending(path: Path) -> str:
    """Return what kind of table a file is: its ending in lower case, less ".gz"."""
    return (path.with_suffix("") if is_packed(path) else path).suffix.lower()


def site_name(path: str | Path) -> str:
    """Return the name of a file's site: the file's, less its ending; ".csv.gz" is one ending."""
    path = Path(path)
    return Path(path.stem).stem if is_packed(path) else path.stem


def site_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files that are meant; a folder stands for the tables in it, by name.

    Tables in a folder are those that `load_table` reads by their ending, but for .txt. Hidden files
    and folders within are left alone.

    Raises:
        DataError: no path is given, or a folder has no table.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise DataError("no site file was given; name one file a site, or one with a site column")
    return [file for path in map(Path, given) for file in (_inside(path) or [path])]


def _inside(folder: Path) -> list[Path]:
    """Return the tables in a folder; none if it is no folder."""
    if not folder.is_dir():
        return []
    files = sorted(file for file in folder.iterdir() if _is_table(file))
    if not files:
        raise DataError(f"{folder}: the folder has no file ending in {READABLE}; name site files")
    return files


def _is_table(file: Path) -> bool:
    packs = not is_packed(file) or ending(file) in SEPARATORS
    return packs and ending(file) in _IN_FOLDERS and file.name[0] != "." and file.is_file()
