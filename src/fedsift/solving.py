"""Solve a federated variational inequality, and say how it went."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from fedsift import random, trees
from fedsift.algorithms import Algorithm, Lippax
from fedsift.checkpoints import StageCheckpoint, Watched
from fedsift.recovery import TrainingError
from fedsift.sealed import fingerprint
from fedsift.solvers import find_solver
from fedsift.training import Training, train
from fedsift.trees import Tree
from fedsift.vi import VIProblem, dual_gap, nash_gap, natural_residual
from fedsift.vi.diagnosis import monotonicity

Status = Literal["converged", "not_converged", "diverging", "unbounded"]

GROWN = 10.0  # a residual this many times its smallest counts as diverging
HOPELESS = 1e4  # and ends the run from here
EVERY = 5.0  # seconds between two states that are kept
PATIENCE = 3  # rounds with messages that are not finite
FAR = 10.0  # a run this many times farther from its start than in its first tenth runs away


@dataclass
class Equilibrium:
    """What solving ended with; residuals and gaps are those of the mean field F̄.

    Attributes:
        problem, method: names.
        params: the better of the last iterate and the average, by the residual.
        last: the last iterate.
        average: the mean of the iterates with weights t², or of a certified run the γ-weighted mean
            of its z.
        status, verdict: how it ended, as a word and as a sentence.
        exchanges: message exchanges that were made, the first and rejected ones too.
        exchanges_to_tolerance: those made when last or average first met the tolerance.
        residual: that of ``params`` over that of the start.
        residual_start: ‖x0 - P_X(x0 - F̄(x0))‖.
        gap: the dual gap (affine problems) or Nash gap (games) of ``params``, None for others.
        gap_bound: what a certified run proves of ``average``'s dual gap if F̄ is monotone.
        certificate_max: the largest certificate of an accepted step.
        rejected: steps that a certified run took back.
        step, lipschitz: γ or η of the last round, and L̄.
        bytes_up, bytes_down: of the whole run.
        seconds: of its rounds, without the looks at the residual.
        measures: the problem's own figures of ``params``, such as an accuracy.
        history: a record a round; ``residual`` is that of the better iterate.
    """

    problem: str
    method: str
    params: Tree
    last: Tree
    average: Tree
    status: Status
    verdict: str
    exchanges: int
    exchanges_to_tolerance: int | None
    residual: float
    residual_start: float
    gap: float | None = None
    gap_bound: float | None = None
    certificate_max: float | None = None
    rejected: int = 0
    step: float | None = None
    lipschitz: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    measures: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)


def solve(
    problem: VIProblem,
    method: Algorithm | str = "lippax",
    *,
    tolerance: float = 1e-3,
    max_exchanges: int = 600,
    participation: float = 1.0,
    engine: str = "vectorized",
    seed: int = 0,
    look_every: int = 1,
    callback: Callable[[dict[str, Any]], None] | None = None,
    checkpoint: Path | None = None,
) -> Equilibrium:
    """Solve ⟨Σ p_c F_c(x*), x - x*⟩ ≥ 0 on X until the residual is small enough.

    Example:
        >>> import fedsift
        >>> answer = fedsift.solve(fedsift.vi.named.bilinear_ball(), fedsift.Lippax(certified=True))
        >>> answer.status
        'converged'

    Args:
        problem: what is solved; `fedsift.vi` makes one.
        method: an algorithm, or a name in `fedsift.solvers.SOLVERS`.
        tolerance: wanted natural residual, in units of that at the start; of the last iterate or
            the average, whichever is there first.
        max_exchanges: exchanges after which to stop; one is a message from every site that is
            asked.
        participation: a fraction of sites a round, in (0, 1], or a number of them.
        engine: ``vectorized`` or ``loop``.
        seed: of the run: participants, batches, noise.
        look_every: rounds between two looks at the residual, which costs an evaluation of all rows.
        callback: called with each round's record.
        checkpoint: a file in which the state is kept, every few seconds and at the end; the run
            goes on from what is there, to the same answer.

    Raises:
        ValueError: a number is out of range, or the method cannot work so.
        CheckpointError: the checkpoint is of another problem, or of other settings.
    """
    name = method if isinstance(method, str) else type(method).__name__
    algorithm = find_solver(method).build() if isinstance(method, str) else method
    _check(algorithm, tolerance, max_exchanges, participation, look_every)
    watch = _Watch(problem, algorithm, tolerance, max_exchanges, look_every)
    asked = fingerprint(
        problem.name, problem.data.fingerprint(), float(watch.start), tolerance, max_exchanges,
        participation, look_every,
    )  # fmt: skip
    try:
        run = train(
            problem.problem,
            problem.data,
            algorithm,
            rounds=max_exchanges,
            seeds=(seed,),
            data_seed=seed,
            participation=participation,
            engine=engine,
            compile=False,
            evaluate_every=max_exchanges,
            watch=watch,
            callback=callback,
            checkpoint=None if checkpoint is None else StageCheckpoint(checkpoint, EVERY, asked),
        )
        watch.follow(run)
    except TrainingError:
        watch.failed = True
    return watch.result(name)


def _check(
    algorithm: Algorithm, tolerance: float, max_exchanges: int, participation: float, every: int
) -> None:
    whole = participation == 1 and not isinstance(participation, int)
    certified = isinstance(algorithm, Lippax) and algorithm.certified
    first = len(algorithm.exchanges_at(0))
    wrong = {
        f"tolerance is {tolerance}; give a number above 0 and below 1": not 0 < tolerance < 1,
        f"max_exchanges is {max_exchanges}; the first round alone takes {first}": max_exchanges
        < first,
        f"look_every is {every}; give 1 or more": every < 1,
        "a certified run needs every site in every exchange; leave participation at 1, or take "
        "method lippax": certified and not whole,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)


FACTS = ("residual", "best", "best_round", "reached", "unsent", "failed", "weight", "distances")
POINTS = ("last", "average", "chosen", "total")


@dataclass
class _Watch:
    """Looks at a run after every round, ends it, and tells how it went."""

    problem: VIProblem
    algorithm: Algorithm
    tolerance: float
    most: int
    every: int
    run: Training | None = None
    failed: bool = False
    best: float = math.inf
    best_round: int = 0
    reached: int | None = None
    unsent: int = 0

    def __post_init__(self) -> None:
        start = self.problem.start
        self.start = natural_residual(self.problem, start).clamp(min=1e-300)
        self.last = self.average = self.chosen = dict(start)
        self.total, self.weight = trees.zeros_like(start), 0.0
        self.residual = 1.0
        self.distances: list[float] = []

    def follow(self, run: Training) -> None:
        """Take a run, and what was seen of it by the process that wrote its checkpoint."""
        if self.run is None and run.watched is not None:
            vars(self).update(run.watched.facts)
            for name in POINTS:
                setattr(self, name, trees.part(run.watched.tensors, name))
        self.run = run

    def __call__(self, run: Training) -> bool:
        """Look; return whether the run shall end."""
        self.follow(run)
        ended = self._over(run)
        points = trees.join(**{name: getattr(self, name) for name in POINTS})
        run.watched = Watched(points, {name: getattr(self, name) for name in FACTS})
        return ended

    def _over(self, run: Training) -> bool:
        record = run.history[-1]
        server = trees.unstack(run.carried.server, 0)
        finite = bool(trees.all_finite(server))
        self.unsent = self.unsent + 1 if len(record.get("rejected", ())) else 0
        if not finite or self.unsent >= PATIENCE:
            self.failed = True
            return True
        self._take(server, run.round)
        ahead = len(self.algorithm.exchanges_at(run.round))
        over = run.carried.tick + ahead > self.most
        if run.round % self.every == 0 or over:
            record["residual"] = self._look(run)
            if self.residual > HOPELESS * max(self.best, 1e-12):
                self.failed = True
        return over or self.failed or self.reached is not None

    def _take(self, server: Any, number: int) -> None:
        """Add an iterate to the average.

        Weights t² were there first on the bilinear problems: 46, 60 exchanges where t takes 58, 71
        and t³ 48, 64 (sites unlike by 0, .3).
        """
        self.last = self.algorithm.solution(self.problem.problem, server)
        self.total = trees.add_scaled(self.total, float(number**2), self.last)
        self.weight += number**2
        own = getattr(self.algorithm, "average", lambda _: None)(server)
        self.average = trees.scale(self.total, 1.0 / self.weight) if own is None else own
        away = trees.subtract(self.last, self.problem.start)
        self.distances.append(float(trees.norm(away)))

    def _look(self, run: Training) -> float:
        both = [
            float(natural_residual(self.problem, point) / self.start)
            for point in (self.last, self.average)
        ]
        both = [value if math.isfinite(value) else math.inf for value in both]
        self.residual = min(both)
        self.chosen = (self.last, self.average)[both.index(self.residual)]
        if self.residual < self.best:
            self.best, self.best_round = self.residual, run.round
        if self.residual <= self.tolerance:
            self.reached = run.carried.tick
        return self.residual

    def result(self, method: str) -> Equilibrium:
        """Return the answer."""
        run, problem = self.run, self.problem
        history = [] if run is None else run.history
        status = self._status()
        gaps = (dual_gap(problem, self.chosen), nash_gap(problem, self.chosen))
        gap = next((float(value) for value in gaps if value is not None), None)
        answer = Equilibrium(
            problem=problem.name,
            method=method,
            params=self.chosen,
            last=self.last,
            average=self.average,
            status=status,
            verdict="",
            exchanges=0 if run is None else run.carried.tick,
            exchanges_to_tolerance=self.reached,
            residual=self.residual,
            residual_start=float(self.start),
            gap=gap if gap is not None and math.isfinite(gap) else None,
            bytes_up=0 if run is None else int(run.bytes_up.sum()),
            bytes_down=0 if run is None else int(run.bytes_down.sum()),
            seconds=sum(record["seconds"] for record in history),
            measures=self._measured(),
            history=history,
        )
        if run is not None:
            self._read(answer, trees.unstack(run.carried.server, 0))
        answer.verdict = self._verdict(answer)
        return answer

    def _measured(self) -> dict[str, float]:
        """Return the figures that the problem itself has for people."""
        if self.problem.measures is None:
            return {}
        means = {
            name: total / weight
            for name, (total, weight) in self.problem.measures(
                self.chosen, self.problem.batch()
            ).items()
        }
        return {name: float(v) for name, v in self.problem.summarise(means).items()}

    def _read(self, answer: Equilibrium, server: Any) -> None:
        """Read the step and the certificate off the server's state."""
        algorithm = self.algorithm
        if hasattr(server, "lipschitz") and hasattr(algorithm, "step_of"):
            answer.step, answer.lipschitz = (
                float(value) for value in (algorithm.step_of(server), server.lipschitz)
            )
        if isinstance(algorithm, Lippax) and algorithm.certified:
            taken = [r["certificate"] for r in answer.history if r["certificate"] > -math.inf]
            answer.certificate_max = max(taken, default=None)
            answer.rejected = int(sum(r["backtracked"] for r in answer.history))
            far = self.problem.feasible.farthest(self.problem.start)
            bound = (far.square() + server.trial.excess) / (2.0 * server.trial.length)
            answer.gap_bound = float(bound) if bool(torch.isfinite(bound)) else None

    def _status(self) -> Status:
        if self.reached is not None:
            return "converged"
        if self.failed or self.residual > GROWN * self.best:
            return "diverging"
        early = max(self.distances[: max(1, len(self.distances) // 10)], default=0.0)
        away = self.distances[-1] if self.distances else 0.0
        if not self.problem.feasible.bounded and self.residual > 0.1 and away > FAR * early:
            return "unbounded"
        return "not_converged"

    def _verdict(self, answer: Equilibrium) -> str:
        count = answer.exchanges
        if answer.status == "converged":
            return f"converged: residual {answer.residual:.1e} of the start in {count} exchanges"
        if answer.status == "unbounded":
            return (
                f"unbounded: after {count} exchanges the point is {self.distances[-1]:.2g} from "
                f"its start and the residual {answer.residual:.2g}; the set has no end and there "
                "may be no solution: give a bounded set"
            )
        found = monotonicity(self.problem, random.key("verdict"), near=self.last)
        monotone = (
            "operator not monotone: smallest sampled ⟨F(x)-F(y), x-y⟩ = "
            f"{found.smallest:.2g}; no method here promises a solution"
            if found.smallest < -1e-9 * found.scale
            else "the operator is monotone in all samples: give a smaller step, or another method"
        )
        if answer.status == "diverging":
            return f"diverging: {self._growth(answer)}; {monotone}"
        return (
            f"not converged: residual {answer.residual:.2g} of the start after {count} exchanges "
            f"(smallest {self.best:.2g} in round {self.best_round}); {monotone}"
        )

    def _growth(self, answer: Equilibrium) -> str:
        if self.unsent >= PATIENCE:
            sites = answer.history[-1]["rejected"]
            return f"what {', '.join(sites[:3])} sent is not finite by round {len(answer.history)}"
        grown = self.residual / self.best if math.isfinite(self.residual) else math.inf
        if not math.isfinite(grown) or self.best == math.inf:
            return f"numbers are no longer finite by round {max(1, len(answer.history))}"
        if grown >= GROWN:
            return f"residual grew {grown:.0f}x from round {self.best_round}"
        return f"residual {self.residual:.2g} of the start"
