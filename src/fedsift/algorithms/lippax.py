"""LIPPAX: local inexact proximal point with an extra step, corrected for unlike sites.

A reconstruction after Wang & Kale (arXiv 2602.09164), whose pseudocode was not at hand: the three
layers are theirs, the correction ū - u_c, the projected extra step on the server and the bounds on
layer 3 are this library's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms.base import REMEMBERED, Info, Totals, Upload
from fedsift.algorithms.certificate import Trial, certify, no_trial, propose
from fedsift.algorithms.fields import FieldMethod
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree
from fedsift.vi.resolvent import resolvent


class LippaxState(NamedTuple):
    """x, ū = Σ p_c u_c, the last x⁺ and x⁺ - x, L̄, and what a certificate needs."""

    point: Tree
    slow: Tree
    found: Tree
    change: Tree
    lipschitz: Tensor
    trial: Trial


class Slow(NamedTuple):
    """A site's slow field value u_c, and L_c."""

    field: Tree
    lipschitz: Tensor


@dataclass(frozen=True, kw_only=True)
class Lippax(FieldMethod):
    """Find x with ⟨Σ p_c F_c(x), u - x⟩ ≥ 0 on X, for unlike sites, by one exchange a round.

        site    y ≈ the zero on X of F_c(y) + (ū - u_c) + (y - x)/γ          layers 1 and 2
                d_c = F_c(y) - u_c goes up, u_c ← u_c + d_c
        server  x⁺ = P_X(x - γ(ū + Σ_S p_c d_c / Σ_S p_c)),  ū ← ū + Σ_S p_c d_c
                x ← x + ρ(x⁺ - x) + β_t(x⁺ - x⁺_prev)                         layer 3

    Attributes:
        gamma: γ; None for 2/L̄, from where a certified run goes on by itself.
        inner_steps: evaluations K of a site's solve, 5 or more.
        relaxation: ρ in (0, 2).
        momentum: β < 1/3; β_t = β max(0, cosine of the last two moves), so that noise turns it off.
        warm_start: begin with u_c = F_c(x0), which costs one exchange.
        unbiased: the share π of sites that take part; the step then uses ū + Σ_S p_c d_c/π.
        certified: two exchanges a round, a step of its own choice, and a bound on the gap; see
            `certificate`.
    """

    exchanges: ClassVar[tuple[str, ...]] = ("round",)
    tracks_uploads: ClassVar[bool] = True
    only_mean: ClassVar[str | None] = REMEMBERED

    gamma: float | None = None
    inner_steps: int = 20
    relaxation: float = 1.0
    momentum: float = 0.0
    warm_start: bool = False
    unbiased: float | None = None
    certified: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self)

    def given(self) -> float | None:
        return self.gamma

    def exchanges_at(self, round_number: int, *, newcomers: bool = False) -> tuple[str, ...]:
        first = round_number == 0
        measured = ("lipschitz",) if first and self.gamma is None else ()
        warm = ("warm",) if first and self.warm_start else ()
        return (*measured, *warm, *(("point", "value") if self.certified else ("round",)))

    def server_init(self, problem: Problem, key: Tensor) -> LippaxState:
        x, zero = problem.init(key), torch.zeros((), dtype=torch.float64)
        none = trees.zeros_like(x)
        return LippaxState(x, none, x, none, zero, no_trial(x))

    @property
    def reach(self) -> float:
        return 2.0

    def step_of(self, server: LippaxState) -> Tensor:
        return self.step_from(server.lipschitz) * server.trial.factor

    def download(self, problem: Problem, server: LippaxState, exchange: str) -> Tree:
        shared = trees.join(point=server.point, slow=server.slow, gamma=self.step_of(server))
        shared["lipschitz"] = server.lipschitz
        if self.certified:
            shared |= trees.join(trial=server.trial.point, plain=server.trial.plain(server.point))
        return shared

    def client_init(self, problem: Problem, shared: Tree) -> Slow:
        zero = torch.zeros((), dtype=torch.float64)
        return Slow(trees.zeros_like(trees.part(shared, "point")), zero)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Slow,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Slow, Info]:
        x = trees.part(shared, "point")
        if exchange == "lipschitz":
            return self.measure(problem, x, client, data, key)
        batch, operator = data.batch(0, self.batch_size, key), problem.operators["loss"]
        info: Info = {}
        bound = torch.where(client.lipschitz > 0, client.lipschitz, shared["lipschitz"])
        if exchange in {"value", "warm"}:
            value = operator(trees.part(shared, "trial") if exchange == "value" else x, batch)
        else:
            correction = trees.subtract(trees.part(shared, "slow"), client.field)
            y, value, bound = resolvent(
                lambda p: operator(p, batch),
                correction, x, shared["gamma"], bound, self.inner_steps, problem.project,
            )  # fmt: skip
            info = {"drift": trees.norm(trees.subtract(y, x))}
            if self.certified:  # after three rejections y = x, and acceptance is certain
                value = trees.where(shared["plain"] > 0, operator(x, batch), value)
        change = trees.subtract(value, client.field)
        known = bound if self.gamma is None else shared["lipschitz"]  # with γ nobody asks for L_c
        upload = trees.join(change=change, lipschitz=known)
        return {"loss": (upload, data.share)}, client._replace(lipschitz=bound), info

    def sent(self, client: Slow, upload: Upload, exchange: str) -> Slow:
        if exchange in {"lipschitz", "point"}:
            return client
        change = trees.part(upload["loss"][0], "change")
        return client._replace(field=trees.add(client.field, change))

    def clear_parts(self) -> frozenset[str]:
        return frozenset({"lipschitz"})

    def refuse_privacy(self, level: str) -> str | None:
        return "the certificate needs exact field values" if self.certified else None

    def server_round(
        self, problem: Problem, server: LippaxState, totals: Totals, exchange: str
    ) -> tuple[LippaxState, Info]:
        mean, weight, population = totals["loss"]
        if exchange == "lipschitz":
            return server._replace(lipschitz=mean["lipschitz"]), {}
        share = weight.double() / population.double()
        known = server.lipschitz + share * (mean["lipschitz"] - server.lipschitz)
        change = trees.part(mean, "change")
        moved = trees.add(server.slow, change)
        slow = trees.add_scaled(server.slow, share, change)
        if exchange == "warm":
            return server._replace(slow=slow), {}
        gamma = self.step_of(server)
        if exchange == "point":
            return server._replace(trial=propose(problem, server, moved, gamma)), {}
        if exchange == "value":
            return certify(problem, server, moved, slow, gamma, whole=share > 1.0 - 1e-6)
        if self.unbiased is not None:
            moved = trees.add_scaled(server.slow, share / self.unbiased, change)
        plus = problem.project(trees.add_scaled(server.point, -gamma, moved))
        step = trees.subtract(plus, server.point)
        point = trees.add_scaled(server.point, self.relaxation, step)
        if self.momentum:
            lengths = trees.norm(step) * trees.norm(server.change)
            cosine = trees.dot(step, server.change) / lengths.clamp(min=1e-300)
            beta = self.momentum * cosine.clamp(min=0.0)
            point = trees.add_scaled(point, beta, trees.subtract(plus, server.found))
        after = server._replace(point=point, slow=slow, found=plus, change=step, lipschitz=known)
        return after, {"gamma": gamma}

    def solution(self, problem: Problem, server: LippaxState) -> Tree:
        return server.found

    def average(self, server: LippaxState) -> Tree | None:
        """Return the γ-weighted mean of z of a certified run, whose gap is bounded."""
        return server.trial.mean() if self.certified else None


def refuse(method: Any) -> None:
    """Refuse hyperparameters for which the theory of `Lippax` does not hold.

    Raises:
        ValueError: the text says what and why.
    """
    wrong = {
        f"inner_steps is {method.inner_steps}; give 5 or more": method.inner_steps < 5,
        f"relaxation is {method.relaxation}; give a number above 0 and below 2": not 0
        < method.relaxation
        < 2,
        f"momentum is {method.momentum}; give 0 or more and less than 1/3: from 1/3 on the inertial"
        " proximal point may diverge even with exact resolvents": not 0 <= method.momentum < 1 / 3,
        f"unbiased is {method.unbiased}; give the share of sites that take part, above 0 and up to"
        " 1": method.unbiased is not None and not 0 < method.unbiased <= 1,
        "certified=True needs relaxation=1 and momentum=0: the certificate is for the plain"
        " step": method.certified and (method.relaxation != 1 or method.momentum != 0),
        "certified=True needs exact field values; leave batch_size out": (
            method.certified and method.batch_size is not None
        ),
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)
