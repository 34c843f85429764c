"""Problems by name, for the command line; others are given as MODULE:FUNCTION."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from fedsift.data.errors import nearest
from fedsift.vi import games, named, sparse, tasks
from fedsift.vi.problem import VIProblem

PROBLEMS: dict[str, Callable[..., VIProblem]] = {
    "affine": named.affine_monotone,
    "bilinear_ball": named.bilinear_ball,
    "bilinear_ball_boundary": partial(named.bilinear_ball, boundary=True),
    "robust_least_squares": named.robust_least_squares,
    "matrix_game": named.matrix_game,
    "minimisation": named.minimisation,
    "fair_logistic": tasks.fair_logistic,
    "robust_logistic": tasks.robust_logistic,
    "digits_writers": tasks.digits_writers,
    "shakespeare_roles": tasks.shakespeare_roles,
    "multi_objective": games.multi_objective,
    "policy_game": games.policy_game,
    "eflops_lagrangian": sparse.eflops_lagrangian,
}


def make_problem(name: str, **knobs: Any) -> VIProblem:
    """Return a named problem, or the one that MODULE:FUNCTION makes; knobs of None are defaults.

    Raises:
        ValueError: there is none, it does not take a knob, or what it returns is no problem.
    """
    given = {k: v for k, v in knobs.items() if v is not None}
    make = PROBLEMS[name] if name in PROBLEMS else _found(name)
    known = inspect.signature(make).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    seed_only = "seed" not in known and not free
    if seed_only:
        given.pop("seed", None)
    for knob in given:
        if knob not in known and not free:
            msg = f"problem {name!r} takes no {knob}; it takes {', '.join(known) or 'nothing'}"
            raise ValueError(msg)
    absent = [
        name
        for name, p in known.items()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and name not in given
    ]
    if absent:
        msg = f"problem {name!r} needs {', '.join(absent)}; wrap it in a function without arguments"
        raise ValueError(msg)
    problem: Any = make(**given)
    if not isinstance(problem, VIProblem):
        msg = f"{name} returns {type(problem).__name__}; it must return a fedsift.vi.VIProblem"
        raise ValueError(msg)  # noqa: TRY004  bad input, like the others
    answer: VIProblem = problem
    return answer


def _found(name: str) -> Callable[..., VIProblem]:
    module, colon, function = name.partition(":")
    if not colon:
        msg = f"no problem {name!r}: {nearest(name, list(PROBLEMS))} (or give MODULE:FUNCTION)"
        raise ValueError(msg)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        msg = f"cannot import {module!r} ({error}); give MODULE:FUNCTION, seen from this folder"
        raise ValueError(msg) from None
    if not callable(found):
        msg = f"module {module!r} has no function {function!r}"
        raise ValueError(msg)  # noqa: TRY004  bad input, like the others
    make: Callable[..., VIProblem] = found
    return make
