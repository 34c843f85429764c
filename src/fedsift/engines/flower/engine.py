"""The server's side of an exchange: what goes to the sites, and what of their answers counts."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift import channels, messages, random, trees
from fedsift.aggregation import renumbered
from fedsift.data import RemoteData
from fedsift.data.federated import FORGET
from fedsift.engines.base import Carried, Engine, Job, Report
from fedsift.engines.envelopes import Envelope, Inbox, schema_of
from fedsift.engines.flower.link import GridLink
from fedsift.engines.flower.parts import Definition, Part, PartError, define
from fedsift.engines.flower.work import NEVER, upload_schema, work_facts, zeros
from fedsift.engines.programs import publishing, serving
from fedsift.trees import Tree

WITHOUT = "forget with 'retrain', which does without them"


class Uploads(NamedTuple):
    """A site's uploads as the server read them.

    ``trees``: of each seed that was asked, {group: (tree, weight)}, or None for one that is not
    finite; ``sizes``: their bytes; ``info``: diagnostics of the seeds.
    """

    trees: dict[int, dict[str, tuple[Tree, Tensor]] | None]
    sizes: dict[int, int]
    info: dict[str, list[float]]


@dataclass
class FlowerEngine(Engine):
    """Runs exchanges at sites on real machines.

    What a site keeps is at the site; ``Carried.store`` stays empty.
    """

    link: GridLink
    states: tuple[Carried, ...] = ()
    _work: dict[int, tuple[Definition, dict[str, dict[str, Tree]]]] = field(default_factory=dict)

    def remember(self, *states: Carried) -> None:
        """Know which states the run may be brought back to, for sites to keep theirs."""
        self.states = states

    def exchange(
        self, job: Job, carried: Carried, round_number: int, exchange: str, participants: Tensor
    ) -> tuple[Carried, Report]:
        """Run one exchange; see `Engine`."""
        asks, tick = participants.any(1), carried.tick
        publish = publishing(job, exchange)
        broadcast = publish(carried.server, carried.broadcast, torch.tensor(tick))
        broadcast = trees.where(asks, broadcast, carried.broadcast)
        # No message carries a diverged server; the training loop rolls it back after this round.
        healthy = torch.stack(
            [trees.all_finite(trees.unstack(broadcast.replica, s)) for s in range(len(asks))]
        )
        post = _Exchange(self, job, carried, broadcast, round_number, exchange)
        found = post.collect(participants & healthy.unsqueeze(1))
        return self._serve(post, participants, healthy, found)

    def work(self, job: Job, carried: Carried, exchange: str) -> tuple[Definition, dict[str, Tree]]:
        """Return the definition of a job, and the trees of an upload in this exchange."""
        if id(job) not in self._work:
            self._work[id(job)] = define(work_facts(job)), {}
            self.link.define(self._work[id(job)][0])
        definition, schemas = self._work[id(job)]
        if exchange not in schemas:
            schemas[exchange] = upload_schema(job, exchange, carried)
        return definition, schemas[exchange]

    def _serve(
        self, post: _Exchange, participants: Tensor, healthy: Tensor, found: _Found
    ) -> tuple[Carried, Report]:
        """Step the server by what counts."""
        job, carried, tick = post.job, post.carried, post.carried.tick
        asks = participants.any(1)
        width = int(participants.sum(1).max())
        site = torch.zeros((len(asks), width), dtype=torch.int64)
        asked = torch.zeros_like(site, dtype=torch.bool)
        for s, row in enumerate(participants):
            chosen = row.nonzero().squeeze(1)
            site[s, : len(chosen)], asked[s, : len(chosen)] = chosen, True
        sent, size, taken = _stacked(post, site, asked, found)
        region = None if job.regions is None else renumbered(job.regions[site])
        seen_before = carried.seen.gather(1, site)
        server, info, (from_sites, from_regions, _) = serving(job, post.exchange)(
            carried.server, post.broadcast, sent, {}, size, taken, seen_before,
            job.populations, region,
        )  # fmt: skip
        ledger, seen = carried.ledger.clone(), carried.seen.clone()
        rows = torch.arange(len(asks)).unsqueeze(1).expand_as(site)
        ledger[rows[taken], site[taken]] = tick
        for s, c in found.served:
            seen[s, c] = tick
        for s, c in found.lost:
            ledger[s, c] = torch.where(ledger[s, c] == tick, ledger[s, c], NEVER)
        failed = [(s, c) for s, c in participants.nonzero().tolist() if not healthy[s]]
        report = Report(
            _mean_info(found) | info if asks.all() else {},
            from_sites,
            found.bytes_down,
            torch.tensor(sorted({*failed, *found.rejected})).reshape(-1, 2).long(),
            from_regions,
            found.remarks,
        )
        after = Carried(server, post.broadcast, carried.store, ledger, seen, tick + 1)
        return after, report


class _Found(NamedTuple):
    """What came of an exchange: uploads by site, and pairs (seed, site)."""

    uploads: dict[int, Uploads]
    served: list[tuple[int, int]]
    rejected: list[tuple[int, int]]
    lost: list[tuple[int, int]]
    remarks: dict[str, str]
    bytes_down: Tensor


class _Exchange:
    """One exchange: it asks until enough sites have answered, and reads what they say."""

    def __init__(
        self,
        engine: FlowerEngine,
        job: Job,
        carried: Carried,
        broadcast: channels.Broadcast,
        round_number: int,
        exchange: str,
    ) -> None:
        if not isinstance(job.data, RemoteData):
            msg = "the flower engine works on RemoteData; use another engine for rows that are here"
            raise TypeError(msg)
        self.link, self.job, self.carried, self.data = engine.link, job, carried, job.data
        self.states = engine.states
        self.broadcast, self.round, self.exchange = broadcast, round_number, exchange
        self.work, self.schema = engine.work(job, carried, exchange)
        replica = trees.unstack(broadcast.replica, 0)
        self.number = schema_of(job.algorithm, job.channel, replica)
        self.run = int(random.key("run", self.work.key))
        self.ledger, self.seen = carried.ledger.clone(), carried.seen.clone()

    def collect(self, participants: Tensor) -> _Found:
        """Ask the participants [S, C]."""
        job, names = self.job, self.job.data.sites
        asked = {
            c: participants[:, c].nonzero().squeeze(1).tolist()
            for c in participants.any(0).nonzero().squeeze(1).tolist()
        }
        sites = frozenset(names[c] for c in asked)
        inbox = Inbox(self.run, self.carried.tick, self.exchange, self.number, sites)
        found = _Found({}, [], [], [], {}, torch.zeros(len(job.seeds), dtype=torch.int64))
        needed = self.link.policy.needed(len(asked))
        waiting, began = dict(asked), time.monotonic()
        while waiting:
            parts = {names[c]: self._request(c, seeds, found) for c, seeds in waiting.items()}
            short = max(0, needed - len(found.uploads), self._lacks_forgetting(asked, found))
            answers = self.link.request(self.data, parts, short)
            again = {}
            for name, answer in answers.items():
                c = names.index(name)
                reason = self._read(c, asked[c], answer, inbox, found)
                if reason is None:
                    waiting.pop(c)
                else:
                    found.remarks[name] = reason
                    if self._forget(c, asked[c], answer, found):
                        again[c] = asked[c]
            if self._lacks_forgetting(asked, found):
                self.link.pause(began, found.remarks, "no site with rows to forget", WITHOUT)
            elif len(found.uploads) >= needed:
                waiting = again
            elif not again:
                self.link.pause(began, found.remarks, f"fewer than {needed} sites")
        found.remarks.update(self.link.take_remarks(sites - set(found.remarks)))
        return found

    def _lacks_forgetting(self, asked: Collection[int], found: _Found) -> bool:
        """Return whether sites with rows to forget were asked and none has answered."""
        if self.data.role is None:
            return False
        having = self.data.site_of_row[self.data.role == FORGET].unique().tolist()
        return not {*asked}.isdisjoint(having) and found.uploads.keys().isdisjoint(having)

    def _request(self, c: int, seeds: list[int], found: _Found) -> Part:
        """Return what brings a site up to date and asks for its work."""
        states = (self.carried, *self.states)
        keep = {int(t) for state in states for t in (*state.ledger[:, c], *state.seen[:, c])}
        blobs = []
        for s in seeds:
            message = channels.download_message(trees.unstack(self.broadcast, s), self.seen[s, c])
            found.bytes_down[s] += len(message)
            blobs.append(message)
        facts = {
            "kind": "exchange",
            "life": self.link.life,
            "run": self.run,
            "tick": self.carried.tick,
            "round": self.round,
            "exchange": self.exchange,
            "schema": self.number,
            "work": self.work.key,
            "seeds": seeds,
            "last": self.ledger[seeds, c].tolist(),
            "base": self.seen[seeds, c].tolist(),
            "keep": sorted(keep - {NEVER}),
        }
        return Part(facts, tuple(blobs))

    def _read(
        self, c: int, seeds: list[int], answer: Part | str, inbox: Inbox, found: _Found
    ) -> str | None:
        """Count a site's answer, or return why it does not count."""
        if isinstance(answer, str):
            return answer
        if "lost" in answer.facts:
            return f"it has lost {answer.facts['lost']}"
        if "error" in answer.facts:
            return f"it failed: {answer.facts['error']}"
        try:
            uploads = self._uploads(answer, seeds)
            reason = self._refusal(answer.facts, self.job.data.sites[c], inbox)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"its answer is malformed: {error}"
        if reason is not None:
            return reason
        found.uploads[c] = uploads
        found.served.extend((s, c) for s in seeds)
        found.rejected.extend((s, c) for s, tree in uploads.trees.items() if tree is None)
        return None

    def _refusal(self, facts: dict[str, Any], site: str, inbox: Inbox) -> str | None:
        """Return why an answer may not count; if it may, it cannot count again."""
        names = ("run", "tick", "exchange", "site", "schema")
        envelope = Envelope(**{name: facts[name] for name in names})
        if facts["life"] != self.link.life:
            return "it answers an earlier server"
        if envelope.site != site:
            return f"it answers for site {envelope.site!r}"
        reason = inbox.refusal(envelope)
        inbox.take(envelope)
        return reason

    def _uploads(self, answer: Part, seeds: list[int]) -> Uploads:
        facts, groups = answer.facts, list(self.schema)
        if facts["seeds"] != seeds or facts["groups"] != groups:
            raise PartError("it answers for other seeds or groups")
        if len(answer.blobs) != len(seeds) * len(groups):
            raise PartError(f"{len(answer.blobs)} messages for {len(seeds)} seeds")
        weights = {g: torch.tensor(facts["weights"][g], dtype=torch.float32) for g in groups}
        if any(w.shape != (len(seeds),) or not (w >= 0).all() for w in weights.values()):
            raise PartError("its weights are not one number a seed, 0 or more")
        found: dict[int, dict[str, tuple[Tree, Tensor]] | None] = {}
        sizes: dict[int, int] = {}
        for place, s in enumerate(seeds):
            blobs = answer.blobs[place * len(groups) : (place + 1) * len(groups)]
            sizes[s] = sum(map(len, blobs))
            try:
                found[s] = {
                    g: (self._tree(g, blob, weights[g][place]), weights[g][place])
                    for g, blob in zip(groups, blobs, strict=True)
                }
            except messages.MessageError as error:
                if "non-finite" not in str(error):
                    raise
                found[s] = None
        return Uploads(found, sizes, dict(facts["info"]))

    def _tree(self, group: str, blob: bytes, weight: Tensor) -> Tree:
        """Return what a site says of a group; nothing, where it has no row of it."""
        if weight == 0 and not blob:
            nothing: Tree = trees.zeros_like(self.schema[group])
            return nothing
        return messages.decode(blob, self.schema[group])

    def _forget(self, c: int, seeds: list[int], answer: Part | str, found: _Found) -> bool:
        """Begin anew with a site that lost its state; tell whether it is to be asked again."""
        if isinstance(answer, str) or "lost" not in answer.facts:
            return False
        if bool((self.ledger[seeds, c] == NEVER).all() and (self.seen[seeds, c] == NEVER).all()):
            return False
        self.ledger[seeds, c] = self.seen[seeds, c] = NEVER
        found.lost.extend((s, c) for s in seeds)
        return True


