"""The Lagrangian of E-FLoPS as a saddle that any method here may solve."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsift.data.synthetic import synthetic_regression
from fedsift.gates import PHI_MAX, HardConcrete
from fedsift.outcomes import weighted_mean
from fedsift.problems import Batch
from fedsift.sets import Box, Orthant, Product
from fedsift.trees import Tree
from fedsift.vi.problem import VIProblem
from fedsift.vi.tasks import by_site

FEATURES, INFORMATIVE = 60, 6
SCALE = {"theta": 1.0, "phi": 4.0, "multiplier": 1.0}


def eflops_lagrangian(
    *,
    seed: int = 0,
    n_sites: int = 20,
    heterogeneity: float | None = None,
    entropy: float = 0.03,
    start_density: float = 0.3,
    n_samples: int = 240,
) -> VIProblem:
    """Return E-FLoPS's saddle, least in θ̃ and φ, largest in λ ≥ 0.

    L = Σ p_c L^c(θ̃, φ) + λ(mean_j P(z_j > 0) - ρ) + T Σ_j KL(φ_j ‖ φ_0).

    Regression on 60 features of which 6 matter (SNR 20), ρ = .1. The loss over gates is taken
    exactly, E(y - xᵀ(θ̃ ⊙ z))² = (y - xᵀ(θ̃ E z))² + Σ_j x_j² θ̃_j² Var z_j, so that nothing is
    drawn. Leaves are in units of their own (x = D x', F' = D F(D x')), which stands for the steps
    that E-FLoPS gives each. Convex in nothing but λ's side: not monotone, and no method promises
    anything. ``heterogeneity``: α of the Dirichlet counts, 1/heterogeneity.
    """
    alpha = 2.0 if heterogeneity is None else 1.0 / max(heterogeneity, 1e-3)
    made = synthetic_regression(
        n_samples=n_samples, n_features=FEATURES, n_informative=INFORMATIVE,
        seed=seed, n_test=2, n_sites=n_sites, alpha=alpha,
    ).train  # fmt: skip
    scale = made.y.std().double()
    rows = torch.cat([(made.y.double() / scale).unsqueeze(1), made.x.double()], 1)
    gate, density = HardConcrete(), INFORMATIVE / FEATURES
    prior = math.log(start_density / (1.0 - start_density))
    pull = entropy / INFORMATIVE  # T, in units of what one feature explains

    def saddle_loss(scaled: Tree, batch: Batch) -> Tensor:
        theta, phi, multiplier = (SCALE[k] * scaled[k] for k in SCALE)
        mean = gate.mean(phi)
        x, y = batch.x[:, 1:], batch.x[:, 0]
        spread = x.square() @ (theta.square() * (gate.mean_square(phi) - mean.square()))
        loss = weighted_mean((y - x @ (theta * mean)).square() + spread, batch.weight)
        return loss + (multiplier * (gate.prob_active(phi).mean() - density)).sum()

    gradient = torch.func.grad(saddle_loss)

    def operator(scaled: Tree, batch: Batch) -> Tree:
        slopes = gradient(scaled, batch)
        held = SCALE["phi"] * pull * gate.kl_slope(SCALE["phi"] * scaled["phi"], prior)
        return {
            "theta": slopes["theta"],
            "phi": slopes["phi"] + held,
            "multiplier": -slopes["multiplier"],
        }

    def measures(scaled: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        phi, count = SCALE["phi"] * scaled["phi"], batch.weight.sum()
        figures = {
            "density": gate.prob_active(phi).mean(),
            "multiplier": SCALE["multiplier"] * scaled["multiplier"].sum(),
        }
        return {name: (value * count, count) for name, value in figures.items()}

    start = {
        "theta": torch.zeros(FEATURES, dtype=torch.float64),
        "phi": torch.full((FEATURES,), prior / SCALE["phi"], dtype=torch.float64),
        "multiplier": torch.zeros(1, dtype=torch.float64),
    }
    bound = PHI_MAX / SCALE["phi"]
    sets = Product({"phi": Box(-bound, bound), "multiplier": Orthant()})
    return VIProblem(
        operator, by_site(rows, made.site_of_row), start, sets,
        name="eflops_lagrangian", measures=measures,
    )  # fmt: skip


def support(params: Tree) -> Tensor:
    """Return the features with the largest |θ̃| E[z], as many as matter."""
    gate = HardConcrete()
    size = params["theta"].abs() * gate.mean(SCALE["phi"] * params["phi"])
    return size.topk(INFORMATIVE).indices
