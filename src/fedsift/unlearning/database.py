"""The file of a run's ledgers: one SQLite database in WAL mode.

Every change is one transaction, so that a crash leaves the state before or after it, and every step
can be repeated.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from fedsift.run_folder import RunError

VERSION = 1


class Database:
    """A file of tables and of facts by name; use it as a context manager.

    ``tables``: the SQL that makes them where they are absent.

    Args:
        path: the file, made when it is absent.
        clock: seconds since 1970.
        fault: called with ``before NAME`` and ``after NAME`` around commits, to inject crashes.
    """

    tables: ClassVar[str] = """
create table if not exists facts (name text primary key, value text not null);
"""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        fault: Callable[[str], None] | None = None,
    ) -> None:
        self.path, self.clock, self.fault = path, clock, fault
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        except sqlite3.DatabaseError as error:
            raise self.damaged(error) from error
        try:
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=full")
            self._db.execute("pragma secure_delete=on")
            self._db.executescript(self.tables)
            self._check()
            self._begin()
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise self.damaged(error) from error

    def damaged(self, why: object) -> RunError:
        """Return the error of a file that holds something else than what was written."""
        return RunError(f"{self.path} is no ledger of requests ({why}); restore it from a copy")

    def parsed(self, text: str) -> Any:
        """Return the value of a JSON text of the file.

        Raises:
            RunError: it is none.
        """
        try:
            return json.loads(text)
        except ValueError as error:
            raise self.damaged(error) from error

    def _check(self) -> None:
        """Refuse pages that are damaged, and tables of another shape."""
        found = self._db.execute("pragma quick_check").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        with closing(sqlite3.connect(":memory:")) as blank:
            blank.executescript(self.tables)
            if _shape(blank).items() - _shape(self._db).items():
                raise sqlite3.DatabaseError("its tables are not those that were made")

    def _begin(self) -> None:
        version = self.fact("version")
        if version is None:
            with self.write("create"):
                self._put("version", str(VERSION))
                self._put("salt", secrets.token_hex(16))
        elif version != str(VERSION):
            msg = (
                f"{self.path} has format version {version}, this release reads {VERSION}; "
                "use the release that wrote it"
            )
            raise RunError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def write(self, name: str) -> Iterator[None]:
        """Make one change of what is done inside, all of it or nothing."""
        self._db.execute("begin immediate")
        try:
            yield
            self._strike(f"before {name}")
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise
        self._strike(f"after {name}")

    def _strike(self, place: str) -> None:
        if self.fault is not None:
            self.fault(place)

    def fact(self, name: str) -> str | None:
        """Return a fact by name."""
        row = self._db.execute("select value from facts where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _put(self, name: str, value: str) -> None:
        self._db.execute("insert or replace into facts values (?, ?)", (name, value))

    @property
    def salt(self) -> str:
        """What names are hashed with."""
        return str(self.fact("salt"))

    def vacuum(self) -> None:
        """Leave no trace of deleted names in the file or its log."""
        with closing(self._db.cursor()) as cursor:
            cursor.execute("pragma wal_checkpoint(truncate)")
            cursor.execute("vacuum")
            cursor.execute("pragma wal_checkpoint(truncate)")


def _shape(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Return the columns of each table."""
    tables = [row[0] for row in db.execute("select name from sqlite_master where type = 'table'")]
    return {
        name: tuple(row[1] for row in db.execute(f"pragma table_info({name})")) for name in tables
    }