def _stacked(
    post: _Exchange, site: Tensor, asked: Tensor, found: _Found
) -> tuple[Any, Tensor, Tensor]:
    """Return the uploads [S, K, ...] with zeros where there is none, bytes, and which count."""
    sent = zeros(post.schema, *site.shape)
    size = torch.zeros_like(site)
    taken = torch.zeros_like(asked)
    for s, k in asked.nonzero().tolist():
        uploads = found.uploads.get(int(site[s, k]))
        if uploads is None or s not in uploads.trees:
            continue
        size[s, k] = uploads.sizes[s]
        upload = uploads.trees[s]
        if upload is None:
            continue
        taken[s, k] = True
        for group, (tree, weight) in upload.items():
            stacked, weights = sent[group]
            weights[s, k] = weight
            for name, value in tree.items():
                stacked[name][s, k] = value
    return sent, size, taken


def _mean_info(found: _Found) -> dict[str, Tensor]:
    """Return the diagnostics' means over sites [S], where every site speaks of every seed."""
    infos = [u.info for u in found.uploads.values()]
    if not infos or any(info.keys() != infos[0].keys() for info in infos):
        return {}
    lengths = {len(values) for info in infos for values in info.values()}
    if len(lengths) != 1:
        return {}
    return {
        name: torch.tensor([info[name] for info in infos]).mean(0)
        for name in infos[0]
        if not math.isnan(infos[0][name][0])
    }
