"""Several methods on the same variational inequalities, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsift.solvers import find_solver
from fedsift.solving import Equilibrium, solve
from fedsift.vi import VIProblem

# method → one answer for each problem.
Answers = dict[str, list[Equilibrium]]
Note = Callable[[str, int, dict[str, Any]], None]


def compare_solvers(
    problems: Sequence[VIProblem],
    methods: Sequence[str],
    *,
    step: float | None = None,
    inner_steps: int | None = None,
    batch_size: int | None = None,
    note: Note | None = None,
    checkpoints: Path | None = None,
    **options: Any,
) -> Answers:
    """Solve every problem by every method.

    Args:
        problems: what is solved; of one kind, with different seeds.
        methods: names in `SOLVERS`.
        step: γ or η of all methods; None for the automatic one of each.
        inner_steps: of the methods that have them; None for their default.
        batch_size: likewise.
        note: called as ``note(method, problem's number, record)`` after every round.
        checkpoints: folder of the states, from which work that was stopped goes on.
        options: those of `solve`.
    """
    knobs = {"inner_steps": inner_steps, "batch_size": batch_size}
    built = {name: find_solver(name).build(step, **knobs) for name in methods}
    answers: Answers = {name: [] for name in methods}
    for name, algorithm in built.items():
        for number, problem in enumerate(problems):
            seen = None if note is None else _noting(note, name, number)
            kept = checkpoints and checkpoints / f"{name}-{number}.safetensors"
            answer = solve(problem, algorithm, callback=seen, checkpoint=kept, **options)
            answer.method = name
            answers[name].append(answer)
    return answers


def _noting(note: Note, name: str, number: int) -> Callable[[dict[str, Any]], None]:
    return lambda record: note(name, number, record)


def figures(answers: Answers) -> dict[str, dict[str, Any]]:
    """Return the figures of each method, means over the problems.

    ``exchanges_to_tolerance`` is None if one of them was not solved; ``certificate_max`` the
    largest.
    """
    return {name: _figures(found) for name, found in answers.items()}


def _figures(found: Sequence[Equilibrium]) -> dict[str, Any]:
    exchanges = [a.exchanges_to_tolerance for a in found]
    reached = [e for e in exchanges if e is not None]
    return {
        "exchanges_to_tolerance": _mean(exchanges),
        "exchanges_by_problem": exchanges,
        "solved": len(reached),
        "residual": _mean([a.residual for a in found]),
        "gap": _mean([a.gap for a in found]),
        "gap_bound": _mean([a.gap_bound for a in found]),
        "certificate_max": max(
            (a.certificate_max for a in found if a.certificate_max is not None), default=None
        ),
        "backtracked": sum(a.rejected for a in found),
        "exchanges": _mean([a.exchanges for a in found]),
        "step": _mean([a.step for a in found]),
        "lipschitz": _mean([a.lipschitz for a in found]),
        "bytes_up": _mean([a.bytes_up for a in found]),
        "bytes_down": _mean([a.bytes_down for a in found]),
        "seconds": sum(a.seconds for a in found),
        "status": sorted({a.status for a in found}),
        "verdict": found[0].verdict,
        **_measures(found),
    }


def _measures(found: Sequence[Equilibrium]) -> dict[str, Any]:
    """Return what the problem itself measures, at the last evaluation."""
    last: list[Mapping[str, Any]] = [a.measures for a in found]
    names = list(dict.fromkeys(key for record in last for key in record))
    return {name: _mean([record.get(name) for record in last]) for name in names}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known and len(known) == len(values) else None
