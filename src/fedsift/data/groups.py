"""Groups of features, such as pathways: from a GMT file, or by name, to columns of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsift.data.errors import DataError, counted, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Groups", "Named", "groups_of", "named_groups", "read_gmt"]

Named = dict[str, list[str]]
"""Names of the features of each group, by its name."""


@dataclass(frozen=True)
class Groups:
    """Groups of the features of some data.

    Attributes:
        names: of the groups with a feature there.
        members: the numbers of their columns, each once; a column may be in several groups.
        unknown: names of features that the data do not have.
        empty: names of groups with no feature there, which are left out.
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    unknown: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Return what a reader should know, one sentence each."""
        said = []
        if self.unknown:
            said.append(
                f"{counted(len(self.unknown), 'feature')} of groups left out, not being in the"
                f" data: {listed(self.unknown)}"
            )
        if self.empty:
            said.append(
                f"{counted(len(self.empty), 'group')} left out, none of its features being in the"
                f" data: {listed(self.empty)}"
            )
        return said


def named_groups(given: Mapping[str, Sequence[str]] | str | Path) -> Named:
    """Return groups by name, from a mapping or from a GMT file.

    Raises:
        DataError: as `read_gmt`; or the features of a group are a text and no list.
    """
    if isinstance(given, str | Path):
        return read_gmt(Path(given))
    for name, features in given.items():
        if isinstance(features, str):
            raise DataError(f"group '{name}' is the text '{features}'; give a list of names")
    return {str(name): [*map(str, features)] for name, features in given.items()}


def read_gmt(path: Path) -> Named:
    """Return the groups of a GMT file: a line each, name, description and features, by tabs.

    Raises:
        DataError: the file cannot be read, or a line is none of that kind; the text names it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8; give a GMT file") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give a GMT file") from error
    groups: Named = {}
    for number, line in enumerate(lines, 1):
        name, *rest = (part.strip() for part in line.split("\t"))
        features = [part for part in rest[1:] if part]
        if not line.strip():
            continue
        if not name or not features:
            raise DataError(
                f"{path}, line {number}: a group is a name, a description and features, with tabs"
                f" between; this one is {line[:40]!r}"
            )
        if name in groups:
            raise DataError(
                f"{path}, line {number}: there are two groups '{name}'; give each its own name"
            )
        groups[name] = features
    if not groups:
        raise DataError(f"{path} has no group; give a GMT file with a line for each")
    return groups


def groups_of(named: Mapping[str, Sequence[str]], features: Sequence[str]) -> Groups:
    """Return groups by the numbers of their columns; names that are no feature are left out.

    Raises:
        DataError: no group has a feature that is there.
    """
    places = {name: place for place, name in enumerate(features)}
    known = {
        group: tuple(dict.fromkeys(places[name] for name in members if name in places))
        for group, members in named.items()
    }
    unknown = dict.fromkeys(name for each in named.values() for name in each if name not in places)
    found = {group: members for group, members in known.items() if members}
    if not found:
        raise DataError(
            f"no group has a feature of the data: groups have {listed(unknown)}, the data"
            f" {listed(features)}; give both the same names"
        )
    empty = tuple(group for group in known if group not in found)
    return Groups(tuple(found), tuple(found.values()), tuple(unknown), empty)
