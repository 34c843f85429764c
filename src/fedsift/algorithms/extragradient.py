"""Methods on the mean field: federated extragradient, optimistic steps, gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms.base import Info, Totals, Upload
from fedsift.algorithms.fields import SteppedMethod
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree


class Fields(NamedTuple):
    """ServerState: x, a second point or field, rounds done, L̄."""

    point: Tree
    second: Tree
    round: Tensor
    lipschitz: Tensor


@dataclass(frozen=True, kw_only=True)
class OnMeanField(SteppedMethod):
    """Base: sites send F_c at the point that the exchange names, the server does the rest."""

    def server_init(self, problem: Problem, key: Tensor) -> Fields:
        x, zero = problem.init(key), torch.zeros((), dtype=torch.float64)
        return Fields(x, trees.zeros_like(x), zero, zero)

    def download(self, problem: Problem, server: Fields, exchange: str) -> Tree:
        return trees.join(point=server.point)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Any,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Any, Info]:
        x = trees.part(shared, "point")
        if exchange == "lipschitz":
            return self.measure(problem, x, client, data, key)
        where = trees.part(shared, "second") if exchange == "value" else x
        value = problem.operators["loss"](where, data.batch(0, self.batch_size, key))
        return {"loss": (trees.join(field=value), data.share)}, client, {}

    def solution(self, problem: Problem, server: Fields) -> Tree:
        return server.point


@dataclass(frozen=True, kw_only=True)
class FederatedExtragradient(OnMeanField):
    """z = P_X(x - η F̄(x)), x ← P_X(x - η F̄(z)): two exchanges a round.

    Source: Korpelevich, "The extragradient method", 1976.
    """

    exchanges: ClassVar[tuple[str, ...]] = ("point", "value")

    def download(self, problem: Problem, server: Fields, exchange: str) -> Tree:
        return trees.join(point=server.point, second=server.second)

    def server_round(
        self, problem: Problem, server: Fields, totals: Totals, exchange: str
    ) -> tuple[Fields, Info]:
        mean = totals["loss"].mean
        if exchange == "lipschitz":
            return server._replace(lipschitz=mean["lipschitz"]), {}
        field, step = trees.part(mean, "field"), self.step_of(server)
        moved = problem.project(trees.add_scaled(server.point, -step, field))
        if exchange == "point":
            return server._replace(second=moved), {}
        return server._replace(point=moved, round=server.round + 1), {}

    @property
    def reach(self) -> float:
        return 0.7


@dataclass(frozen=True, kw_only=True)
class FedOGDA(OnMeanField):
    """x ← P_X(x - η(2 F̄_t - F̄_{t-1})): optimistic steps, one exchange a round.

    Source: Popov, "A modification of the Arrow-Hurwicz method", 1980.
    """

    @property
    def reach(self) -> float:
        return 0.4

    def server_round(
        self, problem: Problem, server: Fields, totals: Totals, exchange: str
    ) -> tuple[Fields, Info]:
        mean = totals["loss"].mean
        if exchange == "lipschitz":
            return server._replace(lipschitz=mean["lipschitz"]), {}
        field = trees.part(mean, "field")
        before = trees.where(server.round > 0, server.second, field)
        ahead = trees.add(field, trees.subtract(field, before))
        moved = problem.project(trees.add_scaled(server.point, -self.step_of(server), ahead))
        return server._replace(point=moved, second=field, round=server.round + 1), {}


class Tracked(NamedTuple):
    """ClientState of gradient tracking: F_c at the server's point, L_c."""

    field: Tree
    lipschitz: Tensor


@dataclass(frozen=True, kw_only=True)
class FedGDAGT(OnMeanField):
    """y ← P_X(y - η(F_c(y) - F_c(x) + F̄(x))), K local steps, then the mean: two exchanges a round.

    Source: Sun & Wei, "A communication-efficient algorithm with linear convergence for federated
    minimax learning", 2022, algorithm 2.

    Attributes:
        local_steps: K.
    """

    exchanges: ClassVar[tuple[str, ...]] = ("point", "local")

    local_steps: int = 10

    @property
    def reach(self) -> float:
        return 1.0 / self.local_steps

    def download(self, problem: Problem, server: Fields, exchange: str) -> Tree:
        return trees.join(point=server.point, field=server.second, step=self.step_of(server))

    def client_init(self, problem: Problem, shared: Tree) -> Tracked:
        zero = torch.zeros((), dtype=torch.float64)
        return Tracked(trees.zeros_like(trees.part(shared, "point")), zero)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Any,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Any, Info]:
        if exchange != "local":
            upload, after, info = super().client_round(problem, shared, client, data, key, exchange)
            sent = trees.part(upload["loss"][0], "field")
            return upload, after._replace(field=sent) if sent else after, info
        operator, x = problem.operators["loss"], trees.part(shared, "point")
        correction, y = trees.subtract(trees.part(shared, "field"), client.field), x
        for local in range(self.local_steps):
            value = operator(y, data.batch(local, self.batch_size, key))
            step = trees.add(value, correction)
            y = problem.project(trees.add_scaled(y, -shared["step"], step))
        return {"loss": (trees.join(field=trees.subtract(y, x)), data.share)}, client, {}

    def server_round(
        self, problem: Problem, server: Fields, totals: Totals, exchange: str
    ) -> tuple[Fields, Info]:
        mean = totals["loss"].mean
        if exchange == "lipschitz":
            return server._replace(lipschitz=mean["lipschitz"]), {}
        found = trees.part(mean, "field")
        if exchange == "point":
            return server._replace(second=found), {}
        point = problem.project(trees.add(server.point, found))
        return server._replace(point=point, round=server.round + 1), {}
