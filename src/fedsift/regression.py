"""Solvers of sparse regression that need sums over all rows, or the rows themselves.

For squared errors all that matters of the rows are the sums Σw, Σwx, Σwy, Σw xxᵀ and Σw xy.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from fedsift.data.errors import counted

Array = NDArray[np.float64]
NEGLIGIBLE = 1e-6  # an eigenvalue over the largest that counts as rounding, in sums of float32


def check_abess() -> None:
    """Refuse to begin without the best-subset solver.

    Raises:
        ValueError: abess is not installed; the text says how to install it.
    """
    if find_spec("abess") is None:
        msg = "the best-subset solver abess is not installed; pip install 'fedsift[oneshot]'"
        raise ValueError(msg)


@dataclass(frozen=True)
class Moments:
    """Weighted means over rows: ``x`` [d] and ``y`` of the values, ``xx`` [d, d], ``xy`` [d]."""

    x: Array
    y: float
    xx: Array
    xy: Array

    @classmethod
    def of_rows(cls, x: Array, y: Array, weight: Array | None = None) -> Moments:
        """Return the moments of rows [n, d] and targets [n]."""
        share = np.full(len(y), 1.0 / len(y)) if weight is None else weight / weight.sum()
        return cls(share @ x, float(share @ y), (x.T * share) @ x, x.T @ (share * y))

    def centred(self) -> tuple[Array, Array]:
        """Return the covariance matrix [d, d] and the covariances with y [d]."""
        return self.xx - np.outer(self.x, self.x), self.xy - self.x * self.y

    def intercept(self, weights: Array) -> float:
        """Return ȳ - x̄ᵀw, the best intercept for given weights."""
        return self.y - float(self.x @ weights)


def pseudo_rows(gram: Array, xy: Array) -> tuple[Array, Array]:
    """Return rows X̃ and targets ỹ with X̃ᵀX̃ = ``gram`` and X̃ᵀỹ = ``xy``.

    With the eigendecomposition QΛQᵀ of the matrix, X̃ = √Λ Qᵀ and ỹ = Λ^-½ Qᵀ xy: as many rows as
    the rank. ‖ỹ - X̃w‖² differs from the squared error of the real rows by a constant.
    """
    values, vectors = np.linalg.eigh(gram)
    real = values > NEGLIGIBLE * values[-1]
    root = np.sqrt(values[real])
    return root[:, None] * vectors[:, real].T, (vectors[:, real].T @ xy) / root


def best_subset(
    moments: Moments, kept: int, rows: float = 1.0, covariates: int = 0
) -> tuple[Array, float]:
    """Return the weights [d] of the best ``kept`` features by abess, and the intercept.

    The better of two searches by their squared error: one that begins at ``kept`` features, one
    that adds one after the other from half of them on. All features may be exchanged in every step
    (abess's shortcuts, which look at a few, find fewer of the true ones).

    Args:
        moments: of the rows.
        kept: features to keep.
        rows: their number, for abess judges a gain by the sum of squares.
        covariates: the last columns that stay in besides, by what is left of the others and of y
            without them (Frisch and Waugh, 1933).

    Raises:
        ValueError: abess is not installed.

    Source: Zhu et al., "A polynomial algorithm for best-subset selection", PNAS 117 (2020).
    """
    check_abess()
    from abess import LinearRegression

    if covariates:
        return _beside_covariates(moments, kept, rows, covariates)
    gram, xy = moments.centred()
    x, y = pseudo_rows(rows * gram, rows * xy)
    found = []
    for sizes in ([kept], range(max(1, kept // 2), kept + 1)):
        # A negligible price of a feature, so that of a path the largest set is returned.
        solver = LinearRegression(
            support_size=sizes, fit_intercept=False, ic_coef=1e-9, exchange_num=kept,
            important_search=0, max_iter=100,
        )  # fmt: skip
        solver.fit(x, y)
        found.append(np.asarray(solver.coef_, dtype=np.float64))
    weights = min(found, key=lambda w: float(w @ gram @ w - 2.0 * xy @ w))
    return weights, moments.intercept(weights)


def _beside_covariates(
    moments: Moments, kept: int, rows: float, covariates: int
) -> tuple[Array, float]:
    """Return the weights of the best features on what covariates leave, and those of both."""
    gram, xy = moments.centred()
    own, stay = slice(None, -covariates), slice(-covariates, None)
    inverse = np.linalg.pinv(gram[stay, stay], rcond=NEGLIGIBLE, hermitian=True)
    of_features, of_target = inverse @ gram[stay, own], inverse @ xy[stay]
    left = gram[own, own] - gram[own, stay] @ of_features
    zero = np.zeros(len(left))
    rest = Moments(zero, 0.0, left, xy[own] - gram[own, stay] @ of_target)
    weights, _ = best_subset(rest, kept, rows)
    weights = np.concatenate([weights, of_target - of_features @ weights])
    return weights, moments.intercept(weights)


def ridge_on(moments: Moments, support: NDArray[np.bool_], ridge: float) -> tuple[Array, float]:
    """Return the weights [d] of least squares + ``ridge``/2 ‖w‖² on a support, and the intercept.

    The loss is the mean of (y - ŷ)², without ½, as everywhere here.
    """
    gram, xy = moments.centred()
    inside = np.ix_(support, support)
    weights = np.zeros(len(xy))
    penalty = 0.5 * ridge * np.eye(int(support.sum()))
    weights[support] = np.linalg.solve(gram[inside] + penalty, xy[support])
    return weights, moments.intercept(weights)


def lasso(x: Array, y: Array, kept: int, weight: Array | None = None) -> tuple[Array, float]:
    """Return the ``kept`` largest weights [d] of a cross-validated lasso on rows, and an intercept.

    Five folds, 50 penalties, each column as it comes: standardise first.

    Raises:
        ValueError: there are fewer rows than folds.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LassoCV

    if len(y) < 5:
        msg = f"a lasso with five folds needs 5 rows; there {counted(len(y), 'row')}"
        raise ValueError(msg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit = LassoCV(cv=5, alphas=50).fit(x, y, sample_weight=weight)
    weights = np.asarray(fit.coef_, dtype=np.float64)
    weights[np.argsort(-np.abs(weights), kind="stable")[kept:]] = 0.0
    share = np.full(len(y), 1.0 / len(y)) if weight is None else weight / weight.sum()
    return weights, float(share @ y - (share @ x) @ weights)
