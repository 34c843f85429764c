"""The MNIST experiment on drawn images: every figure is there, the page says what it saw."""

import pytest
import torch

from fedsift.data import FederatedData
from fedsift.experiments import mnist_fits
from fedsift.experiments.mnist import Mnist
from fedsift.experiments.mnist_fits import METHODS, fit_digits


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
    found = {name: fit_digits(name, seeds=2, rounds=2, tuning_rounds=3) for name in names}
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
