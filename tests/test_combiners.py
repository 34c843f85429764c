"""Laws of the combiners: first-order safety, known algebra, equality with torchjd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsift import combiners
from fedsift.combiners import RULES, Gram, Pair

PAIRS = 5000
ZERO = torch.zeros((), dtype=torch.float64)
ONE = torch.ones((), dtype=torch.float64)


def pairs(seed: int = 0, size: int = 6) -> tuple[Tensor, Tensor]:
    """Random gradients [5000, 6] of norms over eight decades, a tenth of them nearly parallel."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    u, r = draw(PAIRS, size), draw(PAIRS, size)
    r[::10] = draw(PAIRS // 10, 1) * u[::10] + 1e-3 * draw(PAIRS // 10, size)
    return u * 10 ** (2 * draw(PAIRS, 1)), r * 10 ** (2 * draw(PAIRS, 1))


def grams(u: Tensor, r: Tensor) -> Gram:
    return Gram(u.norm(dim=1), r.norm(dim=1), (u * r).sum(1))


def direction(pair: Pair, u: Tensor, r: Tensor) -> Tensor:
    return pair.forget.unsqueeze(1) * u + pair.retain.unsqueeze(1) * r


def torchjd_aggregator(rule: str) -> Any:
    aggregation = pytest.importorskip("torchjd.aggregation")
    return {
        "mgda": lambda: aggregation.MGDA(epsilon=1e-14, max_iters=20),
        "imtl_g": aggregation.IMTLG,
        "pcgrad": aggregation.PCGrad,
        "sum": aggregation.Sum,
    }[rule]()


@pytest.mark.parametrize("wanted", [1e-6, 0.3, 1.0, 20.0, 1e9])
def test_neither_loss_rises_to_first_order_inside_the_cone(wanted: float) -> None:
    """d·g_u ∝ ρ + c and d·g_r ∝ 1 + ρc: both are ≥ 0 for ρ in [s, 1/s]."""
    u, r = pairs()
    g = grams(u, r)
    ratio = combiners.flexible_ratio(g, torch.full((PAIRS,), wanted, dtype=torch.float64))
    d = direction(combiners.flexible(g, ratio, torch.ones(PAIRS, dtype=torch.float64)), u, r)
    tolerance = 1e-12
    assert ((d * u).sum(1) / g.forget >= -tolerance).all()
    assert ((d * r).sum(1) / g.retain >= -tolerance).all()


@pytest.mark.parametrize("rule", ["mgda", "imtl_g", "pcgrad"])
def test_the_classical_rules_are_safe_too(rule: str) -> None:
    u, r = pairs(1)
    g = grams(u, r)
    d = direction(RULES[rule](g), u, r)
    scale = 1e-9 * (1 + d.norm(dim=1))
    assert ((d * u).sum(1) >= -scale * g.forget).all()
    assert ((d * r).sum(1) >= -scale * g.retain).all()


def test_outside_the_cone_a_loss_rises() -> None:
    """Opposite by 120°, c = -½: ρ = 4 > 1/s = 2 gives d·g_r ∝ 1 - 2 < 0."""
    g = Gram(ONE, ONE, -0.5 * ONE)
    pair = combiners.flexible(g, 4.0 * ONE, ONE)
    assert float(pair.forget * g.product + pair.retain) < 0


def test_ratio_ends_are_projections() -> None:
    """ρ = 1/s: d ⟂ g_r; ρ = s: d ⟂ g_u."""
    u, r = pairs(2)
    g = grams(u, r)
    clash = combiners.conflict(g) > 0.1
    ones = torch.ones(PAIRS, dtype=torch.float64)
    for wanted, other, norm in ((1e9, r, g.retain), (1e-9, u, g.forget)):
        ratio = combiners.flexible_ratio(g, wanted * ones)
        d = direction(combiners.flexible(g, ratio, ones), u, r)
        assert ((d * other).sum(1) / norm)[clash].abs().max() < 1e-12


def test_length_at_ratio_one_is_half_the_angle() -> None:
    """‖d‖ = L √((1+c)/2)."""
    u, r = pairs(3)
    g, ones = grams(u, r), torch.ones(PAIRS, dtype=torch.float64)
    d = direction(combiners.flexible(g, ones, 3.0 * ones), u, r)
    expected = 3.0 * ((1 + g.cosine) / 2).sqrt()
    assert torch.allclose(d.norm(dim=1), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rule", ["mgda", "imtl_g", "pcgrad", "sum"])
def test_equal_to_torchjd(rule: str) -> None:
    u, r = pairs(4)
    pair, theirs = RULES[rule](grams(u, r)), torchjd_aggregator(rule)
    for i in range(0, PAIRS, 25):
        ours = pair.forget[i] * u[i] + pair.retain[i] * r[i]
        expected = theirs(torch.stack([u[i], r[i]]))
        size = max(float(u[i].norm()), float(r[i].norm()))
        # A Gram matrix near singular: torchjd's pseudo-inverse rounds its small eigenvalue off.
        if rule == "imtl_g" and 1 - abs(float(grams(u, r).cosine[i])) < 1e-2:
            continue
        balance = min(float(u[i].norm()), float(r[i].norm())) / size
        if rule == "imtl_g" and balance < 1e-3:
            continue
        assert float((ours - expected).norm()) <= 1e-9 * size, i


def test_safe_length_makes_it_imtl_g() -> None:
    u, r = pairs(5)
    g, ones = grams(u, r), torch.ones(PAIRS, dtype=torch.float64)
    ours = direction(combiners.flexible(g, ones, combiners.safe_length(g)), u, r)
    known = direction(combiners.imtl_g(g), u, r)
    shorter = torch.minimum(g.forget, g.retain)
    assert ((ours - known).norm(dim=1) <= 1e-12 * shorter).all()


def test_orthogonal_leaves_the_retained_loss_level() -> None:
    u, r = pairs(6)
    g = grams(u, r)
    d = direction(combiners.orthogonal(g), u, r)
    assert ((d * r).sum(1).abs() <= 1e-9 * g.forget * g.retain).all()


@pytest.mark.parametrize("rule", [*RULES, "flexible"])
@pytest.mark.parametrize("norms", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_zero_gradient_gives_finite_coefficients(rule: str, norms: tuple[float, float]) -> None:
    g = Gram(norms[0] * ONE, norms[1] * ONE, ZERO)
    pair = combiners.flexible(g, ONE, ONE) if rule == "flexible" else RULES[rule](g)
    assert all(math.isfinite(float(w)) for w in pair)


def test_exactly_opposite_gradients_stand_still() -> None:
    g = Gram(ONE, ONE, -ONE)
    ratio = combiners.flexible_ratio(g, 5.0 * ONE)
    pair = combiners.flexible(g, ratio, ONE)
    assert float(pair.forget - pair.retain) == 0.0  # d = w_u g - w_r g with g_r = -g_u
