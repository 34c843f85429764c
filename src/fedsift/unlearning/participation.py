"""Who took part in what, and the names that were forgotten: kept as salted hashes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fedsift.unlearning.database import Database
from fedsift.unlearning.scope import Scope, hashed_name


class Participation(Database):
    """The ledger of the sites' work, and of what must not take part again."""

    tables: ClassVar[str] = (
        Database.tables
        + """
create table if not exists participation (
    site text not null, stage text not null, seed integer not null,
    first_round integer not null, rounds integer not null,
    primary key (site, stage, seed));
create table if not exists forgotten (kind text not null, hash text primary key, request text);
"""
    )

    def note_participation(self, rows: Sequence[tuple[str, str, int, int, int]]) -> None:
        """Write down (site, stage, seed, first round, rounds) of a training, once."""
        with self.write("participation"):
            self._db.executemany("insert or ignore into participation values (?,?,?,?,?)", rows)
            self._put("participation", "noted")

    def participation(self, site: str) -> list[tuple[str, int, int, int]]:
        """Return (stage, seed, first round, rounds) of a site."""
        return self._db.execute(
            "select stage, seed, first_round, rounds from participation where site = ?"
            " order by stage, seed",
            (site,),
        ).fetchall()

    def is_forgotten(self, kind: str, name: str) -> bool:
        """Tell whether a site, row or class was forgotten, and must not take part again."""
        row = self._db.execute(
            "select 1 from forgotten where hash = ?", (hashed_name(self.salt, kind, name),)
        ).fetchone()
        return row is not None

    def remember(self, request: str, scope: Scope) -> None:
        """Keep salted hashes of the names of a request, and nothing else of them.

        Part of the transaction that is open.
        """
        named = {"site": scope.sites, "row": scope.rows, "class": scope.classes}
        for kind, names in named.items():
            self._db.executemany(
                "insert or ignore into forgotten values (?,?,?)",
                [(kind, hashed_name(self.salt, kind, name), request) for name in names],
            )
        self._db.executemany(
            "delete from participation where site = ?", [(name,) for name in scope.sites]
        )
