"""Engines: the same functions of an algorithm, run in different ways with the same result."""

from __future__ import annotations

from fedsift.engines.base import Engine
from fedsift.engines.loop import Loop
from fedsift.engines.vectorized import Vectorized

__all__ = ["COMPILE_FROM", "ENGINES", "Engine", "make_engine"]

ENGINES = ("vectorized", "loop")


# Numbers updated in a run (lanes x parameters x local steps x rounds) from which fusing repays its
# compile of about 15 s; unfused work takes some 150 ns a number on one core.
COMPILE_FROM = 1e8


def make_engine(name: str, *, compiled: bool = False) -> Engine:
    """Return an engine; only ``vectorized`` can be compiled.

    Raises:
        ValueError: there is no engine of that name.
    """
    if name == "vectorized":
        return Vectorized(compiled=compiled)
    if name == "loop":
        return Loop()
    msg = f"no engine {name!r}; use one of {', '.join(ENGINES)}"
    raise ValueError(msg)
