"""Federated averaging and its hard-thresholding relatives.

FedAvg (McMahan et al., 2017); Fed-HT and FedIter-HT (Tong et al., 2020, "Federated nonconvex sparse
learning"); the tuning phase that retrains the kept parameters (E-FLoPS, arXiv 2607.00275).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms.base import Info, LocalTraining, SiteStep, Totals, Upload
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.sparsity import Schedule, kept_count, scheduled_density
from fedsift.trees import Tree


class ServerState(NamedTuple):
    """What the server carries: its model, the mean curvature and the scale of the steps."""

    round: Tensor
    theta: Tree
    curvature: Tensor
    step_scale: Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalTraining):
    """Dense federated averaging; the solution keeps the m = ⌊ρG⌋ largest parameters.

    Site c takes H local steps θ ← P(θ - η_c F_c(θ)) from the server's θ, P onto the feasible set,
    and uploads Δ_c/η_c and 1/η_c. The server adds mean(Δ_c/η_c) / mean(1/η_c): with one local step
    this is the pooled gradient, whatever the step sizes.

    Attributes:
        density: ρ, the share of gates the solution keeps; 1 keeps all.
    """

    keeps_own: ClassVar[bool] = True

    density: float = 1.0

    def server_init(self, problem: Problem, key: Tensor) -> ServerState:
        one = torch.ones(())
        return ServerState(torch.zeros((), dtype=torch.int64), problem.init(key), 0.0 * one, one)

    def download(self, problem: Problem, server: ServerState, exchange: str) -> Tree:
        return trees.join(
            theta=server.theta, curvature=server.curvature, step_scale=server.step_scale
        )

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: SiteStep,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, SiteStep, Info]:
        server = trees.part(shared, "theta")
        start = self.at_site(server, client)
        if exchange == "curvature":
            return self.measure_curvature(
                problem, start, client, data, key, self.scaling(problem, shared)
            )
        step = self.step_size(shared, client)
        theta = self.local_steps_from(problem, start, shared, data, step, key)
        change = trees.scale(trees.subtract(theta, start), 1.0 / step)
        after = self.keep_own(problem, client, server, theta, step, data)
        return {"loss": (trees.join(theta=change, inverse_step=1.0 / step), data.share)}, after, {}

    def clear_parts(self) -> frozenset[str]:
        return frozenset({"inverse_step"})

    def local_steps_from(
        self, problem: Problem, theta: Tree, shared: Tree, data: SiteData, step: Tensor, key: Tensor
    ) -> Tree:
        """Take the local steps."""
        for local in range(self.local_steps):
            batch = data.batch(local, self.batch_size, random.fold(key, local))
            theta = trees.add_scaled(theta, -step, problem.operators["loss"](theta, batch))
            theta = self.after_step(problem, problem.project(theta), shared)
        return theta

    def after_step(self, problem: Problem, theta: Tree, shared: Tree) -> Tree:
        return theta

    def scaling(self, problem: Problem, shared: Tree) -> Tree | None:
        """Return the change of variable in which the curvature is measured."""
        return None

    def server_round(
        self, problem: Problem, server: ServerState, totals: Totals, exchange: str
    ) -> tuple[ServerState, Info]:
        mean = totals["loss"].mean
        if exchange == "curvature":
            return server._replace(curvature=mean["curvature"]), {}
        theta = trees.add_scaled(
            server.theta, 1.0 / mean["inverse_step"], trees.part(mean, "theta")
        )
        return server._replace(
            round=server.round + 1, theta=self.after_average(problem, server, theta)
        ), {}

    def after_average(self, problem: Problem, server: ServerState, theta: Tree) -> Tree:
        return theta

    def solution(self, problem: Problem, server: ServerState) -> Tree:
        kept = kept_count(self.density, problem.gates.size)
        return threshold(problem, server.theta, kept, kept)


def threshold(problem: Problem, theta: Tree, kept: int | Tensor, final: int) -> Tree:
    """Zero all but the ``kept`` largest gates' parameters (hard thresholding H_m)."""
    if isinstance(kept, int) and kept >= problem.gates.size:
        return theta
    mask = problem.gates.keep(problem.gates.magnitude(theta), kept, final)
    return problem.gates.multiply(theta, mask)


