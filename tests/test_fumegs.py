"""Laws of FU-MEGS: engines agree, steps are undone, it stops for the right reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsift import supervised, train, trees
from fedsift.algorithms import FUMEGS
from fedsift.algorithms.budget import STATIONARY, STOP_REASONS, TARGET_MET
from fedsift.combiners import Gram
from fedsift.data import FederatedData, iid
from fedsift.engines.base import Job, population_of
from fedsift.forgetting import forgetting
from fedsift.models import from_module, linear, mlp
from fedsift.outcomes import Softmax
from fedsift.problems import Problem
from fedsift.training import Training
from fedsift.trees import Tree

CLASSES = 3


def clusters(roles: str = "site") -> FederatedData:
    """Three classes at four sites; the rows of the first site, or some of all, are to be forgotten.

    At the site that forgets, a quarter of the rows is held out.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % CLASSES
    x = 1.5 * torch.eye(CLASSES, 5)[y] + torch.randn(120, 5, generator=generator)
    data = iid(FederatedData.from_arrays(x, y, outcome="multiclass"), 4, 0)
    role = torch.zeros(120, dtype=torch.int8)
    if roles == "site":
        role[data.slices[0]] = 1
        role[data.slices[0].start : data.slices[0].start + 8] = 2
    else:
        role[::5] = 1
    return replace(data, role=role)


def problem_of(data: FederatedData, *, network: bool = False, loss: Any = "bounded_ce") -> Problem:
    model = from_module(mlp((5, 8, CLASSES))) if network else linear(5, CLASSES)
    return forgetting(supervised(model, Softmax(CLASSES)), Softmax(CLASSES), loss, 2.0)


def trained(data: FederatedData, problem: Problem) -> Tree:
    """A model of all rows but the held-out ones, near its optimum."""
    from fedsift.algorithms import FedAvg

    rows = replace(data.take(data.role != 2), role=None)  # type: ignore[arg-type]
    run = train(problem, rows, FedAvg(rounds=40, learning_rate=0.5), evaluate_every=100)
    params: Tree = trees.unstack(run.params, 0)
    return params


def forget(data: FederatedData, problem: Problem, params: Tree, **more: Any) -> Training:
    options = {k: more.pop(k) for k in list(more) if k in FUMEGS.__dataclass_fields__}
    algorithm = FUMEGS(**options)
    start = trees.stack([algorithm.start(params)])
    return train(problem, data, algorithm, start=start, evaluate_every=100, compile=False, **more)


@pytest.mark.parametrize("ratio", ["conflict", 0.0, 0.3, 1.0, 40.0])
def test_the_direction_is_inside_the_cone_until_the_target_is_met(ratio: Any) -> None:
    """d·g_u ≥ 0 and d·g_r ≥ 0 for 5,000 pairs, whatever is missing of the target or spent of δ."""
    generator = torch.Generator().manual_seed(3)
    u, r = torch.randn(2, 5000, 6, generator=generator, dtype=torch.float64)
    g = Gram(u.norm(dim=1), r.norm(dim=1), (u * r).sum(1))
    missing, rise = torch.rand(2, 5000, generator=generator, dtype=torch.float64)
    pair = FUMEGS(ratio=ratio).pair(g, missing.clamp(min=1e-6), 0.1 * (rise - 0.3))
    d = pair.forget.unsqueeze(1) * u + pair.retain.unsqueeze(1) * r
    assert ((d * u).sum(1) >= -1e-12 * g.forget).all()
    assert ((d * r).sum(1) >= -1e-12 * g.retain).all()


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("roles", ["site", "samples"])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_engines_agree(network: bool, roles: str, local_steps: int) -> None:
    data = clusters(roles)
    problem = problem_of(data, network=network)
    params = trained(data, problem)
    runs = [
        forget(data, problem, params, rounds=8, local_steps=local_steps, engine=engine)
        for engine in ("loop", "vectorized")
    ]
    for leaf, value in runs[0].params.items():
        assert torch.allclose(value, runs[1].params[leaf], atol=1e-5), leaf
    assert torch.equal(runs[0].bytes_up, runs[1].bytes_up)
    assert torch.equal(runs[0].bytes_down, runs[1].bytes_down)


def test_each_group_has_its_own_population() -> None:
    """30 rows a site: 22 to forget, 8 held out, 90 to retain."""
    data = clusters()
    from fedsift import aggregation, channels

    job = Job(problem_of(data), data, FUMEGS(), channels.Lossless(), aggregation.mean, (0, 1))
    found = {g: population_of(job.populations, g).tolist() for g in ("forget", "retain", "loss")}
    assert found == {"forget": [22.0] * 2, "retain": [90.0] * 2, "loss": [120.0] * 2}


