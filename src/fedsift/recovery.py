"""Recovery: the last healthy state, and seeds that diverged brought back to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import trees
from fedsift.channels import Broadcast
from fedsift.engines.base import Carried
from fedsift.evaluation import evaluate

if TYPE_CHECKING:
    from fedsift.training import Training

log = logging.getLogger(__name__)

MAX_RETRIES = 6


class TrainingError(RuntimeError):
    """A run that cannot go on; the text names the site and the next action."""


class Retained(NamedTuple):
    """The last healthy state: to roll a diverged seed back to, or to keep on an interrupt."""

    carried: Carried
    round: int
    records: int
    counters: tuple[Tensor, Tensor, Tensor, Tensor]


def retain(run: Training) -> Retained:
    """Return the state of now; only the store is changed in place, and marks it itself."""
    run.carried.store.mark()
    counters = (run.bytes_up, run.bytes_down, run.bytes_regions, run.retries)
    return Retained(run.carried, run.round, len(run.history), counters)


def reset(run: Training, retained: Retained) -> None:
    """Bring the whole run back to a retained state."""
    run.carried, run.round = retained.carried, retained.round
    run.carried.store.roll_back(torch.arange(len(run.job.seeds)))
    run.bytes_up, run.bytes_down, run.bytes_regions, run.retries = retained.counters
    del run.history[retained.records :]


def recover(run: Training, loss: Tensor, retained: Retained, participants: Tensor) -> Tensor:
    """Roll the seeds that diverged back to the last healthy state, with a smaller step.

    ``participants`` [S, C] are those of the last round. Return which seeds are healthy, [S].
    """
    first = run.first_loss if run.first_loss is not None else torch.full_like(loss, torch.inf)
    most = run.job.algorithm.diverged * first.clamp(min=1e-3)
    finite = vmap(trees.all_finite)(run.carried.server)
    healthy = finite & torch.isfinite(loss) & (loss <= most)
    if healthy.all():
        return healthy
    sick = (~healthy).nonzero().squeeze(1)
    run.retries = run.retries + (~healthy)
    smaller = run.job.algorithm.back_off(retained.carried.server)
    if smaller is None or int(run.retries.max()) > MAX_RETRIES:
        raise TrainingError(_divergence(run, participants))
    log.warning(
        "%d of %d seeds diverged in round %d: rolled back, smaller step",
        len(sick),
        len(loss),
        run.round,
    )
    old, now = retained.carried, run.carried
    run.carried = now._replace(
        server=trees.where(healthy, now.server, smaller),
        broadcast=trees.where(healthy, now.broadcast, _to_send_again(old.broadcast)),
        ledger=trees.where(healthy, now.ledger, old.ledger),
        seen=trees.where(healthy, now.seen, torch.full_like(old.seen, -1)),
    )
    run.carried.store.roll_back(sick)
    return healthy


def _to_send_again(broadcast: Broadcast) -> Broadcast:
    """Return a broadcast of which the sites hold nothing: they heard the diverged one since."""
    return broadcast._replace(
        changed_at={k: t.clamp(min=0) for k, t in broadcast.changed_at.items()}
    )


def _divergence(run: Training, participants: Tensor) -> str:
    """Say at which of the last round's sites the loss is worst."""
    job, params = run.job, run.params
    if job.privacy is not None:  # at which site the loss is largest is not to be told
        return (
            f"{type(job.algorithm).__name__} diverged by round {run.round} even with smaller steps;"
            " give a smaller learning_rate, or less noise"
        )

    def loss(site: int) -> float:
        losses = evaluate(job.problem, params, job.data, [site])["loss"]
        return float(losses.nan_to_num(torch.inf).max())

    worst = job.data.sites[max(participants.any(0).nonzero().squeeze(1).tolist(), key=loss)]
    return (
        f"{type(job.algorithm).__name__} diverged by round {run.round} even with smaller steps; "
        f"the loss is largest at site {worst!r}: check its values and scale, "
        "or give a smaller learning_rate"
    )
