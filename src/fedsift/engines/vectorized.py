"""The default engine: sites and seeds are lanes of one batched computation.

Lanes form a grid, distinct sites by the seeds that chose them. A site's rows are shared along its
row of the grid, so that products become matrix-matrix; unused places repeat a lane and are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import channels, trees
from fedsift.algorithms.base import Total
from fedsift.channels import Broadcast
from fedsift.engines.base import Carried, Job, Report, send
from fedsift.sites import SiteData

PADDING = 1.2  # rows of a chunk, padding included, over real rows


class Grid(NamedTuple):
    """Sites [U], the seeds at each [U, Q], and the lanes that are real.

    ``lane`` [L]: positions in the flattened grid, ordered by seed then site, K to a seed; ``seed``
    and ``site`` [L] say whose they are.
    """

    sites: Tensor
    seeds: Tensor
    lane: Tensor
    seed: Tensor
    site: Tensor


def lay_out(participants: Tensor, order: Tensor) -> Grid:
    """Return the grid for participants [S, C], sites in the given order (by size)."""
    position, seed = participants[:, order].T.nonzero(as_tuple=True)
    rows, row, counts = torch.unique_consecutive(position, return_inverse=True, return_counts=True)
    starts = counts.cumsum(0) - counts
    column = torch.arange(len(seed)) - starts[row]
    width = int(counts.max())
    seeds = seed[starts].unsqueeze(1).repeat(1, width)
    seeds[row, column] = seed
    site = order[position]
    by_seed = torch.argsort(seed * participants.shape[1] + site)
    lane = row * width + column
    return Grid(order[rows], seeds, lane[by_seed], seed[by_seed], site[by_seed])


@dataclass
class Vectorized:
    """Batches `client_round` over lanes with `torch.func.vmap`.

    Attributes:
        memory: bytes that the rows and states of one chunk of sites may take.
    """

    memory: float = 1e9
    _blocks: dict[tuple[int, ...], tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def exchange(
        self, job: Job, carried: Carried, round_number: int, exchange: str, participants: Tensor
    ) -> tuple[Carried, Report]:
        """Run one exchange; see `Engine`."""
        algorithm, problem = job.algorithm, job.problem
        grid = lay_out(participants, torch.tensor(job.data.sizes).argsort(stable=True))
        tick = torch.tensor(carried.tick)
        shared = vmap(lambda s: algorithm.download(problem, s, exchange))(carried.server)
        broadcast = vmap(lambda b, s: channels.advance(job.channel, problem, b, s, tick))(
            carried.broadcast, shared
        )
        rows = carried.store.rows(grid.site)
        before = carried.store.load(rows, grid.seed, carried.ledger[grid.seed, grid.site])

        uploads, after, info = self._clients(job, grid, broadcast, before[0], round_number, exchange)
        sent, residual, size_up = vmap(lambda u, r: send(job, exchange, u, r))(uploads, before[1])
        carried.store.stage(rows, grid.seed, before, (after, residual), carried.tick)

        finite = vmap(trees.all_finite)({group: tree for group, (tree, _) in sent.items()})
        taken = finite if job.delivery is None else finite & job.delivery(carried.tick, grid.seed, grid.site)
        server, server_info = self._server(job, carried.server, sent, taken, grid, exchange)

        seen = carried.seen[grid.seed, grid.site]
        size_down = vmap(channels.download_size)(_take(broadcast, grid.seed), seen)
        ledger, served = carried.ledger.clone(), carried.seen.clone()
        ledger[grid.seed[taken], grid.site[taken]] = carried.tick
        served[grid.seed, grid.site] = carried.tick
        by_seed = lambda x: x.reshape(len(job.seeds), -1)  # noqa: E731
        report = Report(
            {k: by_seed(v).mean(1) for k, v in info.items()} | server_info,
            by_seed(size_up).sum(1),
            by_seed(size_down).sum(1),
            torch.stack([grid.seed[~finite], grid.site[~finite]], 1),
        )
        return Carried(server, broadcast, carried.store, ledger, served, carried.tick + 1), report

    def _clients(
        self, job: Job, grid: Grid, broadcast: Broadcast, before: Any, round_number: int, exchange: str
    ) -> tuple[Any, Any, Any]:
        """Run `client_round` on every lane; return stacked uploads, states and infos [L, ...]."""
        width = grid.seeds.shape[1]
        real = torch.zeros(grid.seeds.numel(), dtype=torch.int64)
        real[grid.lane] = torch.arange(len(grid.lane))
        parts = []
        for chunk in self._chunks(job, grid):
            seeds, sites = grid.seeds[chunk], grid.sites[chunk]
            lanes = real.reshape(-1, width)[chunk].reshape(-1)
            client = trees.map_tensors(lambda t, i=lanes: t[i].reshape(-1, width, *t.shape[1:]), before)
            keys = job.lane_keys(round_number, exchange, seeds, sites.unsqueeze(1).expand_as(seeds))
            data = (
                *self._block(job, sites),
                job.shares[sites],
                job.batch_keys(round_number, exchange, sites),
            )
            shared = broadcast.replica if len(job.seeds) > 1 else trees.unstack(broadcast.replica, 0)
            shared_lanes = _take(shared, seeds) if len(job.seeds) > 1 else shared
            parts.append(_run_lanes(job, exchange, shared_lanes, client, data, keys, len(job.seeds) > 1))
        joined = trees.map_tensors(lambda *pieces: torch.cat(pieces), *parts) if len(parts) > 1 else parts[0]
        results: tuple[Any, Any, Any] = trees.map_tensors(lambda t: t[grid.lane], joined)
        return results

    def _chunks(self, job: Job, grid: Grid) -> list[slice]:
        """Cut the sites, sorted by size, into runs with little padding that fit the memory."""
        sizes = torch.tensor(job.data.sizes)[grid.sites].tolist()
        per_row = job.data.x[0].numel() * job.data.x.element_size()
        chunks, start, real = [], 0, 0
        for end, rows in enumerate(sizes):
            padded = rows * (end + 1 - start)
            full = padded * per_row > self.memory
            if end > start and (full or padded > PADDING * (real + rows) + 64 * (end - start)):
                chunks.append(slice(start, end))
                start, real = end, 0
            real += rows
        return [*chunks, slice(start, len(sizes))]

    def _block(self, job: Job, sites: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, y, weight of sites [U, n, ...], padded with rows of weight 0."""
        name = tuple(sites.tolist())
        if name not in self._blocks:
            offsets = torch.tensor(job.data.offsets)
            sizes = torch.tensor(job.data.sizes)[sites]
            columns = torch.arange(int(sizes.max()))
            real = columns < sizes.unsqueeze(1)
            index = (offsets[sites].unsqueeze(1) + columns).clamp(max=len(job.data.y) - 1)
            if len(self._blocks) > 64:  # noqa: PLR2004
                self._blocks.clear()
            self._blocks[name] = (job.data.x[index], job.data.y[index], job.data.weight[index] * real)
        return self._blocks[name]

    def _server(
        self, job: Job, server: Any, sent: Any, taken: Tensor, grid: Grid, exchange: str
    ) -> tuple[Any, dict[str, Tensor]]:
        """Combine what was taken and step the server of every seed that heard from anybody."""
        n_seeds = len(job.seeds)
        population = (job.eligible_sites() * job.shares).sum(1)
        by_seed = lambda t: t.reshape(n_seeds, -1, *t.shape[1:])  # noqa: E731
        ok = by_seed(taken)
        totals = {}
        for group, (tree, weight) in sent.items():
            counted = torch.where(ok, by_seed(weight), 0.0)
            clean = trees.where(taken, tree, trees.zeros_like(tree))
            mean = vmap(job.aggregator)(trees.map_tensors(by_seed, clean), counted)
            totals[group] = Total(mean, counted.sum(1), population)
        after, info = vmap(lambda s, t: job.algorithm.server_round(job.problem, s, t, exchange))(server, totals)
        return trees.where(ok.any(1), after, server), info


