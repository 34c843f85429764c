"""Data sets by name, for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsift.data.digits import digits5000
from fedsift.data.golub import golub38, golub72
from fedsift.data.synthetic import SyntheticRegression, synthetic_regression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fedsift.data.federated import FederatedData

__all__ = ["NAMED"]

NAMED: Mapping[str, Callable[..., FederatedData | SyntheticRegression]] = {
    "digits": digits5000,
    "golub": golub38,
    "golub72": golub72,
    "synthetic": synthetic_regression,
}
"""Functions that make a data set; those of real data give one site, to be spread by a partition."""
