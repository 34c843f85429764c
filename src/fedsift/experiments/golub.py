"""Leukaemia: three genes that tell ALL from AML, over many splits of the patients.

Source: E-FLoPS (arXiv 2607.00275), its experiment on the data of Golub et al. (1999).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsift.data import KNOWN_GENES
from fedsift.experiments.base import Cell, Experiment, Outcome
from fedsift.experiments.golub_fits import METHODS, POOLED, fit_splits, fit_tuned, full_data
from fedsift.experiments.golub_page import golub_page
from fedsift.reporting.charts import Chart, Series
from fedsift.selection import paired_p_value, t_interval

FULL = {"splits": 30, "seeds": 8, "rounds": 100, "tuning_rounds": 100}
QUICK = {"splits": 3, "seeds": 2, "rounds": 40, "tuning_rounds": 20}
TUNED = {"splits": 10, "trials": 8}
QUICK_TUNED = {"splits": 2, "trials": 2}
RUNS, QUICK_RUNS = 30, 3  # run seeds of the paper's own comparison, on one split
PAPERS = ("E-FLoPS", "FLoPS (T=0)", "FedIter-HT", "Fed-HT", "FedAvg + top-m")
TUNABLE = ("E-FLoPS", "FedIter-HT", "Fed-HT", "FedAvg + top-m")
FEW = ("E-FLoPS", "FedIter-HT, scheduled", "pooled L1, largest")  # with a gate a weight
SCALINGS = {"array": "per array", "feature": "per gene"}
GATES = {3: "feature", 7: "scalar"}
OURS = "E-FLoPS"


class Golub(Experiment):
    """Every method on every split, then the paper's own comparison on one split."""

    name = "golub"
    summary = "three genes for two leukaemias, over splits of the patients"

    def cells(self, *, quick: bool) -> list[Cell]:
        numbers = QUICK if quick else FULL
        cells = []
        for kept in (3,) if quick else GATES:
            for how in ("array",) if quick else SCALINGS:
                for method in (*METHODS, *POOLED) if kept == 3 else FEW:
                    arguments = {"how": how, "method": method, "kept": kept, "gate": GATES[kept]}
                    cost = 10.0 if method in {OURS, "FLoPS (T=0)"} else 1.0
                    name = f"{how} · {kept} · {method}"
                    cells.append(Cell(name, fit_splits, {**arguments, **numbers}, cost))
        one = {**numbers, "splits": 1, "seeds": QUICK_RUNS if quick else RUNS, "participation": 0.6}
        for method in PAPERS:
            arguments = {"how": "array", "method": method, "kept": 3, "gate": "feature"}
            cells.append(Cell(f"one split · {method}", fit_splits, {**arguments, **one}, 2.0))
        tuned = {**numbers, **(QUICK_TUNED if quick else TUNED), "how": "array"}
        cells += [
            Cell(f"tuned · {method}", fit_tuned, {**tuned, "method": method}, 5.0)
            for method in TUNABLE
        ]
        return cells

    def outcome(self, found: Mapping[str, dict[str, Any]], *, quick: bool) -> Outcome:
        numbers = QUICK if quick else FULL
        patients = (57, 15) if full_data() else (30, 8)
        overlap = patients[1] / patients[0]
        rows, paper, tuned = [], [], []
        for name, result in found.items():
            block, _, method = name.rpartition(" · ")
            ours = found.get(f"{block} · {OURS}")
            if ours is None:
                continue
            if block == "one split":
                paper.append(_paper_row(method, result, ours))
            elif block == "tuned":
                tuned.append(_tuned_row(method, result, ours, overlap))
            else:
                how, kept = block.split(" · ")
                rows.append(_row(how, int(kept), method, result, ours, overlap))
        genes = {
            SCALINGS[how]: [_named(gene) for gene in found[f"{how} · 3 · {OURS}"]["genes"]]
            for how in SCALINGS
            if f"{how} · 3 · {OURS}" in found
        }
        results = {
            "rows": rows,
            "genes": [{"scaling": how, **gene} for how, table in genes.items() for gene in table],
            "one_split": paper,
            "tuned": tuned,
            "trials": (QUICK_TUNED if quick else TUNED)["trials"],
            "patients": list(patients),
            "quick": quick,
            **numbers,
        }
        return Outcome(results, golub_page(results), _charts(rows, genes))


