"""The cost of sparse networks: known counts, and nothing computed differs without dead channels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsift import models, random
from fedsift.macs import count_macs, without_dead_channels

SHAPE = (1, 28, 28)


def draw(seed: int, density: float = 1.0) -> dict[str, torch.Tensor]:
    """Return parameters of the digits network with random supports and random biases."""
    params = models.from_module(models.digits_cnn()).init(random.key(seed))
    for index, (leaf, value) in enumerate(params.items()):
        key = random.fold(random.key(seed, "support"), index)
        if leaf.endswith("bias"):
            params[leaf] = 0.5 * random.normal(key, value.shape, value.dtype)
        else:
            params[leaf] = value * (random.uniform(key, value.shape, value.dtype) < density)
    return params


def output(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.func.functional_call(models.digits_cnn(), params, (x,))
    return found


def test_the_dense_network_costs_what_its_layers_multiply() -> None:
    """5·5·6·24² + 6·5·5·16·8² + 256·120 + 120·84 + 84·10 = 281,640."""
    counts = count_macs(models.digits_cnn(), draw(0), SHAPE)
    assert [c.full for c in counts] == [86_400, 153_600, 30_720, 10_080, 840]
    assert all(c.sparse == c.compact == c.full for c in counts)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sampled_from([0.002, 0.01, 0.03, 0.3]))
def test_removing_dead_channels_changes_no_output(seed: int, density: float) -> None:
    params = draw(seed, density)
    pruned = without_dead_channels(models.digits_cnn(), params, SHAPE)
    x = random.normal(random.key(seed, "x"), (4, *SHAPE), torch.float32)
    torch.testing.assert_close(output(pruned, x), output(params, x), atol=1e-5, rtol=1e-4)
    weights = [leaf for leaf in params if leaf.endswith("weight")]
    assert all(((pruned[leaf] != 0) <= (params[leaf] != 0)).all() for leaf in weights)
    again = without_dead_channels(models.digits_cnn(), pruned, SHAPE)
    assert all(torch.equal(again[leaf], pruned[leaf]) for leaf in weights)


def test_a_channel_that_nobody_hears_and_one_that_hears_nothing_cost_nothing() -> None:
    """Without 1 of 16 channels: its 6·25 weights at 8² places, and 16 columns of 120 weights."""
    before = count_macs(models.digits_cnn(), draw(0), SHAPE)
    deaf, mute = draw(0), draw(0)
    deaf["3.weight"][5] = 0.0
    mute["7.weight"][:, 5 * 16 : 6 * 16] = 0.0
    for params in (deaf, mute):
        after = count_macs(models.digits_cnn(), params, SHAPE)
        saved = [b.sparse - a.sparse for b, a in zip(before, after, strict=True)]
        assert saved == [0, 150 * 64, 16 * 120, 0, 0]
        assert [a.compact for a in after] == [a.sparse for a in after]


def test_an_empty_network_costs_nothing() -> None:
    counts = count_macs(models.digits_cnn(), draw(0, 0.0), SHAPE)
    assert all(c.sparse == c.compact == 0 for c in counts)


def test_other_layers_are_refused_by_name() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU())
    with pytest.raises(ValueError, match=r"layer '0' is Conv2d.*padding.*whose cost is not known"):
        count_macs(network, dict(network.named_parameters()), (1, 8, 8))
