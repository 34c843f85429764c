"""Membership told by shadow models (LiRA): what a stronger attack than the loss finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedsift.data import FederatedData
from fedsift.data.federated import FORGET
from fedsift.experiments.forgetting_cases import ForgetCase
from fedsift.problems import Problem
from fedsift.trees import Tree
from fedsift.unlearning.membership import (
    Inference,
    infer,
    likelihood_ratio,
    scaled_confidence,
    shadow_scores,
)


class Shadows(NamedTuple):
    """The rows of the site that forgets, and what shadow models say of them.

    ``member`` [n]: whether the original model was trained on a row; ``inside``, ``outside``
    [models, n]: see `shadow_scores`.
    """

    problem: Problem
    x: Tensor
    y: Tensor
    member: Tensor
    inside: Tensor
    outside: Tensor

    def infer(self, params: Tree) -> Inference:
        """Return what the attack finds in a model.

        A row that every shadow model was trained on, or none, scores 0: it is not told.
        """
        target = scaled_confidence(self.problem, params, self.x, self.y)
        score = likelihood_ratio(target, self.inside, self.outside).nan_to_num(0.0)
        return infer(score[self.member], score[~self.member])


def train_shadows(
    case: ForgetCase, fit: Callable[[FederatedData, int], Tree], count: int, seed: int
) -> Shadows:
    """Train models on all rows of the other sites and on random halves of the site's own.

    Args:
        case: the federation.
        fit: (rows, number of the model) → parameters.
        count: shadow models.
        seed: draws the halves.
    """
    data = case.data
    assert data.role is not None  # noqa: S101  a case is made with roles
    own = data.slices[data.sites.index(case.site)]
    x, y = data.x[own], data.y[own]

    def fit_half(mask: Tensor, number: int) -> Tree:
        some = torch.ones(data.n_samples, dtype=torch.bool)
        some[own] = mask
        return fit(replace(data.take(some), role=None), number)

    inside, outside = shadow_scores(fit_half, case.problem, x, y, count, seed)
    return Shadows(case.problem, x, y, data.role[own] == FORGET, inside, outside)
