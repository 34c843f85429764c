"""The MNIST experiment on drawn images: every figure is there, the page says what it saw."""

import pytest
import torch

from fedsift.data import FederatedData
from fedsift.experiments import mnist_fits
from fedsift.experiments.mnist import Mnist
from fedsift.experiments.mnist_fits import METHODS, RATES, TRIAL, fit_digits


@pytest.fixture
def _few_images(monkeypatch):
    """Ten images a digit, each a bright square of its own place."""
    y = torch.arange(10).repeat(10)
    x = torch.zeros(100, 1, 28, 28)
    for row, digit in enumerate(y.tolist()):
        top, left = 2 + 14 * (digit // 5), 1 + 5 * (digit % 5)
        x[row, 0, top : top + 8, left : left + 5] = 0.5 + 0.05 * (row // 10)
    sites = torch.arange(100) % 5
    labels = [str(digit) for digit in y.tolist()]
    data = FederatedData.from_arrays(x, labels, sites=sites, outcome="multiclass", target="digit")
    monkeypatch.setattr(mnist_fits, "make_digits", lambda: (data, data))


@pytest.mark.slow
@pytest.mark.usefixtures("_few_images")
def test_every_figure_of_every_method():
    names = ("E-FLoPS", "FedIter-HT", "Fed-HT", "E-FLoPS, channels")
    short: dict = {"seeds": 2, "rounds": 2, "tuning_rounds": 3, "rates": [0.1]}
    found = {name: fit_digits(name, **short) for name in names}
    for name, result in found.items():
        limit = 1104 if METHODS[name][2] == "scalar" else 44_190
        assert all(0 < count <= limit for count in result["weights"])
        assert all(
            a <= b < 281_640 for a, b in zip(result["macs"], result["macs_compact"], strict=True)
        )
        assert [point[0] for point in result["curve"]][-1] == 5
    sparse, structured = found["E-FLoPS"], found["E-FLoPS, channels"]
    assert structured["macs_compact"] == structured["macs"]
    assert sparse["macs_compact"] > sparse["macs"]
    outcome = Mnist().outcome(found, quick=True)
    row = outcome.results["rows"][0]
    assert {"method", "test_accuracy", "macs", "bytes_total"} <= set(row)
    assert "tested on the other 100 of the 5000 images" in outcome.page
    assert "E-FLoPS does not reach 0.94" in outcome.page
    assert len(outcome.results["layers"]) == 5 * len(names)
    assert set(outcome.charts) == {"training", "macs"}


@pytest.mark.usefixtures("_few_images")
def test_the_step_is_chosen_on_images_held_back_from_training(monkeypatch):
    asked = []

    def fit(method, sites, test, rate, **numbers):
        asked.append((rate, {*sites.rows}, {*test.rows}, numbers))
        return {"cross_entropy": [abs(rate - 0.05), 0.1]}

    monkeypatch.setattr(mnist_fits, "_fit", fit)
    chosen = fit_digits("E-FLoPS", 5, 40, 9)
    assert chosen["learning_rate"] == 0.05
    *trials, last = asked
    assert [trial[0] for trial in trials] == list(RATES)
    for _, shown, held_back, numbers in trials:
        assert not shown & held_back
        assert len(held_back) == 20
        assert shown | held_back == last[1]
        assert numbers == TRIAL
    assert last[0] == 0.05
