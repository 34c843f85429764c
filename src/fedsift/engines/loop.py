"""The reference engine: one site at a time, every message through its bytes. Readable and slow."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift import channels, messages, trees
from fedsift.algorithms.base import Info, Total, Upload
from fedsift.channels import Broadcast
from fedsift.engines.base import (
    Carried,
    Engine,
    Job,
    Report,
    exchange_key,
    population_of,
    region_message,
    work,
)
from fedsift.engines.envelopes import Envelope, Inbox, schema_of
from fedsift.trees import Tree

log = logging.getLogger(__name__)


class _Reply(NamedTuple):
    """A site's answer as the server reads it; ``whole`` is False when a message was refused."""

    upload: Upload
    whole: bool
    size: int
    info: Info


class Loop(Engine):
    """Calls the algorithm's functions in Python loops over seeds and sites.

    It keeps what each site holds, sends real messages both ways, decodes them and counts each once,
    so it is the oracle for the batched engines and their byte counts. An exception names seed, site
    and round.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], Tree] = {}
        self.start: Tree | None = None

    def exchange(
        self, job: Job, carried: Carried, round_number: int, exchange: str, participants: Tensor
    ) -> tuple[Carried, Report]:
        """Run one exchange; see `Engine`."""
        if self.start is None:
            self.start = carried.broadcast.replica
        servers, broadcasts, infos = [], [], []
        ledger, seen = carried.ledger.clone(), carried.seen.clone()
        up, down, between = (torch.zeros(len(job.seeds), dtype=torch.int64) for _ in range(3))
        rejected: list[tuple[int, int]] = []
        for s in range(len(job.seeds)):
            server = trees.unstack(carried.server, s)
            if not participants[s].any():
                servers.append(server)
                broadcasts.append(trees.unstack(carried.broadcast, s))
                continue
            broadcast = channels.advance(
                job.channel,
                job.problem,
                trees.unstack(carried.broadcast, s),
                job.algorithm.download(job.problem, server, exchange),
                torch.tensor(carried.tick),
            )
            inbox = _inbox(job, carried.tick, exchange, s, participants, broadcast)
            uploads: list[Upload] = []
            counted: list[bool] = []
            senders: list[int] = []
            site_infos = []
            for c in participants[s].nonzero().squeeze(1).tolist():
                down[s] += self._serve(s, c, broadcast, carried.seen[s, c])
                seen[s, c] = carried.tick
                reply = self._ask(job, carried, s, c, round_number, exchange)
                up[s] += reply.size
                site_infos.append(reply.info)
                if not reply.whole:
                    rejected.append((s, c))
                name, last = job.data.sites[c], int(ledger[s, c])
                envelope = Envelope(inbox.run, carried.tick, exchange, name, inbox.schema, last)
                for arrives in _arrivals(job, carried.tick, s, c):
                    uploads.append(reply.upload)
                    senders.append(c)
                    counted.append(arrives and reply.whole and inbox.take(envelope))
                    if counted[-1]:
                        ledger[s, c] = carried.tick
            server, info, size = self._combine(job, server, uploads, counted, senders, s, exchange)
            between[s] += size
            servers.append(server)
            broadcasts.append(broadcast)
            infos.append({**_mean(site_infos), **info})
        refused = torch.tensor(rejected).reshape(-1, 2)
        info = trees.stack(infos) if len(infos) == len(servers) else {}
        report = Report(info, up, down, refused, between)
        after = Carried(
            trees.stack(servers),
            trees.stack(broadcasts),
            carried.store,
            ledger,
            seen,
            carried.tick + 1,
        )
        return after, report

    def _serve(self, s: int, c: int, broadcast: Broadcast, seen: Tensor) -> int:
        """Bring a site up to date by a message, and return its length."""
        held = self.held.get((s, c)) or trees.unstack(self.start, s)
        message = channels.download_message(broadcast, seen)
        # No message carries a diverged server; the training loop rolls it back after this round.
        healthy = bool(trees.all_finite(broadcast.replica))
        replica = broadcast.replica
        self.held[s, c] = messages.decode(message, replica, held) if healthy else replica
        return len(message)

    def _ask(
        self, job: Job, carried: Carried, s: int, c: int, round_number: int, exchange: str
    ) -> _Reply:
        """Run a site's part, and read its messages as the server does."""
        seed, site = torch.tensor([s]), torch.tensor([c])
        row = carried.store.rows(site)
        stored = carried.store.load(row, seed, carried.ledger[s, c].reshape(1))
        data_key = exchange_key(job.data_key, exchange, round_number, job.site_keys[c])
        data = job.site(c, data_key, s)
        key = exchange_key(job.run_keys[s], exchange, round_number, job.site_keys[c])
        try:
            done = work(job, exchange, self.held[s, c], trees.unstack(stored, 0), data, key)
        except Exception as error:
            error.add_note(f"site {job.data.sites[c]!r}, round {round_number}, seed {job.seeds[s]}")
            raise
        sent = done.sent
        carried.store.stage(row, seed, trees.stack([done.state]), carried.tick)
        if job.tampering is not None:
            several = trees.stack([sent])
            sent = trees.unstack(job.tampering(carried.tick, seed, site, several), 0)
        received, whole, size = {}, True, 0
        for group, (tree, weight) in sent.items():
            if weight <= 0:
                received[group] = (tree, weight)
                continue
            message = messages.encode(tree)
            size += len(message)
            try:
                received[group] = (messages.decode(message, tree), weight)
            except messages.MessageError as error:
                log.warning("upload of site %r refused: %s", job.data.sites[c], error)
                received[group], whole = (tree, weight), False
        return _Reply(received, whole, size, done.info)

    def _combine(
        self,
        job: Job,
        server: Any,
        uploads: list[Upload],
        counted: list[bool],
        senders: list[int],
        s: int,
        exchange: str,
    ) -> tuple[Any, dict[str, Tensor], int]:
        """Aggregate what was counted and step the server, unless nothing was.

        Return also the bytes between regions and server.
        """
        ok, between = torch.tensor(counted), 0
        totals = {}
        for group in uploads[0]:
            weight = torch.where(ok, torch.stack([u[group][1] for u in uploads]), 0.0)
            clean = [
                u[group][0] if t else trees.zeros_like(u[group][0])
                for u, t in zip(uploads, counted, strict=True)
            ]
            if job.regions is not None and any(counted):
                regions = job.regions[senders]
                clean, weight, size = _sum_up(job, clean, weight, regions)
                between += size
            mean = job.aggregator(trees.stack(clean), weight)
            population = population_of(job.populations, group)[s]
            totals[group] = Total(mean, weight.sum(), population)
        after, info = job.algorithm.server_round(job.problem, server, totals, exchange)
        return (after if any(counted) else server), info, between


