"""The exact relative entropy of two hard concrete gates, and its slope, by quadrature.

With ``t = beta logit(s)`` a gate's law is logistic about ``phi`` between two atoms, so the relative
entropy is one term for each atom and an integral over [lower, upper]. Every term is written such
that nothing cancels. `fedsift.gates` has the gates themselves, and the formulas.

Source: the penalty of E-FLoPS, arXiv 2607.00275; the forms without cancellation are derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NODES", "Rules", "Window", "checked", "entropy", "entropy_slope", "odds_of"]

NODES: Final = {torch.float32: 8, torch.float64: 16}
"""Quadrature nodes for the default gates, for each dtype that gates may have."""

_DELTA_MAX: Final = 60.0
_ODDS_MAX: Final = 40.0
_SERIES_TERMS: Final = {torch.float32: 12, torch.float64: 19}

Rules: TypeAlias = dict[torch.dtype, tuple[tuple[float, float], ...]]


@dataclass(frozen=True)
class Window:
    """The interval of ``t`` with a gate between 0 and 1, and ``e^-t, weight`` of its rules."""

    lower: float
    upper: float
    rules: Rules


def entropy(window: Window, phi: Tensor, phi0: Tensor | float) -> Tensor:
    """Give the relative entropy of gates to a prior, in nats; autograd in ``phi`` uses its slope.

    Raises:
        TypeError: ``phi`` is neither float32 nor float64.
        ValueError: ``phi0`` asks for a gradient.
    """
    apply: Any = _RelativeEntropy.apply
    return cast("Tensor", apply(*_pair(phi, phi0), window))


def entropy_slope(window: Window, phi: Tensor, phi0: Tensor | float) -> Tensor:
    """Give the derivative of `entropy` in ``phi`` without autograd; it raises the same."""
    return _slope(window, *_pair(phi, phi0))


class _RelativeEntropy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(phi: Tensor, phi0: Tensor, window: Window) -> Tensor:
        return _entropy(window, phi, phi0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Window], _output: Tensor) -> None:
        phi, phi0, ctx.window = inputs
        ctx.save_for_backward(phi, phi0)
        ctx.save_for_forward(phi, phi0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * _slope(ctx.window, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: object) -> Tensor:
        return tangent * _slope(ctx.window, *ctx.saved_tensors)


def _entropy(window: Window, phi: Tensor, phi0: Tensor) -> Tensor:
    """Give the relative entropy of q to p as the sum of ``q h(ln(p/q))``, ``h(x) = e^x - 1 - x``.

    The terms that ``h`` adds to ``-ln(p/q)`` sum to 0, and make every term >= 0: nothing cancels.
    """
    sign, upper, lower, size, growth = _ordered(phi, phi0)
    zero_ratio = sign * torch.log1p(growth * torch.sigmoid(lower - window.lower))
    one_ratio = -sign * torch.log1p(growth * torch.sigmoid(window.upper - upper))
    total = torch.sigmoid(window.lower - phi) * _convex(zero_ratio)
    total = total + torch.sigmoid(phi - window.upper) * _convex(one_ratio)
    odds, upper_odds = odds_of(phi), odds_of(upper)
    for node, weight in window.rules[phi.dtype]:
        u = 1 / (1 + odds * node)
        log_ratio = sign * (size - 2 * torch.log1p(growth / (1 + upper_odds * node)))
        total = total + weight * odds * node * u * u * _convex(log_ratio)
    return total


def _slope(window: Window, phi: Tensor, phi0: Tensor) -> Tensor:
    sign, upper, lower, size, growth = _ordered(phi, phi0)
    closed = torch.log1p(growth * torch.sigmoid(window.lower - upper))
    opened = torch.log1p(growth * torch.sigmoid(lower - window.upper))
    total = torch.sigmoid(window.lower - phi) * torch.sigmoid(phi - window.lower) * closed
    total = total + torch.sigmoid(window.upper - phi) * torch.sigmoid(phi - window.upper) * opened
    # With w = sigmoid(delta) and w' = 1 - w, c / (u' + u e^delta) = tanh(delta/2) / (u w + u' w'),
    # which cannot overflow.
    w, rest = torch.sigmoid(sign * size), torch.sigmoid(-sign * size)
    odds, between = odds_of(phi), torch.zeros_like(phi)
    for node, weight in window.rules[phi.dtype]:
        u = 1 / (1 + odds * node)
        v = odds * node * u
        between = between + weight * (u * v) ** 2 / (u * w + v * rest)
    return sign * (total + 2 * torch.tanh(size / 2) * between)


def _ordered(phi: Tensor, phi0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Give the sign of ``phi - phi0``, the larger, the smaller, |phi - phi0| and its ``expm1``.

    With c = e^|phi - phi0| - 1, every log ratio is +-log1p(c x) with c x >= 0 if x is taken at the
    right one of the two, so none cancels. ``expm1`` itself is avoided: compiled for CPUs it becomes
    ``exp(x) - 1``, which has no digits near 0. At equality all derivatives belong to ``phi``.
    """
    above = phi >= phi0
    sign = torch.where(above, 1.0, -1.0).to(phi.dtype)
    upper, lower = torch.where(above, phi, phi0), torch.where(above, phi0, phi)
    size = (upper - lower).clamp(max=_DELTA_MAX)
    return sign, upper, lower, size, torch.tanh(size / 2) / torch.sigmoid(-size)


def _convex(x: Tensor) -> Tensor:
    """Give ``e^x - 1 - x``, by its Taylor series where |x| <= 1."""
    terms, near = _SERIES_TERMS[x.dtype], x.abs() <= 1
    close = torch.where(near, x, 0.0)
    series = torch.full_like(x, 1 / math.factorial(terms))
    for k in range(terms - 1, 1, -1):
        series = series * close + 1 / math.factorial(k)
    return torch.where(near, close * close * series, torch.exp(x) - 1 - x)


def odds_of(phi: Tensor) -> Tensor:
    """Give ``e^phi``, kept where neither it nor its product with a node can overflow."""
    return torch.exp(phi.clamp(-_ODDS_MAX, _ODDS_MAX))


def checked(x: Tensor) -> Tensor:
    """Give the tensor back; raise TypeError if gates cannot have its dtype."""
    if x.dtype not in NODES:
        msg = f"gates need float32 or float64, got {x.dtype}; convert the tensor first"
        raise TypeError(msg)
    return x


def _pair(phi: Tensor, phi0: Tensor | float) -> tuple[Tensor, Tensor]:
    prior = torch.as_tensor(phi0, dtype=checked(phi).dtype, device=phi.device)
    if prior.requires_grad and torch.is_grad_enabled():
        msg = "the relative entropy has no gradient in the prior phi0; pass phi0.detach()"
        raise ValueError(msg)
    # broadcast_shapes would import sympy: a fifth of a site's time for a message in a deployment
    phi, prior = torch.broadcast_tensors(phi, prior)
    return phi, prior
