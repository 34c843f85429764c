"""LIPPAX: fixed points, invariances, the exact resolvent, certificates, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsift import random, trees, vi
from fedsift.algorithms import Lippax, Scaffold
from fedsift.algorithms.base import Info, Upload
from fedsift.algorithms.lippax import Slow
from fedsift.engines.base import begin
from fedsift.privacy import Privacy
from fedsift.problems import Problem
from fedsift.sets import Ball, Box, FeasibleSet, Product, Simplex, WholeSpace
from fedsift.sites import SiteData
from fedsift.solvers import SOLVERS, find_solver
from fedsift.solving import solve
from fedsift.training import train
from fedsift.trees import Tree
from fedsift.vi import VIProblem, named, natural_residual
from fedsift.vi.gaps import solve_affine
from tests.laws import ENGINES, job, largest_gap, normal, proceed
from tests.test_contract import accepted_states, assert_some_counted, fate

D = 6


def monotone(
    seed: int,
    feasible: FeasibleSet | None = None,
    *,
    sites: int = 5,
    weights: tuple[float, ...] | None = None,
    scale: float = 1.0,
    spread: float = 0.5,
    modulus: float = 0.1,
    push: float = 1.0,
) -> VIProblem:
    """Make a random monotone affine problem whose sites disagree."""

    def draw(name: int, *shape: int) -> Tensor:
        return normal(*shape, seed=1000 * seed + name, dtype=torch.float64)

    root, turn = draw(0, D, D), draw(1, D, D)
    own, force = spread * draw(2, sites, D, D), push * draw(3, D)
    skew = (turn + own) - (turn + own).transpose(-1, -2)
    A = modulus * torch.eye(D, dtype=torch.float64) + 0.1 * root.T @ root + 0.5 * skew
    b = force + spread * draw(4, sites, D)
    start = {"x": draw(5, D)}
    feasible = feasible or WholeSpace()
    return vi.affine(scale * A, scale * b, feasible.project(start), feasible, weights)


def solved(problem: VIProblem) -> Tree:
    M, q = vi.mean_field(problem)
    return solve_affine(M, q, problem.start, problem.feasible)


def from_solution(problem: VIProblem, x: Tree, method: Lippax) -> Tree:
    """Run some rounds from x with u_c = F_c(x), and return the last iterate."""
    work = job(problem.problem, problem.data, method)
    carried = begin(work)
    fields = [problem.field(x, c) for c in range(problem.data.n_sites)]
    p = problem.shares
    L = torch.linalg.matrix_norm(problem.data.x[..., :-1], 2).max()
    slow = {k: sum(p[c] * f[k] for c, f in enumerate(fields)) for k in x}
    one = trees.unstack(carried.server, 0)._replace(point=x, found=x, slow=slow, lipschitz=L)
    carried = begin(work, trees.stack([one]))
    rows = carried.store.rows(torch.arange(problem.data.n_sites))
    template = trees.unstack(carried.store.load(rows[:1], torch.tensor([0]), torch.tensor([-1])), 0)
    states = trees.stack([(Slow(f, L), template[1]) for f in fields])
    carried.store.stage(rows, torch.zeros(len(rows), dtype=torch.int64), states, 0)
    carried = carried._replace(ledger=torch.zeros_like(carried.ledger), tick=1)
    after, _ = proceed(work, ENGINES["loop"](), 3, carried=carried)
    found: Tree = trees.unstack(after.server.found, 0)
    return found


SETS: dict[str, FeasibleSet] = {
    "whole": WholeSpace(),
    "interior": Ball(50.0),
    "boundary": Ball(0.3),
    "box": Box(-0.2, 0.2),
    "simplex": Simplex(),
}


@pytest.mark.parametrize("certified", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_the_solution_is_a_fixed_point(name: str, certified: bool) -> None:
    """From x* with u_c = F_c(x*) nothing moves, interior or boundary, alike or unlike sites."""
    weights = (1.0, 2.0, 0.5, 3.0, 1.0)
    problem = monotone(3, SETS[name], spread=2.0, weights=weights)
    x = solved(problem)
    method = Lippax(gamma=0.5, certified=certified)
    moved = from_solution(problem, x, method)
    assert trees.norm(trees.subtract(moved, x)) <= 1e-15 * (1.0 + 10.0 * float(trees.norm(x)))


def points(problem: VIProblem, method: Any, rounds: int = 12, **knobs: Any) -> Tensor:
    """Return the iterates of a run, [rounds, d]."""
    seen: list[Tensor] = []

    def watch(run: Any) -> bool:
        seen.append(trees.flatten(trees.unstack(run.params, 0)))
        return False

    train(problem.problem, problem.data, method, rounds=rounds, compile=False, watch=watch, **knobs)
    return torch.stack(seen)


@pytest.mark.parametrize("certified", [False, True])
def test_ten_times_the_loss_with_a_tenth_of_gamma_is_the_same_run(certified: bool) -> None:
    ball = Ball(2.0)
    for gammas in ((None, None), (0.3, 0.03)):
        runs = [
            points(monotone(1, ball, scale=s), Lippax(gamma=g, certified=certified))
            for s, g in zip((1.0, 10.0), gammas, strict=True)
        ]
        assert (runs[0] - runs[1]).abs().max() < 1e-9


def test_one_site_is_the_proximal_point_method() -> None:
    """x⁺ = (I + γF)⁻¹ x, to the precision of the inner solve."""
    problem = monotone(2, sites=1)
    (M, q), gamma = vi.mean_field(problem), 0.7
    found = points(problem, Lippax(gamma=gamma, inner_steps=400), 5)
    x = trees.flatten(problem.start)
    for point in found:
        x = torch.linalg.solve(torch.eye(D) + gamma * M, x - gamma * q)
        assert (point - x).abs().max() < 1e-12


@pytest.mark.parametrize("gamma", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("name", ["whole", "boundary", "simplex"])
def test_alike_sites_with_an_exact_solve_take_the_resolvent(name: str, gamma: float) -> None:
    """For every γ: y solves F(y) + (y - x)/γ on X, and the extra step from x lands on y again."""
    problem = monotone(4, SETS[name], spread=0.0)
    first = points(problem, Lippax(gamma=gamma, inner_steps=1500), 1)[0]
    M, q = vi.mean_field(problem)
    x = trees.flatten(problem.start)
    eye = torch.eye(D, dtype=torch.float64)
    expected = solve_affine(gamma * M + eye, gamma * q - x, problem.start, problem.feasible)
    assert (first - trees.flatten(expected)).abs().max() < 1e-9


@pytest.mark.parametrize("gamma", [0.4, None])
def test_unequal_weights_end_at_the_weighted_solution(gamma: float | None) -> None:
    problem = monotone(5, Ball(3.0), weights=(9.0, 1.0, 0.1, 4.0, 1.0), modulus=0.5)
    choices: list[dict[str, Any]] = [{}, {"participation": 0.6}]
    for options in choices:
        answer = solve(
            problem,
            Lippax(gamma=gamma),
            tolerance=1e-6,
            max_exchanges=300,
            look_every=5,
            **options,
        )
        assert answer.status == "converged"
        assert largest_gap(answer.params, solved(problem)) < 1e-5


@pytest.mark.parametrize("name", ["relaxation", "momentum", "warm_start", "unbiased"])
def test_every_option_reaches_the_same_solution(name: str) -> None:
    value: Any = {"relaxation": 1.6, "momentum": 0.3, "warm_start": True, "unbiased": 1.0}[name]
    problem = monotone(6, Ball(1.0), modulus=0.3)
    answer = solve(problem, Lippax(**{name: value}), tolerance=1e-6, max_exchanges=300)
    assert answer.status == "converged"
    assert largest_gap(answer.params, solved(problem)) < 1e-4


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"momentum": 1 / 3}, "less than 1/3: from 1/3 on the inertial proximal point may diverge"),
        ({"momentum": 0.9}, "momentum is 0.9"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"relaxation": 2.0}, "relaxation is 2.0; give a number above 0 and below 2"),
        ({"inner_steps": 4}, "inner_steps is 4; give 5 or more"),
        ({"gamma": 0.0}, "gamma is 0.0; give a positive number"),
        ({"unbiased": 1.5}, "unbiased is 1.5"),
        ({"certified": True, "momentum": 0.1}, "the certificate is for the plain step"),
        ({"certified": True, "batch_size": 4}, "needs exact field values"),
    ],
)
def test_what_the_theory_does_not_cover_is_refused(knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("+", r"\+")):
        Lippax(**knobs)


def test_momentum_turns_itself_off_in_noise() -> None:
    """β_t follows the cosine of two moves: 0 for unrelated moves, near β on a straight way."""
    problem = monotone(7, Ball(1.0), modulus=0.3)
    noise = {
        "privacy": Privacy(clip=100.0, noise=0.5, delta=1e-5),
        "noise_seed": 0,
        "weights": "uniform",
    }
    plain = points(problem, Lippax(gamma=0.4), 40, **noise)
    pushed = points(problem, Lippax(gamma=0.4, momentum=0.3), 40, **noise)
    assert (plain[:1] - pushed[:1]).abs().max() == 0
    spread = [float(run[10:].std(0).mean()) for run in (plain, pushed)]
    assert spread[1] < 1.5 * spread[0]


# --- the certificate


@pytest.mark.parametrize("name", ["interior", "boundary", "box", "simplex"])
def test_every_accepted_step_is_certified_and_the_gap_is_below_its_bound(name: str) -> None:
    feasible = SETS[name] if name != "interior" else Ball(2.0)
    for seed in range(2):
        problem = monotone(seed, feasible, modulus=0.0 if seed % 2 else 0.1)
        answer = solve(problem, "lippax_certified", tolerance=1e-6, max_exchanges=80)
        assert answer.certificate_max is not None
        assert answer.certificate_max <= 1e-14
        bound, gap = answer.gap_bound, vi.dual_gap(problem, answer.average)
        assert bound is not None
        assert gap is not None
        assert gap <= bound + 1e-12


def test_rejected_steps_are_counted_and_three_of_them_are_followed_by_extragradient() -> None:
    """γ = 1000/L is far too long: the run shortens it, two exchanges each time, and goes on."""
    problem = named.bilinear_ball(n_sites=5)
    answer = solve(problem, Lippax(gamma=600.0, certified=True), max_exchanges=160)
    assert answer.status == "converged"
    assert answer.rejected >= 6
    assert answer.exchanges == 2 * len(answer.history)


def test_a_step_without_every_site_is_refused_and_the_run_goes_on() -> None:
    """Uploads that are lost make the certificate void: no step, γ stays."""

    def first_is_lost(tick: int, seed: Tensor, site: Tensor) -> Tensor:
        return (site > 0).long()

    problem = monotone(8, Ball(1.0))
    work = job(problem.problem, problem.data, Lippax(certified=True), delivery=first_is_lost)
    carried, _ = proceed(work, ENGINES["vectorized"](), 4)
    server = trees.unstack(carried.server, 0)
    assert server.trial.length == 0
    assert server.trial.factor == 1.0
    assert largest_gap(server.point, problem.start) == 0


# --- states that follow what the server has


def broken(method: Any) -> Any:
    """Return the method with a tenth of its uploads not finite."""

    @dataclass(frozen=True, kw_only=True)
    class Broken(type(method)):  # type: ignore[misc]
        def client_round(
            self,
            problem: Problem,
            shared: Tree,
            client: Any,
            data: SiteData,
            key: Tensor,
            exchange: str,
        ) -> tuple[Upload, Any, Info]:
            upload, client, info = super().client_round(
                problem, shared, client, data, key, exchange
            )
            (tree, weight), bad = upload["loss"], random.uniform(random.fold(key, "bad"), ()) < 0.1
            tree = {k: torch.where(bad, torch.nan, v) for k, v in tree.items()}
            return {"loss": (tree, weight)}, client, info

    return Broken(**{f.name: getattr(method, f.name) for f in fields(method)})


METHODS = {
    "lippax": Lippax(gamma=0.4),
    "warm": Lippax(gamma=0.4, warm_start=True),
    "private": Lippax(gamma=0.4),
    "certified": Lippax(gamma=0.4, certified=True),
    "scaffold": Scaffold(step=0.05),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", METHODS)
def test_the_server_field_is_the_sum_of_the_sites_whatever_gets_lost(
    name: str, engine: str
) -> None:
    """A quarter is lost, a quarter comes twice, a tenth is refused: still ū = Σ p_c u_c."""
    problem = monotone(9, Ball(2.0), weights=(1.0, 2.0, 0.5, 3.0, 1.0), spread=1.0)
    privacy = Privacy(clip=0.5, noise=0.02, delta=1e-5) if name == "private" else None
    work = job(problem.problem, problem.data, broken(METHODS[name]), delivery=fate, privacy=privacy)
    carried, _ = proceed(work, ENGINES[engine](), 25)
    assert_some_counted(carried)
    own = [client.field["x"] for (client, _) in accepted_states(work, carried, 0)]
    expected = sum(problem.shares[c] * field for c, field in enumerate(own))
    server = trees.unstack(carried.server, 0)
    held = server.control if name == "scaffold" else server.slow
    assert (held["x"] - expected).abs().max() < 1e-6
    assert held["x"].abs().max() > 0.01


# --- every method


@pytest.mark.parametrize("name", SOLVERS)
def test_engines_agree_on_every_method(name: str) -> None:
    """In float64, after six rounds with absent sites and two seeds; bytes exactly."""
    problem = monotone(10, Product({"x": Ball(1.5)}), spread=0.3)
    method = find_solver(name).build()
    share = 1.0 if name == "lippax_certified" else 0.6
    work = job(problem.problem, problem.data, method, seeds=(0, 1))
    results = [proceed(work, ENGINES[engine](), 6, share) for engine in ENGINES]
    single = name in {"fedavg", "fedprox"}  # their curvature is a float32
    gap = largest_gap(results[0][0].server, results[1][0].server)
    assert gap < (1e-5 if single else 1e-9)
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", [n for n in SOLVERS if not n.startswith("lippax_")])
def test_alike_sites_lead_every_method_to_the_solution(name: str) -> None:
    """Strongly monotone and without differences between sites: all of them are methods."""
    problem = monotone(11, Ball(1.0), spread=0.0, modulus=1.0)
    answer = solve(problem, name, tolerance=1e-4, max_exchanges=400, look_every=5)
    assert answer.status == "converged", answer.verdict
    assert largest_gap(answer.params, solved(problem)) < 1e-2


def test_random_monotone_problems_always_end() -> None:
    """A sample of the thousand that the acceptance test solves; see there."""
    for seed in range(3):
        kind = ["boundary", "box", "simplex"][seed % 3]
        problem = monotone(100 + seed, SETS[kind], modulus=0.05, push=3.0)
        answer = solve(problem, "lippax_certified", max_exchanges=400)
        assert answer.status == "converged", (seed, kind, answer.verdict)
        assert natural_residual(problem, answer.params) <= 1e-3 * answer.residual_start


def test_a_batch_draws_rows_and_averages_are_kept() -> None:
    problem = monotone(12, Ball(1.0), modulus=0.5)
    answer = solve(problem, Lippax(batch_size=1), tolerance=1e-4, max_exchanges=200)
    assert answer.status == "converged"
