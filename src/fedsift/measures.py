"""Measures of forgetting: pure functions of scores and probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def auc(members: Tensor, member_weight: Tensor, others: Tensor, other_weight: Tensor) -> Tensor:
    """Return P(score of a member > score of another), ties counted half; ½ where a side is empty.

    Args:
        members: scores [m].
        member_weight: [m], 0 for rows that do not count.
        others: scores [n].
        other_weight: [n].
    """
    members, order = members.contiguous(), others.argsort()
    ranked, below = others[order], other_weight[order].double().cumsum(0)
    total = below[-1]
    below = torch.cat([torch.zeros_like(below[:1]), below])
    lower = below[torch.searchsorted(ranked, members)]
    upper = below[torch.searchsorted(ranked, members, right=True)]
    weight = member_weight.double()
    won = (weight * 0.5 * (lower + upper)).sum()
    pairs = weight.sum() * total
    return torch.where(pairs > 0, won / pairs.clamp(min=1e-30), 0.5)
