"""Checkpoints, without pickle: tensors in safetensors, the rest in its JSON header.

A checkpoint carries a fingerprint of what was asked for, and is used for nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.engines import Plan
from fedsift.recovery import Retained
from fedsift.sealed import seal, unseal, write_atomic

if TYPE_CHECKING:
    from fedsift.engines.base import Carried
    from fedsift.training import Training

log = logging.getLogger(__name__)

VERSION = 3
AFRESH = "start afresh with another --out, or with --overwrite"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the text names the file and the next action."""


class DamagedError(CheckpointError):
    """A checkpoint whose bytes are not those that were written; ``defect`` says only that."""

    def __init__(self, path: Path, error: ValueError) -> None:
        self.defect = f"checkpoint {path} is damaged ({error})"
        super().__init__(f"{self.defect}; delete it to compute this part again")


@dataclass(frozen=True)
class StageCheckpoint:
    """Where a training run keeps its last two states, and the seconds between two writes.

    ``fingerprint``: of everything that decides the state; by default that of the training data,
    the participation and the rounds of evaluation.
    """

    path: Path
    every: float = 5.0
    fingerprint: str | None = None

    def named(self, stage: str) -> StageCheckpoint:
        """Return the checkpoint of a stage of the work this one stands for."""
        return replace(self, path=self.path.with_name(f"{self.path.name}-{stage}.safetensors"))


class Watched(NamedTuple):
    """What the watch of a run carries from round to round: tensors, and JSON values."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], fingerprint: str
) -> None:
    """Write tensors and JSON facts that belong to a request with this fingerprint."""
    head = {"version": VERSION, "fingerprint": fingerprint}
    write_atomic(path, seal(tensors, head | {"content": facts}))


def read_checkpoint(path: Path, fingerprint: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts of a checkpoint.

    Raises:
        DamagedError: it is damaged.
        CheckpointError: it is of another format version, or of another request.
    """
    try:
        tensors, facts = unseal(path)
    except ValueError as error:
        raise DamagedError(path, error) from error
    if facts.get("version") != VERSION:
        msg = (
            f"checkpoint {path} has format version {facts.get('version')}, this release reads "
            f"{VERSION}; {AFRESH}"
        )
        raise CheckpointError(msg)
    if facts["fingerprint"] != fingerprint:
        msg = (
            f"checkpoint {path} is of another problem (other data, settings or versions); {AFRESH}"
        )
        raise CheckpointError(msg)
    return tensors, facts["content"]


