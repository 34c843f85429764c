"""Laws of the hard concrete gate: probabilities, derivatives, inverses, and relative entropy."""

import math
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from torch import Tensor
from torch.func import grad, hessian, jacfwd, vmap

from fedsift.gates import PHI_MAX, HardConcrete
from fedsift.random import key, uniform

GATE = HardConcrete()
GATES = [GATE, HardConcrete(0.4, -0.3, 1.05), HardConcrete(1.0, -0.02, 1.5), HardConcrete(2.5)]
GRID = torch.linspace(-PHI_MAX, PHI_MAX, 97, dtype=torch.float64)
FLOATS = (torch.float32, torch.float64)
parameter = st.floats(-PHI_MAX, PHI_MAX)
gates = pytest.mark.parametrize("gate", GATES, ids=str)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def by_differences(function, phi: Tensor, step: float = 1e-5) -> Tensor:
    slope: Tensor = (function(phi + step) - function(phi - step)) / (2 * step)
    return slope


def test_known_probabilities() -> None:
    """Three gates, three different numbers each: P(z > 0), E[z] and P(z = 1)."""
    phi = f64(-2.944, 0, 2.944)
    one = torch.sigmoid(phi - GATE.upper)
    for value, expected in (
        (GATE.prob_active(phi), f64(0.204, 0.830, 0.989)),
        (GATE.mean(phi), f64(0.063, 0.500, 0.937)),
        (one, f64(0.011, 0.170, 0.796)),
    ):
        torch.testing.assert_close(value, expected, rtol=0, atol=5.1e-4)


@gates
def test_probability_and_mean_of_samples(gate: HardConcrete) -> None:
    """Frequencies over n draws lie within 5 standard errors of at most 0.5 / sqrt(n)."""
    n = 400_000
    u = uniform(key("gate samples"), (n,), torch.float64)
    for phi in f64(-4, -2.944, -0.5, 0, 1.5, 3):
        z = gate.sample(phi, u)
        assert abs((z > 0).double().mean() - gate.prob_active(phi)) < 2.5 / math.sqrt(n)
        assert abs(z.mean() - gate.mean(phi)) < 2.5 / math.sqrt(n)
        assert abs((z < 1).double().mean() - torch.sigmoid(gate.upper - phi)) < 2.5 / math.sqrt(n)


def quadrature(integrand, gate: HardConcrete) -> float:
    value: float = integrate.quad(
        integrand, gate.lower, gate.upper, epsabs=0, epsrel=1e-12, limit=500
    )[0]
    return value


@gates
def test_mean_equals_adaptive_quadrature(gate: HardConcrete) -> None:
    """E[z] = P(z = 1) + the integral of the gate times the logistic density between the atoms."""

    def density(t: float, phi: float) -> float:
        z = (gate.zeta - gate.gamma) / (1 + math.exp(-t / gate.beta)) + gate.gamma
        return z / (4 * math.cosh((t - phi) / 2) ** 2)

    for phi in GRID[::8].tolist():
        between = quadrature(lambda t, phi=phi: density(t, phi), gate)
        expected = between + 1 / (1 + math.exp(gate.upper - phi))
        assert gate.mean(f64(phi)).item() == pytest.approx(expected, rel=1e-11)
        single = gate.mean(torch.tensor(phi, dtype=torch.float32)).item()
        assert single == pytest.approx(expected, rel=3e-6)


def test_the_atoms_are_where_the_stretched_gate_leaves_the_interval() -> None:
    for gate in GATES:
        for edge, value in ((gate.lower, 0.0), (gate.upper, 1.0)):
            assert gate.median(f64(edge)).item() == pytest.approx(value, abs=1e-12)
            s = 1 / (1 + math.exp(-edge / gate.beta))
            assert s * (gate.zeta - gate.gamma) + gate.gamma == pytest.approx(value, abs=1e-12)


@gates
def test_slopes_equal_finite_differences(gate: HardConcrete) -> None:
    slope, expected = gate.prob_active_slope(GRID), by_differences(gate.prob_active, GRID)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-11)
    u = uniform(key("slopes"), (97,), torch.float64)
    z, slope = gate.sample_with_slope(GRID, u)
    assert torch.equal(z, gate.sample(GRID, u))
    expected = by_differences(lambda p: gate.sample(p, u), GRID)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(slope, vmap(grad(gate.sample))(GRID, u))
    clipped = (z == 0) | (z == 1)
    assert clipped.any()
    assert (slope[clipped] == 0).all()
    assert (slope[~clipped] > 0).all()
    close_to = GRID * 0.5
    expected = by_differences(lambda p: gate.kl(p, close_to), GRID)
    torch.testing.assert_close(gate.kl_slope(GRID, close_to), expected, rtol=1e-6, atol=1e-9)


