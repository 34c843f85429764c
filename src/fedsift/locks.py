"""One process at a time in a run folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedsift.run_folder import LOCK, RunError, check_free, prepare


class Owner(NamedTuple):
    """Who holds a lock."""

    pid: int
    host: str


@contextmanager
def claim(
    path: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
) -> Iterator[None]:
    """Hold a run folder while work goes on in it.

    Without ``resume`` it is prepared for a new run first (`run_folder.prepare`).

    Raises:
        RunError: another process works there, or the folder may not be used.
    """
    if not resume:
        check_free(path, overwrite=overwrite, inputs=inputs)
        path.mkdir(parents=True, exist_ok=True)
    with locked(path):
        if not resume:
            prepare(path, overwrite=overwrite, inputs=inputs)
        yield


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder, a file that names this process; that of a dead one is taken over.

    Raises:
        RunError: a process that runs, or one of another host, holds it.
    """
    lock, own = path / LOCK, Owner(os.getpid(), platform.node())
    while not _create(lock, own):
        if _is_stale(lock):
            _remove_stale(lock, own)
        elif lock.exists():
            raise RunError(_in_use(lock))
    try:
        yield
    finally:
        if _owner(lock) == own:
            lock.unlink(missing_ok=True)


def _create(file: Path, owner: Owner) -> bool:
    """Make a lock file, if there is none."""
    try:
        with file.open("x") as opened:
            json.dump(owner._asdict(), opened)
    except FileExistsError:
        return False
    return True


def _owner(lock: Path) -> Owner | None:
    """Return who holds a lock; None if there is no lock, or none that can be read."""
    try:
        facts = json.loads(lock.read_text())
        return Owner(int(facts["pid"]), str(facts["host"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_stale(lock: Path) -> bool:
    owner = _owner(lock)
    return owner is not None and owner.host == platform.node() and not is_alive(owner.pid)


def is_alive(pid: int) -> bool:
    """Tell whether a process of this host runs; where that cannot be asked it is taken for one."""
    if os.name != "posix" or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return not _has_ended(pid)


def _has_ended(pid: int) -> bool:
    """Tell whether a process only waits for its parent to ask how it ended (Linux)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in {"Z", "X"}


def _remove_stale(lock: Path, own: Owner) -> None:
    """Remove a dead process's lock; a second lock keeps others from removing the next owner's."""
    guard = lock.with_name(f"{lock.name}.old")
    if not _create(guard, own):
        raise RunError(_in_use(guard))
    try:
        if _is_stale(lock):
            lock.unlink()
    finally:
        guard.unlink()


def _in_use(lock: Path) -> str:
    owner = _owner(lock)
    who = "another process" if owner is None else f"process {owner.pid} on {owner.host}"
    return (
        f"{lock.parent} is in use by {who}; wait until it is done, choose another folder with "
        f"--out, or, if no fedsift works there any more, remove {lock}"
    )
