"""E-FLoPS: federated sparse learning with hard concrete gates, a density constraint and entropy.

Source: E-FLoPS (arXiv 2607.00275), after FLoPS (arXiv 2512.23071), Louizos et al. (2018) and
Gallego-Posada et al. (2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms.base import Info, LocalTraining, SiteStep, Totals, Upload
from fedsift.gates import PHI_MAX, HardConcrete
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.sparsity import Schedule, kept_count, scheduled_density
from fedsift.trees import Tree

# What `EFLoPS.deep` sets.
DEEP: dict[str, Any] = {
    "gate_rate": 0.42,
    "multiplier_pace": 19_000.0,
    "start_density": 0.7,
    "schedule": "cubic",
}

_GATE = HardConcrete()  # frozen: every algorithm may share it


class ServerState(NamedTuple):
    """What the server carries: weights θ̃, gates φ, multiplier λ, mean curvature, scale of steps."""

    round: Tensor
    theta: Tree
    phi: Tensor
    multiplier: Tensor
    curvature: Tensor
    step_scale: Tensor


@dataclass(frozen=True, kw_only=True)
class EFLoPS(LocalTraining):
    """Saddle of L = Σ_c p_c L^c(θ̃, φ) + λ(Σ_j P(z_j>0) - ρG) + T Σ_j KL(q(z_j|φ_j) ‖ p(z_j|φ_0)).

    Each parameter is θ = θ̃ ⊙ z with hard concrete gates z(φ). A site takes H steps together, from
    old values, with u fresh at every step (mean over R draws):

        θ̃ ← θ̃ - η_c z F_c(θ̃ ⊙ z)
        φ ← φ - η_φ (F_c(θ̃ ⊙ z) θ̃ ∂z/∂φ + λ ∂Con/∂φ + T ∂KL/∂φ)
        λ ← 0 if Con ≤ 0 else λ + η_λ Con            (dual restart)

    and uploads the changes. The prior φ_0 = logit(ρ_init) is one number, so it costs no message;
    the gates start at Normal(φ_0, .01). ``entropy=0`` is FLoPS.

    The steps of φ and λ and the entropy are given in units of ℓ0/m, the loss of the null model
    (`Problem.null_loss`) shared out over the m gates that stay: the loss that one feature explains.
    So they do not depend on the units of the loss or the size of the model:

        η_φ = gate_rate m/ℓ0,   T = entropy ℓ0/m,   η_λ = multiplier_pace ℓ0/(m G (rounds H)²)

    The multiplier then rises so slowly that the constraint need not be met at the end: ΣP(z>0) was
    3.4 m on the synthetic task and hundreds of m for three genes of 3051. It orders the gates, and
    their order makes the final choice of m; an early commitment loses features.

    Attributes:
        density: ρ, the share of gates to keep, m = ⌊ρG⌋.
        gate_rate: η_φ · ℓ0/m. None: 10 where one layer of gates meets the loss directly (linear
            models), 3 in deeper ones. With Adam: η_φ itself; None: .1.
        gate_optimiser: of the gates' steps; Adam's moments begin anew in every round.
        entropy: T · m/ℓ0.
        entropy_decay: T falls linearly to 0 over the run.
        multiplier_pace: η_λ · m G (rounds H)² / ℓ0.
        start_density: ρ_init = σ(φ_0). P(z>0) at the start is larger: .67 for .3.
        gate_samples: R.
        schedule: how the constraint falls to ρ.
    """

    keeps_own: ClassVar[bool] = True

    density: float
    gate_rate: float | None = None
    gate_optimiser: Literal["sgd", "adam"] = "sgd"
    entropy: float = 0.03
    entropy_decay: bool = False
    multiplier_pace: float = 160.0
    start_density: float = 0.3
    gate_samples: int = 1
    schedule: Schedule = "constant"
    gate: HardConcrete = _GATE

    def server_init(self, problem: Problem, key: Tensor) -> ServerState:
        start = problem.init(key)
        dtype = next(iter(start.values())).dtype
        noise = random.normal(random.fold(key, "gates"), (problem.gates.size,), dtype)
        phi, one = self.prior + 0.1 * noise, torch.ones((), dtype=dtype)
        # Gates shrink what passes a layer by √E[z²]; the start makes up for it.
        theta = problem.gates.multiply(start, 1.0 / self.gate.mean_square(phi).sqrt())
        return ServerState(
            round=torch.zeros((), dtype=torch.int64),
            theta=theta,
            phi=phi,
            multiplier=0.0 * one,
            curvature=0.0 * one,
            step_scale=one,
        )

    @classmethod
    def deep(cls, density: float, **more: Any) -> EFLoPS:
        """Return E-FLoPS with the defaults for networks of several layers.

        A gate's loss is tiny there, so its steps are large and the multiplier is small; gates start
        open, and a cubic schedule closes them after the weights have been learned.
        """
        return cls(density=density, **{**DEEP, **more})

    @property
    def prior(self) -> float:
        """φ_0 = logit(ρ_init)."""
        return math.log(self.start_density / (1.0 - self.start_density))

    def kept(self, problem: Problem) -> int:
        """M."""
        return max(1, kept_count(self.density, problem.gates.size))

    def unit(self, problem: Problem) -> float:
        """ℓ0/m."""
        return problem.null_loss / self.kept(problem)

    def gate_step(self, problem: Problem) -> float:
        """η_φ."""
        if self.gate_optimiser == "adam":
            return 0.1 if self.gate_rate is None else self.gate_rate
        layers = len({view.start for view in problem.gates.views.values()})
        rate = self.gate_rate if self.gate_rate is not None else (10.0 if layers == 1 else 3.0)
        return rate / self.unit(problem)

    def dual_step(self, problem: Problem) -> float:
        """η_λ."""
        steps = self.rounds * self.local_steps
        return self.multiplier_pace * self.unit(problem) / (problem.gates.size * steps**2)

    @cached_property
    def entropy_slope(self) -> Callable[[Tensor], Tensor]:
        """∂KL/∂φ at the prior."""
        return self.gate.kl_slope_table(self.prior)

    def download(self, problem: Problem, server: ServerState, exchange: str) -> Tree:
        progress = server.round.to(torch.float32) / self.rounds
        decay = 1.0 - progress if self.entropy_decay else torch.ones_like(progress)
        return trees.join(
            theta=server.theta,
            phi=server.phi,
            multiplier=server.multiplier,
            target=scheduled_density(self.density, self.schedule, progress) * problem.gates.size,
            temperature=decay * self.entropy * self.unit(problem),
            curvature=server.curvature,
            step_scale=server.step_scale,
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
        server, phi = trees.part(shared, "theta"), shared["phi"]
        start = self.at_site(server, client)
        if exchange == "curvature":
            return self.gated_curvature(problem, start, phi, client, data, key)
        step = self.step_size(shared, client)
        theta, new_phi, multiplier = self.descend(problem, start, phi, shared, data, step, key)
        upload = trees.join(
            theta=trees.scale(trees.subtract(theta, start), 1.0 / step),
            phi=new_phi - phi,
            multiplier=multiplier,
            inverse_step=1.0 / step,
        )
        after = self.keep_own(problem, client, server, theta, step, data)
        return {"loss": (upload, data.share)}, after, {}

    def clear_parts(self) -> frozenset[str]:
        """In the first local step λ is a function of what the server sent."""
        return frozenset({"inverse_step", "multiplier"})

    def refuse_privacy(self, level: str) -> str | None:
        told = "from the second local step on the multiplier follows the rows; give local_steps=1"
        return told if level == "site" and self.local_steps > 1 else None

    def gated_curvature(
        self,
        problem: Problem,
        theta: Tree,
        phi: Tensor,
        client: SiteStep,
        data: SiteData,
        key: Tensor,
    ) -> tuple[Upload, SiteStep, Info]:
        """Measure the curvature in θ̃: ‖D ∇²L^c D‖ with D = diag(√E[z²])."""
        params = problem.gates.multiply(theta, self.gate.mean(phi))
        ones = {leaf: torch.ones_like(value) for leaf, value in theta.items()}
        scaling = problem.gates.multiply(ones, self.gate.mean_square(phi).sqrt())
        return self.measure_curvature(problem, params, client, data, key, scaling)

    def descend(
        self,
        problem: Problem,
        theta: Tree,
        phi: Tensor,
        shared: Tree,
        data: SiteData,
        step: Tensor,
        key: Tensor,
    ) -> tuple[Tree, Tensor, Tensor]:
        """Take the local steps from (θ̃, φ) and the shared λ; return all three."""
        multiplier = shared["multiplier"]
        gate_step, dual_step = self.gate_step(problem), self.dual_step(problem)
        moments = (torch.zeros_like(phi), torch.zeros_like(phi))
        for local in range(self.local_steps):
            d_theta, d_phi = self.loss_slopes(
                problem, theta, phi, data, local, random.fold(key, local)
            )
            active = self.gate.prob_active(phi)
            violation = active.sum() - shared["target"]
            d_phi = (
                d_phi
                + multiplier * active * (1.0 - active)
                + shared["temperature"] * self.entropy_slope(phi)
            )
            if self.gate_optimiser == "adam":
                d_phi, moments = adam_direction(d_phi, moments, local + 1)
            theta = trees.add_scaled(theta, -step, d_theta)
            phi = (phi - gate_step * d_phi).clamp(-PHI_MAX, PHI_MAX)
            raised = (multiplier + dual_step * violation).clamp(min=0.0)
            multiplier = torch.where(violation <= 0, 0.0, raised)
        return theta, phi, multiplier

    def loss_slopes(
        self, problem: Problem, theta: Tree, phi: Tensor, data: SiteData, local: int, key: Tensor
    ) -> tuple[Tree, Tensor]:
        """Return (z F, ∂z/∂φ Σ F θ̃) of the site's loss, the mean over R gate samples."""
        batch = data.batch(local, self.batch_size, key)
        d_theta, d_phi = trees.zeros_like(theta), torch.zeros_like(phi)
        for sample in range(self.gate_samples):
            draw = random.fold(key, sample) if sample else key
            u = random.uniform(draw, tuple(phi.shape), phi.dtype)
            z, slope = self.gate.sample_with_slope(phi, u)
            field = problem.operators["loss"](problem.gates.multiply(theta, z), batch)
            d_theta = trees.add_scaled(
                d_theta, 1.0 / self.gate_samples, problem.gates.multiply(field, z)
            )
            reduced = problem.gates.reduce(trees.multiply(field, theta))
            d_phi = d_phi + slope * reduced / self.gate_samples
        return d_theta, d_phi

    def server_round(
        self, problem: Problem, server: ServerState, totals: Totals, exchange: str
    ) -> tuple[ServerState, Info]:
        mean = totals["loss"].mean
        if exchange == "curvature":
            return server._replace(curvature=mean["curvature"]), {}
        phi = (server.phi + mean["phi"]).clamp(-PHI_MAX, PHI_MAX)
        server = server._replace(
            round=server.round + 1,
            theta=trees.add_scaled(
                server.theta, 1.0 / mean["inverse_step"], trees.part(mean, "theta")
            ),
            phi=phi,
            multiplier=mean["multiplier"],
        )
        density = self.gate.prob_active(phi).sum() / problem.gates.size
        return server, {"density": density, "multiplier": server.multiplier}

    def solution(self, problem: Problem, server: ServerState) -> Tree:
        """Return θ̃ ⊙ E[z] on the m gates with the largest |θ̃| E[z], 0 elsewhere."""
        params = problem.gates.multiply(server.theta, self.gate.mean(server.phi))
        kept = self.kept(problem)
        mask = problem.gates.keep(problem.gates.magnitude(params), kept, kept)
        return problem.gates.multiply(params, mask)


def adam_direction(
    slope: Tensor, moments: tuple[Tensor, Tensor], step: int
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return m̂ / (√v̂ + ε) and the moments (Kingma & Ba, 2015; decays .9 and .999)."""
    first = 0.9 * moments[0] + 0.1 * slope
    second = 0.999 * moments[1] + 0.001 * slope**2
    scaled = first / (1.0 - 0.9**step)
    return scaled / ((second / (1.0 - 0.999**step)).sqrt() + 1e-8), (first, second)
