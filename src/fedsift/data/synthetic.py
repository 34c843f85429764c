"""Sparse linear regression with correlated features: the experiment whose answer is known."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsift.data.errors import DataError
from fedsift.data.federated import FederatedData
from fedsift.data.partition import affine_shift, dirichlet_counts
from fedsift.random import key, normal, uniform

__all__ = ["SyntheticRegression", "synthetic_regression"]


class SyntheticRegression(NamedTuple):
    """Training data over sites, test data of one site "test", and the true coefficients [d]."""

    train: FederatedData
    test: FederatedData
    coefficients: Tensor

    @property
    def support(self) -> frozenset[str]:
        """Names of the features that matter."""
        chosen = self.coefficients.nonzero().flatten().tolist()
        return frozenset(self.train.features[number] for number in chosen)


def synthetic_regression(
    *,
    n_samples: int = 400,
    n_features: int = 1000,
    n_informative: int = 50,
    snr: float = 20.0,
    correlation: float = 0.2,
    seed: int = 0,
    n_test: int = 5000,
    n_sites: int = 5,
    alpha: float = 2.0,
    shift: Literal["affine"] | None = None,
) -> SyntheticRegression:
    """Draw ``y = x'w + e`` with few features that matter and neighbours that correlate.

    ``x ~ N(0, S)``, ``S_ij = r^|i-j|``, ``w = +-1`` on a random support of m of d features;
    ``Var(e) = w'Sw / snr``, so that the best R2 on new rows is ``snr / (1 + snr)``, .952 by
    default. With the same seed and features a smaller training set is the beginning of a larger
    one.

    Args:
        n_samples: training rows N of all sites.
        n_features: features d, called "x0", "x1", ...
        n_informative: coefficients m that are not zero.
        snr: variance of the signal over that of the noise, above 0.
        correlation: r of neighbouring features, between -1 and 1.
        seed: number of the data set.
        n_test: test rows.
        n_sites: sites C of the training rows.
        alpha: concentration of the Dirichlet sample counts of the sites.
        shift: "affine" gives each training site its own scale and offset (`affine_shift`).

    Raises:
        DataError: a size, the correlation or the ratio is out of range.

    """
    if not (
        0 < n_informative <= n_features
        and abs(correlation) < 1
        and snr > 0
        and min(n_samples, n_test) > 1
    ):
        raise DataError(
            f"n_informative={n_informative} of n_features={n_features}, {correlation=}, {snr=},"
            f" {n_samples=}, {n_test=}; choose 1 <= n_informative <= n_features, |correlation| < 1,"
            " snr > 0 and two rows at least of each kind"
        )
    order = torch.argsort(uniform(key(seed, "synthetic support"), (n_features,), torch.float64))
    signs = 1.0 - 2.0 * (uniform(key(seed, "synthetic signs"), (n_informative,)) < 0.5).double()
    coefficients = torch.zeros(n_features, dtype=torch.float64)
    coefficients[order[:n_informative]] = signs
    position = torch.arange(n_features)
    covariance = (
        torch.tensor(correlation, dtype=torch.float64) ** (position[:, None] - position).abs()
    )
    noise = math.sqrt((coefficients @ covariance @ coefficients).item() / snr)

    def draw(part: str, count: int) -> FederatedData:
        x = _autoregressive(key(seed, "synthetic x", part), count, n_features, correlation)
        error = noise * normal(key(seed, "synthetic noise", part), (count,), torch.float64)
        y = x.double() @ coefficients + error
        return FederatedData.from_arrays(
            x, y, sites=[part] * count, outcome="regression", target="y"
        )

    train = dirichlet_counts(draw("train", n_samples), n_sites, alpha, seed)
    if shift == "affine":
        train = affine_shift(train, seed)
    return SyntheticRegression(train, draw("test", n_test), coefficients.float())


def _autoregressive(stream: Tensor, rows: int, columns: int, correlation: float) -> Tensor:
    """Draw rows of a stationary first-order process: ``x_j = r x_(j-1) + sqrt(1-r^2) z_j``."""
    x = normal(stream, (rows, columns), torch.float32).T.contiguous()
    x[1:] *= math.sqrt(1.0 - correlation**2)
    for column in range(1, columns):
        x[column] += correlation * x[column - 1]
    return x.T.contiguous()
