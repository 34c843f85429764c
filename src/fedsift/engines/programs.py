"""The tensor work of an exchange as three pure functions, each fused by `torch.compile` on request.

The rounds of a run differ in tensors alone (keys, states, the number of the round), so that a
function is compiled once; jobs that differ in data and seeds share it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import channels, messages, trees
from fedsift.aggregation import mean_by_region
from fedsift.algorithms.base import Total
from fedsift.engines.base import Job, exchange_key, population_of, region_message, site_data, work
from fedsift.problems import Problem

log = logging.getLogger(__name__)

Program = Callable[..., Any]


def publishing(job: Job, exchange: str) -> Program:
    """Return (server, broadcast, tick) → the next broadcast, leaves [S, ...]."""

    def publish(server: Any, broadcast: channels.Broadcast, tick: Tensor) -> channels.Broadcast:
        def one(state: Any, before: channels.Broadcast) -> channels.Broadcast:
            shared = job.algorithm.download(job.problem, state, exchange)
            return channels.advance(job.channel, job.problem, before, shared, tick)

        published: channels.Broadcast = vmap(one)(server, broadcast)
        return published

    return publish


def working(job: Job, exchange: str, *, complete: bool) -> Program:
    """Return the sites' work on a grid of lanes, [U, Q]: (shared, state, data, keys, number) → ...

    ``complete``: ``shared`` is [S, ...], the same for every site; else it is [U, Q, ...]. ``data``:
    `Job.tables` and share of the sites, [U, ...]; ``keys``: of the runs [U, Q], the data [] and the
    sites [U]; ``number``: of the round; ``counted``: which rows count for a lane, [U, Q, n], where
    not all do. The result is (sent, state after, info, bytes, finite?), leaves [U·Q, ...].
    """

    def lane(
        shared: Any,
        state: Any,
        rows: tuple[Any, ...],
        key: Tensor,
        counted: Tensor | None = None,
        *,
        problem: Problem,
    ) -> Any:
        data = site_data(*rows) if counted is None else site_data(*rows).only(counted)
        done = work(job, exchange, shared, state, data, key, problem)
        finite = trees.all_finite({group: tree for group, (tree, _) in done.sent.items()})
        return done.sent, done.state, done.info, done.bytes, finite

    def all_lanes(
        shared: Any,
        state: Any,
        data: tuple[Any, ...],
        keys: tuple[Tensor, Tensor, Tensor],
        number: Tensor,
        counted: Tensor | None = None,
    ) -> Any:
        runs, batches, sites = keys
        lanes = exchange_key(runs, exchange, number, sites.unsqueeze(1))
        data = (*data, exchange_key(batches, exchange, number, sites))
        sharing = partial(lane, problem=job.problem)
        own = () if counted is None else (counted,)
        by_lane = (0,) * len(own)
        one_seed, one_site = lanes.shape[1] == 1, lanes.shape[0] == 1
        if one_seed:
            drop = partial(torch.squeeze, dim=1)
            shared = trees.map_tensors(partial(torch.squeeze, dim=0) if complete else drop, shared)
            apart = job.problem.apart if torch.compiler.is_compiling() else None
            alone = partial(lane, problem=apart or job.problem)
            over_sites = vmap(alone, in_dims=(None if complete else 0, 0, 0, 0, *by_lane))
            return over_sites(
                shared, trees.map_tensors(drop, state), data, drop(lanes), *map(drop, own)
            )
        if one_site:
            first = partial(torch.squeeze, dim=0)
            shared = shared if complete else trees.map_tensors(first, shared)
            over_seeds = vmap(sharing, in_dims=(0, 0, None, 0, *by_lane))
            state, data = trees.map_tensors(first, state), trees.map_tensors(first, data)
            return over_seeds(shared, state, data, first(lanes), *map(first, own))
        over_seeds = vmap(sharing, in_dims=(0, 0, None, 0, *by_lane))
        both = vmap(over_seeds, in_dims=(None if complete else 0, 0, 0, 0, *by_lane))
        return trees.map_tensors(lambda t: t.flatten(0, 1), both(shared, state, data, lanes, *own))

    return all_lanes


def serving(job: Job, exchange: str) -> Program:
    """Return the server's part: (server, broadcast, ...) → (server, info, bytes).

    ``sent``, ``info`` and ``size`` (bytes): of each seed's lanes, [S, K, ...]; ``taken`` [S, K]:
    whose uploads count; a seed whose uploads are all lost keeps its server. ``seen`` [S, K]: the
    exchange in which a lane's site was served last, or [S, 1] where all were in the same.
    ``region`` [S, K]: numbers from 0 to K-1, or None. The bytes are those that sites sent [S], that
    regions passed on [S], and that bring a site up to date, like ``seen``.
    """

    def combine(stacked: Any, weight: Tensor) -> Any:
        """Aggregate: `vmap` writes what has no name by its ``repr``, which no compiler follows."""
        return job.aggregator(stacked, weight)

    def serve(
        server: Any,
        broadcast: channels.Broadcast,
        sent: Any,
        info: Any,
        size: Tensor,
        taken: Tensor,
        seen: Tensor,
        populations: dict[str, Tensor],
        region: Tensor | None,
    ) -> tuple[Any, dict[str, Tensor], tuple[Tensor, Tensor, Tensor]]:
        totals, from_sites = {}, size.sum(1)
        from_regions = torch.zeros_like(from_sites)
        for group, (tree, weight) in sent.items():
            counted = torch.where(taken, weight, 0.0)
            clean = trees.where(taken, tree, trees.zeros_like(tree))
            parts, weights = clean, counted
            if region is not None:
                parts, weights = vmap(mean_by_region)(clean, counted, region)
                passed_on = vmap(vmap(messages.size))(region_message(parts, weights))
                from_regions = from_regions + torch.where(weights > 0, passed_on, 0).sum(1)
            mean = vmap(combine)(parts, weights)
            totals[group] = Total(mean, counted.sum(1), population_of(populations, group))
        after, server_info = vmap(
            lambda s, t: job.algorithm.server_round(job.problem, s, t, exchange)
        )(server, totals)
        means = {k: v.mean(1) for k, v in info.items()}
        to_sites = vmap(vmap(channels.download_size, in_dims=(None, 0)))(broadcast, seen)
        after = trees.where(taken.any(1), after, server)
        return after, means | server_info, (from_sites, from_regions, to_sites)

    return serve


# Indices are in range by the way they are made; looking again is 7 % of a step of E-FLoPS. Sizes
# are known when a program is compiled, and its guards look at those of its arguments.
OPTIONS: dict[str, Any] = {"assert_indirect_indexing": False, "size_asserts": False}


def _may_change(guards: Sequence[Any]) -> list[bool]:
    """Choose what is looked at in every call: not modules and their functions, which stay."""
    return [not (guard.is_global or guard.name.startswith("__import__")) for guard in guards]


_FUSED: dict[tuple[Any, ...], Program] = {}


@dataclass
class Programs:
    """Runs programs, fused or not.

    Attributes:
        fused: whether `torch.compile` is used; without a compiler the work goes on unfused, and
            never with privacy: a program that is kept would keep its secret.
    """

    fused: bool = False

    def run(
        self, make: Callable[..., Program], job: Job, exchange: str, *args: Any, **options: bool
    ) -> Any:
        """Call the program that ``make`` returns for a job's exchange."""
        program = make(job, exchange, **options)
        if not self.fused or job.algorithm.measures(exchange) or job.privacy is not None:
            return program(*args)
        # Problems that differ in their start alone share a program.
        problem = job.problem
        same = (id(problem.operators), id(problem.project), problem.null_loss)
        own = tuple(problem.private.items())
        rules = (*same, own, job.algorithm, job.channel, job.aggregator)
        name = (make.__name__, exchange, *options.values(), *rules)
        if name not in _FUSED:
            # One code object serves every algorithm, each with few shapes: allow for all of them.
            torch._dynamo.config.recompile_limit = 256  # noqa: SLF001
            how = {**OPTIONS, "guard_filter_fn": _may_change}
            _FUSED[name] = torch.compile(program, dynamic=False, fullgraph=True, options=how)
        try:
            return _FUSED[name](*args)
        except Exception as error:  # noqa: BLE001 - whatever the compiler says, the work can go on
            reason = str(error).split("\n", 1)[0]
            log.warning("torch.compile failed (%s): going on without it", reason)
            self.fused = False
            return program(*args)
