"""A problem: operators on a dict of tensors, evaluated at sites and combined by a server.

A loss gives the operator F = ∇f; a saddle gives (∇ₓf, -∇ᵧf); unlearning is two operators on the
same parameters. Algorithms see nothing else of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsift import trees
from fedsift.models import Model
from fedsift.outcomes import Multilabel, Outcome
from fedsift.random import fold, normal
from fedsift.sparsity import GateMap
from fedsift.trees import Tree


class Batch(NamedTuple):
    """Rows of one site.

    ``x`` [n, ...], ``y`` [n] (of labels [n, K]), ``weight`` [n] (0 for padding and for rows not
    drawn), ``key``: the model's own randomness (dropout), an int64 scalar; ``row`` [n]: numbers of
    the rows at their site, on which that depends too; None: in order.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    key: Tensor
    row: Tensor | None = None


Operator: TypeAlias = Callable[[Tree, Batch], Tree]
Evaluation: TypeAlias = Callable[[Tree, Batch], dict[str, tuple[Tensor, Tensor]]]


def _no_measures(means: dict[str, Tensor]) -> dict[str, Tensor]:
    return means


def _whole_space(params: Tree) -> Tree:
    return params


@dataclass(frozen=True)
class Problem:
    """What is to be solved.

    Attributes:
        init: key → starting parameters.
        operators: name → F(params, batch), a tree like the parameters; the weighted mean over rows.
        evaluate: (params, batch) → {measure: (weighted sum, weight)}; sums add up over sites.
        summarise: {measure: mean} → the figures people read (R² needs three means).
        gates: which parameters share a gate.
        project: projection onto the feasible set, the whole space by default.
        private: leaves of which each site has values of its own → the weight of the penalty that
            draws them to the shared ones, in units of one sample; see `with_private`.
        decomposable: False when rows of a site cannot be batched (Cox).
        predict: (params, x [n, ...]) → model output [n, K].
        null_loss: the loss of a model that knows nothing, the unit of steps that must not depend on
            the units of the loss.
        outcome: the kind of target it is for, None for problems without one.
        batched: False for models that must be evaluated one at a time, not by `torch.func.vmap`.
        objectives: name → the scalar f(params, batch) whose gradient the operator of that name is,
            where there is one.
        row_loss: (params, batch) → the loss of each row [n], where rows have one.
        apart: the same problem for fused lanes that share no rows, where its model has one.
        recipe: how to make it again on another machine, as JSON values; None where nobody knows.
    """

    init: Callable[[Tensor], Tree]
    operators: Mapping[str, Operator]
    evaluate: Evaluation
    summarise: Callable[[dict[str, Tensor]], dict[str, Tensor]] = _no_measures
    gates: GateMap = field(default_factory=lambda: GateMap({}))
    project: Callable[[Tree], Tree] = _whole_space
    private: Mapping[str, float] = field(default_factory=dict)
    decomposable: bool = True
    predict: Callable[[Tree, Tensor], Tensor] | None = None
    null_loss: float = 1.0
    outcome: str | None = None
    batched: bool = True
    objectives: Mapping[str, Callable[[Tree, Batch], Tensor]] = field(default_factory=dict)
    row_loss: Callable[[Tree, Batch], Tensor] | None = None
    apart: Problem | None = None
    recipe: Mapping[str, Any] | None = None

    def with_ridge(self, strength: float, leaves: Sequence[str] | None = None) -> Problem:
        """Return the problem with ``strength/2 · ‖leaves‖²`` added to the loss; None: all gated."""
        named = tuple(self.gates.views) if leaves is None else tuple(leaves)

        def ridged(operator: Operator) -> Operator:
            def field_with_ridge(params: Tree, batch: Batch) -> Tree:
                field_value = operator(params, batch)
                return {
                    k: v + strength * params[k] if k in named else v for k, v in field_value.items()
                }

            return field_with_ridge

        return replace(
            self,
            operators={k: ridged(f) for k, f in self.operators.items()},
            apart=None if self.apart is None else self.apart.with_ridge(strength, leaves),
            recipe=self.wrapped(ridge=strength, leaves=None if leaves is None else list(leaves)),
        )

    def with_private(self, ridges: Mapping[str, float]) -> Problem:
        """Return the problem in which every site has values of its own of some leaves.

        A site's model has its own values, which stay there; the shared ones are what the server
        makes of the sites' changes, for rows of other sites. ``ridges``: leaf → λ, which adds
        λ/2 ‖own - shared‖² to the sum of a site's losses (0: an own value, above: a random effect's
        posterior mode).

        Raises:
            ValueError: there is no such leaf, it has gates, or a weight is negative.
        """
        known = self.init(torch.zeros((), dtype=torch.int64))
        for leaf, ridge in ridges.items():
            if leaf not in known or leaf in self.gates.views:
                free = ", ".join(name for name in known if name not in self.gates.views)
                msg = (
                    f"sites cannot have a {leaf!r} of their own; choose from {free}, without gates"
                )
                raise ValueError(msg)
            if ridge < 0:
                raise ValueError(f"the ridge of {leaf!r} is {ridge}; give 0 or more")
        return replace(
            self,
            private=dict(ridges),
            apart=None if self.apart is None else self.apart.with_private(ridges),
            recipe=self.wrapped(private=dict(ridges)),
        )

    def beginning(self, leaves: Tree) -> Problem:
        """Return the problem whose start has these leaves; a run's start costs no message."""

        def init(key: Tensor) -> Tree:
            return {**self.init(key), **leaves}

        told = {leaf: value.tolist() for leaf, value in leaves.items()}
        return replace(self, init=init, recipe=self.wrapped(beginning=told))

    def wrapped(self, **how: Any) -> dict[str, Any] | None:
        """Return the recipe of a problem that is made of this one."""
        return None if self.recipe is None else {"of": dict(self.recipe), **how}

    def told(self) -> dict[str, Any]:
        """Return the recipe, for those who are to make the problem again.

        Raises:
            ValueError: there is none.
        """
        if self.recipe is None:
            msg = (
                "this problem cannot be told to sites: it has no recipe; give Problem.recipe, and "
                "the sites a function that makes the problem of it"
            )
            raise ValueError(msg)
        return dict(self.recipe)


