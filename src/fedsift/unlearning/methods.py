"""Ways to take the influence of some rows out of a model, by name, and what each of them costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import torch

from fedsift import trees
from fedsift.algorithms import FUMEGS, FedAvg, LocalTraining
from fedsift.algorithms.budget import STOP_REASONS
from fedsift.algorithms.erasers import FedEraser, ProjectedAscent, draw_start
from fedsift.callbacks import Callback
from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData, of_role
from fedsift.data.errors import nearest
from fedsift.data.federated import FORGET, HELD_OUT, RETAIN
from fedsift.evaluation import typical_margin
from fedsift.forgetting import TEMPERED, ForgetLoss, forgetting, temperature_for
from fedsift.outcomes import Outcome
from fedsift.problems import Problem
from fedsift.training import Training, train
from fedsift.trees import Tree

Guarantee = Literal["exact", "exact given preprocessing", "empirical"]


@dataclass(frozen=True)
class Task:
    """A model that is to forget.

    Attributes:
        problem, outcome: what the model solves.
        data: the rows of all sites; their roles say which are to be forgotten.
        params: the model.
        training: how it was trained, for the methods that train.
        seed: of that training.
        participation, weights, engine: of that training.
        norms: lengths of the server's updates in that training, a number a round; None: not kept.
    """

    problem: Problem
    outcome: Outcome
    data: FederatedData
    params: Tree
    training: LocalTraining = field(default_factory=FedAvg)
    seed: int = 0
    participation: float = 1.0
    weights: Literal["samples", "uniform"] = "samples"
    engine: str = "vectorized"
    norms: tuple[float, ...] | None = None

    @property
    def role(self) -> torch.Tensor:
        """The roles of the rows, [N]."""
        assert self.data.role is not None  # noqa: S101  a task is made with roles
        return self.data.role

    def rest(self) -> FederatedData:
        """Return the rows that are retained, and nothing else.

        Raises:
            DataError: there is none.
        """
        return of_role(self.data, RETAIN)

    def forgotten(self) -> FederatedData:
        """Return the rows to forget."""
        return of_role(self.data, FORGET)

    def held_out(self) -> FederatedData | None:
        """Return the rows that are only looked at, if there are some."""
        some = bool((self.role == HELD_OUT).any())
        return of_role(self.data, HELD_OUT) if some else None


GENTLE: dict[str, Any] = {"neutral": 0.5, "first": 0.05, "ratio": 0.5, "budget": 0.015}
"""FU-MEGS for rows with right labels: until they cannot be told from rows held out at their site.

