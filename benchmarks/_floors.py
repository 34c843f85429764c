"""What a local step of E-FLoPS cannot be done without: two products, and element-wise work.

Both floors are the arithmetic alone, for lanes of a linear model under squared loss: no trees, no
engine, no messages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedsift import random
from fedsift.algorithms import EFLoPS
from fedsift.engines.programs import OPTIONS
from fedsift.gates import PHI_MAX, HardConcrete
from fedsift.problems import Problem

BETA, GAMMA, ZETA = 0.66, -0.1, 1.1
SPAN = ZETA - GAMMA
LOWER = BETA * math.log(-GAMMA / ZETA)
INTERVALS = 1 << 16

Call = Callable[[], object]


class Rates(NamedTuple):
    """The numbers of a local step: η_θ, η_φ, η_λ, T, the target ρG and the prior φ_0."""

    theta: float
    phi: float
    multiplier: float
    temperature: float
    target: float
    prior: float


def rates_of(algorithm: EFLoPS, problem: Problem) -> Rates:
    """Return the numbers of an algorithm with a fixed step and constant entropy."""
    assert algorithm.learning_rate is not None
    return Rates(
        algorithm.learning_rate,
        algorithm.gate_step(problem),
        algorithm.dual_step(problem),
        algorithm.entropy * algorithm.unit(problem),
        algorithm.density * problem.gates.size,
        algorithm.prior,
    )


def entropy_slope_table(prior: float) -> tuple[Tensor, Tensor]:
    """Return values and differences of ∂KL/∂φ on a grid of [-12, 12], float32."""
    grid = torch.linspace(-PHI_MAX, PHI_MAX, INTERVALS + 1, dtype=torch.float64)
    exact = HardConcrete().kl_slope(grid, prior)
    return exact.float(), torch.diff(exact, append=exact[-1:]).float()


def products(x: Tensor) -> dict[str, Call]:
    """Return calls of the bare products x θ and xᵀ r of every lane, x [lanes, batch, d].

    ``bmm`` is `torch.bmm`, ``fused`` sums of products under `torch.compile`; neither is always the
    faster one.
    """
    lanes, batch, d = x.shape
    theta, residual = torch.randn(lanes, d), torch.randn(lanes, batch)

    @torch.compile(dynamic=False, fullgraph=True)
    def fused(x: Tensor, theta: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return (x * theta.unsqueeze(1)).sum(2), (x * residual.unsqueeze(2)).sum(1)

    def bmm() -> tuple[Tensor, Tensor]:
        return torch.bmm(x, theta.unsqueeze(2)), torch.bmm(residual.unsqueeze(1), x)

    return {"bmm": bmm, "fused": lambda: fused(x, theta, residual)}


def gate_step(
    theta: Tensor,
    phi: Tensor,
    multiplier: Tensor,
    field: Tensor,
    u: Tensor,
    table: tuple[Tensor, Tensor],
    rates: Rates,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (θ̃, φ, λ) of lanes after a local step whose gradient F is given."""
    u = u.clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((torch.log(u / (1 - u)) + phi) / BETA)
    stretched = s * SPAN + GAMMA
    z = stretched.clamp(0.0, 1.0)
    slope = torch.where(z == stretched, s * (1 - s) * (SPAN / BETA), 0.0)
    active = torch.sigmoid(phi - LOWER)
    place = (phi + PHI_MAX) * (INTERVALS / (2 * PHI_MAX))
    index = place.int().clamp(0, INTERVALS)
    entropy = table[0][index] + (place - index) * table[1][index]
    pull = multiplier.unsqueeze(1) * active * (1 - active) + rates.temperature * entropy
    violation = active.sum(1) - rates.target
    raised = (multiplier + rates.multiplier * violation).clamp(min=0.0)
    return (
        theta - rates.theta * field * z,
        (phi - rates.phi * (field * theta * slope + pull)).clamp(-PHI_MAX, PHI_MAX),
        torch.where(violation <= 0, 0.0, raised),
    )


def elementwise(lanes: int, d: int, rates: Rates, *, compiled: bool = True) -> Call:
    """Return a call of the step without its products: noise, gates, entropy and update, fused."""
    table = entropy_slope_table(rates.prior)
    theta, field = torch.randn(lanes, d), torch.randn(lanes, d)
    phi, multiplier = rates.prior + 0.1 * torch.randn(lanes, d), torch.zeros(lanes)
    keys = random.fold(random.key("floor"), torch.arange(lanes))

    def step(
        theta: Tensor, phi: Tensor, multiplier: Tensor, field: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        u = random.uniform(keys, (d,))
        return gate_step(theta, phi, multiplier, field, u, table, rates)

    work = torch.compile(step, dynamic=False, fullgraph=True, options=OPTIONS) if compiled else step
    return lambda: work(theta, phi, multiplier, field, keys)


def shared_products(sites: int, seeds: int, batch: int, d: int) -> Call:
    """Return a call of the products x θ and xᵀ r of many seeds that share each site's rows."""
    x, theta = torch.randn(sites, batch, d), torch.randn(seeds, d)
    residual = torch.randn(seeds, batch)

    def call() -> None:
        for rows in x:
            torch.mm(theta, rows.T)
            torch.mm(residual, rows)

    return call


def network_products(layers: tuple[int, ...], batch: int, count: int) -> Call:
    """Return a call of the matrix products of ``count`` gradient steps of a network, one by one.

    Two a layer and step, forward and for the weights, and one more for the input of every layer but
    the first.
    """
    inputs = [torch.randn(batch, width) for width in layers[:-1]]
    slopes = [torch.randn(batch, width) for width in layers[1:]]
    weights = [torch.randn(n_out, n_in) for n_in, n_out in itertools.pairwise(layers)]

    def call() -> None:
        for _ in range(count):
            for place, (x, slope, weight) in enumerate(zip(inputs, slopes, weights, strict=True)):
                torch.mm(x, weight.T)
                torch.mm(slope.T, x)
                if place:
                    torch.mm(slope, weight)

    return call
