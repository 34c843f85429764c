"""The vectorized engine against the loop engine."""

import runpy

import pytest


@pytest.mark.acceptance
@pytest.mark.acceptance_long
def test_vectorized_is_15_times_faster_than_the_loop(figure) -> None:
    measure = runpy.run_path("benchmarks/engines.py")["measure"]
    figures = measure(10, 30, 1000, 5)
    figure("vectorized against loop, 10 sites x 30 seeds", figures)
    assert figures["speedup"] >= 15
