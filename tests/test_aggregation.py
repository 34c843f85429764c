"""The weighted mean."""

import torch

from fedsift.aggregation import AGGREGATORS, mean
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
