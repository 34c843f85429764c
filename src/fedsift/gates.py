"""Hard concrete gates: samples, probabilities, means, and the exact relative entropy of two gates.

A gate ``z`` in [0, 1] multiplies a parameter. It is 0 and 1 with positive probability and has a
density between, so a parameter can be switched off exactly while its gate stays trainable:

    s = sigmoid((logit(u) + phi) / beta),   u uniform on (0, 1)
    z = min(1, max(0, s (zeta - gamma) + gamma))

``phi`` (log alpha) is the gate's parameter. With ``t = beta logit(s)``, ``t - phi`` is logistic;
the gate is 0 below ``t = lower`` and 1 above ``t = upper``, so that expectations are integrals of a
smooth function over [lower, upper], which Gauss-Legendre quadrature takes to rounding.
(Quadrature over ``u`` would meet the kinks of the clipping.)

Sources: Louizos, Welling & Kingma 2018, "Learning sparse neural networks through L0
regularization"; E-FLoPS, arXiv 2607.00275 (the relative entropy as a penalty).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from fedsift.entropy import NODES, Rules, Window, checked, entropy, entropy_slope, odds_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["PHI_MAX", "HardConcrete"]

PHI_MAX: Final = 12.0
"""Largest useful |phi|: beyond it float32 hardly tells a gate's mean from 0 or 1."""

_U_MIN: Final = 1e-6
_STRETCH_MIN: Final = 1e-6
_NODES_MAX: Final = 512
_MEAN_NODES: Final = {torch.float32: 10, torch.float64: 20}
_INVERSE_STEPS: Final = 5
_TABLE: Final = 1 << 12


