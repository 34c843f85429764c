"""What is decided about a run before its first round."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor
from torch.func import vmap

from fedsift import trees
from fedsift.engines.base import Carried, Job
from fedsift.engines.vectorized import SITE_BY_SITE
from fedsift.problems import Batch
from fedsift.sites import SiteData


def cannot_batch(job: Job, carried: Carried) -> str | None:
    """Return why `vmap` cannot take this model (or would take it one lane at a time), or None.

    Tried on a discarded copy of one site, twice side by side.

    Raises:
        ValueError: the model draws random numbers of its own, so that no run could be repeated.
    """
    replica = trees.unstack(carried.broadcast.replica, 0)
    twice = trees.stack([replica, replica])
    rows = slice(job.data.offsets[0], job.data.offsets[1])
    tables = (job.data.x[rows], job.data.y[rows], job.data.weight[rows])
    data = (*tables, job.shares[0], job.run_keys[0])
    client = job.algorithm.client_init(job.problem, replica)

    def lane(shared: Any) -> Any:
        exchange = job.algorithm.exchanges_at(1)[-1]
        return job.algorithm.client_round(
            job.problem, shared, client, SiteData(*data), job.run_keys[0], exchange
        )[0]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        try:
            vmap(lane)(twice)
            batch = Batch(*tables, job.run_keys[0])
            params = job.algorithm.solution(job.problem, trees.unstack(carried.server, 0))
            vmap(lambda p: job.problem.evaluate(p, batch))(trees.stack([params, params]))
        except (RuntimeError, UserWarning) as error:
            reason = str(error).split("\n", 1)[0]
            if "random" in reason:
                msg = (
                    "the model draws random numbers that no key decides (a functional dropout, or"
                    " the dropout of an attention layer); use torch.nn.Dropout layers, and"
                    " dropout=0 in attention"
                )
                raise ValueError(msg) from error
            return reason
    return None


def compile_pays(job: Job, participants: Tensor, rounds: int) -> bool:
    """Estimate whether fusing the sites' work saves more than its compile costs.

    Unfused, a step takes about 4 ms a call (some hundred small operations under `vmap`) and 100 ns
    for every number of every lane, most of which fusing saves. A compile takes about 15 s for two
    steps of a linear model, more with more steps and leaves, and again for every size of a site's
    block. These are rules from measurements, not timings, so that they are the same in every
    process and a resumed run goes on as it began.
    """
    leaves = job.problem.init(job.run_keys[0])
    numbers = sum(leaf.numel() for leaf in leaves.values())
    lanes, seeds_at_a_site = int(participants.sum()), int(participants.sum(0).max())
    many = seeds_at_a_site > 1 and 2 * seeds_at_a_site * numbers >= SITE_BY_SITE
    calls = int(participants.any(0).sum()) if many else 1
    steps = getattr(job.algorithm, "local_steps", 1)
    shapes = len(job.block_rows.unique())
    saved = rounds * steps * (4e-3 * calls + 1e-7 * lanes * numbers)
    return saved > 15.0 * shapes * max(1.0, steps / 2) * max(1.0, len(leaves) / 2)
