"""Numbers and classes: squared error, logistic and softmax loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.outcomes.base import ByRow


@dataclass(frozen=True)
class Squared(ByRow):
    """A continuous target in standard units with the squared error, ``(output - y)²`` (no ½)."""

    name: str = "regression"
    measure: str = "r2"
    null_loss: float = 1.0

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output.squeeze(-1) - y) ** 2

    def slope(self, output: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (output - y.unsqueeze(-1))

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(output, y), "y": y, "y_squared": y * y}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss and R² = 1 - loss / variance of the target."""
        variance = (means["y_squared"] - means["y"] ** 2).clamp(min=1e-12)
        return {"loss": means["loss"], "r2": 1.0 - means["loss"] / variance}

    def predict(self, output: Tensor) -> Tensor:
        return output.squeeze(-1)


@dataclass(frozen=True)
class Logistic(ByRow):
    """A binary target, codes 0 and 1, one logit, with the log-loss in nats."""

    name: str = "binary"
    measure: str = "accuracy"
    null_loss: float = math.log(2.0)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        logit = output.squeeze(-1)
        return F.softplus(logit) - logit * y

    def slope(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(output) - y.unsqueeze(-1)

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        correct = (self.predict(output) == y).to(output.dtype)
        return {"loss": self.loss(output, y), "accuracy": correct}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        return means

    def predict(self, output: Tensor) -> Tensor:
        return (output.squeeze(-1) > 0).long()


@dataclass(frozen=True)
class Softmax(ByRow):
    """A target of K = ``n_classes`` classes, codes 0..K-1, with the cross-entropy in nats."""

    n_classes: int = 2
    name: str = "multiclass"
    measure: str = "accuracy"

    @property
    def null_loss(self) -> float:
        """Log K."""
        return math.log(self.n_classes)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        log_p = F.log_softmax(output, dim=-1)
        return -torch.gather(log_p, -1, y.unsqueeze(-1)).squeeze(-1)

    def slope(self, output: Tensor, y: Tensor) -> Tensor:
        chosen = torch.arange(output.shape[-1], device=output.device) == y.unsqueeze(-1)
        return torch.softmax(output, -1) - chosen.to(output.dtype)

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        correct = (self.predict(output) == y).to(output.dtype)
        return {"loss": self.loss(output, y), "accuracy": correct}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        return means

    def predict(self, output: Tensor) -> Tensor:
        return output.argmax(-1)