def flatten(structure: Any, prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a structure by their path."""
    return {
        f"{prefix}.{i}": leaf.contiguous().clone() for i, leaf in enumerate(trees.leaves(structure))
    }


def unflatten(
    template: Any, tensors: dict[str, Tensor], prefix: str, free: int | None = None
) -> Any:
    """Return the structure of ``template`` with tensors from `flatten`.

    Raises:
        ValueError: a shape (apart from axis ``free``) or a dtype is not that of the template.
    """
    numbers = iter(range(len(trees.leaves(template))))

    def take(expected: Tensor) -> Tensor:
        found = tensors[f"{prefix}.{next(numbers)}"]
        shapes = [[n for axis, n in enumerate(t.shape) if axis != free] for t in (found, expected)]
        if shapes[0] != shapes[1] or found.dtype != expected.dtype:
            held, wanted = (f"{t.dtype} {list(t.shape)}" for t in (found, expected))
            msg = f"{prefix} holds {held}, not {wanted}"
            raise ValueError(msg)
        return found

    return trees.map_tensors(take, template)


def _identity(run: Training) -> list[str]:
    """Return what must be equal for a run to go on from a checkpoint."""
    job = run.job
    return [
        repr(part)
        for part in (
            job.algorithm,
            job.channel,
            job.seeds,
            job.data_seed,
            job.weights,
            None if job.regions is None else job.regions.tolist(),
            job.data.sites,
        )
    ]


def _check_identity(run: Training, identity: list[str]) -> None:
    """Raise ValueError, naming the part that differs, if a checkpoint is of another run."""
    own = _identity(run)
    if identity != own:
        changed = next(b for a, b in zip(identity, own, strict=True) if a != b)
        msg = f"now {changed}"
        raise ValueError(msg)


def previous(path: Path) -> Path:
    """Return where the checkpoint before the last one is kept."""
    return path.with_name(f"{path.name}.previous")


def save_training(path: Path, run: Training) -> None:
    """Write the state of a training run; the one that was there is kept as the previous one."""
    carried, store = run.carried, run.carried.store
    tensors = {
        **flatten(carried.server, "server"),
        **flatten(carried.broadcast, "broadcast"),
        **flatten(store.kept, "kept"),
        "store_sites": torch.tensor(list(store.row_of), dtype=torch.int64),
        "ledger": carried.ledger.clone(),
        "seen": carried.seen.clone(),
        "bytes_up": run.bytes_up.clone(),
        "bytes_down": run.bytes_down.clone(),
        "bytes_regions": run.bytes_regions.clone(),
        "retries": run.retries.clone(),
    }
    if run.first_loss is not None:
        tensors["first_loss"] = run.first_loss.clone()
    if run.best is not None:
        tensors |= flatten(run.best, "best")
    if run.watched is not None:
        tensors |= trees.join(watched=run.watched.tensors)
    healthy = run.retained
    if healthy is not None and healthy.round != run.round:
        tensors |= flatten(_part_retained(healthy.carried), "retained")
        tensors |= flatten(healthy.counters, "counters")
    facts = {
        "job": _identity(run),
        "round": run.round,
        "tick": carried.tick,
        "history": run.history,
        "retained": None if healthy is None else [healthy.round, healthy.records],
        "plan": run.plan,
        "watched": None if run.watched is None else run.watched.facts,
        "ended": run.ended,
    }
    if path.exists():
        path.replace(previous(path))
    write_checkpoint(path, tensors, facts, run.fingerprint)


def _part_retained(carried: Carried) -> Any:
    """Return what `recovery` needs of a healthy state; sites far away keep their own part."""
    return carried.server, carried.broadcast, carried.ledger, carried.seen


def resume_training(path: Path, run: Training) -> None:
    """Bring a fresh training run to the last state that was written whole, if there is one.

    A damaged one is passed over with a warning: what follows from an earlier state, or from the
    start, is the same.

    Raises:
        CheckpointError: it is of another version, or of another problem.
    """
    for file in (path, previous(path)):
        if not file.exists():
            continue
        try:
            load_training(file, run)
        except DamagedError as error:
            log.warning("%s; work goes on from an earlier state", error.defect)
        else:
            return


def load_training(path: Path, run: Training) -> None:
    """Bring a fresh training run to the state that was written.

    Raises:
        CheckpointError: it is damaged, of another version, or of another problem.
    """
    tensors, facts = read_checkpoint(path, run.fingerprint)
    try:
        _check_identity(run, facts["job"])
        _restore(run, tensors, facts)
    except (KeyError, TypeError, ValueError) as error:
        msg = f"checkpoint {path} is of another problem ({error}); {AFRESH}"
        raise CheckpointError(msg) from error


def _restore(run: Training, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Put what was read into a run, all of it or nothing."""
    carried, store = run.carried, run.carried.store
    lanes = {name: getattr(carried, name) for name in ("ledger", "seen")}
    served = {
        name: unflatten((value,), {f"{name}.0": tensors[name]}, name)[0]
        for name, value in lanes.items()
    }
    server = unflatten(carried.server, tensors, "server")
    broadcast = unflatten(carried.broadcast, tensors, "broadcast")
    kept, sites = unflatten(store.kept, tensors, "kept", free=0), tensors["store_sites"].tolist()
    counters = [tensors[k] for k in ("bytes_up", "bytes_down", "bytes_regions", "retries")]
    tick, number, history = int(facts["tick"]), int(facts["round"]), list(facts["history"])
    best = None if run.best is None else unflatten(run.best, tensors, "best")
    parts, retained = _part_retained(carried), None
    if "retained.0" in tensors:
        retained = unflatten(parts, tensors, "retained")
        before = unflatten(tuple(counters), tensors, "counters")
    ended, watched = bool(facts["ended"]), facts["watched"]
    store.restore(sites, kept)
    run.carried = carried._replace(server=server, broadcast=broadcast, tick=tick, **served)
    run.round, run.history, run.plan = number, history, Plan(*facts["plan"])
    run.bytes_up, run.bytes_down, run.bytes_regions, run.retries = counters
    run.first_loss, run.best = tensors.get("first_loss"), best
    run.ended = ended
    run.watched = None if watched is None else Watched(trees.part(tensors, "watched"), watched)
    if retained is not None:
        names = ("server", "broadcast", "ledger", "seen")
        healthy = run.carried._replace(**dict(zip(names, retained, strict=True)))
        healthy_round, records = facts["retained"]
        run.retained = Retained(healthy, healthy_round, records, before)
