"""What a model does on the rows to forget, on the others, and on rows it has never seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedsift import trees
from fedsift.data import DataError, FederatedData, RemoteData, of_role, read_table
from fedsift.data.coding import has_classes
from fedsift.data.federated import FORGET, HELD_OUT, RETAIN
from fedsift.data.paths import site_name
from fedsift.evaluation import evaluate
from fedsift.linear_problems import linear_problem
from fedsift.problems import Problem
from fedsift.runs import Run
from fedsift.trees import Tree
from fedsift.unlearning.membership import infer, scores, wilson

ROLES = {"retain": RETAIN, "forget": FORGET, "held_out": HELD_OUT}


class Measured(NamedTuple):
    """Figures by name, and 95 % intervals: Wilson's of shares, Hanley and McNeil's of the AUC.

    ``membership_auc`` and ``tpr_at_1_fpr`` say how well the loss tells the rows to forget from rows
    held out; they are there where both are.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]


def measure(problem: Problem, params: Tree, parts: Mapping[str, FederatedData]) -> Measured:
    """Return loss and measure on each part, ``retain``, ``forget``, ``held_out``, and membership.

    The parts are in the units of the problem.
    """
    values, intervals = {}, {}
    for name, rows in parts.items():
        for key, figure in evaluate(problem, trees.stack([params]), rows).items():
            if key.rpartition("_")[2].isdigit():  # one label's, of which the means are there
                continue
            values[f"{name}_{key}"] = share = float(figure[0])
            if key == "accuracy" and has_classes(rows.outcome):
                found = wilson(share * rows.n_samples, rows.n_samples)
                intervals[f"{name}_{key}"] = (found.low, found.high)
    classes = all(has_classes(rows.outcome) for rows in parts.values())
    if classes and {"forget", "held_out"} <= parts.keys():
        members, others = (
            scores(problem, params, parts[name].x, parts[name].y, "loss")
            for name in ("forget", "held_out")
        )
        inference = infer(members, others)
        told = {"membership_auc": inference.auc, "tpr_at_1_fpr": inference.tpr_at_1_fpr}
        values |= {name: figure.value for name, figure in told.items()}
        intervals |= {name: (figure.low, figure.high) for name, figure in told.items()}
    return Measured(values, intervals)


def parts_of(data: FederatedData) -> dict[str, FederatedData]:
    """Return the rows of each role that some have."""
    role = data.role
    assert role is not None  # noqa: S101  the data come with roles
    return {
        name: of_role(data, number)
        for name, number in ROLES.items()
        if bool((role == number).any())
    }


def measure_run(run: Run, data: FederatedData, held_out: FederatedData | None = None) -> Measured:
    """Return the figures of a run's model on rows with roles, in original units."""
    parts = parts_of(run.standardiser.apply(data))
    if held_out is not None:
        parts["held_out"] = run.standardiser.apply(held_out)
    return measure(linear_problem(data, run.settings.gate), run.params, parts)


def read_held_out(run: Run, file: Path, data: FederatedData) -> FederatedData:
    """Return rows of a file that the run has not seen.

    Args:
        run: says which columns the file must have; others are ignored.
        file: as for `read_table`.
        data: the rows that the run has seen.

    Raises:
        ValueError: the run is of a regression, the file lacks the target, or a row was seen.
        DataError: the run's rows are at their sites, or the file cannot be read (`read_table`).
    """
    facts, source = run.facts["data"], run.facts["source"] or {}
    if not has_classes(facts["outcome"]):
        raise ValueError(
            f"the target {facts['target']!r} is {facts['outcome']}: membership is told from the"
            " loss of classes; leave the rows held out away"
        )
    if isinstance(data, RemoteData):
        raise DataError("the rows stay at their sites, so no file can be compared with them here")
    options: dict[str, Any] = {k: source.get(k) for k in ("id_column", "separator")}
    found = read_table(
        file, run.standardiser.candidates, target=facts["target"], classes=facts["classes"],
        fills=run.standardiser.fills, covariates=run.standardiser.covariates, **options,
    )  # fmt: skip
    if found.y is None:
        raise ValueError(f"{file} has no column {facts['target']!r}, which the run predicts")
    seen = {row.tobytes() for row in data.x.numpy()}
    for name, row in zip(found.rows, found.x.numpy(), strict=True):
        if row.tobytes() in seen:
            raise ValueError(f"row {name!r} of {file} is a row of the run; give rows it never saw")
    return FederatedData(
        x=found.x, y=found.y, weight=torch.ones(len(found.x)), offsets=(0, len(found.x)),
        sites=(site_name(file),), features=found.features, rows=found.rows,
        outcome=facts["outcome"], classes=tuple(facts["classes"]), target=facts["target"],
        covariates=run.standardiser.covariates,
    )  # fmt: skip
