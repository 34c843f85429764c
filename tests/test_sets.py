"""Projections: an oracle, and the laws that make a map a projection onto a convex set."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn.isotonic import isotonic_regression
from torch.func import vmap

from fedsift import sets
from tests.laws import normal

D = 6
DIRECTION = normal(D, seed=3, dtype=torch.float64)
FACES = normal(9, D, seed=4, dtype=torch.float64)
ROOM = torch.ones(9, dtype=torch.float64)
EQUATIONS = normal(2, D, seed=5, dtype=torch.float64)


# Each set with the same set as inequalities G x ≤ h, where it is a polyhedron.
EYE = np.eye(D)
CASES = {
    "whole": (sets.WholeSpace(), None),
    "ball": (sets.Ball(1.5), None),
    "ball elsewhere": (sets.Ball(0.7, DIRECTION), None),
    "box": (sets.Box(-0.3, 0.5), (np.vstack([EYE, -EYE]), np.r_[[0.5] * D, [0.3] * D])),
    "orthant": (sets.Orthant(), (-EYE, np.zeros(D))),
    "simplex": (
        sets.Simplex(1.0),
        (np.vstack([-EYE, np.ones((1, D)), -np.ones((1, D))]), np.r_[np.zeros(D), 1.0, -1.0]),
    ),
    "l1": (sets.L1Ball(1.2), None),
    "half-space": (sets.HalfSpace(DIRECTION, 0.4), (DIRECTION[None].numpy(), np.array([0.4]))),
    "slab": (
        sets.Slab(DIRECTION, -0.2, 0.4),
        (np.vstack([DIRECTION.numpy(), -DIRECTION.numpy()]), np.array([0.4, 0.2])),
    ),
    "affine": (
        sets.AffineSpace(EQUATIONS, torch.ones(2, dtype=torch.float64)),
        (np.vstack([EQUATIONS.numpy(), -EQUATIONS.numpy()]), np.array([1.0, 1.0, -1.0, -1.0])),
    ),
    "polyhedron": (sets.Polyhedron(FACES, ROOM), (FACES.numpy(), ROOM.numpy())),
    "monotone": (sets.MonotoneCone(), (EYE[:-1] - EYE[1:], np.zeros(D - 1))),
}


def oracle(G, h, p):
    """Project p onto G x ≤ h as a least-distance problem, by non-negative least squares: exact.

    Source: Lawson & Hanson, "Solving least squares problems", 1974, chapter 23.
    """
    right = G @ p - h
    system = np.vstack([-G.T, right])
    target = np.r_[np.zeros(len(p)), 1.0]
    u, _ = nnls(system, target, maxiter=10_000)
    r = system @ u - target
    return p if abs(r[-1]) < 1e-14 else p - r[:-1] / r[-1]


vectors = st.lists(st.floats(-20, 20), min_size=D, max_size=D).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)


@pytest.mark.parametrize("name", [k for k, v in CASES.items() if v[1] is not None])
@settings(max_examples=12)
@given(v=vectors)
def test_projections_are_those_of_a_quadratic_programme(name, v):
    feasible, faces = CASES[name]
    assert faces is not None
    G, h = faces
    found = feasible.project({"x": v})["x"].numpy()
    assert (G @ found - h).max() <= 1e-7 * (1 + float(v.abs().max()))
    expected = oracle(G, h, v.numpy())
    assert np.abs(found - expected).max() <= 1e-5 * (1 + float(v.abs().max()))


@settings(max_examples=40)
@given(v=vectors)
def test_the_l1_ball_is_a_quadratic_programme_in_absolute_values(v):
    G, h = np.vstack([-EYE, np.ones((1, D))]), np.r_[np.zeros(D), 1.2]
    expected = np.sign(v.numpy()) * oracle(G, h, np.abs(v.numpy()))
    assert np.abs(sets.L1Ball(1.2).project({"x": v})["x"].numpy() - expected).max() <= 1e-6


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12)
@given(a=vectors, b=vectors)
def test_projections_are_idempotent_and_firmly_nonexpansive(name, a, b):
    """‖P(a) - P(b)‖² ≤ ⟨P(a) - P(b), a - b⟩."""
    feasible, _ = CASES[name]
    p, q = (feasible.project({"x": v})["x"] for v in (a, b))
    size = 1.0 + float(a.abs().max() + b.abs().max())
    assert (feasible.project({"x": p})["x"] - p).abs().max() <= 1e-7 * size
    assert (p - q) @ (p - q) <= (p - q) @ (a - b) + 1e-7 * size**2


@pytest.mark.parametrize("name", CASES)
def test_float32_is_feasible_to_1e_6_and_batches_agree(name):
    feasible, faces = CASES[name]
    points = 3.0 * normal(12, D, seed=9)
    batched = vmap(lambda v: feasible.project({"x": v})["x"])(points)
    assert batched.dtype == torch.float32
    for point, found in zip(points, batched, strict=True):
        alone = feasible.project({"x": point})["x"]
        assert (alone - found).abs().max() <= 1e-6
        if faces is not None:
            G, h = faces
            assert (G @ found.double().numpy() - h).max() <= 1e-6 * max(1.0, abs(G).sum(1).max())
        if isinstance(feasible, sets.Ball):
            length = torch.linalg.vector_norm(found.double() - feasible.center)
            assert length <= feasible.radius + 1e-6


@pytest.mark.parametrize("name", [k for k, (s, _) in CASES.items() if s.bounded])
def test_support_and_farthest_point_are_largest_over_the_set(name):
    """No sampled point beats them; the support is reached by far points of the direction."""
    feasible, _ = CASES[name]
    points = [
        feasible.project({"x": scale * normal(D, seed=s, dtype=torch.float64)})["x"]
        for s in range(60)
        for scale in (1.0, 1e6)
    ]
    for seed in range(10):
        g = normal(D, seed=100 + seed, dtype=torch.float64)
        reached = feasible.project({"x": 1e9 * g})["x"] @ g
        support = feasible.support({"x": g})
        assert max(float(p @ g) for p in points) <= support + 1e-9
        assert reached == pytest.approx(float(support), abs=1e-5)
        far = feasible.farthest({"x": g})
        assert max(float(torch.linalg.vector_norm(p - g)) for p in points) <= far + 1e-9


def test_the_monotone_cone_is_isotonic_regression():
    v = normal(200, seed=1, dtype=torch.float64)
    found = sets.MonotoneCone().project({"x": v})["x"]
    assert np.abs(found.numpy() - isotonic_regression(v.numpy())).max() < 1e-12


def test_a_ball_takes_zero_and_huge_numbers():
    ball = sets.Ball(2.0)
    zero = torch.zeros(3)
    assert torch.equal(ball.project({"x": zero})["x"], zero)
    huge = torch.tensor([3e38, 0.0, 3e38])
    found = ball.project({"x": huge})["x"]
    assert found.tolist() == pytest.approx([math.sqrt(2.0), 0.0, math.sqrt(2.0)])


def test_products_give_parts_their_own_set_and_balls_take_whole_models():
    tree = {
        "model/w": torch.full((2, 2), 3.0),
        "model/b": torch.full((2,), 4.0),
        "p": torch.ones(4),
    }
    free = {**tree, "free": torch.tensor([9.0])}
    product = sets.Product({"model": sets.Ball(1.0), "p": sets.Simplex()})
    found = product.project(free)
    whole = torch.cat([found["model/w"].reshape(-1), found["model/b"]])
    assert torch.linalg.vector_norm(whole) == pytest.approx(1.0)
    assert found["p"].tolist() == pytest.approx([0.25] * 4)
    assert found["free"].item() == 9.0
    assert list(found) == list(free)
    assert product.bounded
    with pytest.raises(ValueError, match="a set is given for 'p', the parameters are model/w, q"):
        product.project({"model/w": tree["model/w"], "q": tree["p"]})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sets.Ball(-1.0), "radius is -1.0"),
        (lambda: sets.Box(1.0, 0.0), "the box is empty"),
        (lambda: sets.Slab(torch.zeros(3), 0.0, 1.0), "its normal is zero"),
        (
            lambda: sets.Polyhedron(torch.tensor([[1.0], [-1.0]]), torch.tensor([-1.0, -1.0])),
            "nothing",
        ),
        (
            lambda: sets.AffineSpace(torch.ones(2, 2), torch.tensor([0.0, 1.0])),
            "contradict each other",
        ),
    ],
)
def test_empty_sets_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()
