"""Cox: hand-derived numbers, other libraries, masks and engines; sites without an event."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

import fedsift
from fedsift.algorithms import EFLoPS, Tuning
from fedsift.data import DataError, FederatedData, split
from fedsift.data.coding import code_survival
from fedsift.data.notes import notes_on_target
from fedsift.engines.loop import Loop
from fedsift.engines.vectorized import Vectorized
from fedsift.evaluation import evaluate
from fedsift.linear_problems import linear_problem
from fedsift.outcomes import Cox
from fedsift.outcomes.survival import concordance, cumulative_hazard
from tests.laws import job, largest_gap, normal, proceed

SIZES = (12, 3, 25, 7)
COX = Cox()


def times(sizes: tuple[int, ...] = SIZES, d: int = 8, seed: int = 0) -> FederatedData:
    """Make tied, weighted times whose risk follows two features; the second site sees no event."""
    n = sum(sizes)
    x = normal(n, d, seed=seed)
    random = np.random.default_rng(seed)
    risk = np.exp(1.0 * x[:, 0].numpy() - 0.8 * x[:, 1].numpy())
    time = np.ceil(3.0 * random.exponential(1.0 / risk)).clip(1, 9)
    seen = (random.uniform(size=n) < 0.7) & (time < 9)
    sites = np.repeat([f"s{c}" for c in range(len(sizes))], sizes)
    seen[sites == "s1"] = False
    weight = 0.5 + random.uniform(size=n)
    return FederatedData.from_arrays(x, seen, time=time, sites=sites, weight=weight, target="death")


def test_the_loss_of_four_rows_by_hand() -> None:
    """Deaths at 1 and twice at 2, one lost at 2; risks 1, 2, 3, 4.

    log L = log 1/10 + log 2/9 + log 3/(9 - ½ 5): for Efron's second death at 2 the risk set has
    lost half of 2 + 3; divided by four rows.
    """
    output = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).log()
    y, weight = torch.tensor([1.0, 2.0, 2.0, -2.0]), torch.ones(4)
    expected = -(math.log(1 / 10) + math.log(2 / 9) + math.log(3 / 6.5)) / 4
    assert float(COX.mean_loss(output, y, weight)) == pytest.approx(expected, rel=1e-6)
    figures = COX.sums(output, y, weight)
    assert float(figures["loss"][0]) == pytest.approx(4 * expected, rel=1e-6)
    # Pairs 1-2, 1-3, 1-4, and 2-4, 3-4, for the lost row outlived both; none is right.
    assert [float(t) for t in figures["concordance"]] == [0.0, 5.0]
    assert [float(t) for t in concordance(-output[:, 0], y, weight)] == [5.0, 5.0]


def test_the_slope_is_the_gradient() -> None:
    """By autograd in double precision, with ties, weights and rows that do not count."""
    data = times()
    weight = data.weight.double() * (torch.arange(47) % 5 != 0)
    output = normal(47, 1, dtype=torch.float64)
    slope = COX.mean_slope(output, data.y, weight)
    by_torch = torch.func.grad(lambda o: COX.mean_loss(o, data.y, weight))(output)
    torch.testing.assert_close(slope, by_torch, rtol=1e-9, atol=1e-12)
    assert abs(float(slope.sum())) < 1e-12


def test_the_slope_is_that_of_finite_differences() -> None:
    data = times()
    output, h = normal(47, 1, dtype=torch.float64), 1e-6
    slope = COX.mean_slope(output, data.y, data.weight)
    for seed in range(3):
        direction = normal(47, 1, seed=seed, dtype=torch.float64)
        ahead, behind = (
            COX.mean_loss(output + s * h * direction, data.y, data.weight) for s in (1, -1)
        )
        torch.testing.assert_close(
            (ahead - behind) / (2 * h), (slope * direction).sum(), rtol=1e-6, atol=1e-8
        )


def test_a_common_factor_of_the_risks_changes_nothing_and_large_ones_stay_finite() -> None:
    data = times()
    output = normal(47, 1, dtype=torch.float64)
    loss = COX.mean_loss(output, data.y, data.weight)
    torch.testing.assert_close(COX.mean_loss(output + 500.0, data.y, data.weight), loss)
    assert torch.isfinite(COX.mean_slope(300.0 * output, data.y, data.weight)).all()


def test_padding_order_and_lanes_change_nothing() -> None:
    """Rows of weight 0 in any place, another order of rows, and sites side by side under vmap."""
    data = times()
    output = normal(47, 1, dtype=torch.float64)
    parts = [(output[rows], data.y[rows], data.weight[rows]) for rows in data.slices]
    alone = [COX.mean_slope(*part) for part in parts]

    def padded(values: Tensor) -> Tensor:
        return torch.cat([values, values[:1].expand(30 - len(values), *values.shape[1:])])

    def mask(weight: Tensor) -> Tensor:
        return padded(weight) * (torch.arange(30) < len(weight))

    lanes = [torch.stack([padded(part[k]) for part in parts]) for k in (0, 1)]
    weights = torch.stack([mask(part[2]) for part in parts])
    together = vmap(COX.mean_slope)(lanes[0], lanes[1], weights)
    losses = vmap(COX.mean_loss)(lanes[0], lanes[1], weights)
    for place, (part, slope) in enumerate(zip(parts, alone, strict=True)):
        torch.testing.assert_close(together[place, : len(slope)], slope)
        assert not together[place, len(slope) :].any()
        torch.testing.assert_close(losses[place], COX.mean_loss(*part))
        backwards = torch.arange(len(slope)).flip(0)
        again = COX.mean_slope(*(t[backwards] for t in part))
        torch.testing.assert_close(again[backwards], slope)


def test_a_site_without_an_event_adds_nothing() -> None:
    data = times()
    silent = data.site("s1")
    assert not COX.mean_slope(normal(3, 1), silent.y, silent.weight).any()
    assert float(COX.mean_loss(normal(3, 1), silent.y, silent.weight)) == 0.0
    assert next(notes_on_target(data)).startswith("sites without an event of 'death': 's1'")


def test_the_baseline_hazard_by_hand() -> None:
    """Of the four rows: 1/10 at time 1, and 2/9 more at time 2."""
    output = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).log()
    y, grid = torch.tensor([1.0, 2.0, 2.0, -2.0]), torch.tensor([0.5, 1.0, 1.5, 2.0, 9.0])
    hazard = cumulative_hazard(output, y, torch.ones(4), grid)
    expected = torch.tensor([0.0, 0.1, 0.1, 0.1 + 2 / 9, 0.1 + 2 / 9], dtype=torch.float64)
    torch.testing.assert_close(hazard, expected)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_engines_agree(seeds: tuple[int, ...]) -> None:
    data = times()
    work = job(linear_problem(data), data, EFLoPS(density=0.25), seeds=seeds)
    ends = [proceed(work, engine(), 4, 0.8)[0].server for engine in (Loop, Vectorized)]
    assert largest_gap(*ends) < 1e-5


@pytest.mark.slow
def test_the_compiled_work_is_the_same() -> None:
    data = times((9, 9))
    runs = [
        fedsift.train(linear_problem(data), data, EFLoPS(density=0.25), rounds=3, compile=how)
        for how in (False, True)
    ]
    assert largest_gap(runs[0].params, runs[1].params) < 1e-5


def test_figures_are_those_of_pairs_within_sites() -> None:
    data = times()
    problem = linear_problem(data)
    params = {"weight": normal(2, 1, 8), "bias": torch.zeros(2, 1)}
    whole = evaluate(problem, params, data)
    output = data.x @ params["weight"][0, 0]
    sums = [concordance(output[r], data.y[r], data.weight[r]) for r in data.slices]
    right, total = (sum(float(pair[k]) for pair in sums) for k in (0, 1))
    assert float(whole["concordance"][0]) == pytest.approx(right / total)
    one = evaluate(problem, params, data, [2])["concordance"][0]
    assert float(one) == pytest.approx(float(sums[2][0] / sums[2][1]))


def test_splits_share_out_the_events() -> None:
    data = times((40, 60))
    _, test = split(data, 0)
    assert abs(int((test.y > 0).sum()) - 0.2 * int((data.y > 0).sum())) <= 1


def test_a_fit_finds_the_features_and_ranks_new_rows() -> None:
    data = times((60, 3, 50))
    run = fedsift.fit(data, features=2, seeds=2, rounds=60, splits=1, beside=())
    assert {f.name for f in run.features} == {"x0", "x1"}
    assert run.results["test_concordance"]["mean"] > 0.6
    log_risk = torch.tensor(run.predict(data.x, data.features)).log()
    truth = data.x[:, 0] - 0.8 * data.x[:, 1]
    assert float(torch.corrcoef(torch.stack([log_risk, truth]))[0, 1]) > 0.9
    assert run.facts["data"]["events"]["s1"] == 0


def test_what_is_no_time_or_event_is_refused() -> None:
    assert code_survival(["1", "false", True, 0.0], [3, 4, 5, 6]).tolist() == [3, -4, 5, -6]
    with pytest.raises(DataError, match="row 2: 'event' is 'dead', not 1"):
        code_survival([1, "dead"], [1, 2])
    with pytest.raises(DataError, match="row 1: the time of 'event' is 0"):
        code_survival([1, 0], [0, 2])
    with pytest.raises(DataError, match="survival needs the time"):
        FederatedData.from_arrays(np.zeros((2, 1)), [0, 1], outcome="survival")


def test_batches_and_privacy_of_rows_are_refused() -> None:
    data = times()
    with pytest.raises(ValueError, match=r"batch_size is 4, but the loss of survival"):
        fedsift.train(linear_problem(data), data, EFLoPS(density=0.25, batch_size=4))
    privacy = fedsift.Privacy(noise=1.0, clip=1.0, delta=1e-5, level="sample")
    even = FederatedData.from_arrays(data.x, data.y > 0, time=data.y.abs())
    one_step = Tuning(learning_rate=0.1)
    with pytest.raises(ValueError, match="rows of this problem do not add up"):
        fedsift.train(linear_problem(even), even, one_step, rounds=1, privacy=privacy)
    public: dict[str, Any] = {"splits": 0, "standardise": "none", "learning_rate": 0.1}
    with pytest.raises(ValueError, match="privacy takes classes alone"):
        fedsift.fit(even, features=2, privacy=privacy, **public)


def frame_of(data: FederatedData) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(data.x.double().numpy(), columns=list(data.features))
    return table.assign(T=data.y.abs().numpy(), E=(data.y > 0).numpy(), S=data.site_of_row.numpy())


@pytest.mark.parametrize("name", ["lung", "breast"])
@pytest.mark.filterwarnings("ignore")
def test_coefficients_are_those_of_lifelines(name: str) -> None:
    """Stratified by site, Efron's ties: veterans' lung cancer, and eight genes of breast cancer."""
    lifelines = pytest.importorskip("lifelines", reason="lifelines is not installed")
    datasets = pytest.importorskip("sksurv.datasets", reason="scikit-survival is not installed")
    if name == "lung":
        table, y = datasets.load_veterans_lung_cancer()
        table = table.select_dtypes("number")
    else:
        table, y = datasets.load_breast_cancer()
        table = table.select_dtypes("number").iloc[:, 1:9]
    event, time = (y[field] for field in y.dtype.names)
    x = ((table - table.mean()) / table.std()).to_numpy()
    data = FederatedData.from_arrays(
        x, event, time=time, sites=[f"s{r % 4}" for r in range(len(x))]
    )
    fitted = lifelines.CoxPHFitter().fit(frame_of(data), "T", "E", strata=["S"])
    problem = linear_problem(data)
    run = fedsift.train(problem, data, Tuning(rounds=3000, local_steps=1), compile=False)
    found = run.params["weight"][0, 0].double().numpy()
    np.testing.assert_allclose(found, fitted.params_.to_numpy(), atol=1e-4)
    loss = float(evaluate(problem, run.params, data)["loss"][0])
    assert loss * len(x) == pytest.approx(-fitted.log_likelihood_, rel=1e-5)


def test_survival_probabilities_follow_the_hazard_of_a_site() -> None:
    data = times((60, 3, 50))
    run = fedsift.fit(
        data,
        features=2,
        seeds=2,
        rounds=20,
        splits=0,
        tuning_rounds=20,
        hazard_times=(2.0, 4.0, 8.0),
    )
    told = run.facts["baseline"]
    assert told["times"] == [2.0, 4.0, 8.0]
    assert told["sites"]["s1"] == [0.0, 0.0, 0.0]
    by_site = torch.tensor([told["sites"][site] for site in data.sites])
    mean = (torch.tensor(data.sizes) / 113.0) @ by_site
    assert told["all"] == pytest.approx(mean.tolist())
    alive = run.predict_survival(data.x, data.features, [0, 3, 8], site="s0")
    assert alive.shape == (113, 3)
    assert (alive[:, 0] == 1).all()
    first, second, _ = told["sites"]["s0"]
    risk = torch.tensor(run.predict(data.x, data.features))
    torch.testing.assert_close(alive[:, 1].float(), (-risk * (first + second) / 2).exp())
    assert (alive[:, 2] <= alive[:, 1]).all()
    ranks = run.concordance(data)
    assert set(ranks) == {"s0", "s1", "s2", "all"}
    assert math.isnan(ranks["s1"])
    assert min(ranks["s0"], ranks["s2"]) <= ranks["all"] <= max(ranks["s0"], ranks["s2"])
    with pytest.raises(ValueError, match="give them from 0 to 8"):
        run.predict_survival(data.x, data.features, [9.0])
    with pytest.raises(ValueError, match="site 's9' told no baseline hazard"):
        run.predict_survival(data.x, data.features, [1.0], site="s9")
