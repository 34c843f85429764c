"""The benchmarks take the steps of E-FLoPS, and run on tiny sizes with the keys others read."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import _floors as floors
from benchmarks import rounds, seeds, startup
from benchmarks._common import Target, interleaved
from benchmarks._jobs import SteppedRun, regression_sites
from benchmarks._numpy_step import eflops_step
from fedsift import random, trees
from fedsift.algorithms import EFLoPS
from fedsift.linear_problems import linear_problem
from fedsift.sites import SiteData


@pytest.fixture
def step():
    """Return a site's start (θ̃, bias, φ, λ), rows, noise and rates, and what EFLoPS makes of it."""
    rows, d = 8, 12
    data = regression_sites(1, rows, d)
    problem = linear_problem(data)
    algorithm = EFLoPS(density=0.1, learning_rate=0.01, batch_size=rows, local_steps=1)
    key = random.key("site")
    server = algorithm.server_init(problem, key)
    theta = {"weight": torch.linspace(-1, 1, d).unsqueeze(0), "bias": torch.tensor([0.3])}
    server = server._replace(theta=theta, multiplier=torch.tensor(0.2))
    shared = algorithm.download(problem, server, "round")
    site = SiteData(data.x, data.y, data.weight, data.weight.sum(), key)
    eta = torch.tensor(algorithm.learning_rate)
    after, phi, multiplier = algorithm.descend(
        problem, trees.part(shared, "theta"), server.phi, shared, site, eta, key
    )
    u = random.uniform(random.fold(key, 0), (d,))
    start = (theta["weight"][0], theta["bias"], server.phi, server.multiplier.reshape(1))
    end = (after["weight"][0], after["bias"], phi, multiplier.reshape(1))
    return start, data, u, floors.rates_of(algorithm, problem), end


def test_the_numpy_client_takes_the_step_of_eflops(step):
    start, data, u, rates, end = step
    arrays = [value.numpy() for value in start]
    found = eflops_step(arrays, data.x.numpy(), data.y.numpy(), u.numpy(), rates)
    for mine, other in zip(end, found, strict=True):
        np.testing.assert_allclose(other, mine.numpy(), rtol=1e-5, atol=1e-6)
        assert other.dtype == np.float32


def test_the_elementwise_floor_takes_the_step_of_eflops(step):
    start, data, u, rates, end = step
    theta, bias, phi, multiplier = start
    z = EFLoPS(density=0.1).gate.sample(phi, u)
    residual = 2 * (data.x @ (theta * z) + bias - data.y) / len(data.y)
    found = floors.gate_step(
        theta[None],
        phi[None],
        multiplier,
        (residual @ data.x)[None],
        u[None],
        floors.entropy_slope_table(rates.prior),
        rates,
    )
    for mine, other in zip((end[0], end[2], end[3]), found, strict=True):
        torch.testing.assert_close(other.reshape(mine.shape), mine, rtol=1e-5, atol=1e-6)


def test_rounds_gives_the_figures_of_every_size():
    cases = rounds.measure_sizes((2, 5), repeats=1)
    assert [case["sites"] for case in cases] == [2, 5]
    assert all(case["overhead_ms"] > 0 and case["first_round_seconds"] > 0 for case in cases)


def test_seeds_gives_ratios():
    figures = seeds.measure_seeds(8, 2, repeats=1, compiled=False)
    assert figures["ratio_to_separate_runs"] > 0
    assert figures["ratio_to_elementwise_floor"] > 0


def test_the_help_starts_about_as_fast_as_what_it_shows_it_with():
    """With torch it would be tens of times; the bound is doubled, for a busy machine.

    The two imports that need torch are left to the benchmark: they are given as equal here.
    """
    shown = {name: startup.COMMANDS[name] for name in ("help", "typer_rich")}
    seconds = startup.processor_seconds(shown, repeats=1)
    figures = startup.ratios({**seconds, "import": 1.0, "use": 1.0, "torch": 1.0})
    assert 0 < figures["help_ratio"] <= 2 * startup.HELP
    assert figures["import_ratio"] == 1.0


def test_a_stepped_run_raises_what_training_raises():
    data = regression_sites(2, 4, 3)
    with pytest.raises(ValueError, match="participation"):
        SteppedRun(linear_problem(data), data, EFLoPS(density=0.5), participation=0)


def test_interleaved_calls_every_task():
    calls = []
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, 0)
    assert set(seconds) == {"a", "b"}
    assert calls[-4:] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("bound", "at_most", "measured", "met"),
    [
        (2, True, 1, True),
        (2, True, 2, True),
        (2, True, 3, False),
        (2, False, 3, True),
        (2, False, 2, True),
        (2, False, 1, False),
        (2, True, None, None),
    ],
)
def test_targets_are_judged(bound, at_most, measured, met):
    assert Target("x", bound, at_most=at_most).judge(measured)["met"] is met


def test_the_page_is_made_of_what_the_benchmarks_print():
    page = runpy.run_path("scripts/speed_page.py")["page"]
    cases = [{"sites": 10, "overhead_ms": 1.5, "uncompiled_ms": 3.5, "first_round_seconds": 0.25}]
    results = {
        "quick": False,
        "machine": {"processor": "P", "cores": 2, "python": "3.11"},
        "versions": {"torch": "2"},
        "targets": [Target("overhead", 1.0).judge(1.5)],
        "cases": cases,
    }
    text = page(json.loads(json.dumps({"rounds": results})))
    assert "| 10 | 1.5 | 3.5 | 0.25 |" in text
    assert "| rounds | overhead | <= 1 | 1.5 | no |" in text


def test_the_page_in_the_docs_is_that_of_its_figures():
    page = runpy.run_path("scripts/speed_page.py")["page"]
    known = json.loads(Path("docs/speed.json").read_text())
    assert page(known) == Path("docs/speed.md").read_text()
