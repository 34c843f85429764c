"""The synthetic experiment's promised figures, on its own cells: ten data sets, default settings.

Each cell takes minutes; `fedsift reproduce synthetic` runs all of them and writes the tables.
"""

from functools import lru_cache

import pytest

from fedsift.experiments.synthetic_cells import budget, federated, pooled
from fedsift.experiments.synthetic_rows import difference, row

DATA = list(range(10))
CUBIC = {"schedule": "cubic"}
pytestmark = [pytest.mark.acceptance, pytest.mark.acceptance_long]


@lru_cache(maxsize=64)
def found(method, messages, samples, schedule=None):
    if method in {"abess", "lasso"}:
        pytest.importorskip("abess", reason="the extra oneshot (abess) is not installed")
        return pooled(method, samples, DATA)
    knobs = CUBIC if schedule else {}
    return federated(method, messages, samples, DATA, 8, knobs=knobs)


def shown(figure, samples, method, messages="dense", schedule=None):
    name = f"reproduce synthetic, N={samples}: {method} {messages} {schedule or ''}".strip()
    result = row(method, messages, found(method, messages, samples, schedule))
    for key, value in result.items():
        if key not in {"method", "messages"}:
            figure(f"{name}: {key}", value)
    return result


@pytest.mark.parametrize(
    ("samples", "least"), [(150, 0.35), (200, 0.55), (250, 0.92), (300, 0.99), (400, 0.99)]
)
def test_recovery_of_the_ensemble(samples, least, figure):
    dense = shown(figure, samples, "eflops")
    assert dense["ensemble_support_recovery"]["mean"] >= least
    if samples >= 300:
        sets = found("eflops", "dense", samples)["sets"]
        gap = max(s["true_refit_r2"] - s["refit_r2"] for s in sets)
        figure(f"reproduce synthetic, N={samples}: largest gap of the refit R² to the truth's", gap)
        assert sum(s["true_refit_r2"] - s["refit_r2"] for s in sets) / len(sets) <= 0.01


@pytest.mark.parametrize(("samples", "least"), [(250, 0.9), (300, 0.99)])
def test_recovery_with_error_feedback(samples, least, figure):
    sparse = shown(figure, samples, "eflops", "feedback")
    assert sparse["ensemble_support_recovery"]["mean"] >= least


@pytest.mark.parametrize("rival", ["abess", "lasso"])
@pytest.mark.parametrize("samples", [200, 250, 300])
def test_beside_pooled_solvers(samples, rival, figure):
    shown(figure, samples, rival, "rows")
    ours, theirs = found("eflops", "dense", samples), found(rival, "rows", samples)
    gap = difference(ours, theirs, "ensemble_support_recovery")
    figure(f"reproduce synthetic, N={samples}: eflops less {rival}, paired", gap)
    if samples >= 300:
        assert gap["mean"] >= -0.01
    else:
        assert gap["low"] > 0.0


@pytest.mark.parametrize("rival", ["fedht", "fediterht", "fedavg"])
@pytest.mark.parametrize("samples", [200, 250, 300, 400])
def test_above_the_plain_rivals(samples, rival, figure):
    shown(figure, samples, rival)
    for key in ("support_recovery", "refit_r2"):
        gap = difference(found("eflops", "dense", samples), found(rival, "dense", samples), key)
        figure(f"reproduce synthetic, N={samples}: eflops less {rival}, paired, {key}", gap)
        assert gap["low"] > 0.0


@pytest.mark.parametrize("rival", ["fedht", "fediterht"])
@pytest.mark.parametrize("samples", [250, 300])
def test_above_scheduled_thresholding(samples, rival, figure):
    shown(figure, samples, rival, schedule="cubic")
    ours, theirs = found("eflops", "dense", samples), found(rival, "dense", samples, "cubic")
    gap = difference(ours, theirs, "ensemble_support_recovery")
    figure(f"reproduce synthetic, N={samples}: eflops less {rival} cubic, paired", gap)
    assert gap["low"] > 0.0


@pytest.mark.parametrize("samples", [150, 200, 250, 300])
def test_entropy(samples, figure):
    gap = difference(
        found("eflops", "dense", samples),
        found("flops", "dense", samples),
        "ensemble_support_recovery",
    )
    figure(f"reproduce synthetic, N={samples}: T = .03 less T = 0, paired", gap)
    assert gap["mean"] >= -0.01


@pytest.mark.parametrize(("sites", "participation"), [(5, 0.6), (20, 0.25)])
def test_quality_for_bytes(sites, participation, figure):
    network = {"samples": 300, "sites": sites, "participation": participation}
    data, seeds = DATA[:5], 2
    dense = federated(
        "eflops", "dense", 300, data, seeds, setting={"n_sites": sites}, participation=participation
    )
    average = federated(
        "fedavg", "dense", 300, data, seeds, setting={"n_sites": sites}, participation=participation
    )
    sparse = budget("eflops", "feedback", 2.0, data, seeds, **network)
    gap = difference(dense, sparse, "support_recovery")
    figure(f"bytes, {sites} sites: dense less twice FedIter-HT's bytes, recovery", gap)
    sent = [sum(s["bytes_total"] for s in r["sets"]) for r in (sparse, average)]
    figure(f"bytes, {sites} sites: share of FedAvg's bytes", sent[0] / sent[1])
    assert gap["mean"] <= 0.02
    assert sent[0] <= sent[1] / 3
