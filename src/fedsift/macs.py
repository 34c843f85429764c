"""What a sparse network costs to use: multiplications by layer, without channels that do nothing.

A channel (or neuron) whose incoming weights are all 0 has one value, relu(bias), for every input;
it goes into the next layer's bias. One whose outgoing weights are all 0 is heard by nobody. Both
are removed, and what the network computes stays the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedsift.trees import Tree


class LayerMacs(NamedTuple):
    """Multiply-accumulate operations of one layer for one input.

    ``sparse``: one a weight that is not 0 and position; ``compact``: of the dense layer between the
    channels that are left, which needs no sparse kernels; ``full``: of the layer as it was built.
    Additions of biases are not counted.
    """

    layer: str
    sparse: int
    compact: int
    full: int


def without_dead_channels(network: nn.Sequential, params: Tree, shape: tuple[int, ...]) -> Tree:
    """Return parameters of the same function in which channels that do nothing are 0.

    Args:
        network: convolutions without padding, linear layers, ReLU, max pooling and Flatten.
        params: its parameters by name.
        shape: of one input, without the batch.

    Raises:
        ValueError: the network has another layer; the text names it.
    """
    sizes = output_shapes(network, shape)
    pruned = {name: value.clone() for name, value in params.items()}
    known = torch.full((shape[0],), torch.nan, dtype=next(iter(params.values())).dtype)
    for name, layer in network.named_children():
        if isinstance(layer, nn.Flatten):
            known = known.repeat_interleave(math.prod(sizes[name]) // len(known))
        elif isinstance(layer, nn.ReLU):
            known = known.relu()
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            known = _fold(pruned, name, known)
    heard: Tensor | None = None
    for name, layer in reversed(list(network.named_children())):
        if isinstance(layer, nn.Flatten) and heard is not None:
            heard = heard.reshape(_channels_before(network, name, sizes, shape), -1).any(1)
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            heard = _drop(pruned, name, heard)
    return pruned


def count_macs(network: nn.Sequential, params: Tree, shape: tuple[int, ...]) -> list[LayerMacs]:
    """Return the cost of each layer, dead channels removed; arguments as above."""
    sizes = output_shapes(network, shape)
    pruned = without_dead_channels(network, params, shape)
    found = []
    for name, layer in network.named_children():
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        weight = pruned[f"{name}.weight"] != 0
        positions = math.prod(sizes[name][1:])
        by_channel = weight.flatten(2).any(2) if weight.ndim > 2 else weight
        taps = math.prod(weight.shape[2:])
        alive = int(by_channel.any(1).sum()) * int(by_channel.any(0).sum()) * taps
        counts = (int(weight.sum()), alive, weight.numel())
        found.append(LayerMacs(name, *(count * positions for count in counts)))
    return found


def output_shapes(network: nn.Sequential, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each layer's output for one input.

    Raises:
        ValueError: a layer is not of a kind that this module knows.
    """
    x, shapes = torch.zeros(1, *shape), {}
    plain = (nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Flatten)
    for name, layer in network.named_children():
        plain_convolution = (
            isinstance(layer, nn.Conv2d) and layer.padding in {0, (0, 0)} and layer.groups == 1
        )
        if not (plain_convolution or isinstance(layer, plain)):
            msg = (
                f"layer {name!r} is {layer}, whose cost is not known here; use convolutions "
                "without padding and groups, linear layers, ReLU, max pooling and Flatten"
            )
            raise ValueError(msg)
        x = layer(x.to(next(layer.parameters(), x).dtype))
        shapes[name] = tuple(x.shape[1:])
    return shapes


def _fold(params: Tree, name: str, known: Tensor) -> Tensor:
    """Move the contribution of constant inputs into the bias; return the outputs' constants."""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    constant = ~known.isnan()
    taps = weight.flatten(2).sum(2) if weight.ndim > 2 else weight
    bias += taps @ known.nan_to_num(0.0)
    weight[:, constant] = 0.0
    return torch.where(weight.flatten(1).any(1), torch.nan, bias)


def _drop(params: Tree, name: str, heard: Tensor | None) -> Tensor:
    """Zero the outputs that nobody hears; return which inputs are heard."""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    if heard is not None:
        weight[~heard] = 0.0
        bias[~heard] = 0.0
    return weight.transpose(0, 1).flatten(1).any(1)


def _channels_before(
    network: nn.Sequential,
    layer: str,
    sizes: dict[str, tuple[int, ...]],
    shape: tuple[int, ...],
) -> int:
    names = [name for name, _ in network.named_children()]
    place = names.index(layer)
    return sizes[names[place - 1]][0] if place else shape[0]
