"""What kind of problem it is, from samples, and which method that speaks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsift import random, trees
from fedsift.trees import Tree
from fedsift.vi.gaps import natural_residual
from fedsift.vi.problem import VIProblem
from fedsift.vi.resolvent import lipschitz

PAIRS = 24


class Monotonicity(NamedTuple):
    """Of sampled pairs of points in X.

    ``smallest`` ⟨F̄(x) - F̄(y), x - y⟩; ``scale``, what that is small against, the largest
    ‖F̄(x) - F̄(y)‖ ‖x - y‖; ``modulus``, the smallest product over ‖x - y‖²; ``ratio``, the largest
    ‖F̄(x) - F̄(y)‖/‖x - y‖.
    """

    smallest: float
    scale: float
    modulus: float
    ratio: float


def monotonicity(problem: VIProblem, key: Tensor, near: Tree | None = None) -> Monotonicity:
    """Sample pairs: spread over X, close together, and along the least curved direction at a point.

    That direction is the eigenvector of (J + Jᵀ)/2 with the smallest eigenvalue, by power iteration
    at ``near`` (the start); a few random pairs would miss it.
    """
    center = problem.start if near is None else near
    size = 1.0 + float(trees.norm(center))
    products, lengths, ratios, scales = [], [], [], []
    pairs = [
        _pair(problem, center, (0.01, 1.0)[k % 2] * size, random.fold(key, k)) for k in range(PAIRS)
    ]
    pairs.append(_least_curved(problem, center, size, random.fold(key, "least")))
    for x, y in pairs:
        apart = trees.subtract(x, y)
        change = trees.subtract(problem.field(x), problem.field(y))
        length, risen = float(trees.norm(apart)), float(trees.norm(change))
        if length > 1e-9 * size:
            products.append(float(trees.dot(change, apart)))
            lengths.append(length)
            ratios.append(risen / length)
            scales.append(risen * length)
    if not products:
        return Monotonicity(0.0, 1.0, 0.0, 0.0)
    moduli = [p / length**2 for p, length in zip(products, lengths, strict=True)]
    return Monotonicity(min(products), max(scales), min(moduli), max(ratios))


def _pair(problem: VIProblem, center: Tree, reach: float, key: Tensor) -> tuple[Tree, Tree]:
    def point(name: str) -> Tree:
        noise = {
            leaf: random.normal(random.fold(key, name, leaf), tuple(v.shape), v.dtype)
            for leaf, v in center.items()
        }
        scaled = trees.scale(noise, reach / float(trees.norm(noise)))
        return problem.feasible.project(trees.add(center, scaled))

    return point("x"), point("y")


def _pullback(problem: VIProblem, x: Tree) -> Callable[[Tree], tuple[Tree]]:
    """Return v → (Jᵀv,) of the mean field."""
    pullback: Callable[[Tree], tuple[Tree]] = torch.func.vjp(problem.field, x)[1]
    return pullback


def _least_curved(problem: VIProblem, center: Tree, size: float, key: Tensor) -> tuple[Tree, Tree]:
    """Return the center and a point in X along the direction of least (J + Jᵀ)/2."""
    pullback = _pullback(problem, center)
    batch, operator = problem.batch(), problem.operator
    top = float(lipschitz(operator, center, batch, key))
    base, step = operator(center, batch), 1e-4 * size
    vector = {
        leaf: random.normal(random.fold(key, leaf), tuple(v.shape), v.dtype)
        for leaf, v in center.items()
    }
    for _ in range(60):
        vector = trees.scale(vector, 1.0 / trees.norm(vector).clamp(min=1e-30))
        moved = operator(trees.add_scaled(center, step, vector), batch)
        forward = trees.scale(trees.subtract(moved, base), 1.0 / step)
        (back,) = pullback(vector)
        symmetric = trees.scale(trees.add(forward, back), 0.5)
        vector = trees.subtract(trees.scale(vector, 1.05 * top), symmetric)
    vector = trees.scale(vector, size / trees.norm(vector).clamp(min=1e-30))
    ends = [
        problem.feasible.project(trees.add_scaled(center, sign * share, vector))
        for sign in (1.0, -1.0)
        for share in (0.5,)
    ]
    return ends[0], ends[1]


@dataclass(frozen=True)
class Diagnosis:
    """What was measured, and the advice.

    Attributes:
        lipschitz: L̄ = Σ p_c L_c at the start.
        modulus: the smallest sampled ⟨F̄(x)-F̄(y), x-y⟩/‖x-y‖²; 0 or less: not strongly monotone.
        smallest: the smallest sampled ⟨F̄(x)-F̄(y), x-y⟩.
        rotation: ‖(J - Jᵀ)v‖/2 over ‖Jv‖ for random v: 0 for gradients, 1 for bilinear saddles.
        dissimilarity: δ = max_c Lip(F_c - F̄) at the start.
        spread: max_c ‖F_c - F̄‖ at the start, over ‖F̄‖.
        residual: the natural residual at the start.
        bounded: whether X is.
        method: the name of the method that the figures speak for.
        advice: why, in words.
    """

    lipschitz: float
    modulus: float
    smallest: float
    rotation: float
    dissimilarity: float
    spread: float
    residual: float
    bounded: bool
    method: str
    advice: str


def diagnose(problem: VIProblem, seed: int = 0) -> Diagnosis:
    """Measure a problem at its start and say which method to use, and why.

    The rules follow what was measured on problems with known answers: docs/solve.md has the table.
    """
    key, x = random.key("diagnosis", seed), problem.start
    shares = problem.shares.tolist()
    constants = [
        float(lipschitz(problem.operator, x, problem.batch(c), random.fold(key, c)))
        for c in range(len(shares))
    ]
    L = sum(p * value for p, value in zip(shares, constants, strict=True))
    sampled = monotonicity(problem, key)
    mean = problem.field(x)
    own = [problem.field(x, c) for c in range(len(shares))]
    spread = max(float(trees.norm(trees.subtract(f, mean))) for f in own)
    delta = max(
        _dissimilarity(problem, c, random.fold(key, "delta", c)) for c in range(len(shares))
    )
    rotation = _rotation(problem, key)
    figures = {
        "lipschitz": L,
        "modulus": sampled.modulus,
        "smallest": sampled.smallest,
        "rotation": rotation,
        "dissimilarity": delta,
        "spread": spread / max(float(trees.norm(mean)), 1e-300),
        "residual": float(natural_residual(problem, x)),
        "bounded": problem.feasible.bounded,
    }
    method, advice = _advice(L, sampled, rotation, delta)
    return Diagnosis(**figures, method=method, advice=advice)


def _dissimilarity(problem: VIProblem, site: int, key: Tensor) -> float:
    whole, part, operator = problem.batch(), problem.batch(site), problem.operator

    def apart(params: Tree, batch: object) -> Tree:  # noqa: ARG001
        return trees.subtract(operator(params, part), operator(params, whole))

    return float(lipschitz(apart, problem.start, whole, key))


def _rotation(problem: VIProblem, key: Tensor) -> float:
    """Return the share of the skew part in J v, over a few random directions."""
    x = problem.start
    base, pullback = problem.field(x), _pullback(problem, x)
    step, skew, whole = 1e-4 * (1.0 + float(trees.norm(x))), 0.0, 0.0
    for number in range(8):
        v = {
            leaf: random.normal(random.fold(key, "turn", number, leaf), tuple(t.shape), t.dtype)
            for leaf, t in x.items()
        }
        moved = problem.field(trees.add_scaled(x, step, v))
        forward = trees.scale(trees.subtract(moved, base), 1.0 / step)
        (back,) = pullback(v)
        skew += float(trees.norm(trees.scale(trees.subtract(forward, back), 0.5))) ** 2
        whole += float(trees.norm(forward)) ** 2
    return float((skew / max(whole, 1e-300)) ** 0.5)


def _advice(L: float, sampled: Monotonicity, rotation: float, delta: float) -> tuple[str, str]:
    condition = L / sampled.modulus if sampled.modulus > 0 else float("inf")
    if sampled.smallest < -1e-9 * sampled.scale:
        return "lippax", (
            f"the operator is not monotone (smallest sampled ⟨F(x)-F(y), x-y⟩ = "
            f"{sampled.smallest:.2g}): no method here promises a solution; try lippax, and watch "
            "the residual"
        )
    if rotation < 0.3 or condition < 300:
        kind = "a minimisation" if rotation < 0.05 else "strongly monotone"
        return "scaffold", (
            f"{kind} (L/μ about {condition:.0f}, rotation {rotation:.2f}): local gradient steps "
            "contract here, and scaffold takes the fewest exchanges; lippax works too"
        )
    if delta > 0.7 * L:
        return "lippax_certified", (
            f"merely monotone (rotation {rotation:.2f}) and the sites differ much (δ/L = "
            f"{delta / L:.2f}): lippax_certified chooses its own step; lippax with a smaller gamma "
            "needs fewer bytes"
        )
    return "lippax", (
        f"merely monotone (rotation {rotation:.2f}, L/μ {condition:.0f}): local gradient steps "
        f"spiral outwards; lippax takes proximal steps, and the sites are alike enough (δ/L = "
        f"{delta / L:.2f}); lippax_certified where the gap must be proven"
    )
