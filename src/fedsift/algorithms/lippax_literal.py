"""The three layers of a public account of LIPPAX, word for word: an ablation, not for use.

The account gives no rule for the states and no constants; what had to be decided is said below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms.base import Info, Totals, Upload
from fedsift.algorithms.fields import SteppedMethod
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree


class Literal(NamedTuple):
    """ServerState: x, z and its mean and summed squares over the rounds (Welford), L̄."""

    point: Tree
    found: Tree
    mean: Tree
    spread: Tensor
    round: Tensor
    lipschitz: Tensor


class TwoLevels(NamedTuple):
    """ClientState: slow u_c, fast v_c, the round in which it took part last, L_c."""

    slow: Tree
    fast: Tree
    last: Tensor
    lipschitz: Tensor


@dataclass(frozen=True, kw_only=True)
class LippaxLiteral(SteppedMethod):
    """The account's method, decided here where it says nothing.

        site    v_c = F_c(x), u_c ← v_c every ``sync`` rounds, × .95 for a round missed
                y_c = P_X(x - γ(u_c + α(v_c - u_c)))
        server  z = mean y_c,  β_t = c s²/(s² + ε), s² the variance of z over the rounds (Welford)
                x ← z + β_t(z - z_prev)

    Its "proximal point" is a forward step, and β_t grows with noise, against its own text.

    Attributes:
        step: γ; None for 1/L̄.
        alpha: α. momentum: c. epsilon: ε. sync: rounds between two slow values.
        decay: factor on u_c for every round missed; 1 leaves it.
        points: read u_c and v_c as points, so that the direction is F_c(u_c) + α(v_c - u_c).
        single: one state only, v_c ← .99 v_c + .01 F_c(x).
    """

    alpha: float = 0.5
    momentum: float = 0.9
    epsilon: float = 1e-6
    sync: int = 5
    decay: float = 0.95
    points: bool = False
    single: bool = False

    @property
    def reach(self) -> float:
        return 1.0

    def server_init(self, problem: Problem, key: Tensor) -> Literal:
        x, zero = problem.init(key), torch.zeros((), dtype=torch.float64)
        return Literal(x, x, trees.zeros_like(x), zero, zero, zero)

    def download(self, problem: Problem, server: Literal, exchange: str) -> Tree:
        return trees.join(point=server.point, step=self.step_of(server), round=server.round)

    def client_init(self, problem: Problem, shared: Tree) -> TwoLevels:
        none, zero = trees.zeros_like(trees.part(shared, "point")), torch.zeros(())
        return TwoLevels(none, none, zero.double() - 1.0, zero.double())

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: TwoLevels,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, TwoLevels, Info]:
        x = trees.part(shared, "point")
        if exchange == "lipschitz":
            return self.measure(problem, x, client, data, key)
        batch, operator = data.batch(0, self.batch_size, key), problem.operators["loss"]
        value = operator(x, batch)
        fast = x if self.points else value
        missed = (shared["round"] - client.last - 1.0).clamp(min=0.0)
        due = (shared["round"] % self.sync == 0) | (client.last < 0)
        slow = trees.where(due, fast, trees.scale(client.slow, self.decay**missed))
        if self.single:
            fast = trees.add(trees.scale(client.fast, 0.99), trees.scale(value, 0.01))
            direction = fast
        else:
            start = operator(slow, batch) if self.points else slow
            direction = trees.add_scaled(start, self.alpha, trees.subtract(fast, slow))
        y = problem.project(trees.add_scaled(x, -shared["step"], direction))
        after = TwoLevels(slow, fast, shared["round"], client.lipschitz)
        return {"loss": (trees.join(point=y), data.share)}, after, {}

    def server_round(
        self, problem: Problem, server: Literal, totals: Totals, exchange: str
    ) -> tuple[Literal, Info]:
        mean = totals["loss"].mean
        if exchange == "lipschitz":
            return server._replace(lipschitz=mean["lipschitz"]), {}
        z, count = trees.part(mean, "point"), server.round + 1.0
        away = trees.subtract(z, server.mean)
        average = trees.add_scaled(server.mean, 1.0 / count, away)
        spread = server.spread + trees.dot(away, trees.subtract(z, average))
        variance = spread / count
        beta = self.momentum * variance / (variance + self.epsilon)
        x = trees.add_scaled(z, beta, trees.subtract(z, server.found))
        return server._replace(point=x, found=z, mean=average, spread=spread, round=count), {
            "momentum": beta
        }

    def solution(self, problem: Problem, server: Literal) -> Tree:
        return server.found
