"""The work of the synthetic experiment: one method on several data sets whose answer is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import torch

from fedsift.channels import Channel, TopM
from fedsift.data import FederatedData, Standardiser, synthetic_regression
from fedsift.data.synthetic import SyntheticRegression
from fedsift.evaluation import evaluate
from fedsift.experiments.lanes import Prepared, by_part, choices, prepare, train_side_by_side
from fedsift.linear_problems import linear_problem
from fedsift.methods import Messages, find_method
from fedsift.problems import Problem
from fedsift.regression import Moments, best_subset, lasso, ridge_on
from fedsift.settings import Settings
from fedsift.studies import Case, fit_case
from fedsift.training import Training
from fedsift.trees import Tree
from fedsift.tuning import tune

TEST_ROWS = 5000
TUNING_SET = 1000  # a data seed that no other cell uses


def data_sets(seeds: Sequence[int], samples: int, setting: Mapping[str, Any]) -> list[Prepared]:
    """Draw the data sets; ``setting``: arguments of `synthetic_regression`, and ``binary``.

    ``binary`` asks for the sign of the target in its place.
    """
    return [_data_set(seed, samples, tuple(sorted(setting.items()))) for seed in seeds]


@lru_cache(maxsize=10)  # those of one sample size: a data set takes 20 MB
def _data_set(seed: int, samples: int, setting: tuple[tuple[str, Any], ...]) -> Prepared:
    options: dict[str, Any] = {"n_test": TEST_ROWS, **dict(setting)}
    binary = options.pop("binary", False)
    drawn = synthetic_regression(n_samples=samples, seed=seed, **options)
    if binary:
        drawn = SyntheticRegression(_signs(drawn.train), _signs(drawn.test), drawn.coefficients)
    return prepare(seed, drawn)


def _signs(data: FederatedData) -> FederatedData:
    return replace(data, y=(data.y > 0).long(), outcome="binary", classes=("0", "1"))


def make_channel(method: str, messages: str, kept: int) -> Channel:
    """Return a channel by name; beside the methods' own ``one-index`` and ``few``.

    ``one-index``: error feedback, one index set for weights and gates; ``few``: compact messages of
    half as many numbers.
    """
    if messages == "one-index":
        return TopM(kept, one_index_set=True)
    if messages == "few":
        return TopM(kept // 2, one_index_set=True, half=True)
    named = find_method(method)
    return named.channel(messages, kept)  # type: ignore[arg-type]


def federated(
    method: str,
    messages: str,
    samples: int,
    data_seeds: Sequence[int],
    seeds: int,
    *,
    setting: Mapping[str, Any] | None = None,
    participation: float = 0.6,
    rounds: int | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a method on data sets; return the figures of each under ``sets``."""
    parts = data_sets(data_seeds, samples, setting or {})
    run = _run(parts, method, messages, seeds, participation, rounds, knobs or {})
    problem = linear_problem(parts[0].train)
    sets = [
        _scored(problem, part, found, pooled=find_method(method).rows == "pooled")
        for part, found in zip(parts, by_part(run, len(parts)), strict=True)
    ]
    return {"sets": sets, "rounds": run.round}


def _run(
    parts: Sequence[Prepared],
    method: str,
    messages: str,
    seeds: int,
    participation: float,
    rounds: int | None,
    knobs: Mapping[str, Any],
) -> Training:
    named = find_method(method)
    pooled = named.rows == "pooled"
    rows = [part.train.pooled() if pooled else part.train for part in parts]
    kept = parts[0].kept
    algorithm = named.build(
        "paper" if messages == "paper" else "auto",
        rounds=rounds,
        density=kept / parts[0].train.n_features,
        **knobs,
    )
    return train_side_by_side(
        linear_problem(rows[0]),
        rows,
        algorithm,
        seeds=seeds,
        participation=1.0 if pooled else participation,
        channel=make_channel(method, messages, kept),
    )


def _scored(
    problem: Problem, part: Prepared, found: Mapping[str, Any], *, pooled: bool
) -> dict[str, Any]:
    """Return the figures of a data set: single seeds on average, and their ensemble."""
    params: Tree = found["params"]
    masks, together = choices(params["weight"].squeeze(1), part.kept)
    measure = problem_measure(part)
    scores = evaluate(problem, params, part.test)[measure]
    sent = found["bytes_up"] + found["bytes_down"]
    return {
        "data": part.seed,
        "support_recovery": float((masks @ part.true).mean()) / part.kept,
        "ensemble_support_recovery": float(together @ part.true) / part.kept,
        f"test_{measure}": float(scores.mean()),
        **refits(part, together),
        "bytes_total": _rows_sent(part) if pooled else int(sent.double().mean()),
    }


def _rows_sent(part: Prepared) -> int:
    """Return the bytes of all rows, sent once."""
    return 4 * part.train.n_samples * (part.train.n_features + 1)


def problem_measure(part: Prepared) -> str:
    """Return the name of the score on test rows."""
    return "r2" if part.train.outcome == "regression" else "accuracy"


