"""The default engine: sites and seeds are lanes of one batched computation.

Lanes form a grid, distinct sites by the seeds that chose them. A site's rows are shared along its
row of the grid, so that products become matrix-matrix; places that no seed needs repeat a lane and
are dropped.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import channels, trees
from fedsift.algorithms.base import Total
from fedsift.engines.base import Carried, Job, Report, send
from fedsift.problems import Batch
from fedsift.sites import SiteData

log = logging.getLogger(__name__)

PADDING = 1.2  # rows of a chunk, padding included, over real rows
SITE_BY_SITE = 1 << 14  # numbers of all seeds at a site from which sites are worked on one by one
BLOCKS = 64  # padded blocks of rows that are kept


class Grid(NamedTuple):
    """Which seeds are at which sites.

    ``sites`` [U]; ``seeds`` [U, Q]; ``real`` [U, Q] the places that are lanes; ``lane`` [S, K]
    where a seed's lanes are in the flattened grid, in order of the sites' numbers, and ``site``
    [S, K] whose they are; ``full``: every seed is at every site.
    """

    sites: Tensor
    seeds: Tensor
    real: Tensor
    lane: Tensor
    site: Tensor
    full: bool

    def by_seed(self, structure: Any) -> Any:
        """Arrange structures [U·Q, ...] of the grid's places as [S, K, ...]."""
        return trees.map_tensors(lambda t: t[self.lane], structure)


def lay_out(participants: Tensor, order: Tensor) -> Grid:
    """Return the grid for participants [S, C], with sites in the given order.

    Its width is the number of seeds, or a power of two where half of them would do, so that it
    seldom changes from round to round.
    """
    n_seeds, n_sites = participants.shape
    position, seed = participants[:, order].T.nonzero(as_tuple=True)
    rows, row, counts = torch.unique_consecutive(position, return_inverse=True, return_counts=True)
    starts = counts.cumsum(0) - counts
    column = torch.arange(len(seed)) - starts[row]
    needed = int(counts.max())
    width = n_seeds if 2 * needed > n_seeds else 1 << (needed - 1).bit_length()
    seeds = seed[starts].unsqueeze(1).repeat(1, width)
    seeds[row, column] = seed
    real = torch.zeros_like(seeds, dtype=torch.bool)
    real[row, column] = True
    by_seed = torch.argsort(seed * n_sites + order[position])
    lane, site = (
        (t[by_seed]).reshape(n_seeds, -1) for t in (row * width + column, order[position])
    )
    return Grid(order[rows], seeds, real, lane, site, bool(participants.all()))


def cannot_batch(job: Job, carried: Carried) -> str | None:
    """Return why `vmap` cannot take this model (or would take it one lane at a time), or None.

    Tried on a discarded copy of one site, twice side by side.

    Raises:
        ValueError: the model draws random numbers of its own, so that no run could be repeated.
    """
    replica = trees.unstack(carried.broadcast.replica, 0)
    twice = trees.stack([replica, replica])
    rows = slice(job.data.offsets[0], job.data.offsets[1])
    tables = (job.data.x[rows], job.data.y[rows], job.data.weight[rows])
    data = (*tables, job.shares[0], job.run_keys[0])
    client = job.algorithm.client_init(job.problem, replica)

    def lane(shared: Any) -> Any:
        exchange = job.algorithm.exchanges_at(1)[-1]
        return job.algorithm.client_round(
            job.problem, shared, client, SiteData(*data), job.run_keys[0], exchange
        )[0]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        try:
            vmap(lane)(twice)
            batch = Batch(*tables, job.run_keys[0])
            params = job.algorithm.solution(job.problem, trees.unstack(carried.server, 0))
            vmap(lambda p: job.problem.evaluate(p, batch))(trees.stack([params, params]))
        except (RuntimeError, UserWarning) as error:
            reason = str(error).split("\n", 1)[0]
            if "random" in reason:
                msg = (
                    "the model draws random numbers that no key decides (a functional dropout, or"
                    " the dropout of an attention layer); use torch.nn.Dropout layers, and"
                    " dropout=0 in attention"
                )
                raise ValueError(msg) from error
            return reason
    return None


