"""Feasible sets: the nearest point, the largest inner product, the farthest point.

A set is one of vectors [d]; `project` applies it to a whole tree of parameters, all leaves one
vector, and `Product` gives single leaves or parts sets of their own. Everything is made of tensor
operations without branches, so that `torch.func.vmap` batches it over sites and seeds. Sums and
systems are taken in float64 whatever the parameters' type.

Source: Bauschke & Combettes, "Convex analysis and monotone operator theory", 2017, chapter 29.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedsift import trees
from fedsift.trees import Tree

TINY = torch.finfo(torch.float64).tiny
NEWTON_STEPS = 50  # of the interior-point method; it needs about twenty


class FeasibleSet(ABC):
    """A closed convex set of vectors."""

    @abstractmethod
    def nearest(self, v: Tensor) -> Tensor:
        """Return P_X(v) for float64 ``v`` [d]."""

    def largest(self, g: Tensor) -> Tensor:
        """Return the support function max_{u in X} ⟨g, u⟩; infinite for an unbounded set."""
        return torch.full_like(g.sum(), torch.inf)

    def distance(self, v: Tensor) -> Tensor:
        """Return max_{u in X} ‖v - u‖; infinite for an unbounded set."""
        return torch.full_like(v.sum(), torch.inf)

    @property
    def bounded(self) -> bool:
        """Whether the set fits into a ball."""
        return False

    def project(self, params: Tree) -> Tree:
        """Return the nearest point of the set to a tree, in the Euclidean norm of all leaves."""
        if len(params) == 1:  # the same in fewer operations, for this is called very often
            ((leaf, value),) = params.items()
            exact = value.dtype == torch.float64 and value.ndim == 1
            nearest = self.nearest(value if exact else value.double().reshape(-1))
            return {leaf: nearest if exact else nearest.reshape(value.shape).to(value.dtype)}
        return trees.unflatten(self.nearest(trees.flatten(params).double()), params)

    def support(self, field: Tree) -> Tensor:
        """Return max_{u in X} ⟨field, u⟩."""
        return self.largest(trees.flatten(field).double())

    def farthest(self, params: Tree) -> Tensor:
        """Return max_{u in X} ‖params - u‖, the distance D of a gap's bound."""
        return self.distance(trees.flatten(params).double())


@dataclass(frozen=True)
class WholeSpace(FeasibleSet):
    """Every vector."""

    def nearest(self, v: Tensor) -> Tensor:
        return v

    def project(self, params: Tree) -> Tree:
        return params


@dataclass(frozen=True, eq=False)
class Ball(FeasibleSet):
    """‖x - center‖ ≤ radius; ``center`` a number or a vector [d]."""

    radius: float
    center: float | Tensor = 0.0

    def __post_init__(self) -> None:
        """Refuse an empty ball."""
        _positive("radius", self.radius)

    bounded = True

    def nearest(self, v: Tensor) -> Tensor:
        if isinstance(self.center, float) and self.center == 0.0:
            return v * self._shrink(v)
        offset = v - self.center
        shrink = self._shrink(offset)
        return torch.where(shrink < 1.0, self.center + shrink * offset, v)

    def _shrink(self, offset: Tensor) -> Tensor:
        shrink: Tensor = self.radius / torch.linalg.vector_norm(offset)
        return shrink.clamp(max=1.0)

    def largest(self, g: Tensor) -> Tensor:
        support: Tensor = (g * self.center).sum() + self.radius * torch.linalg.vector_norm(g)
        return support

    def distance(self, v: Tensor) -> Tensor:
        farthest: Tensor = torch.linalg.vector_norm(v - self.center) + self.radius
        return farthest


@dataclass(frozen=True, eq=False)
class Box(FeasibleSet):
    """low ≤ x ≤ high, entry by entry; numbers or vectors [d], also infinite."""

    low: float | Tensor = -math.inf
    high: float | Tensor = math.inf

    def __post_init__(self) -> None:
        """Refuse an empty box."""
        if not bool((torch.as_tensor(self.low) <= torch.as_tensor(self.high)).all()):
            msg = f"the box is empty: low {self.low} is above high {self.high}; exchange them"
            raise ValueError(msg)

    @property
    def bounded(self) -> bool:
        ends = (torch.as_tensor(self.low), torch.as_tensor(self.high))
        return all(bool(torch.isfinite(end).all()) for end in ends)

    def nearest(self, v: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(v, self._like(self.low, v)), self._like(self.high, v))

    def largest(self, g: Tensor) -> Tensor:
        ends = torch.where(g > 0, self._like(self.high, g), self._like(self.low, g))
        return torch.where(g == 0, torch.zeros_like(g), g * ends).sum()

    def distance(self, v: Tensor) -> Tensor:
        gaps = [(v - self._like(end, v)).abs() for end in (self.low, self.high)]
        farthest: Tensor = torch.linalg.vector_norm(torch.maximum(*gaps))
        return farthest

    @staticmethod
    def _like(end: float | Tensor, v: Tensor) -> Tensor:
        return torch.as_tensor(end, dtype=v.dtype).expand_as(v)


