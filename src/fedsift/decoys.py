"""Decoys: a copy of every feature that says nothing of the target, to count false choices by.

A method that chooses among features and decoys takes as many decoys as features that do not
matter, if swapping one of those with its decoy changes nothing in distribution. Sites make decoys
of their own rows; nothing but sums over rows leaves them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from fedsift import random
from fedsift.data import DataError, FederatedData, RemoteData
from fedsift.data.standardise import per_unit

__all__ = ["Decoys", "How", "apply", "check", "join", "learn", "places", "site_moments"]

How = Literal["gaussian", "permuted"]
MOST: Final = 500  # features of Gaussian decoys: d² numbers travel from every site
SWEEPS: Final = 30
_PRECISION: Final = 1e-6


class Decoys(NamedTuple):
    """How decoys are made: by rule ``how``, from ``seed``.

    ``tensors`` of Gaussian ones, float64: ``scale`` [d] the deviation of a feature inside the
    sites, ``mix`` [d, d] and ``root`` [d, d] of `gaussian`.
    """

    how: How
    seed: int
    tensors: dict[str, Tensor]


def check(data: FederatedData, how: How) -> None:
    """Refuse data that have no decoys.

    Raises:
        DataError: the rows are no lists of features, or there are too many for Gaussian decoys.
    """
    if not data.features:
        raise DataError("decoys are made of features; the rows of these data are no lists of them")
    if how == "gaussian" and data.n_features > MOST:
        raise DataError(
            f"Gaussian decoys of {data.n_features} features need the sums over all pairs of them"
            f" (at most {MOST} features); choose fewer columns first, or decoys='permuted', which"
            " are right for features without correlations alone"
        )


def learn(data: FederatedData, how: How, seed: int) -> Decoys:
    """Return how decoys of these rows are made.

    Gaussian ones are second-order knockoffs (Candès, Fan, Janson & Lv, 2018, section 3.4) of the
    rows given their site: with the rows' correlations R inside the sites, shrunk, and s of
    `least_reconstructable`, in units of the deviations around the site's mean,

        x̃ = x - x R⁻¹ diag(s) + u L',   u ~ N(0, I),   L L' = 2 diag(s) - diag(s) R⁻¹ diag(s)

    so that swapping any features with their decoys leaves means and covariances as they are; for
    Gaussian rows and a known R, the distribution. Sites give two sums: of squares, then of products
    over pairs. Permuted decoys are the site's rows in another order. They keep the correlations
    among themselves and have none with the features, which is right only if features have none.

    Raises:
        DataError: see `check`.
    """
    check(data, how)
    if how == "permuted":
        return Decoys(how, seed, {})
    ask = data.moments if isinstance(data, RemoteData) else partial(site_moments, data)
    first = ask(None)
    scale = (first["squares"].sum(0) / first["rows"].sum()).sqrt()
    second = ask(scale)
    total = {name: value.sum(0) for name, value in second.items()}
    correlation = shrunk(total["products"], total["fourth"], total["rows"])
    spread = least_reconstructable(correlation)
    mix = torch.linalg.solve(correlation, torch.diag(spread))
    rest = 2.0 * torch.diag(spread) - spread.unsqueeze(1) * mix
    return Decoys(how, seed, {"scale": scale, "mix": mix, "root": _root(rest)})


def site_moments(data: FederatedData, scale: Tensor | None) -> dict[str, Tensor]:
    """Return what each of C sites says of its rows around its own mean, float64 [C, ...].

    ``rows`` [C] less one, and ``squares`` [C, d]; with ``scale`` [d], in these units, ``products``
    [C, d, d] and the sum of fourth powers of the rows' lengths, ``fourth`` [C].
    """
    said: list[dict[str, Tensor]] = []
    for rows in data.slices:
        x, unit = _centred(data.x[rows]), data.x.new_ones((), dtype=torch.float64)
        own = {"rows": (len(x) - 1) * unit}
        if scale is None:
            own["squares"] = x.square().sum(0)
        else:
            z = per_unit(x, scale)
            own |= {"products": z.T @ z, "fourth": z.square().sum(1).square().sum()}
        said.append(own)
    return {name: torch.stack([own[name] for own in said]) for name in said[0]}


def shrunk(products: Tensor, fourth: Tensor, rows: Tensor) -> Tensor:
    """Return correlations [d, d] that can be inverted: (1 - λ) R + λ I.

    R = products / rows; λ = min(1, b²/‖R - I‖²) with b² = (Σ ‖z‖⁴ - rows ‖R‖²) / rows², which makes
    the expected squared error least.

    Source: Ledoit & Wolf, "A well-conditioned estimator", J. Multivariate Anal. 88 (2004), with
    the unit matrix as target.
    """
    unit = torch.eye(len(products), dtype=products.dtype)
    sample = products / rows
    sample = sample + torch.diag(1.0 - sample.diagonal())  # of constant features, too
    noise = (fourth - rows * sample.square().sum()) / rows.square()
    apart = (sample - unit).square().sum().clamp(min=1e-300)
    weight = (noise / apart).clamp(_PRECISION, 1.0)
    return (1.0 - weight) * sample + weight * unit


def least_reconstructable(correlation: Tensor) -> Tensor:
    """Return s [d] that makes features hardest to tell from the others and all decoys.

    Minimises Σ_j 1/s_j + tr (2R - diag(s))⁻¹, half the trace of the inverse covariance of features
    and decoys together, one s_j at a time: with D = (2R - diag(s))⁻¹, c = ‖D_j‖² and e = D_jj the
    best change is (1 - √c s_j)/(√c + e).

    Source: Spector & Janson, "Powerful knockoffs via minimizing reconstructability", Annals of
    Statistics 50 (2022), the objective of theirs called MVR.
    """
    smallest = float(torch.linalg.eigvalsh(correlation)[0])
    spread = torch.full((len(correlation),), smallest, dtype=correlation.dtype)
    for _ in range(SWEEPS):
        inverse = torch.linalg.inv(2.0 * correlation - torch.diag(spread))
        before = spread.clone()
        for j in range(len(spread)):
            column = inverse[:, j].clone()
            length, own = float(column.norm()), float(column[j])
            change = (1.0 - length * float(spread[j])) / (length + own)
            spread[j] += change
            inverse.addr_(column, column, alpha=change / (1.0 - change * own))
        if float((spread - before).abs().max()) < 1e-3:
            break
    return spread


def apply(data: FederatedData, decoys: Decoys) -> FederatedData:
    """Return the data with a decoy beside every feature, 2d features in the order of `places`."""
    if isinstance(data, RemoteData):
        return data.with_decoys(decoys.how, decoys.seed, decoys.tensors, names(data, decoys.seed))
    return join(data, decoys)


def join(data: FederatedData, decoys: Decoys) -> FederatedData:
    """Return what `apply` does, of rows that are here."""
    copies = []
    for site, rows in zip(data.sites, data.slices, strict=True):
        x, key = data.x[rows], random.fold(random.key(decoys.seed, "decoys"), site)
        gauss = decoys.how == "gaussian"
        copies.append(gaussian(x, key, **decoys.tensors) if gauss else permuted(x, key))
    both = torch.cat([data.x, torch.cat(copies).to(data.x.dtype)], 1)
    order = places(decoys.seed, data.n_features).flatten().argsort()
    x = both[:, order]
    return replace(data, x=x, features=names(data, decoys.seed), missing=None)


def names(data: FederatedData, seed: int) -> tuple[str, ...]:
    """Return the names of the 2d features."""
    both = [*data.features, *(f"{name} (decoy)" for name in data.features)]
    order = places(seed, data.n_features).flatten().argsort()
    return tuple(both[place] for place in order.tolist())


def places(seed: int, features: int) -> Tensor:
    """Return where the features and their decoys are among the 2d columns, [2, d].

    One is in column j and the other in d + j, as a coin says: so that a method which prefers
    earlier columns, or breaks ties by position, prefers neither.
    """
    coins = random.uniform(random.fold(random.key(seed, "decoys"), "coins"), (features,))
    first = torch.arange(features) + features * (coins < 0.5)
    return torch.stack([first, (first + features) % (2 * features)])


def gaussian(x: Tensor, key: Tensor, *, scale: Tensor, mix: Tensor, root: Tensor) -> Tensor:
    """Return Gaussian decoys of one site's rows [n, d], float64; see `learn`."""
    centred = _centred(x)
    z = per_unit(centred, scale)
    noise = random.normal(key, tuple(x.shape), torch.float64)
    return (x.double() - centred) + scale * (z - z @ mix + noise @ root.T)


def permuted(x: Tensor, key: Tensor) -> Tensor:
    """Return one site's rows [n, d] in another order."""
    return x[random.uniform(key, (len(x),), torch.float64).argsort()]


def _centred(x: Tensor) -> Tensor:
    x = x.double()
    return x - x.mean(0)


def _root(matrix: Tensor) -> Tensor:
    """Return L with L Lᵀ = a matrix that is semidefinite to rounding."""
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
    root: Tensor = vectors * values.clamp(min=0.0).sqrt()
    return root
