"""What goes wrong on networks: the round goes on, the site is named, nothing is counted wrongly.

A lost upload must leave what the simulator leaves when the same upload is lost.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedsift.channels import TopM
from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData, RemoteData
from fedsift.data.remote import OwnThere
from fedsift.engines.flower import Policy, SitesError
from fedsift.engines.flower.wire import pack, unpack
from fedsift.evaluation import evaluate
from fedsift.linear_problems import linear_problem
from fedsift.training import Training, train
from tests.flower.fake import QUICK, FakeGrid, connected, nodes_of
from tests.laws import KEPT, every_algorithm, largest_gap, rows

ROUNDS = 6
SIZES = (9, 5, 8)
LOST_AT = {("hospital b", 2), ("hospital c", 4), ("hospital b", 5)}
TWO_OF_THREE = Policy(quorum=2, deadline=0.05, patience=20.0, poll=0.0)
KNOBS: Any = {"seeds": (0, 1), "channel": TopM(KEPT), "evaluate_every": 3}
Change = Callable[[Message], list[tuple[int, Message]]]


def data() -> FederatedData:
    return rows("binary", sizes=SIZES)


def fitted(remote: FederatedData, *, own: bool = False, **knobs: Any) -> Training:
    algorithm = every_algorithm(0.25, rounds=ROUNDS, learning_rate=0.3)["eflops"]
    problem = linear_problem(remote).with_private({"bias": 0.5} if own else {})
    return train(problem, remote, algorithm, compile=False, **KNOBS, **knobs)


def simulated(lost: set[tuple[str, int]] = frozenset(), **knobs: Any) -> Training:  # type: ignore[assignment]
    here = data()

    def delivery(tick: int, seed: torch.Tensor, site: torch.Tensor) -> torch.Tensor:
        return torch.tensor([(here.sites[c], tick) not in lost for c in site.tolist()])

    return fitted(here, delivery=delivery, **knobs)


def on_exchanges(change: Change, when: set[tuple[str, int]]) -> Any:
    """Return the fault that changes the answers of some sites to some exchanges."""

    def fault(_node: int, _number: int, answer: Message) -> list[tuple[int, Message]]:
        for site, parts in unpack(answer.content).items():
            for part in parts:
                if (site, part.facts.get("tick")) in when:
                    return change(answer)
        return [(0, answer)]

    return fault


MAKE: Any = Message  # with the metadata given, which only Flower itself does


def other(answer: Message, content: RecordDict) -> Message:
    made: Message = MAKE(content=content, metadata=answer.metadata)
    return made


def edited(answer: Message, **facts: Any) -> Message:
    parts = unpack(answer.content)
    for several in parts.values():
        for part in several:
            part.facts.update(facts)
    return other(answer, pack(parts))


def cut(answer: Message) -> Message:
    parts = unpack(answer.content)
    shorter = {
        site: [part._replace(blobs=tuple(blob[:-1] for blob in part.blobs)) for part in several]
        for site, several in parts.items()
    }
    return other(answer, pack(shorter))


def strange(answer: Message) -> Message:
    return other(answer, RecordDict({"fedsift": ConfigRecord({"version": 99, "parts": "{"})}))


def failed(answer: Message) -> Message:
    error = Error(code=1, reason="the process ended\nTraceback")
    made: Message = MAKE(error=error, metadata=answer.metadata)
    return made


FAULTS: dict[str, tuple[Change, str]] = {
    "never": (lambda _: [], "no answer within"),
    "late": (lambda m: [(10_000, m)], "no answer within"),
    "error": (lambda m: [(0, failed(m))], "node failed: the process ended"),
    "another version": (lambda m: [(0, strange(m))], "malformed"),
    "cut": (lambda m: [(0, cut(m))], "malformed"),
    "another exchange": (lambda m: [(0, edited(m, tick=0))], "answers exchange round 0"),
    "another model": (lambda m: [(0, edited(m, schema=1))], "another method"),
    "another site": (lambda m: [(0, edited(m, site="hospital a"))], "answers for site"),
    "an earlier server": (lambda m: [(0, edited(m, life=1))], "earlier server"),
    "a nonsense weight": (lambda m: [(0, edited(m, weights={"loss": [-1.0, 1.0]}))], "weights"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_cannot_count_is_a_lost_one(fault: str, tmp_path: Path) -> None:
    """Error feedback, too: what was lost comes later, for the site hears what counted last."""
    change, reason = FAULTS[fault]
    grid = FakeGrid(nodes_of(data(), tmp_path), on_exchanges(change, LOST_AT))
    far = fitted(connected(data(), grid, policy=TWO_OF_THREE))
    near = simulated(LOST_AT)
    assert largest_gap(far.carried.server, near.carried.server) <= 1e-5
    assert torch.equal(far.carried.ledger, near.carried.ledger)
    remarks = [record.get("remarks", {}) for record in far.history]
    assert [set(r) for r in remarks] == [
        {site for site, tick in LOST_AT if tick == number} for number in range(ROUNDS)
    ]
    assert all(reason in why for r in remarks for why in r.values())


def test_a_site_goes_back_to_its_own_value_before_an_upload_that_was_lost(tmp_path: Path) -> None:
    """Its last two uploads are lost: it is scored by, and keeps, its value before them."""
    lost = {("hospital b", tick) for tick in (ROUNDS - 2, ROUNDS - 1)}
    grid = FakeGrid(nodes_of(data(), tmp_path), on_exchanges(lambda _: [], lost))
    remote = connected(data(), grid, policy=TWO_OF_THREE)
    far, near = fitted(remote, own=True), simulated(lost, own=True)
    assert isinstance(far.own, OwnThere)
    assert not isinstance(near.own, OwnThere)
    assert far.history[-1]["loss"] == pytest.approx(near.history[-1]["loss"], abs=1e-6)
    assert remote.way.keep(remote, far.own) == ()
    for site, own in near.own.items():
        (file,) = (tmp_path / site).glob("*-own.json")
        kept = json.loads(file.read_text())["intercept"]
        assert kept == pytest.approx(own["bias"][0].tolist(), abs=1e-6)


def test_a_site_that_lost_its_own_value_is_scored_by_the_common_one(tmp_path: Path) -> None:
    remote = connected(data(), FakeGrid(nodes_of(data(), tmp_path)))
    run = fitted(remote, own=True)
    problem, own = run.job.problem, run.own
    for file in (tmp_path / "hospital b").rglob("*/*.safetensors"):
        file.unlink()
    mixed = evaluate(problem, run.params, remote, own=own)
    near = simulated(own=True)
    assert not isinstance(near.own, OwnThere)
    others = {site: value for site, value in near.own.items() if site != "hospital b"}
    known = evaluate(near.job.problem, near.params, data(), own=others)
    assert mixed["loss"].tolist() == pytest.approx(known["loss"].tolist(), abs=1e-5)


def test_an_answer_that_comes_twice_counts_once(tmp_path: Path) -> None:
    def twice(answer: Message) -> list[tuple[int, Message]]:
        return [(0, answer), (0, answer)]

    grid = FakeGrid(nodes_of(data(), tmp_path), on_exchanges(twice, LOST_AT))
    far, near = fitted(connected(data(), grid)), simulated()
    assert largest_gap(far.carried.server, near.carried.server) <= 1e-5
    said = [why for record in far.history for why in record.get("remarks", {}).values()]
    assert said
    assert all("twice" in why for why in said)


def test_a_diverged_upload_is_refused_seed_by_seed(tmp_path: Path) -> None:
    """A value of NaN in one seed's message: the other seed's counts."""
    grid = FakeGrid(nodes_of(data(), tmp_path))
    node = grid.nodes[97]
    remote = connected(data(), grid)
    assert list(node.sources) == ["hospital c"]
    algorithm = every_algorithm(0.25, rounds=2, learning_rate=float("nan"))["fedavg"]
    run = train(linear_problem(remote), remote, algorithm, seeds=(0,), rounds=1, evaluate_every=1)
    assert run.history[0]["rejected"] == list(remote.sites)


def test_too_few_answers_end_the_run_by_name(tmp_path: Path) -> None:
    grid = FakeGrid(nodes_of(data(), tmp_path), on_exchanges(lambda _: [], {("hospital b", 1)}))
    hasty = Policy(quorum=1.0, deadline=0.05, patience=0.3, poll=0.0)
    remote = connected(data(), grid, policy=hasty)

    def silent(_node: int, _number: int, answer: Message) -> list[tuple[int, Message]]:
        return [] if "hospital b" in unpack(answer.content) else [(0, answer)]

    grid.fault = silent
    with pytest.raises(SitesError, match="'hospital b': no answer within"):
        fitted(remote)


def moving(grid: FakeGrid, site: str, tick: int) -> Any:
    """Return the fault that kills a site's node before it answers, and starts it under a new id."""

    def fault(node: int, _number: int, answer: Message) -> list[tuple[int, Message]]:
        parts = unpack(answer.content)
        if node < 1000 and any(p.facts.get("tick") == tick for p in parts.get(site, [])):
            grid.nodes[node + 1000] = grid.nodes[node]
            grid.alive = (grid.alive - {node}) | {node + 1000}
            return []
        return [(0, answer)]

    return fault


