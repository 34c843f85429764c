"""The way from the server to its sites: who must answer, how long it waits, what it asks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedsift import messages, trees
from fedsift.data import DataError, RemoteData
from fedsift.data.remote import OwnThere, Step
from fedsift.engines.flower.nodes import Nodes, Sent, by_node
from fedsift.engines.flower.parts import (
    Definition,
    Part,
    PartError,
    define,
    tensors_of,
    with_tensors,
)
from fedsift.engines.flower.together import Rendezvous
from fedsift.engines.flower.work import work_facts

if TYPE_CHECKING:
    from fedsift.engines.flower.engine import FlowerEngine

LOWER = "lower the quorum"

Item = TypeVar("Item")
Result = TypeVar("Result")


class SitesError(RuntimeError):
    """Too few sites answer; the text names them and the next action."""


@dataclass(frozen=True)
class Policy:
    """What a run does about sites that do not answer.

    Attributes:
        quorum: sites that must answer for a round to go on, a number or a fraction of those asked.
        deadline: seconds after which a round goes on without the others.
        patience: seconds after which a run with too few sites ends; it can be resumed.
        poll: seconds between two looks for answers.
    """

    quorum: float = 1.0
    deadline: float = 60.0
    patience: float = 600.0
    poll: float = 0.2

    def needed(self, asked: int) -> int:
        """Return how many of the sites that were asked must answer."""
        if isinstance(self.quorum, int):
            return min(self.quorum, asked)
        return max(1, math.ceil(self.quorum * asked - 1e-9))


class Question(NamedTuple):
    """What sites are asked at a time, and how many of them must answer."""

    parts: dict[str, Part]
    needed: int
    definitions: dict[str, Definition]


@dataclass
class GridLink:
    """See `data.remote.Link`.

    Attributes:
        nodes: the grid.
        policy: whom to wait for.
        life: grows with every start of the server, so that answers to an earlier one are known.
        definitions: what was described to sites, by key.
    """

    nodes: Nodes
    policy: Policy = field(default_factory=Policy)
    life: int = field(default_factory=time.time_ns)
    definitions: dict[str, Definition] = field(default_factory=dict)
    _told: dict[str, set[str]] = field(default_factory=dict)
    _late: dict[str, Sent] = field(default_factory=dict)
    _answered: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The name by which sites know the run."""
        assert self.nodes.head is not None  # noqa: S101  sites have been greeted
        return str(self.nodes.head.facts["run"])

    def __post_init__(self) -> None:
        self.rendezvous: Rendezvous[Question, dict[str, Part | str]] = Rendezvous(self._send)

    def together(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Sequence[Result]:
        """Return the function of each item; questions asked at the same time share messages."""
        return self.rendezvous.together(function, items)

    def engine(self) -> FlowerEngine:
        """Return the engine for one training."""
        from fedsift.engines.flower.engine import FlowerEngine

        return FlowerEngine(self)

    def ask(
        self,
        kind: str,
        data: RemoteData,
        facts: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
    ) -> dict[str, dict[str, Tensor]]:
        """Return what every site of the data answers; the same question is asked once.

        Raises:
            SitesError: a site cannot, or is not there in time.
            DataError: a site was asked of rows that it does not have.
        """
        question = with_tensors({"kind": kind, **facts}, tensors)
        where = {site: self._keys(data, site) for site in data.sites}
        name = define({"question": question.facts, "where": where}, tensors).key
        if name not in self._answered:
            self._answered[name] = self._all(data, dict.fromkeys(data.sites, question))
        answers: dict[str, dict[str, Tensor]] = self._answered[name]
        return answers

    def evaluate(
        self,
        problem: Any,
        params: dict[str, Tensor],
        data: RemoteData,
        sites: Sequence[int] | None,
        own: OwnThere | None,
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return {measure: (sum, weight)}, [S] each, over the rows of the sites that answer.

        A seed whose parameters are not finite is not sent, and gets NaN.
        """
        there = {} if own is None else own.of_site
        finite = torch.stack(
            [trees.all_finite(trees.unstack(params, s)) for s in range(_lanes(params))]
        )
        sent = trees.where(finite, params, trees.zeros_like(params))
        blobs = tuple(messages.encode(trees.unstack(sent, s)) for s in range(len(finite)))
        names = data.sites if sites is None else [data.sites[c] for c in sites]
        facts = {"kind": "evaluate", "problem": problem.told()}
        parts = {name: Part({**facts, "own": there.get(name)}, blobs) for name in names}
        answers = self._enough(data, parts)
        sums: dict[str, Tensor] = {}
        for name in names:
            for measure, pair in answers.get(name, {}).items():
                sums[measure] = sums.get(measure, torch.zeros(())) + pair
        for pair in sums.values():
            pair[0][~finite] = torch.nan
        return {measure: (pair[0], pair[1]) for measure, pair in sums.items()}

    def own(self, job: Any, ledger: Tensor) -> OwnThere:
        """Return where sites find their own values after the exchanges of a ledger [S, C]."""
        work, seeds = define(work_facts(job)).key, list(range(len(ledger)))
        told = {
            site: {
                "work": work,
                "data": self._keys(job.data, site),
                "seeds": seeds,
                "last": ledger[:, c].tolist(),
            }
            for c, site in enumerate(job.data.sites)
        }
        return OwnThere(told)

    def keep(self, data: RemoteData, own: OwnThere) -> tuple[str, ...]:
        """Let sites keep their own values in a file, of one seed; return those that have not."""
        parts = {site: Part({"kind": "keep", "own": own.of_site[site]}) for site in data.sites}
        answers = self.request(data, parts, 0)
        return tuple(
            site
            for site, answer in answers.items()
            if isinstance(answer, str) or not answer.facts.get("kept")
        )

    def request(
        self, data: RemoteData, parts: Mapping[str, Part], needed: int
    ) -> dict[str, Part | str]:
        """Return each site's answer, or why there is none.

        It returns when all have answered, or at the deadline when ``needed`` have.
        """
        whole, definitions = {}, {}
        for site, part in parts.items():
            keys = []
            for definition in self._described(data, site):
                definitions[definition.key] = definition
                keys.append(definition.key)
            whole[site] = Part({**part.facts, "data": keys}, part.blobs)
        return self.rendezvous.ask(Question(whole, needed, definitions))

    def define(self, definition: Definition) -> None:
        """Tell sites of this, when a question names its key."""
        self.definitions[definition.key] = definition

    def end(self, data: RemoteData) -> None:
        """Ask the sites, once, to remove what they kept of the run."""
        self.request(data, dict.fromkeys(data.sites, Part({"kind": "end"})), 0)

    def pause(
        self, began: float, remarks: Mapping[str, str], few: str, instead: str = LOWER
    ) -> None:
        """Wait a little for sites to come back; ``few`` of them answered.

        Raises:
            SitesError: patience is at its end.
        """
        waited = time.monotonic() - began
        if waited > self.policy.patience:
            who = "; ".join(f"{site!r}: {why}" for site, why in sorted(remarks.items()))
            msg = (
                f"{few} answered within {waited:.0f} s ({who}); see to them, then go on with the "
                f"run, or {instead}"
            )
            raise SitesError(msg)
        time.sleep(max(self.policy.poll, min(2.0, 0.1 * waited)))

    def take_remarks(self, sites: frozenset[str]) -> dict[str, str]:
        """Return what was noticed of these sites since, and forget it."""
        return {s: self.nodes.remarks.pop(s) for s in sites if s in self.nodes.remarks}

    def _described(self, data: RemoteData, site: str) -> list[Definition]:
        return [_definition(step, site) for step in data.steps]

    def _keys(self, data: RemoteData, site: str) -> list[str]:
        return [definition.key for definition in self._described(data, site)]

    def _all(self, data: RemoteData, parts: dict[str, Part]) -> dict[str, dict[str, Tensor]]:
        """Return every site's tensors."""
        return self._gather(data, parts, len(parts))

    def _enough(self, data: RemoteData, parts: dict[str, Part]) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of as many sites as must answer, or more."""
        return self._gather(data, parts, self.policy.needed(len(parts)))

    def _gather(
        self, data: RemoteData, parts: dict[str, Part], needed: int
    ) -> dict[str, dict[str, Tensor]]:
        found: dict[str, dict[str, Tensor]] = {}
        remarks: dict[str, str] = {}
        began = time.monotonic()
        while True:
            left = {site: part for site, part in parts.items() if site not in found}
            answers = self.request(data, left, max(0, needed - len(found)))
            for site, answer in answers.items():
                try:
                    found[site] = _finite(_said(answer))
                    remarks.pop(site, None)
                except PartError as error:
                    remarks[site] = str(error)
            if len(found) >= needed:
                return found
            self.pause(began, remarks, f"fewer than {needed} sites")

    # --- messages

    def _send(self, questions: list[Question]) -> list[dict[str, Part | str]]:
        """Send questions, one message a node, and return the answers to each."""
        for question in questions:
            self.definitions.update(question.definitions)
        sites = sorted({site for question in questions for site in question.parts})
        answers: dict[str, list[Part] | str] = {}
        pending, under_way, done = set(sites), dict[str, Sent](), dict[str, Sent]()
        began = time.monotonic()
        while pending:
            self.nodes.find()
            self._push(questions, pending, under_way)
            for number, answer in self.nodes.pull([*under_way, *self._late]):
                if number in self._late:
                    late = dict.fromkeys(self._late.pop(number).sites, "an answer came too late")
                    self.nodes.remarks.update(late)
                    continue
                if number in under_way:
                    done[number] = under_way.pop(number)
                    self._take(questions, done[number], answer, answers, pending)
                elif number in done:
                    again = dict.fromkeys(done[number].sites, "it answered twice; counted once")
                    self.nodes.remarks.update(again)
            if not pending or self._enough_by(questions, answers, began):
                break
            time.sleep(self.policy.poll)
        self._late.update(under_way)
        for site in pending:
            answers.setdefault(site, self._silence(site))
        return [
            {site: _place(answers[site], questions, k, site) for site in question.parts}
            for k, question in enumerate(questions)
        ]

    def _enough_by(
        self, questions: list[Question], answers: Mapping[str, list[Part] | str], began: float
    ) -> bool:
        """Return whether the deadline is over and every question has answers enough."""
        waited = time.monotonic() - began
        if waited > self.policy.patience:
            return True
        if waited < self.policy.deadline:
            return False
        good = {site for site, answer in answers.items() if not isinstance(answer, str)}
        return all(len(good & set(q.parts)) >= q.needed for q in questions)

    def _silence(self, site: str) -> str:
        if site in self.nodes.refused:
            return self.nodes.refused[site]
        if site not in self.nodes.node_of:
            return "it is at no node"
        return f"no answer within {self.policy.deadline:g} s"

    def _push(
        self, questions: list[Question], pending: set[str], under_way: dict[str, Sent]
    ) -> None:
        """Send what is pending to nodes that were not asked yet."""
        asked = {(sent.node, site) for sent in under_way.values() for site in sent.sites}
        for node, sites in by_node(self.nodes.node_of, sorted(pending)).items():
            new = [site for site in sites if (node, site) not in asked]
            if new:
                parts = {site: self._parts(questions, node, site) for site in new}
                under_way[self.nodes.push(node, parts)] = Sent(node, frozenset(new))

    def _parts(self, questions: list[Question], node: int, site: str) -> list[Part]:
        """Return a site's parts of all questions, after what it was not told yet."""
        asked = [q.parts[site] for q in questions if site in q.parts]
        told = self._told.setdefault(f"{node} {site}", set())
        new = []
        for part in asked:
            keys = [*part.facts["data"], *([part.facts["work"]] if "work" in part.facts else [])]
            for key in keys:
                if key not in told:
                    told.add(key)
                    content = self.definitions[key].content
                    new.append(Part({"kind": "define", "key": key}, (content,)))
        return [*new, *asked]

    def _take(
        self,
        questions: list[Question],
        sent: Sent,
        answer: dict[str, list[Part]] | str,
        answers: dict[str, list[Part] | str],
        pending: set[str],
    ) -> None:
        """Sort a node's answer by sites; one that lost what it was told is told and asked again."""
        for site in sent.sites:
            if site not in pending:
                self.nodes.remarks[site] = "two of its nodes answered; the first counted"
                continue
            parts = answer if isinstance(answer, str) else answer.get(site)
            count = sum(site in question.parts for question in questions)
            if not isinstance(parts, str):
                parts = [p for p in parts or [] if p.facts.get("kind") != "define"]
                if any("definition" in str(p.facts.get("lost")) for p in parts):
                    self._told.pop(f"{sent.node} {site}", None)
                    continue
                if len(parts) != count:
                    parts = f"its answer is malformed: {len(parts)} parts for {count} questions"
            answers[site] = parts
            pending.discard(site)


def _place(answer: list[Part] | str, questions: list[Question], k: int, site: str) -> Part | str:
    """Return a site's answer to question ``k``."""
    if isinstance(answer, str):
        return answer
    return answer[sum(site in question.parts for question in questions[:k])]


def _definition(step: Step, site: str) -> Definition:
    facts = dict(step.facts)
    if "by_site" in facts:
        facts["by_site"] = {site: facts["by_site"][site]}
    return define({"kind": step.kind, "facts": facts}, step.tensors)


def _said(answer: Part | str) -> dict[str, Tensor]:
    """Return the tensors of an answer.

    Raises:
        PartError: there are none; they may come when the site is asked again.
        DataError: the question was wrong.
    """
    if isinstance(answer, str):
        raise PartError(answer)
    if "refused" in answer.facts:
        raise DataError(str(answer.facts["refused"]))
    for word in ("error", "lost"):
        if word in answer.facts:
            raise PartError(str(answer.facts[word]))
    return tensors_of(answer)


def _finite(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    if not all(bool(torch.isfinite(t.double()).all()) for t in tensors.values()):
        msg = "its answer is malformed: a number is not finite"
        raise PartError(msg)
    return tensors


def _lanes(params: dict[str, Tensor]) -> int:
    return len(next(iter(params.values())))
