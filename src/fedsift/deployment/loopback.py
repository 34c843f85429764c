"""A whole deployment on this machine: a SuperLink, SuperNodes and the job, stopped at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsift.data.errors import DataError
from fedsift.deployment.keys import Keys, write_keys
from fedsift.deployment.plan import Plan
from fedsift.deployment.processes import (
    ProcessError,
    Processes,
    Started,
    ending_on_signals,
    free_ports,
    wait_until_up,
)
from fedsift.deployment.writing import write_app
from fedsift.run_folder import DEPLOYMENT
from fedsift.runs import Run, load_run

USERS = ("DataError", "ValueError", "RunError", "CheckpointError", "ValidationError")
Told = Callable[[dict[str, Any]], None]


@dataclass
class Loopback:
    """The processes of a deployment on this machine.

    Attributes:
        plan: what is done; ``out`` is an absolute path.
        files: the sites' files, in the order of the plan's sites.
        folder: where the app, the logs and the keys go.
        per_node: sites of one SuperNode.
        tls: with certificates, and a key for every SuperNode.
    """

    plan: Plan
    files: Sequence[Path]
    folder: Path
    per_node: int = 1
    tls: bool = False
    processes: Processes = field(init=False)
    link: Started | None = None
    port: int = 0
    keys: Keys | None = None
    nodes: dict[int, Started] = field(default_factory=dict)
    _before: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.processes = Processes(self.folder)

    @property
    def groups(self) -> list[list[int]]:
        """The numbers of the sites of each SuperNode."""
        count, step = len(self.files), self.per_node
        return [list(range(first, min(first + step, count))) for first in range(0, count, step)]

    def prepare(self) -> None:
        """Write the app, and the keys."""
        write_app(self.folder / "app", self.plan, overwrite=True)
        self.port = free_ports(1)[0]
        if self.tls and self.keys is None:
            names = [f"node_{number}" for number in range(len(self.groups))]
            self.keys = write_keys(self.folder / "keys", "127.0.0.1", names)
        trust = (
            f"root-certificates = {json.dumps(str(self.keys.authority))}"
            if self.keys
            else "insecure = true"
        )
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        address = f'address = "127.0.0.1:{self.port}"'
        lines = ["[superlink]", 'default = "here"', "[superlink.here]", address, trust, ""]
        (home / "config.toml").write_text("\n".join(lines))

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers."""
        safety = ["--insecure"]
        if self.keys is not None:
            safety = [
                "--ssl-ca-certfile", str(self.keys.authority),
                "--ssl-certfile", str(self.keys.certificate),
                "--ssl-keyfile", str(self.keys.server_key),
                "--enable-supernode-auth",
            ]  # fmt: skip
        command = [
            "flower-superlink", *safety, "--host", "127.0.0.1", "--port", str(self.port),
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        self.link = self.processes.start("superlink", command)
        wait_until_up(self.port, self.link, tls=self.keys is not None)
        for number in range(len(self.groups) if self.keys is not None else 0):
            self._flwr("register", ["supernode", "register", str(self._key(number).public), "here"])

    def _key(self, number: int) -> Any:
        assert self.keys is not None  # noqa: S101  asked for with TLS alone
        return _Pair(self.keys.private(f"node_{number}"), self.keys.public(f"node_{number}"))

    def start_node(self, number: int, *, key: Path | None = None) -> Started:
        """Start a SuperNode; ``key``: another than its own."""
        safety = ["--insecure"]
        if self.keys is not None:
            private = key or self._key(number).private
            safety = [
                "--root-certificates", str(self.keys.authority),
                "--auth-supernode-private-key", str(private),
            ]  # fmt: skip
        group = self.groups[number]
        files = ";".join(str(self.files[site]) for site in group)
        config = f"data={json.dumps(files)} state={json.dumps(str(self.folder / 'state'))}"
        if len(group) == 1:
            config += f" site={json.dumps(self.plan.sites[group[0]])}"
        command = [
            "flower-supernode", *safety, "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(free_ports(1)[0]), "--node-config", config,
        ]  # fmt: skip
        self.nodes[number] = self.processes.start(f"supernode_{number}", command)
        return self.nodes[number]

    def run(self) -> None:
        """Hand the job to the SuperLink."""
        self._before = self.told()
        self._flwr("run", ["run", str(self.folder / "app"), "here"])

    def _flwr(self, name: str, arguments: Sequence[str]) -> None:
        """Call Flower's command line, and wait for it."""
        one = self.processes.start(f"flwr-{name}", ["flwr", *arguments])
        code = one.process.wait()
        self.processes.started.remove(one)
        if code:
            msg = f"flwr {' '.join(arguments)} failed: {one.tail()}"
            raise ProcessError(msg)

    def told(self) -> dict[str, Any]:
        """Return what the run says of itself, {} before it says anything."""
        try:
            told: dict[str, Any] = json.loads((Path(self.plan.out) / DEPLOYMENT).read_text())
        except (OSError, ValueError):
            return {}
        return told

    def follow(self, tell: Told | None = None, *, seconds: float | None = None) -> Run:
        """Wait for the run to end, and return it.

        Raises:
            ProcessError: a process ended, or the time is over.
            DataError: the run failed; the text is its own.
        """
        began, last = time.monotonic(), dict[str, Any]()
        while True:
            told = self.told()
            told = {} if told == self._before else told  # of an earlier server
            if told != last and tell is not None:
                tell(told)
            last = told
            if told.get("state") == "done":
                return load_run(self.plan.out)
            if told.get("state") == "failed":
                kind = DataError if told.get("kind") in USERS else ProcessError
                raise kind(f"the run failed: {told.get('error')}")
            self.processes.check()
            if seconds is not None and time.monotonic() - began > seconds:
                msg = f"the run did not end in {seconds:.0f} s; the logs are in {self.folder}"
                raise ProcessError(msg)
            time.sleep(0.3)


class _Pair:
    def __init__(self, private: Path, public: Path) -> None:
        self.private, self.public = private, public


@contextmanager
def started(loopback: Loopback) -> Iterator[Loopback]:
    """Start everything, and stop everything at the end, whatever happens."""
    with ending_on_signals():
        try:
            loopback.prepare()
            loopback.start_link()
            for number in range(len(loopback.groups)):
                loopback.start_node(number)
            yield loopback
        finally:
            loopback.processes.stop_all()


def run_loopback(loopback: Loopback, tell: Told | None = None) -> Run:
    """Run a deployment on this machine and return its run.

    Raises:
        ProcessError: Flower is not installed, or a process of it ended.
        DataError: the run failed.
    """
    with started(loopback):
        loopback.run()
        return loopback.follow(tell)