def _take(structure: Any, index: Tensor) -> Any:
    return trees.map_tensors(lambda t: t[index], structure)


def _run_lanes(
    job: Job, exchange: str, shared: Any, client: Any, data: tuple[Tensor, ...], keys: Tensor, shared_per_lane: bool
) -> Any:
    """Call `client_round` for a grid of lanes [U, Q]; return structures [U·Q, ...]."""

    def lane(shared: Any, client: Any, rows: tuple[Tensor, ...], key: Tensor) -> Any:
        return job.algorithm.client_round(job.problem, shared, client, SiteData(*rows), key, exchange)

    per_lane = 0 if shared_per_lane else None
    n_sites, width = keys.shape
    if width == 1:
        squeeze = lambda t: t.squeeze(1)  # noqa: E731
        lanes: Callable[..., Any] = vmap(lane, in_dims=(per_lane, 0, 0, 0))
        shared = trees.map_tensors(squeeze, shared) if shared_per_lane else shared
        return lanes(shared, trees.map_tensors(squeeze, client), data, squeeze(keys))
    seeds = vmap(lane, in_dims=(per_lane, 0, None, 0))
    if n_sites == 1:
        one = lambda t: t[0]  # noqa: E731
        shared = trees.map_tensors(one, shared) if shared_per_lane else shared
        return seeds(shared, trees.map_tensors(one, client), trees.map_tensors(one, data), keys[0])
    grid = vmap(seeds, in_dims=(per_lane, 0, 0, 0))(shared, client, data, keys)
    return trees.map_tensors(lambda t: t.flatten(0, 1), grid)
