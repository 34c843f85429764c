"""Privacy's account: the library's numbers, and that every release is charged."""

import dp_accounting
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift import accounting
from fedsift.engines.base import releases
from fedsift.privacy import Privacy
from tests.laws import job, linear_problem, rows
from tests.private import DELTA, METHODS, SAMPLE, SITE, fitted


def exact(noise: float, releases: int, delta: float = DELTA) -> float:
    """Return ε of the library's numerical accountant, for neighbours that replace one."""
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.pld.PLDAccountant(neighboring_relation=relation)
    single = dp_accounting.GaussianDpEvent(noise)
    accountant.compose(dp_accounting.SelfComposedDpEvent(single, releases))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(("noise", "releases"), [(4.0, 1), (30.0, 1000), (11.0, 37), (250.0, 9)])
def test_epsilon_is_the_librarys(noise, releases):
    spent = Privacy(clip=2.0, noise=noise, delta=DELTA).spent(releases)
    assert spent == pytest.approx(exact(noise, releases), rel=2e-3, abs=1e-4)


@given(st.floats(0.01, 50), st.floats(1e-9, 0.1), st.integers(1, 10**6))
def test_noise_for_an_epsilon_spends_it(epsilon, delta, releases):
    planned = Privacy(clip=1.0, epsilon=epsilon, delta=delta).planned(releases)
    assert planned.spent(releases) == pytest.approx(epsilon, rel=1e-6)
    assert planned.spent(releases + 1) > planned.spent(releases) > 0


def test_the_ends():
    assert SITE.spent(0) == 0.0
    assert Privacy(clip=1.0, noise=1e-6, delta=DELTA).spent(6) > 1e6
    assert Privacy(clip=1.0, noise=1e9, delta=DELTA).spent(6) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("participation", [1.0, 2])
def test_seeds_rounds_and_calls_add_up(participation):
    """A site in r rounds of 3 local steps, for each of 2 seeds: 3 releases a seed and round."""
    method, seeds, taken = METHODS["fedavg"], (0, 7), torch.zeros(5, dtype=torch.int64)
    run = fitted(method, SAMPLE, seeds=seeds, participation=participation)
    for number in range(4):
        taken += run.job.participants(number, participation).sum(0)
    assert torch.equal(run.spent, 3 * taken)
    assert torch.equal(run.spent, accounting.planned(run.job, 4, participation))
    spent = [record["epsilon"] for record in run.history]
    assert spent == sorted(spent)
    assert spent[-1] == run.epsilon == SAMPLE.spent(int(3 * taken.max()))


def test_epsilon_is_met_by_the_last_round_and_not_before():
    run = fitted(METHODS["eflops"], Privacy(clip=1.0, epsilon=2.0, delta=DELTA), seeds=(0, 1, 2))
    assert run.epsilon == pytest.approx(2.0, rel=1e-6)
    assert run.history[-2]["epsilon"] < 2.0
    assert run.history[-1]["delta"] == DELTA
    assert run.job.privacy is not None
    assert run.job.privacy.noise is not None


@pytest.mark.parametrize(
    ("method", "exchange", "site", "sample"),
    [
        ("fedavg", "round", 1, 3),
        ("eflops", "round", 1, 1),
        ("extragradient", "point", 1, 1),
        ("lippax", "round", 1, 6),  # the start and 5 steps of the inner solve
    ],
)
def test_every_call_of_the_operator_is_charged(method, exchange, site, sample):
    data = rows("binary")
    for privacy, count in ((SITE, site), (SAMPLE, sample), (None, 0)):
        asked = job(linear_problem(data), data, METHODS[method], privacy=privacy)
        assert releases(asked, exchange) == count
