"""Privacy's account of a run: how often something was told of a site's rows."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsift import trees
from fedsift.engines.base import Job, site_data, start_servers, state_template, work

__all__ = ["planned", "releases"]


def releases(job: Job, exchange: str) -> int:
    """Return how many releases a site makes in an exchange for a seed: the same for every site.

    Counted in a discarded call with the rows of one site; 0 without privacy.

    Raises:
        ValueError: at level ``sample``, the rows are looked at in another way than by an operator.
    """
    if job.privacy is None:
        return 0
    server = trees.unstack(start_servers(job, [0]), 0)
    shared = job.algorithm.download(job.problem, server, exchange)
    rows, key = job.rows_of(0), job.run_keys[0]
    data = site_data([table[rows] for table in job.tables], job.shares[0], key)
    done = work(job, exchange, shared, state_template(job, shared), data, key)
    if not done.releases:
        name = type(job.algorithm).__name__
        msg = f"{name} does not work by an operator on the rows; use privacy at level='site'"
        raise ValueError(msg)
    return done.releases


def planned(job: Job, rounds: int, participation: float) -> Tensor:
    """Return how many releases each site will have made after these rounds, int64 [C].

    Those of all seeds count together, for all of them are of the same rows. Who takes part is no
    secret, so there is no amplification by sampling.
    """
    total = torch.zeros(job.data.n_sites, dtype=torch.int64)
    told: dict[str, int] = {}
    for number in range(rounds):
        asked = job.participants(number, participation).sum(0)
        for exchange in job.algorithm.exchanges_at(number, newcomers=number == 0):
            if exchange not in told:
                told[exchange] = releases(job, exchange)
            total += told[exchange] * asked
    return total
