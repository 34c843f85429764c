"""Rows in the units of their own site: what differs between sites by an offset or a factor goes.

A site's instruments may measure each feature with an offset and a scale of their own. Taking the
site's own mean off, and dividing by its own deviation, removes both. A site does so by itself: it
tells neither, and nothing of it is in a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from fedsift.data.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from fedsift.data.federated import FederatedData

__all__ = ["Harmonise", "check_table", "own_units"]

Harmonise = Literal["location", "location-scale"]

_NEGLIGIBLE = 1e-6  # a deviation over the largest value that counts as rounding, in float32


def check_table(data: FederatedData) -> None:
    """Refuse rows that cannot be brought to the units of their site.

    Raises:
        DataError: they are not lists of features, or values are missing.
    """
    if not data.features:
        raise DataError("the rows of this data set have no features to harmonise; leave it out")
    if data.missing is not None:
        raise DataError(
            "missing values are filled with means over the sites, and harmonised rows have none in"
            " common; remove such rows or columns, and leave out impute"
        )


def own_units(x: Tensor, weight: Tensor, how: Harmonise) -> Tensor:
    """Return the rows [n, d] of one site less their weighted mean.

    With "location-scale" also divided by the weighted deviation (divisor: the sum of the weights);
    a feature that is constant at the site becomes 0 in both.
    """
    share, values = weight.double() / weight.double().sum(), x.double()
    centred = values - share @ values
    deviation = (share @ centred.square()).sqrt()
    known = deviation > _NEGLIGIBLE * values.abs().amax(0)
    scale = deviation if how == "location-scale" else torch.ones_like(deviation)
    return torch.where(known, centred / torch.where(known, scale, 1.0), 0.0).to(x.dtype)
