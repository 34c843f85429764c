"""The server's part of certified LIPPAX: a trial point, a certificate, a step of its own choice.

    z = P_X(x - γ(ū + Σ p_c(F_c(y_c) - u_c)))                        exchange "point"
    x⁺ = P_X(x - γ F̄(z)),  C = 2γ⟨F̄(z), z - x⁺⟩ - ‖x - x⁺‖²          exchange "value"
    C ≤ 1e-15 (‖x‖² + ‖x⁺‖²):  x ← x⁺, γ ← 1.2 γ;   else γ ← .6 γ and the round is done again

x⁺ projects x - γF̄(z), so 2γ⟨F̄(z), z - u⟩ ≤ ‖x - u‖² - ‖x⁺ - u‖² + C for every u in X. Summed over
the accepted steps, for a monotone F̄: the dual gap of the γ-weighted mean of the z is at most
(D² + ΣC⁺)/(2Σγ), D = max_u ‖x0 - u‖. No constant of the problem has to be known for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms.base import Info
from fedsift.problems import Problem
from fedsift.trees import Tree

if TYPE_CHECKING:
    from fedsift.algorithms.lippax import LippaxState

ROUNDING = 1e-15
# A factor of .5 takes a quarter more exchanges where sites differ much, .7 where they are alike.
GROWTH, BACKTRACK, PATIENCE = 1.2, 0.6, 3


class Trial(NamedTuple):
    """z; γ in units of its start; rejections in a row; Σγz, Σγ and ΣC⁺ of the accepted steps."""

    point: Tree
    factor: Tensor
    rejections: Tensor
    total: Tree
    length: Tensor
    excess: Tensor

    def plain(self, like: Tree) -> Tensor:
        """Return 1 where the sites shall evaluate at x itself (extragradient), else 0."""
        dtype = next(iter(like.values())).dtype
        return (self.rejections >= PATIENCE).to(dtype)

    def mean(self) -> Tree:
        """Return the γ-weighted mean of z, or z itself before the first accepted step."""
        some = self.length > 0
        mean = trees.scale(self.total, 1.0 / torch.where(some, self.length, 1.0))
        averaged: Tree = trees.where(some, mean, self.point)
        return averaged


def no_trial(x: Tree) -> Trial:
    """Return the state before the first round."""
    zero = torch.zeros((), dtype=torch.float64)
    return Trial(x, zero + 1.0, zero.long(), trees.zeros_like(x), zero, zero)


def propose(problem: Problem, server: LippaxState, field: Tree, gamma: Tensor) -> Trial:
    """Return the trial z for the mean field at the y_c."""
    z = problem.project(trees.add_scaled(server.point, -gamma, field))
    return server.trial._replace(point=z)


def certify(
    problem: Problem, server: LippaxState, field: Tree, slow: Tree, gamma: Tensor, *, whole: Tensor
) -> tuple[LippaxState, Info]:
    """Take or refuse the step for F̄(z); without an answer of every site (``whole``) refuse it."""
    x, trial = server.point, server.trial
    plus = problem.project(trees.add_scaled(x, -gamma, field))
    gain = 2.0 * gamma * trees.dot(field, trees.subtract(trial.point, plus))
    step = trees.subtract(plus, x)
    certificate = gain - trees.dot(step, step)
    rounding = ROUNDING * (trees.dot(x, x) + trees.dot(plus, plus))
    taken = whole & (certificate <= rounding)
    backed = torch.where(whole, BACKTRACK, 1.0) * trial.factor
    summed = trial._replace(
        total=trees.add_scaled(trial.total, gamma, trial.point),
        length=trial.length + gamma,
        excess=trial.excess + certificate.clamp(min=0.0),
    )
    after = trees.where(taken, summed, trial)._replace(
        factor=torch.where(taken, GROWTH * trial.factor, backed),
        rejections=torch.where(taken, 0, trial.rejections + whole.long()),
    )
    point = trees.where(taken, plus, x)
    info = {
        "gamma": gamma,
        "certificate": torch.where(taken, certificate, -torch.inf),
        "backtracked": (~taken).double(),
    }
    return server._replace(point=point, found=point, slow=slow, trial=after), info
