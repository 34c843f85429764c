"""Losses of forgetting: what a model should say of rows that it is to forget.

All work on logits [n, K], p = softmax(logits); smaller is better forgotten. A binary model's one
logit z stands for the logits (0, z).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.gates import HardConcrete
from fedsift.measures import auc
from fedsift.outcomes import Logistic, Outcome, Softmax, make_outcome, weighted_mean
from fedsift.problems import Batch, Problem
from fedsift.trees import Tree

ForgetLoss = Literal["entropy", "bounded_ce", "mixed", "uniform_ce", "ascent"]
RowLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

TEMPERED = frozenset({"entropy", "mixed"})  # losses that depend on the temperature
CLIP = 10.0  # nats at which `uniform_ce` is clipped


def entropy_loss(temperature: float = 1.0) -> RowLoss:
    """Return KL(p‖u)/log K = 1 - H(p)/log K in [0, 1], p = softmax(logits/τ).

    Bounded, and 0 for the uniform answer. At τ = 1 its gradient vanishes where the model is sure.
    """

    def loss(logits: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
        log_p = F.log_softmax(logits / temperature, -1)
        log_k = math.log(logits.shape[-1])
        return (log_p.exp() * (log_p + log_k)).sum(-1) / log_k

    return loss


def bounded_ce(logits: Tensor, y: Tensor) -> Tensor:
    """Return -log(1 - p_y/2) in [0, log 2]: the wrong answer is rewarded, up to a bound."""
    p = F.softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -torch.log1p(-0.5 * p)


def uniform_ce(logits: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
    """Return KL(u‖p) clipped at `CLIP`: minimised, with a logit gradient of at most 1."""
    log_p = F.log_softmax(logits, -1)
    return (-math.log(logits.shape[-1]) - log_p.mean(-1)).clamp(max=CLIP)


def ascent(logits: Tensor, y: Tensor) -> Tensor:
    """Return minus the cross-entropy: unbounded below, a baseline that runs away."""
    return -F.cross_entropy(logits, y, reduction="none")


def mixed_loss(temperature: float) -> RowLoss:
    """Return the mean of `entropy_loss` and `bounded_ce`/log 2, in [0, 1]."""
    entropy = entropy_loss(temperature)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (entropy(logits, y) + bounded_ce(logits, y) / math.log(2.0))

    return loss


def row_loss(name: ForgetLoss, temperature: float = 1.0) -> RowLoss:
    """Return a loss by name.

    Raises:
        ValueError: there is none of that name, or the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; give a number above 0")
    by_name: dict[str, RowLoss] = {
        "entropy": entropy_loss(temperature),
        "bounded_ce": bounded_ce,
        "mixed": mixed_loss(temperature),
        "uniform_ce": uniform_ce,
        "ascent": ascent,
    }
    if name not in by_name:
        raise ValueError(f"no forget loss {name!r}; use one of {', '.join(by_name)}")
    return by_name[name]


def peak_margin(n_classes: int) -> float:
    """Return c_K, such that τ = margin/c_K makes the entropy's gradient in the logits largest.

    For logits (M, 0, ..., 0) and m = M/τ that gradient is proportional to m dKL(p‖u)/dm, whose
    maximum over m is looked for on a grid of .01; c_2 = 2.4, c_10 = 3.5, c_100 = 5.4.
    """
    m = torch.arange(0.01, 12.0, 0.01, dtype=torch.float64, requires_grad=True)
    logits = torch.cat([m.unsqueeze(1), torch.zeros(len(m), n_classes - 1)], 1)
    value = entropy_loss()(logits, torch.zeros(len(m), dtype=torch.int64)).sum()
    (slope,) = torch.autograd.grad(value, m)
    return float(m.detach()[(m.detach() * slope).argmax()])


def temperature_for(margin: float, n_classes: int) -> float:
    """Return τ = max(1, margin / c_K): where the entropy's gradient is large."""
    return max(1.0, margin / peak_margin(n_classes))


def median_margin(problem: Problem, params: Tree, x: Tensor) -> Tensor:
    """Return the median distance of a classifier's two largest logits for rows, a scalar."""
    assert problem.predict is not None  # noqa: S101  `forgetting` refuses the others
    with torch.no_grad():
        top = class_logits(problem.predict(params, x)).topk(2, -1).values
    return (top[:, 0] - top[:, 1]).median()


def class_logits(output: Tensor) -> Tensor:
    """Return logits [n, K] from a model's output; one column z becomes (0, z)."""
    return torch.cat([torch.zeros_like(output), output], -1) if output.shape[-1] == 1 else output


