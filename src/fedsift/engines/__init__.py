"""Engines: the same functions of an algorithm, run in different ways with the same result."""

from __future__ import annotations

from fedsift.engines.base import Engine, Job
from fedsift.engines.loop import Loop
from fedsift.engines.vectorized import Vectorized

__all__ = ["ENGINES", "Engine", "make_engine"]

ENGINES = ("vectorized", "loop")


def make_engine(name: str, job: Job) -> Engine:  # noqa: ARG001
    """Return the engine for a job.

    Raises:
        ValueError: there is no engine of that name.
    """
    if name == "vectorized":
        return Vectorized()
    if name == "loop":
        return Loop()
    msg = f"no engine {name!r}; use one of {', '.join(ENGINES)}"
    raise ValueError(msg)
