"""Variational inequalities: constructors, gaps, named problems, diagnosis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from fedsift import models, outcomes, random, trees, vi
from fedsift.data import DataError
from fedsift.problems import Batch
from fedsift.sets import Ball, Box, MonotoneCone, Product, Simplex, WholeSpace
from fedsift.trees import Tree
from fedsift.vi import games, named, sparse, tasks
from fedsift.vi.catalogue import PROBLEMS, make_problem
from fedsift.vi.diagnosis import diagnose, monotonicity
from fedsift.vi.gaps import solve_affine
from fedsift.vi.resolvent import lipschitz, resolvent
from tests.laws import largest_gap, linear_problem, normal, rows

KNOWN = ("affine", "bilinear_ball", "bilinear_ball_boundary", "robust_least_squares", "matrix_game",
         "minimisation")  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_named_solution_solves_the_problem_and_sites_disagree_there(name: str) -> None:
    problem = make_problem(name, n_sites=4)
    assert problem.solution is not None
    assert vi.natural_residual(problem, problem.solution) < 1e-12
    gap = vi.dual_gap(problem, problem.solution)
    assert gap is not None
    assert abs(float(gap)) < 1e-10
    assert vi.natural_residual(problem, problem.start) > 0.1
    assert trees.norm(problem.field(problem.solution, 0)) > 0.05
    mean = {
        k: sum(problem.shares[c] * problem.field(problem.start, c)[k] for c in range(4))
        for k in problem.start
    }
    assert largest_gap(mean, problem.field(problem.start)) < 1e-12


def test_the_bilinear_recipe() -> None:
    """Singular values .3 ... 1.5 of the mean coupling; radius ½, or 1 with a force outwards."""
    problem = named.bilinear_ball(heterogeneity=0.6)
    M, _ = vi.mean_field(problem)
    values = torch.linalg.svdvals(M[:10, 10:])
    assert values.tolist() == pytest.approx(np.linspace(1.5, 0.3, 10).tolist())
    assert problem.solution is not None
    for half in problem.solution.values():
        assert torch.linalg.vector_norm(half) == pytest.approx(0.5)
    boundary = named.bilinear_ball(boundary=True)
    assert boundary.solution is not None
    assert torch.linalg.vector_norm(boundary.solution["x"]) == pytest.approx(1.0)
    force = boundary.field(boundary.solution)
    assert largest_gap(force, trees.scale(boundary.solution, -1.0)) < 1e-12
    own = problem.data.x[:, :10, 10:20] - M[:10, 10:]
    assert float(own.std()) == pytest.approx(0.6 / 10**0.5, rel=0.1)


def test_a_matrix_game_has_the_value_of_its_linear_programme() -> None:
    problem = named.matrix_game(seed=3)
    M, _ = vi.mean_field(problem)
    payoff = M[:10, 10:].numpy()
    # min v with payoffᵀ x ≤ v, Σ x = 1, x ≥ 0
    found = linprog(
        np.r_[np.zeros(10), 1.0],
        A_ub=np.c_[payoff.T, -np.ones(10)],
        b_ub=np.zeros(10),
        A_eq=np.r_[np.ones(10), 0.0][None],
        b_eq=[1.0],
        bounds=[(0, None)] * 10 + [(None, None)],
    )
    assert problem.solution is not None
    assert found.fun == pytest.approx(0.0, abs=1e-9)
    assert np.abs(found.x[:10] - problem.solution["x"].numpy()).max() < 1e-6


def test_the_dual_gap_is_the_largest_over_the_set() -> None:
    """Closed for a skew M, computed for another; no sampled point has a larger value."""
    for problem in (named.bilinear_ball(n_sites=3), named.robust_least_squares(n_sites=3)):
        x = problem.start
        gap = vi.dual_gap(problem, x)
        assert gap is not None
        for seed in range(200):
            key = random.key("u", seed)
            u = {
                k: 3.0 * random.normal(random.fold(key, k), v.shape, v.dtype) for k, v in x.items()
            }
            u = problem.feasible.project(u)
            assert trees.dot(problem.field(u), trees.subtract(x, u)) <= gap + 1e-9
    assert vi.dual_gap(replace(named.bilinear_ball(n_sites=3), affine=False), x) is None


def quadratic(params: Tree, batch: Batch) -> Tensor:
    share = (batch.weight / batch.weight.sum()).double()
    return share @ (batch.x.double() @ params["w"] - batch.y.double()).square()


def test_a_loss_gives_its_gradient_and_a_module_works_too() -> None:
    data = rows()
    start = {"w": normal(12, dtype=torch.float64)}
    problem = vi.from_loss(quadratic, data, start, Ball(5.0))
    residual = data.x.double() @ start["w"] - data.y
    assert (
        largest_gap(problem.field(start)["w"], 2.0 * data.x.double().T @ residual / len(data.x))
        < 1e-9
    )
    model = models.from_module(nn.Linear(12, 1).double())
    params = model.init(random.key(0))
    same = vi.from_loss(vi.model_loss(model, outcomes.OUTCOMES["regression"]), data, params)
    linear = linear_problem(data, torch.float64).operators["loss"](params, same.batch())
    assert largest_gap(same.field(params), linear) < 1e-12


def test_a_saddle_turns_the_sign_of_what_is_maximised() -> None:
    def loss(params: Tree, batch: Batch) -> Tensor:
        return (params["x"] * params["y/a"]).sum() + 0.0 * batch.x.sum()

    start = {"x": torch.tensor([2.0]), "y/a": torch.tensor([3.0])}
    problem = vi.saddle(loss, vi.site_rows(torch.eye(2)), start, ("y",))
    assert {k: v.tolist() for k, v in problem.field(start).items()} == {"x": [3.0], "y/a": [-2.0]}
    with pytest.raises(ValueError, match="maximise names 'z'; the parameters are x, y/a"):
        vi.saddle(loss, problem.data, start, ("z",))


def test_plain_functions_and_players_at_sites_meet_in_the_mean() -> None:
    """F_1 = x, F_2 = -x: the mean is 0 and everything solves it. Players at sites: Σ is stacked."""
    start = {"x": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    cancel = vi.from_operators([lambda p: p, lambda p: trees.scale(p, -1.0)], start, Ball(1.0))
    assert trees.norm(cancel.field(start)) == 0
    assert cancel.field(start, 1)["x"].tolist() == [-1.0, 2.0]

    def a(params: Tree, batch: Batch) -> Tensor:
        return (params["a"] * (params["a"] + params["b"])).sum()

    def b(params: Tree, batch: Batch) -> Tensor:
        return (params["b"] * (2.0 * params["b"] - params["a"])).sum()

    both = {k: torch.tensor([v], dtype=torch.float64) for k, v in (("a", 1.0), ("b", 2.0))}
    duel = vi.game({"anna": (a, ("a",)), "bert": (b, ("b",))}, both)
    assert duel.data.sites == ("anna", "bert")
    assert {k: float(v) for k, v in duel.field(both).items()} == {"a": 4.0, "b": 7.0}
    assert {k: float(v) for k, v in duel.field(both, 0).items()} == {"a": 8.0, "b": 0.0}
    with pytest.raises(ValueError, match="each once"):
        vi.game({"anna": (a, ("a", "b")), "bert": (b, ("b",))}, both)


def test_the_nash_gap_of_a_quadratic_game_is_what_players_could_gain() -> None:
    """min_a a(a + b) is at -b/2, so player a gains (a + b/2)² = 4; b gains 2(b - a/4)² = 49/8."""

    def a(params: Tree, batch: Batch) -> Tensor:
        return (params["a"] * (params["a"] + params["b"])).sum()

    def b(params: Tree, batch: Batch) -> Tensor:
        return (params["b"] * (2.0 * params["b"] - params["a"])).sum()

    both = {k: torch.tensor([v], dtype=torch.float64) for k, v in (("a", 1.0), ("b", 2.0))}
    duel = vi.game({"a": (a, ("a",)), "b": (b, ("b",))}, both)
    gap = vi.nash_gap(duel, both)
    assert gap is not None
    assert float(gap) == pytest.approx(4.0 + 49 / 8, abs=1e-6)


def test_a_lagrangian_has_its_multiplier_at_the_constrained_minimum() -> None:
    """min ½‖x - (2, 0)‖² with x_1 ≤ 1: x = (1, 0), multiplier 1. A residual of 0 proves it."""

    def loss(params: Tree, batch: Batch) -> Tensor:
        return 0.5 * (params["x"] - torch.tensor([2.0, 0.0])).square().sum()

    def over(params: Tree, batch: Batch) -> Tensor:
        return params["x"][:1] - 1.0

    start = {"x": torch.zeros(2, dtype=torch.float64)}
    for feasible in (None, Box(-3.0, 3.0)):
        problem = vi.lagrangian(loss, over, vi.site_rows(torch.eye(2)), start, 1, feasible)
        optimum = {"x": torch.tensor([1.0, 0.0]).double(), "multiplier": torch.ones(1).double()}
        assert vi.natural_residual(problem, optimum) < 1e-12
        assert vi.natural_residual(problem, problem.start) > 0.1


def test_affine_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"give \[sites, 3, 3\] and \[sites, 3\]"):
        vi.affine(torch.zeros(2, 2, 2), torch.zeros(2, 2), {"x": torch.zeros(3)})


# --- estimates


def test_the_lipschitz_constant_is_the_largest_singular_value() -> None:
    problem = named.affine_monotone(n_sites=3)
    M, _ = vi.mean_field(problem)
    found = lipschitz(problem.operator, problem.start, problem.batch(), random.key(1), 60)
    assert float(found) == pytest.approx(float(torch.linalg.matrix_norm(M, 2)), rel=1e-3)


def test_the_inexact_resolvent_tends_to_the_exact_one_from_any_constant() -> None:
    problem = named.bilinear_ball(n_sites=1)
    M, q = vi.mean_field(problem)
    x, gamma = trees.flatten(problem.start), 2.0
    eye = torch.eye(20, dtype=torch.float64)
    exact = solve_affine(gamma * M + eye, gamma * q - x, problem.start, problem.feasible)
    for guess in (0.0, 1.5, 4.0):
        y, value, bound = resolvent(
            problem.field, trees.zeros_like(problem.start), problem.start, gamma,
            torch.tensor(guess, dtype=torch.float64), 600, problem.feasible.project,
        )  # fmt: skip
        assert largest_gap(y, exact) < 1e-8
        assert largest_gap(value, problem.field(y)) < 1e-12
        assert bound >= guess


def test_monotonicity_is_seen_and_its_absence_found() -> None:
    monotone = monotonicity(named.bilinear_ball(n_sites=2), random.key(0))
    assert abs(monotone.smallest) < 1e-9 * monotone.scale
    strong = monotonicity(named.affine_monotone(n_sites=2), random.key(0))
    M, _ = vi.mean_field(named.affine_monotone(n_sites=2))
    least = torch.linalg.eigvalsh((M + M.T) / 2).min()
    assert float(least) - 1e-9 <= strong.modulus <= 1.2 * float(least)
    A = torch.diag(torch.tensor([1.0] * 19 + [-0.5])).double()[None]
    bent = vi.affine(A, torch.zeros(1, 20).double(), {"x": torch.ones(20)}, Ball(30.0))
    assert monotonicity(bent, random.key(0)).modulus == pytest.approx(-0.5, abs=0.01)


@pytest.mark.parametrize(
    ("problem", "method"),
    [
        (named.minimisation(n_sites=3), "scaffold"),
        (named.affine_monotone(n_sites=3), "scaffold"),
        (named.bilinear_ball(n_sites=3), "lippax"),
        (named.bilinear_ball(n_sites=3, heterogeneity=3.0), "lippax_certified"),
    ],
    ids=["minimisation", "strongly monotone", "saddle", "saddle of unlike sites"],
)
def test_the_diagnosis_names_the_method(problem: vi.VIProblem, method: str) -> None:
    found = diagnose(problem)
    assert found.method == method
    assert found.advice
    assert found.rotation == pytest.approx(0.0 if "minimisation" in problem.name else 1.0, abs=0.7)


# --- learning tasks


@pytest.mark.parametrize(
    "name", [n for n in PROBLEMS if n not in {*KNOWN, "shakespeare_roles", "eflops_lagrangian"}]
)
def test_tasks_are_monotone_and_their_sites_add_up(name: str) -> None:
    problem = make_problem(name, n_sites=4)
    assert problem.data.n_sites == 4
    found = monotonicity(problem, random.key(2))
    assert found.smallest >= -1e-6 * found.scale
    assert problem.problem.evaluate(problem.start, problem.batch())


def test_fair_logistic_weighs_groups_and_reports_the_worst() -> None:
    """∂f/∂q_g = -F_q is the loss of group g, log 2 at w = 0 for each group."""
    problem = tasks.fair_logistic(n_sites=5)
    losses = -problem.field(problem.start)["q"]
    assert losses.tolist() == pytest.approx([np.log(2.0)] * 4)
    figures = problem.problem.evaluate(problem.start, problem.batch())
    means = {k: v / w for k, (v, w) in figures.items()}
    assert set(problem.problem.summarise(means)) == {"loss", "accuracy", "worst_accuracy"}


def test_demographic_parity_holds_scores_together() -> None:
    x, group = normal(40, 3, dtype=torch.float64), torch.arange(40) % 2
    parity = tasks.demographic_parity(x, group, 0.01)
    w = parity.project({"w": torch.tensor([5.0, -4.0, 3.0])})["w"].double()
    means = [(x[group == g] @ w).mean() for g in (0, 1)]
    assert abs(float(means[0] - means[1])) <= 0.01 + 1e-6


def test_monotone_models_and_weight_balls_are_sets_of_leaves() -> None:
    sets = Product({"steps": MonotoneCone(), "rest": Ball(1.0)})
    found = sets.project({"steps": torch.tensor([2.0, 1.0, 3.0]), "rest": torch.full((4,), 2.0)})
    assert found["steps"].tolist() == [1.5, 1.5, 3.0]
    assert torch.linalg.vector_norm(found["rest"]) == pytest.approx(1.0)


def test_games_keep_their_players_apart() -> None:
    objective = games.multi_objective(n_sites=3)
    assert set(objective.field(objective.start)) == {"w", "t", "e"}
    policies = games.policy_game(n_sites=3)
    assert all(isinstance(s, Simplex) for s in policies.feasible.parts.values())  # type: ignore[attr-defined]
    assert vi.nash_gap(policies, policies.start, steps=20) >= 0  # type: ignore[operator]


def test_the_lagrangian_of_eflops_has_the_constraint_as_its_multipliers_field() -> None:
    """-F_λ = mean P(z>0) - ρ: σ(φ_0 - lower) = .67 at the start of .3, less .1."""
    problem = sparse.eflops_lagrangian(n_sites=3)
    over = -problem.field(problem.start)["multiplier"]
    assert float(over) == pytest.approx(0.67 - 0.1, abs=0.01)
    assert len(sparse.support(problem.start)) == sparse.INFORMATIVE


def test_shakespeare_says_where_it_looks(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDSIFT_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match="name the folder that holds shakespeare/ with FEDSIFT_DATA"
    ):
        tasks.shakespeare_roles()
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    speech = "".join(f"ROLE {c}:\nto be or not to be that is the {c}\n\n" for c in "abc")
    (folder / "tinyshakespeare.txt").write_text(speech)
    problem = tasks.shakespeare_roles(n_sites=2)
    assert problem.data.sites == ("ROLE a", "ROLE b")


@pytest.mark.parametrize(
    ("name", "knobs", "text"),
    [
        ("bilinear_bal", {}, "no problem 'bilinear_bal': did you mean 'bilinear_ball'"),
        ("nowhere:f", {}, "cannot import 'nowhere'"),
        ("math:nothing", {}, "module 'math' has no function 'nothing'"),
        ("fedsift.trees:norm", {}, "needs a; wrap it in a function without arguments"),
        ("affine", {"colour": 1}, "problem 'affine' takes no colour; it takes seed, n_sites"),
    ],
)
def test_problems_that_are_not_there_are_named(name: str, knobs: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_problem(name, **knobs)


def test_whole_space_needs_no_projection() -> None:
    tree = {"x": torch.ones(2)}
    assert WholeSpace().project(tree) is tree