def _sum_up(
    job: Job, uploads: list[Tree], weight: Tensor, regions: Tensor
) -> tuple[list[Tree], Tensor, int]:
    """Return the regions' means and weights as the server reads them, and the messages' length."""
    means, weights, size = [], [], 0
    for region in regions[weight > 0].unique().tolist():
        members = (regions == region).nonzero().squeeze(1)
        mean = job.aggregator(trees.stack(uploads[k] for k in members.tolist()), weight[members])
        schema = region_message(mean, weight[members].sum())
        message = messages.encode(schema)
        received = messages.decode(message, schema)
        weights.append(received.pop("weight"))
        means.append(received)
        size += len(message)
    return means, torch.stack(weights), size


def _inbox(
    job: Job, tick: int, exchange: str, s: int, participants: Tensor, broadcast: Broadcast
) -> Inbox:
    names = frozenset(job.data.sites[c] for c in participants[s].nonzero().squeeze(1).tolist())
    schema = schema_of(job.algorithm, job.channel, broadcast.replica)
    return Inbox(int(job.run_keys[s]), tick, exchange, schema, names)


def _arrivals(job: Job, tick: int, s: int, c: int) -> list[bool]:
    """Return an entry for every time the upload arrives; a lost one gets one entry, False."""
    if job.delivery is None:
        return [True]
    times = int(job.delivery(tick, torch.tensor([s]), torch.tensor([c])))
    return [True] * times or [False]


def _mean(infos: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return trees.map_tensors(lambda t: t.mean(0), trees.stack(infos)) if infos else {}
