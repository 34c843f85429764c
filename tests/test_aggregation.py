"""The weighted mean, of all uploads and region by region."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift.aggregation import AGGREGATORS, assign_regions, mean, mean_by_region
from tests.laws import normal


def test_the_mean_by_hand() -> None:
    """(1·2 + 3·6) / 4 = 5."""
    stacked = {"a": torch.tensor([[2.0, 0.0], [6.0, 4.0]]), "b": torch.tensor([1.0, 1.0])}
    combined = mean(stacked, torch.tensor([1.0, 3.0]))
    assert combined["a"].tolist() == [5.0, 3.0]
    assert float(combined["b"]) == 1.0


def test_what_does_not_count_does_not_matter() -> None:
    stacked = {"a": normal(4, 3)}
    weight = torch.tensor([2.0, 0.0, 1.0, 0.0])
    torch.testing.assert_close(
        mean(stacked, weight), mean({"a": stacked["a"][[0, 2]]}, weight[[0, 2]])
    )
    assert mean({"a": torch.zeros(4, 3)}, torch.zeros(4))["a"].tolist() == [0.0] * 3


def test_where_all_agree_the_mean_is_exactly_what_they_say() -> None:
    """Sevenths do not add up to one in floating point."""
    stacked = {"a": normal(1, 50).repeat(7, 1)}
    for weight in (torch.ones(7), torch.arange(7.0)):
        assert torch.equal(mean(stacked, weight)["a"], stacked["a"][0])


def test_the_scale_of_the_weights_and_the_order_do_not_matter() -> None:
    stacked, weight = {"a": normal(5, 3).double()}, torch.tensor([1.0, 4.0, 2.0, 9.0, 3.0])
    expected = mean(stacked, weight)["a"]
    torch.testing.assert_close(mean(stacked, 1000 * weight)["a"], expected, rtol=1e-14, atol=1e-14)
    turned = mean({"a": stacked["a"].flip(0)}, weight.flip(0))["a"]
    torch.testing.assert_close(turned, expected, rtol=1e-14, atol=1e-14)


def test_float64_uploads_are_averaged_in_float64_whatever_the_weights() -> None:
    stacked, weight = {"a": normal(3, 4, dtype=torch.float64)}, torch.tensor([1.0, 5.0, 7.0])
    exact = (weight.double()[:, None] * stacked["a"]).sum(0) / 13
    torch.testing.assert_close(mean(stacked, weight)["a"], exact, rtol=1e-15, atol=1e-15)


def test_lanes_are_independent() -> None:
    stacked, weight = {"a": normal(3, 4, 2)}, normal(3, 4, seed=1).abs()
    lanes = torch.func.vmap(AGGREGATORS["mean"])(stacked, weight)["a"]
    for lane in range(3):
        torch.testing.assert_close(lanes[lane], mean({"a": stacked["a"][lane]}, weight[lane])["a"])


def test_the_means_of_regions_by_hand() -> None:
    """Regions {0, 2} and {1}: (1·2 + 3·6) / 4 = 5 and 7; 2 has no upload that counts, 3 none."""
    stacked = {"a": torch.tensor([[2.0, 0.0], [7.0, 0.0], [6.0, 4.0], [9.0, 9.0]])}
    weight, region = torch.tensor([1.0, 2.0, 3.0, 0.0]), torch.tensor([0, 1, 0, 2])
    means, weights = mean_by_region(stacked, weight, region)
    assert weights.tolist() == [4.0, 2.0, 0.0, 0.0]
    assert means["a"][:2].tolist() == [[5.0, 3.0], [7.0, 0.0]]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=10))
def test_the_mean_of_the_regions_is_the_mean(members: list[tuple[int, int]]) -> None:
    """For any regions and weights; numbers that are zero everywhere stay zero."""
    count = len(members)
    region = torch.tensor([place for place, _ in members]) % count
    weight = torch.tensor([float(w) for _, w in members])
    if not weight.any():
        weight[0] = 1.0
    stacked = {"a": normal(count, 5), "b": torch.zeros(count, 3), "c": normal(count, seed=2)}
    means, weights = mean_by_region(stacked, weight, region)
    for name, flat in mean(stacked, weight).items():
        torch.testing.assert_close(mean(means, weights)[name], flat, rtol=1e-6, atol=1e-6)
    assert not means["b"].any()
    assert weights.sum() == weight.sum()


def test_where_a_region_agrees_its_mean_is_exactly_what_its_sites_say() -> None:
    stacked = {"a": normal(1, 50).repeat(7, 1)}
    means, _ = mean_by_region(stacked, torch.arange(7.0), torch.tensor([0, 0, 0, 1, 1, 1, 1]))
    assert torch.equal(means["a"][:2], stacked["a"][:2])


def test_regions_in_lanes_are_independent() -> None:
    stacked, weight = {"a": normal(3, 4, 2)}, normal(3, 4, seed=1).abs()
    region = torch.tensor([[0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 0]])
    lanes, weights = torch.func.vmap(mean_by_region)(stacked, weight, region)
    for lane in range(3):
        alone = mean_by_region({"a": stacked["a"][lane]}, weight[lane], region[lane])
        torch.testing.assert_close((lanes["a"][lane], weights[lane]), (alone[0]["a"], alone[1]))


def test_sites_are_dealt_to_regions_by_name() -> None:
    """A site keeps its region whoever else is there; a thousand are dealt about evenly."""
    names = [f"site {number}" for number in range(1000)]
    dealt = assign_regions(names, 10)
    assert torch.equal(assign_regions(names[::2], 10), dealt[::2])
    assert 60 < int(dealt.bincount(minlength=10).min()) <= int(dealt.bincount().max()) < 145
    named = assign_regions(["a", "b", "c"], {"c": "south", "a": "north", "b": "south", "z": "-"})
    assert named[1] == named[2] != named[0]


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        (0, "regions is 0; give 1 to 2"),
        (3, "regions is 3"),
        ({"a": "north"}, "no region for site 'b'"),
    ],
)
def test_regions_that_make_no_sense_are_refused(regions: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign_regions(["a", "b"], regions)