def test_a_node_that_is_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its state is in its files; the run waits for it, as all sites must answer."""
    grid = FakeGrid(nodes_of(data(), tmp_path))
    grid.fault = moving(grid, "hospital b", 3)
    remote = connected(data(), grid, policy=Policy(deadline=0.05, patience=20.0, poll=0.0))
    remote.way.nodes.look = 0.0  # type: ignore[attr-defined]
    far, near = fitted(remote), simulated()
    assert largest_gap(far.carried.server, near.carried.server) <= 1e-5
    assert torch.equal(far.bytes_up, near.bytes_up)


def test_a_site_that_lost_its_files_begins_anew_and_is_named(tmp_path: Path) -> None:
    grid = FakeGrid(nodes_of(data(), tmp_path))
    remote = connected(data(), grid)

    def losing(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            shutil.rmtree(tmp_path / "hospital b")

    far = fitted(remote, callback=losing)
    assert "lost" in far.history[3]["remarks"]["hospital b"]
    assert bool((far.carried.ledger >= 0).all())
    assert far.history[-1]["loss"] < far.history[0]["loss"]


class StoppedError(RuntimeError):
    pass


@pytest.mark.parametrize("after", [1, 4])
def test_a_server_that_was_killed_goes_on_with_the_same_numbers(after: int, tmp_path: Path) -> None:
    """A checkpoint a round; what sites did after it is done again, from the state before."""
    grid = FakeGrid(nodes_of(data(), tmp_path / "sites"))
    whole = fitted(connected(data(), grid, run="whole"))
    checkpoint = StageCheckpoint(tmp_path / "run" / "fit")
    checkpoint = checkpoint.named("search")
    killed = FakeGrid(nodes_of(data(), tmp_path / "others"))

    def kill(_node: int, _number: int, answer: Message) -> list[tuple[int, Message]]:
        for parts in unpack(answer.content).values():
            if any(part.facts.get("tick") == after for part in parts):
                raise StoppedError
        return [(0, answer)]

    killed.fault = kill
    with pytest.raises(StoppedError):
        fitted(connected(data(), killed), checkpoint=checkpoint)
    killed.fault = lambda _node, _number, answer: [(0, answer)]
    resumed = fitted(connected(data(), killed), checkpoint=checkpoint)
    assert largest_gap(resumed.carried.server, whole.carried.server) == 0.0
    assert torch.equal(resumed.bytes_up, whole.bytes_up)
    assert [r["round"] for r in resumed.history] == list(range(1, ROUNDS + 1))


def test_a_changed_site_file_is_refused(tmp_path: Path) -> None:
    grid = FakeGrid(nodes_of(data(), tmp_path))
    remote = connected(data(), grid)
    fitted(remote)
    grid.nodes = nodes_of(rows("binary", sizes=SIZES, seed=5), tmp_path)
    hasty = Policy(deadline=0.05, patience=0.1, poll=0.0)
    with pytest.raises(SitesError, match="cannot be used"):
        fitted(connected(data(), grid, policy=hasty))


def test_sites_that_come_late_are_waited_for(tmp_path: Path) -> None:
    class Slow(FakeGrid):
        looks = 0

        def get_node_ids(self) -> set[int]:
            self.looks += 1
            return set(sorted(self.nodes)[: self.looks])

    remote = connected(data(), Slow(nodes_of(data(), tmp_path)))
    assert remote.sites == tuple(sorted(data().sites))
    grid = FakeGrid(nodes_of(data(), tmp_path), alive={97, 194})
    with pytest.raises(SitesError, match="hospital a: not seen"):
        connected(data(), grid, wait=0.01)


def test_no_value_of_a_row_is_on_the_wire(tmp_path: Path) -> None:
    """No feature's value, as text or as a number of four or eight bytes, in any answer."""
    here = data()
    grid = FakeGrid(nodes_of(here, tmp_path))
    remote = connected(here, grid)
    assert isinstance(remote, RemoteData)
    fitted(remote)
    said = b"".join(
        str(part.facts).encode() + b"".join(part.blobs)
        for message in grid.got
        for several in unpack(message.content).values()
        for part in several
    )
    for value in here.x.flatten():
        number = value.numpy()
        for form in (number.tobytes(), number.astype("float64").tobytes(), str(number).encode()):
            assert form not in said


def test_the_policy_counts_sites() -> None:
    assert QUICK.needed(7) == 7
    assert Policy(quorum=0.5).needed(7) == 4
    assert Policy(quorum=2).needed(7) == 2
    assert Policy(quorum=2).needed(1) == 1
