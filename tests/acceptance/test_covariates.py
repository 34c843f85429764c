"""Features that follow a covariate alone are chosen without it, and are not with it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.data import FederatedData

TRUE, BLOCK, KEPT = 20, 100, 30


def drawn(seed: int, n: int = 200, d: int = 1000) -> FederatedData:
    """Make 200 rows at five sites: y = 2 z + Σ of 20 features + noise, all of variance 1.

    The covariate z is measured, too. 100 other features have no effect but a correlation of .6 with
    z: x = .6 z + .8 e. The rest is noise.
    """
    draw = np.random.default_rng(seed)
    z, x = draw.normal(size=n), draw.normal(size=(n, d))
    block = slice(TRUE, TRUE + BLOCK)
    x[:, block] = 0.6 * z[:, None] + 0.8 * x[:, block]
    y = 2.0 * z + x[:, :TRUE].sum(1) + draw.normal(size=n)
    names = [f"true {i}" for i in range(TRUE)] + [f"block {i}" for i in range(BLOCK)]
    names += [f"noise {i}" for i in range(d - TRUE - BLOCK)]
    sites = [f"site {row % 5}" for row in range(n)]
    return FederatedData.from_arrays(
        np.column_stack([x, z]), y, sites=sites, features=[*names, "z"]
    )


def found(method: str, data_sets: range, **knobs: Any) -> Iterator[dict[str, int]]:
    """Count what is chosen without z (it is not there) and with it as a covariate."""
    for seed in data_sets:
        data, counts = drawn(seed), {}
        for name, rows in {
            "without": data.select_features(data.features[:-1]),
            "with": data.with_covariates(["z"]),
        }.items():
            run = fedsift.fit(
                rows, method=method, features=KEPT, splits=0, beside=(), tuning_rounds=20, **knobs
            )
            for kind in ("true", "block"):
                counts[f"{kind} {name}"] = sum(f.name.startswith(kind) for f in run.features)
        yield counts


def check(counts: list[dict[str, int]]) -> dict[str, float]:
    mean = {name: float(np.mean([one[name] for one in counts])) for name in counts[0]}
    assert mean["block with"] <= 0.5 * mean["block without"]
    assert mean["true with"] >= mean["true without"]
    return mean


@pytest.mark.acceptance
def test_a_covariate_keeps_what_follows_it_out(figure) -> None:
    """One data set, few seeds and rounds, in CI."""
    mean = check(list(found("eflops", range(1), seeds=2, rounds=100)))
    figure("confounding, eflops, 1 data set: of 30 features", mean)


@pytest.mark.acceptance
@pytest.mark.acceptance_long
def test_a_covariate_keeps_what_follows_it_out_of_more_data_sets(figure) -> None:
    mean = check(list(found("eflops", range(5), seeds=8)))
    figure("confounding, eflops, 5 data sets: of 30 features", mean)
