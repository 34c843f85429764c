"""Privacy's account of a run: how often something was told of a site's rows."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsift.engines.base import Job, releases

__all__ = ["planned"]


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
