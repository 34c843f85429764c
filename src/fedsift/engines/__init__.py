"""Engines: the same functions of an algorithm, run in different ways with the same result."""

from __future__ import annotations

from fedsift.engines.base import Engine
from fedsift.engines.loop import Loop
from fedsift.engines.plan import Plan, cannot_batch, make_plan
from fedsift.engines.programs import Programs
from fedsift.engines.vectorized import Vectorized

__all__ = ["ENGINES", "Engine", "Plan", "cannot_batch", "make_engine", "make_plan"]

ENGINES = ("vectorized", "loop")
UNFUSED = Plan()


def make_engine(name: str, plan: Plan = UNFUSED) -> Engine:
    """Return an engine; ``vectorized`` follows the plan.

    Raises:
        ValueError: there is no engine of that name.
    """
    if name == "vectorized":
        return Vectorized(Programs(fused=plan.fused), chunk=plan.chunk)
    if name == "loop":
        return Loop()
    msg = f"no engine {name!r}; use one of {', '.join(ENGINES)}"
    raise ValueError(msg)
