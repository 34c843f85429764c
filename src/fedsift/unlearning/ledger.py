"""The ledger of requests: who asked to be forgotten, how far that is, and which are done together.

`database` is the file, `participation` the part of it about who worked on the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from fedsift.sealed import fingerprint
from fedsift.unlearning.participation import Participation
from fedsift.unlearning.scope import Scope

State = Literal[
    "received", "validated", "queued", "running", "verified", "target_not_met", "failed", "no_op"
]
NEXT: dict[str, tuple[str, ...]] = {
    "received": ("validated", "no_op", "failed"),
    "validated": ("queued", "no_op", "failed"),
    "queued": ("running", "no_op", "failed"),
    "running": ("verified", "target_not_met", "failed", "queued"),
    "verified": (),
    "target_not_met": ("queued",),
    "failed": ("queued",),
    "no_op": ("received",),
}


class Request(NamedTuple):
    """A request to forget; ``scope`` is None once it was purged."""

    id: str
    scope: Scope | None
    scope_hash: str
    model: str
    method: str
    fallback: str | None
    state: str
    stop_reason: str | None
    received: float
    deadline: float | None
    batch: str | None
    measures: dict[str, Any]
    error: str | None


class Ledger(Participation):
    """Who asked to be forgotten, and how far that is."""

    tables: ClassVar[str] = (
        Participation.tables
        + """
create table if not exists requests (
    id text primary key, scope text, scope_hash text not null, model text not null,
    method text not null, fallback text, state text not null, stop_reason text,
    received real not null, deadline real, batch text, measures text, error text);
create table if not exists events (
    number integer primary key, request text not null, state text not null, at real not null);
create table if not exists batches (
    id text primary key, plan text not null, staged text, done integer not null default 0);
"""
    )

    def requests(self, states: Sequence[str] | None = None) -> list[Request]:
        """Return the requests in the order in which they came."""
        rows = self._db.execute("select * from requests order by received, id").fetchall()
        found = [self._request(row) for row in rows]
        return [r for r in found if states is None or r.state in states]

    def request(self, name: str) -> Request:
        """Return a request by its id.

        Raises:
            KeyError: there is none.
        """
        row = self._db.execute("select * from requests where id = ?", (name,)).fetchone()
        if row is None:
            raise KeyError(name)
        return self._request(row)

    def _request(self, row: tuple[Any, ...]) -> Request:
        request = Request(*row)
        return request._replace(
            scope=None if row[1] is None else Scope(**self.parsed(row[1])),
            measures=self.parsed(row[11] or "{}"),
        )

    def receive(
        self,
        scope: Scope,
        model: str,
        method: str,
        *,
        fallback: str | None = None,
        deadline: float | None = None,
    ) -> Request:
        """Write a request down, or return that of the same scope which is there already.

        The id is a hash of model and scope: to ask twice is to ask once. A request whose target was
        not met, or that failed, is taken up again with the method that is named now.
        """
        hashed = scope.hashed(self.salt)
        row = self._db.execute(
            "select * from requests where scope_hash = ? order by received desc", (hashed,)
        ).fetchone()
        if row is not None:
            return self._again(self._request(row), scope, method, fallback, deadline)
        name = fingerprint(model, hashed)[:16]
        now = self.clock()
        with self.write("receive"):
            self._db.execute(
                "insert into requests values (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (name, scope.model_dump_json(), hashed, model, method, fallback, "received",
                 None, now, deadline, None, None, None),
            )  # fmt: skip
            self._event(name, "received")
        return self.request(name)

    def _again(
        self,
        request: Request,
        scope: Scope,
        method: str,
        fallback: str | None,
        deadline: float | None,
    ) -> Request:
        if request.state in {"running", "verified"}:
            return request
        due = [d for d in (deadline, request.deadline) if d is not None]  # the earlier one counts
        with self.write("receive again"):
            self._db.execute(
                "update requests set scope = ?, method = ?, fallback = ?, deadline = ?"
                " where id = ?",
                (scope.model_dump_json(), method, fallback or request.fallback,
                 min(due, default=None), request.id),
            )  # fmt: skip
            if request.state in {"target_not_met", "failed"}:
                self._move(request.id, "queued", batch=None, error=None)
            if request.state == "no_op":  # what was unknown may be known by now
                self._move(request.id, "received", stop_reason=None)
        return self.request(request.id)

    def move(self, name: str, state: State, **more: Any) -> None:
        """Bring a request to its next state; to go where it is already changes nothing.

        Raises:
            ValueError: there is no such step.
        """
        with self.write(state):
            self._move(name, state, **more)

    def _move(self, name: str, state: State, **more: Any) -> None:
        now = self.request(name).state
        if now != state:
            if state not in NEXT[now]:
                raise ValueError(f"request {name} is {now}, from where it does not go to {state}")
            self._event(name, state)
        values = {k: json.dumps(v) if k == "measures" else v for k, v in more.items()}
        for column, value in {"state": state, **values}.items():
            self._db.execute(f"update requests set {column} = ? where id = ?", (value, name))  # noqa: S608  columns are this module's

    def _event(self, name: str, state: str) -> None:
        self._db.execute(
            "insert into events (request, state, at) values (?,?,?)", (name, state, self.clock())
        )

    def events(self, name: str) -> list[tuple[str, float]]:
        """Return the states that a request went through, with their times."""
        return self._db.execute(
            "select state, at from events where request = ? order by number", (name,)
        ).fetchall()

    def start_batch(self, requests: Sequence[Request], plan: dict[str, Any]) -> str:
        """Merge requests into one run; its id does not depend on their order."""
        batch = fingerprint(sorted(r.id for r in requests), plan)[:16]
        with self.write("start batch"):
            self._db.execute(
                "insert or ignore into batches (id, plan) values (?,?)", (batch, json.dumps(plan))
            )
            for request in requests:
                self._move(request.id, "running", batch=batch)
        return batch

    def open_batch(self) -> tuple[str, dict[str, Any], dict[str, Any] | None] | None:
        """Return (id, plan, what is staged) of a batch that is not done, if there is one."""
        row = self._db.execute("select id, plan, staged from batches where done = 0").fetchone()
        if row is None:
            return None
        return row[0], self.parsed(row[1]), None if row[2] is None else self.parsed(row[2])

    def stage(self, batch: str, staged: dict[str, Any]) -> None:
        """Note that a batch's files are complete, and what is to be made of them."""
        with self.write("stage"):
            self._db.execute(
                "update batches set staged = ? where id = ?", (json.dumps(staged), batch)
            )

    def finish_batch(
        self, batch: str, state: State, stop_reason: str | None, measures: dict[str, Any]
    ) -> None:
        """Close a batch and its requests; forget the names where it was successful."""
        with self.write("finish batch"):
            for request in self.requests(("running",)):
                if request.batch != batch:
                    continue
                self._move(request.id, state, stop_reason=stop_reason, measures=measures)
                if state == "verified" and request.scope is not None:
                    self.remember(request.id, request.scope)
                    self._move(request.id, state, scope=None)
            self._db.execute(
                "update batches set done = 1, plan = '{}', staged = null where id = ?", (batch,)
            )

    def abandon_batch(self, batch: str, error: str) -> None:
        """Close a batch that failed."""
        with self.write("abandon batch"):
            for request in self.requests(("running",)):
                if request.batch == batch:
                    self._move(request.id, "failed", error=error)
            self._db.execute("delete from batches where id = ?", (batch,))