def Orthant() -> Box:
    """Return x ≥ 0, where multipliers live."""
    return Box(low=0.0)


@dataclass(frozen=True)
class Simplex(FeasibleSet):
    """x ≥ 0, Σ x = total: mixed strategies, weights of groups.

    Source: Held, Wolfe & Crowder, "Validation of subgradient optimization", 1974.
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an empty simplex."""
        _positive("total", self.total)

    bounded = True

    def nearest(self, v: Tensor) -> Tensor:
        return _onto_simplex(v, self.total)

    def largest(self, g: Tensor) -> Tensor:
        return self.total * g.max()

    def distance(self, v: Tensor) -> Tensor:
        # ‖v - t e_i‖² = ‖v‖² - 2 t v_i + t², largest at the smallest entry.
        return (v.square().sum() - 2.0 * self.total * v.min() + self.total**2).clamp(min=0.0).sqrt()


@dataclass(frozen=True)
class L1Ball(FeasibleSet):
    """Σ |x| ≤ radius."""

    radius: float

    def __post_init__(self) -> None:
        """Refuse an empty ball."""
        _positive("radius", self.radius)

    bounded = True

    def nearest(self, v: Tensor) -> Tensor:
        outside = v.sign() * _onto_simplex(v.abs(), self.radius)
        return torch.where(v.abs().sum() <= self.radius, v, outside)

    def largest(self, g: Tensor) -> Tensor:
        return self.radius * g.abs().max()

    def distance(self, v: Tensor) -> Tensor:
        square = v.square().sum() + 2.0 * self.radius * v.abs().max() + self.radius**2
        return square.sqrt()


@dataclass(frozen=True, eq=False)
class Slab(FeasibleSet):
    """low ≤ ⟨normal, x⟩ ≤ high; one infinite end makes a half-space, equal ends a hyperplane."""

    normal: Tensor
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        """Refuse an empty slab or a direction without length."""
        if not self.low <= self.high or not bool(self.normal.any()):
            msg = f"the slab from {self.low} to {self.high} is empty, or its normal is zero"
            raise ValueError(msg)

    def nearest(self, v: Tensor) -> Tensor:
        normal = self.normal.double()
        height = normal @ v
        wanted = height.clamp(self.low, self.high)
        return v + (wanted - height) / (normal @ normal) * normal


def HalfSpace(normal: Tensor, bound: float) -> Slab:
    """Return ⟨normal, x⟩ ≤ bound."""
    return Slab(normal, high=bound)


@dataclass(frozen=True, eq=False)
class AffineSpace(FeasibleSet):
    """Matrix x = value; ``matrix`` [m, d], ``value`` [m].

    Raises:
        ValueError: no vector satisfies the equations.
    """

    matrix: Tensor
    value: Tensor
    inverse: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Keep the pseudo-inverse."""
        matrix, value = self.matrix.double(), self.value.double()
        object.__setattr__(self, "inverse", torch.linalg.pinv(matrix))
        missed = (matrix @ (self.inverse @ value) - value).abs().max()
        if missed > 1e-9 * (1.0 + value.abs().max()):
            msg = f"the equations contradict each other by {missed:.2g}; leave one out"
            raise ValueError(msg)

    def nearest(self, v: Tensor) -> Tensor:
        return v - self.inverse @ (self.matrix.double() @ v - self.value.double())


@dataclass(frozen=True, eq=False)
class Polyhedron(FeasibleSet):
    """Matrix x ≤ bound; ``matrix`` [m, d], ``bound`` [m], with an interior.

    The nearest point solves a quadratic programme: a primal-dual interior-point method with a fixed
    number of Newton steps. Points that are inside stay exactly where they are.

    Source: Nocedal & Wright, "Numerical optimization", 2006, section 16.6.

    Raises:
        ValueError: nothing satisfies all inequalities.
    """

    matrix: Tensor
    bound: Tensor
    rows: Tensor = field(init=False, repr=False)
    ends: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Bring the inequalities to length one, and look for a point."""
        matrix, bound = self.matrix.double(), self.bound.double()
        lengths = torch.linalg.vector_norm(matrix, dim=1).clamp(min=TINY)
        object.__setattr__(self, "rows", matrix / lengths.unsqueeze(1))
        object.__setattr__(self, "ends", bound / lengths)
        found = self.nearest(torch.zeros(matrix.shape[1], dtype=torch.float64))
        missed = float((self.rows @ found - self.ends).max())
        if not missed < 1e-6 * (1.0 + float(self.ends.abs().max())):
            msg = "nothing satisfies all inequalities of the polyhedron; leave one out or relax it"
            raise ValueError(msg)

    def nearest(self, v: Tensor) -> Tensor:
        G, size = self.rows, v.abs().max().clamp(min=1.0)
        p, h = v / size, self.ends / size
        eye = torch.eye(len(v), dtype=v.dtype)
        x, slack = p, (h - G @ p).clamp(min=1.0)
        dual = torch.ones_like(slack)
        for _ in range(NEWTON_STEPS):
            mu = (dual * slack).mean()
            off, short = x - p + G.T @ dual, G @ x + slack - h
            excess = dual * slack - 0.1 * mu
            weight = dual / slack
            system = eye + G.T @ (weight.unsqueeze(1) * G)
            right = -off - G.T @ ((dual * short - excess) / slack)
            dx = torch.linalg.solve(system, right)
            ds = -short - G @ dx
            dl = (-excess - dual * ds) / slack
            reach = torch.stack([_reach(slack, ds), _reach(dual, dl)]).min()
            x = x + reach * dx
            slack = (slack + reach * ds).clamp(min=1e-15)
            dual = (dual + reach * dl).clamp(min=1e-15)
        return torch.where((self.rows @ v <= self.ends).all(), v, size * x)


