"""Claims of a public account of LIPPAX, checked one by one with what really happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsift import random, trees, vi
from fedsift.algorithms import FedAvg, Lippax, LippaxLiteral
from fedsift.algorithms.base import Info, Upload
from fedsift.problems import Problem
from fedsift.sets import Ball
from fedsift.sites import SiteData
from fedsift.solving import solve
from fedsift.trees import Tree
from fedsift.vi import named

START = {"x": torch.tensor([0.6, -0.2], dtype=torch.float64)}


def opposite_sites() -> dict[str, Any]:
    """F_1 = x, F_2 = -x on the disc: F̄ = 0. FedAvg, K = 5, η = .1, projected local steps."""
    problem = vi.from_operators([lambda p: p, lambda p: trees.scale(p, -1.0)], START, Ball(1.0))
    method = FedAvg(learning_rate=0.1, local_steps=5)
    answer = solve(problem, method, max_exchanges=120, tolerance=1e-12, look_every=200)
    return {
        "field": float(trees.norm(problem.field(START))),
        "radius": float(trees.norm(answer.last)),
    }


def projections() -> dict[str, Any]:
    """Two constant fields on the unit disc: where the mean of projections stops, by γ.

    b_1 = (3, 0), b_2 = (-1, 0), so F̄ = (1, 0) and x* = (-1, 0). The mean of P(x - γ b_c) rests at
    x = (-(1 - γ), 0): P holds site 1 at -1, site 2 moves freely by γ.
    """
    fields = torch.tensor([[3.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    disc, solution = Ball(1.0), torch.tensor([-1.0, 0.0], dtype=torch.float64)
    errors = {}
    for gamma in (0.01, 0.1, 1.0):
        x = torch.zeros(2, dtype=torch.float64)
        y = x.clone()
        for _ in range(4000):
            x = torch.stack([disc.nearest(x - gamma * b) for b in fields]).mean(0)
            y = disc.nearest(y - gamma * fields.mean(0))
        errors[f"{gamma:g}"] = float((x - solution).norm())
        errors[f"after, {gamma:g}"] = float((y - solution).norm())
    return errors


def momentum() -> dict[str, Any]:
    """Spectral radius of z = x - γJx, x ← z + β(z - z_prev), J a rotation, γ = .1."""
    eye, J = torch.eye(2).double(), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()
    step = eye - 0.1 * J
    radii = {}
    for beta in (0.0, 0.3, 0.9):
        upper = torch.cat([(1 + beta) * step, -beta * step], 1)
        lower = torch.cat([eye, 0.0 * eye], 1)
        values = torch.linalg.eigvals(torch.cat([upper, lower]))
        radii[f"{beta:g}"] = float(values.abs().max())
    return radii


@dataclass(frozen=True, kw_only=True)
class Decayed(Lippax):
    """LIPPAX whose sites let their state fade by .95 a round, as the account has absent ones do."""

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Any,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Any, Info]:
        """Fade, then work."""
        faded = client._replace(field=trees.scale(client.field, 0.95))
        return super().client_round(problem, shared, faded, data, key, exchange)


def decay(*, most: int) -> dict[str, Any]:
    """Exchanges on the bilinear saddle with and without the factor .95."""
    problem = named.bilinear_ball(n_sites=5)
    kept, faded = (solve(problem, m, max_exchanges=most) for m in (Lippax(), Decayed()))
    return {
        "kept": kept.exchanges_to_tolerance,
        "faded": faded.exchanges_to_tolerance,
        "faded residual": faded.residual,
    }


def units() -> dict[str, Any]:
    """Ten times the loss with a tenth of γ: how far the runs are apart, states points or fields."""
    gaps = {}
    for name, points in (("fields", False), ("points", True)):
        ends = []
        for scale in (1.0, 10.0):
            base = named.affine_monotone(n_sites=4)
            A, b = base.data.x[..., :-1], base.data.x[..., -1]
            problem = vi.affine(scale * A, scale * b, base.start, base.feasible)
            method = LippaxLiteral(step=0.2 / scale, points=points, momentum=0.3)
            ends.append(solve(problem, method, max_exchanges=12, tolerance=1e-12).last)
        gaps[name] = float(trees.norm(trees.subtract(*ends)))
    return gaps


def momentum_in_noise() -> dict[str, Any]:
    """How far β_t = c s²/(s² + ε) of the account is below c = .9, in calm and noisy fields."""
    calm, found = named.affine_monotone(n_sites=4), {}
    for name, problem in (("calm", calm), ("noisy", named.with_noise(calm, 1.0))):
        literal = LippaxLiteral()
        answer = solve(problem, literal, max_exchanges=30, tolerance=1e-12)
        found[name] = literal.momentum - float(answer.history[-1]["momentum"])
    return found


@dataclass(frozen=True, kw_only=True)
class Noisy(Lippax):
    """LIPPAX whose messages have noise of standard deviation .3."""

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Any,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Any, Info]:
        """Add the noise."""
        upload, client, info = super().client_round(problem, shared, client, data, key, exchange)
        tree, weight = upload["loss"]
        noise = {
            leaf: 0.3 * random.normal(random.fold(key, leaf), tuple(value.shape), value.dtype)
            for leaf, value in trees.part(tree, "change").items()
        }
        change = trees.add(trees.part(tree, "change"), noise)
        return {"loss": ({**tree, **trees.join(change=change)}, weight)}, client, info


def privacy() -> dict[str, Any]:
    """Distance to x* of noisy runs, projected or not: noise is not spent by projecting."""
    inside = named.bilinear_ball(n_sites=5)
    found = {}
    for name, problem in (("projected", inside), ("free", _free(inside))):
        answer = solve(problem, Noisy(gamma=0.3), max_exchanges=80, tolerance=1e-12, look_every=100)
        assert inside.solution is not None  # noqa: S101  a named problem has one
        found[name] = float(trees.norm(trees.subtract(answer.last, inside.solution)))
    return found


def _free(problem: vi.VIProblem) -> vi.VIProblem:
    A, b = problem.data.x[..., :-1], problem.data.x[..., -1]
    return vi.affine(A, b, problem.start)
