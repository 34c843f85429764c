"""The share of false features that decoys let in, over simulated data sets.

N = 300 rows at 5 sites of uneven size and unlike means, d = 150, k = 15 true features of size .25
to noise 1, independent or AR(1) with ρ = .5. E-FLoPS with 3 seeds and 100 rounds on features and
decoys together, all data sets of a batch as lanes of one run; nominal share .1. Beside it a plain
filter with Gaussian knockoffs of the pooled rows.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedsift import decoys
from fedsift.algorithms import EFLoPS
from fedsift.channels import Lossless
from fedsift.controlled import by_decoys, importance
from fedsift.data import FederatedData, Standardiser
from fedsift.experiments.lanes import by_part, train_side_by_side
from fedsift.linear_problems import linear_problem

N, D, TRUE, SIZE, LEVEL = 300, 150, 15, 0.25, 0.1
KEPT, SEEDS, ROUNDS = 30, 3, 100


@dataclass(frozen=True)
class Drawn:
    rows: FederatedData
    true: np.ndarray


def draw(seed: int, rho: float) -> Drawn:
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((N, D))
    for j in range(1, D):
        x[:, j] = rho * x[:, j - 1] + np.sqrt(1 - rho**2) * x[:, j]
    weights = np.zeros(D)
    true = numbers.choice(D, TRUE, replace=False)
    weights[true] = SIZE * numbers.choice([-1.0, 1.0], TRUE)
    y = x @ weights + numbers.standard_normal(N)
    site = np.arange(N) * 7 % 30 // 6 if seed % 2 else np.arange(N) ** 2 % 97 // 20
    data = FederatedData.from_arrays(
        x + 0.1 * site[:, None], y, sites=[f"s{c}" for c in site], outcome="regression"
    )
    return Drawn(Standardiser.fit(data, "feature").apply(data), weights != 0)


def errors(chosen: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Return the share of false features among the chosen, and of true ones that are found."""
    return float((chosen & ~true).sum() / max(1, chosen.sum())), float(
        (chosen & true).mean() / true.mean()
    )


def by_fedsift(batch: list[Drawn], how: decoys.How) -> list[np.ndarray]:
    """Return what is chosen of every data set."""
    parts = [decoys.apply(d.rows, decoys.learn(d.rows, how, k)) for k, d in enumerate(batch)]
    names = tuple(f"c{j}" for j in range(2 * D))
    parts = [replace(part, features=names) for part in parts]
    run = train_side_by_side(
        linear_problem(parts[0]),
        parts,
        EFLoPS(density=KEPT / (2 * D), rounds=ROUNDS),
        seeds=SEEDS,
        participation=1.0,
        channel=Lossless(),
    )
    return [
        by_decoys(
            importance(found["params"]["weight"], decoys.places(k, D)), LEVEL, "knockoff+"
        ).support.numpy()
        > 0
        for k, found in enumerate(by_part(run, len(parts)))
    ]


def by_pooled_knockoffs(drawn: Drawn, seed: int) -> np.ndarray:
    """Return the choice by equicorrelated Gaussian knockoffs, a lasso, and W = |b| - |b̃|."""
    from sklearn.covariance import LedoitWolf
    from sklearn.linear_model import LassoCV

    x, y = drawn.rows.x.double().numpy(), drawn.rows.y.numpy()
    covariance = LedoitWolf().fit(x).covariance_
    s = min(1.0, 2 * np.linalg.eigvalsh(covariance)[0]) * 0.99 * np.eye(D)
    mix = np.linalg.solve(covariance, s)
    noise = np.random.default_rng(seed).standard_normal(x.shape)
    copy = x - x @ mix + noise @ np.linalg.cholesky(2 * s - s @ mix).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = LassoCV(cv=5, alphas=20, eps=0.03).fit(np.hstack([x, copy]), y).coef_
    w = np.abs(found[:D]) - np.abs(found[D:])
    return by_decoys(torch.from_numpy(w), LEVEL, "knockoff+").support.numpy() > 0


def realised(count: int, rho: float, how: decoys.How = "gaussian", *, pooled: bool = False):
    """Return {who: (mean share of false ones, mean share found)} over ``count`` data sets."""
    sums: dict[str, list[tuple[float, float]]] = {"fedsift": [], "pooled": []}
    for first in range(0, count, 20):
        batch = [draw(seed, rho) for seed in range(first, min(count, first + 20))]
        for drawn, chosen in zip(batch, by_fedsift(batch, how), strict=True):
            sums["fedsift"].append(errors(chosen, drawn.true))
        for k, drawn in enumerate(batch if pooled else []):
            sums["pooled"].append(errors(by_pooled_knockoffs(drawn, first + k), drawn.true))
    return {who: tuple(np.mean(pairs, 0).round(3).tolist()) for who, pairs in sums.items() if pairs}


@pytest.mark.acceptance
def test_few_data_sets_in_every_run(figure):
    found = realised(20, 0.5)
    figure("fdr_quick", found)
    false, power = found["fedsift"]
    assert false <= 0.12
    assert power >= 0.3


@pytest.mark.acceptance_long
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_share_of_false_features_is_what_was_asked(rho, figure):
    """200 data sets. Permuted decoys are reported beside: they are for independent features."""
    found = realised(200, rho, pooled=True)
    permuted = realised(200, rho, "permuted")["fedsift"]
    figure(f"fdr_rho_{rho:g}", found | {"permuted": permuted})
    assert found["fedsift"][0] <= 0.12
    assert found["fedsift"][1] >= 0.3
