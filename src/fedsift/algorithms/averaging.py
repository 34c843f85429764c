"""Methods that average the points at which sites end; none corrects for unlike sites.

Local extragradient, F-PPM, and the local proximal point with an extra step of LIPPAX's paper.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms.base import Info, Totals, Upload
from fedsift.algorithms.fields import Site, SteppedMethod
from fedsift.problems import Batch, Operator, Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree
from fedsift.vi.resolvent import resolvent


def on_batch(operator: Operator, batch: Batch, point: Tree) -> Tree:
    """Return the field of a batch."""
    return operator(point, batch)


class Point(NamedTuple):
    """ServerState: x, L̄."""

    point: Tree
    lipschitz: Tensor


@dataclass(frozen=True, kw_only=True)
class Averaging(SteppedMethod):
    """x ← P_X(mean of the sites' y_c).

    Attributes:
        local_steps: K, where the method has local steps.
    """

    local_steps: int = 10

    @abstractmethod
    def local(
        self, problem: Problem, x: Tree, step: Tensor, bound: Tensor, data: SiteData, key: Tensor
    ) -> Tree:
        """Return where a site ends; ``bound`` is L_c or, unknown, L̄."""

    def server_init(self, problem: Problem, key: Tensor) -> Point:
        return Point(problem.init(key), torch.zeros((), dtype=torch.float64))

    def download(self, problem: Problem, server: Point, exchange: str) -> Tree:
        return trees.join(point=server.point, step=self.step_of(server), lipschitz=server.lipschitz)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Site,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Site, Info]:
        x = trees.part(shared, "point")
        if exchange == "lipschitz":
            return self.measure(problem, x, client, data, key)
        bound = torch.where(client.lipschitz > 0, client.lipschitz, shared["lipschitz"])
        y = self.local(problem, x, shared["step"], bound, data, key)
        return {"loss": (trees.join(change=trees.subtract(y, x)), data.share)}, client, {}

    def server_round(
        self, problem: Problem, server: Point, totals: Totals, exchange: str
    ) -> tuple[Point, Info]:
        mean = totals["loss"].mean
        if exchange == "lipschitz":
            return server._replace(lipschitz=mean["lipschitz"]), {}
        moved = trees.add(server.point, trees.part(mean, "change"))
        return server._replace(point=problem.project(moved)), {}

    def solution(self, problem: Problem, server: Point) -> Tree:
        return server.point


@dataclass(frozen=True, kw_only=True)
class LocalExtraSGD(Averaging):
    """K local extragradient steps: y' = P_X(y - η F_c(y)), y ← P_X(y - η F_c(y')).

    Source: Beznosikov, Samokhin & Gasnikov, "Distributed saddle-point problems", 2020, algorithm 2.
    """

    def local(
        self, problem: Problem, x: Tree, step: Tensor, bound: Tensor, data: SiteData, key: Tensor
    ) -> Tree:
        operator, y = problem.operators["loss"], x
        for local in range(self.local_steps):
            half, whole = (
                data.batch(2 * local + part, self.batch_size, random.fold(key, local))
                for part in (0, 1)
            )
            ahead = problem.project(trees.add_scaled(y, -step, operator(y, half)))
            y = problem.project(trees.add_scaled(y, -step, operator(ahead, whole)))
        return y


@dataclass(frozen=True, kw_only=True)
class LocalProximalExtraStep(Averaging):
    """The local method of LIPPAX's paper for sites that are alike, reconstructed.

        y ≈ P_X(x_k - η F_c(y; ξ_k)),   x_{k+1} = P_X(x_k - η F_c(y; ξ'_k)),   K steps, averaged

    Attributes:
        inner_steps: evaluations of the inexact resolvent on its fixed sample.
    """

    inner_steps: int = 20

    @property
    def reach(self) -> float:
        return 1.0

    def local(
        self, problem: Problem, x: Tree, step: Tensor, bound: Tensor, data: SiteData, key: Tensor
    ) -> Tree:
        operator = problem.operators["loss"]
        for local in range(self.local_steps):
            fixed, fresh = (
                data.batch(2 * local + part, self.batch_size, random.fold(key, local))
                for part in (0, 1)
            )
            y, _, bound = resolvent(
                partial(on_batch, operator, fixed),
                trees.zeros_like(x), x, step, bound, self.inner_steps, problem.project,
            )  # fmt: skip
            x = problem.project(trees.add_scaled(x, -step, operator(y, fresh)))
        return x


@dataclass(frozen=True, kw_only=True)
class FPPM(Averaging):
    """Federated proximal point: y_c = P_X(x - γ F_c(y_c)), averaged.

    The account that names it writes a forward step, y_c = P_X(x - γ F_c(x)); that is the default,
    ``implicit`` the proximal point of its name.

    Attributes:
        implicit: solve for y_c.
        inner_steps: evaluations of that solve.
    """

    implicit: bool = False
    inner_steps: int = 20

    @property
    def reach(self) -> float:
        return 1.0

    def local(
        self, problem: Problem, x: Tree, step: Tensor, bound: Tensor, data: SiteData, key: Tensor
    ) -> Tree:
        batch, operator = data.batch(0, self.batch_size, key), problem.operators["loss"]
        if not self.implicit:
            return problem.project(trees.add_scaled(x, -step, operator(x, batch)))
        y, _, _ = resolvent(
            partial(on_batch, operator, batch),
            trees.zeros_like(x), x, step, bound, self.inner_steps, problem.project,
        )  # fmt: skip
        return y
