"""Counts with a logarithmic link: Poisson and negative binomial."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.outcomes.base import ByRow, power_of_two

LEAST_DISPERSION = 2.0**-6  # below it negative binomial counts are Poisson counts


@dataclass(frozen=True)
class Counts(ByRow):
    """Counts with a logarithmic link: the output is the logarithm of the expected count.

    The loss is half the deviance of a row, ≥ 0. With y and the mean divided by one unit it is that
    of the counts over the unit, so a standardised target (divided by its mean) changes nothing but
    the intercept.
    """

    name: str = "poisson"
    measure: str = "deviance_explained"
    null_loss: float = 0.5

    @property
    def takes(self) -> bool:
        return True

    @abstractmethod
    def saturated(self, y: Tensor) -> Tensor:
        """Return the part of the loss that depends on y alone."""

    @abstractmethod
    def remainder(self, log_mean: Tensor, y: Tensor) -> Tensor:
        """Return the rest of the loss, linear in y."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self.saturated(y) + self.remainder(output.squeeze(-1), y)

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        rows = {"loss": self.loss(output, y), "saturated": self.saturated(y)}
        return rows | {"y": y, "y_squared": y * y}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss and the share of the deviance from the mean count that is explained."""
        mean = means["y"].clamp(min=1e-12)
        null = means["saturated"] + self.remainder(mean.log(), mean)
        return {
            "loss": means["loss"],
            "deviance_explained": 1.0 - means["loss"] / null.clamp(min=1e-12),
        }

    def predict(self, output: Tensor) -> Tensor:
        """Return the expected counts, [n]."""
        return output.squeeze(-1).exp()


@dataclass(frozen=True)
class Poisson(Counts):
    """Counts whose variance is their mean: y log(y/μ) - y + μ."""

    def saturated(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y) - y

    def remainder(self, log_mean: Tensor, y: Tensor) -> Tensor:
        return log_mean.exp() - y * log_mean

    def slope(self, output: Tensor, y: Tensor) -> Tensor:
        return output.exp() - y.unsqueeze(-1)

    def constants(self, means: Mapping[str, float], unit: float) -> dict[str, float]:  # noqa: ARG002
        """Return the null loss by its second-order term, half the relative variance."""
        return {"null_loss": power_of_two(0.5 * relative_variance(means))}


@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """Counts of variance μ + αμ²: y log(y/μ) - (y + 1/α) log((1 + αy)/(1 + αμ)).

    Attributes:
        dispersion: α, times the unit of y where y was divided by one.
    """

    name: str = "negative_binomial"
    dispersion: float = 1.0

    def saturated(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y) - (y + 1.0 / self.dispersion) * torch.log1p(self.dispersion * y)

    def remainder(self, log_mean: Tensor, y: Tensor) -> Tensor:
        raised = F.softplus(log_mean + math.log(self.dispersion))
        return (y + 1.0 / self.dispersion) * raised - y * log_mean

    def slope(self, output: Tensor, y: Tensor) -> Tensor:
        y = y.unsqueeze(-1)
        share = torch.sigmoid(output + math.log(self.dispersion))
        return (y + 1.0 / self.dispersion) * share - y

    def constants(self, means: Mapping[str, float], unit: float) -> dict[str, float]:
        """Return α by moments, (variance - mean)/mean², and the null loss by second order.

        A wrong α changes how rows are weighed, not what the coefficients estimate: the mean model
        is right at any α (Gourieroux, Monfort & Trognon, 1984).
        """
        spread = relative_variance(means)
        dispersion = power_of_two(max(unit * spread - 1.0, LEAST_DISPERSION))
        null_loss = power_of_two(0.5 * spread / (1.0 + dispersion))
        return {"dispersion": dispersion, "null_loss": null_loss}


def relative_variance(means: Mapping[str, float]) -> float:
    """Return the variance of y over its squared mean."""
    return means["y_squared"] / means["y"] ** 2 - 1.0