def forgetting(
    problem: Problem, outcome: Outcome, loss: ForgetLoss = "bounded_ce", temperature: float = 1.0
) -> Problem:
    """Return the problem of forgetting some rows of a classifier and keeping the others.

    Its objectives are ``forget`` and ``retain``, means over the rows of a batch, and the same as
    operators (their gradients); the model runs as in evaluation, without dropout.

    Raises:
        ValueError: it is no classifier, or the loss has no such name.
    """
    predict = problem.predict
    if not isinstance(outcome, Logistic | Softmax) or predict is None:
        msg = (
            f"{outcome.name} has no classes: forgetting is defined for a classifier's logits; "
            "retrain without the rows (method 'retrain')"
        )
        raise ValueError(msg)
    forget_row = row_loss(loss, temperature)

    def logits(params: Tree, batch: Batch) -> Tensor:
        return class_logits(predict(params, batch.x))

    def forget(params: Tree, batch: Batch) -> Tensor:
        return weighted_mean(forget_row(logits(params, batch), batch.y.long()), batch.weight)

    def retain(params: Tree, batch: Batch) -> Tensor:
        return weighted_mean(outcome.loss(predict(params, batch.x), batch.y), batch.weight)

    return replace(
        problem,
        operators={
            **problem.operators,
            "forget": torch.func.grad(forget),
            "retain": torch.func.grad(retain),
        },
        objectives={"forget": forget, "retain": retain},
        row_loss=lambda params, batch: outcome.loss(predict(params, batch.x), batch.y),
        apart=None,
        recipe=problem.wrapped(
            forgetting=[outcome.name, getattr(outcome, "n_classes", 2), loss, temperature]
        ),
    )


def remade(recipe: Mapping[str, Any], base: Callable[[Mapping[str, Any]], Problem]) -> Problem:
    """Return the problem of a recipe; ``base`` makes those that are made of no other."""
    if "of" not in recipe:
        return base(recipe)
    problem = remade(recipe["of"], base)
    if "ridge" in recipe:
        return problem.with_ridge(recipe["ridge"], recipe["leaves"])
    if "private" in recipe:
        return problem.with_private(recipe["private"])
    if "beginning" in recipe:
        told = recipe["beginning"]
        return problem.beginning({leaf: torch.tensor(value) for leaf, value in told.items()})
    if "gated" in recipe:
        return gated(problem)
    name, n_classes, loss, temperature = recipe["forgetting"]
    return forgetting(problem, make_outcome(name, n_classes), loss, temperature)


def forget_figures(problem: Problem, theta: Tree, forget: Batch, held_out: Batch) -> Tree:
    """Return what a site says of its rows to forget: accuracy, and AUC of membership by loss."""
    right, weight = problem.evaluate(theta, forget)["accuracy"]
    right_h, weight_h = problem.evaluate(theta, held_out)["accuracy"]
    rows = problem.row_loss(theta, forget) if problem.row_loss is not None else forget.weight
    return {
        "accuracy": right / weight.clamp(min=1e-12),
        "cross_entropy": weighted_mean(rows, forget.weight),
        "confidence": weighted_mean((-rows).exp(), forget.weight),
        "held_out_accuracy": right_h / weight_h.clamp(min=1e-12),
        "membership_auc": auc(-rows, forget.weight, -rows, held_out.weight),
    }


OPEN_GATE, CLOSED_GATE = 2.944, -2.944  # φ = ±logit(.95)


def gated(problem: Problem) -> Problem:
    """Return a problem whose parameters are weights and gates: w = θ̃ E[z(φ)].

    So that what is kept may change while rows are forgotten: a closed gate passes a little, and the
    weight behind it can grow. The parameters get the leaf ``phi``, the gates' log-odds.
    """
    means = HardConcrete().mean

    def effective(params: Tree) -> Tree:
        weights = {k: v for k, v in params.items() if k != "phi"}
        return problem.gates.multiply(weights, means(params["phi"]))

    def through(function: Callable[[Tree, Batch], Any]) -> Callable[[Tree, Batch], Any]:
        return lambda params, batch: function(effective(params), batch)

    objectives = {name: through(f) for name, f in problem.objectives.items()}
    predict, row = problem.predict, problem.row_loss
    return replace(
        problem,
        init=lambda key: with_gates(problem, problem.init(key)),
        operators={name: torch.func.grad(f) for name, f in objectives.items()},
        objectives=objectives,
        evaluate=through(problem.evaluate),
        predict=None if predict is None else lambda params, x: predict(effective(params), x),
        row_loss=None if row is None else through(row),
        apart=None,
        recipe=problem.wrapped(gated=True),
    )


def with_gates(problem: Problem, params: Tree) -> Tree:
    """Return weights and gates whose product is ``params``: open where that is not 0."""
    kept = problem.gates.magnitude(params) > 0
    phi = torch.where(kept, OPEN_GATE, CLOSED_GATE).to(next(iter(params.values())).dtype)
    weights = problem.gates.multiply(params, 1.0 / HardConcrete().mean(phi))
    return {**weights, "phi": phi}


def without_gates(problem: Problem, params: Tree, kept: int) -> Tree:
    """Return the effective parameters, exactly sparse: the ``kept`` largest gates'."""
    weights = {k: v for k, v in params.items() if k != "phi"}
    whole = problem.gates.multiply(weights, HardConcrete().mean(params["phi"]))
    mask = problem.gates.keep(problem.gates.magnitude(whole), kept, kept)
    return problem.gates.multiply(whole, mask)
