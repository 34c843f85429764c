"""The local step of E-FLoPS in NumPy, as a client of another framework would write it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from benchmarks import _floors as floors
from fedsift.gates import PHI_MAX

Array = np.ndarray


@lru_cache(None)
def entropy_table(prior: float) -> tuple[Array, Array]:
    """Return the table of the entropy's slope as arrays."""
    start, step = floors.entropy_slope_table(prior)
    return start.numpy(), step.numpy()


def eflops_step(
    state: list[Array], x: Array, y: Array, u: Array, rates: floors.Rates
) -> list[Array]:
    """Return (θ̃, bias, φ, λ) after a local step: the formulas of `EFLoPS`, float32."""
    theta, bias, phi, multiplier = state
    u = np.clip(u, np.float32(1e-6), np.float32(1 - 1e-6))
    s = 1 / (1 + np.exp(-(np.log(u / (1 - u)) + phi) / np.float32(floors.BETA)))
    stretched = s * np.float32(floors.SPAN) + np.float32(floors.GAMMA)
    z = np.clip(stretched, 0, 1)
    slope = np.where(z == stretched, s * (1 - s) * np.float32(floors.SPAN / floors.BETA), 0)
    residual = (x @ (theta * z) + bias - y) * np.float32(2 / len(x))
    field = residual @ x
    active = 1 / (1 + np.exp(np.float32(floors.LOWER) - phi))
    start, step = entropy_table(rates.prior)
    place = (phi + np.float32(PHI_MAX)) * np.float32(floors.INTERVALS / (2 * PHI_MAX))
    index = place.astype(np.int32)
    entropy = start[index] + (place - index.astype(np.float32)) * step[index]
    pull = multiplier * active * (1 - active) + np.float32(rates.temperature) * entropy
    violation = active.sum() - np.float32(rates.target)
    raised = np.maximum(multiplier + np.float32(rates.multiplier) * violation, 0)
    moved = phi - np.float32(rates.phi) * (field * theta * slope + pull)
    return [
        theta - np.float32(rates.theta) * field * z,
        bias - np.float32(rates.theta) * residual.sum(),
        np.clip(moved, -PHI_MAX, PHI_MAX),
        np.zeros_like(multiplier) if violation <= 0 else raised,
    ]
