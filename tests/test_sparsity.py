"""Exactly m kept, a floor for every layer, gates onto leaves and back."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift import trees
from fedsift.sparsity import FLOOR, GateMap, GateView, kept_count, scheduled_density, top_mask
from tests.laws import normal

FEATURE = GateMap({"weight": GateView(0, (1, 5))})
CHANNEL = GateMap({"conv": GateView(0, (4, 1, 1)), "dense": GateView(4, (2, 4))})
SHARED = GateMap(
    {"in": GateView(2, (1, 3)), "out": GateView(2, (3, 1)), "other": GateView(0, (2,))}
)
LEAVES = {
    "feature": {"weight": (3, 5), "bias": (3,)},
    "channel": {"conv": (4, 2, 3), "dense": (2, 4), "bias": (2,)},
    "shared": {"in": (2, 3), "out": (3, 4), "other": (2,)},
}
MAPS = {"feature": FEATURE, "channel": CHANNEL, "shared": SHARED}


def params(name: str, seed: int = 0) -> trees.Tree:
    return {leaf: normal(*shape, seed=seed) for leaf, shape in LEAVES[name].items()}


@pytest.mark.parametrize(
    ("density", "size", "kept"),
    [(0.29, 100, 28 + 1), (0.57, 100, 57), (0.3, 10, 3), (0.025, 44426, 1110), (0.001, 3051, 3)],
)
def test_the_count_survives_rounding(density: float, size: int, kept: int) -> None:
    """.29 · 100 is 28.999999999999996 and .57 · 100 is 56.99999999999999 in floating point."""
    assert kept_count(density, size) == kept


@given(st.integers(1, 3000), st.data())
def test_the_density_of_a_count_gives_the_count_back(size: int, draw: st.DataObject) -> None:
    kept = draw.draw(st.integers(0, size))
    assert kept_count(kept / size, size) == kept


scores = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, -1.0, 1e-30]), min_size=1, max_size=30)


@given(scores, st.data())
def test_exactly_the_largest_are_kept_ties_or_not(values: list[float], draw: st.DataObject) -> None:
    kept = draw.draw(st.integers(0, len(values)))
    vector = torch.tensor(values)
    for count in (kept, torch.tensor(kept)):
        mask = top_mask(vector, count)
        assert set(mask.tolist()) <= {0.0, 1.0}
        assert mask.sum() == kept
        if 0 < kept < len(values):
            assert vector[mask == 1].min() >= vector[mask == 0].max()


def test_a_count_that_is_a_tensor_breaks_ties_by_position_and_differs_by_lane() -> None:
    vector = torch.ones(2, 5)
    masks = torch.func.vmap(top_mask)(vector, torch.tensor([2, 4]))
    assert masks.tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]


def test_asking_for_more_than_there_are_keeps_all() -> None:
    assert top_mask(normal(3), 9).sum() == 3
    assert top_mask(normal(3), torch.tensor(9)).sum() == 3


@pytest.mark.parametrize("name", MAPS)
def test_reduce_is_the_transpose_of_multiply(name: str) -> None:
    """⟨tree, expand(g)⟩ = ⟨reduce(tree), g⟩ for every g."""
    gates, tree = MAPS[name], params(name)
    g = normal(gates.size, seed=3)
    factors = gates.expand(g)
    inner = torch.stack([(tree[leaf] * factors[leaf]).sum() for leaf in factors]).sum()
    torch.testing.assert_close(inner, gates.reduce(tree) @ g)


@pytest.mark.parametrize("name", MAPS)
def test_a_gate_governs_its_parameters_and_no_others(name: str) -> None:
    gates, tree = MAPS[name], params(name)
    ungated = set(tree) - set(gates.views)
    closed = gates.multiply(tree, torch.zeros(gates.size))
    assert all((closed[leaf] == 0).all() for leaf in gates.views)
    assert all(torch.equal(closed[leaf], tree[leaf]) for leaf in ungated)
    total = torch.zeros(gates.size)
    for index in range(gates.size):
        alone = gates.multiply(tree, torch.eye(gates.size)[index])
        total[index] = sum((alone[leaf] ** 2).sum() for leaf in gates.views)
    torch.testing.assert_close(gates.magnitude(tree) ** 2, total)


def test_no_gate_at_all_says_so() -> None:
    assert GateMap({}).size == 0
    with pytest.raises(ValueError, match="no gated parameter"):
        GateMap({}).reduce({"bias": torch.ones(2)})


@given(st.integers(4, 12), st.integers(0, 5))
def test_no_layer_is_emptied(kept: int, seed: int) -> None:
    """Layer 1 has scores a thousand times larger, and still every layer keeps its floor."""
    gates = GateMap(
        {
            "a": GateView(0, (6,)),
            "b": GateView(6, (2, 4)),
            "c": GateView(14, (1,)),
            "d": GateView(15, (9,)),
        }
    )
    scale = torch.cat(
        [1000 * torch.ones(6), torch.ones(8), torch.full((1,), 1e-9), 1e-6 * torch.ones(9)]
    )
    mask = gates.keep(normal(24, seed=seed).abs() * scale, kept, kept)
    assert mask.sum() == kept
    floor = max(1, int(FLOOR * kept / 4))
    for view in gates.views.values():
        held = mask[view.start : view.start + view.n_gates].sum()
        assert held >= min(floor, view.n_gates)


def test_one_layer_keeps_the_largest() -> None:
    vector = normal(5).abs()
    assert torch.equal(FEATURE.keep(vector, 2, 2), top_mask(vector, 2))


def test_fewer_than_layers_still_keeps_exactly_that_many() -> None:
    assert CHANNEL.keep(normal(12).abs(), 1, 1).sum() == 1
    assert CHANNEL.keep(torch.zeros(12), torch.tensor(3), 3).sum() == 3


def test_the_cubic_schedule() -> None:
    """ρ + (1 - ρ)(1 - t/.7)³: at t = .35 half way, .1 + .9/8; from .7 on ρ."""
    progress = torch.tensor([0.0, 0.35, 0.7, 0.9, 1.0])
    asked = scheduled_density(0.1, "cubic", progress)
    torch.testing.assert_close(asked, torch.tensor([1.0, 0.2125, 0.1, 0.1, 0.1]))
    falling = scheduled_density(0.1, "cubic", torch.linspace(0, 1, 50)).tolist()
    assert all(a >= b for a, b in pairwise(falling))
    constant = scheduled_density(0.1, "constant", progress)
    assert all(math.isclose(v, 0.1, rel_tol=1e-6) for v in constant.tolist())
