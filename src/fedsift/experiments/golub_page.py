"""The page of the Golub experiment."""

from __future__ import annotations

from typing import Any

from fedsift.experiments.tables import paragraph, table_markdown

TARGETS = {"per array": (0.95, 1.2), "per gene": (0.93, 2.0)}
RIVALS = ("FedIter-HT", "FedIter-HT, scheduled")
TITLES = {
    "method": "method",
    "test_accuracy": "test accuracy",
    "single_seed_accuracy": "one run",
    "gap_to_eflops": "E-FLoPS is better by",
    "p_value_vs_eflops": "p",
    "stability_splits": "stability, splits",
    "stability_seeds": "stability, seeds",
    "bytes_total": "bytes a split",
}
PAPER_TITLES = {
    "method": "method",
    "test_accuracy": "test accuracy, mean of the runs",
    "p_value_vs_eflops": "p",
    "stability_seeds": "stability, seeds",
    "ensemble_accuracy": "ensemble of the runs",
}
TUNED_TITLES = {
    "method": "method",
    "test_accuracy": "tuned",
    "by_default": "as it is",
    "gap_to_eflops": "E-FLoPS is better by",
    "p_value_vs_eflops": "p",
}
GENE_TITLES = {
    "gene": "gene",
    "known_as": "known as",
    "description": "description",
    "split_frequency": "chosen in splits",
    "run_frequency": "by runs",
    "more_speaks_for": "more of it speaks for",
}


def golub_page(results: dict[str, Any]) -> str:
    """Return the page for an experiment's results."""
    train, test = results["patients"]
    quick, rows = results["quick"], results["rows"]
    embedded = "" if train == 57 else ", of the 38 embedded patients: `FEDSIFT_DATA` has no more"
    small = " A small form: its figures say little." if quick else ""
    lines = [
        "# Golub: genes for two leukaemias",
        "",
        f"Written by `fedsift reproduce golub{' --quick' if quick else ''}`; do not edit.{small}",
        "",
        paragraph(
            f"""{results["splits"]} splits into {train} patients at five sites and
            {test} to test{embedded}. {results["seeds"]} runs a split of the methods that draw
            random numbers, {results["rounds"]} rounds, then {results["tuning_rounds"]} rounds that
            refit the chosen genes at the sites. The ensemble keeps what most runs chose."""
        ),
        "",
        *_tables(rows),
        paragraph(
            f"""Means over the splits. Intervals and p-values are of paired t-tests over the splits,
            corrected for training sets that overlap (Nadeau & Bengio, 2003): repeated splits of the
            same patients are no new patients. One patient is {1 / test:.3f} of a test set.
            Stability is Nogueira's index: 1 for always the same genes, 0 for chance."""
        ),
        "",
        "## What was asked for",
        "",
        *_verdicts(rows),
        "",
        *_genes(results["genes"]),
        *_paper(results),
        *_tuned(results),
        *_choices(train, results),
    ]
    return "\n".join(lines) + "\n"


def _kept(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["features"] for row in rows})


def _tables(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for kept in _kept(rows):
        unit = "genes, one gate a gene" if kept == 3 else "weights of a softmax, one gate a weight"
        for scaling in dict.fromkeys(row["scaling"] for row in rows):
            part = [r for r in rows if (r["features"], r["scaling"]) == (kept, scaling)]
            if part:
                lines += [f"## {kept} {unit}, standardised {scaling}", ""]
                lines += [table_markdown(part, TITLES)]
    return lines


def _verdicts(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for scaling, (accuracy, factor) in TARGETS.items():
        part = {
            row["method"]: row for row in rows if row["features"] == 3 and row["scaling"] == scaling
        }
        if not part:
            continue
        ours = part["E-FLoPS"]
        mean = ours["test_accuracy"]["mean"]
        lines.append(
            f"* Standardised {scaling}, 3 genes: accuracy {mean:.3f}, "
            f"{'reaches' if mean >= accuracy else 'below'} {accuracy}."
        )
        for rival in (r for r in RIVALS if r in part):
            theirs = part[rival]["stability_splits"]
            ratio = ours["stability_splits"] / theirs if theirs > 0 else float("inf")
            lines.append(
                f"* Its selection is {ratio:.2f} times as stable over splits as that of {rival} "
                f"({ours['stability_splits']:.3f} against {theirs:.3f}); asked for {factor}."
            )
        clear = [
            name
            for name, row in part.items()
            if row["p_value_vs_eflops"] is not None and row["p_value_vs_eflops"] < 0.05
        ]
        lines.append(
            f"* Rivals whose accuracy differs at p < .05: {', '.join(clear) if clear else 'none'}."
        )
    return lines


def _genes(genes: list[dict[str, Any]]) -> list[str]:
    lines = ["## Genes by how often E-FLoPS chose them, 3 genes", ""]
    for scaling in dict.fromkeys(gene["scaling"] for gene in genes):
        part = [gene for gene in genes if gene["scaling"] == scaling][:10]
        lines += [f"Standardised {scaling}:", "", table_markdown(part, GENE_TITLES)]
    return lines


def _paper(results: dict[str, Any]) -> list[str]:
    if not results["one_split"]:
        return []
    text = """Here the patients are the same in all runs, which differ by their random numbers and
    by the sites that take part (60 %). The interval says how much a run depends on luck, and
    nothing about other patients: a small p-value here and a large one over splits are no
    contradiction. Only the second says which method to use on the next patients. Every method has
    the same tuning phase, a refit of its genes; without one for the rivals, part of the gap would
    be that of the refit."""
    return [
        "## The paper's own comparison: many runs on one split",
        "",
        table_markdown(results["one_split"], PAPER_TITLES),
        paragraph(text),
        "",
    ]


def _tuned(results: dict[str, Any]) -> list[str]:
    if not results["tuned"]:
        return []
    splits = results["tuned"][0]["test_accuracy"]["n"]
    text = f"""{splits} splits, per array, 3 genes. In each, every method had {results["trials"]}
    trials of its own hyperparameters, compared by the loss on a fifth of the training patients,
    held back at every site; beside it the same splits with the hyperparameters as they are."""
    return [
        "## Every method tuned alike",
        "",
        table_markdown(results["tuned"], TUNED_TITLES),
        paragraph(text),
        "",
    ]


def _choices(train: int, results: dict[str, Any]) -> list[str]:
    genes = (
        """the genes that pass the usual filter (3571 on all patients) are chosen on the training
        patients of each split"""
        if train == 57
        else "the 3051 genes that pass the usual filter on all 38 patients"
    )
    choices = (
        f"""Genes: {genes}; per array, each array has mean 0 and deviation 1, and genes are centred
        on the training patients; per gene, each gene has mean 0 and deviation 1 there.""",
        """Sites: five, sizes by a Dirichlet draw with α = 2 in each split; all take part, so that
        the methods without gates draw no random number, and one run of them is all.""",
        """ρ = .1 %: three genes if a gene has one gate and one logit, seven if each weight of a
        softmax has a gate.""",
        """Every method has the same rounds, the same automatic step and the same refit with a ridge
        of one patient; `scheduled` thresholding has the cubic density schedule.""",
        """Pooled rivals see all training rows: the largest coefficients of an L1 fit whose strength
        is chosen by cross-validation, and the largest t statistics, each refitted.""",
        f"""E-FLoPS runs with its defaults and dense messages, {results["seeds"]} runs together.""",
    )
    head = "## What the paper leaves open, and what was chosen here"
    return [head, "", *(f"* {paragraph(choice)}" for choice in choices)]
