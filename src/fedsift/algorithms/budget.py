"""Steps that may be taken back: which is kept, how long the next one is, and when to stop.

    F_r(w) ≤ F_r(start) + δ:  the step is kept and L ← 1.5 L;   else it is undone and L ← L/2
    stop at the first of: target met · gradients opposite · L a thousandth of its first value

F_r at a tried point is known one exchange later: what is judged is the step of the last exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsift import combiners
from fedsift.algorithms.base import Algorithm
from fedsift.trees import Tree

RUNNING, TARGET_MET, STATIONARY, BUDGET_BROKEN = range(4)
STOP_REASONS = ("max_rounds", "target_met", "stationary", "retain_budget_broken")


class Steps(NamedTuple):
    """What is known of the steps, scalars.

    ``length``: L of the step that is tried, ``first_length`` that of the first; ``first_gap``: to
    the target at the start; ``calm``: exchanges in a row with opposite gradients; ``stop``: a
    number of `STOP_REASONS`, 0 while it goes on.
    """

    length: Tensor
    first_length: Tensor
    first_gap: Tensor
    calm: Tensor
    stop: Tensor


def no_steps() -> Steps:
    """Return what is known before the first step."""
    number, zero = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.float64)
    return Steps(zero, zero, zero, number, number)


@dataclass(frozen=True, kw_only=True)
class Budgeted(Algorithm):
    """Base of methods that forget step by step, within a budget for the retained loss.

    Attributes:
        length: ``adaptive`` as above, ``fixed`` n_u at most ``cap``, or ``safe`` (IMTL-G's).
        first: the first length in units of n_u.
        growth: of the length after an accepted step.
        budget: δ in nats.
        target: stop when the mean probability of the labels to forget is at most this; None: never.
        neutral: stop when the rows to forget cannot be told from rows held out at the same site:
            by their loss, with an AUC of at most this, or by their accuracy, which is not higher;
            None: never.
        level: stop when the mean loss of the rows to forget is at least this, such as that of rows
            never seen; None: never.
        settled: share of δ that F_r may have risen for the target to count as met.
        patience: exchanges in a row at which opposite gradients stop the run.
        stationary: √((1+c)/2) up to which gradients count as opposite.
    """

    length: Literal["adaptive", "fixed", "safe"] = "adaptive"
    first: float = 0.2
    growth: float = 1.5
    cap: float = 1.0
    budget: float = 0.03
    target: float | None = None
    neutral: float | None = None
    level: float | None = None
    settled: float = 0.0
    patience: int = 3
    stationary: float = 0.1

    def judge(
        self, steps: Steps, begun: Tensor, g: combiners.Gram, forget: Tree, rise: Tensor
    ) -> tuple[Steps, Tensor]:
        """Return what is known of the next step, and whether the one that was tried is kept.

        Args:
            steps: as of the last exchange.
            begun: whether there was one; in the first there is no step to judge.
            g: the gradients at the tried point.
            forget: mean figures of the rows to forget there.
            rise: F_r - F_r(start) there.
        """
        kept = rise <= self.budget
        first, fixed = self.lengths(g)
        first = torch.where(begun, steps.first_length, first)
        grown = torch.where(begun, self.growth * steps.length, first)
        length = torch.where(
            kept, grown if self.length == "adaptive" else fixed, 0.5 * steps.length
        )
        opposite = ((1.0 + g.cosine) / 2.0).sqrt() <= self.stationary
        calm = torch.where(kept & begun & opposite, steps.calm + 1, steps.calm * (~kept))
        gap = self.gap(forget)
        met = (gap <= 0) & (rise <= self.settled * self.budget)
        spent = length / first.clamp(min=1e-30) < 1e-3
        stop = torch.where(~kept & spent, BUDGET_BROKEN, RUNNING)
        stop = torch.where(calm >= self.patience, STATIONARY, stop)
        stop = torch.where(kept & met, TARGET_MET, stop)
        return Steps(length, first, torch.where(begun, steps.first_gap, gap), calm, stop), kept

    def lengths(self, g: combiners.Gram) -> tuple[Tensor, Tensor]:
        """Return the first length, and that of a step whose length is not adapted."""
        fixed = combiners.safe_length(g) if self.length == "safe" else g.forget.clamp(max=self.cap)
        return self.first * g.forget, fixed

    def gap(self, forget: Tree) -> Tensor:
        """Return how far the rows to forget are from the target: 0 or less when it is met.

        The unit is the target's, a probability, an AUC or nats; without a target it is 1.
        """
        if self.target is not None:
            return (forget["confidence"] - self.target).double()
        if self.neutral is not None:
            told_apart = (forget["membership_auc"] - self.neutral).double()
            better = (forget["accuracy"] - forget["held_out_accuracy"]).double()
            return torch.minimum(told_apart, better)
        if self.level is not None:
            return (self.level - forget["cross_entropy"]).double()
        return torch.ones_like(forget["loss"]).double()

    def missing(self, steps: Steps, forget: Tree) -> Tensor:
        """Return e_u, the share of the way to the target that is left, in [0, 1]."""
        return (self.gap(forget) / steps.first_gap.clamp(min=1e-12)).clamp(0.0, 1.0)
