"""Ways to spread pooled rows over sites, for experiments whose data come without sites.

All are functions of (rows, seed) only. Site names are "site_1" ... "site_C"; a row keeps its id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsift.data.coding import has_classes
from fedsift.data.errors import DataError, counted
from fedsift.data.splitting import apportion
from fedsift.random import fold, key, normal, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from fedsift.data.federated import FederatedData

__all__ = ["affine_shift", "dirichlet_counts", "dirichlet_labels", "iid"]


def iid(data: FederatedData, n_sites: int, seed: int) -> FederatedData:
    """Deal rows out evenly: sizes differ by one at most, and so do a class's rows between sites.

    Raises:
        DataError: there are fewer rows than sites, or no site.

    """
    _check(data, n_sites)
    rank = uniform(key(seed, "partition iid"), (data.n_samples,), torch.float64).numpy()
    site = np.empty(data.n_samples, dtype=np.int64)
    site[np.lexsort((rank, data.strata.numpy()))] = np.arange(data.n_samples) % n_sites
    return data.with_sites(torch.from_numpy(site), _names(n_sites))


def dirichlet_labels(data: FederatedData, n_sites: int, alpha: float, seed: int) -> FederatedData:
    """Skew the classes: each class's rows are shared out by a Dirichlet draw of its own.

    A site that gets nothing takes one row from the largest site.

    Args:
        data: rows of a binary or multi-class outcome.
        n_sites: number of sites C, at most the number of rows.
        alpha: concentration, above 0; small is skewed, large is even.
        seed: number of the partition.

    Raises:
        DataError: the outcome is measured, alpha is not positive, or there are fewer rows than
        sites.

    Source: T.-M. H. Hsu, H. Qi & M. Brown, arXiv:1909.06335 (2019).

    """
    _check(data, n_sites)
    if not has_classes(data.outcome):
        raise DataError(f"the target '{data.target}' has no classes to skew; use dirichlet_counts")
    rank = uniform(key(seed, "partition labels"), (data.n_samples,), torch.float64).numpy()
    site = np.empty(data.n_samples, dtype=np.int64)
    for code in range(len(data.classes)):
        members = np.flatnonzero(data.y.numpy() == code)
        members = members[np.argsort(rank[members])]
        shares = _dirichlet(fold(key(seed, "partition labels shares"), code), n_sites, alpha)
        site[members] = np.repeat(np.arange(n_sites), apportion(len(members), shares))
    for empty in np.flatnonzero(np.bincount(site, minlength=n_sites) == 0):
        largest = np.flatnonzero(site == np.bincount(site).argmax())
        site[largest[np.argmax(rank[largest])]] = empty
    return data.with_sites(torch.from_numpy(site), _names(n_sites))


def dirichlet_counts(data: FederatedData, n_sites: int, alpha: float, seed: int) -> FederatedData:
    """Skew the sizes: one row a site, the others shared out by one Dirichlet draw.

    Args:
        data: any rows; they are shuffled.
        n_sites: number of sites C, at most the number of rows.
        alpha: concentration, above 0; small is skewed, large is even.
        seed: number of the partition.

    Raises:
        DataError: alpha is not positive, or there are fewer rows than sites.

    """
    _check(data, n_sites)
    rank = uniform(key(seed, "partition counts"), (data.n_samples,), torch.float64).numpy()
    shares = _dirichlet(key(seed, "partition counts shares"), n_sites, alpha)
    sizes = 1 + np.array(apportion(data.n_samples - n_sites, shares))
    site = np.empty(data.n_samples, dtype=np.int64)
    site[np.argsort(rank)] = np.repeat(np.arange(n_sites), sizes)
    return data.with_sites(torch.from_numpy(site), _names(n_sites))


def affine_shift(
    data: FederatedData, seed: int, scale: tuple[float, float] = (0.9, 1.1), offset: float = 0.1
) -> FederatedData:
    """Let each site measure in its own way: ``x <- a x + b``.

    ``a ~ U(scale)`` and ``b ~ N(0, offset^2)``, one pair a site, drawn from the seed and the
    site's name; y stays.
    """
    keys = torch.stack([key(seed, "affine shift", name) for name in data.sites])
    factors = scale[0] + (scale[1] - scale[0]) * uniform(fold(keys, 0), (), torch.float64)
    offsets = offset * normal(fold(keys, 1), (), torch.float64)
    shape = (-1, *(1 for _ in data.x.shape[1:]))
    a, b = (pair[data.site_of_row].reshape(shape) for pair in (factors, offsets))
    x = (data.x.double() * a + b).float()
    return replace(data, x=x if data.missing is None else x.masked_fill(data.missing, 0.0))


def _names(n_sites: int) -> list[str]:
    return [f"site_{number}" for number in range(1, n_sites + 1)]


def _check(data: FederatedData, n_sites: int) -> None:
    if not 1 <= n_sites <= data.n_samples:
        raise DataError(
            f"{counted(data.n_samples, 'row')} cannot be spread over {counted(n_sites, 'site')};"
            " ask for 1 to as many sites as there are rows"
        )


def _dirichlet(stream: Tensor, size: int, alpha: float) -> np.ndarray:
    """Draw from the symmetric Dirichlet distribution.

    Gamma variables as ``G(alpha) = G(alpha + 1) U^(1/alpha)`` in logarithms, because for a small
    alpha all of them would be 0 in floating point (L. Devroye, Non-Uniform Random Variate
    Generation, 1986, chapter IX.3).
    """
    from scipy.special import gammaincinv  # takes a moment to import

    if not alpha > 0:
        raise DataError(
            f"alpha is {alpha}; the concentration of a Dirichlet distribution must be positive"
        )
    first = uniform(fold(stream, 0), (size,), torch.float64).numpy()
    second = uniform(fold(stream, 1), (size,), torch.float64).numpy()
    logarithm = np.log(gammaincinv(alpha + 1, first)) + np.log(second) / alpha
    gamma = np.exp(logarithm - logarithm.max())
    return np.asarray(gamma / gamma.sum())
