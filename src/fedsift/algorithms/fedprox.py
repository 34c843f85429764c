"""FedProx (Li et al., 2020): local steps that are pulled back to the server's point."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms.fedavg import FedAvg
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with the local operator F_c(y) + μ(y - x).

    Attributes:
        pull: μ.
    """

    pull: float = 0.1
    local_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pull < 0:
            msg = f"pull is {self.pull}; give 0 or more"
            raise ValueError(msg)

    def local_steps_from(
        self, problem: Problem, theta: Tree, shared: Tree, data: SiteData, step: Tensor, key: Tensor
    ) -> Tree:
        start = theta
        for local in range(self.local_steps):
            batch = data.batch(local, self.batch_size, random.fold(key, local))
            field = problem.operators["loss"](theta, batch)
            field = trees.add_scaled(field, self.pull, trees.subtract(theta, start))
            theta = problem.project(trees.add_scaled(theta, -step, field))
            theta = self.after_step(problem, theta, shared)
        return theta
