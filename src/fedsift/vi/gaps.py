"""How far a point is from solving a variational inequality."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedsift import trees
from fedsift.sets import FeasibleSet
from fedsift.trees import Tree
from fedsift.vi.problem import VIProblem

OUTER, INNER, NEWTON = 200, 60, 12


class Mean(NamedTuple):
    """F̄(x) = M x + q of an affine problem, over all leaves as one vector."""

    matrix: Tensor
    constant: Tensor

    @property
    def skew(self) -> bool:
        """Whether ⟨M x, x⟩ = 0 for all x."""
        symmetric = (self.matrix + self.matrix.T).abs().max()
        return bool(symmetric <= 1e-12 * self.matrix.abs().max())


def mean_field(problem: VIProblem) -> Mean:
    """Return M and q of an affine problem.

    Raises:
        ValueError: the problem is not affine.
    """
    if not problem.affine:
        msg = f"{problem.name} is not affine; only of an affine problem M and q can be given"
        raise ValueError(msg)
    rows = torch.tensordot(problem.shares, problem.data.x, dims=1)
    return Mean(rows[:, :-1], rows[:, -1])


def natural_residual(problem: VIProblem, params: Tree) -> Tensor:
    """Return ‖x - P_X(x - F̄(x))‖, which is 0 at solutions and nowhere else."""
    moved = problem.feasible.project(trees.subtract(params, problem.field(params)))
    return trees.norm(trees.subtract(params, moved))


def dual_gap(problem: VIProblem, params: Tree) -> Tensor | None:
    """Return max_{u in X} ⟨F̄(u), x - u⟩ of a monotone affine problem, else None.

    With a skew M (bilinear saddles, matrix games) it is ⟨q, x⟩ + max_u ⟨-(M x + q), u⟩, closed;
    with another, the concave maximum is computed. Infinite where X is unbounded and M skew.
    """
    if not problem.affine:
        return None
    M, q = mean = mean_field(problem)
    x = trees.flatten(params)
    if mean.skew:
        return q @ x + problem.feasible.support(trees.unflatten(-(M @ x + q), params))
    # Its gradient in u is Mᵀx - (M + Mᵀ)u - q: the same as an affine minimisation.
    u = solve_affine(M + M.T, q - M.T @ x, params, problem.feasible)
    best = trees.flatten(u)
    return (M @ best + q) @ (x - best)


def nash_gap(problem: VIProblem, params: Tree, steps: int = 500) -> Tensor | None:
    """Return Σ_i [f_i(x) - min_{x_i} f_i(x_i, x_-i)] of a game, by projected gradient; else None.

    A player's best answer is looked for in its own leaves, with f_i the mean over sites.
    """
    if problem.players is None:
        return None
    batch, total = problem.batch(), torch.zeros((), dtype=torch.float64)
    size = 1.0
    for loss, leaves in problem.players.values():
        gradient = torch.func.grad(loss)
        answer, step = dict(params), size
        value = loss(answer, batch)
        for _ in range(steps):
            slopes = gradient(answer, batch)
            moved = {k: v - step * slopes[k] if k in leaves else v for k, v in answer.items()}
            moved = problem.feasible.project(moved)
            moved = {k: moved[k] if k in leaves else v for k, v in answer.items()}
            lower = loss(moved, batch)
            if lower < value:
                answer, value, step = moved, lower, 1.2 * step
            else:
                step = 0.5 * step
        total = total + (loss(params, batch) - value)
    return total


def solve_affine(M: Tensor, q: Tensor, like: Tree, feasible: FeasibleSet) -> Tree:
    """Solve the monotone affine variational inequality M x + q on X to rounding.

    Extragradient comes near, semismooth Newton steps on x - P_X(x - Mx - q) finish. ``like`` is
    where to start; it says the leaves' shapes, too.
    """
    step = 0.9 / float(torch.linalg.matrix_norm(M, 2).clamp(min=1e-12))

    def ahead(v: Tensor, at: Tensor) -> Tensor:
        moved = trees.unflatten(v - step * (M @ at + q), like)
        return trees.flatten(feasible.project(moved))

    def off(v: Tensor) -> Tensor:
        return v - ahead(v, v)

    x = trees.flatten(like)
    for _ in range(OUTER):
        for _ in range(INNER):
            x = ahead(x, ahead(x, x))
        for _ in range(NEWTON):
            jacobian = torch.func.jacrev(off)(x)
            moved = x - torch.linalg.lstsq(jacobian, off(x).unsqueeze(1)).solution.squeeze(1)
            if not off(moved).norm() < off(x).norm():
                break
            x = moved
        if off(x).norm() <= 1e-14 * (1.0 + x.norm()):
            break
    return trees.unflatten(ahead(x, x), like)
