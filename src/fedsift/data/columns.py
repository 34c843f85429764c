"""What each column of the site files is for, and which features all of them have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsift.data.errors import DataError, counted, listed, nearest
from fedsift.data.paths import site_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedsift.data.tables import Table

__all__ = ["Roles", "check_stems", "common_features"]


@dataclass(frozen=True)
class Roles:
    """The columns that are not features to choose from.

    Raises:
        DataError: a column is named for two purposes.

    """

    targets: tuple[str, ...]
    site: str | None = None
    id: str | None = None
    weight: str | None = None
    drop: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    time: str | None = None

    def __post_init__(self) -> None:
        """Refuse a column with two purposes."""
        lists = {"drop": self.drop, "covariates": self.covariates}
        uses = [*self.uses]
        uses += [(use, name) for use, names in lists.items() for name in dict.fromkeys(names)]
        for column, count in Counter(column for _, column in uses).items():
            if count > 1:
                purposes = listed(purpose for purpose, name in uses if name == column)
                raise DataError(
                    f"column '{column}' is named for {purposes}; name it for one of them"
                )

    @property
    def uses(self) -> tuple[tuple[str, str], ...]:
        """Purpose and name of each column that has one but for covariates, targets first."""
        others = {"site": self.site, "id": self.id, "weight": self.weight, "time": self.time}
        return (
            *(("target", column) for column in self.targets),
            *((purpose, column) for purpose, column in others.items() if column is not None),
        )

    def check(self, tables: Sequence[Table]) -> None:
        """Refuse files without a column that was named."""
        for table in tables:
            for purpose, column in self.uses:
                table.require(column, purpose)
            for column in self.covariates:
                table.require(column, "covariate")
        columns = list(dict.fromkeys(name for table in tables for name in table.frame.columns))
        for column in self.drop:
            if column not in columns:
                raise DataError(
                    f"no file has a column '{column}' to drop; {nearest(column, columns)}"
                )

    def features(self, table: Table) -> list[str]:
        """Return the columns of a table that are left."""
        own = {column for _, column in self.uses}
        taken = {*own, *self.drop, *self.covariates, *table.annotations}
        return [column for column in table.frame.columns if column not in taken]


def common_features(tables: Sequence[Table], roles: Roles, *, intersect: bool) -> list[str]:
    """Return the features in the order of the first file.

    Args:
        tables: the site files.
        roles: columns that are not features.
        intersect: keep the columns that all files have; otherwise all must have the same.

    Raises:
        DataError: columns differ, or none is left.

    """
    first, others = tables[0], tables[1:]
    features = roles.features(first)
    if not intersect:
        for table in others:
            _check_same(first.path.name, features, table.path.name, roles.features(table))
    for table in others:
        present = set(roles.features(table))
        features = [name for name in features if name in present]
    if not features:
        raise DataError(
            f"{first.path.name}: no column is left as a feature; its columns are"
            f" {listed(first.frame.columns)}"
        )
    return features


def check_stems(files: Sequence[str | Path]) -> None:
    """Refuse files of one name in several folders: rows and sites are named after their file."""
    for stem, count in Counter(site_name(file) for file in files).items():
        if count > 1:
            raise DataError(
                f"{count} files are called '{stem}', and sites and rows are named after their file;"
                " rename all but one"
            )


def _check_same(first: str, expected: Sequence[str], name: str, found: Sequence[str]) -> None:
    known, present = set(expected), set(found)
    absent = [column for column in expected if column not in present]
    extra = [column for column in found if column not in known]
    parts = (
        [f"lacks {counted(len(absent), 'column')} of {first} ({listed(absent)})"] if absent else []
    )
    parts += [f"has {len(extra)} that {first} lacks ({listed(extra)})"] if extra else []
    if parts:
        raise DataError(
            f"{name}: {' and '.join(parts)}; correct the files, or keep the columns that all have:"
            " features_in_common=True (--features-in-common)"
        )
