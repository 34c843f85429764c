"""The work of a batch on the model of a fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fedsift import trees
from fedsift.algorithms import FedAvg
from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData
from fedsift.evaluation import evaluate
from fedsift.findings import Feature
from fedsift.forgetting import gated, with_gates, without_gates
from fedsift.outcomes import make_outcome
from fedsift.problems import Problem
from fedsift.runs import Run
from fedsift.studies import linear_problem
from fedsift.unlearning.methods import Guarantee, Task, Unlearned, find_forgetter, unlearn
from fedsift.unlearning.retraining import retrain
from fedsift.unlearning.rows import RunRows
from fedsift.unlearning.scope import Scope

UNCHANGED = (
    "the model did no better on these rows than on rows held out, so it was not changed; to train "
    "without them, use --method retrain"
)


class Work(NamedTuple):
    """What a batch made of a run: the run as it is then, the verdict, and the history."""

    run: Run
    result: Unlearned
    status: str
    guarantee: Guarantee
    notes: tuple[str, ...]
    history: list[dict[str, Any]]


def do_work(
    run: Run, rows: RunRows, scope: Scope, plan: dict[str, Any], checkpoint: StageCheckpoint
) -> Work:
    """Run the method of a batch's plan, from its checkpoint if there is one.

    Raises:
        ValueError: the method cannot be run on this model; the text says which can.
    """
    assert rows.data is not None  # noqa: S101  a batch has rows to keep
    if plan["method"] == "retrain":
        after, result, notes = retrain(run, scope, rows.data, checkpoint)
        guarantee: Guarantee = "exact" if plan["tuning_redone"] else "exact given preprocessing"
        return Work(after, result, "verified", guarantee, notes, result.history)
    return _changed(run, scope, rows.data, plan, checkpoint)


def _changed(
    run: Run, scope: Scope, data: FederatedData, plan: dict[str, Any], checkpoint: StageCheckpoint
) -> Work:
    """Change the parameters of the model on standardised rows, and keep as many features."""
    rows = run.standardiser.apply(scope.roles(data))
    problem, outcome = (
        linear_problem(rows, run.settings.gate),
        make_outcome(run.facts["data"]["outcome"], len(run.facts["data"]["classes"])),
    )
    if outcome.name == "regression":
        raise ValueError(
            "the target is a number, so the model has no classes and FU-MEGS cannot be run on it; "
            "use --method retrain"
        )
    kept = run.settings.kept(problem.gates.size)
    method, options = plan["method"], dict(plan["options"])
    is_rule = find_forgetter(method).stops
    level = run.facts.get("held_out_loss")
    if is_rule:
        if "target" not in options:
            if level is None:
                raise ValueError(
                    "the run has no loss on rows held out (splits is 0), so nothing says when to "
                    "stop; give --target P, or use --method retrain"
                )
            options |= {"level": level, "settled": 1.0}
        problem_used, params = gated(problem), with_gates(problem, run.params)
    else:
        problem_used, params = problem, run.params
    task = Task(
        problem_used, outcome, rows, params, FedAvg(learning_rate=0.1, local_steps=5),
        seed=run.settings.seed, weights=run.settings.weights, engine=run.settings.engine,
    )  # fmt: skip
    result = unlearn(task, method, checkpoint=checkpoint, **options)
    final = (
        without_gates(problem, result.params, kept)
        if is_rule
        else _cut(problem, result.params, kept)
    )
    met = _met(problem, final, task.forgotten(), options, level)
    params_after = trees.map_tensors(torch.clone, final)
    after = replace(run, params=params_after, features=_features(run, params_after))
    notes: tuple[str, ...] = (
        "standardisation, and the features on offer, were made with the rows that are forgotten",
        "inclusion probabilities are those of the search, in which the rows took part",
    )
    if result.rounds <= 1 and result.stop_reason == "target_met":
        notes += (UNCHANGED,)
    status = "verified" if met else "target_not_met"
    return Work(after, result, status, "empirical", notes, run_history(result))


def run_history(result: Unlearned) -> list[dict[str, Any]]:
    """Return the rounds of a method as records of a run, under a stage of their own."""
    return [{"stage": "forget", **{k: v for k, v in r.items() if k != "sites"}}
            for r in result.history]  # fmt: skip


def _cut(problem: Problem, params: dict[str, torch.Tensor], kept: int) -> dict[str, torch.Tensor]:
    mask = problem.gates.keep(problem.gates.magnitude(params), kept, kept)
    return problem.gates.multiply(params, mask)


def _met(
    problem: Problem,
    params: dict[str, torch.Tensor],
    forgotten: FederatedData,
    options: dict[str, Any],
    level: float | None,
) -> bool:
    """Tell whether the final model, cut to its features, meets the target."""
    loss = evaluate(problem, trees.stack([params]), forgotten)["loss"]
    if "target" in options:
        return bool((-loss).exp() <= options["target"])
    return level is None or bool(loss >= level - 1e-6)


def _features(run: Run, params: dict[str, torch.Tensor]) -> tuple[Feature, ...]:
    """Return the features of changed parameters; what is not known of a new one is left open."""
    known = {f.name: f for f in run.features}
    offered = {row["name"]: row for row in run.facts.get("candidates", [])}
    weight = params["weight"]
    found = []
    for j in (weight != 0).any(0).nonzero().squeeze(1).tolist():
        name = run.standardiser.features[j]
        value = float(weight[int(weight[:, j].abs().argmax()), j])
        old, row = known.get(name), offered.get(name, {})
        chance = old.inclusion_probability if old else row.get("inclusion_probability", 0.0)
        text = old.description if old else row.get("description", "")
        found.append(Feature(name, float(chance), None, value, float("nan"), float("nan"), text))
    return tuple(sorted(found, key=lambda f: (-f.inclusion_probability, -abs(f.weight))))
