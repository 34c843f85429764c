"""Robust rules: what they are by hand, what they cannot be moved by, and where they are refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import trees
from fedsift.aggregation import AGGREGATORS, mean
from fedsift.algorithms import EFLoPS, FedAvg, Lippax, OneShot
from fedsift.channels import Lossless, TopM
from fedsift.robust import (
    ClippedMean,
    GeometricMedian,
    Median,
    MultiKrum,
    TrimmedMean,
    distances,
    quantile,
)
from fedsift.training import check_pair
from tests.laws import ENGINES, job, largest_gap, linear_problem, normal, proceed, rows

RULES = [Median(), TrimmedMean(), GeometricMedian(), MultiKrum(2), ClippedMean()]
NAMES = [type(rule).__name__ for rule in RULES]
every_rule = pytest.mark.parametrize("rule", RULES, ids=NAMES)


def uploads(count, seed=0):
    return {"a": normal(count, 3, 2, seed=seed), "b": normal(count, seed=seed + 1)}


def test_quantiles_by_hand():
    """Weights 1, 1, 2 of values 3, 1, 2: a half of the weight is reached within the 2."""
    x = torch.tensor([3.0, 1.0, 2.0])
    assert float(quantile(x, torch.tensor([1.0, 1.0, 2.0]), 0.5)) == 2.0
    assert float(quantile(x, torch.tensor([1.0, 1.0, 0.0]), 0.5)) == 2.0
    assert float(quantile(x, torch.tensor([0.0, 5.0, 1.0]), 0.5)) == 1.0
    assert float(quantile(torch.tensor([4.0, 1.0, 2.0, 3.0]), torch.ones(4), 0.5)) == 2.5


def test_a_trimmed_mean_by_hand():
    """A quarter of the weight off either end of 1, 2, 3, 100 leaves 2 and 3; of three, parts."""
    rule = TrimmedMean(0.25)
    four = {"a": torch.tensor([100.0, 1.0, 3.0, 2.0])}
    assert float(rule(four, torch.ones(4))["a"]) == 2.5
    three = {"a": torch.tensor([1.0, 2.0, 6.0])}  # weights left: 1/12, 1/3, 1/12 of 1/2
    assert float(rule(three, torch.ones(3))["a"]) == pytest.approx(
        (1 / 12 * 1 + 1 / 3 * 2 + 1 / 12 * 6) * 2
    )
    torch.testing.assert_close(
        TrimmedMean(0.0)(uploads(5), torch.arange(5.0)), mean(uploads(5), torch.arange(5.0))
    )


def test_the_geometric_median_is_where_no_step_helps():
    """The weighted unit vectors to the uploads add up to zero."""
    stacked, weight = {"a": normal(9, 4).double()}, torch.arange(1.0, 10.0)
    centre = GeometricMedian(300)(stacked, weight)
    away = (stacked["a"] - centre["a"]) / distances(stacked, centre).unsqueeze(1)
    assert float((weight.unsqueeze(1) * away).sum(0).norm()) < 1e-6 * float(weight.sum())


def test_krum_by_hand():
    """Of 0, 1, 2, 9 with one hostile, each is scored by its nearest: 9 has the worst score."""
    stacked = {"a": torch.tensor([9.0, 0.0, 1.0, 2.0])}
    assert float(MultiKrum(1)(stacked, torch.ones(4))["a"]) == 1.0


def test_a_clipped_mean_by_hand():
    """Lengths 1, 2, 10 are cut to 2."""
    stacked = {"a": torch.tensor([[1.0, 0.0], [0.0, 2.0], [10.0, 0.0]])}
    torch.testing.assert_close(
        ClippedMean()(stacked, torch.ones(3))["a"], torch.tensor([1.0, 2 / 3])
    )


@every_rule
def test_what_does_not_count_does_not_matter(rule):
    weight = torch.tensor([2.0, 0.0, 1.0, 0.0, 3.0, 1.0, 1.5])
    present = (weight > 0).nonzero().squeeze(1)
    stacked = uploads(7)
    alone = trees.map_tensors(lambda x: x[present], stacked)
    torch.testing.assert_close(rule(stacked, weight), rule(alone, weight[present]))
    silent = rule(trees.zeros_like(stacked), torch.zeros(7))
    assert all(torch.isfinite(leaf).all() for leaf in silent.values())


@every_rule
@settings(max_examples=20)
@given(seed=st.integers(0, 99), shift=st.floats(-5, 5), scale=st.floats(0.1, 4))
def test_order_and_units_do_not_matter(rule, seed, shift, scale):
    """A rule of c·x + b is c times the rule of x, plus b; cutting lengths knows where zero is."""
    weight = 0.5 + normal(7, seed=seed).abs()
    stacked = uploads(7, seed)
    before = rule(stacked, weight)
    turned = rule(trees.map_tensors(lambda x: x.flip(0), stacked), weight.flip(0))
    torch.testing.assert_close(turned, before, rtol=1e-3, atol=1e-4)
    offset = 0.0 if isinstance(rule, ClippedMean) else shift
    moved = rule(trees.map_tensors(lambda x: scale * x + offset, stacked), weight)
    expected = trees.map_tensors(lambda x: scale * x + offset, before)
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rule", RULES[:4], ids=NAMES[:4])
@pytest.mark.parametrize("size", [10.0, 1e6])
def test_two_hostile_of_ten_cannot_carry_it_away(rule, size):
    """The mean of ten goes as far as they like; a robust rule stays among the others."""
    stacked = uploads(10)
    hostile = trees.map_tensors(
        lambda x: torch.where(torch.arange(10).reshape(-1, *[1] * (x.ndim - 1)) < 2, size, x),
        stacked,
    )
    honest = trees.map_tensors(lambda x: x[2:], stacked)
    spread = float(distances(honest, mean(honest, torch.ones(8))).max())
    moved = trees.subtract(rule(hostile, torch.ones(10)), mean(honest, torch.ones(8)))
    assert float(trees.norm(moved)) < spread
    plain = trees.subtract(mean(hostile, torch.ones(10)), mean(honest, torch.ones(8)))
    assert float(trees.norm(plain)) > 0.19 * size


@pytest.mark.parametrize("name", AGGREGATORS)
def test_engines_agree_with_hostile_sites(name):
    data = rows(sizes=(12, 20, 16, 18, 14))
    problem = linear_problem(data)

    def shout(tick, seeds, sites, sent):
        def louder(x):
            return x * torch.where(sites == 1, -50.0, 1.0).reshape(-1, *[1] * (x.ndim - 1))

        return {g: (trees.map_tensors(louder, tree), w) for g, (tree, w) in sent.items()}

    servers = []
    for engine in ENGINES:
        work = job(
            problem,
            data,
            FedAvg(learning_rate=0.01),
            seeds=(0, 1),
            aggregator=AGGREGATORS[name],
            tampering=shout,
        )
        servers.append(proceed(work, ENGINES[engine](), 3)[0].server)
    assert largest_gap(*servers) < 1e-5


def test_what_is_not_finite_is_rejected_on_its_way():
    data = rows(sizes=(12, 20, 16, 18, 14))
    problem = linear_problem(data)

    def break_one(tick, seeds, sites, sent):
        def broken(x):
            bad = (sites == 0).reshape(-1, *[1] * (x.ndim - 1))
            return torch.where(bad, torch.nan, x)

        return {g: (trees.map_tensors(broken, tree), w) for g, (tree, w) in sent.items()}

    for engine in ENGINES:
        work = job(problem, data, FedAvg(learning_rate=0.01), tampering=break_one)
        carried, _ = proceed(work, ENGINES[engine](), 2)
        assert carried.ledger[0, 0] == -1
        assert bool(trees.all_finite(carried.server))


def test_pairs_that_cannot_work_are_refused():
    check_pair(EFLoPS(density=0.5), Lossless(), Median())
    with pytest.raises(ValueError, match="median compares whole uploads"):
        check_pair(EFLoPS(density=0.5), TopM(3), Median())
    with pytest.raises(ValueError, match="OneShot cannot be aggregated by median: its uploads are"):
        check_pair(OneShot(density=0.5), Lossless(), Median())
    with pytest.raises(
        ValueError, match="Lippax cannot be aggregated by median: its sites remember"
    ):
        check_pair(Lippax(), Lossless(), Median())
    with pytest.raises(ValueError, match=r"trimmed is 0\.5"):
        TrimmedMean(0.5)
    with pytest.raises(ValueError, match="hostile is -1"):
        MultiKrum(-1)


@pytest.mark.parametrize(
    ("rule", "theirs", "knobs"),
    [
        (Median(), "Median", {}),
        (TrimmedMean(2 / 11), "TrMean", {"f": 2}),
        (GeometricMedian(200), "GeometricMedian", {"nu": 1e-6, "T": 200}),
    ],
    ids=["median", "trimmed mean", "geometric median"],
)
def test_equal_weights_give_the_rules_of_byzfl(rule, theirs, knobs):
    """Not of its multi-Krum, which scores by K - f - 1 neighbours; the paper says K - f - 2."""
    byzfl = pytest.importorskip("byzfl", reason="byzfl, whose rules these are, is not installed")
    for seed in range(5):
        x = normal(11, 30, seed=seed).double()
        expected = getattr(byzfl, theirs)(**knobs)(x.float()).double()
        ours = rule({"a": x}, torch.ones(11))["a"]
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
