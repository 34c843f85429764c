"""An attack on private runs: what it finds out stays below what the account allows.

The attacker sees every message of a site and knows everything but which of two data sets the site
(or one of its rows) has; they are as unlike as can be, and drive the clipped contributions to C and
-C. He adds up the messages along the known direction, which is the most powerful test there is.
Hundreds of runs with either data set, as lanes, give his error rates.
"""

import math

import pytest
import torch
from scipy.stats import beta, norm
from torch import Tensor

from fedsift.algorithms import FedAvg
from fedsift.channels import TopM
from fedsift.data import FederatedData
from fedsift.privacy import Privacy
from fedsift.training import train
from tests.laws import linear_problem, site_names

pytestmark = pytest.mark.acceptance

RUNS, ROUNDS, D, LOUD = 1000, 6, 8, 1e4
DELTA = 1e-3


def two_worlds(level: str) -> list[FederatedData]:
    """Make data sets in which site 0, or its first row, pulls with all its might, either way.

    A loud row of class 1 has the gradient -x/2 at 0, one of class 0 x/2, both clipped to C.
    """
    sizes = (4, 3, 5)
    names = site_names(sizes)
    x = torch.zeros(len(names), D)
    x[:, 0] = torch.linspace(-1, 1, len(names))
    changed = slice(4) if level == "site" else slice(1)
    x[changed] = LOUD
    found = []
    for label in (0, 1):
        y = (torch.arange(len(names)) % 2).long()
        y[changed] = label
        found.append(FederatedData.from_arrays(x, y, sites=names, outcome="binary"))
    return found


def evidence(data: FederatedData, privacy: Privacy, channel: TopM | None) -> Tensor:
    """Return what speaks for class 1 in all messages of site 0, for every run [RUNS]."""
    total = torch.zeros(RUNS)

    def overhear(tick: int, seed: Tensor, site: Tensor, sent: dict) -> dict:
        weight = sent["loss"][0]["theta/weight"].sum((1, 2))
        total.index_add_(0, seed[site == 0], weight[site == 0])
        return sent

    # The steps are so small that the model stays at 0, and the gradients as large as they can be.
    train(
        linear_problem(data),
        data,
        FedAvg(learning_rate=1e-9, local_steps=1),
        rounds=ROUNDS,
        seeds=range(RUNS),
        weights="uniform",
        compile=False,
        channel=channel,
        privacy=privacy,
        noise_seed=int(data.y[0]),
        tampering=overhear,
    )
    return total


def at_least(with_1: Tensor, with_0: Tensor) -> float:
    """Return an ε that the runs show to be exceeded, with 95 % confidence for each threshold.

    (ε, δ) means that P(S | 1) ≤ e^ε P(S | 0) + δ for every S; rates by Clopper & Pearson, 1934.
    Thresholds are chosen on half of the runs and judged on the other.
    """
    half = RUNS // 2

    def log_ratio(hits: int, alarms: int) -> float:
        low = beta.ppf(0.025, hits, half - hits + 1) if hits else 0.0
        high = beta.ppf(0.975, alarms + 1, half - alarms) if alarms < half else 1.0
        return math.log(max(low - DELTA, 1e-9) / high)

    def at(threshold: float, part: slice) -> float:
        return log_ratio(
            int((with_1[part] > threshold).sum()), int((with_0[part] > threshold).sum())
        )

    candidates = torch.quantile(
        torch.cat([with_1[:half], with_0[:half]]), torch.arange(0.02, 1, 0.02)
    )
    best = max(candidates.tolist(), key=lambda c: at(c, slice(half)))
    return at(best, slice(half, RUNS))


@pytest.mark.parametrize("level", ["site", "sample"])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize("channel", ["dense", "feedback"])
def test_an_attack_stays_below_the_promise(level, epsilon, channel, figure):
    """Gaussian noise allows an area under the curve of Φ(μ/√2), μ = 2 √releases / σ."""
    carrier = None if channel == "dense" else TopM(D // 2)
    promised = Privacy(clip=1.0, epsilon=epsilon, delta=DELTA, level=level).planned(ROUNDS)
    assert promised.noise is not None
    with_0, with_1 = (evidence(data, promised, carrier) for data in two_worlds(level))
    area = float((with_1.unsqueeze(1) > with_0).double().mean())
    allowed = float(norm.cdf(2 * ROUNDS**0.5 / promised.noise / 2**0.5))
    shown = at_least(with_1, with_0)
    figure(
        f"privacy: attack on a {level}, {channel} messages, ε = {epsilon:g}",
        {"at least": max(0.0, shown), "area": area, "allowed area": allowed},
    )
    error = 3 * (1 / (6 * RUNS)) ** 0.5
    assert shown <= epsilon
    assert area <= allowed + error
    if channel == "dense":  # the account is not loose: the attack reaches what it allows
        assert area >= allowed - error


def test_without_noise_the_attack_always_succeeds(figure):
    silent = Privacy(clip=1.0, noise=0.01, delta=DELTA)
    with_0, with_1 = (evidence(data, silent, None) for data in two_worlds("site"))
    shown = at_least(with_1, with_0)
    figure("privacy: attack without noise", {"at least": shown})
    assert float((with_1.unsqueeze(1) > with_0).double().mean()) == 1.0
    assert shown > 3.0
