"""What a message between the server and a node is made of, before Flower carries it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from fedsift import algorithms, channels
from fedsift.gates import HardConcrete
from fedsift.sealed import seal

VERSION = 1


class PartError(ValueError):
    """A message that is not as it should be; the text names the defect and no value of a row."""


class Part(NamedTuple):
    """A question to one site, or its answer: JSON values and pieces of bytes."""

    facts: dict[str, Any]
    blobs: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the pieces."""
        return sum(map(len, self.blobs))


Parts = Mapping[str, Sequence[Part]]  # the parts of each site


def tensors_of(part: Part) -> dict[str, Tensor]:
    """Return the tensors of a part that carries named ones.

    Raises:
        PartError: it carries something else.
    """
    if len(part.blobs) != 1:
        msg = f"{len(part.blobs)} pieces in the place of one with named tensors"
        raise PartError(msg)
    try:
        return load(part.blobs[0])
    except Exception as error:
        msg = "the tensors cannot be read"
        raise PartError(msg) from error


def with_tensors(facts: dict[str, Any], tensors: Mapping[str, Tensor]) -> Part:
    """Return a part with named tensors."""
    return Part(facts, (save({k: v.contiguous() for k, v in tensors.items()}),))


class Definition(NamedTuple):
    """Something that a site is told once, and afterwards by its key."""

    key: str
    content: bytes


def define(facts: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Definition:
    """Return a definition; equal contents have equal keys."""
    content = seal(tensors or {}, facts)
    return Definition(hashlib.sha256(content).hexdigest()[:24], content)


CLASSES: dict[str, type] = {
    name: value
    for module in (algorithms, channels)
    for name, value in vars(module).items()
    if isinstance(value, type) and is_dataclass(value)
} | {"HardConcrete": HardConcrete}
"""What `rebuild` makes: algorithms, channels and what they are made of."""


def describe(value: Any) -> Any:
    """Return a frozen dataclass of plain values as JSON values, by the name of its class."""
    if not is_dataclass(value):
        return value
    given = {f.name: describe(getattr(value, f.name)) for f in fields(value) if f.init}
    return {"type": type(value).__name__, "fields": given}


def rebuild(facts: Any, classes: Mapping[str, type]) -> Any:
    """Return what `describe` described.

    Raises:
        PartError: its class is not known here.
    """
    if isinstance(facts, list):
        return tuple(rebuild(value, classes) for value in facts)
    if not isinstance(facts, Mapping):
        return facts
    if facts["type"] not in classes:
        msg = f"{facts['type']} is not known at this site; install the server's release of fedsift"
        raise PartError(msg)
    given = {name: rebuild(value, classes) for name, value in facts["fields"].items()}
    return classes[facts["type"]](**given)
