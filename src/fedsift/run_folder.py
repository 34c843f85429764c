"""A run folder: its facts, and the fits of its checkpoints, read and written.

A run folder holds ``run.json`` (settings, data, versions, status, results), ``history.jsonl`` (a
record a round), ``model.safetensors`` (parameters on standardised features), ``features.csv``,
``joins/`` (states before sites joined late, `fedsift.joins`), ``sites/`` (what sites keep to
themselves, in a simulation) and, until it is done, ``checkpoints/``. Every file but the table
carries the version of its format. ``run.json`` has a checksum of itself and, when the run is done,
those of the other files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsift import trees
from fedsift.checkpoints import (
    AFRESH,
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from fedsift.data.remote import OwnThere
from fedsift.sealed import fingerprint, write_atomic
from fedsift.studies import Fit

VERSION = 2
CHECKPOINTS, JOINS, SITES = "checkpoints", "joins", "sites"
LOCK = "run.lock"
OTHER_PAGES = ("page.md", "report.txt")  # of folders that solve and reproduce write
DEPLOYMENT = "deployment.json"
OWN_FILES = (
    "run.json",
    DEPLOYMENT,
    "history.jsonl",
    "model.safetensors",
    "features.csv",
    "report.txt",
    "report.html",
    "inclusion.png",
    "training.png",
    "track.csv",
)
EVENTS = "tensorboard"  # folder of TensorBoard's files, where `--track` writes them by default


class RunError(RuntimeError):
    """A run folder that cannot be used; the text names it and the next action."""


def prepare(path: Path, *, overwrite: bool, inputs: Sequence[str | Path] = ()) -> None:
    """Make a run folder, or empty an earlier run's folder of what fedsift wrote there.

    Other files in the folder stay.

    Raises:
        RunError: it exists and may not be overwritten, is no run folder, or an input would go.
    """
    check_free(path, overwrite=overwrite, inputs=inputs)
    clear(path)
    path.mkdir(parents=True, exist_ok=True)


def check_free(path: Path, *, overwrite: bool, inputs: Sequence[str | Path] = ()) -> None:
    """Refuse a folder that a new run may not be written to.

    Raises:
        RunError: as `prepare` says.
    """
    if path.exists() and any(content(path) if path.is_dir() else [path]):
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


def content(path: Path) -> Iterator[Path]:
    """Return what is in a folder besides locks."""
    return (file for file in path.iterdir() if not file.name.startswith(LOCK))


def is_own(file: Path) -> bool:
    """Tell whether fedsift keeps a run's data in a file of this name and place."""
    file = file.resolve()
    return file.name in {*OWN_FILES, LOCK} and (file.parent / "run.json").exists()


def clear(path: Path) -> None:
    """Remove what fedsift writes into a run folder, and nothing else."""
    for name in OWN_FILES:
        (path / name).unlink(missing_ok=True)
    for file in (path / EVENTS).rglob("events.out.tfevents.*"):
        file.unlink()
    for file in (path / SITES).glob("*.json"):
        file.unlink()
    clear_unfinished(path)
    clear_states(path)


def clear_unfinished(path: Path) -> None:
    """Remove what killed processes had begun to write into a run folder."""
    for name in OWN_FILES:
        for file in path.glob(f"{name}.*.tmp"):
            file.unlink(missing_ok=True)


def clear_states(path: Path, *names: str) -> None:
    """Remove the states of a training that a run keeps, or those of some of the folders."""
    for name in names or (CHECKPOINTS, JOINS):
        folder = path / name
        if folder.is_dir() and not folder.is_symlink():
            for file in folder.glob("*.safetensors*"):
                file.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()


