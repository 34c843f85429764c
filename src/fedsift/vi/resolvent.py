"""The inexact resolvent, and the Lipschitz constant it steps by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsift import trees
from fedsift.problems import Batch, Operator
from fedsift.random import fold, normal
from fedsift.trees import Tree

PROBES = 5  # steps after which L is taken as known
MOVED = 1e-4  # shortest relative move from which a secant is taken, in units of √(machine ε)


def resolvent(
    field: Callable[[Tree], Tree],
    correction: Tree,
    center: Tree,
    gamma: Tensor | float,
    lipschitz: Tensor,
    steps: int,
    project: Callable[[Tree], Tree],
) -> tuple[Tree, Tree, Tensor]:
    """Solve F(y) + correction + (y - center)/γ = 0 on X by optimistic steps from the center.

    y ← P(y - s(2 g_k - g_{k-1})), g the left side, s = 1/(2(L + 1/γ)); L rises to the largest
    ‖F(y_k) - F(y_{k-1})‖/‖y_k - y_{k-1}‖ of the first few, so that a wrong start of L does no harm.
    In units of γ all of it is free of the loss's scale.

    Args:
        field: F.
        correction: a constant that is added to F.
        center: where to start, in X.
        gamma: γ > 0.
        lipschitz: an estimate of F's Lipschitz constant, or 0.
        steps: evaluations of F besides the first.
        project: P.

    Returns:
        y, F(y) and L.

    Source: Popov, "A modification of the Arrow-Hurwicz method", 1980.
    """

    # As vectors, and with what stays the same taken out: this is called very often.
    def at(v: Tensor) -> Tensor:
        return trees.flatten(field(trees.unflatten(v, center)))

    def onto(v: Tensor) -> Tensor:
        return trees.flatten(project(trees.unflatten(v, center)))

    start, pull = trees.flatten(center), 1.0 / torch.as_tensor(gamma)
    constant = trees.flatten(correction) - pull * start
    point, value, bound = start, at(start), lipschitz
    slope = value + constant + pull * point
    before = slope
    shortest = MOVED * torch.finfo(start.dtype).eps ** 0.5 * torch.linalg.vector_norm(start)
    step = 0.5 / (bound + pull)
    for number in range(steps):
        moved = onto(point - step * (2.0 * slope - before))
        there = at(moved)
        if number < PROBES:
            length = torch.linalg.vector_norm(moved - point)
            secant = torch.linalg.vector_norm(there - value) / length.clamp(min=1e-30)
            risen = torch.maximum(bound, secant.to(bound.dtype))
            bound = torch.where(length > shortest, risen, bound)
            step = 0.5 / (bound + pull)
        point, value, before = moved, there, slope
        slope = value + constant + pull * point
    return trees.unflatten(point, center), trees.unflatten(value, center), bound


def lipschitz(
    operator: Operator, params: Tree, batch: Batch, key: Tensor, iterations: int = 12
) -> Tensor:
    """Estimate the Lipschitz constant ‖J‖₂ of an operator near a point, by power iteration on JᵀJ.

    J v is the difference quotient over a step of .1 (1 + ‖params‖), the length of local steps; Jᵀ
    is autograd's. A lower estimate, within a few per cent after a dozen iterations.
    """
    base: Tree
    base, pullback = torch.func.vjp(lambda point: operator(point, batch), params)[:2]
    step = 0.1 * (1.0 + trees.norm(params))
    vector = {
        leaf: normal(fold(key, index), tuple(value.shape), value.dtype)
        for index, (leaf, value) in enumerate(params.items())
    }
    size = trees.norm(vector)
    for _ in range(iterations):
        vector = trees.scale(vector, 1.0 / size.clamp(min=1e-30))
        moved = operator(trees.add_scaled(params, step, vector), batch)
        product = trees.scale(trees.subtract(moved, base), 1.0 / step)
        size = trees.norm(product)
        (vector,) = pullback(trees.scale(product, 1.0 / size.clamp(min=1e-30)))
        size = torch.maximum(size, trees.norm(vector))
        vector = dict(vector)
    return size.double()