def compile_pays(job: Job, participants: Tensor, rounds: int) -> bool:
    """Estimate whether fusing the sites' work saves more than its compile costs.

    Unfused, a step takes about 4 ms a call (some hundred small operations under `vmap`) and 100 ns
    for every number of every lane, most of which fusing saves. A compile takes about 15 s for two
    steps of a linear model, more with more steps and leaves, and again for every size of a site's
    block. These are rules from measurements, not timings, so that they are the same in every
    process and a resumed run goes on as it began.
    """
    leaves = job.problem.init(job.run_keys[0])
    numbers = sum(leaf.numel() for leaf in leaves.values())
    lanes, seeds_at_a_site = int(participants.sum()), int(participants.sum(0).max())
    many = seeds_at_a_site > 1 and 2 * seeds_at_a_site * numbers >= SITE_BY_SITE
    calls = int(participants.any(0).sum()) if many else 1
    steps = getattr(job.algorithm, "local_steps", 1)
    shapes = len({_padded(size, compiled=True) for size in job.data.sizes})
    saved = rounds * steps * (4e-3 * calls + 1e-7 * lanes * numbers)
    return saved > 15.0 * shapes * max(1.0, steps / 2) * max(1.0, len(leaves) / 2)


def _padded(rows: int, *, compiled: bool) -> int:
    """Return the rows of a block: a multiple of 8, or a power of two where sizes are compiled."""
    return max(8, 1 << (rows - 1).bit_length()) if compiled else -(-rows // 8) * 8


@dataclass
class Vectorized:
    """Batches the sites' work over lanes with `torch.func.vmap`.

    Attributes:
        compiled: fuse the batched work with `torch.compile`; without a compiler it runs unfused.
        memory: bytes that the rows of one chunk of sites may take.
    """

    compiled: bool = False
    memory: float = 1e9
    _blocks: dict[tuple[int, ...], tuple[Tensor, Tensor, Tensor]] = field(
        default_factory=dict, repr=False
    )

    def exchange(
        self, job: Job, carried: Carried, round_number: int, exchange: str, participants: Tensor
    ) -> tuple[Carried, Report]:
        """Run one exchange; see `Engine`."""
        grid = lay_out(participants, job.by_size)
        shared = vmap(lambda s: job.algorithm.download(job.problem, s, exchange))(carried.server)
        tick = torch.tensor(carried.tick)
        broadcast = vmap(lambda b, s: channels.advance(job.channel, job.problem, b, s, tick))(
            carried.broadcast, shared
        )
        outcome = self._sites(job, carried, grid, broadcast.replica, round_number, exchange)
        sent, info, size_up, finite = grid.by_seed(outcome)
        seed = torch.arange(len(job.seeds)).unsqueeze(1).expand_as(grid.site)
        taken = finite
        if job.delivery is not None:
            arrived = job.delivery(carried.tick, seed.reshape(-1), grid.site.reshape(-1))
            taken = finite & (arrived > 0).reshape(finite.shape)
        server, server_info = _serve(job, carried.server, sent, taken, exchange)
        ledger, seen = carried.ledger.clone(), carried.seen.clone()
        ledger[seed[taken], grid.site[taken]] = carried.tick
        seen[seed, grid.site] = carried.tick
        report = Report(
            {k: v.mean(1) for k, v in info.items()} | server_info,
            size_up.sum(1),
            _download_sizes(broadcast, carried.seen.gather(1, grid.site)).sum(1),
            torch.stack([seed[~finite], grid.site[~finite]], 1),
        )
        return Carried(server, broadcast, carried.store, ledger, seen, carried.tick + 1), report

    def _sites(
        self, job: Job, carried: Carried, grid: Grid, replica: Any, round_number: int, exchange: str
    ) -> Any:
        """Run the work of the grid and keep the sites' states.

        Return (sent, info, size, finite) of every place, leaves [U·Q, ...].
        """
        parts = []
        numbers = sum(leaf[0].numel() for leaf in trees.leaves(replica))
        for chunk in self._chunks(job, grid, numbers):
            seeds, sites, real = grid.seeds[chunk], grid.sites[chunk], grid.real[chunk].reshape(-1)
            across = sites.unsqueeze(1).expand_as(seeds)
            lanes = (carried.store.rows(across.reshape(-1)), seeds.reshape(-1))
            state = carried.store.load(*lanes, carried.ledger[lanes[1], across.reshape(-1)])
            state = trees.map_tensors(
                lambda t, shape=seeds.shape: t.reshape(*shape, *t.shape[1:]), state
            )
            keys = job.lane_keys(round_number, exchange, seeds, across)
            batches = job.batch_keys(round_number, exchange, sites)
            data = (*self._block(job, sites), job.shares[sites], batches)
            shared = replica if grid.full else trees.map_tensors(lambda t, i=seeds: t[i], replica)
            sent, after, *rest = self._run(job, exchange, shared, state, data, keys, full=grid.full)
            if not real.all():
                lanes, after = (
                    (lanes[0][real], lanes[1][real]),
                    trees.map_tensors(lambda t, i=real: t[i], after),
                )
            carried.store.stage(*lanes, after, carried.tick)
            parts.append((sent, *rest))
        return (
            trees.map_tensors(lambda *pieces: torch.cat(pieces), *parts)
            if len(parts) > 1
            else parts[0]
        )

    def _run(self, job: Job, exchange: str, *args: Any, full: bool) -> Any:
        work = _lanes(job, exchange, full=full)
        if not self.compiled or job.algorithm.asks_everyone(exchange):
            return work(*args)
        try:
            return _compiled(job, exchange, full=full)(*args)
        except Exception as error:  # noqa: BLE001 - whatever the compiler says, the work can go on
            log.warning(
                "torch.compile failed (%s): going on without it", str(error).split("\n", 1)[0]
            )
            self.compiled = False
            return work(*args)

    def _chunks(self, job: Job, grid: Grid, numbers: int) -> list[slice]:
        """Cut the sites, sorted by size, into runs with little padding that fit the memory.

        Many seeds go site by site: their products are one matrix product, and what they update
        stays in the processor's cache.
        """
        sizes = job.sizes[grid.sites].tolist()
        width = grid.seeds.shape[1]
        if width > 1 and width * numbers >= SITE_BY_SITE:
            return [slice(i, i + 1) for i in range(len(sizes))]
        per_row = job.data.x[0].numel() * job.data.x.element_size()
        chunks, start, real = [], 0, 0
        for end, rows in enumerate(sizes):
            padded = rows * (end + 1 - start)
            too_large = padded * per_row > self.memory
            if end > start and (too_large or padded > PADDING * (real + rows) + 64 * (end - start)):
                chunks.append(slice(start, end))
                start, real = end, 0
            real += rows
        return [*chunks, slice(start, len(sizes))]

    def _block(self, job: Job, sites: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, y, weight of sites [U, n, ...], padded with rows of weight 0."""
        name = tuple(sites.tolist())
        if name not in self._blocks:
            if len(self._blocks) >= BLOCKS:
                self._blocks.clear()
            offsets, sizes = torch.tensor(job.data.offsets), job.sizes[sites]
            columns = torch.arange(_padded(int(sizes.max()), compiled=self.compiled))
            real = columns < sizes.unsqueeze(1)
            index = torch.where(
                real, offsets[sites].unsqueeze(1) + columns, offsets[sites].unsqueeze(1)
            )
            self._blocks[name] = (
                job.data.x[index],
                job.data.y[index],
                job.data.weight[index] * real,
            )
        return self._blocks[name]


def _lanes(job: Job, exchange: str, *, full: bool) -> Callable[..., Any]:
    """Return the work of a grid of lanes: (shared, state, data, keys) → structures [U·Q, ...].

    ``full``: ``shared`` is [S, ...], the same for every site; else it is [U, Q, ...].
    """

    def lane(shared: Any, state: Any, rows: tuple[Tensor, ...], key: Tensor) -> Any:
        client, residual = state
        upload, client, info = job.algorithm.client_round(
            job.problem, shared, client, SiteData(*rows), key, exchange
        )
        sent, residual, size = send(job, exchange, upload, residual)
        finite = trees.all_finite({group: tree for group, (tree, _) in sent.items()})
        return sent, (client, residual), info, size, finite

    def grid(shared: Any, state: Any, data: tuple[Tensor, ...], keys: Tensor) -> Any:
        one_seed, one_site = keys.shape[1] == 1, keys.shape[0] == 1
        if one_seed:
            drop = lambda t: t.squeeze(1)  # noqa: E731
            shared = trees.map_tensors((lambda t: t.squeeze(0)) if full else drop, shared)
            work = vmap(lane, in_dims=(None if full else 0, 0, 0, 0))
            return work(shared, trees.map_tensors(drop, state), data, drop(keys))
        if one_site:
            first = lambda t: t.squeeze(0)  # noqa: E731
            shared = shared if full else trees.map_tensors(first, shared)
            work = vmap(lane, in_dims=(0, 0, None, 0))
            return work(
                shared, trees.map_tensors(first, state), trees.map_tensors(first, data), keys[0]
            )
        work = vmap(vmap(lane, in_dims=(0, 0, None, 0)), in_dims=(None if full else 0, 0, 0, 0))
        return trees.map_tensors(lambda t: t.flatten(0, 1), work(shared, state, data, keys))

    return grid


_COMPILED: dict[tuple[Any, ...], Callable[..., Any]] = {}


def _compiled(job: Job, exchange: str, *, full: bool) -> Callable[..., Any]:
    """Return the compiled work; jobs that differ in data and seeds alone share it."""
    name = (id(job.problem), job.algorithm, job.channel, exchange, full)
    if name not in _COMPILED:
        # One code object serves every algorithm, each with few shapes: allow for all of them.
        torch._dynamo.config.recompile_limit = 256  # noqa: SLF001
        work = _lanes(job, exchange, full=full)
        _COMPILED[name] = torch.compile(work, dynamic=False, fullgraph=True)
    return _COMPILED[name]


def _serve(
    job: Job, server: Any, sent: Any, taken: Tensor, exchange: str
) -> tuple[Any, dict[str, Tensor]]:
    """Combine what was taken, [S, K], and step the server of every seed that heard from anybody."""
    totals = {}
    for group, (tree, weight) in sent.items():
        counted = torch.where(taken, weight, 0.0)
        clean = tree if taken.all() else trees.where(taken, tree, trees.zeros_like(tree))
        totals[group] = Total(vmap(job.aggregator)(clean, counted), counted.sum(1), job.population)
    after, info = vmap(lambda s, t: job.algorithm.server_round(job.problem, s, t, exchange))(
        server, totals
    )
    heard = taken.any(1)
    return after if heard.all() else trees.where(heard, after, server), info


def _download_sizes(broadcast: channels.Broadcast, seen: Tensor) -> Tensor:
    """Return the bytes that bring sites last served in exchange ``seen`` [S, K] up to date, [S, K].

    Equal pairs of seed and ``seen`` are counted once.
    """
    seed = torch.arange(len(seen)).unsqueeze(1).expand_as(seen)
    pairs, which = torch.unique(
        torch.stack([seed, seen], -1).flatten(0, 1), dim=0, return_inverse=True
    )
    behind = trees.map_tensors(lambda t: t[pairs[:, 0]], broadcast)
    return vmap(channels.download_size)(behind, pairs[:, 1])[which].reshape(seen.shape)
