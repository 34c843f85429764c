"""Two hostile sites of ten: what the mean does with them, and what robust rules do.

The synthetic task (d = 1000, m = 50) with N = 1000 rows at ten sites, all weighing the same;
E-FLoPS with whole messages, its ensemble over four seeds, and the refit, all under the same attack.
"""

from dataclasses import replace

import pytest
import torch

from fedsift import random, trees
from fedsift.aggregation import AGGREGATORS
from fedsift.algorithms import EFLoPS, Tuning
from fedsift.data import Standardiser, synthetic_regression
from fedsift.evaluation import evaluate
from fedsift.linear_problems import linear_problem
from fedsift.recovery import TrainingError
from fedsift.robust import MultiKrum
from fedsift.selection import ensemble_support
from fedsift.training import train

KEPT, HOSTILE, SEEDS = 50, 2, 4
ATTACKS = ("none", "sign flip", "scaled", "Gaussian", "label flip")
RULES = ("mean", "median", "trimmed_mean", "geometric_median", "multi_krum", "clipped_mean")
PROMISED = ("trimmed_mean", "geometric_median")


def tampering(attack):
    """Return what hostile sites send in the place of their uploads; their weight is not theirs."""
    if attack in {"none", "label flip"}:
        return None

    def change(tick, seeds, sites, sent):
        key = random.fold(random.fold(random.key("attack"), tick), seeds * 1000 + sites)

        def hostile(x):
            noise = torch.func.vmap(lambda k: random.normal(k, x.shape[1:], x.dtype))(key)
            size = x.double().square().reshape(len(x), -1).mean(1).sqrt().to(x.dtype)
            wide = size.reshape(-1, *[1] * (x.ndim - 1))
            false = {"sign flip": -x, "scaled": 100 * x, "Gaussian": 10 * wide * noise}[attack]
            return torch.where((sites < HOSTILE).reshape(wide.shape), false, x)

        return {name: (trees.map_tensors(hostile, tree), w) for name, (tree, w) in sent.items()}

    return change


def refitted_r2(rule, attack, data_seed=0):
    """Return the test R² of the refitted ensemble; -inf where the run diverged."""
    drawn = synthetic_regression(n_samples=1000, n_sites=10, alpha=100.0, seed=data_seed)
    scale = Standardiser.fit(drawn.train, "feature")
    rows, held_out = scale.apply(drawn.train), scale.apply(drawn.test)
    if attack == "label flip":
        flipped = torch.arange(rows.n_samples) < rows.offsets[HOSTILE]
        rows = replace(rows, y=torch.where(flipped, -rows.y, rows.y))
    problem = linear_problem(rows)
    knobs = {
        "aggregator": MultiKrum(HOSTILE) if rule == "multi_krum" else AGGREGATORS[rule],
        "tampering": tampering(attack),
        "weights": "uniform",
        "data_seed": data_seed,
    }
    try:
        run = train(problem, rows, EFLoPS(density=0.05), seeds=range(SEEDS), **knobs)
        magnitude = run.params["weight"].abs().squeeze(1)
        support = ensemble_support((magnitude > 0).double(), magnitude, KEPT)
        ridged = problem.with_ridge(1.0 / rows.n_samples)
        params = trees.unstack(run.params, 0)
        start = trees.stack([Tuning().start(problem, params, support.float())])
        refit = train(ridged, rows, Tuning(), start=start, **knobs)
    except TrainingError:
        return float("-inf")
    return float(evaluate(problem, refit.params, held_out)["r2"])


@pytest.mark.acceptance
@pytest.mark.acceptance_long
def test_robust_rules_bear_two_hostile_sites_of_ten(figure):
    found = {(rule, attack): refitted_r2(rule, attack) for rule in RULES for attack in ATTACKS}
    for (rule, attack), value in found.items():
        figure(f"two hostile sites of ten, test R²: {rule}, {attack}", value)
    clean = found["mean", "none"]
    for rule in PROMISED:
        for attack in ATTACKS:
            assert found[rule, attack] >= clean - 0.05, (rule, attack)
    assert min(found["mean", attack] for attack in ("scaled", "Gaussian")) < clean - 0.3
