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


def by_pair(aggregator: Any, u: Tensor, r: Tensor) -> Tensor:
    return torch.stack([aggregator(torch.stack(pair)) for pair in zip(u, r, strict=True)])


@pytest.mark.parametrize("rule", ["mgda", "pcgrad", "sum"])
def test_equal_to_torchjd(rule: str) -> None:
    """All 5,000 pairs to 1e-9 of the longer gradient."""
    u, r = pairs(4)
    g = grams(u, r)
    away = direction(RULES[rule](g), u, r) - by_pair(torchjd_aggregator(rule), u, r)
    assert (away.norm(dim=1) <= 1e-9 * torch.maximum(g.forget, g.retain)).all()


def test_imtl_g_equal_to_torchjd_where_its_inverse_is_known() -> None:
    """torchjd inverts the Gram matrix: of 1e6 times its rounding it can be no better than 1e-10."""
    u, r = pairs(4)
    g = grams(u, r)
    rows = torch.stack([g.forget.square(), g.product, g.product, g.retain.square()], 1)
    regular = torch.linalg.cond(rows.reshape(-1, 2, 2)) <= 1e6
    assert regular.sum() > PAIRS / 2
    theirs = by_pair(torchjd_aggregator("imtl_g"), u[regular], r[regular])
    away = direction(RULES["imtl_g"](g), u, r)[regular] - theirs
    assert (away.norm(dim=1) <= 1e-9 * torch.maximum(g.forget, g.retain)[regular]).all()


def test_imtl_g_has_equal_projections() -> None:
    """Its definition, for all pairs: w_u + w_r = 1 and d·g_u/n_u = d·g_r/n_r."""
    u, r = pairs(4)
    g = grams(u, r)
    pair = RULES["imtl_g"](g)
    d = direction(pair, u, r)
    on_u, on_r = (d * u).sum(1) / g.forget, (d * r).sum(1) / g.retain
    assert ((pair.forget + pair.retain - 1).abs() <= 1e-12).all()
    assert ((on_u - on_r).abs() <= 1e-12 * torch.minimum(g.forget, g.retain)).all()


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
