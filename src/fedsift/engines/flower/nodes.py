"""The nodes of a Flower grid: who is at which, and messages there and back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsift.engines.flower.parts import Part, PartError, Parts

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger(__name__)

KIND = "query"  # Flower's type of our messages; what they ask is said in their parts
HELLO = ""  # the parts that are for a node, and not for one of its sites


class Sent(NamedTuple):
    """A message that is under way."""

    node: int
    sites: frozenset[str]


@dataclass
class Tally:
    """Messages and their bytes, as they were given to Flower and taken from it.

    ``down``, ``up``: bytes of pieces by the kind of question; ``packed_down``, ``packed_up``: of
    whole messages, with the facts that go beside.
    """

    messages: int = 0
    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    packed_down: int = 0
    packed_up: int = 0

    def count(self, way: dict[str, int], parts: Parts) -> None:
        """Count the pieces of a message."""
        for several in parts.values():
            for part in several:
                kind = str(part.facts.get("kind"))
                way[kind] = way.get(kind, 0) + part.size


@dataclass
class Nodes:
    """Sends parts to the nodes where sites are, and collects what they answer.

    Node ids are drawn anew when a node starts, so each is asked once which sites it has.

    Attributes:
        grid: Flower's.
        greeting: what a new node is asked.
        head: what every other message tells a node.
        admit: (site, what it says) → why it may not take part, or None.
        look: seconds between two looks for new nodes.
    """

    grid: Grid
    greeting: Part
    admit: Callable[[str, Part], str | None]
    look: float = 2.0
    head: Part | None = None
    node_of: dict[str, int] = field(default_factory=dict)
    told: dict[int, set[str]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    remarks: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    _greeted: dict[str, int] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    _alive: set[int] = field(default_factory=set)
    _looked: float = -1e9

    def find(self) -> None:
        """Greet nodes that are new, and note who answered."""
        if time.monotonic() - self._looked < self.look:
            return
        self._looked = time.monotonic()
        self._alive = set(self.grid.get_node_ids())
        for node in sorted(self._alive - self._known):
            self._known.add(node)
            self._greeted[self._push(node, {HELLO: [self.greeting]})] = node
        for number, answer in self.pull(list(self._greeted)):
            if number not in self._greeted:
                continue
            node = self._greeted.pop(number)
            if isinstance(answer, str):
                self.refused[f"node {node}"] = answer
                self._known.discard(node)  # it may be of use later
                continue
            for site, parts in answer.items():
                self._enter(node, site, parts)

    def _enter(self, node: int, site: str, parts: Sequence[Part]) -> None:
        if not parts:
            return
        said = parts[0]
        older = self.node_of.get(site)
        if older in self._alive and older != node:
            self.remarks[site] = "a second node has a site of this name; the newer one is asked"
        reason = said.facts.get("error") or self.admit(site, said)
        if reason is not None:
            self.refused[site] = str(reason)
            return
        self.refused.pop(site, None)
        self.node_of[site] = node

    def push(self, node: int, parts: Parts) -> str:
        """Send the parts of sites to their node; return the number of the message."""
        return self._push(node, parts if self.head is None else {HELLO: [self.head], **parts})

    def _push(self, node: int, parts: Parts) -> str:
        from flwr.app import Message

        from fedsift.engines.flower.wire import pack

        content = pack(parts)
        self.tally.messages += 1
        self.tally.count(self.tally.down, parts)
        self.tally.packed_down += _size(content)
        message = Message(content, dst_node_id=node, message_type=KIND)
        return str(next(iter(self.grid.push_messages([message]))))

    def pull(self, numbers: Sequence[str]) -> Iterator[tuple[str, dict[str, list[Part]] | str]]:
        """Yield (number, parts or why there are none) of the messages that were answered."""
        from fedsift.engines.flower.wire import unpack

        if not numbers:
            return
        for message in self.grid.pull_messages(numbers):
            number = message.metadata.reply_to_message_id
            if message.has_error():
                yield number, f"its node failed: {_first_line(message.error.reason)}"
                continue
            try:
                parts = unpack(message.content)
            except PartError as error:
                yield number, f"its answer is malformed: {error}"
                continue
            self.tally.count(self.tally.up, parts)
            self.tally.packed_up += _size(message.content)
            yield number, parts


def _size(content: Any) -> int:
    """Return the bytes of a message's records."""
    head, data = content["fedsift"], content["data"]
    return len(head["parts"]) + len(data["bytes"].data)


def _first_line(text: str | None) -> str:
    return (text or "no reason given").strip().split("\n", 1)[0]


def by_node(node_of: Mapping[str, int], sites: Sequence[str]) -> dict[int, list[str]]:
    """Return the sites of each node, of those that are at one."""
    found: dict[int, list[str]] = {}
    for site in sites:
        if site in node_of:
            found.setdefault(node_of[site], []).append(site)
    return found
