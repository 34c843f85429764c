"""The problems of a study: a linear model and its outcome, one object for data of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedsift import models, trees
from fedsift.data import FederatedData
from fedsift.data.groups import Groups
from fedsift.evaluation import mean_measures
from fedsift.outcomes import make_outcome
from fedsift.problems import Problem, supervised
from fedsift.sparsity import grouping
from fedsift.trees import Tree


def linear_problem(
    data: FederatedData,
    gate: models.GateUnit = "feature",
    groups: Groups | None = None,
    *,
    constants: Mapping[str, float] | None = None,
) -> Problem:
    """Return the linear problem for the data's target, one object for data of one shape.

    ``constants``: what the outcome takes from training rows; see `constants_of`.
    """
    return _linear_problem(
        data.n_candidates,
        data.outcome,
        len(data.classes),
        gate,
        data.n_features - data.n_candidates,
        () if groups is None else groups.members,
        tuple((constants or {}).items()),
    )


@cache
def _linear_problem(
    n_features: int,
    name: str,
    n_classes: int,
    gate: models.GateUnit,
    covariates: int,
    groups: tuple[tuple[int, ...], ...],
    constants: tuple[tuple[str, float], ...],
) -> Problem:
    outputs = n_classes if name in {"multiclass", "multilabel"} else 1
    if groups:
        model = models.grouped(grouping(n_features, groups), outputs)
    else:
        model = models.linear(n_features, outputs, gate=gate)
    if covariates:
        model = models.with_covariates(model, covariates, outputs)
    problem = supervised(model, make_outcome(name, n_classes, dict(constants)))
    recipe = [n_features, name, n_classes, gate, covariates, groups, constants]
    return replace(problem, recipe={"linear": recipe})


def slopes_of(params: Tree) -> Tensor:
    """Return a linear model's weights of all columns, [..., K, d], those of covariates last."""
    parts = [params[leaf] for leaf in ("weight", "covariate") if leaf in params]
    return torch.cat(parts, -1)


def constants_of(rows: FederatedData, unit: float) -> dict[str, float]:
    """Return what the outcome takes from training rows in standard units: `Outcome.constants`.

    ``unit``: by which the target was divided. A private fit has outcomes that take nothing.
    """
    outcome = make_outcome(rows.outcome, len(rows.classes))
    if not outcome.takes:
        return {}
    problem = linear_problem(rows)
    start = trees.stack([problem.init(torch.zeros((), dtype=torch.int64))])
    means = {name: float(value) for name, value in mean_measures(problem, start, rows).items()}
    return outcome.constants(means, unit)


def problem_of(recipe: Mapping[str, Any]) -> Problem:
    """Return the problem of a study that another machine described by `Problem.recipe`.

    `fedsift.forgetting.remade` makes the problems that are made of it.
    """
    *shape, groups, constants = recipe["linear"]
    named = tuple((str(name), float(value)) for name, value in constants)
    return _linear_problem(*shape, tuple(map(tuple, groups)), named)
