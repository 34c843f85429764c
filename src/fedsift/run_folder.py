"""A run folder: its facts, and the fits of its checkpoints, read and written.

A run folder holds ``run.json`` (settings, data, versions, status, results), ``history.jsonl`` (a
record a round), ``model.safetensors`` (parameters on standardised features), ``features.csv`` and,
until it is done, ``checkpoints/``. Every file but the table carries the version of its format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from fedsift import trees
from fedsift.checkpoints import CheckpointError, write_atomic
from fedsift.studies import Fit

VERSION = 1
CHECKPOINTS = "checkpoints"
OWN_FILES = (
    "run.json",
    "run.json.tmp",
    "history.jsonl",
    "model.safetensors",
    "features.csv",
    "report.txt",
    "inclusion.png",
    "training.png",
)


class RunError(RuntimeError):
    """A run folder that cannot be used; the text names it and the next action."""


def prepare(path: Path, *, overwrite: bool, inputs: Sequence[str | Path] = ()) -> None:
    """Make a run folder, or empty an earlier run's folder of what fedsift wrote there.

    Other files in the folder stay.

    Raises:
        RunError: it exists and may not be overwritten, is no run folder, or an input would go.
    """
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        if not overwrite:
            go_on = f", or go on with it: fedsift resume {path}" if _unfinished(path) else ""
            msg = (
                f"{path} exists already; choose another folder with --out, "
                f"or add --overwrite{go_on}"
            )
            raise RunError(msg)
        if not (path / "run.json").exists():
            msg = (
                f"{path} is not a run folder (it has no run.json), so it is not overwritten; "
                "choose another"
            )
            raise RunError(msg)
        own = {(path / name).resolve() for name in OWN_FILES}
        lost = next((file for file in inputs if Path(file).resolve() in own), None)
        if lost is not None:
            msg = f"{lost} is an input and would be overwritten; choose another folder with --out"
            raise RunError(msg)
        clear(path)
    path.mkdir(parents=True, exist_ok=True)


def clear(path: Path) -> None:
    """Remove what fedsift writes into a run folder, and nothing else."""
    for name in OWN_FILES:
        (path / name).unlink(missing_ok=True)
    checkpoints = path / CHECKPOINTS
    if checkpoints.is_dir() and not checkpoints.is_symlink():
        for file in checkpoints.glob("*.safetensors*"):
            file.unlink()
        if not any(checkpoints.iterdir()):
            checkpoints.rmdir()


def _unfinished(path: Path) -> bool:
    file = path / "run.json"
    return file.exists() and read_facts(path)["status"] != "done"


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Write run.json."""
    write_atomic(
        path / "run.json", json.dumps(without_nan(facts), indent=1, allow_nan=False).encode()
    )


def without_nan(value: Any) -> Any:
    """Return a JSON value with null in the place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_facts(path: Path) -> dict[str, Any]:
    """Read run.json.

    Raises:
        RunError: the folder holds no run, or one of another format version.
    """
    file = path / "run.json"
    if not file.exists():
        msg = f"{path} is not a run folder: it has no run.json"
        raise RunError(msg)
    try:
        facts: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        msg = f"{file} is damaged ({error}); start the run again with --overwrite"
        raise RunError(msg) from error
    if facts.get("version") != VERSION:
        msg = f"{file} has format version {facts.get('version')}, this release reads {VERSION}"
        raise RunError(msg)
    return facts


def dump_fit(fit: Fit) -> bytes:
    """Return a fit as the content of a file."""
    tensors = {
        "masks": fit.masks,
        "magnitudes": fit.magnitudes,
        "weights": fit.weights,
        "support": fit.support,
    }
    tensors |= trees.join(params=fit.params, scores=fit.scores)
    names = ("bytes_up", "bytes_down", "bytes_dense", "bytes_formula", "compiled", "history")
    facts = {name: getattr(fit, name) for name in names}
    contiguous = {k: v.contiguous().clone() for k, v in tensors.items()}
    return save(contiguous, {"fit": json.dumps({"version": VERSION, **facts})})


def load_fit(path: Path) -> Fit:
    """Return the fit of a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = json.loads(file.metadata()["fit"])
    if facts.pop("version") != VERSION:
        msg = f"{path} was written by another release; delete it to compute this part again"
        raise CheckpointError(msg)
    parts = {k: tensors[k] for k in ("masks", "magnitudes", "weights", "support")}
    return Fit(
        **parts, params=trees.part(tensors, "params"), scores=trees.part(tensors, "scores"), **facts
    )