@dataclass(frozen=True)
class HardConcrete:
    """The family of hard concrete gates with one temperature and one stretch.

    Methods work element by element on tensors of any shape and broadcast their arguments, under
    ``torch.func.vmap`` and ``torch.compile`` too; accurate for |phi| <= 12 and finite beyond.

    Args:
        beta: temperature, > 0; below 1 the gate prefers its end points.
        gamma: lower end of the stretched interval, <= -1e-6.
        zeta: upper end of the stretched interval, >= 1 + 1e-6.

    Raises:
        ValueError: a parameter is outside its range or not finite.
        TypeError: (every method) its first argument is neither float32 nor float64.

    Source: Louizos, Welling & Kingma 2018, section 2.2; the defaults are those of E-FLoPS.

    """

    beta: float = 0.66
    gamma: float = -0.1
    zeta: float = 1.1

    def __post_init__(self) -> None:
        for name, valid, advice in (
            ("beta", self.beta > 0, "choose a positive temperature, for example 0.66"),
            ("gamma", self.gamma <= -_STRETCH_MIN, "choose at most -1e-6, for example -0.1"),
            ("zeta", self.zeta >= 1 + _STRETCH_MIN, "choose at least 1 + 1e-6, for example 1.1"),
        ):
            value = getattr(self, name)
            if not (valid and math.isfinite(value)):
                msg = f"HardConcrete: {name}={value} is out of range; {advice}"
                raise ValueError(msg)
        # Filled here because torch.compile reads a cached value but cannot trace its computation.
        _ = self._window, self._mean_rules, self._square_rules

    @cached_property
    def lower(self) -> float:
        """``beta log(-gamma / zeta)``: the gate is 0 where ``phi + logit(u)`` is below it."""
        return self.beta * math.log(-self.gamma / self.zeta)

    @cached_property
    def upper(self) -> float:
        """``beta log((1 - gamma) / (zeta - 1))``: the gate is 1 where that is above."""
        return self.beta * math.log((1 - self.gamma) / (self.zeta - 1))

    def sample(self, phi: Tensor, u: Tensor) -> Tensor:
        """Map uniform numbers to gates, ``z = min(1, max(0, s (zeta - gamma) + gamma))``.

        ``u`` is clamped to [1e-6, 1 - 1e-6]. The gates, in [0, 1], increase in ``phi`` and ``u``;
        autograd differentiates them. Source: Louizos, Welling & Kingma 2018, equations 10-11.
        """
        return self._stretch(_concrete(phi, u, self.beta)).clamp(0.0, 1.0)

    def sample_with_slope(self, phi: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Give ``sample(phi, u)`` and its derivative in ``phi``, without autograd.

        ``dz/dphi = s (1 - s) (zeta - gamma) / beta`` (>= 0) where the gate is not clipped, else 0.
        Source: Louizos, Welling & Kingma 2018, equations 10-11.
        """
        s = _concrete(phi, u, self.beta)
        stretched = self._stretch(s)
        z = stretched.clamp(0.0, 1.0)
        slope = s * (1 - s) * ((self.zeta - self.gamma) / self.beta)
        return z, torch.where(z == stretched, slope, 0.0)

    def prob_active(self, phi: Tensor) -> Tensor:
        """Give the probability that a gate is not 0, ``P(z > 0) = sigmoid(phi - lower)``.

        Its sum over gates is the expected number of non-zero parameters; it exceeds ``mean``.
        Source: Louizos, Welling & Kingma 2018, equation 12.
        """
        return torch.sigmoid(checked(phi) - self.lower)

    def prob_active_slope(self, phi: Tensor) -> Tensor:
        """Give ``dP(z > 0)/dphi = P(z > 0) P(z = 0)``, without autograd."""
        x = checked(phi) - self.lower
        return torch.sigmoid(x) * torch.sigmoid(-x)

    def mean(self, phi: Tensor) -> Tensor:
        """Give the expected gate, ``E[z] = integral of g'(t) sigmoid(phi - t)``, lower to upper.

        ``g(t) = sigmoid(t/beta) (zeta - gamma) + gamma`` is the gate as a function of ``t``; this
        is the expectation by parts, which has no elementary form. In (0, 1), strictly increasing,
        precise in both tails. Source: the law of Louizos et al. 2018, equation 11.
        """
        odds, total = odds_of(checked(phi)), torch.zeros_like(phi)
        for node, weight in self._mean_rules[phi.dtype]:
            total = total + weight * odds * node / (1 + odds * node)
        return total

    def mean_square(self, phi: Tensor) -> Tensor:
        """Give ``E[z^2]``, the factor by which a gate scales the second moment of its parameter.

        By parts, as ``mean``: ``integral over [lower, upper] of 2 g g' sigmoid(phi - t)``.
        """
        odds = odds_of(checked(phi))
        total = torch.zeros_like(phi)
        for node, weight in self._square_rules[phi.dtype]:
            total = total + weight * odds * node / (1 + odds * node)
        return total

    def median(self, phi: Tensor) -> Tensor:
        """Give the noise-free gate, ``min(1, max(0, sigmoid(phi/beta) (zeta - gamma) + gamma))``.

        It is ``sample`` at ``u = 1/2``, and 0 whenever ``P(z > 0) <= 1/2``: do not rank sparse
        gates by it alone. Source: Louizos et al. 2018, equation 13, which leaves out ``beta``.
        """
        return self._stretch(torch.sigmoid(checked(phi) / self.beta)).clamp(0.0, 1.0)

    def inverse_mean(self, mean: Tensor) -> Tensor:
        """Give the ``phi`` in [-12, 12] that solves ``mean(phi) = mean``; NaN gives NaN.

        Newton's method on ``logit E[z]``, which is almost linear, inside a shrinking bracket and
        with a fixed number of steps. Means out of reach give the nearer end. A mean near 1 carries
        few digits of ``phi``: in float32, rounding the mean moves ``phi = 12`` by up to 0.01.
        """
        high = torch.full_like(checked(mean), PHI_MAX)
        target = torch.logit(torch.clamp(mean, self.mean(-high), self.mean(high)))
        # The bracket is wider than the answers, so that rounding cannot push a root out of it.
        low, high, phi = -high - 1, high + 1, target.clamp(-PHI_MAX, PHI_MAX)
        for _ in range(_INVERSE_STEPS):
            odds = odds_of(phi)
            active, inactive, slope = (torch.zeros_like(phi) for _ in range(3))
            for node, weight in self._mean_rules[phi.dtype]:
                off = 1 / (1 + odds * node)
                on = odds * node * off
                active, inactive = active + weight * on, inactive + weight * off
                slope = slope + weight * on * off
            error = active.log() - inactive.log() - target
            low, high = torch.where(error < 0, phi, low), torch.where(error > 0, phi, high)
            newton = phi - error * active * inactive / slope
            phi = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        return torch.where(torch.isnan(mean), mean, phi.clamp(-PHI_MAX, PHI_MAX))

    def kl(self, phi: Tensor, phi0: Tensor | float) -> Tensor:
        """Give the relative entropy of a gate to a prior gate in nats, exact to rounding.

        ``KL = a ln(a/A) + b' ln(b'/B') + integral over [lower, upper] of f(t - phi)
        ln(f(t - phi) / f(t - phi0))``: ``f`` is the logistic density, ``a`` and ``b'`` are the
        probabilities of 0 and 1 under ``phi``, ``A`` and ``B'`` under ``phi0``. It is >= 0, and 0
        at ``phi = phi0``. Autograd in ``phi`` uses ``kl_slope``; a ``phi0`` that asks for a
        gradient raises ValueError, here and in ``kl_slope``.
        Source: the penalty of E-FLoPS, arXiv 2607.00275.
        """
        return entropy(self._window, phi, phi0)

    def kl_slope(self, phi: Tensor, phi0: Tensor | float) -> Tensor:
        """Give ``dKL/dphi`` without autograd: three terms of one sign, so nothing cancels.

        ``b b' ln(B/b) + a a' ln(a'/A') + integral of 2 c u^2 u'^2 / (u' + u e^delta)``, where
        ``delta = phi - phi0``, ``c = e^delta - 1``, ``u = sigmoid(t - phi)``, ``a`` and ``b`` are
        ``u`` at lower and upper, capitals belong to ``phi0`` and x' is 1 - x. It has the sign of
        ``delta``, is bounded and vanishes for large |phi|. Source: derived from ``kl``.
        """
        return entropy_slope(self._window, phi, phi0)

    def kl_slope_table(self, phi0: float) -> Callable[[Tensor], Tensor]:
        """Give ``kl_slope(., phi0)`` by linear interpolation, for one prior of many gates.

        On 2^12 intervals of [-12, 12], a table for the fastest cache, the error is below 3e-6 where
        slopes reach 1, at a twentieth of the work. Arguments outside are taken at the nearer end.
        """
        grid = torch.linspace(-PHI_MAX, PHI_MAX, _TABLE + 1, dtype=torch.float64)
        exact = self.kl_slope(grid, phi0)
        rise = torch.diff(exact, append=exact[-1:])
        tables = {dtype: (exact.to(dtype), rise.to(dtype)) for dtype in NODES}

        def slope(phi: Tensor) -> Tensor:
            start, step = tables[phi.dtype]
            place = (phi.clamp(-PHI_MAX, PHI_MAX) + PHI_MAX) * (_TABLE / (2 * PHI_MAX))
            index = place.int().clamp(0, _TABLE)  # NaN has no place of its own
            return start[index] + (place - index) * step[index]

        return slope

    def _stretch(self, s: Tensor) -> Tensor:
        return s * (self.zeta - self.gamma) + self.gamma

    @cached_property
    def _window(self) -> Window:
        rules = {dtype: _legendre(self, n) for dtype, n in NODES.items()}
        return Window(self.lower, self.upper, rules)

    @cached_property
    def _mean_rules(self) -> Rules:
        rules = {}
        for dtype, n in _MEAN_NODES.items():
            nodes, weights = np.array(_legendre(self, n)).T
            # g' is proportional to it and integrates to 1, because g(lower) = 0 and g(upper) = 1.
            slopes = weights / np.cosh(np.log(nodes) / (2 * self.beta)) ** 2
            rules[dtype] = tuple(zip(nodes.tolist(), (slopes / slopes.sum()).tolist(), strict=True))
        return rules

    @cached_property
    def _square_rules(self) -> Rules:
        def doubled(node: float) -> float:
            stretched = (self.zeta - self.gamma) / (1 + node ** (1 / self.beta)) + self.gamma
            return float(2 * stretched)

        return {
            dtype: tuple((node, weight * doubled(node)) for node, weight in rule)
            for dtype, rule in self._mean_rules.items()
        }


def _concrete(phi: Tensor, u: Tensor, beta: float) -> Tensor:
    u = u.clamp(_U_MIN, 1 - _U_MIN)
    return torch.sigmoid((torch.log(u / (1 - u)) + checked(phi)) / beta)


def _legendre(gate: HardConcrete, base: int) -> tuple[tuple[float, float], ...]:
    """Give a Gauss-Legendre rule on [lower, upper] as precise as ``base`` nodes for the defaults.

    The error falls as ``exp(-2 n asinh(pole / half width))``; the integrands' nearest poles are at
    ``pi i`` (the logistic density) and ``pi beta i`` (the gate as a function of ``t``).
    """
    half = (gate.upper - gate.lower) / 2
    decay = math.asinh(math.pi * min(1.0, gate.beta) / half)
    n = max(base, math.ceil(base * math.asinh(math.pi / math.log(11)) / decay - 1e-9))
    if n > _NODES_MAX:
        msg = f"{gate} needs {n} quadrature nodes (at most {_NODES_MAX}); choose a smaller beta"
        raise ValueError(msg)
    x, weights = np.polynomial.legendre.leggauss(n)
    t = (gate.upper + gate.lower) / 2 + half * x
    return tuple(zip(np.exp(-t).tolist(), (half * weights).tolist(), strict=True))
