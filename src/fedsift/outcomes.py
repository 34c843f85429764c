"""Outcomes: what the target is, the loss of a prediction, and the measures of a fit.

Every function works row by row on the model's output, [n, K] (K = 1 for regression and binary), so
that sites can add up sums and counts and never send a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Outcome(Protocol):
    """A kind of target with its loss and its measures."""

    name: str

    @property
    def measure(self) -> str:
        """The name of the headline measure, larger is better: ``r2`` or ``accuracy``."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, [n]."""

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the row values [n] whose weighted means `summarise` needs."""

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``loss`` and the headline measure from the weighted means over rows."""

    def predict(self, output: Tensor) -> Tensor:
        """Return the prediction for each row: values [n], or class codes [n]."""


@dataclass(frozen=True)
class Squared:
    """A continuous target with the mean squared error, ``(output - y)²`` (no factor ½)."""

    name: str = "regression"
    measure: str = "r2"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output.squeeze(-1) - y) ** 2

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(output, y), "y": y, "y_squared": y * y}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss and R² = 1 - loss / variance of the target."""
        variance = (means["y_squared"] - means["y"] ** 2).clamp(min=1e-12)
        return {"loss": means["loss"], "r2": 1.0 - means["loss"] / variance}

    def predict(self, output: Tensor) -> Tensor:
        return output.squeeze(-1)


@dataclass(frozen=True)
class Logistic:
    """A binary target, codes 0 and 1, one logit, with the log-loss in nats."""

    name: str = "binary"
    measure: str = "accuracy"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        logit = output.squeeze(-1)
        return F.softplus(logit) - logit * y

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        correct = (self.predict(output) == y).to(output.dtype)
        return {"loss": self.loss(output, y), "accuracy": correct}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        return means

    def predict(self, output: Tensor) -> Tensor:
        return (output.squeeze(-1) > 0).long()


@dataclass(frozen=True)
class Softmax:
    """A target of K classes, codes 0..K-1, with the cross-entropy in nats."""

    name: str = "multiclass"
    measure: str = "accuracy"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        log_p = F.log_softmax(output, dim=-1)
        return -torch.gather(log_p, -1, y.unsqueeze(-1)).squeeze(-1)

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        correct = (self.predict(output) == y).to(output.dtype)
        return {"loss": self.loss(output, y), "accuracy": correct}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        return means

    def predict(self, output: Tensor) -> Tensor:
        return output.argmax(-1)


OUTCOMES: dict[str, Outcome] = {o.name: o for o in (Squared(), Logistic(), Softmax())}