def test_a_site_without_such_rows_sends_no_gradient_of_theirs() -> None:
    """Sites 2 to 4 send one gradient a round, site 1 one of each kind it has rows of: 4 in all."""
    data = clusters()
    problem = problem_of(data, network=True)
    run = forget(data, problem, trained(data, problem), rounds=1)
    numbers = sum(v[0].numel() for v in run.params.values())
    assert 4 * 4 * numbers < int(run.bytes_up) < 4 * (4 * numbers + 400)


def test_it_forgets_and_keeps_within_the_budget() -> None:
    data = clusters("samples")
    problem = problem_of(data, network=True)
    run = forget(data, problem, trained(data, problem), rounds=25, first=0.2)
    kept = [r for r in run.history if r["kept"]]
    assert kept[-1]["forget_loss"] < kept[0]["forget_loss"]
    assert all(r["retain_rise"] <= 0.03 for r in kept)


def test_a_step_outside_the_budget_is_undone() -> None:
    """A first step of 1000 n_u breaks the budget: the model of the start is kept, bit for bit."""
    data = clusters()
    problem = problem_of(data, network=True)
    params = trained(data, problem)
    run = forget(data, problem, params, rounds=2, first=1000.0)
    assert [r["kept"] for r in run.history] == [1.0, 0.0]
    assert all(torch.equal(run.params[k][0], v) for k, v in params.items())
    assert run.history[1]["length"] == pytest.approx(0.5 * run.history[0]["length"])


def stop_of(run: Training) -> str:
    return STOP_REASONS[int(run.carried.server.steps.stop)]


def test_it_stops_where_the_target_is_met_at_the_start() -> None:
    """The model is not touched, and one exchange is all that is sent."""
    data = clusters()
    problem = problem_of(data)
    params = trained(data, problem)
    run = forget(data, problem, params, rounds=9, neutral=1.0)
    assert (len(run.history), stop_of(run)) == (1, STOP_REASONS[TARGET_MET])
    assert all(torch.equal(run.params[k][0], v) for k, v in params.items())


def test_exactly_opposite_gradients_stop_as_stationary() -> None:
    """Ascent on the rows that are retained: g_u = -g_r, c = -1, in every exchange but the first."""
    data = clusters("samples")
    twice = FederatedData.from_arrays(
        torch.cat([data.x, data.x]),
        torch.cat([data.y, data.y]),
        outcome="multiclass",
        sites=["a"] * 240,
    )
    twice = replace(twice, role=(torch.arange(240) < 120).to(torch.int8))
    problem = problem_of(twice, loss="ascent")
    params = problem.init(torch.tensor(0))
    run = forget(twice, problem, params, rounds=20, local_steps=1, patience=3)
    assert stop_of(run) == STOP_REASONS[STATIONARY]
    assert len(run.history) == 4  # the first does not count
    assert all(torch.allclose(run.params[k][0], v, atol=1e-6) for k, v in params.items())


@pytest.mark.parametrize("lost", ["forget", "retain"])
def test_without_a_group_nothing_moves(lost: str) -> None:
    """The site that forgets is offline, or three of four retained ones are: the round is paused."""
    data = clusters()
    problem = problem_of(data)
    params = trained(data, problem)

    def delivery(tick: int, seeds: Tensor, sites: Tensor) -> Tensor:
        return (sites > 0 if lost == "forget" else sites < 1).to(torch.int64)

    run = forget(data, problem, params, rounds=3, delivery=delivery)
    assert all(torch.equal(run.params[k][0], v) for k, v in params.items())
    assert all(r.get("paused", 1.0) == 1.0 for r in run.history)


def test_no_gradient_to_forget_gives_finite_parameters() -> None:
    """All logits equal: the entropy is at its minimum, g_u = 0."""
    data = clusters()
    problem = problem_of(data, loss="entropy")
    zero = problem.init(torch.tensor(0))
    run = forget(data, problem, zero, rounds=4)
    assert all(torch.isfinite(v).all() for v in run.params.values())


def test_a_site_with_non_finite_values_is_left_out() -> None:
    data = clusters()
    bad = data.x.clone()
    bad[data.slices[2]] = 3e38
    data = replace(data, x=bad)
    problem = problem_of(data)
    run = forget(data, problem, problem.init(torch.tensor(0)), rounds=3)
    assert all(torch.isfinite(v).all() for v in run.params.values())
    rejected = [r["rejected"] for r in run.history if "rejected" in r]
    assert all(names == [data.sites[2]] for names in rejected)


def test_the_order_of_the_sites_does_not_matter() -> None:
    data = clusters()
    problem = problem_of(data)
    params = trained(data, problem)
    number = torch.tensor([3, 0, 1, 2])
    turned = data.with_sites(number[data.site_of_row], [data.sites[i] for i in (1, 2, 3, 0)])
    runs = [forget(d, problem, params, rounds=6, first=0.2) for d in (data, turned)]
    for leaf, value in runs[0].params.items():
        assert torch.allclose(value, runs[1].params[leaf], atol=1e-5)
