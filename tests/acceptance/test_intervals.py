"""How often intervals hold what they should: of a sample split, and of the rows that chose.

120 rows at 4 sites, 120 features AR(1) with ρ = .5, of which 4 matter, with effects of ±.25 to
noise of deviation 1, so that a choice often goes wrong. One half of the rows chooses five features.
What an interval should hold is the projected effect Σ_SS⁻¹ Σ_S· w: that of the best model of the
chosen features on all rows that there could be.
"""

import numpy as np
import pytest

import fedsift
from fedsift.data import FederatedData, Standardiser
from fedsift.inference import estimate, halves
from fedsift.selection import t_quantile

D, TRUE, SIZE, RHO, KEPT, ROWS = 120, 4, 0.25, 0.5, 5, 120
COVARIANCE = RHO ** np.abs(np.subtract.outer(np.arange(D), np.arange(D)))


def drawn(seed: int) -> tuple[FederatedData, np.ndarray]:
    """Return rows, and the effects [D] of all features together."""
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(ROWS, D)) @ np.linalg.cholesky(COVARIANCE).T
    weights = np.zeros(D)
    weights[numbers.choice(D, TRUE, replace=False)] = SIZE * numbers.choice([-1.0, 1.0], TRUE)
    y = x @ weights + numbers.normal(size=ROWS)
    return FederatedData.from_arrays(x, y, sites=np.arange(ROWS) % 4), weights


def projected(weights: np.ndarray, chosen: list[int]) -> np.ndarray:
    return np.linalg.solve(COVARIANCE[np.ix_(chosen, chosen)], COVARIANCE[chosen] @ weights)


def held(rows: FederatedData, chosen: list[int], effects: np.ndarray) -> np.ndarray:
    """Return [m + 1] which effects are in their intervals, and whether all are in those for all."""
    found = estimate(rows.select_features(chosen))
    far = np.abs(found.effects[: len(chosen), 0].numpy() - effects)
    far /= found.errors[: len(chosen), 0].numpy()
    every = far <= t_quantile(0.025 / len(chosen), found.freedom)
    return np.append(far <= t_quantile(0.025, found.freedom), every.all())


def shares(hits: list[np.ndarray]) -> dict[str, float]:
    table = np.array(hits)
    return {"each": float(table[:, :-1].mean()), "all together": float(table[:, -1].mean())}


@pytest.mark.acceptance
def test_a_split_covers_and_the_rows_that_chose_do_not(figure):
    """The choice is that of the five largest correlations."""
    hits: dict[str, list[np.ndarray]] = {"sample split": [], "rows that chose": []}
    for seed in range(200):
        data, weights = drawn(seed)
        first, second = (half.pooled() for half in halves(data, seed))
        x, y = first.x.double().numpy(), first.y.double().numpy()
        strength = np.abs((x - x.mean(0)).T @ (y - y.mean())) / x.std(0)
        chosen = np.argsort(-strength)[:KEPT].tolist()
        hits["sample split"].append(held(second, chosen, projected(weights, chosen)))
        hits["rows that chose"].append(held(first, chosen, projected(weights, chosen)))
    found = {who: shares(table) for who, table in hits.items()}
    figure("interval_coverage_200_data_sets", found)
    assert 0.90 <= found["sample split"]["each"] <= 0.99
    assert found["sample split"]["all together"] >= 0.90
    assert found["rows that chose"]["each"] < found["sample split"]["each"] - 0.1


@pytest.mark.acceptance_long
def test_intervals_of_whole_fits(figure):
    """E-FLoPS chooses, by 3 seeds and 60 rounds; naive: the half that chose, by the same sums."""
    hits: dict[str, list[np.ndarray]] = {"sample split": [], "rows that chose": []}
    for seed in range(200):
        data, weights = drawn(seed)
        run = fedsift.fit(
            data, features=KEPT, seeds=3, splits=0, rounds=60, tuning_rounds=1, seed=seed,
            beside=(), intervals="split",
        )  # fmt: skip
        told = run.results["intervals"]["effects"]
        first, _ = halves(data, seed)
        units = Standardiser.fit(first, "feature")
        names = [effect["name"] for effect in told]
        chosen = [data.features.index(name) for name in names]
        effects = projected(weights, chosen) * units.scale[chosen].numpy()
        inside = [e["low"] <= w <= e["high"] for e, w in zip(told, effects, strict=True)]
        every = all(e["low_all"] <= w <= e["high_all"] for e, w in zip(told, effects, strict=True))
        hits["sample split"].append(np.array([*inside, every]))
        rows = units.apply(first)
        hits["rows that chose"].append(held(rows, chosen, effects / units.target_scale))
    found = {who: shares(table) for who, table in hits.items()}
    figure("interval_coverage_200_fits", found)
    assert 0.92 <= found["sample split"]["each"] <= 0.98
    assert found["rows that chose"]["each"] < found["sample split"]["each"] - 0.1
