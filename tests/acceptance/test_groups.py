"""A pathway of weak effects is found by gates of pathways, where gates of features miss most."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.data import FederatedData

SIZE, PATHWAYS, EFFECT = 20, 50, 0.2


def drawn(seed: int, n: int = 160) -> tuple[FederatedData, dict[str, list[str]], str]:
    """Make 160 rows at five sites with 50 pathways of 20 features, one of which matters.

    Each of its features has an effect of ±.2 on a target of variance 1.8: z = 1.9 on the mean in a
    sum over all rows, where the largest of 980 others is at 3.3.
    """
    draw = np.random.default_rng(seed)
    x, planted = draw.normal(size=(n, SIZE * PATHWAYS)), int(draw.integers(PATHWAYS))
    own = slice(planted * SIZE, (planted + 1) * SIZE)
    y = EFFECT * x[:, own] @ draw.choice([-1.0, 1.0], SIZE) + draw.normal(size=n)
    names = [f"g{i}" for i in range(SIZE * PATHWAYS)]
    groups = {f"p{k}": names[k * SIZE : (k + 1) * SIZE] for k in range(PATHWAYS)}
    sites = [f"site {row % 5}" for row in range(n)]
    return FederatedData.from_arrays(x, y, sites=sites, features=names), groups, f"p{planted}"


def found(data_sets: range) -> Iterator[dict[str, float]]:
    """Tell whether the pathway is the one of 50 chosen, and its features among 20 single ones."""
    knobs: Any = {"seeds": 2, "rounds": 100, "splits": 0, "beside": (), "tuning_rounds": 10}
    for seed in data_sets:
        data, groups, planted = drawn(seed)
        (group,) = fedsift.fit(data, features=1, groups=groups, **knobs).results["groups"]
        single = fedsift.fit(data, features=SIZE, **knobs).features
        yield {
            "pathway": float(group["name"] == planted),
            "single": float(sum(f.name in groups[planted] for f in single)),
        }


def check(counts: list[dict[str, float]]) -> dict[str, float]:
    mean = {name: float(np.mean([one[name] for one in counts])) for name in counts[0]}
    assert mean["pathway"] >= 0.9
    assert mean["single"] < SIZE / 2
    return mean


@pytest.mark.acceptance
def test_a_planted_pathway_is_found(figure) -> None:
    """One data set, in CI."""
    mean = check(list(found(range(1))))
    figure("pathway found, and its 20 features by single gates, eflops, 1 data set", mean)


@pytest.mark.acceptance
@pytest.mark.acceptance_long
def test_a_planted_pathway_is_found_in_more_data_sets(figure) -> None:
    mean = check(list(found(range(10))))
    figure("pathway found, and its 20 features by single gates, eflops, 10 data sets", mean)
