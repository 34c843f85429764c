"""Rivals of FU-MEGS that are no combination of two gradients.

Projected gradient ascent (Halimi et al., 2022, "Federated unlearning: how to efficiently erase a
client in FL?") and FedEraser (Liu et al., 2021), in the forms said below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms.base import Algorithm, Info, Totals, Upload
from fedsift.algorithms.fedavg import FedAvg, ServerState
from fedsift.data.federated import FORGET
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree


class AscentState(NamedTuple):
    """``theta``: the parameters; ``centre``: of the ball, those of the start."""

    theta: Tree
    centre: Tree


@dataclass(frozen=True, kw_only=True)
class ProjectedAscent(Algorithm):
    """Gradient ascent on the loss of the rows to forget, within a ball around the start.

    w ← P(w + η ∇F(w)), ‖w - w_0‖ ≤ R: the sites that forget take H such steps a round, and the
    server averages their models; the others are not asked for anything. In the paper the ball is
    around the mean of the other sites' last models; the server's model is what is known here.

    Attributes:
        radius: R as a share of ‖w_0‖.
    """

    diverged: ClassVar[float] = torch.inf

    rounds: int = 1
    local_steps: int = 25
    learning_rate: float = 0.1
    radius: float = 0.3

    def server_init(self, problem: Problem, key: Tensor) -> AscentState:
        return self.start(problem.init(key))

    def start(self, params: Tree) -> AscentState:
        """Return the state at the parameters of the model that is to forget."""
        return AscentState(params, params)

    def download(self, problem: Problem, server: AscentState, exchange: str) -> Tree:
        return trees.join(theta=server.theta, centre=server.centre)

    def client_init(self, problem: Problem, shared: Tree) -> tuple[()]:
        return ()

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: tuple[()],
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, tuple[()], Info]:
        theta, centre = trees.part(shared, "theta"), trees.part(shared, "centre")
        batch, weight = data.part(FORGET, key)
        radius = self.radius * trees.norm(centre)
        for _ in range(self.local_steps):
            theta = trees.add_scaled(
                theta, self.learning_rate, problem.operators["retain"](theta, batch)
            )
            away = trees.subtract(theta, centre)
            shrink = (radius / trees.norm(away).clamp(min=1e-30)).clamp(max=1.0)
            theta = trees.add_scaled(centre, shrink, away)
        return {"forget": (trees.join(model=theta), weight)}, client, {}

    def server_round(
        self, problem: Problem, server: AscentState, totals: Totals, exchange: str
    ) -> tuple[AscentState, Info]:
        model = trees.part(totals["forget"].mean, "model")
        some = totals["forget"].weight > 0
        return server._replace(theta=trees.where(some, model, server.theta)), {}

    def solution(self, problem: Problem, server: AscentState) -> Tree:
        return server.theta


@dataclass(frozen=True, kw_only=True)
class StoredFedAvg(FedAvg):
    """FedAvg that tells the length of every update of the server, for `FedEraser`."""

    def server_round(
        self, problem: Problem, server: ServerState, totals: Totals, exchange: str
    ) -> tuple[ServerState, Info]:
        after, info = super().server_round(problem, server, totals, exchange)
        length = trees.norm(trees.subtract(after.theta, server.theta))
        return after, info | ({"update_norm": length} if exchange == "round" else {})


@dataclass(frozen=True, kw_only=True)
class FedEraser(FedAvg):
    """Retrain without a site along new directions, with the step lengths that were stored.

    θ ← θ + ‖U_t‖ Ũ/‖Ũ‖: U_t is a stored update of the server, Ũ what the remaining sites make of
    a few local steps now. Per server and not, as in the paper, per site and layer: the server of
    this library keeps no site's update.

    Attributes:
        norms: ‖U_t‖ of the rounds that are calibrated; there are as many rounds.
    """

    keeps_own: ClassVar[bool] = False

    norms: tuple[float, ...] = ()

    def server_round(
        self, problem: Problem, server: ServerState, totals: Totals, exchange: str
    ) -> tuple[ServerState, Info]:
        if exchange == "curvature":
            return super().server_round(problem, server, totals, exchange)
        update = trees.part(totals["loss"].mean, "theta")
        stored = torch.tensor(self.norms)[server.round.clamp(max=len(self.norms) - 1)]
        step = stored / trees.norm(update).clamp(min=1e-30)
        theta = trees.add_scaled(server.theta, step, update)
        return server._replace(round=server.round + 1, theta=theta), {}


def draw_start(problem: Problem, seed: int) -> Tree:
    """Return the parameters that a run with this seed starts from."""
    return problem.init(random.fold(random.key("run", seed), "start"))