@gates
@pytest.mark.parametrize("dtype", FLOATS)
def test_monotone_and_bounded(gate: HardConcrete, dtype: torch.dtype) -> None:
    phi = torch.linspace(-8, 8, 201, dtype=dtype)
    for curve in (gate.prob_active(phi), gate.mean(phi)):
        # Next to 1, float32 has no room for a strict increase.
        room = curve[1:] < 1 - 1e4 * torch.finfo(dtype).eps
        assert (curve.diff()[room] > 0).all()
        assert 0 < curve.min() < curve.max() < 1
    assert (gate.mean(phi) < gate.prob_active(phi)).all()
    assert (gate.median(phi).diff() >= 0).all()
    assert torch.equal(gate.median(phi), gate.sample(phi, torch.full_like(phi, 0.5)))
    assert ((gate.median(phi) == 0) == (gate.prob_active(phi) <= 0.5)).all()


def test_default_gate_is_symmetric() -> None:
    """gamma + zeta = 1 makes the law of 1 - z under phi that of z under -phi."""
    torch.testing.assert_close(GATE.mean(GRID) + GATE.mean(-GRID), torch.ones_like(GRID))
    torch.testing.assert_close(GATE.kl(GRID, 1.5), GATE.kl(-GRID, -1.5), rtol=1e-13, atol=0)
    assert pytest.approx(-GATE.lower, abs=1e-15) == GATE.upper


def test_extreme_uniform_numbers_are_clamped() -> None:
    phi = f64(-12, 0, 12).repeat(2, 1)
    u = f64(0, 1).unsqueeze(1)
    z, slope = GATE.sample_with_slope(phi, u)
    assert torch.equal(z, GATE.sample(phi, u.clamp(1e-6, 1 - 1e-6)))
    assert torch.isfinite(slope).all()
    assert vmap(vmap(grad(GATE.sample)))(phi, u.expand(2, 3)).isfinite().all()


@gates
def test_inverse_mean_inverts_mean(gate: HardConcrete) -> None:
    """Float64 loses the digits that 1 - E[z] lacks at phi = 12: 1e-16 / 1e-5."""
    torch.testing.assert_close(gate.inverse_mean(gate.mean(GRID)), GRID, rtol=0, atol=2e-10)
    means = f64(1e-3, 0.01, 0.3, 0.5, 0.9, 0.999)
    torch.testing.assert_close(gate.mean(gate.inverse_mean(means)), means, rtol=1e-12, atol=0)
    low = torch.linspace(-12, 2, 50)
    torch.testing.assert_close(gate.inverse_mean(gate.mean(low)), low, rtol=0, atol=2e-5)
    slopes = vmap(grad(gate.inverse_mean))(means) * vmap(grad(gate.mean))(gate.inverse_mean(means))
    torch.testing.assert_close(slopes, torch.ones_like(means), rtol=1e-6, atol=0)


def test_inverse_mean_beyond_reach() -> None:
    phi = GATE.inverse_mean(f64(-1, 0, 1, 2, math.nan))
    torch.testing.assert_close(phi[:4], f64(-12, -12, 12, 12), rtol=0, atol=1e-9)
    assert phi[4].isnan()


ENTROPIES = [
    (0.3, 0, 0.014811257571), (2, -1, 1.241759396473), (-3, 0.5, 1.420344221233),
    (5, -5, 6.376984670693), (12, -12, 13.582200242882), (12, 11, 2.1480312050517e-5),
    (-8.5, -2.944, 0.22169576253223),
]  # fmt: skip


@pytest.mark.parametrize(("phi", "phi0", "expected"), ENTROPIES)
def test_known_relative_entropies(phi: float, phi0: float, expected: float) -> None:
    assert GATE.kl(f64(phi), phi0).item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    single = GATE.kl(torch.tensor(float(phi)), phi0).item()
    assert single == pytest.approx(expected, rel=1e-5)


