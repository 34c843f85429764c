"""Arithmetic on trees of tensors.

A *tree* here is a flat ``dict[str, Tensor]``: parameters by leaf name, or the content of a message,
where the leaves of a part carry its name as a prefix (``"theta/weight"``). States are NamedTuples
of tensors and trees; `map_tensors` walks both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = dict[str, Tensor]


def map_tensors(function: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Apply ``function`` to the tensors in the same place of equally shaped structures.

    Structures are tensors, dicts, tuples, NamedTuples and None, nested as wanted.
    """
    if isinstance(first, Tensor):
        return function(first, *rest)
    if first is None:
        return None
    if isinstance(first, dict):
        return {k: map_tensors(function, v, *(r[k] for r in rest)) for k, v in first.items()}
    if isinstance(first, tuple):
        mapped = [map_tensors(function, *items) for items in zip(first, *rest, strict=True)]
        return type(first)(*mapped) if hasattr(first, "_fields") else tuple(mapped)
    msg = f"a state holds tensors, dicts and tuples; found {type(first).__name__}"
    raise TypeError(msg)


def leaves(structure: Any) -> list[Tensor]:
    """Return the tensors of a structure, in order."""
    found: list[Tensor] = []
    map_tensors(found.append, structure)
    return found


def stack(structures: Iterable[Any]) -> Any:
    """Stack equally shaped structures along a new first axis."""
    items = list(structures)
    return map_tensors(lambda *tensors: torch.stack(tensors), *items)


def unstack(structure: Any, index: int) -> Any:
    """Return entry ``index`` of the first axis of every tensor."""
    return map_tensors(lambda tensor: tensor[index], structure)


def where(condition: Tensor, chosen: Any, other: Any) -> Any:
    """Choose between two structures; ``condition`` broadcasts from the first axes on."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(
            condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b
        )

    return map_tensors(choose, chosen, other)


def add(a: Tree, b: Tree) -> Tree:
    """Return ``a + b``."""
    return {k: v + b[k] for k, v in a.items()}


def subtract(a: Tree, b: Tree) -> Tree:
    """Return ``a - b``."""
    return {k: v - b[k] for k, v in a.items()}


def multiply(a: Tree, b: Tree) -> Tree:
    """Return the elementwise product."""
    return {k: v * b[k] for k, v in a.items()}


def scale(a: Tree, factor: Tensor | float) -> Tree:
    """Return ``factor * a``."""
    return {k: v * factor for k, v in a.items()}


def add_scaled(a: Tree, factor: Tensor | float, b: Tree) -> Tree:
    """Return ``a + factor * b``."""
    return {k: v + factor * b[k] for k, v in a.items()}


def zeros_like(structure: Any) -> Any:
    """Return the same structure filled with zeros."""
    return map_tensors(torch.zeros_like, structure)


def dot(a: Tree, b: Tree) -> Tensor:
    """Return the inner product."""
    return torch.stack([(v * b[k]).sum() for k, v in a.items()]).sum()


def norm(a: Tree) -> Tensor:
    """Return the Euclidean norm."""
    return dot(a, a).sqrt()


def flatten(tree: Tree) -> Tensor:
    """Return all numbers of a tree as one vector, leaf after leaf."""
    return torch.cat([leaf.reshape(-1) for leaf in tree.values()])


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """Return a tree shaped like ``like`` from its numbers [d], each leaf in its own dtype."""
    pieces = vector.split([leaf.numel() for leaf in like.values()])
    return {
        name: piece.reshape(leaf.shape).to(leaf.dtype)
        if piece.shape != leaf.shape or piece.dtype != leaf.dtype
        else piece
        for (name, leaf), piece in zip(like.items(), pieces, strict=True)
    }


def all_finite(structure: Any) -> Tensor:
    """Return a boolean scalar: is every number, and every tensor's sum, finite?"""
    return torch.isfinite(
        torch.stack([tensor.sum().double() for tensor in leaves(structure)])
    ).all()


def join(**parts: Tree | Tensor) -> Tree:
    """Join named parts into one message tree; the leaves of a tree get the prefix ``part/``."""
    joined: Tree = {}
    for name, part in parts.items():
        if isinstance(part, Tensor):
            joined[name] = part
        else:
            joined.update({f"{name}/{leaf}": value for leaf, value in part.items()})
    return joined


def part(tree: Mapping[str, Tensor], name: str) -> Tree:
    """Return the leaves of one part of a message tree, without the prefix."""
    prefix = f"{name}/"
    return {k.removeprefix(prefix): v for k, v in tree.items() if k.startswith(prefix)}
