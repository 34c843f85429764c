"""SCAFFOLD (Karimireddy et al., 2020) as a method for variational inequalities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms.base import REMEMBERED, Info, Totals, Upload
from fedsift.algorithms.fields import SteppedMethod
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree


class Controlled(NamedTuple):
    """ServerState: x, c = Σ p_i c_i, L̄."""

    point: Tree
    control: Tree
    lipschitz: Tensor


class Control(NamedTuple):
    """ClientState: c_i, L_i."""

    field: Tree
    lipschitz: Tensor


@dataclass(frozen=True, kw_only=True)
class Scaffold(SteppedMethod):
    """Local steps corrected by control variates.

        site    y ← P_X(y - η(F_i(y) + c - c_i)), K steps from x;  c_i⁺ = mean of the F_i(y)
        server  x ← P_X(x + mean(y - x)),  c ← c + Σ_S p_i(c_i⁺ - c_i)

    Without a set c_i⁺ is option II of the paper, c_i - c + (x - y)/(Kη).

    Attributes:
        step: η; None for 1/(K L̄).
        local_steps: K.
    """

    tracks_uploads: ClassVar[bool] = True
    only_mean: ClassVar[str | None] = REMEMBERED

    local_steps: int = 10

    @property
    def reach(self) -> float:
        return 1.0 / self.local_steps

    def server_init(self, problem: Problem, key: Tensor) -> Controlled:
        x = problem.init(key)
        return Controlled(x, trees.zeros_like(x), torch.zeros((), dtype=torch.float64))

    def download(self, problem: Problem, server: Controlled, exchange: str) -> Tree:
        return trees.join(point=server.point, control=server.control, step=self.step_of(server))

    def client_init(self, problem: Problem, shared: Tree) -> Control:
        zero = torch.zeros((), dtype=torch.float64)
        return Control(trees.zeros_like(trees.part(shared, "point")), zero)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Control,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Control, Info]:
        x = trees.part(shared, "point")
        if exchange == "lipschitz":
            return self.measure(problem, x, client, data, key)
        correction = trees.subtract(trees.part(shared, "control"), client.field)
        y, mean = x, trees.zeros_like(x)
        for local in range(self.local_steps):
            batch = data.batch(local, self.batch_size, key)
            value = problem.operators["loss"](y, batch)
            mean = trees.add_scaled(mean, 1.0 / self.local_steps, value)
            moved = trees.add_scaled(y, -shared["step"], trees.add(value, correction))
            y = problem.project(moved)
        control = trees.subtract(mean, client.field)
        upload = trees.join(change=trees.subtract(y, x), control=control)
        return {"loss": (upload, data.share)}, client, {}

    def sent(self, client: Control, upload: Upload, exchange: str) -> Control:
        if exchange == "lipschitz":
            return client
        control = trees.part(upload["loss"][0], "control")
        return client._replace(field=trees.add(client.field, control))

    def server_round(
        self, problem: Problem, server: Controlled, totals: Totals, exchange: str
    ) -> tuple[Controlled, Info]:
        mean, weight, population = totals["loss"]
        if exchange == "lipschitz":
            return server._replace(lipschitz=mean["lipschitz"]), {}
        share = weight.double() / population.double()
        point = problem.project(trees.add(server.point, trees.part(mean, "change")))
        control = trees.add_scaled(server.control, share, trees.part(mean, "control"))
        return server._replace(point=point, control=control), {}

    def solution(self, problem: Problem, server: Controlled) -> Tree:
        return server.point
