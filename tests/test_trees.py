"""Arithmetic on dicts of tensors and on nested states."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift import trees
from tests.laws import bit_equal, normal


class State(NamedTuple):
    theta: trees.Tree
    pair: tuple[torch.Tensor, None]


def state(seed: int) -> State:
    return State(
        {"a": normal(2, seed=seed), "b": normal(3, 2, seed=seed)}, (normal(seed=seed), None)
    )


def test_map_keeps_the_structure() -> None:
    doubled = trees.map_tensors(lambda a, b: a + b, state(0), state(0))
    assert isinstance(doubled, State)
    assert doubled.pair[1] is None
    assert bit_equal(doubled, trees.map_tensors(lambda t: 2 * t, state(0)))
    assert [tuple(t.shape) for t in trees.leaves(doubled)] == [(2,), (3, 2), ()]


def test_map_refuses_what_is_no_state() -> None:
    with pytest.raises(TypeError, match="a state holds tensors, dicts and tuples; found list"):
        trees.map_tensors(lambda t: t, {"a": [1.0]})
    with pytest.raises(ValueError, match="zip"):
        trees.map_tensors(lambda a, _: a, (torch.ones(1),), ())


@given(st.integers(1, 4))
def test_stacking_and_taking_apart_are_inverse(count: int) -> None:
    stacked = trees.stack(state(i) for i in range(count))
    for i in range(count):
        assert bit_equal(trees.unstack(stacked, i), state(i))


def test_where_chooses_lane_by_lane() -> None:
    a, b = trees.stack([state(0), state(1)]), trees.stack([state(2), state(3)])
    mixed = trees.where(torch.tensor([True, False]), a, b)
    assert bit_equal(mixed, trees.stack([state(0), state(3)]))


def test_where_does_not_leak_what_is_not_finite() -> None:
    bad = {"x": torch.tensor([[torch.nan], [1.0]])}
    good = {"x": torch.zeros(2, 1)}
    assert trees.all_finite(trees.where(torch.tensor([False, True]), bad, good))
    assert not trees.all_finite(bad)
    assert not trees.all_finite(({"x": torch.ones(1)}, torch.tensor(torch.inf)))


def test_the_vector_space() -> None:
    a, b = state(0).theta, state(1).theta
    assert bit_equal(trees.add_scaled(a, 0.5, b), trees.add(a, trees.scale(b, 0.5)))
    assert bit_equal(trees.subtract(a, a), trees.zeros_like(a))
    torch.testing.assert_close(trees.dot(a, b), trees.dot(b, a))
    torch.testing.assert_close(trees.norm(a) ** 2, trees.dot(a, a))
    torch.testing.assert_close(
        trees.dot(a, b), torch.stack([v.sum() for v in trees.multiply(a, b).values()]).sum()
    )


def test_parts_come_out_as_they_went_in() -> None:
    theta, phi = state(0).theta, normal(4)
    message = trees.join(theta=theta, phi=phi, thetas={"a": phi})
    assert list(message) == ["theta/a", "theta/b", "phi", "thetas/a"]
    assert bit_equal(trees.part(message, "theta"), theta)
    assert list(trees.part(message, "thetas")) == ["a"]
    assert trees.part(message, "absent") == {}
