"""Flower's own processes on this machine: a SuperLink, SuperNodes, sockets, certificates."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedsift.data import iid, read_sites
from fedsift.deployment.demo import write_sites
from fedsift.deployment.keys import write_keys
from fedsift.deployment.loopback import Loopback, run_loopback, started
from fedsift.deployment.plan import Plan
from fedsift.deployment.processes import ProcessError, free_ports
from fedsift.exports import predictions
from fedsift.runs import Run
from fedsift.settings import Settings
from fedsift.workflows import run_fit, split_cases
from tests.laws import rows

ENOUGH = 1500.0  # seconds, for a machine that does much besides

pytestmark = pytest.mark.filterwarnings("ignore::fedsift.data.DataWarning")


def loopback(
    folder: Path,
    *,
    tls: bool = False,
    sizes: tuple[int, ...] = (9, 8, 7),
    outcome: str = "binary",
    **knobs: Any,
) -> Loopback:
    data = rows(outcome, sizes=sizes)
    files = write_sites(data, folder / "sites")
    settings: dict[str, Any] = {
        "features": 3,
        "seeds": 2,
        "splits": 0,
        "rounds": 1,
        "tuning_rounds": 1,
        "learning_rate": 0.3,
        "standardise": "none",
    }
    own = {k: knobs.pop(k) for k in list(knobs) if k in Settings.model_fields}
    plan = Plan(
        settings=Settings(**settings | own),
        sites=tuple(f.stem for f in files),
        target="target",
        id_column="id",
        out=str(folder / "run"),
        **knobs,
    )
    return Loopback(plan, files, folder / "work", tls=tls)


def simulated(loop: Loopback) -> Run:
    data = read_sites(list(loop.files), "target", id_column="id")
    return run_fit(split_cases(data, loop.plan.settings), loop.plan.settings, beside=())


def assert_same_model(run: Run, other: Run) -> None:
    assert run.params.keys() == other.params.keys()
    for name, value in run.params.items():
        assert (value - other.params[name]).abs().max() <= 1e-5
    assert [f.name for f in run.features] == [f.name for f in other.features]


def assert_same(run: Run, other: Run) -> None:
    assert_same_model(run, other)
    for name in ("bytes_up", "bytes_down"):
        assert run.results[name] == other.results[name]


def predicted(table: str) -> list[float]:
    return [float(line.split(",")[1]) for line in table.splitlines()[1:]]


def assert_nothing_is_left(loop: Loopback) -> None:
    assert not loop.processes.started
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", loop.port), timeout=1)


def wait_for_round(loop: Loopback, number: int, stage: str = "search") -> None:
    began = time.monotonic()
    while time.monotonic() - began < ENOUGH:
        told = loop.told()
        if stage in str(told.get("label")) and told.get("round", 0) >= number:
            return
        loop.processes.check()
        time.sleep(0.1)
    pytest.fail(f"round {number} did not come: {loop.told()}")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eflops", "fedavg"])
def test_three_nodes_give_the_simulators_model(method: str, tmp_path: Path) -> None:
    """A run folder like any other: it is read, and predicts; every process is ended."""
    loop = loopback(tmp_path, method=method)
    told: list[dict[str, Any]] = []
    run = run_loopback(loop, told.append)
    assert_same(run, simulated(loop))
    assert not list((loop.folder / "state").iterdir())
    assert {t["state"] for t in told} >= {"running", "done"}
    assert run.facts["plan"]["engine"] == "flower"
    assert run.facts["deployment"]["rounds_per_minute"] > 0
    text = predictions(run, loop.files[0], None)
    assert text.count("\n") == 1 + 9
    assert_nothing_is_left(loop)


@pytest.mark.acceptance_long
@pytest.mark.parametrize("method", ["flops", "fedht", "fediterht"])
def test_the_other_methods_too(method: str, tmp_path: Path) -> None:
    loop = loopback(tmp_path, method=method, rounds=2)
    assert_same(run_loopback(loop), simulated(loop))


@pytest.mark.acceptance_long
def test_intercepts_of_sites_too(tmp_path: Path) -> None:
    """What a site kept of the run is its own intercept, in a file that predicts its rows."""
    loop = loopback(tmp_path, outcome="regression", site_intercepts="own", splits=1, rounds=2)
    run, near = run_loopback(loop), simulated(loop)
    assert_same(run, near)
    score = near.results["test_r2"]["mean"]
    assert run.results["test_r2"]["mean"] == pytest.approx(score, abs=1e-4)
    for file in loop.files:
        (kept,) = (loop.folder / "state" / file.stem).glob("*-own.json")
        mine = predictions(run, file, None, str(kept))
        theirs = predictions(near, file, None, file.stem)
        assert predicted(mine) == pytest.approx(predicted(theirs), abs=1e-5)


@pytest.mark.acceptance_long
def test_one_message_too(tmp_path: Path) -> None:
    loop = loopback(tmp_path, outcome="regression", method="oneshot", learning_rate=None)
    assert_same(run_loopback(loop), simulated(loop))


@pytest.mark.acceptance_long
def test_a_killed_node_and_a_late_one_change_nothing(tmp_path: Path) -> None:
    """The third node starts when the others wait; the second is killed, and started again."""
    loop = loopback(tmp_path, rounds=4, deadline=20.0)
    expected = simulated(loop)
    try:
        loop.prepare()
        loop.start_link()
        loop.start_node(0)
        loop.start_node(1)
        loop.run()
        time.sleep(5.0)
        loop.start_node(2)
        wait_for_round(loop, 1)
        loop.processes.stop(loop.nodes[1], signal.SIGKILL)
        time.sleep(2.0)
        loop.start_node(1)
        run = loop.follow(seconds=ENOUGH)
    finally:
        loop.processes.stop_all()
    assert_same(run, expected)
    assert_nothing_is_left(loop)


@pytest.mark.acceptance_long
def test_a_killed_server_goes_on(tmp_path: Path) -> None:
    """Killed with its helpers in the middle; started again, with another `flwr run`.

    SuperNodes end when their server no longer knows them, and are started again, too.
    """
    loop = loopback(tmp_path, rounds=4)
    expected = simulated(loop)
    with started(loop):
        loop.run()
        wait_for_round(loop, 2)
        assert loop.link is not None
        loop.processes.stop(loop.link, signal.SIGKILL)
        for node in loop.nodes.values():
            loop.processes.stop(node)
        loop.start_link()
        for number in range(3):
            loop.start_node(number)
        loop.run()
        run = loop.follow(seconds=ENOUGH)
    assert_same_model(run, expected)


@pytest.mark.acceptance_long
def test_a_quorum_goes_on_without_a_dead_site(tmp_path: Path) -> None:
    loop = loopback(tmp_path, rounds=3, quorum=2, deadline=10.0)
    with started(loop):
        loop.run()
        wait_for_round(loop, 1)
        loop.processes.stop(loop.nodes[2], signal.SIGKILL)
        run = loop.follow(seconds=ENOUGH)
    history = (Path(run.path or "") / "history.jsonl").read_text()
    assert "hospital c" in history.split("remarks", 1)[1]


@pytest.mark.acceptance_long
def test_certificates_and_keys_and_a_node_without_one_is_refused(tmp_path: Path) -> None:
    loop = loopback(tmp_path, tls=True)
    strange = write_keys(tmp_path / "strange", "127.0.0.1", ["thief"]).private("thief")
    try:
        loop.prepare()
        loop.start_link()
        thief = loop.start_node(0, key=strange)
        deadline = time.monotonic() + ENOUGH
        while thief.running and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not thief.running
        print(f"a node with an unknown key: exit code {thief.process.returncode}, {thief.tail(3)}")
        loop.processes.stop(thief)
        for number in range(3):
            loop.start_node(number)
        loop.run()
        run = loop.follow(seconds=ENOUGH)
    finally:
        loop.processes.stop_all()
    assert_same(run, simulated(loop))


class Counter:
    """A relay that counts what passes, and keeps it."""

    def __init__(self, target: int) -> None:
        self.port, self.target = free_ports(1)[0], target
        self.up, self.down = bytearray(), bytearray()
        self.server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the server has ended, a node has not yet
                near.close()
                continue
            for pair in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
        try:
            while piece := source.recv(1 << 16):
                seen.extend(piece)
                sink.sendall(piece)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                one.close()


@contextmanager
def counted(loop: Loopback) -> Iterator[Counter]:
    """Start the nodes such that they reach the SuperLink through a relay."""
    counter = Counter(loop.port)
    real, loop.port = loop.port, counter.port
    try:
        for number in range(3):
            loop.start_node(number)
        loop.port = real
        yield counter
    finally:
        counter.server.close()


@pytest.mark.acceptance_long
def test_the_bytes_at_the_socket_are_those_of_the_history(tmp_path: Path) -> None:
    """What nodes and server exchange, without TLS: pieces, facts beside, Flower's envelope.

    The pieces are found in what passed the socket; a value of a row is not.
    """
    loop = loopback(tmp_path, sizes=(40, 40, 40), seeds=30)
    try:
        loop.prepare()
        loop.start_link()
        with counted(loop) as counter:
            loop.run()
            run = loop.follow(seconds=ENOUGH)
    finally:
        loop.processes.stop_all()
    up, down = len(counter.up), len(counter.down)
    facts = run.facts["deployment"]
    print(f"socket up {up}, down {down}; {run.results['bytes_up']} up by the history; {facts}")
    packed = facts["bytes_packed_up"] + facts["bytes_packed_down"]
    envelope = up + down - packed
    print(f"envelope of Flower: {envelope} bytes, {envelope / facts['messages']:.0f} a message")
    exchanged = facts["bytes_up_by_kind"]["exchange"], facts["bytes_down_by_kind"]["exchange"]
    assert exchanged == (run.results["bytes_up"], run.results["bytes_down"])
    data = rows("binary", sizes=(40, 40, 40))
    for value in data.x.flatten().numpy():
        assert str(value).encode() not in counter.up
        assert value.astype("float64").tobytes() not in counter.up
        assert value.tobytes() not in counter.up


def test_what_cannot_start_is_named_and_everything_is_ended(tmp_path: Path) -> None:
    """Two sites whose columns differ, and a port that is taken."""
    loop = loopback(tmp_path)
    loop.prepare()
    with (
        socket.create_server(("127.0.0.1", loop.port)),
        pytest.raises(ProcessError, match="superlink"),
    ):
        loop.start_link()
    loop.processes.stop_all()


def test_iid_sites_are_files(tmp_path: Path) -> None:
    data = iid(rows("binary", sizes=(30,)), 3, seed=0)
    assert [f.stem for f in write_sites(data, tmp_path)] == list(data.sites)