def test_known_slopes_and_curvatures() -> None:
    """I(phi0) = (1 - a^3 - (1 - b)^3) / 3 is the Fisher information, the curvature at phi0."""
    slope = GATE.kl_slope(f64(0.3, 2, -8), f64(0, -1, -8.01))
    torch.testing.assert_close(
        slope, f64(0.0984723774326, 0.645448353461, 1.627595678e-5), rtol=1e-9, atol=0
    )
    phi0 = f64(0, 2.944, 6, 12)
    information = f64(0.330033313, 0.165222747, 0.0117802822, 2.99060746e-5)
    a, b = torch.sigmoid(GATE.lower - phi0), torch.sigmoid(GATE.upper - phi0)
    torch.testing.assert_close((1 - a**3 - (1 - b) ** 3) / 3, information, rtol=2e-8, atol=0)
    for curvature in (
        vmap(grad(grad(GATE.kl)))(phi0, phi0),
        vmap(hessian(GATE.kl))(phi0, phi0),
        vmap(grad(GATE.kl_slope))(phi0, phi0),
    ):
        torch.testing.assert_close(curvature, information, rtol=2e-8, atol=0)


@gates
@given(parameter, parameter)
def test_relative_entropy_is_positive_and_pulls_to_the_prior(
    gate: HardConcrete, phi: float, phi0: float
) -> None:
    for dtype in FLOATS:
        q, p = torch.tensor([phi], dtype=dtype), torch.tensor([phi0], dtype=dtype)
        value, slope = gate.kl(q, p), gate.kl_slope(q, p)
        assert value >= 0
        assert (value == 0) == (q == p) or (q - p).abs() < 1e-3
        assert (slope * (q - p) > 0) == (q != p) or (q - p).abs() < 1e-18
        assert gate.kl(q, q) == 0
        assert gate.kl_slope(q, q) == 0


@given(parameter, parameter)
def test_relative_entropy_is_at_most_that_of_the_unclipped_gate(phi: float, phi0: float) -> None:
    """Clipping maps both laws alike, so it cannot add information (data processing).

    Between unclipped gates it is that of two logistics, at most |delta|.
    """
    assert GATE.kl(f64(phi), phi0).item() <= abs(phi - phi0) + 1e-12


def test_committed_gates_feel_a_bounded_force() -> None:
    """KL tends to -ln P0(z = 1) above and -ln P0(z = 0) below: 4.54 and .228 at phi0 = -2.944."""
    value = GATE.kl(f64(40, -40), -2.944)
    torch.testing.assert_close(value, f64(4.54, 0.228), rtol=0, atol=5e-3)
    atoms = torch.sigmoid(f64(-2.944 - GATE.upper, GATE.lower + 2.944))
    torch.testing.assert_close(value, -atoms.log(), rtol=1e-12, atol=0)
    assert GATE.kl_slope(f64(40, -40), -2.944).abs().max() < 1e-15


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_method_is_finite_far_outside_the_useful_range(dtype: torch.dtype) -> None:
    ends = torch.tensor([-1e4, -200, -90, -30, 0, 30, 90, 200, 1e4], dtype=dtype)
    phi, phi0 = ends.unsqueeze(0), ends.unsqueeze(1)
    for gate in (*GATES, HardConcrete(0.66, -1e-6, 1 + 1e-6)):
        for value in (
            gate.kl(phi, phi0), gate.kl_slope(phi, phi0), gate.mean(phi), gate.median(phi),
            *gate.sample_with_slope(phi, phi0.clamp(0, 1)), gate.prob_active_slope(phi),
        ):  # fmt: skip
            assert torch.isfinite(value).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_autograd_and_batching_give_the_slope(dtype: torch.dtype) -> None:
    phi, phi0 = GRID.to(dtype).unsqueeze(1), GRID[::12].to(dtype)
    slope = GATE.kl_slope(phi, phi0)
    nested = vmap(vmap(grad(GATE.kl), (None, 0)), (0, None))(phi.squeeze(1), phi0)
    torch.testing.assert_close(nested, slope)
    leaf = phi.clone().requires_grad_()
    GATE.kl(leaf, phi0).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, slope.sum(1, keepdim=True))
    forward = vmap(vmap(jacfwd(GATE.kl), (None, 0)), (0, None))(phi.squeeze(1), phi0)
    torch.testing.assert_close(forward, slope)


