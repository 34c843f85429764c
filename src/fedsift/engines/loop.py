"""The reference engine: one site at a time, every message through its bytes. Readable and slow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsift import channels, messages, trees
from fedsift.algorithms.base import Total, Upload
from fedsift.engines.base import Carried, Job, Report, send
from fedsift.sites import SiteData
from fedsift.trees import Tree


class Loop:
    """Calls the algorithm's functions in Python loops over seeds and sites.

    It keeps what each site holds, sends real messages both ways and decodes them, so it is the
    oracle for the batched engines and their byte counts. An exception names seed, site and round.
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
        up, down = torch.zeros(len(job.seeds), dtype=torch.int64), torch.zeros(len(job.seeds), dtype=torch.int64)
        rejected: list[tuple[int, int]] = []
        for s in range(len(job.seeds)):
            server = trees.unstack(carried.server, s)
            shared = job.algorithm.download(job.problem, server, exchange)
            old = trees.unstack(carried.broadcast, s)
            broadcast = channels.advance(job.channel, job.problem, old, shared, torch.tensor(carried.tick))
            uploads: list[Upload] = []
            taken: list[bool] = []
            site_infos = []
            for c in participants[s].nonzero().squeeze(1).tolist():
                down[s] += self._serve(s, c, broadcast, carried.seen[s, c])
                seen[s, c] = carried.tick
                upload, size, info = self._ask(job, carried, s, c, round_number, exchange)
                up[s] += size
                finite = bool(trees.all_finite({g: tree for g, (tree, _) in upload.items()}))
                if not finite:
                    rejected.append((s, c))
                lane = (torch.tensor([s]), torch.tensor([c]))
                arrives = job.delivery is None or bool(job.delivery(carried.tick, *lane))
                if finite and arrives:
                    ledger[s, c] = carried.tick
                uploads.append(upload)
                taken.append(finite and arrives)
                site_infos.append(info)
            server, info = self._combine(job, server, uploads, taken, s, exchange)
            servers.append(server)
            broadcasts.append(broadcast)
            infos.append({**_mean(site_infos), **info})
        report = Report(trees.stack(infos), up, down, torch.tensor(rejected).reshape(-1, 2))
        after = Carried(
            trees.stack(servers), trees.stack(broadcasts), carried.store, ledger, seen, carried.tick + 1
        )
        return after, report

    def _serve(self, s: int, c: int, broadcast: channels.Broadcast, seen: Tensor) -> int:
        """Bring a site up to date by a message, and return its length."""
        held = self.held.get((s, c)) or trees.unstack(self.start, s)
        message = channels.download_message(broadcast, seen)
        self.held[s, c] = messages.decode(message, broadcast.replica, held)
        return len(message)

    def _ask(
        self, job: Job, carried: Carried, s: int, c: int, round_number: int, exchange: str
    ) -> tuple[Upload, int, dict[str, Tensor]]:
        """Run a site's part and return its decoded upload, the bytes and its diagnostics."""
        seed, site = torch.tensor([s]), torch.tensor([c])
        row = carried.store.rows(site)
        stored = carried.store.load(row, seed, carried.ledger[s, c].reshape(1))
        client, residual = trees.unstack(stored, 0)
        rows = slice(job.data.offsets[c], job.data.offsets[c + 1])
        data = SiteData(
            job.data.x[rows],
            job.data.y[rows],
            job.data.weight[rows],
            job.shares[c],
            job.batch_keys(round_number, exchange, site)[0],
        )
        key = job.lane_keys(round_number, exchange, seed, site)[0]
        try:
            upload, client, info = job.algorithm.client_round(
                job.problem, self.held[s, c], client, data, key, exchange
            )
        except Exception as error:
            error.add_note(f"site {job.data.sites[c]!r}, round {round_number}, seed {job.seeds[s]}")
            raise
        sent, residual, _ = send(job, exchange, upload, residual)
        carried.store.stage(row, seed, stored, trees.stack([(client, residual)]), carried.tick)
        received, size = {}, 0
        for group, (tree, weight) in sent.items():
            message = messages.encode(tree)
            size += len(message)
            whole = bool(trees.all_finite(tree))
            received[group] = (messages.decode(message, tree) if whole else tree, weight)
        return received, size, info

    def _combine(
        self, job: Job, server: Any, uploads: list[Upload], taken: list[bool], s: int, exchange: str
    ) -> tuple[Any, dict[str, Tensor]]:
        """Aggregate what was taken and step the server, unless nothing was."""
        population = (job.eligible_sites()[s] * job.shares).sum()
        ok = torch.tensor(taken)
        totals = {}
        for group in uploads[0]:
            weight = torch.where(ok, torch.stack([u[group][1] for u in uploads]), 0.0)
            clean = [
                u[group][0] if t else trees.zeros_like(u[group][0])
                for u, t in zip(uploads, taken, strict=True)
            ]
            totals[group] = Total(job.aggregator(trees.stack(clean), weight), weight.sum(), population)
        after, info = job.algorithm.server_round(job.problem, server, totals, exchange)
        return (after if any(taken) else server), info


def _mean(infos: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return trees.map_tensors(lambda t: t.mean(0), trees.stack(infos)) if infos else {}
