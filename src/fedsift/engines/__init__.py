"""Engines: the same functions of an algorithm, run in different ways with the same result."""

from __future__ import annotations

from fedsift.engines.base import Engine
from fedsift.engines.loop import Loop
from fedsift.engines.plan import cannot_batch, compile_pays
from fedsift.engines.programs import Programs
from fedsift.engines.vectorized import Vectorized

__all__ = ["ENGINES", "Engine", "cannot_batch", "compile_pays", "make_engine"]

ENGINES = ("vectorized", "loop")


def make_engine(name: str, *, compiled: bool = False) -> Engine:
    """Return an engine; only ``vectorized`` can be compiled.

    Raises:
        ValueError: there is no engine of that name.
    """
    if name == "vectorized":
        return Vectorized(Programs(fused=compiled))
    if name == "loop":
        return Loop()
    msg = f"no engine {name!r}; use one of {', '.join(ENGINES)}"
    raise ValueError(msg)