def test_second_derivatives_equal_finite_differences() -> None:
    phi, phi0 = GRID[::4], 0.3 * GRID[::4] - 1
    expected = by_differences(lambda p: GATE.kl_slope(p, phi0), phi)
    torch.testing.assert_close(vmap(grad(grad(GATE.kl)))(phi, phi0), expected, rtol=1e-6, atol=1e-9)
    torch.autograd.gradcheck(lambda p: GATE.kl(p, phi0), phi.clone().requires_grad_())
    torch.autograd.gradgradcheck(lambda p: GATE.kl(p, phi0), phi.clone().requires_grad_())


def test_the_prior_takes_no_gradient() -> None:
    prior = f64(1.0).requires_grad_()
    for function in (GATE.kl, GATE.kl_slope):
        with pytest.raises(ValueError, match="detach"):
            function(f64(0.0), prior)
        with torch.no_grad():
            function(f64(0.0), prior)
    with pytest.raises(ValueError, match="detach"):
        grad(GATE.kl, argnums=1)(torch.tensor(0.0), torch.tensor(1.0))


def test_vmap_equals_broadcasting() -> None:
    phi, u = GRID.reshape(1, 97).repeat(3, 1), uniform(key("vmap"), (3, 97), torch.float64)
    for function in (
        GATE.sample, GATE.sample_with_slope, GATE.kl, GATE.kl_slope,
        lambda p, _: GATE.mean(p), lambda _, m: GATE.inverse_mean(m), lambda p, _: GATE.median(p),
    ):  # fmt: skip
        torch.testing.assert_close(vmap(function)(phi, u), function(phi, u), rtol=0, atol=1e-15)


@pytest.mark.slow
def test_compiled_code_keeps_the_digits_of_close_gates() -> None:
    phi0 = torch.linspace(-8, 8, 640)
    phi = phi0 + torch.logspace(-5, 1, 640)
    u = uniform(key("compiled"), (640,))

    def step(phi: Tensor, phi0: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        return (*GATE.sample_with_slope(phi, u), GATE.kl_slope(phi, phi0), GATE.mean(phi))

    expected = vmap(step)(phi, phi0, u)
    for a, b in zip(torch.compile(vmap(step))(phi, phi0, u), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)
    exact = GATE.kl_slope(phi.double(), phi0.double())
    compiled = torch.compile(GATE.kl_slope)(phi, phi0)
    torch.testing.assert_close(compiled.double(), exact, rtol=3e-6, atol=0)


def test_more_nodes_where_the_window_is_wide() -> None:
    """The quadrature keeps its precision: kl against adaptive quadrature for extreme stretches."""
    for gate in (HardConcrete(0.66, -1e-6, 1 + 1e-6), HardConcrete(4.0), HardConcrete(0.05)):
        for phi, phi0 in ((1.0, -2.0), (-6.0, 3.0), (0.3, 0.0)):

            def integrand(t: float, phi: float = phi, phi0: float = phi0) -> float:
                cosh = math.cosh((t - phi) / 2), math.cosh((t - phi0) / 2)
                return 2 * math.log(cosh[1] / cosh[0]) / (4 * cosh[0] ** 2)

            between = quadrature(integrand, gate)
            atoms = 0.0
            for sign, edge in ((1, gate.lower), (-1, gate.upper)):
                q, p = (1 / (1 + math.exp(sign * (x - edge))) for x in (phi, phi0))
                atoms += q * math.log(q / p)
            assert gate.kl(f64(phi), phi0).item() == pytest.approx(between + atoms, rel=1e-10)


def test_value_object() -> None:
    assert asdict(GATE) == {"beta": 0.66, "gamma": -0.1, "zeta": 1.1}
    assert replace(GATE, beta=0.5) == HardConcrete(0.5)
    assert hash(GATE) == hash(HardConcrete())
    with pytest.raises(FrozenInstanceError):
        GATE.beta = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", ["beta", "gamma", "zeta"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1.0])
def test_refused_parameters(name: str, value: float) -> None:
    if (name, value) == ("beta", 1.0):
        return
    with pytest.raises(ValueError, match=f"{name}={value}"):
        HardConcrete(**{name: value})


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="quadrature nodes"):
        HardConcrete(beta=1e3)
    phi = torch.zeros(3, dtype=torch.float16)
    for call in (
        GATE.prob_active, GATE.prob_active_slope, GATE.mean, GATE.median, GATE.inverse_mean,
        lambda p: GATE.kl(p, 0.0), lambda p: GATE.kl_slope(p, 0.0), lambda p: GATE.sample(p, p),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="float16"):
            call(phi)
