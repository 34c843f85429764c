"""Membership inference: can it be told from the model that a row was trained on?

Attacks give every row a score, larger for members. What they find is a lower bound of what could be
found: an AUC of ½ says that these attacks fail, not that all do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.forgetting import class_logits
from fedsift.measures import auc
from fedsift.problems import Problem
from fedsift.trees import Tree

Attack = Literal["loss", "confidence", "entropy"]
Z95 = 1.959964


class Figure(NamedTuple):
    """A figure with a 95 % interval."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return it as results write it."""
        return {"mean": self.value, "low": self.low, "high": self.high}


class Inference(NamedTuple):
    """AUC, and the true positive rate at a false positive rate of 1 %.

    ``smallest_fpr``: with fewer than 100 rows held out, a rate of 1 % cannot be resolved; the rate
    is then that without any false positive.
    """

    auc: Figure
    tpr_at_1_fpr: Figure
    smallest_fpr: float


def scores(problem: Problem, params: Tree, x: Tensor, y: Tensor, attack: Attack) -> Tensor:
    """Return the score of each row [n]: -loss, the largest probability, or minus the entropy."""
    assert problem.predict is not None  # noqa: S101  classifiers have it
    with torch.no_grad():
        log_p = F.log_softmax(class_logits(problem.predict(params, x)).double(), -1)
    if attack == "loss":
        return log_p.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
    if attack == "confidence":
        return log_p.max(-1).values
    return (log_p.exp() * log_p).sum(-1)


def infer(members: Tensor, others: Tensor) -> Inference:
    """Return what scores of members and of others tell apart.

    The interval of the AUC is Hanley and McNeil's (1982), that of the rate Wilson's.

    Raises:
        ValueError: a side is empty.
    """
    m, n = len(members), len(others)
    if not m or not n:
        raise ValueError(f"{m} members and {n} others; give one row of each at least")
    area = float(auc(members, torch.ones(m), others, torch.ones(n)))
    q1, q2 = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (m - 1) * (q1 - area * area) + (n - 1) * (q2 - area * area)
    error = Z95 * math.sqrt(max(spread, 0.0) / (m * n))
    allowed = int(0.01 * n)
    threshold = others.sort(descending=True).values[allowed]
    hits = int((members > threshold).sum())
    return Inference(
        Figure(area, max(0.0, area - error), min(1.0, area + error)),
        wilson(hits, m),
        max(0.01, 1.0 / n),
    )


def wilson(hits: float, count: int) -> Figure:
    """Return a share with Wilson's interval."""
    share, z = hits / count, Z95
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count)
    half *= math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Figure(share, max(0.0, centre - half), min(1.0, centre + half))


def likelihood_ratio(target: Tensor, with_row: Tensor, without: Tensor) -> Tensor:
    """Return the LiRA score of each row: log N(s; μ_in, σ_in²) - log N(s; μ_out, σ_out²).

    Args:
        target: scaled confidences log(p/(1-p)) of the rows under the model in question, [n].
        with_row: the same under shadow models trained with the row, [k, n], nan where not.
        without: under those trained without it, [k, n], nan where not.

    Source: Carlini et al., 2022, "Membership inference attacks from first principles"; variances
    are those of all rows together, which few shadow models need.
    """

    def log_density(values: Tensor) -> Tensor:
        centre = values.nanmean(0)
        spread = ((values - centre) ** 2).nanmean().sqrt().clamp(min=1e-6)
        return -0.5 * ((target - centre) / spread) ** 2 - spread.log()

    return log_density(with_row) - log_density(without)


def scaled_confidence(problem: Problem, params: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Return log(p_y/(1-p_y)) of each row [n], from the log-probabilities."""
    assert problem.predict is not None  # noqa: S101  classifiers have it
    with torch.no_grad():
        log_p = F.log_softmax(class_logits(problem.predict(params, x)).double(), -1)
    index = y.long().unsqueeze(-1)
    own = log_p.gather(-1, index).squeeze(-1)
    rest = log_p.scatter(-1, index, -torch.inf).logsumexp(-1)
    return own - rest


def shadow_scores(
    fit: Callable[[Tensor, int], Tree],
    problem: Problem,
    x: Tensor,
    y: Tensor,
    count: int,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Train shadow models on random halves of the rows; return their scaled confidences.

    Args:
        fit: (mask of the rows to train on [n], number of the model) → parameters.
        problem: of the model.
        x: rows whose membership is asked, [n, ...].
        y: their targets.
        count: shadow models.
        seed: draws the halves.

    Returns:
        (with the row, without it), each [count, n], nan where the row was on the other side.
    """
    from fedsift import random

    keys = random.fold(random.key("shadow", seed), torch.arange(count))
    inside = random.uniform(keys, (len(x),)) < 0.5
    found = torch.stack(
        [scaled_confidence(problem, fit(mask, number), x, y) for number, mask in enumerate(inside)]
    )
    nan = torch.full_like(found, torch.nan)
    return torch.where(inside, found, nan), torch.where(inside, nan, found)