@dataclass(frozen=True, kw_only=True)
class FedHT(FedAvg):
    """Fed-HT: FedAvg with a hard threshold on the server after every round.

    Attributes:
        schedule: how the density falls to ρ; the paper's method is ``constant``.
    """

    schedule: Schedule = "constant"

    def kept_now(self, problem: Problem, round_number: Tensor) -> Tensor:
        """Return m of this round; a tensor, so that it may change without a new trace."""
        progress = round_number.to(torch.float32) / self.rounds
        density = scheduled_density(self.density, self.schedule, progress)
        return torch.floor(density * problem.gates.size + 1e-4).long()

    def after_average(self, problem: Problem, server: ServerState, theta: Tree) -> Tree:
        final = kept_count(self.density, problem.gates.size)
        return threshold(problem, theta, self.kept_now(problem, server.round), final)


@dataclass(frozen=True, kw_only=True)
class FedIterHT(FedHT):
    """FedIter-HT: hard threshold after every local step and on the server.

    A site uploads its sparse model, so that a message holds m numbers; the server averages models.
    It is sent as ``model``: a channel may cut changes (``theta``), whose rest can follow later, but
    the rest of a model must not be added to the next one.
    """

    def download(self, problem: Problem, server: ServerState, exchange: str) -> Tree:
        return {
            **super().download(problem, server, exchange),
            "kept": self.kept_now(problem, server.round),
        }

    def after_step(self, problem: Problem, theta: Tree, shared: Tree) -> Tree:
        final = kept_count(self.density, problem.gates.size)
        return threshold(problem, theta, shared["kept"], final)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: SiteStep,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, SiteStep, Info]:
        server = trees.part(shared, "theta")
        start = self.at_site(server, client)
        if exchange == "curvature":
            return self.measure_curvature(problem, start, client, data, key)
        step = self.step_size(shared, client)
        theta = self.local_steps_from(problem, start, shared, data, step, key)
        after = self.keep_own(problem, client, server, theta, step, data)
        told = {leaf: server[leaf] + theta[leaf] - start[leaf] for leaf in problem.private}
        return {"loss": (trees.join(model={**theta, **told}), data.share)}, after, {}

    def refuse_privacy(self, level: str) -> str | None:
        models = "sites send whole models, and clipping would shrink them; use FedHT"
        return models if level == "site" else None

    def server_round(
        self, problem: Problem, server: ServerState, totals: Totals, exchange: str
    ) -> tuple[ServerState, Info]:
        if exchange == "curvature":
            return super().server_round(problem, server, totals, exchange)
        theta = self.after_average(problem, server, trees.part(totals["loss"].mean, "model"))
        return server._replace(round=server.round + 1, theta=theta), {}


class TuningState(NamedTuple):
    """`ServerState` and the gates to keep, 0/1 [G]."""

    round: Tensor
    theta: Tree
    curvature: Tensor
    step_scale: Tensor
    support: Tensor


@dataclass(frozen=True, kw_only=True)
class Tuning(FedAvg):
    """The tuning phase: FedAvg on a fixed support; give it a problem with a ridge.

    Begin it with `start`; its own `server_init` keeps every gate.
    """

    rounds: int = 100

    def start(self, problem: Problem, params: Tree, support: Tensor) -> TuningState:
        """Return the state that retrains ``params`` on the gates where ``support`` [G] is 1."""
        one = torch.ones(())
        theta = problem.gates.multiply(params, support)
        return TuningState(torch.zeros((), dtype=torch.int64), theta, 0.0 * one, one, support)

    def server_init(self, problem: Problem, key: Tensor) -> TuningState:  # type: ignore[override]
        return self.start(problem, problem.init(key), torch.ones(problem.gates.size))

    def download(self, problem: Problem, server: TuningState, exchange: str) -> Tree:  # type: ignore[override]
        shared = super().download(problem, server, exchange)  # type: ignore[arg-type]
        return {**shared, "support": server.support}

    def after_step(self, problem: Problem, theta: Tree, shared: Tree) -> Tree:
        return problem.gates.multiply(theta, shared["support"])

    def scaling(self, problem: Problem, shared: Tree) -> Tree:
        ones = {leaf: torch.ones_like(value) for leaf, value in trees.part(shared, "theta").items()}
        return problem.gates.multiply(ones, shared["support"])

    def solution(self, problem: Problem, server: TuningState) -> Tree:  # type: ignore[override]
        return server.theta
