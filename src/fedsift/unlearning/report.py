"""What a request to forget came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fedsift.trees import Tree


@dataclass(frozen=True)
class UnlearningReport:
    """The outcome of a request to forget.

    Attributes:
        request_id: hash of model and scope.
        status: ``verified``, ``target_not_met``, ``queued``, ``failed`` or ``no_op``.
        stop_reason: why the method ended, or why nothing was done.
        method: what was run, the fallback included.
        guarantee: ``exact``, ``exact given preprocessing``, ``empirical``; ``none`` if nothing ran.
        statement: what that means.
        measures: ``before``, ``after`` and, where it was asked for, ``retrain`` → figures on the
            rows to forget, on the rest, and on rows held out (`figures.Measured`).
        intervals: the same → 95 % intervals of those that have one.
        rounds, bytes_total, seconds: what it cost.
        audit_record: number, hash and file of the record; None without a folder.
        notes: what a reader should know.
        params: the model afterwards; None where nothing was done.
    """

    request_id: str
    status: str
    stop_reason: str
    method: str
    guarantee: str
    statement: str
    measures: dict[str, dict[str, float]] = field(default_factory=dict)
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    rounds: int = 0
    bytes_total: int = 0
    seconds: float = 0.0
    audit_record: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    params: Tree | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all but the model, as the command line prints it."""
        facts = asdict(self)
        del facts["params"]
        return facts | {"notes": list(self.notes)}
