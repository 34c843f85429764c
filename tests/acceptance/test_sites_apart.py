"""Whether ``--validate leave-one-site-out`` names a site that stands apart, and no other.

300 rows of 20 features at 6 sites, 5 of them matter. Shifted: every site measures with a scale in
.9 to 1.1 and an offset of deviation .1 of its own (the affine shift of the synthetic experiment),
so that one site or other differs by more than the rest. Planted: at site_3 all features are 3 - x,
besides. Alike: rows are dealt out at random.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

import fedsift
from fedsift.data import FederatedData, affine_shift, iid, synthetic_regression

KNOBS: dict[str, Any] = {
    "features": 5, "seeds": 1, "splits": 4, "rounds": 40, "tuning_rounds": 40,
    "beside": (), "validation": "leave-one-site-out", "evaluate_every": 40,
}  # fmt: skip


def drawn(seed: int, *, shifted: bool = True, apart: bool = False) -> FederatedData:
    pooled = synthetic_regression(
        n_samples=300, n_features=20, n_informative=5, seed=seed, n_sites=1, n_test=2
    ).train
    data = iid(pooled, 6, seed)
    if shifted:
        data = affine_shift(data, seed)
    there = (data.site_of_row == data.sites.index("site_3")).unsqueeze(1)
    return replace(data, x=torch.where(there & apart, 3.0 - data.x, data.x))


def told(seed: int, **how: bool) -> dict[str, Any]:
    run = fedsift.fit(drawn(seed, **how), seed=seed, **KNOBS)
    found: dict[str, Any] = run.results["sites_held_out"]
    return found


@pytest.mark.acceptance_long
def test_the_site_that_was_shifted_is_named_and_no_other(figure):
    planted = [told(seed, apart=True) for seed in range(10)]
    shifted = [told(seed) for seed in range(20)]
    alike = [told(seed, shifted=False) for seed in range(20)]
    scores = [
        {
            "there": found["sites"]["site_3"]["score"],
            "others": sum(s["score"] for n, s in found["sites"].items() if n != "site_3") / 5,
        }
        for found in planted
    ]
    figure(
        "sites_apart",
        {
            "named_site_3_of_10": sum(found["shifted"] == ["site_3"] for found in planted),
            "named_any_of_20_alike": sum(bool(found["shifted"]) for found in alike),
            "named_any_of_20_shifted": sum(bool(found["shifted"]) for found in shifted),
            "r2_there": sum(s["there"] for s in scores) / 10,
            "r2_at_others": sum(s["others"] for s in scores) / 10,
        },
    )
    assert sum(found["shifted"] == ["site_3"] for found in planted) >= 9
    assert sum(bool(found["shifted"]) for found in alike) <= 2


@pytest.mark.acceptance_long
def test_of_leukaemias_dealt_to_sites_few_stand_apart(figure):
    """Ten times dealt out at random to five sites of seven or eight patients."""
    knobs = KNOBS | {"features": 3, "seeds": 4, "rounds": 60, "standardise": "array"}
    named = []
    for seed in range(10):
        data = iid(fedsift.data.golub38(), 5, seed)
        named.append(fedsift.fit(data, seed=seed, **knobs).results["sites_held_out"]["shifted"])
    figure("sites_apart_golub_named_of_10", named)
    assert sum(map(bool, named)) <= 2
