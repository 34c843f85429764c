"""Models as pure functions: starts from keys, keyed dropout, refusals by the layer's name."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsift import models, random
from tests.laws import bit_equal, normal

KEY = random.key(1, "model")


def drop_network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 50), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.4), nn.Linear(50, 2)
    )


def test_the_linear_model_is_x_times_w_plus_b() -> None:
    model = models.linear(4, 3)
    params = {"weight": normal(3, 4), "bias": normal(3)}
    x = normal(5, 4)
    torch.testing.assert_close(
        model.apply(params, x, None), x @ params["weight"].T + params["bias"]
    )
    assert all((leaf == 0).all() for leaf in model.init(KEY).values())
    assert list(model.gates.views) == ["weight"]


@pytest.mark.parametrize(("gate", "count"), [("feature", 4), ("scalar", 12)])
def test_a_gate_is_a_feature_or_a_scalar(gate: models.GateUnit, count: int) -> None:
    assert models.linear(4, 3, gate=gate).gates.size == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_keep_their_precision_on_float32_rows(dtype: torch.dtype) -> None:
    linear = models.linear(4, dtype=dtype)
    assert linear.apply(linear.init(KEY), normal(3, 4), None).dtype == dtype
    network = models.from_module(models.mlp((4, 3, 1)).to(dtype))
    assert network.apply(network.init(KEY), normal(3, 4), KEY).dtype == dtype


def test_the_digits_network_has_44426_parameters() -> None:
    """6·(25+1) + 16·(150+1) + 120·(256+1) + 84·(120+1) + 10·(84+1) = 44,426."""
    model = models.from_module(models.digits_cnn())
    params = model.init(KEY)
    assert sum(leaf.numel() for leaf in params.values()) == 44_426
    assert model.gates.size == 44_426 - (6 + 16 + 120 + 84 + 10)
    assert model.apply(params, normal(2, 1, 28, 28), None).shape == (2, 10)
    by_channel = models.from_module(models.digits_cnn(), gate="channel")
    assert by_channel.gates.size == 6 + 16 + 120 + 84 + 10


def test_named_weights_have_no_gate() -> None:
    model = models.from_module(models.digits_cnn(), gate="channel", ungated=["11.weight"])
    assert model.gates.size == 6 + 16 + 120 + 84
    assert "11.weight" not in model.gates.views
    with pytest.raises(
        ValueError, match=r"no parameter 'last' to leave without gates; choose from"
    ):
        models.from_module(models.digits_cnn(), ungated=["last"])


def test_a_start_is_a_function_of_the_key_alone() -> None:
    torch.manual_seed(0)
    one = models.from_module(models.mlp((4, 8, 2)))
    torch.manual_seed(1)
    other = models.from_module(models.mlp((4, 8, 2)))
    weights = [leaf for leaf in one.init(KEY) if leaf.endswith("weight")]
    assert all(torch.equal(one.init(KEY)[leaf], other.init(KEY)[leaf]) for leaf in weights)
    assert not torch.equal(one.init(KEY)["1.weight"], one.init(random.key(2, "model"))["1.weight"])


def test_a_start_is_uniform_with_variance_two_over_fan_in() -> None:
    """Uniform in ±√(6/n) has variance 2/n (He et al., 2015)."""
    model = models.from_module(nn.Sequential(nn.Conv2d(3, 40, 5), nn.Linear(16, 200)))
    params = model.init(KEY)
    for leaf, fan_in in (("0.weight", 75), ("1.weight", 16)):
        assert params[leaf].abs().max() <= (6 / fan_in) ** 0.5
        assert float(params[leaf].var()) == pytest.approx(2 / fan_in, rel=0.06)


def test_starts_of_many_keys_can_be_drawn_at_once() -> None:
    model = models.from_module(models.mlp((4, 3, 2)))
    keys = torch.stack([random.key(i) for i in range(3)])
    drawn = torch.func.vmap(model.init)(keys)
    for lane in range(3):
        assert bit_equal({k: v[lane] for k, v in drawn.items()}, model.init(keys[lane]))


def test_dropout_is_a_function_of_the_key_and_off_in_evaluation() -> None:
    model = models.from_module(drop_network())
    params, x = model.init(KEY), normal(6, 4)
    again = model.apply(params, x, KEY)
    assert torch.equal(model.apply(params, x, KEY), again)
    assert not torch.equal(model.apply(params, x, random.key(2)), again)
    plain = drop_network().eval()
    plain.load_state_dict(params)
    torch.testing.assert_close(model.apply(params, x, None), plain(x))
    torch.manual_seed(5)
    assert torch.equal(model.apply(params, x, KEY), again)


def test_two_dropout_layers_draw_different_masks() -> None:
    layers = models.from_module(nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1), nn.Dropout(0.5)))
    modules = [models.KeyedDropout(0.5, place) for place in (1, 3)]
    masks = []
    for module in modules:
        module.key = KEY
        masks.append(module(torch.ones(200)) > 0)
    assert not torch.equal(*masks)
    assert layers.gates.size == 1


def test_dropout_keeps_its_share_and_the_mean() -> None:
    """10,000 kept with probability .7 and scaled by 1/.7: mean 1 ± .0065."""
    module = models.KeyedDropout(0.3, 1)
    module.key = KEY
    kept = module(torch.ones(10_000))
    assert abs(float((kept > 0).float().mean()) - 0.7) < 0.02
    assert abs(float(kept.mean()) - 1.0) < 0.03


@given(st.integers(1, 9))
@settings(max_examples=10)
def test_dropout_of_a_row_does_not_depend_on_padding(padding: int) -> None:
    model = models.from_module(drop_network())
    params, x = model.init(KEY), normal(3, 4)
    padded = torch.cat([x, torch.zeros(padding, 4)])
    torch.testing.assert_close(model.apply(params, padded, KEY)[:3], model.apply(params, x, KEY))


def test_dropout_works_in_lanes() -> None:
    model = models.from_module(drop_network())
    params, x = model.init(KEY), normal(6, 4)
    keys = torch.stack([random.key(i) for i in range(3)])
    lanes = torch.func.vmap(lambda k: model.apply(params, x, k))(keys)
    for lane in range(3):
        torch.testing.assert_close(lanes[lane], model.apply(params, x, keys[lane]))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(8), r"layer '1\.norm' is BatchNorm1d.*GroupNorm"),
        (nn.InstanceNorm1d(8, track_running_stats=True), r"layer '1\.norm' is InstanceNorm1d"),
        (nn.Dropout2d(), r"layer '1\.norm' is Dropout2d.*torch\.nn\.Dropout"),
    ],
)
def test_layers_that_sites_cannot_share_are_refused_by_name(layer: nn.Module, words: str) -> None:
    block = nn.Sequential()
    block.add_module("norm", layer)
    with pytest.raises(ValueError, match=words):
        models.from_module(nn.Sequential(nn.Linear(4, 8), block))


def test_a_buffer_of_the_users_own_called_key_is_left_alone() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.register_buffer("key", torch.full((1,), 7.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shifted: torch.Tensor = self.layer(x) + self.key
            return shifted

    model = models.from_module(Shifted())
    params, x = model.init(KEY), normal(3, 4)
    torch.testing.assert_close(model.apply(params, x, KEY), model.apply(params, x, None))


def test_group_norm_is_fine_and_the_given_module_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    model = models.from_module(module)
    model.apply(model.init(KEY), normal(3, 4), KEY)
    assert isinstance(module[2], nn.Dropout)
    assert bit_equal(before, dict(module.state_dict()))
    assert "1.weight" in model.init(KEY)
    assert "1.weight" not in model.gates.views
