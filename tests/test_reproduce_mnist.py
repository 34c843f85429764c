"""The MNIST experiment on drawn images: every figure is there, the page says what it saw."""

import pytest
import torch

from fedsift.data import FederatedData
from fedsift.experiments import mnist_fits
from fedsift.experiments.mnist import Mnist
from fedsift.experiments.mnist_fits import METHODS, TRIAL, fit_digits


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
    short: dict = {"seeds": 2, "rounds": 2, "tuning_rounds": 3, "choosing": False}
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
@pytest.mark.parametrize("tuning_helps", [True, False])
def test_knobs_are_chosen_on_images_held_back_from_training(monkeypatch, tuning_helps):
    """One after the other; then whether the support is tuned, by a run of all rounds."""
    best = {"learning_rate": 0.05, "ridge": 0.003, "entropy": 0.01}
    asked = []

    def fit(method, sites, test, knobs, *numbers, **named):
        asked.append((knobs, {*sites.rows}, {*test.rows}, numbers or named))
        wrong = sum(abs(knobs.get(name, 0.03) - value) for name, value in best.items())
        before = wrong + (0.1 if tuning_helps else -0.1)
        return {"cross_entropy": [wrong], "cross_entropy_before_tuning": [before]}

    monkeypatch.setattr(mnist_fits, "_fit", fit)
    found = fit_digits("E-FLoPS", 5, 40, 9)
    assert found["chosen"] == best
    assert found["tuning_rounds"] == (9 if tuning_helps else 0)
    *trials, whole, last = asked
    assert len(trials) == len(found["trials"]) == 6
    assert all(numbers == TRIAL for *_, numbers in trials)
    for _, shown, held_back, _ in (*trials, whole):
        assert not shown & held_back
        assert len(held_back) == 20
        assert shown | held_back == last[1]
    assert (whole[0], whole[3]) == (best, (1, 40, 9))
    assert (last[0], last[3]) == (best, (5, 40, found["tuning_rounds"]))