def _row(
    how: str,
    kept: int,
    method: str,
    result: dict[str, Any],
    ours: dict[str, Any],
    overlap: float,
) -> dict[str, Any]:
    gaps = [b - a for a, b in zip(result["accuracy"], ours["accuracy"], strict=True)]
    singles = [sum(values) / len(values) for values in result["accuracy_seeds"]]
    is_ours = method == OURS
    return {
        "scaling": SCALINGS[how],
        "features": kept,
        "method": method,
        "test_accuracy": t_interval(result["accuracy"], overlap).to_json(),
        "single_seed_accuracy": t_interval(singles, overlap).to_json(),
        "gap_to_eflops": None if is_ours else t_interval(gaps, overlap).to_json(),
        "p_value_vs_eflops": None if is_ours else paired_p_value(gaps, overlap),
        "stability_splits": result["stability_splits"],
        "stability_seeds": result["stability_seeds"],
        "bytes_total": result["bytes_total"],
    }


def _paper_row(method: str, result: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return a method's row over the run seeds of one split."""
    accuracy, best = result["accuracy_seeds"][0], ours["accuracy_seeds"][0]
    gaps = [b - a for a, b in zip(accuracy, best, strict=True)]
    return {
        "method": method,
        "test_accuracy": t_interval(accuracy).to_json(),
        "p_value_vs_eflops": None if method == OURS else paired_p_value(gaps),
        "stability_seeds": result["stability_seeds"],
        "ensemble_accuracy": result["accuracy"][0],
    }


def _tuned_row(
    method: str, result: dict[str, Any], ours: dict[str, Any], overlap: float
) -> dict[str, Any]:
    """Return a method's row over the splits in each of which it was tuned."""
    gaps = [b - a for a, b in zip(result["accuracy"], ours["accuracy"], strict=True)]
    return {
        "method": method,
        "test_accuracy": t_interval(result["accuracy"], overlap).to_json(),
        "by_default": t_interval(result["by_default"], overlap).to_json(),
        "gap_to_eflops": None if method == OURS else t_interval(gaps, overlap).to_json(),
        "p_value_vs_eflops": None if method == OURS else paired_p_value(gaps, overlap),
    }


def _named(gene: dict[str, Any]) -> dict[str, Any]:
    return {"gene": gene["gene"], "known_as": KNOWN_GENES.get(gene["gene"], ""), **gene}


def _charts(
    rows: list[dict[str, Any]], genes: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Chart]:
    charts = {}
    for kept in sorted({row["features"] for row in rows}):
        chosen = [row for row in rows if row["features"] == kept]
        series = {}
        for scaling in dict.fromkeys(row["scaling"] for row in chosen):
            part = [row for row in chosen if row["scaling"] == scaling]
            scores = [row["test_accuracy"] for row in part]
            series[f"standardised {scaling}"] = Series(
                [row["method"] for row in part],
                *([score[key] for score in scores] for key in ("mean", "low", "high")),
            )
        unit = "genes" if kept == 3 else "weights of a softmax"
        charts[f"accuracy-{kept}"] = Chart(
            f"Accuracy on patients held out, {kept} {unit}",
            "accuracy (mean of the splits, 95 % interval)",
            "",
            series,
            kind="dots",
        )
    often = [g for table in genes.values() for g in table[:8] if g["split_frequency"]]
    names = list(dict.fromkeys(g["gene"] for g in often))
    by_gene = {
        how: {g["gene"]: g["split_frequency"] for g in table} for how, table in genes.items()
    }
    charts["genes"] = Chart(
        "Genes that E-FLoPS chooses",
        "share of the splits whose ensemble chose it",
        "",
        {
            f"standardised {how}": Series(
                [_short(n) for n in names], [table.get(n, 0.0) for n in names]
            )
            for how, table in by_gene.items()
        },
        kind="dots",
    )
    return charts


def _short(gene: str) -> str:
    return f"{gene.removesuffix('_at')} ({KNOWN_GENES[gene]})" if gene in KNOWN_GENES else gene


EXPERIMENT = Golub()