def refits(part: Prepared, support: torch.Tensor) -> dict[str, float]:
    """Return R² on test rows of ridge fits, one sample strong, on the support and the true one."""
    if part.train.outcome != "regression":
        return {}
    x, y = part.train.x.double().numpy(), part.train.y.double().numpy()
    moments, scores = Moments.of_rows(x, y), {}
    for name, chosen in {"refit_r2": support, "true_refit_r2": part.true}.items():
        weights, intercept = ridge_on(moments, chosen.numpy() > 0, 1.0 / len(y))
        scores[name] = _r2(part, torch.from_numpy(weights), intercept)
    return scores


def _r2(part: Prepared, weights: torch.Tensor, intercept: float) -> float:
    y = part.test.y.double()
    error = y - (part.test.x.double() @ weights + intercept)
    return 1.0 - float(error.square().mean() / y.var(correction=0))


def pooled(
    solver: str, samples: int, data_seeds: Sequence[int], setting: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run a solver on the pooled rows of data sets; return the figures of each under ``sets``."""
    sets = []
    for part in data_sets(data_seeds, samples, setting or {}):
        x, y = part.train.x.double().numpy(), part.train.y.double().numpy()
        if solver == "abess":
            weights, intercept = best_subset(Moments.of_rows(x, y), part.kept, len(y))
        else:
            weights, intercept = lasso(x, y, part.kept)
        chosen = torch.from_numpy((weights != 0).astype("float32"))
        share = float(chosen @ part.true) / part.kept
        sets.append(
            {
                "data": part.seed,
                "support_recovery": share,
                "ensemble_support_recovery": share,
                "test_r2": _r2(part, torch.from_numpy(weights), intercept),
                **refits(part, chosen),
                "bytes_total": _rows_sent(part),
                "bytes_sums": part.train.n_sites * 2 * x.shape[1] * (x.shape[1] + 5),
            }
        )
    return {"sets": sets, "rounds": 1}


def budget(
    method: str,
    messages: str,
    factor: float,
    data_seeds: Sequence[int],
    seeds: int,
    *,
    samples: int,
    sites: int,
    participation: float,
    reference: int = 300,
    setting: Mapping[str, Any] | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a method for the rounds that ``factor`` times FedIter-HT's bytes pay for.

    Those are the bytes of its ``reference`` rounds, on the first data set.
    """
    setting = {**(setting or {}), "n_sites": sites}
    parts = data_sets(data_seeds[:1], samples, setting)

    def sent(name: str, how: str, count: int, options: Mapping[str, Any]) -> int:
        run = _run(parts, name, how, 1, participation, count, options)
        return int((run.bytes_up + run.bytes_down).sum())

    allowed = factor * sent("fediterht", "dense", reference, {})
    rounds = 2
    for _ in range(4):  # bytes are nearly in proportion to rounds
        paid = allowed / sent(method, messages, rounds, knobs or {})
        rounds = min(max(2, round(rounds * paid)), 4 * reference)
    found = federated(
        method,
        messages,
        samples,
        data_seeds,
        seeds,
        setting=setting,
        participation=participation,
        rounds=rounds,
        knobs=knobs,
    )
    return found | {"bytes_allowed": int(allowed)}


def tuned(
    method: str,
    messages: Messages,
    samples: int,
    data_seeds: Sequence[int],
    seeds: int,
    *,
    trials: int,
    setting: Mapping[str, Any],
    rounds: int | None,
) -> dict[str, Any]:
    """Tune a method on a data set of its own, then run it on data sets with what was chosen.

    The choice is by the loss on validation rows of that one data set, whose truth is not used.
    """
    drawn = synthetic_regression(n_samples=samples, seed=TUNING_SET, **setting)
    settings = Settings(
        method=method,
        features=int((drawn.coefficients != 0).sum()),
        seeds=2,
        participation=0.6,
        messages=messages,
        rounds=rounds,
    )
    best = tune(drawn.train, settings, trials=trials).best
    found = federated(
        method,
        messages,
        samples,
        data_seeds,
        seeds,
        setting=setting,
        rounds=rounds,
        knobs=best.knobs,
    )
    return found | {"knobs": best.knobs}


def curve(
    method: str,
    messages: str,
    samples: int,
    data_seed: int,
    seeds: int,
    *,
    setting: Mapping[str, Any],
    schedule: Literal["cubic"] | None,
    rounds: int | None,
) -> dict[str, Any]:
    """Return the training R² by round of search and tuning of one data set."""
    drawn = synthetic_regression(n_samples=samples, seed=data_seed, **setting)
    case = Case("curve", drawn.train)
    settings = Settings(
        method=method,
        features=int((drawn.coefficients != 0).sum()),
        seeds=seeds,
        participation=0.6,
        messages=messages,
        schedule=schedule,
        rounds=rounds,
    )
    fit = fit_case(case, settings, Standardiser.fit(case.train, "feature"))
    done = {"search": 0, "refit": max(r["round"] for r in fit.history if r["stage"] == "search")}
    points = [(done[r["stage"]] + r["round"], r["r2"]) for r in fit.history if "r2" in r]
    return {"rounds": [p[0] for p in points], "r2": [p[1] for p in points], "tuning": done["refit"]}
