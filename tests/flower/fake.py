"""A grid in memory: messages are packed and unpacked as Flower does, and faults can be planned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsift.data import FederatedData, RemoteData
from fedsift.data.coding import labels_seen
from fedsift.engines.flower import Policy
from fedsift.engines.flower.apps import client_app
from fedsift.engines.flower.node import Node, Source
from fedsift.engines.flower.parts import CLASSES
from fedsift.engines.flower.roster import connect
from fedsift.linear_problems import problem_of

# (node, how many messages it was sent before, the answer) → the answers that arrive, and after how
# many looks for them.
Fault = Callable[[int, int, Message], list[tuple[int, Message]]]


def arrives(_node: int, _number: int, answer: Message) -> list[tuple[int, Message]]:
    return [(0, answer)]


@dataclass
class FakeGrid:
    """Nodes by number; a message is answered when it is pushed, and pulled when its time comes."""

    nodes: dict[int, Node]
    fault: Fault = arrives
    alive: set[int] = field(default_factory=set)
    sent: list[Message] = field(default_factory=list)
    got: list[Message] = field(default_factory=list)
    _count: dict[int, int] = field(default_factory=dict)
    _ready: list[tuple[int, Message]] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.alive = self.alive or set(self.nodes)

    def get_node_ids(self) -> set[int]:
        return set(self.alive)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            name = f"message {next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            self.sent.append(message)
            node = message.metadata.dst_node_id
            if node not in self.alive:
                continue
            number = self._count.get(node, 0)
            self._count[node] = number + 1
            # A replica, as the other end of a wire would have it.
            message.content = RecordDict.inflate(
                message.content.deflate(), children=_children(message.content)
            )
            here = self.nodes[node]
            app = client_app(_always(here))
            context = Context(0, node, {}, RecordDict(), {})
            answer = app(message, context)
            self._ready.extend(self.fault(node, number, answer))
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        wanted, found, left = set(names), [], []
        for looks, message in self._ready:
            if looks <= 0 and message.metadata.reply_to_message_id in wanted:
                found.append(message)
            else:
                left.append((looks - 1, message))
        self._ready = left
        self.got.extend(found)
        return found


def _always(here: Node) -> Callable[[Any, Any], Node]:
    return lambda _node, _run: here


def _children(record: Any) -> dict[str, Any]:
    """Return the objects within a record, rebuilt from their bytes."""
    children = record.children or {}
    return {
        number: type(child).inflate(child.deflate(), children=_children(child) or None)
        for number, child in children.items()
    }


def node(
    data: FederatedData,
    sites: Iterable[str],
    folder: Path,
    *,
    classes: Mapping[str, type] = CLASSES,
    problems: Any = problem_of,
) -> Node:
    """Return a node with some of the sites of data in memory."""

    def source(name: str) -> Source:
        rows = data.site(name)
        kind = "text" if data.classes else "measured"
        labels = {"kind": kind, "names": list(data.classes)}
        if data.outcome == "multilabel":
            labels = labels_seen(rows.y, data.classes)
        covariates = {
            one.name: {"kind": "text" if one.levels else "measured", "names": list(one.levels)}
            for one in rows.covariates
        }
        said = {"features": list(rows.candidates), "labels": labels, "covariates": covariates}
        return Source(
            lambda _wanted: said,
            lambda _agreed: rows,
            folder / name,
        )

    return Node({name: source(name) for name in sites}, problems, classes)


def nodes_of(
    data: FederatedData, folder: Path, *, per_node: int = 1, **knobs: Any
) -> dict[int, Node]:
    """Return nodes with the sites of data, under numbers that say nothing of their order."""
    groups = [data.sites[i : i + per_node] for i in range(0, data.n_sites, per_node)]
    return {
        97 * (len(groups) - i): node(data, group, folder, **knobs) for i, group in enumerate(groups)
    }


QUICK = Policy(deadline=5.0, patience=20.0, poll=0.0)


def connected(
    data: FederatedData, grid: Any, *, policy: Policy = QUICK, run: str = "test", **knobs: Any
) -> RemoteData:
    """Return the roster of the grid's sites."""
    wanted = {"target": data.target, "outcome": data.outcome}
    return connect(grid, run, wanted, sites=sorted(data.sites), policy=policy, **knobs)
