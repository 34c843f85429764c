"""Models: parameters from a key, and the output for a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedsift import random
from fedsift.sparsity import GateMap, GateView, Grouping
from fedsift.trees import Tree

Apply: TypeAlias = Callable[[Tree, Tensor, Tensor | None], Tensor]
GateUnit = Literal["scalar", "feature", "channel"]
_DROPOUT = nn.modules.dropout._DropoutNd  # noqa: SLF001  the base of all dropouts has no public name


@dataclass(frozen=True)
class Model:
    """A model as pure functions.

    Attributes:
        init: key → parameters.
        apply: (params, x [n, ...], key or None in evaluation) → output [n, K]; the key is a scalar
            or one a row.
        gates: which parameters share a gate.
        draws: whether it draws random numbers in training.
        apart: the same model, for lanes that share no rows and are fused: a matrix times one vector
            is faster as a sum of products there.
        pullback: (params, x, c [n, K]) → Σ cᵢ ∂outputᵢ/∂params, where it is simpler than autograd.
    """

    init: Callable[[Tensor], Tree]
    apply: Apply
    gates: GateMap
    pullback: Callable[[Tree, Tensor, Tensor], Tree] | None = None
    draws: bool = False
    apart: Model | None = None


def linear(
    n_features: int,
    n_outputs: int = 1,
    *,
    gate: GateUnit | tuple[int, ...] = "feature",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Return the linear model ``x Wᵀ + b``, W [K, d], b [K].

    With ``gate="feature"`` the K weights of a feature share one gate; ``"scalar"`` gives each
    weight its own; d numbers are those of the features' gates. The bias has none. All start at
    zero: with fewer rows than features a random start would stay in the fit.
    """

    def init(key: Tensor) -> Tree:  # noqa: ARG001
        return {
            "weight": torch.zeros(n_outputs, n_features, dtype=dtype),
            "bias": torch.zeros(n_outputs, dtype=dtype),
        }

    def apply(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:  # noqa: ARG001
        # In this order lanes that share rows become the rows of one matrix product.
        return (params["weight"] @ x.to(dtype).T).T + params["bias"]

    def pullback(params: Tree, x: Tensor, cotangent: Tensor) -> Tree:  # noqa: ARG001
        cotangent = cotangent.to(dtype)
        return {"weight": _rows_of(cotangent) @ x.to(dtype), "bias": cotangent.sum(0)}

    def apply_apart(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:  # noqa: ARG001
        return (x.to(dtype) * params["weight"]).sum(-1, keepdim=True) + params["bias"]

    def pullback_apart(params: Tree, x: Tensor, cotangent: Tensor) -> Tree:  # noqa: ARG001
        cotangent = cotangent.to(dtype)
        weight = (cotangent * x.to(dtype)).sum(0, keepdim=True)
        return {"weight": weight, "bias": cotangent.sum(0)}

    shape = (n_outputs, n_features) if gate == "scalar" else (1, n_features)
    view = GateView(0, shape, gate if isinstance(gate, tuple) else None)
    gates = GateMap({"weight": view})
    apart = Model(init, apply_apart, gates, pullback_apart) if n_outputs == 1 else None
    return Model(init, apply, gates, pullback, apart=apart)


def grouped(groups: Grouping, n_outputs: int = 1) -> Model:
    """Return the linear model whose features share gates.

    W [K, d + copies] has a weight for each copy of a feature (`Grouping`), and that of the feature
    is their sum.
    """
    model = linear(len(groups.gates), n_outputs, gate=groups.gates)
    own = range(len(groups.gates) - len(groups.copies))
    return _on_columns(model, torch.tensor([*own, *groups.copies])) if groups.copies else model


def _on_columns(model: Model, columns: Tensor) -> Model:
    """Return a model that sees these columns of its rows, some of them several times."""

    def apply(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        return model.apply(params, x.index_select(-1, columns), key)

    def pullback(params: Tree, x: Tensor, cotangent: Tensor) -> Tree:
        assert model.pullback is not None  # noqa: S101  a linear model has one
        return model.pullback(params, x.index_select(-1, columns), cotangent)

    apart = None if model.apart is None else _on_columns(model.apart, columns)
    return Model(model.init, apply, model.gates, pullback, apart=apart)


def with_covariates(model: Model, count: int, n_outputs: int = 1) -> Model:
    """Return a model plus ``z Cᵀ``, for rows whose last ``count`` numbers z are covariates.

    C [K, count] is the leaf ``covariate``, without gates and zero at the start; the model itself
    sees the other numbers of a row.
    """

    def own(params: Tree) -> Tree:
        return {leaf: value for leaf, value in params.items() if leaf != "covariate"}

    def init(key: Tensor) -> Tree:
        start = model.init(key)
        dtype = next(iter(start.values())).dtype
        return {**start, "covariate": torch.zeros(n_outputs, count, dtype=dtype)}

    def apply(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        slopes = params["covariate"]
        explained = (slopes @ x[..., -count:].to(slopes.dtype).T).T
        return model.apply(own(params), x[..., :-count], key) + explained

    def pullback(params: Tree, x: Tensor, cotangent: Tensor) -> Tree:
        assert model.pullback is not None  # noqa: S101  used only where the model has one
        dtype = params["covariate"].dtype
        slopes = _rows_of(cotangent.to(dtype)) @ x[..., -count:].to(dtype)
        return {
            **model.pullback(own(params), x[..., :-count], cotangent),
            "covariate": slopes,
        }

    return Model(
        init,
        apply,
        model.gates,
        None if model.pullback is None else pullback,
        model.draws,
        None if model.apart is None else with_covariates(model.apart, count, n_outputs),
    )


def _rows_of(columns: Tensor) -> Tensor:
    """Return the transpose, laid out so that lanes which share rows need no copy of them."""
    return columns.T.clone(memory_format=torch.contiguous_format)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key, so that lanes and reruns agree."""

    key: Tensor

    def __init__(self, p: float, place: int) -> None:
        super().__init__()
        self.p, self.place = p, place
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x with a share p of its numbers set to 0 and the others scaled up, in training."""
        if not self.training or self.p == 0.0:
            return x
        key, each = random.fold(self.key, self.place), x.shape[self.key.ndim :]
        if x.shape[: self.key.ndim] != self.key.shape:
            msg = f"dropout of a tensor {list(x.shape)}: its first axis must be the batch's rows"
            raise ValueError(msg)
        keep = random.uniform(key, each, x.dtype) >= self.p
        return x * keep / (1.0 - self.p)


def from_module(
    module: nn.Module, *, gate: GateUnit = "scalar", ungated: Collection[str] = ()
) -> Model:
    """Return a model around any torch module.

    Weights (two axes or more) are gated: one gate a scalar, or with ``gate="channel"`` one a row of
    the first axis (an output channel or neuron). Biases have none, nor have weights named in
    ``ungated`` (the output layer of a classifier with channel gates: its rows are the classes).
    Starting values are drawn from the key, uniform in ±√(6/fan-in) (He et al., 2015, for ReLU);
    biases start at zero, other parameters of one axis as given. Parameters with
    ``requires_grad=False`` stay as they are.

    Raises:
        ValueError: there is nothing to train, no parameter of a name in ``ungated``, a layer holds
            running statistics (BatchNorm), which sites cannot share, or draws random numbers of its
            own (any dropout but `torch.nn.Dropout`), which no rerun repeats.
    """
    for name, child in module.named_modules():
        if getattr(child, "track_running_stats", False):
            msg = (
                f"layer {name!r} is {type(child).__name__}, whose running statistics differ "
                "between sites; use torch.nn.GroupNorm in its place"
            )
            raise ValueError(msg)
        if isinstance(child, _DROPOUT) and not isinstance(child, nn.Dropout):
            msg = (
                f"layer {name!r} is {type(child).__name__}, whose random numbers have no key; "
                "use torch.nn.Dropout in its place"
            )
            raise ValueError(msg)  # noqa: TRY004  the module is of the right type, its content is not
    module = _with_keyed_dropout(module)
    start = {
        k: torch.zeros_like(v) if k.rpartition(".")[2].startswith("bias") else v.detach().clone()
        for k, v in module.named_parameters()
        if v.requires_grad
    }
    if not start:
        msg = f"{type(module).__name__} has no parameter to train (requires_grad)"
        raise ValueError(msg)
    dtype = next(iter(start.values())).dtype
    key_buffers = [
        f"{k}.key".removeprefix(".")
        for k, m in module.named_modules()
        if isinstance(m, KeyedDropout)
    ]

    def init(key: Tensor) -> Tree:
        params = {}
        for index, (leaf, value) in enumerate(start.items()):
            if value.ndim < 2:
                params[leaf] = value.clone()
                continue
            bound = math.sqrt(6.0 / math.prod(value.shape[1:]))
            draw = random.uniform(random.fold(key, index), value.shape, value.dtype)
            params[leaf] = bound * (2.0 * draw - 1.0)
        return params

    def apply(params: Tree, x: Tensor, key: Tensor | None) -> Tensor:
        module.train(key is not None)
        state = params if key is None else {**params, **dict.fromkeys(key_buffers, key)}
        x = x.to(dtype) if x.is_floating_point() else x
        output: Tensor = torch.func.functional_call(module, state, (x,))
        return output

    return Model(init, apply, _module_gates(start, gate, ungated), draws=bool(key_buffers))


def _module_gates(start: Tree, gate: GateUnit, ungated: Collection[str]) -> GateMap:
    for name in ungated:
        if name not in start:
            msg = f"no parameter {name!r} to leave without gates; choose from {', '.join(start)}"
            raise ValueError(msg)
    views: dict[str, GateView] = {}
    position = 0
    for leaf, value in start.items():
        if value.ndim < 2 or leaf in ungated:
            continue
        shape = tuple(value.shape)
        if gate == "channel":
            shape = (shape[0], *(1 for _ in shape[1:]))
        views[leaf] = GateView(position, shape)
        position += math.prod(shape)
    return GateMap(views)


def _with_keyed_dropout(module: nn.Module) -> nn.Module:
    import copy

    module = copy.deepcopy(module)
    replaced = {
        name: KeyedDropout(child.p, place)
        for place, (name, child) in enumerate(module.named_modules())
        if isinstance(child, nn.Dropout)
    }
    for name, child in replaced.items():
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, child)
    return module


def mlp(sizes: tuple[int, ...]) -> nn.Module:
    """Return a fully connected network with ReLU between the layers, on flattened input."""
    layers: list[nn.Module] = [nn.Flatten()]
    for index, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(n_in, n_out)] + ([nn.ReLU()] if index < len(sizes) - 2 else [])
    return nn.Sequential(*layers)


def digits_cnn() -> nn.Sequential:
    """Return the 44,426-parameter network for 1 x 28 x 28 digits (LeCun et al., 1998, in size).

    5x5 convolutions of 6 and 16 channels with 2x2 max pooling, then dense layers 120, 84, 10.
    """
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
