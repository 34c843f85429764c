"""``fedsift reproduce unlearning``: forgetting a site and a backdoor, beside a retrained model."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsift import trees
from fedsift.algorithms.erasers import StoredFedAvg
from fedsift.data import FederatedData
from fedsift.data.federated import FORGET, HELD_OUT
from fedsift.experiments.base import Cell, Experiment, Outcome
from fedsift.experiments.forgetting_cases import (
    POISONED,
    ForgetCase,
    Scenario,
    Source,
    has_mnist,
    make_case,
)
from fedsift.experiments.shadows import Shadows, train_shadows
from fedsift.experiments.tables import table_markdown
from fedsift.outcomes import Softmax
from fedsift.reporting.charts import Chart, Series
from fedsift.training import Training, train
from fedsift.trees import Tree
from fedsift.unlearning.membership import infer, scores
from fedsift.unlearning.methods import GENTLE, Task, Unlearned, unlearn

# A backdoor is learned late; on clusters, a tenth of whose labels are wrong, more rounds overfit.
ROUNDS: dict[Scenario, int] = {"site": 60, "backdoor": 100}
STEPS, RATE = 5, 0.3
SHADOWS = 8  # models that are trained for the attack by shadow models, a second each
RIVALS = ("continue", "ascent", "ascent_sum", "federaser", "orthogonal", "mgda", "pcgrad")
FUMEGS: dict[Scenario, dict[str, Any]] = {
    "backdoor": {"target": 0.02, "rounds": ROUNDS["backdoor"] // 3},
    "site": {**GENTLE, "rounds": ROUNDS["site"] // 5},
}
# What goes wrong when a part is left out; each beside the same number of exchanges.
ABLATIONS: dict[str, dict[str, Any]] = {
    "entropy, τ=1": {"loss": "entropy", "temperature": 1.0},
    "entropy, τ chosen": {"loss": "entropy"},
    "mixed loss": {"loss": "mixed"},
    "ratio by conflict": {"ratio": "conflict"},
    "raw MGDA": {"rule": "mgda", "length": "fixed", "budget": 1e9},
    "stop at stationarity only": {"target": None, "stationary": 0.75, "patience": 1},
    "unbounded loss": {"loss": "ascent", "rule": "sum", "length": "fixed", "budget": 1e9},
    "no norm balancing": {"rule": "sum"},
    "no direction balancing": {"rule": "orthogonal"},
    "fixed length": {"length": "fixed"},
}
SHOWN = {
    "scenario": "scenario",
    "method": "method",
    "seeds": "seeds",
    "test_accuracy": "test accuracy",
    "forget_accuracy": "forget accuracy",
    "attack_success": "attack success",
    "membership_auc": "membership AUC",
    "tpr_at_1_fpr": "TPR at 1 % FPR",
    "lira_auc": "LiRA AUC",
    "lira_tpr_at_1_fpr": "LiRA TPR at 1 % FPR",
    "js_distance": "JS to retrain",
    "rounds": "rounds",
    "bytes_of_retrain": "bytes / retrain's",
    "steps_of_retrain": "local steps / retrain's",
}
NUMBERS = (
    "test_accuracy", "forget_accuracy", "attack_success", "membership_auc", "tpr_at_1_fpr",
    "lira_auc", "lira_tpr_at_1_fpr", "confidence_auc", "entropy_auc", "js_distance",
    "parameter_distance", "rounds", "bytes_total", "local_steps", "bytes_of_retrain",
    "steps_of_retrain", "seconds", "test_gap", "forget_gap", "auc_gap",
)  # fmt: skip


def measure(case: ForgetCase, params: Tree, reference: Tree) -> dict[str, float]:
    """Return the figures of a model, its distances to the retrained one included."""
    predict = case.problem.predict
    assert predict is not None  # noqa: S101  a supervised problem has it
    role = case.data.role
    assert role is not None  # noqa: S101  a case is made with roles
    with torch.no_grad():
        outputs = [predict(p, case.test_x).double().softmax(-1) for p in (params, reference)]
        hit = predict(params, case.triggered).argmax(-1) == 9
        x, y = case.data.x[role == FORGET], case.data.y[role == FORGET]
        right = predict(params, x).argmax(-1) == y
    others = case.data.x[role == HELD_OUT], case.data.y[role == HELD_OUT]
    found = {
        name: infer(
            scores(case.problem, params, x, y, name), scores(case.problem, params, *others, name)
        )
        for name in ("loss", "confidence", "entropy")
    }
    away = trees.subtract(params, reference)
    return {
        "test_accuracy": _share(outputs[0].argmax(-1) == case.test_y),
        "forget_accuracy": _share(right),
        "attack_success": _share(hit),
        "membership_auc": found["loss"].auc.value,
        "tpr_at_1_fpr": found["loss"].tpr_at_1_fpr.value,
        "confidence_auc": found["confidence"].auc.value,
        "entropy_auc": found["entropy"].auc.value,
        "js_distance": float(js_distance(*outputs)),
        "parameter_distance": float(trees.norm(away) / trees.norm(reference)),
    }


def js_distance(p: Tensor, q: Tensor) -> Tensor:
    """Return the mean over rows of √JS(p, q), in [0, √log 2]."""
    middle = 0.5 * (p + q)

    def divergence(a: Tensor) -> Tensor:
        ratio: Tensor = torch.special.xlogy(a, a / middle.clamp(min=1e-300))
        return ratio.sum(-1)

    both: Tensor = 0.5 * (divergence(p) + divergence(q))
    return both.clamp(min=0.0).sqrt().mean()


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def compare(
    source: Source,
    scenario: Scenario,
    network: str,
    alpha: float | None,
    seed: int,
    methods: list[str],
    sites: int = 10,
    poisoned: float = POISONED,
    rate: float = RATE,
    batch_size: int | None = None,
    shadows: int = 0,
) -> dict[str, Any]:
    """Train, retrain and forget in one federation; return a row a method.

    ``shadows``: how many models the attack by shadow models trains; 0: there is none.
    """
    case = make_case(source, scenario, network, alpha, seed, sites, poisoned)
    algorithm = StoredFedAvg(
        rounds=ROUNDS[scenario], local_steps=STEPS, learning_rate=rate, batch_size=batch_size
    )
    original = _trained(case, algorithm, seed, case.trained_on())
    again = _trained(case, algorithm, seed, case.without_site())
    task = Task(
        case.problem, Softmax(10), case.data, trees.unstack(original.params, 0), algorithm,
        seed=seed, norms=tuple(r["update_norm"] for r in original.history),
    )  # fmt: skip
    reference = trees.unstack(again.params, 0)
    found = {"original": _cost(original), "retrain": _cost(again)}
    own = FUMEGS[scenario]
    for name in methods:
        method, options = _how(name, own)
        found[name] = unlearn(_for(name, task, case), method, **options)
    base = measure(case, reference, reference)
    attack = None
    if shadows:

        def shadow(rows: FederatedData, number: int) -> Tree:
            trained = _trained(case, algorithm, 1000 + number, rows)
            params: Tree = trees.unstack(trained.params, 0)
            return params

        attack = train_shadows(case, shadow, shadows, seed)
    rows = []
    for name, result in found.items():
        figures = measure(case, result.params, reference)
        rows.append(
            {"method": name, "stop_reason": result.stop_reason}
            | figures
            | ({} if attack is None else _told_by(attack, result.params))
            | {
                "rounds": result.rounds,
                "bytes_total": result.bytes_total,
                "local_steps": result.local_steps,
                "seconds": result.seconds,
                "bytes_of_retrain": result.bytes_total / found["retrain"].bytes_total,
                "steps_of_retrain": result.local_steps / found["retrain"].local_steps,
                "test_gap": figures["test_accuracy"] - base["test_accuracy"],
                "forget_gap": figures["forget_accuracy"] - base["forget_accuracy"],
                "auc_gap": figures["membership_auc"] - base["membership_auc"],
            }
        )
    return {"rows": rows}


def _told_by(attack: Shadows, params: Tree) -> dict[str, float]:
    found = attack.infer(params)
    return {"lira_auc": found.auc.value, "lira_tpr_at_1_fpr": found.tpr_at_1_fpr.value}


def _for(name: str, task: Task, case: ForgetCase) -> Task:
    """Return the task of a method: those that train do without the whole site."""
    if name not in {"continue", "federaser"}:
        return task
    rest = case.without_site()
    return replace(task, data=replace(rest, role=torch.zeros(rest.n_samples, dtype=torch.int8)))


def _how(name: str, own: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return method and options; rivals get as many rounds as FU-MEGS may take."""
    if name == "fumegs":
        return "fumegs", own
    if name in ABLATIONS:
        return "fumegs", own | ABLATIONS[name]
    if name == "ascent":
        return "ascent", {"local_steps": 5 * STEPS, "recovery": own["rounds"] // 2}
    return name, {} if name == "federaser" else {"rounds": own["rounds"]}


def _trained(case: ForgetCase, algorithm: StoredFedAvg, seed: int, rows: Any) -> Training:
    return train(
        case.problem, rows, algorithm, seeds=(seed,), evaluate_every=1_000_000, compile=False
    )


def _cost(run: Training) -> Unlearned:
    seconds = sum(record["seconds"] for record in run.history)
    visits = sum(sum(record["sites"].values()) for record in run.history)
    return Unlearned(
        trees.unstack(run.params, 0), "trained", run.round, int(run.bytes_up.sum()),
        int(run.bytes_down.sum()), visits * STEPS, seconds, [],
    )  # fmt: skip


class Unlearning(Experiment):
    """Forget a site, or a backdoor, in clusters and real digits."""

    name: ClassVar[str] = "unlearning"
    summary: ClassVar[str] = "forgetting a site and a backdoor, beside retraining"

    def cells(self, *, quick: bool) -> list[Cell]:
        """Return a cell for each federation."""
        return [
            Cell(name, compare, arguments, cost=4.0 if "cnn" in name else 1.0)
            for name, arguments in _plan(quick=quick)
        ]

    def outcome(self, found: Mapping[str, dict[str, Any]], *, quick: bool) -> Outcome:
        """Return the table, the page and the pictures."""
        rows = summary(found)
        return Outcome({"rows": rows}, _page(rows, quick=quick), _charts(rows))


def _plan(*, quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and arguments of the cells."""
    rivals = ["fumegs", *RIVALS]
    if quick:
        for scenario, source in (("site", "clusters"), ("backdoor", "digits")):
            more = list(ABLATIONS) if scenario == "backdoor" else []
            yield (
                f"{scenario} · {source} · mlp · IID · seed 0",
                _arguments(source, scenario, "mlp", None, 0, [*rivals, *more]),
            )
        return
    for seed in range(5):
        for scenario in ("site", "backdoor"):
            for source, network in (("clusters", "mlp"), ("digits", "mlp"), ("digits", "cnn")):
                for alpha in (None, 0.3):
                    heavy = network == "cnn"
                    ablated = scenario == "backdoor" and network == "mlp" and seed < 2
                    methods = ["fumegs"] if heavy else [*rivals, *(ABLATIONS if ablated else ())]
                    spread = "IID" if alpha is None else f"Dirichlet {alpha}"
                    arguments = _arguments(source, scenario, network, alpha, seed, methods)
                    yield f"{scenario} · {source} · {network} · {spread} · seed {seed}", arguments
    if has_mnist():
        yield from _mnist()


def _mnist() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the published set-up, and the ten sites, on MNIST digits.

    Five clients, 80 % of one's images that are no 9 with a trigger and the label 9 (Halimi et al.),
    and steps on 64 rows: with all rows, this network dies at the other sets' step, and does not
    learn the backdoor at a smaller one.
    """
    methods = ["fumegs", "continue", "ascent", "federaser"]
    for seed in range(3):
        published = _arguments("mnist", "backdoor", "cnn", None, seed, methods)
        yield (
            f"backdoor · mnist, 5 sites, 80 % · cnn · IID · seed {seed}",
            published | {"sites": 5, "rate": 0.2, "batch_size": 64},
        )
        for alpha in (None, 0.3):
            spread = "IID" if alpha is None else f"Dirichlet {alpha}"
            yield (
                f"backdoor · mnist · mlp · {spread} · seed {seed}",
                _arguments("mnist", "backdoor", "mlp", alpha, seed, methods),
            )


def _arguments(
    source: str, scenario: str, network: str, alpha: float | None, seed: int, methods: list[str]
) -> dict[str, Any]:
    attacked = (source, scenario, network, alpha) == ("clusters", "site", "mlp", None)
    return {
        "source": source,
        "scenario": scenario,
        "network": network,
        "alpha": alpha,
        "seed": seed,
        "methods": methods,
        "shadows": SHADOWS if attacked else 0,
    }


def summary(found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each scenario and method: means over the seeds, and their spread."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell, result in found.items():
        scenario = cell.rpartition(" · seed")[0]
        for one in result["rows"]:
            grouped.setdefault((scenario, one["method"]), []).append(one)
    rows = []
    for (scenario, method), members in grouped.items():
        row: dict[str, Any] = {"scenario": scenario, "method": method, "seeds": len(members)}
        for name in NUMBERS:
            values = [float(m[name]) for m in members if name in m]
            if not values:
                continue
            row[name] = statistics.fmean(values)
            if len(values) > 1 and name.endswith(("accuracy", "success", "auc", "gap")):
                row[f"{name}_spread"] = statistics.stdev(values)
        rows.append(row)
    return rows


def _page(rows: list[dict[str, Any]], *, quick: bool) -> str:
    form = "The small form: one seed and one partition each." if quick else "Means over the seeds."
    return (
        "# Forgetting a site, and a backdoor\n\n"
        "Ten sites train a network for 60 rounds of 5 local steps (100 for a backdoor); then one "
        "site is to be forgotten, or the rows that carry a backdoor at one site. `retrain` is a "
        f"new training without the whole site. {form} FU-MEGS, ascent and the rules of two "
        "gradients are `empirical`: the measures say what these attacks find, and prove nothing. "
        "Bytes and local steps are shares of the retraining's; the rows to forget are left out of "
        "no test.\n\n"
        "With a backdoor the site's other rows stay, so that retraining loses what they teach; "
        "`attack success` counts test rows of other classes that the trigger sends to class 9. The "
        "network of five sites trains on 64 rows a step, FU-MEGS on all of a site: there the share "
        "of local steps says less than that of bytes.\n\n"
        "Membership is told by the loss of the rows to forget and of rows of the same site that no "
        f"model saw; in one federation also by {SHADOWS} shadow models, trained on random halves "
        "of the site's rows (LiRA, Carlini et al., 2022).\n\n" + table_markdown(rows, SHOWN)
    )


SHOWN_MODELS = {
    "original": "before",
    "fumegs": "after FU-MEGS",
    "continue": "after more training",
    "retrain": "trained anew",
}
PICTURES = {
    ("site", "forget_accuracy"): ("Is a site forgotten?", "accuracy on the rows to forget"),
    ("site", "test_accuracy"): ("What forgetting a site costs", "accuracy on test rows"),
    ("backdoor", "attack_success"): ("Is a backdoor removed?", "attack success"),
    ("backdoor", "test_accuracy"): ("What removing a backdoor costs", "accuracy on test rows"),
}


def _charts(rows: list[dict[str, Any]]) -> dict[str, Chart]:
    """Return pictures of what was forgotten and what it cost: before, after and retrained."""
    charts = {}
    for (kind, figure), (title, axis) in PICTURES.items():
        series = {}
        for method, label in SHOWN_MODELS.items():
            own = [r for r in rows if r["method"] == method and r["scenario"].startswith(kind)]
            names = [_label(r["scenario"]) for r in own]
            spread = [r.get(f"{figure}_spread", 0.0) for r in own]
            mean = [r[figure] for r in own]
            low = [max(0.0, m - d) for m, d in zip(mean, spread, strict=True)]
            high = [min(1.0, m + d) for m, d in zip(mean, spread, strict=True)]
            series[label] = Series(names, mean, low, high)
        several = any(r["seeds"] > 1 for r in rows)
        note = "lines: standard deviation over the seeds" if several else "one seed"
        charts[f"unlearning-{kind}-{figure.partition('_')[0]}"] = Chart(
            title, "", axis, series, kind="bars", note=note
        )
    return charts


def _label(scenario: str) -> str:
    """Return a federation in short lines, as it stands below its bars."""
    parts = scenario.partition(" · ")[2].replace("Dirichlet", "Dir.").replace(", ", " · ")
    return parts.replace(" · ", "\n")


EXPERIMENT = Unlearning()
