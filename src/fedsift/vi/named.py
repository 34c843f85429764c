"""Problems with a known answer, by name: 20 sites of equal weight unless asked otherwise.

Sites disagree (F_c(x*) is far from 0) although the problem they share has the solution named.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedsift import random, trees
from fedsift.problems import Batch
from fedsift.sets import Ball, FeasibleSet, Product, Simplex
from fedsift.trees import Tree
from fedsift.vi.gaps import solve_affine
from fedsift.vi.problem import VIProblem, affine

HALF = 10


def draw(key: Tensor, name: str, *shape: int) -> Tensor:
    """Return standard normal numbers, float64."""
    return random.normal(random.fold(key, name), shape, torch.float64)


def bilinear_ball(
    *, seed: int = 0, n_sites: int = 20, heterogeneity: float = 0.3, boundary: bool = False
) -> VIProblem:
    """Return min_x max_y Σ p_c (xᵀB_c y + ...), x and y in unit balls of 10 dimensions.

    The mean coupling B has singular values .3 to 1.5, evenly; site c adds heterogeneity · G_c/√10
    to it and 2 · heterogeneity · g_c to the constant, G and g normal, centred over sites. The
    solution lies at radius ½ in each ball, or with ``boundary`` at radius 1 where the constraint
    holds back (``F̄(x*)`` = -x*). x0 = 1/√10 in every entry. Merely monotone.
    """
    key = random.key("bilinear_ball", seed)
    left, right = (torch.linalg.qr(draw(key, side, HALF, HALF)).Q for side in ("left", "right"))
    B = left @ torch.diag(torch.linspace(1.5, 0.3, HALF, dtype=torch.float64)) @ right.T
    own = _centred(draw(key, "couplings", n_sites, HALF, HALF)) / HALF**0.5
    A = torch.zeros(n_sites, 2 * HALF, 2 * HALF, dtype=torch.float64)
    A[:, :HALF, HALF:] = B + heterogeneity * own
    A[:, HALF:, :HALF] = -A[:, :HALF, HALF:].transpose(1, 2)
    halves = draw(key, "solution", 2, HALF)
    solution = torch.cat(
        [(1.0 if boundary else 0.5) * half / torch.linalg.vector_norm(half) for half in halves]
    )
    shift = -solution if boundary else torch.zeros_like(solution)
    b = shift - A.mean(0) @ solution
    b = b + 2.0 * heterogeneity * _centred(draw(key, "constants", n_sites, 2 * HALF))
    sets = Product({"x": Ball(1.0), "y": Ball(1.0)})
    start = torch.full((HALF,), HALF**-0.5, dtype=torch.float64)
    return affine(
        A,
        b,
        {"x": start, "y": start.clone()},
        sets,
        solution={"x": solution[:HALF], "y": solution[HALF:]},
        name="bilinear_ball_boundary" if boundary else "bilinear_ball",
    )


def affine_monotone(*, seed: int = 0, n_sites: int = 20, heterogeneity: float = 0.5) -> VIProblem:
    """Return a strongly monotone F_c(x) = A_c x + b_c in 20 dimensions on a ball of radius 3.

    A_c = .1 I + R_cᵀR_c/20 + S_c: R_c [10, 20] and the skew S_c are a shared draw and, weighted by
    ``heterogeneity``, one of their own. x0 = ½ in every entry.
    """
    key, d = random.key("affine", seed), 2 * HALF
    shared, own = (1.0 - heterogeneity**2) ** 0.5, heterogeneity

    def mixed(name: str, *shape: int) -> Tensor:
        alike, unlike = draw(key, name, *shape), draw(key, f"{name} of", n_sites, *shape)
        return alike.mul(shared).add(unlike.mul(own))

    R, K = mixed("roots", HALF, d), mixed("skew", d, d)
    skew = (K - K.transpose(1, 2)) / (2.0 * d**0.5)
    A = 0.1 * torch.eye(d, dtype=torch.float64) + R.transpose(1, 2) @ R / d + skew
    b = draw(key, "constant", d) + 2.0 * _centred(draw(key, "constants", n_sites, d))
    ball = Ball(3.0)
    return _solved("affine", A, b, torch.full((d,), 0.5, dtype=torch.float64), ball)


def minimisation(*, seed: int = 0, n_sites: int = 20, heterogeneity: float = 1.0) -> VIProblem:
    """Return ridge regression in 20 dimensions on a ball of radius 10; condition about 100.

    Site c has 15 rows with features of scale 1/j^.8 and its own true weights; ridge .01.
    """
    key, d, rows = random.key("minimisation", seed), 2 * HALF, 15
    scale = torch.arange(1, d + 1, dtype=torch.float64) ** -0.8
    X = draw(key, "features", n_sites, rows, d) * scale
    w = draw(key, "weights", d) + heterogeneity * draw(key, "weights of", n_sites, d)
    y = (X @ w.unsqueeze(-1)).squeeze(-1) + draw(key, "noise", n_sites, rows)
    A = X.transpose(1, 2) @ X / rows + 0.01 * torch.eye(d, dtype=torch.float64)
    b = -(X.transpose(1, 2) @ y.unsqueeze(-1)).squeeze(-1) / rows
    return _solved("minimisation", A, b, torch.full((d,), 0.5, dtype=torch.float64), Ball(10.0))


def robust_least_squares(
    *, seed: int = 0, n_sites: int = 20, heterogeneity: float = 1.0
) -> VIProblem:
    """Return min_θ max_y Σ p_c [‖X_cθ - y‖²/20 - .1 ‖y - y0‖²], ‖θ‖ ≤ 5, ‖y - y0‖ ≤ 1.

    Site c has 10 rows of 8 features, normal with standard deviation 1.5 (a shared draw, and with
    ``heterogeneity`` one of its own); the adversary moves the targets y from y0.
    """
    key, rows, d = random.key("robust_least_squares", seed), HALF, 8
    own = draw(key, "features of", n_sites, rows, d)
    shared = draw(key, "features", rows, d)
    X = 1.5 * (shared + heterogeneity * own) / (1.0 + heterogeneity**2) ** 0.5
    y0 = draw(key, "targets", rows)
    A = torch.zeros(n_sites, d + rows, d + rows, dtype=torch.float64)
    A[:, :d, :d] = X.transpose(1, 2) @ X / rows
    A[:, d:, :d] = X / rows
    A[:, :d, d:] = -X.transpose(1, 2) / rows
    A[:, d:, d:] = 0.1 * torch.eye(rows, dtype=torch.float64)
    b = torch.cat([torch.zeros(d, dtype=torch.float64), -0.2 * y0]).expand(n_sites, -1)
    sets = Product({"theta": Ball(5.0), "y": Ball(1.0, y0)})
    start = {"theta": torch.full((d,), 0.5, dtype=torch.float64), "y": y0.clone()}
    return _solved("robust_least_squares", A, b, start, sets)


def matrix_game(*, seed: int = 0, n_sites: int = 20, heterogeneity: float = 0.3) -> VIProblem:
    """Return the zero-sum game min_x max_y Σ p_c xᵀM_c y on two simplices of 10 strategies.

    The mean payoff has a known mixed equilibrium, in which every strategy is played, and value 0:
    M = G - (G y*)1ᵀ - 1(x*ᵀG) + (x*ᵀG y*)11ᵀ. Sites add ``heterogeneity`` times payoffs of their
    own, which cancel.
    """
    key = random.key("matrix_game", seed)
    mixed = [torch.softmax(0.5 * draw(key, name, HALF), 0) for name in ("x", "y")]
    G = draw(key, "payoff", HALF, HALF) / HALF**0.5
    x, y = mixed
    M = G - (G @ y).unsqueeze(1) - (x @ G).unsqueeze(0) + x @ G @ y
    own = heterogeneity * _centred(draw(key, "payoffs", n_sites, HALF, HALF)) / HALF**0.5
    A = torch.zeros(n_sites, 2 * HALF, 2 * HALF, dtype=torch.float64)
    A[:, :HALF, HALF:] = M + own
    A[:, HALF:, :HALF] = -A[:, :HALF, HALF:].transpose(1, 2)
    first = torch.zeros(HALF, dtype=torch.float64)
    first[0] = 1.0
    return affine(
        A,
        torch.zeros(n_sites, 2 * HALF, dtype=torch.float64),
        {"x": first, "y": first.clone()},
        Product({"x": Simplex(), "y": Simplex()}),
        solution={"x": x, "y": y},
        name="matrix_game",
    )


def with_noise(problem: VIProblem, scale: float) -> VIProblem:
    """Return the problem with N(0, scale²) added to every entry of a site's field.

    A site draws it anew in every exchange, from the key of its batch; residuals and gaps, whose
    batches have the key 0, are those of the field without noise.
    """

    def operator(params: Tree, batch: Batch) -> Tree:
        amount = torch.where(batch.key == 0, 0.0, scale)
        return {
            leaf: value
            + amount * random.normal(random.fold(batch.key, leaf), tuple(value.shape), value.dtype)
            for leaf, value in problem.operator(params, batch).items()
        }

    return replace(problem, operator=operator)


def _centred(values: Tensor) -> Tensor:
    return values.sub(values.mean(0))


def _solved(
    name: str, A: Tensor, b: Tensor, start: Tensor | Tree, feasible: FeasibleSet
) -> VIProblem:
    tree = {"x": start} if isinstance(start, Tensor) else start
    solution = solve_affine(A.mean(0), b.mean(0), tree, feasible)
    return affine(
        A, b, trees.map_tensors(torch.clone, tree), feasible, solution=solution, name=name
    )
