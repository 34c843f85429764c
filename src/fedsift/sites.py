"""The rows of one site, as an algorithm sees them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedsift import random
from fedsift.problems import Batch


class SiteData(NamedTuple):
    """Rows of one site, padded with rows of weight 0 where an engine batches sites.

    Attributes:
        x: [n, ...]; y: [n], or [n, K] of labels; weight: [n].
        share: the site's weight in averages, its sample weight or 1.
        key: draws the batches; equal for all run seeds, so that seeds can share the products.
        role: [n] what each row is for (`FederatedData.role`), None where nothing is forgotten.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    share: Tensor
    key: Tensor
    role: Tensor | None = None

    def only(self, counted: Tensor) -> SiteData:
        """Return the rows with weight 0 for those that do not count, [n] bool, and a share less."""
        weight = self.weight * counted
        share = self.share * weight.sum() / self.weight.sum().clamp(min=1e-30)
        return self._replace(weight=weight, share=share)

    def part(self, role: int, key: Tensor) -> tuple[Batch, Tensor]:
        """Return the rows of a role, the others with weight 0, and the site's weight for them."""
        assert self.role is not None  # noqa: S101  algorithms that forget are given roles
        weight = self.weight * (self.role == role)
        share = self.share * weight.sum() / self.weight.sum().clamp(min=1e-30)
        return Batch(self.x, self.y, weight, key), share

    def batch(self, step: int, size: int | None, key: Tensor) -> Batch:
        """Return ``size`` rows drawn without replacement, or all rows (None, or a smaller site).

        Where few rows would be left out they get the weight 0 instead, which saves copying the
        others; rows keep their order.

        ``key`` is this step's, for the model's own randomness.
        """
        rows = self.x.shape[0]
        if size is None or size >= rows:
            return Batch(self.x, self.y, self.weight, key)
        draw = random.uniform(random.fold(self.key, step), (rows,), torch.float64)
        draw = torch.where(self.weight > 0, draw, draw + 1.0)
        drawn, row = torch.topk(draw, size, largest=False)
        if rows <= 2 * size:
            return Batch(self.x, self.y, self.weight * (draw <= drawn.max()), key)
        row = row.sort().values
        return Batch(self.x[row], self.y[row], self.weight[row], key, row)
