"""Outcomes: what the target is, the loss of a prediction, and the measures of a fit.

Every function works on the model's output, [n, K] (K = 1 but for classes and labels), and gives
sums and counts, so that sites can add them up and never send a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedsift.outcomes.base import ByRow, Outcome, weighted_mean
from fedsift.outcomes.counts import Counts, NegativeBinomial, Poisson
from fedsift.outcomes.labels import Multilabel
from fedsift.outcomes.survival import Cox
from fedsift.outcomes.usual import Logistic, Softmax, Squared

__all__ = [
    "OUTCOMES",
    "ByRow",
    "Counts",
    "Cox",
    "Logistic",
    "Multilabel",
    "NegativeBinomial",
    "Outcome",
    "Poisson",
    "Softmax",
    "Squared",
    "make_outcome",
    "weighted_mean",
]

OUTCOMES: dict[str, ByRow] = {
    "regression": Squared(),
    "binary": Logistic(),
    "multiclass": Softmax(),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
    "multilabel": Multilabel(),
}


def make_outcome(
    name: str, n_classes: int = 2, constants: Mapping[str, float] | None = None
) -> Outcome:
    """Return the outcome of a name.

    ``n_classes`` matters for ``multiclass``, and for ``multilabel``, whose labels it counts;
    ``constants``: fields in the place of defaults, as `Outcome.constants` gives them.

    Raises:
        ValueError: there is none of that name.
    """
    several = {"multiclass": Softmax(n_classes), "multilabel": Multilabel(n_classes)}
    known: dict[str, Any] = {**OUTCOMES, **several, "survival": Cox()}
    if name not in known:
        msg = f"no outcome {name!r}; use one of {', '.join(known)}"
        raise ValueError(msg)
    outcome = known[name]
    made: Outcome = replace(outcome, **constants) if constants else outcome
    return made
