"""How two gradients become one direction: the algebra of multi-objective descent, pure maths.

A rule looks at the Gram matrix of the two gradients alone, |g_u|², |g_r|² and g_u·g_r, and returns
their coefficients: d = w_u g_u + w_r g_r, and the step is θ - η d. With c the cosine, a direction
lets neither loss rise to first order if d·g_u ≥ 0 and d·g_r ≥ 0. The rules are branch-free, so that
they can be batched, and never divide by a gradient that is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsift.trees import Tree

TINY = 1e-30


class Gram(NamedTuple):
    """Norms n_u = |g_u|, n_r = |g_r| and the inner product of two gradients, float64 scalars."""

    forget: Tensor
    retain: Tensor
    product: Tensor

    @property
    def cosine(self) -> Tensor:
        """Cosine c in [-1, 1]; 0 where a gradient is zero."""
        norms = self.forget * self.retain
        return torch.where(norms > TINY, self.product / norms.clamp(min=TINY), 0.0).clamp(-1.0, 1.0)


class Pair(NamedTuple):
    """Coefficients (w_u, w_r) of a direction."""

    forget: Tensor
    retain: Tensor


Rule: TypeAlias = Callable[[Gram], Pair]


def gram(forget: Tree, retain: Tree) -> Gram:
    """Return the Gram matrix of two gradients, with sums in float64."""

    def dot(a: Tree, b: Tree) -> Tensor:
        return torch.stack([(v.double() * b[k].double()).sum() for k, v in a.items()]).sum()

    return Gram(dot(forget, forget).sqrt(), dot(retain, retain).sqrt(), dot(forget, retain))


def conflict(g: Gram) -> Tensor:
    """Return the conflict sensitivity s = max(0, -c)."""
    return (-g.cosine).clamp(min=0.0)


def flexible_ratio(g: Gram, wanted: Tensor, free: float = 10.0) -> Tensor:
    """Return the nearest ratio ρ to ``wanted`` at which neither loss rises to first order.

    With conflict s those are [s, 1/s]; ``free`` narrows the interval to [1/free, free] where the
    conflict is weak or absent, so that neither gradient drops out.
    """
    bound = conflict(g).clamp(min=1.0 / free)
    return torch.maximum(torch.minimum(wanted, 1.0 / bound), bound)


def flexible(g: Gram, ratio: Tensor, length: Tensor) -> Pair:
    """Return the pair of FU-MEGS: d = L (a g_u/n_u + b g_r/n_r)/2, a = 2ρ/(1+ρ), b = 2/(1+ρ).

    Both gradients count by direction, whatever their norms; ρ = 1 bisects the angle. d is not
    renormalised: at ρ = 1 its length L √((1+c)/2) dies out as the two become opposite. A gradient
    of zero has no direction and takes no part.
    """
    a, b = ratio / (1.0 + ratio), 1.0 / (1.0 + ratio)
    return Pair(_over(length * a, g.forget), _over(length * b, g.retain))


def safe_length(g: Gram) -> Tensor:
    """Return 2 n_u n_r/(n_u + n_r): with ρ = 1 the direction is then that of IMTL-G."""
    return _over(2.0 * g.forget * g.retain, g.forget + g.retain)


def mgda(g: Gram) -> Pair:
    """Return the shortest convex combination (Désidéri, 2012)."""
    apart = g.forget.square() + g.retain.square() - 2.0 * g.product
    share = _over(g.retain.square() - g.product, apart).clamp(0.0, 1.0)
    share = torch.where(apart > TINY, share, 0.5)
    return Pair(share, 1.0 - share)


def imtl_g(g: Gram) -> Pair:
    """Return the combination, of sum 1, with equal projections on both (Liu et al., 2021)."""
    total = g.forget + g.retain
    return Pair(_over(g.retain, total), _over(g.forget, total))


def pcgrad(g: Gram) -> Pair:
    """Return the sum of both, each without its part against the other (Yu et al., 2020)."""
    against = g.product.clamp(max=0.0)
    return Pair(1.0 - _over(against, g.forget.square()), 1.0 - _over(against, g.retain.square()))


def orthogonal(g: Gram) -> Pair:
    """Return g_u without its part along g_r: the retained loss is level to first order."""
    one = torch.ones_like(g.forget)
    return Pair(one, -_over(g.product, g.retain.square()))


def plain_sum(g: Gram) -> Pair:
    """Return the sum g_u + g_r."""
    one = torch.ones_like(g.forget)
    return Pair(one, one)


RULES: dict[str, Rule] = {
    "mgda": mgda,
    "imtl_g": imtl_g,
    "pcgrad": pcgrad,
    "orthogonal": orthogonal,
    "sum": plain_sum,
}


def combine(pair: Pair, forget: Tree, retain: Tree) -> Tree:
    """Return w_u g_u + w_r g_r, each leaf in its own dtype."""
    return {
        k: pair.forget.to(v.dtype) * v + pair.retain.to(v.dtype) * retain[k]
        for k, v in forget.items()
    }


def _over(a: Tensor, b: Tensor) -> Tensor:
    """Return a/b, and 0 where b is zero."""
    return torch.where(b > TINY, a / b.clamp(min=TINY), 0.0)
