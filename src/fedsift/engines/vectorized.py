"""The default engine: sites and seeds are lanes of one batched computation.

Lanes form a grid, distinct sites by the seeds that chose them. A site's rows are shared along its
row of the grid, so that products become matrix-matrix; places that no seed needs repeat a lane and
are dropped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import trees
from fedsift.aggregation import renumbered
from fedsift.engines.base import Carried, Engine, Job, Report
from fedsift.engines.grid import Grid, lay_out
from fedsift.engines.programs import Programs, publishing, serving, working


class Chunk(NamedTuple):
    """Rows of a grid that are worked on together.

    ``places``: numbers of the grid's rows; the first ``real`` are wanted, the others fill up.
    ``rows``: of a site's block.
    """

    places: Tensor
    real: int
    rows: int


@dataclass
class Vectorized(Engine):
    """Batches the sites' work over lanes with `torch.func.vmap`.

    Attributes:
        programs: runs the work, fused or not.
        memory: bytes that the rows of one chunk of sites may take.
        chunk: most sites of one chunk; None: as many as fit.
    """

    programs: Programs = field(default_factory=Programs)
    memory: float = 1e9
    chunk: int | None = None
    _kept: tuple[Tensor, Grid] | None = field(default=None, repr=False)
    _blocks: dict[tuple[int, ...], tuple[Tensor, ...]] = field(default_factory=dict, repr=False)

    def exchange(
        self, job: Job, carried: Carried, round_number: int, exchange: str, participants: Tensor
    ) -> tuple[Carried, Report]:
        """Run one exchange; see `Engine`."""
        run, tick = self.programs.run, carried.tick
        grid = self._grid(job, participants)
        # At the start the broadcast holds the server's tensors: a tensor that is given twice would
        # be compiled for as one.
        server = trees.map_tensors(Tensor.detach, carried.server)
        broadcast = run(publishing, job, exchange, server, carried.broadcast, torch.tensor(tick))
        if not grid.asks.all():
            broadcast = trees.where(grid.asks.squeeze(1), broadcast, carried.broadcast)
        done = self._sites(job, carried, grid, broadcast.replica, round_number, exchange)
        sent, info, size, finite = grid.by_seed(done)
        seed = torch.arange(len(job.seeds)).unsqueeze(1).expand_as(grid.site)
        asked = grid.asks.expand_as(finite)
        taken = finite & asked
        if job.delivery is not None:
            arrived = job.delivery(tick, seed.reshape(-1), grid.site.reshape(-1))
            taken = taken & (arrived > 0).reshape(finite.shape)
        region = None if job.regions is None else renumbered(job.regions[grid.site])
        before = carried.seen.gather(1, grid.site)
        if grid.full and bool((before == before[:, :1]).all()):
            before = before[:, :1]
        server, info, (from_sites, from_regions, to_sites) = run(
            serving, job, exchange, server, broadcast, sent, info, size, taken, before,
            job.populations, region,
        )  # fmt: skip
        ledger, seen = carried.ledger.clone(), carried.seen.clone()
        ledger[seed[taken], grid.site[taken]] = tick
        seen[seed[asked], grid.site[asked]] = tick
        failed = asked & ~finite
        report = Report(
            info if asked.all() else {},
            from_sites * grid.asks.squeeze(1),
            (to_sites * asked).sum(1),
            torch.stack([seed[failed], grid.site[failed]], 1),
            from_regions,
        )
        return Carried(server, broadcast, carried.store, ledger, seen, tick + 1), report

    def _grid(self, job: Job, participants: Tensor) -> Grid:
        """Return the layout, which is kept while the same sites take part."""
        if self._kept is None or self._kept[0] is not participants:
            self._kept = participants, lay_out(participants, job.rank)
        return self._kept[1]

    def _sites(
        self, job: Job, carried: Carried, grid: Grid, replica: Any, round_number: int, exchange: str
    ) -> Any:
        """Run the work of the grid and keep the sites' states.

        Return (sent, info, size, finite) of every place, leaves [U·Q, ...].
        """
        parts = []
        number = torch.tensor(round_number)
        for places, wanted, rows in self._chunks(job, grid):
            seeds, sites = grid.seeds[places], grid.sites[places]
            lanes = (
                carried.store.rows(sites).repeat_interleave(seeds.shape[1]),
                seeds.reshape(-1),
            )
            last = carried.ledger[seeds, sites.unsqueeze(1)].reshape(-1)
            state = trees.map_tensors(
                lambda t, shape=seeds.shape: t.reshape(*shape, *t.shape[1:]),
                carried.store.load(*lanes, last),
            )
            keys = (job.run_keys[seeds], job.data_key, job.site_keys[sites])
            data = (self._block(job, sites, rows, keep=grid.full), job.shares[sites])
            shared = replica
            if not grid.complete:
                shared = trees.map_tensors(lambda t, i=seeds: t[i], replica)
            given: tuple[Any, ...] = (shared, state, data, keys, number)
            if job.halves is not None:
                given += (job.counted(seeds, self._numbers(job, sites, rows)[0]),)
            sent, after, *rest = self.programs.run(
                working, job, exchange, *given, complete=grid.complete
            )
            real = grid.real[places]
            real[wanted:] = False
            if not real.all():
                kept = real.reshape(-1)
                lanes = (lanes[0][kept], lanes[1][kept])
                after = trees.map_tensors(lambda t, i=kept: t[i], after)
            carried.store.stage(*lanes, after, carried.tick)
            if job.tampering is not None:
                who = (seeds.reshape(-1), sites.repeat_interleave(seeds.shape[1]))
                sent = job.tampering(carried.tick, *who, sent)
                rest[-1] = vmap(trees.all_finite)({name: up[0] for name, up in sent.items()})
            filled = wanted * seeds.shape[1]
            parts.append(trees.map_tensors(lambda t, n=filled: t[:n], (sent, *rest)))
        if len(parts) == 1:
            return parts[0]
        return trees.map_tensors(lambda *pieces: torch.cat(pieces), *parts)

    def _chunks(self, job: Job, grid: Grid) -> list[Chunk]:
        """Cut the grid's sites, sorted by size, where the size of their blocks changes.

        Each seed may draw a batch of its own. Where the work is fused and the sites change from
        round to round, a chunk is made up to a power of two, so that few shapes are compiled.
        """
        blocks = job.block_rows[grid.sites].tolist()
        per_row = job.data.x[0].numel() * job.data.x.element_size() * grid.seeds.shape[1]
        ends = [i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1]]
        chunks = []
        for start, end in itertools.pairwise([0, *ends, len(blocks)]):
            fitting = max(1, int(self.memory / (blocks[start] * per_row)))
            most = min(fitting, self.chunk or fitting)
            for first in range(start, end, most):
                count = min(most, end - first)
                fixed = grid.full or not self.programs.fused
                places = torch.arange(count if fixed else 1 << (count - 1).bit_length())
                chunks.append(Chunk(first + places.clamp(max=count - 1), count, blocks[first]))
        return chunks

    def _block(self, job: Job, sites: Tensor, rows: int, *, keep: bool) -> tuple[Tensor, ...]:
        """Return `Job.tables` of sites [U, n, ...], padded with rows of weight 0."""
        name = tuple(sites.tolist())
        if name in self._blocks:
            return self._blocks[name]
        index, real = self._numbers(job, sites, rows)
        x, y, weight, *role = (table[index] for table in job.tables)
        block = (x, y, weight * real, *role)
        if keep or len(sites) == 1:
            if sum(held.nbytes for held, *_ in self._blocks.values()) > self.memory:
                self._blocks.clear()
            self._blocks[name] = block
        return block

    def _numbers(self, job: Job, sites: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the numbers of the sites' rows, [U, n], and which are no padding."""
        start, columns = job.offsets[sites].unsqueeze(1), torch.arange(rows)
        real = columns < job.sizes[sites].unsqueeze(1)
        return torch.where(real, start + columns, start), real