The retained gradient weighs twice, and the budget is half: with ratio 1 a site unlike the others
(Dirichlet .3) is forgotten 8 points too far, and the test accuracy falls by 2; with the whole
budget by 1.7.
"""


class Unlearned(NamedTuple):
    """What a method made of a task, and what it cost.

    ``local_steps``: gradients of one loss over a site's rows, of all sites and rounds.
    """

    params: Tree
    stop_reason: str
    rounds: int
    bytes_up: int
    bytes_down: int
    local_steps: int
    seconds: float
    history: list[dict[str, Any]]

    @property
    def bytes_total(self) -> int:
        """Bytes both ways."""
        return self.bytes_up + self.bytes_down

    def then(self, second: Unlearned) -> Unlearned:
        """Return what followed, with the cost of both."""
        costs = ("rounds", "bytes_up", "bytes_down", "local_steps", "seconds", "history")
        return second._replace(**{k: getattr(self, k) + getattr(second, k) for k in costs})


@dataclass(frozen=True)
class Forgetter:
    """A method by name.

    Attributes:
        run: (task, checkpoint, callback, options) → result.
        guarantee: what may be said of the result.
        needs_forget_site: whether the site that forgets must answer.
        options: names of what can be set.
        summary: one line for people.
    """

    run: Callable[..., Unlearned]
    guarantee: Guarantee
    needs_forget_site: bool
    summary: str
    options: frozenset[str]

    @property
    def stops(self) -> bool:
        """Whether it can stop at a target."""
        return "target" in self.options


def unlearn(
    task: Task,
    method: str = "fumegs",
    *,
    checkpoint: StageCheckpoint | None = None,
    callback: Callback | None = None,
    **options: Any,
) -> Unlearned:
    """Run a method on a task.

    Raises:
        ValueError: there is no such method, or it cannot be run on the task.
    """
    began = time.perf_counter()
    check_options(method, options)
    result = find_forgetter(method).run(task, checkpoint, callback, **options)
    return result._replace(seconds=time.perf_counter() - began)


def find_forgetter(name: str) -> Forgetter:
    """Return a method by name.

    Raises:
        ValueError: there is none.
    """
    if name not in FORGETTERS:
        raise ValueError(f"no method {name!r} to forget with; {nearest(name, list(FORGETTERS))}")
    return FORGETTERS[name]


def check_options(method: str, options: Iterable[str]) -> None:
    """Refuse options that a method does not have.

    Raises:
        ValueError: there is one; the text names those that there are.
    """
    known = find_forgetter(method).options
    for name in options:
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise ValueError(f"{method} has no option {name!r}; it has: {has}")


def combined(
    task: Task,
    checkpoint: StageCheckpoint | None,
    callback: Callback | None,
    *,
    loss: ForgetLoss = "bounded_ce",
    temperature: float | None = None,
    **options: Any,
) -> Unlearned:
    """Run FU-MEGS, or one of the rules of `combiners` in its place."""
    if not bool((task.role == FORGET).any()):
        return Unlearned(task.params, "nothing_to_forget", 0, 0, 0, 0, 0.0, [])
    if not bool((task.role == RETAIN).any()):
        raise ValueError(
            "every row is to be forgotten, so nothing would be left to keep; start a new model "
            "with fedsift fit"
        )
    problem = forgetting(
        task.problem, task.outcome, loss, 1.0 if temperature is None else temperature
    )
    if temperature is None and loss in TEMPERED:
        margin = typical_margin(task.problem, task.params, task.forgotten())
        temperature = temperature_for(margin, len(task.data.classes))
        problem = forgetting(task.problem, task.outcome, loss, temperature)
    algorithm = FUMEGS(**_learning_rate(task, options, share=1 / 3))
    run = _train(task, problem, task.data, algorithm, algorithm.start(task.params),
                 checkpoint, callback)  # fmt: skip
    stop = STOP_REASONS[int(run.carried.server.steps.stop[0])]
    return _result(run, stop, algorithm.local_steps, _askers(task))


def _learning_rate(task: Task, options: dict[str, Any], share: float = 1.0) -> dict[str, Any]:
    """Return options with a share of the training's step, where they name none.

    A trained network often lies where its own step only just does not diverge. There the mean
    gradient of several local steps of that length is no descent direction, and no length of a step
    along it keeps the retain budget; a third of it is safe.
    """
    rate = getattr(task.training, "learning_rate", None)
    return options if rate is None else {"learning_rate": share * rate, **options}


def _train(
    task: Task,
    problem: Problem,
    data: FederatedData,
    algorithm: Any,
    start: Any,
    checkpoint: StageCheckpoint | None,
    callback: Callback | None,
    participation: float = 1.0,
) -> Training:
    return train(
        problem,
        data,
        algorithm,
        seeds=(task.seed,),
        data_seed=task.seed,
        participation=participation,
        weights=task.weights,
        engine=task.engine,
        start=None if start is None else trees.stack([start]),
        evaluate_every=1 if checkpoint else 1_000_000,
        checkpoint=checkpoint,
        callback=callback,
    )


def _askers(task: Task) -> int:
    """Return how many gradients a step takes: one a site for each kind of rows it has."""
    roles = [set(task.role[rows].tolist()) - {HELD_OUT} for rows in task.data.slices]
    return sum(len(kinds) for kinds in roles)


def _result(run: Training, stop: str, steps: int, gradients: int | None = None) -> Unlearned:
    params: Tree = trees.unstack(run.params, 0)
    seconds = sum(record["seconds"] for record in run.history)
    visits = sum(sum(record["sites"].values()) for record in run.history)
    work = steps * (visits if gradients is None else run.round * gradients)
    counts = (int(run.bytes_up.sum()), int(run.bytes_down.sum()), work)
    return Unlearned(params, stop, run.round, *counts, seconds, run.history)


def retrain(task: Task, checkpoint: StageCheckpoint | None, callback: Callback | None) -> Unlearned:
    """Train anew without the rows, from the start and with the seed of the original."""
    algorithm = task.training
    run = _train(task, task.problem, task.rest(), algorithm, None,
                 checkpoint, callback, task.participation)  # fmt: skip
    return _result(run, "max_rounds", algorithm.local_steps)


def keep_training(
    task: Task,
    checkpoint: StageCheckpoint | None,
    callback: Callback | None,
    *,
    rounds: int = 20,
    **options: Any,
) -> Unlearned:
    """Continue training on the rest."""
    algorithm = _averaging(task, rounds, options)
    start = algorithm.server_init(task.problem, torch.tensor(0))._replace(theta=task.params)
    run = _train(task, task.problem, task.rest(), algorithm, start, checkpoint, callback)
    return _result(run, "max_rounds", algorithm.local_steps)


def _averaging(task: Task, rounds: int, options: dict[str, Any]) -> FedAvg:
    own = {
        name: getattr(task.training, name)
        for name in ("learning_rate", "local_steps", "batch_size", "safety")
        if hasattr(task.training, name)
    }
    return FedAvg(rounds=rounds, **{**own, **options})


def ascend(
    task: Task,
    checkpoint: StageCheckpoint | None,
    callback: Callback | None,
    *,
    recovery: int = 0,
    **options: Any,
) -> Unlearned:
    """Projected gradient ascent, then ``recovery`` rounds of training on the rest."""
    algorithm = ProjectedAscent(**_learning_rate(task, options))
    problem = forgetting(task.problem, task.outcome)
    run = _train(task, problem, task.data, algorithm, algorithm.start(task.params), None, callback)
    asked = sum(bool((task.role[rows] == FORGET).any()) for rows in task.data.slices)
    first = _result(run, "max_rounds", algorithm.local_steps, asked)
    if not recovery:
        return first
    found = replace(task, params=first.params)
    return first.then(keep_training(found, checkpoint, callback, rounds=recovery))


def erase(
    task: Task,
    checkpoint: StageCheckpoint | None,
    callback: Callback | None,
    *,
    every: int = 2,
    local_steps: int | None = None,
) -> Unlearned:
    """FedEraser: calibrate every ``every``-th stored update, with half the local steps.

    Raises:
        ValueError: the lengths of the updates were not kept.
    """
    if task.norms is None:
        raise ValueError(
            "FedEraser needs the stored updates of the training, and none were kept; use retrain "
            "or continue"
        )
    steps = local_steps or max(1, task.training.local_steps // 2)
    # A stored update stands for the rounds up to the next one that is.
    norms = tuple(sum(task.norms[i : i + every]) for i in range(0, len(task.norms), every))
    averaging = _averaging(task, len(norms), {"local_steps": steps})
    own = {name: getattr(averaging, name) for name in ("learning_rate", "batch_size", "safety")}
    algorithm = FedEraser(rounds=len(norms), local_steps=steps, norms=norms, **own)
    start = algorithm.server_init(task.problem, torch.tensor(0))
    start = start._replace(theta=draw_start(task.problem, task.seed))
    run = _train(task, task.problem, task.rest(), algorithm, start, checkpoint, callback)
    return _result(run, "max_rounds", steps)


def _rule(name: str, **fixed: Any) -> Callable[..., Unlearned]:
    def run(
        task: Task, checkpoint: StageCheckpoint | None, callback: Callback | None, **options: Any
    ) -> Unlearned:
        return combined(task, checkpoint, callback, **{"rule": name, **fixed, **options})

    return run


_OPEN: dict[str, Any] = {"length": "fixed", "budget": 1e9, "local_steps": 1}

_STEPS = frozenset({"learning_rate", "local_steps"})
_AVERAGING = _STEPS | {"rounds", "batch_size", "safety"}
_RULE = frozenset(f.name for f in fields(FUMEGS)) | {"loss", "temperature"}
_FIXED = _RULE - {"rule"}


def _empirical(
    run: Callable[..., Unlearned], summary: str, options: frozenset[str], *, alone: bool = False
) -> Forgetter:
    return Forgetter(run, "empirical", not alone, summary, options)


FORGETTERS: dict[str, Forgetter] = {
    "fumegs": _empirical(combined, "FU-MEGS: forget and retain together", _RULE),
    "retrain": Forgetter(
        retrain,
        "exact given preprocessing",
        False,
        "train anew without what is forgotten",
        frozenset(),
    ),
    "continue": _empirical(keep_training, "continue training on the rest", _AVERAGING, alone=True),
    "ascent": _empirical(
        ascend,
        "projected gradient ascent (Halimi et al.)",
        _STEPS | {"rounds", "radius", "recovery"},
    ),
    "federaser": _empirical(
        erase,
        "FedEraser: stored lengths, new directions",
        frozenset({"every", "local_steps"}),
        alone=True,
    ),
    "orthogonal": _empirical(
        _rule("orthogonal", **_OPEN), "orthogonal direction (FedOSD's first phase)", _FIXED
    ),
    "mgda": _empirical(_rule("mgda", **_OPEN), "the shortest combination", _FIXED),
    "pcgrad": _empirical(_rule("pcgrad", **_OPEN), "the projected sum", _FIXED),
    "ascent_sum": _empirical(
        _rule("sum", loss="ascent", **_OPEN), "ascent on one, descent on the other", _FIXED
    ),
}
