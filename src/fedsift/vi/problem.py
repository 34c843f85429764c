"""Federated variational inequalities, and how one is made from losses, saddles, games, constraints.

Find x* in X with ⟨F̄(x*), x - x*⟩ ≥ 0 for all x in X, F̄ = Σ p_c F_c: site c evaluates its operator
F_c on its own rows, p_c is its share of the sample weights. A loss gives F = ∇f, a saddle
min_x max_y f gives F = (∇ₓf, -∇ᵧf), a game stacks every player's gradient in its own variables.

Source: Facchinei & Pang, "Finite-dimensional variational inequalities", 2003, chapter 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedsift import trees
from fedsift.data import FederatedData
from fedsift.models import Model
from fedsift.outcomes import Outcome, weighted_mean
from fedsift.problems import Batch, Evaluation, Operator, Problem
from fedsift.sets import FeasibleSet, Orthant, Product, WholeSpace
from fedsift.trees import Tree

Loss: TypeAlias = Callable[[Tree, Batch], Tensor]
# A player's loss and the leaves it chooses.
Player: TypeAlias = tuple[Loss, tuple[str, ...]]


def _as_they_are(means: dict[str, Tensor]) -> dict[str, Tensor]:
    return means


@dataclass(frozen=True, eq=False)
class VIProblem:
    """A variational inequality over sites.

    Attributes:
        operator: (params, batch) → F_c(params) from rows of site c, a tree like the parameters; the
            weighted mean over rows.
        data: rows of the sites; their sample weights are the weights p_c of the sites.
        start: x0, the parameters that are looked for; float64 unless the model needs float32.
        feasible: X.
        name: what it is called in tables.
        solution: x* where it is known.
        affine: whether F is affine, so that gaps and constants can be had exactly.
        players: the losses of a game, for the Nash gap.
        measures: further figures of parameters on rows, such as an accuracy.
        summarise: their means → what people read.
        batched: False where `torch.func.vmap` cannot take the operator.
    """

    operator: Operator
    data: FederatedData
    start: Tree
    feasible: FeasibleSet = field(default_factory=WholeSpace)
    name: str = "problem"
    solution: Tree | None = None
    affine: bool = False
    players: Mapping[str, Player] | None = None
    measures: Evaluation | None = None
    summarise: Callable[[dict[str, Tensor]], dict[str, Tensor]] = _as_they_are
    batched: bool = True

    @cached_property
    def problem(self) -> Problem:
        """The problem as engines see it; its figure ``loss`` is the natural residual."""
        return Problem(
            init=lambda _: dict(self.start),
            operators={"loss": self.operator},
            evaluate=self._evaluate,
            summarise=self._summarise,
            project=self.feasible.project,
            batched=self.batched,
        )

    def _evaluate(self, params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        weight = batch.weight.sum()
        parts = trees.join(field=self.operator(params, batch), point=params)
        found = {k: (value * weight, weight.expand_as(value)) for k, value in parts.items()}
        return found | (self.measures(params, batch) if self.measures else {})

    def _summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = ("field/", "point/")
        point = trees.part(means, "point")
        moved = self.feasible.project(trees.subtract(point, trees.part(means, "field")))
        rest = {k: v for k, v in means.items() if not k.startswith(parts)}
        return {"loss": trees.norm(trees.subtract(point, moved)), **self.summarise(rest)}

    def batch(self, site: int | None = None) -> Batch:
        """Return all rows of a site, or of all sites."""
        rows = slice(None) if site is None else self.data.slices[site]
        x, y, weight = self.data.x[rows], self.data.y[rows], self.data.weight[rows]
        return Batch(x, y, weight, torch.zeros((), dtype=torch.int64))

    def field(self, params: Tree, site: int | None = None) -> Tree:
        """Return F_c(params), or F̄(params) without a site."""
        return self.operator(params, self.batch(site))

    @cached_property
    def shares(self) -> Tensor:
        """p_c, float64 [C], which add up to one."""
        rows = self.data.weight.double()
        weights = torch.stack([rows[piece].sum() for piece in self.data.slices])
        return weights / weights.sum()


def site_rows(x: Tensor, weights: Sequence[float] | None = None) -> FederatedData:
    """Return data of C sites with one row each, x [C, ...], float64, and weights p_c (equal)."""
    count = len(x)
    names = tuple(f"site_{c + 1}" for c in range(count))
    weight = torch.ones(count) if weights is None else torch.tensor(list(weights))
    return FederatedData(
        x=x.double(),
        y=torch.zeros(count),
        weight=weight,
        offsets=tuple(range(count + 1)),
        sites=names,
        features=(),
        rows=names,
        outcome="regression",
    )


def affine(
    A: Tensor,
    b: Tensor,
    start: Tree,
    feasible: FeasibleSet | None = None,
    weights: Sequence[float] | None = None,
    **facts: Any,
) -> VIProblem:
    """Return F_c(x) = A_c x + b_c, ``A`` [C, d, d], ``b`` [C, d]; x is all leaves of ``start``.

    Raises:
        ValueError: the shapes do not fit.
    """
    size = sum(leaf.numel() for leaf in start.values())
    if A.shape != (len(A), size, size) or b.shape != (len(A), size):
        msg = (
            f"A is {list(A.shape)} and b {list(b.shape)} for {size} numbers to find; "
            f"give [sites, {size}, {size}] and [sites, {size}]"
        )
        raise ValueError(msg)
    rows = torch.cat([A, b.unsqueeze(-1)], -1)
    return VIProblem(
        _affine_operator,
        site_rows(rows, weights),
        {k: v.double() for k, v in start.items()},
        feasible or WholeSpace(),
        affine=True,
        **facts,
    )


def _affine_operator(params: Tree, batch: Batch) -> Tree:
    point = trees.flatten(params)
    values = batch.x @ torch.cat([point, point.new_ones(1)])
    if len(values) == 1:
        return trees.unflatten(values[0], params)
    share = batch.weight.to(point.dtype)
    return trees.unflatten((share / share.sum()) @ values, params)


def from_operators(
    operators: Sequence[Callable[[Tree], Tree]],
    start: Tree,
    feasible: FeasibleSet | None = None,
    weights: Sequence[float] | None = None,
    **facts: Any,
) -> VIProblem:
    """Return the problem of one plain function F_c(params) a site.

    All functions are called wherever one is needed, so that sites can be batched: keep them small.
    """
    functions = tuple(operators)

    def operator(params: Tree, batch: Batch) -> Tree:
        share = (batch.weight / batch.weight.sum()).to(batch.x.dtype)
        which = torch.tensordot(share, batch.x, dims=1)
        total: Tree = trees.zeros_like(params)
        for number, function in enumerate(functions):
            total = trees.add_scaled(total, which[number], function(params))
        return total

    data = site_rows(torch.eye(len(functions)), weights)
    return VIProblem(operator, data, start, feasible or WholeSpace(), **facts)


def from_loss(
    loss: Loss, data: FederatedData, start: Tree, feasible: FeasibleSet | None = None, **facts: Any
) -> VIProblem:
    """Return the minimisation of Σ p_c f_c over X; ``loss``: (params, batch) → f_c, a mean of rows.

    `model_loss` gives the loss of a torch module.
    """
    return VIProblem(torch.func.grad(loss), data, start, feasible or WholeSpace(), **facts)


def model_loss(model: Model, outcome: Outcome) -> Loss:
    """Return the mean loss of a model (`fedsift.from_module` wraps a torch module) on rows."""

    def loss(params: Tree, batch: Batch) -> Tensor:
        output = model.apply(params, batch.x, batch.key)
        return outcome.mean_loss(output, batch.y, batch.weight)

    return loss


def saddle(
    loss: Loss,
    data: FederatedData,
    start: Tree,
    maximise: Sequence[str],
    feasible: FeasibleSet | None = None,
    **facts: Any,
) -> VIProblem:
    """Return min max f: F = (∇f, but -∇f in the leaves (or parts) named in ``maximise``).

    Raises:
        ValueError: a name is no leaf and no part.
    """
    signs = _signs(start, maximise)
    gradient = torch.func.grad(loss)

    def operator(params: Tree, batch: Batch) -> Tree:
        return {leaf: signs[leaf] * slope for leaf, slope in gradient(params, batch).items()}

    return VIProblem(operator, data, start, feasible or WholeSpace(), **facts)


def game(
    players: Mapping[str, Player],
    start: Tree,
    feasible: FeasibleSet | None = None,
    data: FederatedData | None = None,
    **facts: Any,
) -> VIProblem:
    """Return the Nash game in which each player minimises its own loss in its own leaves.

    Args:
        players: name → (loss(params, batch), the leaves it chooses).
        start: all players' leaves.
        feasible: the product of their sets.
        facts: name, solution and the like of `VIProblem`.
        data: rows at sites; every site then knows its part of every loss. None: the sites are the
            players themselves; the others learn the choices of a player, never its loss.

    Raises:
        ValueError: a leaf belongs to nobody, or to two players.
    """
    owned = [leaf for _, leaves in players.values() for leaf in leaves]
    if sorted(owned) != sorted(start):
        msg = f"the players choose {', '.join(owned)}, the leaves are {', '.join(start)}: each once"
        raise ValueError(msg)
    gradients = [(torch.func.grad(loss), leaves) for loss, leaves in players.values()]
    alone = data is None

    def operator(params: Tree, batch: Batch) -> Tree:
        found: Tree = {}
        for number, (gradient, leaves) in enumerate(gradients):
            slopes = gradient(params, batch)
            share = (
                len(gradients) * weighted_mean(batch.x[:, number], batch.weight) if alone else 1.0
            )
            found |= {leaf: share * slopes[leaf] for leaf in leaves}
        return {leaf: found[leaf] for leaf in params}

    if data is None:
        names = tuple(players)
        data = replace(site_rows(torch.eye(len(players))), sites=names, rows=names)
    return VIProblem(operator, data, start, feasible or WholeSpace(), players=players, **facts)


def lagrangian(
    loss: Loss,
    constraints: Loss,
    data: FederatedData,
    start: Tree,
    count: int,
    feasible: FeasibleSet | None = None,
    **facts: Any,
) -> VIProblem:
    """Return min f subject to g ≤ 0 as the saddle f + ⟨multiplier, g⟩, multiplier ≥ 0.

    Args:
        loss: (params, batch) → f_c.
        constraints: (params, batch) → g_c [count]; what must be ≤ 0 is Σ p_c g_c.
        data: rows of the sites.
        start: the parameters; a leaf ``multiplier`` [count] of zeros is added.
        count: how many constraints.
        facts: name, solution and the like of `VIProblem`.
        feasible: X of the parameters.
    """

    def both(params: Tree, batch: Batch) -> Tensor:
        own = {leaf: value for leaf, value in params.items() if leaf != "multiplier"}
        return loss(own, batch) + params["multiplier"] @ constraints(own, batch)

    dtype = next(iter(start.values())).dtype
    whole = {**start, "multiplier": torch.zeros(count, dtype=dtype)}
    return saddle(both, data, whole, ("multiplier",), WithMultipliers(feasible), **facts)


def WithMultipliers(feasible: FeasibleSet | None) -> Product:
    """Return X x {multiplier ≥ 0}."""
    if feasible is None or isinstance(feasible, Product):
        own = {} if feasible is None else feasible.parts
        return Product({**own, "multiplier": Orthant()})
    return Product({"": feasible, "multiplier": Orthant()})


def _signs(start: Tree, maximise: Sequence[str]) -> dict[str, float]:
    signs = dict.fromkeys(start, 1.0)
    for name in maximise:
        members = [leaf for leaf in start if leaf == name or leaf.startswith(f"{name}/")]
        if not members:
            msg = f"maximise names {name!r}; the parameters are {', '.join(start)}"
            raise ValueError(msg)
        signs |= dict.fromkeys(members, -1.0)
    return signs
