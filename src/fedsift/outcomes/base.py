"""What every outcome has: a loss and its slope, sums that measures are made of, predictions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

Sums = dict[str, tuple[Tensor, Tensor]]


def power_of_two(value: float) -> float:
    """Return the nearest power of two, by the ratio."""
    return float(2.0 ** round(math.log2(max(value, 2.0**-30))))


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return Σ w v / Σ w over the rows, 0 where no row has weight."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)


class Outcome(Protocol):
    """A kind of target with its loss and its measures."""

    @property
    def name(self) -> str:
        """The kind of target."""

    @property
    def measure(self) -> str:
        """The name of the headline measure, larger is better: ``r2``, ``accuracy``, ..."""

    @property
    def null_loss(self) -> float:
        """The loss of a model that knows nothing: the unit of what a feature explains."""

    @property
    def decomposable(self) -> bool:
        """Whether the loss is a mean over rows; else all rows of a site must be looked at."""

    @property
    def takes(self) -> bool:
        """Whether it takes `constants` from the training rows."""

    def mean_loss(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of rows of weights [n], per unit of weight."""

    def mean_slope(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the derivative of that in the output, [n, K]."""

    def sums(self, output: Tensor, y: Tensor, weight: Tensor) -> Sums:
        """Return {name: (weighted sum, weight)}, whose quotients `summarise` needs."""

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``loss`` and the headline measure from the weighted means over rows."""

    def constants(self, means: Mapping[str, float], unit: float) -> dict[str, float]:
        """Return the fields that the outcome takes from the training rows.

        ``means``: what `summarise` is given, of the model that knows nothing; ``unit``: by which
        the target was divided. Powers of two, so that splits have one loss, compiled once.
        """

    def predict(self, output: Tensor) -> Tensor:
        """Return the prediction for each row: values [n], or class codes [n]."""


class ByRow(Outcome, ABC):
    """An outcome whose loss is a mean over rows."""

    @property
    def decomposable(self) -> bool:
        return True

    @property
    def takes(self) -> bool:
        return False

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, [n]."""

    @abstractmethod
    def slope(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the derivative of each row's loss in its output, [n, K]."""

    @abstractmethod
    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the row values [n] whose weighted means `summarise` needs."""

    def mean_loss(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return weighted_mean(self.loss(output, y), weight)

    def mean_slope(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        share = weight / weight.sum().clamp(min=1e-12)
        return share.unsqueeze(-1) * self.slope(output, y)

    def sums(self, output: Tensor, y: Tensor, weight: Tensor) -> Sums:
        rows = self.measures(output, y)
        return {k: ((v * weight).sum(), weight.sum()) for k, v in rows.items()}

    def constants(self, means: Mapping[str, float], unit: float) -> dict[str, float]:  # noqa: ARG002
        return {}