def _reach(value: Tensor, change: Tensor) -> Tensor:
    """Return the longest step, at most 1, that keeps a positive vector positive."""
    limits = torch.where(change < 0, -0.99 * value / change.clamp(max=-TINY), 1.0)
    return limits.min().clamp(max=1.0)


@dataclass(frozen=True)
class MonotoneCone(FeasibleSet):
    """x_1 ≤ x_2 ≤ ... (isotonic regression): models that may not fall as an input rises.

    x_i = max_{j≤i} min_{k≥i} mean(v_j, ..., v_k), in d² numbers.

    Source: Robertson, Wright & Dykstra, "Order restricted statistical inference", 1988.
    """

    def nearest(self, v: Tensor) -> Tensor:
        size = len(v)
        sums = torch.cat([v.new_zeros(1), v.cumsum(0)])
        place = torch.arange(size)
        length = place.unsqueeze(0) - place.unsqueeze(1) + 1
        means = (sums[1:].unsqueeze(0) - sums[:-1].unsqueeze(1)) / length.clamp(min=1)
        means = torch.where(length > 0, means, torch.inf)
        lowest = means.flip(1).cummin(1).values.flip(1)
        return torch.where(length > 0, lowest, -torch.inf).amax(0)


@dataclass(frozen=True, eq=False)
class Product(FeasibleSet):
    """A set for single leaves, or for all leaves of a part (``"model"`` for ``"model/..."``).

    ``""`` names all leaves that no other name does; without it they are free.
    """

    parts: Mapping[str, FeasibleSet]

    def _groups(self, tree: Tree) -> list[tuple[FeasibleSet, Tree]]:
        free = {k: v for k, v in tree.items() if self._name(k) is None}
        groups: list[tuple[FeasibleSet, Tree]] = [(WholeSpace(), free)] if free else []
        for name, part in self.parts.items():
            members = {k: v for k, v in tree.items() if self._name(k) == name}
            if not members:
                msg = f"a set is given for {name!r}, the parameters are {', '.join(tree)}"
                raise ValueError(msg)
            groups.append((part, members))
        return groups

    def _name(self, leaf: str) -> str | None:
        names = [n for n in self.parts if not n or leaf == n or leaf.startswith(f"{n}/")]
        return max(names, key=len) if names else None

    @property
    def bounded(self) -> bool:
        return all(part.bounded for part in self.parts.values())

    def nearest(self, v: Tensor) -> Tensor:  # noqa: ARG002
        msg = "a product of sets is one of trees; call project"
        raise TypeError(msg)

    def project(self, params: Tree) -> Tree:
        found: Tree = {}
        for part, members in self._groups(params):
            found |= part.project(members)
        return {leaf: found[leaf] for leaf in params}

    def support(self, field: Tree) -> Tensor:
        return torch.stack([part.support(g) for part, g in self._groups(field)]).sum()

    def farthest(self, params: Tree) -> Tensor:
        return (
            torch.stack([part.farthest(p).square() for part, p in self._groups(params)])
            .sum()
            .sqrt()
        )


def _onto_simplex(v: Tensor, total: float) -> Tensor:
    ordered = v.sort(descending=True).values
    place = torch.arange(1, len(v) + 1, dtype=v.dtype)
    level = (ordered.cumsum(0) - total) / place
    count = (ordered > level).sum().clamp(min=1)
    threshold = level.gather(0, (count - 1).reshape(1))
    return (v - threshold).clamp(min=0.0)


def _positive(name: str, value: Any) -> None:
    if not 0.0 < float(value) < math.inf:
        msg = f"{name} is {value}; give a positive number"
        raise ValueError(msg)
