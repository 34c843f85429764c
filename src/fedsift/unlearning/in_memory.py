"""Forgetting in a model that was trained from Python: nothing is written, the model comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms import FedAvg, LocalTraining
from fedsift.data import FederatedData
from fedsift.data.federated import RETAIN
from fedsift.linear_problems import linear_problem
from fedsift.outcomes import make_outcome
from fedsift.private_fits import refuse
from fedsift.sealed import fingerprint
from fedsift.training import Training
from fedsift.trees import Tree
from fedsift.unlearning.audit import STATEMENTS
from fedsift.unlearning.figures import measure, parts_of
from fedsift.unlearning.methods import GENTLE, Task, find_forgetter, unlearn
from fedsift.unlearning.report import UnlearningReport
from fedsift.unlearning.scope import Scope


def task_of(
    trained: Training,
    scope: Scope,
    data: FederatedData | None = None,
    held_out: Tensor | None = None,
) -> Task:
    """Return the task of forgetting a scope in the first seed's model of a training.

    Raises:
        ValueError: the training's algorithm does not train a model, or every row is to go.
    """
    job = trained.job
    rows = scope.roles(data or job.data, held_out)
    if not isinstance(job.algorithm, LocalTraining):
        msg = f"{type(job.algorithm).__name__} does not train a model that could forget"
        raise ValueError(msg)  # noqa: TRY004  a method's limit, not a caller's type
    assert rows.role is not None  # noqa: S101  roles were given
    if not bool((rows.role == RETAIN).any()):
        msg = "every row is to be forgotten, so nothing would be left to keep; train a new model"
        raise ValueError(msg)
    return Task(
        replace(job.problem, batched=True),
        make_outcome(rows.outcome, len(rows.classes)),
        rows,
        trees.unstack(trained.params, 0),
        replace(job.algorithm, rounds=max(1, trained.round)),
        seed=job.seeds[0],
        weights=job.weights,
    )


def forget_in_training(
    trained: Training,
    scope: Scope,
    data: FederatedData | None = None,
    *,
    method: str = "fumegs",
    held_out: Tensor | None = None,
    **options: Any,
) -> UnlearningReport:
    """Forget a scope in a trained model; return the report with the parameters.

    Raises:
        ValueError: nothing is named or known, or nothing says when to stop.
    """
    find_forgetter(method)
    refuse(trained.job.privacy, "forgotten from")
    if not scope:
        raise ValueError("nothing is named to forget; name sites, rows or classes")
    unknown = scope.unknown(data or trained.job.data)
    if unknown:
        raise ValueError(unknown[0])
    return forget_in_task(task_of(trained, scope, data, held_out), scope, method, **options)


def forget_in_task(task: Task, scope: Scope, method: str, **options: Any) -> UnlearningReport:
    """Run a method on a task, and measure it; ``scope`` is what the roles of its rows come from.

    Raises:
        ValueError: there is no such method, or nothing says when to stop.
    """
    forgetter = find_forgetter(method)
    if method == "fumegs" and not {"target", "neutral", "level"} & set(options):
        if task.held_out() is None:
            msg = (
                "nothing says when to stop; give held_out, a mask of rows at the sites that forget "
                "which the model has not seen, or target, the largest mean probability that the "
                "labels to forget may have"
            )
            raise ValueError(msg)
        options = {**GENTLE, **options}
    result = unlearn(task, method, **options)
    empirical = forgetter.guarantee == "empirical"
    met = not empirical or result.stop_reason == "target_met"
    judged = {"target", "neutral", "level"} & set(options)
    with torch.no_grad():
        found = {
            when: measure(task.problem, params, parts_of(task.data))
            for when, params in (("before", task.params), ("after", result.params))
        }
    return UnlearningReport(
        request_id=fingerprint(_hash(task.params), scope.hashed(""))[:16],
        status="verified" if met else ("target_not_met" if judged else "not_judged"),
        stop_reason=result.stop_reason,
        method=method,
        guarantee=forgetter.guarantee,
        statement=STATEMENTS[forgetter.guarantee],
        measures={when: figures.values for when, figures in found.items()},
        intervals={when: figures.intervals for when, figures in found.items()},
        rounds=result.rounds,
        bytes_total=result.bytes_total,
        seconds=result.seconds,
        params=result.params,
    )


def forget_in_linear(
    params: Tree, rows: FederatedData, scope: Scope, held_out: Tensor, method: str, **options: Any
) -> UnlearningReport:
    """Forget rows in a linear model: the features it uses stay, their weights change.

    Args:
        params: ``weight`` [K, d], 0 for features that are not used, and ``bias`` [K].
        rows: standardised rows [N, d] of the sites.
        scope: what to forget.
        held_out: [N] bool, rows that are only looked at.
        method: a name in `FORGETTERS`.
        options: of the method.

    Raises:
        ValueError: there is no such method, or nothing says when to stop.
    """
    weight = params["weight"]
    columns = (weight != 0).any(0).nonzero().squeeze(1)
    used = rows.select_features(columns)
    task = Task(
        linear_problem(used),
        make_outcome(used.outcome, len(used.classes)),
        scope.roles(used, held_out),
        params | {"weight": weight[:, columns]},
        FedAvg(learning_rate=0.1, local_steps=5),
    )
    report = forget_in_task(task, scope, method, **options)
    assert report.params is not None  # noqa: S101  something was named to forget
    after = torch.zeros_like(weight)
    after[:, columns] = report.params["weight"]
    return replace(report, params=report.params | {"weight": after})


def retrained(scope: Scope) -> UnlearningReport:
    """Return the report of a model that was fitted anew without the rows of a scope."""
    return UnlearningReport(
        request_id=scope.hashed("")[:16],
        status="verified",
        stop_reason="retrained",
        method="retrain",
        guarantee="exact given preprocessing",
        statement=STATEMENTS["exact given preprocessing"],
    )


def _hash(params: dict[str, Tensor]) -> str:
    import hashlib

    digest = hashlib.sha256()
    for leaf, value in params.items():
        digest.update(leaf.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()
