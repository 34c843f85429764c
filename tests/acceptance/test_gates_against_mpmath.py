"""The relative entropy of two gates and its slope, against arithmetic of 80 digits."""

import mpmath as mp
import numpy as np
import pytest
import torch

from fedsift.gates import HardConcrete

pytestmark = pytest.mark.acceptance

GATE = HardConcrete()
DIGITS = 80
OFFSETS = (0.0, 1e-6, -1e-6, 1e-3, -1e-3, 0.1, -0.1, 0.999, -0.999, 1.001, -1.001)


def pairs() -> np.ndarray:
    """400 pairs, |phi| <= 12: 16 gates, each beside 14 spread priors and 11 close ones."""
    rows = []
    for phi in np.linspace(-12, 12, 16):
        close = [phi + d if abs(phi + d) <= 12 else phi - d for d in OFFSETS]
        rows += [(phi, phi0) for phi0 in (*np.linspace(-12, 12, 14), *close)]
    return np.array(rows)


def window() -> tuple[mp.mpf, mp.mpf]:
    beta, gamma, zeta = map(mp.mpf, (GATE.beta, GATE.gamma, GATE.zeta))
    return beta * mp.log(-gamma / zeta), beta * mp.log((1 - gamma) / (zeta - 1))


def closed_form(phi: mp.mpf, phi0: mp.mpf) -> mp.mpf:
    """KL = a ln(a/A) + (1-b) ln((1-b)/(1-B)) - delta (b-a) + 2 [F(b) - F(a)].

    Over u = sigmoid(t - phi) the log density ratio is -delta + 2 ln(1 + c u), c = e^delta - 1, and
    F(u) = ((1 + c u) ln(1 + c u) - (1 + c u)) / c is the integral of ln(1 + c u).
    """
    delta = phi - phi0
    if delta == 0:
        return mp.mpf(0)
    low, high = window()
    a, b, big_a, big_b = (1 / (1 + mp.exp(p - edge)) for p in (phi, phi0) for edge in (low, high))
    c = mp.expm1(delta)

    def primitive(u: mp.mpf) -> mp.mpf:
        return ((1 + c * u) * mp.log(1 + c * u) - (1 + c * u)) / c

    atoms = a * mp.log(a / big_a) + (1 - b) * mp.log((1 - b) / (1 - big_b))
    return atoms - delta * (b - a) + 2 * (primitive(b) - primitive(a))


def by_quadrature(phi: mp.mpf, phi0: mp.mpf) -> mp.mpf:
    """Both atoms, and the logistic density times the log of the density ratio between them."""

    def density(t: mp.mpf, p: mp.mpf) -> mp.mpf:
        return 1 / (4 * mp.cosh((t - p) / 2) ** 2)

    low, high = window()
    atoms = mp.mpf(0)
    for sign, edge in ((1, low), (-1, high)):
        q, p = (1 / (1 + mp.exp(sign * (x - edge))) for x in (phi, phi0))
        atoms += q * mp.log(q / p)
    between = mp.quad(
        lambda t: density(t, phi) * mp.log(density(t, phi) / density(t, phi0)), [low, 0, high]
    )
    return atoms + between


def reference(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and numerically differentiated slopes of the closed form, rounded to float64."""
    values, slopes = [], []
    step = mp.mpf(10) ** -20
    for row in rows:
        phi, phi0 = map(mp.mpf, map(float, row))
        values.append(float(closed_form(phi, phi0)))
        up, down = closed_form(phi + step, phi0), closed_form(phi - step, phi0)
        slopes.append(float((up - down) / (2 * step)))
    return np.array(values), np.array(slopes)


def test_the_reference_equals_quadrature_of_the_density_ratio() -> None:
    with mp.workdps(40):
        for row in pairs()[::10]:
            phi, phi0 = map(mp.mpf, map(float, row))
            expected = by_quadrature(phi, phi0)
            with mp.workdps(DIGITS):
                value = closed_form(phi, phi0)
            assert abs(value - expected) < mp.mpf(10) ** -20


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"),
    [(torch.float64, 1e-10, 1e-10), (torch.float32, 1e-5, 1e-6)],
    ids=["float64", "float32"],
)
def test_relative_entropy_and_slope(dtype: torch.dtype, relative: float, absolute: float) -> None:
    """The reference takes the rounded parameters, so that only the formula's error is seen."""
    rounded = torch.from_numpy(pairs()).to(dtype)
    with mp.workdps(DIGITS):
        values, slopes = reference(rounded.double().numpy())
    phi, phi0 = rounded.T
    leaf = phi.clone().requires_grad_()
    entropy = GATE.kl(leaf, phi0)
    (gradient,) = torch.autograd.grad(entropy.sum(), leaf)
    line = []
    for name, computed, exact in (
        ("KL", entropy.detach(), values),
        ("autograd", gradient, slopes),
        ("slope", GATE.kl_slope(phi, phi0), slopes),
    ):
        error = np.abs(computed.double().numpy() - exact)
        nonzero = np.abs(exact) > 1e-30
        largest = (error[nonzero] / np.abs(exact[nonzero])).max()
        line.append(f"{name} {largest:.1e} relative, {error.max():.1e} absolute")
        assert (error <= absolute + relative * np.abs(exact)).all(), name
    print(f"\nhard concrete, {len(values)} pairs, {dtype}: " + "; ".join(line))
