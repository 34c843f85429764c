"""Flower's processes on this machine: started in groups of their own, and ended with them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
GRACE = 5.0  # seconds between asking a process to end and ending it


class ProcessError(RuntimeError):
    """A process of Flower did not start, or ended; the text names it and its log."""


@dataclass
class Started:
    """A process that was started, the leader of its own group."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def tail(self, lines: int = 5) -> str:
        """Return the last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())


@dataclass
class Processes:
    """All that was started, to be stopped together.

    Attributes:
        folder: where logs and Flower's own files go.
        tls: the certificate of the authority, where there is TLS.
    """

    folder: Path
    started: list[Started] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str]) -> Started:
        """Start a command of Flower in a group of its own, its output in a log."""
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        # Flower starts its helpers by name.
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = os.environ | QUIET | {"FLWR_HOME": str(home), "PATH": search}
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603  our own commands
                [program(command[0]), *command[1:]],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        one = Started(name, process, log)
        self.started.append(one)
        return one

    def stop(self, one: Started, how: signal.Signals = signal.SIGTERM) -> None:
        """End a process and its children."""
        end([one], how)
        self.started.remove(one)

    def stop_all(self) -> None:
        """End everything, the last started first."""
        end(self.started[::-1])
        self.started.clear()

    def check(self) -> None:
        """Refuse to go on when something ended by itself.

        Raises:
            ProcessError: it names the process and the end of its log.
        """
        for one in self.started:
            if not one.running:
                msg = (
                    f"{one.name} ended by itself (exit code {one.process.returncode}): {one.tail()}"
                )
                raise ProcessError(msg)


def end(processes: Sequence[Started], how: signal.Signals = signal.SIGTERM) -> None:
    """Ask process groups to end, then end what is left of them."""
    for one in processes:
        _signal(one.process.pid, how)
    deadline = time.monotonic() + GRACE
    for one in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(max(0.0, deadline - time.monotonic()))
    for one in processes:
        _signal(one.process.pid, signal.SIGKILL)
        one.process.wait()


def _signal(group: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)


def program(name: str) -> str:
    """Return a program of this environment.

    Raises:
        ProcessError: Flower is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        msg = f"{name} is not installed; install it with: pip install 'fedsift[flower]'"
        raise ProcessError(msg)
    return found


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until_up(port: int, one: Started, *, tls: bool, seconds: float = 60.0) -> None:
    """Wait for a SuperLink to answer.

    Raises:
        ProcessError: it ended, or does not answer in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not one.running:
            break
        with contextlib.suppress(OSError):
            if tls:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        time.sleep(0.1)
    msg = f"{one.name} does not answer on port {port}: {one.tail()}"
    raise ProcessError(msg)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let a request to terminate stop the work as Ctrl-C does, so that what was started ends."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
