"""The page and the pictures of the synthetic experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedsift.experiments.synthetic_rows import (
    Found,
    budget_rows,
    entropy_rows,
    of_kind,
    step_rows,
    truth_rows,
    tuned_rows,
    untuned_rows,
)
from fedsift.experiments.tables import table_markdown
from fedsift.reporting.charts import Chart, Series

if TYPE_CHECKING:
    from fedsift.experiments.synthetic import Design

DRAWN = (
    "eflops dense",
    "eflops feedback",
    "fediterht-cubic dense",
    "fediterht dense",
    "fedavg dense",
    "lasso rows",
    "abess rows",
)

HEAD = """# Sparse regression whose answer is known

`fedsift reproduce synthetic{quick}` wrote this page ({done} of {of} cells are done).

x ~ N(0, Σ) with Σ_ij = .2^|i-j|, {m} of {d} features with weights ±1, SNR 20 (the best R² is .952);
the rows lie at 5 sites, Dirichlet(2) counts, 60 % of them take part in a round. {data} data sets;
every figure is a mean over them with its 95 % t-interval. *Recovery* is the share of the true
features among the {m} chosen: of single runs, and of the ensemble of the run seeds ({seeds} at
N = {close}, else {few}). All methods run at their defaults: automatic step sizes, nothing tuned to
these data. *Refit* is the test R² of a ridge fit, one sample strong, on the ensemble's choice.
"""

LEFT_OPEN = """## What the paper leaves open, and what was chosen

* Dirichlet concentration of the sample counts: 2. Affine shift: none, but in a table of its own.
* SNR: variance of the signal over that of the noise. Features and target are standardised by the
  means and deviations of all training rows (two sums of each site and feature).
* Local steps: 2, on all rows of the site. Rounds: 300. Weights of sites: their samples.
* The numbers of the paper (η_λ = .01/d, ρ_init = .05) commit early; the defaults here are those of
  the guide's page on E-FLoPS.
* The paper's message recovers the gates from mean gates by a rule that is no inverse
  (`messages` *paper*); it is shown beside messages with error feedback and dense ones.
* The paper compares single runs; here a single run and the ensemble of seeds stand side by side,
  for every method.
* Tuning phase: solved exactly (ridge on the chosen features), the same for every method; the
  training curves show it as rounds.
* Bytes: both directions, catch-up and indices included, of the search of one seed.

## What was not reproduced

