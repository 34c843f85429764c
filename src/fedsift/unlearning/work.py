"""The work of a batch on the model of a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fedsift import trees
from fedsift.algorithms import FedAvg
from fedsift.checkpoints import StageCheckpoint
from fedsift.data.coding import has_classes
from fedsift.evaluation import evaluate
from fedsift.findings import Feature
from fedsift.forgetting import gated, with_gates, without_gates
from fedsift.linear_problems import linear_problem
from fedsift.models import GateUnit
from fedsift.outcomes import make_outcome
from fedsift.problems import Problem
from fedsift.runs import Run
from fedsift.trees import Tree
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
    return _changed(run, scope, rows, plan, checkpoint)


def _changed(
    run: Run, scope: Scope, given: RunRows, plan: dict[str, Any], checkpoint: StageCheckpoint
) -> Work:
    """Change the parameters of the model on standardised rows, and keep as many features."""
    assert given.data is not None  # noqa: S101  a batch has rows to keep
    rows = run.standardiser.apply(scope.roles(given.data))
    problem, outcome = (
        linear_problem(rows, run.settings.gate),
        make_outcome(run.facts["data"]["outcome"], len(run.facts["data"]["classes"])),
    )
    if not has_classes(given.data.outcome):
        raise ValueError(
            f"the target is {given.data.outcome}, so the model has no classes and FU-MEGS cannot be"
            " run on it; use --method retrain"
        )
    method, options = plan["method"], dict(plan["options"])
    is_rule = find_forgetter(method).stops
    level = run.facts.get("held_out_loss")
    if given.held_out is not None:
        unseen = run.standardiser.apply(given.held_out)
        level = float(evaluate(problem, trees.stack([run.params]), unseen)["loss"])
    if is_rule and "target" not in options:
        if level is None:
            raise ValueError(
                "the run has no loss on rows held out (splits is 0), so nothing says when to "
                "stop; give --target P or --held-out FILE, or use --method retrain"
            )
        options |= {"level": level, "settled": 1.0}
    task = Task(
        problem, outcome, rows, run.params, FedAvg(learning_rate=0.1, local_steps=5),
        seed=run.settings.seed, weights=run.settings.weights, engine=run.settings.engine,
    )  # fmt: skip
    size = problem.gates.size
    as_many = run.settings.controlled or run.settings.groups is not None
    kept = max(1, len(run.features)) if as_many else run.settings.kept(size)

    def with_method(task: Task, checkpoint: StageCheckpoint, **more: Any) -> Unlearned:
        return unlearn(task, method, checkpoint=checkpoint, **options | more)

    if is_rule:
        result, final = _by_rule(task, with_method, kept, run.settings.gate, checkpoint)
        met = result.stop_reason == "target_met"
    else:
        result = with_method(task, checkpoint)
        final = _cut(problem, result.params, kept)
        loss = float(evaluate(problem, trees.stack([final]), task.forgotten())["loss"])
        met = level is None or loss >= level - 1e-6
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


def _by_rule(
    task: Task,
    with_method: Callable[..., Unlearned],
    kept: int,
    gate: GateUnit,
    checkpoint: StageCheckpoint,
) -> tuple[Unlearned, Tree]:
    """Change weights and gates, cut to what is kept, and go on with that alone.

    What closed gates let through is lost in the cut, and the target may be with it. The second run
    looks at the cut model first, and ends there if that meets the target.
    """
    problem = task.problem
    loose = replace(task, problem=gated(problem), params=with_gates(problem, task.params))
    first = with_method(loose, checkpoint)
    if first.rounds <= 1 and first.stop_reason == "target_met":
        return first, task.params
    final = without_gates(problem, first.params, kept)
    columns = (final["weight"] != 0).any(0).nonzero().squeeze(1)
    rows = task.data.select_features(columns)
    small = final | {"weight": final["weight"][:, columns]}
    tight = replace(task, problem=linear_problem(rows, gate), data=rows, params=small)
    # With a gate for each weight, steps would open others in the same column: look, and no more.
    go_on = first.stop_reason == "target_met" and gate == "feature"
    second = with_method(tight, checkpoint.named("cut"), **({} if go_on else {"rounds": 1}))
    if not go_on and second.stop_reason != "target_met":
        lost = first.stop_reason == "target_met"
        second = second._replace(stop_reason="lost_in_the_cut" if lost else first.stop_reason)
    weight = torch.zeros_like(final["weight"])
    weight[:, columns] = second.params["weight"]
    return first.then(second), second.params | {"weight": weight}


def run_history(result: Unlearned) -> list[dict[str, Any]]:
    """Return the rounds of a method as records of a run, under a stage of their own."""
    return [{"stage": "forget", **{k: v for k, v in r.items() if k != "sites"}}
            for r in result.history]  # fmt: skip


def _cut(problem: Problem, params: Tree, kept: int) -> Tree:
    mask = problem.gates.keep(problem.gates.magnitude(params), kept, kept)
    return problem.gates.multiply(params, mask)


def _features(run: Run, params: Tree) -> tuple[Feature, ...]:
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