def supervised(model: Model, outcome: Outcome) -> Problem:
    """Return the problem of fitting ``model`` to rows with a target.

    F(θ) = ∇ Σᵢ wᵢ ℓ(model(θ, xᵢ), yᵢ) / Σᵢ wᵢ.

    Raises:
        ValueError: (when it is used) the model's output is not what the outcome needs.
    """
    pullback = model.pullback

    def apply(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        output = model.apply(params, x, key)
        width = outcome.n_labels if isinstance(outcome, Multilabel) else 1
        wide = outcome.name == "multiclass"
        if output.ndim != 2 or not (output.shape[-1] > 1 if wide else output.shape[-1] == width):
            needed = "[rows, classes]" if wide else f"[rows, {width}]"
            msg = (
                f"the model gives an output of shape {list(output.shape)}, "
                f"a {outcome.name} target needs {needed}"
            )
            raise ValueError(msg)
        return output

    def training_output(params: Tree, batch: Batch) -> Tensor:
        if not model.draws:
            return apply(params, batch.x, batch.key)
        row = torch.arange(len(batch.x)) if batch.row is None else batch.row
        return apply(params, batch.x, fold(batch.key, row))

    def mean_loss(params: Tree, batch: Batch) -> Tensor:
        output = training_output(params, batch)
        return outcome.mean_loss(output, batch.y, batch.weight)

    def slopes(params: Tree, batch: Batch) -> Tree:
        assert pullback is not None  # noqa: S101  used only where the model has one
        output = training_output(params, batch)
        return pullback(params, batch.x, outcome.mean_slope(output, batch.y, batch.weight))

    def evaluate(params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        output = apply(params, batch.x, None)
        return outcome.sums(output, batch.y, batch.weight)

    return Problem(
        init=model.init,
        operators={"loss": slopes if pullback else torch.func.grad(mean_loss)},
        evaluate=evaluate,
        summarise=outcome.summarise,
        gates=model.gates,
        predict=lambda params, x: apply(params, x, None),
        null_loss=outcome.null_loss,
        outcome=outcome.name,
        decomposable=outcome.decomposable,
        apart=None if model.apart is None else supervised(model.apart, outcome),
    )


def curvature(
    operator: Operator,
    params: Tree,
    batch: Batch,
    key: Tensor,
    scaling: Tree | None = None,
    iterations: int = 10,
) -> Tensor:
    """Estimate the largest curvature of an operator near a point, by power iteration.

    ‖D J D‖₂ with J the Jacobian of the operator at ``params`` and D = diag(``scaling``), the change
    of variable of gated parameters. J v is the difference quotient over a step of
    .1 (1 + ‖params‖): the length that local steps have, long enough for float32 to keep its digits,
    and open to layers without forward derivatives. A lower estimate that is close after a few
    iterations.
    """
    base, step = operator(params, batch), 0.1 * (1.0 + trees.norm(params))

    def jacobian_vector(vector: Tree) -> Tree:
        direction = trees.multiply(vector, scaling) if scaling else vector
        moved = operator(trees.add_scaled(params, step, direction), batch)
        product = trees.scale(trees.subtract(moved, base), 1.0 / step)
        return trees.multiply(product, scaling) if scaling else product

    vector = {
        leaf: normal(fold(key, index), value.shape, value.dtype)
        for index, (leaf, value) in enumerate(params.items())
    }
    length = trees.norm(vector)
    for _ in range(iterations):
        vector = jacobian_vector(trees.scale(vector, 1.0 / length.clamp(min=1e-30)))
        length = trees.norm(vector)
    return length