The paper's own curves are not at hand as numbers, so they are not drawn; what is compared is the
order of the methods. The pooled solvers have all rows in one place and are no federated methods.
`oneshot` is abess on the sums of the sites: the same features, for one message of each site.
"""


def page(found: Found, results: Mapping[str, Any], design: Design, *, done: int, of: int) -> str:
    """Return the page."""
    setting = {"n_features": 1000, "n_informative": 50, **design.setting}
    quick = " --quick" if design.rounds else ""
    text = HEAD.format(
        quick=quick,
        done=done,
        of=of,
        d=setting["n_features"],
        m=setting["n_informative"],
        data=design.data,
        close=", ".join(str(n) for n in sorted(design.close)),
        seeds=design.seeds,
        few=design.few,
    )
    figures = {
        "support_recovery": "recovery",
        "ensemble_support_recovery": "ensemble",
        "test_r2": "test R²",
        "refit_r2": "refit R²",
        "bytes_total": "bytes a seed",
    }
    named = {"method": "method", "messages": "messages"}
    tables = {
        "By number of samples": (results["rows"], {"samples": "N", **named, **figures}),
        "The fit on the true features": (
            truth_rows(found),
            {"samples": "N", "true_refit_r2": "refit R²"},
        ),
        "E-FLoPS (dense) less the others, data set by data set": (
            results["paired"],
            {
                "samples": "N",
                "eflops_less": "less",
                "support_recovery": "recovery",
                "ensemble_support_recovery": "ensemble",
                "refit_r2": "refit R²",
            },
        ),
        "Does entropy help? T = .03 less T = 0": (
            entropy_rows(found),
            {
                "samples": "N",
                "support_recovery": "recovery",
                "ensemble_support_recovery": "ensemble",
                "refit_r2": "refit R²",
            },
        ),
        f"Settings that nobody tuned (N = {design.centre})": (
            untuned_rows(found),
            {"setting": "setting", **named, **figures, "test_accuracy": "accuracy"},
        ),
        f"For how many bytes (N = {design.centre}; budgets in FedIter-HT's 300 rounds)": (
            budget_rows(found),
            {"network": "network", "budget": "budget", **named, "rounds": "rounds", **figures},
        ),
        f"Tuned alike: {design.trials} trials each, by validation rows of another data set": (
            tuned_rows(found),
            {**named, "knobs": "chosen", **figures},
        ),
        "Step sizes: factors of the automatic one": (
            step_rows(found),
            {"factor": "factor", **named, **figures},
        ),
    }
    parts = [text]
    for title, (rows, titles) in tables.items():
        if rows:
            parts.append(f"## {title}\n\n{table_markdown(rows, titles)}")
    return "\n".join([*parts, LEFT_OPEN])


def charts(found: Found, rows: Sequence[Mapping[str, Any]], design: Design) -> dict[str, Chart]:
    """Return the pictures of what is known."""
    setting = {"n_features": 1000, **design.setting}
    drawn = {
        "refit-r2": _against_samples(rows, "refit_r2", "refit R²", setting["n_features"]),
        "recovery": _against_samples(
            rows, "ensemble_support_recovery", "recovery of the ensemble", setting["n_features"]
        ),
        "curves": _curves(found),
        "bytes": _bytes(found, design),
        "steps": _steps(found),
    }
    return {stem: chart for stem, chart in drawn.items() if chart.series}


def _series(points: Sequence[tuple[float, Mapping[str, float]]]) -> Series:
    points = sorted(points, key=lambda p: p[0])
    x = [p[0] for p in points]
    return Series(
        x,
        [p[1]["mean"] for p in points],
        [p[1]["low"] for p in points],
        [p[1]["high"] for p in points],
    )


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['method']} {row['messages']}"


def _against_samples(
    rows: Sequence[Mapping[str, Any]], figure: str, title: str, features: int
) -> Chart:
    series = {}
    for name in DRAWN:
        points = [(r["samples"] / features, r[figure]) for r in rows if _named(r) == name]
        if points:
            series[name] = _series(points)
    note = "bands: 95 % intervals over data sets"
    return Chart(f"{title} against N/d", "samples per feature N/d", title, series, note=note)


def _curves(found: Found) -> Chart:
    series, tuning = {}, 0
    for (method, messages), result in of_kind(found, "curve").items():
        series[f"{method} {messages}"] = Series(result["rounds"], result["r2"])
        tuning = result["tuning"]
    note = f"dashed: after round {tuning} the kept features are trained again (tuning)"
    return Chart(
        "Training curves", "round", "training R²", series, note=note, upright=tuning or None
    )


def _bytes(found: Found, design: Design) -> Chart:
    rows = [r for r in budget_rows(found) if r["network"].startswith(str(design.networks[0][0]))]
    series = {}
    for name in dict.fromkeys(_named(r) for r in rows):
        points = [(r["bytes_total"], r["support_recovery"]) for r in rows if _named(r) == name]
        series[name] = _series(points)
    title = f"Quality against bytes, N = {design.centre}"
    return Chart(title, "bytes a seed, both ways", "recovery", series, logarithmic="x")


def _steps(found: Found) -> Chart:
    rows = step_rows(found)
    series = {
        name: _series([(r["factor"], r["support_recovery"]) for r in rows if _named(r) == name])
        for name in dict.fromkeys(_named(r) for r in rows)
    }
    title = "Stability across step sizes"
    return Chart(title, "factor of the automatic step", "recovery", series, logarithmic="x")
