"""Files: whole or not at all; tensors and facts with a checksum that tells of any change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

KEY = "fedsift"


def fingerprint(*parts: Any) -> str:
    """Return a SHA-256 (hex) of JSON values; the order of an object's keys does not matter."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def seal(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Return the content of a file; equal tensors and facts give equal bytes.

    The facts, JSON values, are one entry of the metadata: the order of several is not determined.
    """
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    storages = [tensor.untyped_storage().data_ptr() for tensor in whole.values()]
    if len(set(storages)) < len(storages):  # a state may name a tensor twice; a file may not
        whole = {name: tensor.clone() for name, tensor in whole.items()}
    sealed = {"facts": facts, "sha256": _checksum(whole, facts)}
    return save(whole, {KEY: json.dumps(sealed, sort_keys=True)})


def unseal(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts of a file.

    Raises:
        ValueError: it is not what `seal` made; the text says why, and does not name the file.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            sealed = json.loads(file.metadata()[KEY])
        facts, checksum = dict(sealed["facts"]), sealed["sha256"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it cannot be read: {error}") from error
    if checksum != _checksum(tensors, facts):
        raise ValueError("its content is not that of its checksum")
    return tensors, facts


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file such that it is the old one or the whole new one, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _checksum(tensors: dict[str, Tensor], facts: Mapping[str, Any]) -> str:
    return fingerprint(hashlib.sha256(save(tensors)).hexdigest(), facts)