def _unfinished(path: Path) -> bool:
    """Tell whether a run can go on; a private one cannot."""
    if not (path / "run.json").exists():
        return False
    facts = read_facts(path)
    return facts["status"] != "done" and "privacy" not in facts


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Write run.json."""
    facts = without_nan(facts)
    sealed = facts | {"sha256": fingerprint(facts)}
    write_atomic(path / "run.json", json.dumps(sealed, indent=1, allow_nan=False).encode())


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
        RunError: the folder holds no run, a changed one, or one of another format version.
    """
    file = path / "run.json"
    if not file.exists():
        msg = f"{path} is not a run folder: it has no run.json"
        read = next((path / name for name in OTHER_PAGES if (path / name).exists()), None)
        if read is not None:
            msg += f"; it holds what solve or reproduce found: read {read}"
        elif (path / CHECKPOINTS).is_dir():
            msg = f"{path} is of fedsift solve; give its command again, and it goes on"
        raise RunError(msg)
    try:
        facts = dict(json.loads(file.read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        msg = f"{file} is damaged ({error}); restore it from a copy, or {AFRESH}"
        raise RunError(msg) from error
    if facts.get("version") != VERSION:
        msg = (
            f"{file} has format version {facts.get('version')}, this release reads {VERSION}; "
            f"use the release that wrote it, or {AFRESH}"
        )
        raise RunError(msg)
    if facts.pop("sha256", None) != fingerprint(facts):
        msg = (
            f"{file} is not as fedsift wrote it (its checksum differs); restore it from a copy, "
            f"or {AFRESH}"
        )
        raise RunError(msg)
    return facts


def read_finished(path: Path) -> dict[str, Any]:
    """Read run.json of a finished run.

    Raises:
        RunError: as `read_facts` says, or the run is not finished.
    """
    facts = read_facts(path)
    if facts["status"] != "done":
        on = "start it afresh" if "privacy" in facts else f"go on with: fedsift resume {path}"
        msg = f"{path} is not finished (status {facts['status']}); {on}"
        raise RunError(msg)
    return facts


def checksum(content: bytes) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    return hashlib.sha256(content).hexdigest()


def read_checked(path: Path, name: str, facts: dict[str, Any]) -> bytes:
    """Return the content of a finished run's file.

    Raises:
        RunError: it is absent, or not the file that was written when the run was done.
    """
    file = path / name
    try:
        content = file.read_bytes()
    except OSError as error:
        msg = f"{file} cannot be read ({error.strerror}); restore it from a copy, or {AFRESH}"
        raise RunError(msg) from error
    if checksum(content) != facts["files"][name]:
        msg = (
            f"{file} was changed or damaged since the run was done (its checksum is not that of "
            f"run.json); restore it from a copy, or {AFRESH}"
        )
        raise RunError(msg)
    return content


def write_fit(path: Path, fit: Fit, request: str) -> None:
    """Write a finished fit as a checkpoint; ``request`` is the fingerprint of what it is for."""
    tensors = {
        "masks": fit.masks,
        "magnitudes": fit.magnitudes,
        "weights": fit.weights,
        "support": fit.support,
    }
    tensors |= trees.join(params=fit.params, scores=fit.scores)
    there = fit.own.of_site if isinstance(fit.own, OwnThere) else None
    here = {} if isinstance(fit.own, OwnThere) else fit.own
    if here:
        tensors |= trees.join(own=trees.stack(here.values()))
    names = ("bytes_up", "bytes_down", "bytes_dense", "bytes_formula", "plan", "history", "control")
    facts = {name: getattr(fit, name) for name in names}
    write_checkpoint(path, tensors, facts | {"own": list(here), "own_there": there}, request)


def read_fit(path: Path, request: str) -> Fit:
    """Return the fit of a checkpoint.

    Raises:
        CheckpointError: it is damaged, of another version, or of another request.
    """
    tensors, facts = read_checkpoint(path, request)
    try:
        lanes = {k: tensors[k] for k in ("masks", "magnitudes", "weights", "support")}
        trained = {k: trees.part(tensors, k) for k in ("params", "scores")}
        stacked, there = trees.part(tensors, "own"), facts.pop("own_there")
        here = {site: trees.unstack(stacked, place) for place, site in enumerate(facts["own"])}
        own = here if there is None else OwnThere(there)
        return Fit(**(lanes | trained | facts | {"own": own}))
    except (KeyError, TypeError) as error:
        msg = f"checkpoint {path} is no finished fit ({error}); {AFRESH}"
        raise CheckpointError(msg) from error
