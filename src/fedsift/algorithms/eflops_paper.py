"""E-FLoPS with the message protocol of its paper, kept to be compared with.

Source: E-FLoPS (arXiv 2607.00275), its sparse messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms.base import Info, SiteStep, Totals, Upload
from fedsift.algorithms.eflops import EFLoPS, ServerState
from fedsift.gates import PHI_MAX
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree


@dataclass(frozen=True, kw_only=True)
class EFLoPSPaper(EFLoPS):
    """E-FLoPS that sends θ̃ and the mean gate on the top m, and one mean gate for all the rest.

    The receiver rebuilds θ = θ̃ ⊙ z, averages θ, and recovers φ = β logit(z̄), clamped to ±12. That
    inverts neither E[z] nor the stretched gate: φ contracts by about .6 a round, and gates outside
    the top m lose their memory. One index set serves θ and z; the gates travel as differences to
    the rest's mean, so that averages of uploads are averages of gates. Same choices in both
    directions.

    Attributes:
        prune_start: the first round of sparse messages; dense ones before.
    """

    keeps_own: ClassVar[bool] = False

    prune_start: int = 0

    def download(self, problem: Problem, server: ServerState, exchange: str) -> Tree:
        shared = super().download(problem, server, exchange)
        kept = self.kept_at(problem, server.round)
        theta, gates, rest = self.pack(problem, server.theta, self.gate.mean(server.phi), kept)
        for name in [k for k in shared if k.startswith("theta/")] + ["phi"]:
            del shared[name]
        return {**trees.join(theta=theta, gates=gates, rest=rest, kept=kept), **shared}

    def kept_at(self, problem: Problem, round_number: Tensor) -> Tensor:
        """Return m, or the number of gates before the prune start."""
        return torch.where(round_number < self.prune_start, problem.gates.size, self.kept(problem))

    def pack(
        self, problem: Problem, theta: Tree, gates: Tensor, kept: Tensor
    ) -> tuple[Tree, Tensor, Tensor]:
        """Return θ on the top m, the mean gates there less the rest's mean, and the rest's mean."""
        params = problem.gates.multiply(theta, gates)
        mask = problem.gates.keep(problem.gates.magnitude(params), kept, self.kept(problem))
        outside = 1.0 - mask
        rest = (gates * outside).sum() / outside.sum().clamp(min=1.0)
        return problem.gates.multiply(params, mask), (gates - rest) * mask, rest

    def unpack(self, problem: Problem, theta: Tree, gates: Tensor) -> tuple[Tree, Tensor]:
        """Return (θ̃, φ) from θ and mean gates: θ̃ = θ / z̄, φ = β logit(z̄)."""
        gates = gates.clamp(1e-6, 1.0 - 1e-6)
        phi = (self.gate.beta * torch.logit(gates)).clamp(-PHI_MAX, PHI_MAX)
        return problem.gates.multiply(theta, 1.0 / gates), phi

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: SiteStep,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, SiteStep, Info]:
        theta, phi = self.unpack(
            problem, trees.part(shared, "theta"), shared["rest"] + shared["gates"]
        )
        if exchange == "curvature":
            return self.gated_curvature(problem, theta, phi, client, data, key)
        step = self.step_size(shared, client)
        theta, phi, multiplier = self.descend(problem, theta, phi, shared, data, step, key)
        sent, gates, rest = self.pack(problem, theta, self.gate.mean(phi), shared["kept"])
        upload = trees.join(theta=sent, gates=gates, rest=rest, multiplier=multiplier)
        return {"loss": (upload, data.share)}, client, {}

    def refuse_privacy(self, level: str) -> str | None:
        models = "sites send whole models, and clipping would shrink them; use messages='auto'"
        return models if level == "site" else None

    def server_round(
        self, problem: Problem, server: ServerState, totals: Totals, exchange: str
    ) -> tuple[ServerState, Info]:
        if exchange == "curvature":
            return super().server_round(problem, server, totals, exchange)
        mean = totals["loss"].mean
        theta, phi = self.unpack(problem, trees.part(mean, "theta"), mean["rest"] + mean["gates"])
        server = server._replace(
            round=server.round + 1, theta=theta, phi=phi, multiplier=mean["multiplier"]
        )
        density = self.gate.prob_active(phi).sum() / problem.gates.size
        return server, {"density": density, "multiplier": server.multiplier}
