"""Several yes/no targets at once: the log-loss of each, over the labels of a row that are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.outcomes.base import ByRow


@dataclass(frozen=True)
class Multilabel(ByRow):
    """K = ``n_labels`` labels a row, codes 0 and 1, or -1 where a label is not known; K logits.

    The loss of a row is the sum, not the mean, of the log-losses of its known labels, in nats: the
    weights of a label have the gradient, the curvature and the ridge of a fit of that label alone,
    whatever K is, and only what labels share, the gates, looks at all of them. A row whose label is
    not known counts for that label as if it were not there.
    """

    n_labels: int = 2
    name: str = "multilabel"
    measure: str = "accuracy"

    @property
    def null_loss(self) -> float:
        """K log 2."""
        return self.n_labels * math.log(2.0)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the log-loss of each label of each row, [n, K], 0 where it is not known."""
        return torch.where(y >= 0, F.softplus(output) - output * y, 0.0)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self.losses(output, y).sum(-1)

    def slope(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.where(y >= 0, torch.sigmoid(output) - y, 0.0)

    def measures(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return, with ``_k`` of each label: whether it is known, is 1, is predicted, its loss."""
        known, losses = y >= 0, self.losses(output, y)
        right = (output > 0) == (y > 0)
        rows = {"loss": losses.sum(-1), "whole": (right | ~known).all(-1).to(output.dtype)}
        for name, values in {
            "known": known,
            "yes": y > 0,
            "right": right & known,
            "cross_entropy": losses,
        }.items():
            columns = values.to(output.dtype).unbind(-1)
            rows |= {f"{name}_{label}": column for label, column in enumerate(columns)}
        return rows

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return figures of each label, ``name_k``, and of all.

        ``accuracy``, ``cross_entropy`` and ``prevalence`` of a label are means over the rows that
        know it, NaN without one; of all, means over the labels. ``hamming_loss``: the share of the
        known labels that are predicted wrongly; ``subset_accuracy``: of the rows without a wrong
        one.
        """
        known, right = (self._by_label(means, name) for name in ("known", "right"))
        figures = {
            "loss": means["loss"],
            "subset_accuracy": means["whole"],
            "hamming_loss": 1.0 - right.sum(-1) / known.sum(-1),
        }
        for name, part in {
            "accuracy": "right",
            "cross_entropy": "cross_entropy",
            "prevalence": "yes",
        }.items():
            each = self._by_label(means, part) / known
            figures[name] = each.nanmean(-1)
            figures |= {f"{name}_{label}": each[..., label] for label in range(self.n_labels)}
        return figures

    def predict(self, output: Tensor) -> Tensor:
        """Return which labels are likelier than not, 0 or 1, [n, K]."""
        return (output > 0).long()

    def _by_label(self, means: dict[str, Tensor], name: str) -> Tensor:
        return torch.stack([means[f"{name}_{label}"] for label in range(self.n_labels)], -1)
