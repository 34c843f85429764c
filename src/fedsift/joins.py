"""States of a training before the rounds in which sites joined it late.

Such a state holds nothing of the rows of a site that was not asked before: a training without the
site may go on from there, and ends as one from the start would.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedsift.checkpoints import StageCheckpoint, save_training, write_checkpoint
from fedsift.data import RemoteData
from fedsift.engines import Plan
from fedsift.evaluation import evaluate
from fedsift.sealed import unseal

if TYPE_CHECKING:
    from fedsift.training import Training

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 28  # of all states that a run keeps


class Start(NamedTuple):
    """The state before round ``round``, and the bytes that had been sent by then."""

    round: int
    bytes_up: int
    bytes_down: int


def join_file(folder: Path, number: int) -> Path:
    """Return where the state before a round is kept."""
    return folder / f"before-round-{number}.safetensors"


def keep_before_joins(folder: Path | None, run: Training, participants: Tensor) -> None:
    """Keep the state if a site takes part now, [S, C], that none of the seeds has asked before.

    Not kept: the start; states that remote sites have a part of; those of an algorithm that counts
    on sites it has not asked yet; those of a run that was rolled back, which all rows had a say in;
    and what goes beyond `MOST_BYTES`. Loss and measure of the rounds before were taken on all rows,
    and are left out.
    """
    if folder is None or run.round == 0:
        return
    job, file = run.job, join_file(folder, run.round)
    joined = participants.any(0) & (run.carried.ledger < 0).all(0)
    if file.exists() or not joined.any():
        return
    if isinstance(job.data, RemoteData) or job.algorithm.tracks_uploads or run.retries.any():
        return
    if sum(f.stat().st_size for f in folder.glob("before-round-*")) > MOST_BYTES:
        return
    measured = evaluate(job.problem, run.params, job.data, [0])
    history = [{k: v for k, v in r.items() if k not in measured} for r in run.history]
    save_training(file, replace(run, history=history, first_loss=None))


def go_on_without(
    file: Path, checkpoint: StageCheckpoint, before: Sequence[str], after: Sequence[str]
) -> Start | None:
    """Write a kept state as the checkpoint of the same training with fewer sites, if it has none.

    Args:
        file: the state, one that the sites that are left out had no part in.
        checkpoint: where that training begins from.
        before: names of the sites of the state.
        after: names of those that are left, in the same order.

    Returns:
        What the state is. None if it is damaged, which is warned of, or was not computed in the
        plain way: then the same training from the start may round otherwise.
    """
    try:
        tensors, facts = unseal(file)
    except ValueError as error:
        log.warning("%s is damaged (%s); work goes on from the start", file, error)
        return None
    content = facts["content"]
    if Plan(*content["plan"]) != Plan():
        return None
    up, down = (int(tensors[name].sum()) for name in ("bytes_up", "bytes_down"))
    start = Start(int(content["round"]), up, down)
    if checkpoint.path.exists():
        return start
    columns = torch.tensor([name in after for name in before])
    numbers = [after.index(name) if name in after else -1 for name in before]
    tensors["store_sites"] = torch.tensor(
        [numbers[site] for site in tensors["store_sites"].tolist()], dtype=torch.int64
    )
    retained = sum(name.startswith("retained.") for name in tensors)
    of_healthy = [f"retained.{i}" for i in range(retained)][-2:]  # its ledger and seen
    for name in ("ledger", "seen", *of_healthy):
        tensors[name] = tensors[name][:, columns].contiguous()
    content["job"][-1] = repr(tuple(after))
    write_checkpoint(checkpoint.path, tensors, content, checkpoint.fingerprint or "")
    return start
