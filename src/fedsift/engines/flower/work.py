"""A site's part of an exchange, for all run seeds at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift import aggregation, messages, trees
from fedsift.algorithms.base import Own
from fedsift.data import FederatedData
from fedsift.engines.base import (
    Job,
    exchange_key,
    first_download,
    releases,
    start_servers,
    state_template,
    work,
)
from fedsift.engines.envelopes import schema_of
from fedsift.engines.flower.memory import Exchanges
from fedsift.engines.flower.parts import Part, PartError, describe, rebuild
from fedsift.engines.programs import Programs, working
from fedsift.privacy import Privacy, check
from fedsift.problems import Problem
from fedsift.trees import Tree

NEVER = -1  # the exchange of a seed that was never asked


class Kept(NamedTuple):
    """What a site keeps of a seed: the replica that it was brought to, and its own state."""

    replica: Tree
    state: Any


def work_facts(job: Job) -> dict[str, Any]:
    """Return what a site must be told of a job, as JSON values.

    Raises:
        ValueError: nobody knows how to make the problem again.
    """
    return {
        "problem": job.problem.told(),
        "algorithm": describe(job.algorithm),
        "channel": describe(job.channel),
        "seeds": list(job.seeds),
        "data_seed": job.data_seed,
        "weights": job.weights,
        "privacy": None if job.privacy is None else asdict(job.privacy),
        "halves": job.halves,
    }


@dataclass(frozen=True)
class SiteWork:
    """A job as one site sees it."""

    job: Job

    @classmethod
    def described(
        cls,
        facts: Mapping[str, Any],
        data: FederatedData,
        problem: Problem,
        classes: Mapping[str, type],
    ) -> SiteWork:
        """Return the work that `work_facts` described, on a site's rows.

        Raises:
            PartError: privacy does not cover it.
        """
        privacy = None if facts["privacy"] is None else Privacy(**facts["privacy"])
        job = Job(
            problem,
            data,
            rebuild(facts["algorithm"], classes),
            rebuild(facts["channel"], classes),
            aggregation.mean,
            tuple(facts["seeds"]),
            facts["data_seed"],
            facts["weights"],
            privacy=privacy,
            halves=facts["halves"],
        )
        if privacy is not None:
            try:
                check(privacy, problem, data, job.algorithm, job.weights)
            except ValueError as error:
                raise PartError(str(error)) from error
        return cls(job)

    def releases(self, part: Part) -> int:
        """Return how many releases the answer to a request would be.

        Raises:
            PartError: a seed is named twice, which would have the same noise.
        """
        seeds = [self.job.seeds[s] for s in part.facts["seeds"]]
        if len(set(seeds)) < len(seeds):
            msg = "a seed is named twice"
            raise PartError(msg)
        return releases(self.job, part.facts["exchange"]) * len(seeds)

    def exchange(self, part: Part, exchanges: Exchanges) -> Part:
        """Catch up, work, keep the state as pending, and answer with the uploads."""
        facts, job = part.facts, self.job
        seeds, tick, exchange = facts["seeds"], facts["tick"], facts["exchange"]
        start = self._start(seeds, facts["base"], facts["last"])
        shape = next(iter(start.values())).replica
        schema = schema_of(job.algorithm, job.channel, shape)
        if schema != facts["schema"]:
            msg = "it runs another method, message format or model than the server"
            raise PartError(msg)
        if len(part.blobs) != len(seeds):
            msg = f"{len(part.blobs)} messages for {len(seeds)} seeds"
            raise PartError(msg)
        held = exchanges.load(start, seeds, facts["base"]).replica
        state = exchanges.load(start, seeds, facts["last"]).state
        replica = trees.stack(
            messages.decode(message, shape, trees.unstack(held, place))
            for place, message in enumerate(part.blobs)
        )
        sent, after, info = self._work(replica, state, seeds, facts["round"], exchange)
        exchanges.save(tick, seeds, Kept(replica, after), {"life": facts["life"]})
        exchanges.keep([*facts["keep"], tick])
        blobs = tuple(
            messages.encode(trees.unstack(tree, place)) if weight[place] > 0 else b""
            for place in range(len(seeds))
            for tree, weight in sent.values()
        )
        names = ("life", "run", "tick", "exchange", "schema", "seeds")
        said = {name: facts[name] for name in names} | {
            "kind": "exchange",
            "site": job.data.sites[0],
            "groups": list(sent),
            "weights": {group: weight.tolist() for group, (_, weight) in sent.items()},
            "info": {name: values.tolist() for name, values in info.items()},
        }
        return Part(said, blobs)

    def own(self, exchanges: Exchanges, seeds: list[int], last: list[int]) -> Own:
        """Return the site's own values of private leaves, of seeds after their last exchanges."""
        client, _ = exchanges.load(self._start(seeds, last), seeds, last).state
        own: Own = client.own
        return own

    def _start(self, seeds: list[int], *ticks: list[int]) -> dict[int, Kept]:
        """Return what the seeds that were never asked have, and at least one seed.

        ``ticks``: numbers of exchanges of each seed, among them `NEVER`. The replica is drawn from
        the run keys, as the server does; where the server began from something else, its first
        message brings all of it.
        """
        fresh = [s for s, *numbers in zip(seeds, *ticks, strict=True) if NEVER in numbers]
        fresh = fresh or seeds[:1]
        replicas = first_download(self.job, start_servers(self.job, fresh))
        template = state_template(self.job, trees.unstack(replicas, 0))
        return {s: Kept(trees.unstack(replicas, k), template) for k, s in enumerate(fresh)}

    def _work(
        self, replica: Tree, state: Any, seeds: list[int], number: int, exchange: str
    ) -> tuple[Any, Any, Any]:
        """Return (sent, state after, info) of the seeds, leaves [S, ...]."""
        job, wanted = self.job, torch.tensor(seeds)
        if not job.problem.batched:
            return self._one_by_one(replica, state, seeds, number, exchange)
        rows = (job.tables, job.shares[0])
        own: tuple[Tensor, ...] = ()
        if job.halves is not None:
            own = (job.counted(wanted, torch.arange(job.data.n_samples)).unsqueeze(0),)
        sent, after, info, _, _ = Programs().run(
            working,
            job,
            exchange,
            replica,
            trees.map_tensors(lambda t: t.unsqueeze(0), state),
            trees.map_tensors(lambda t: t.unsqueeze(0), rows),
            (job.run_keys[wanted].unsqueeze(0), job.data_key, job.site_keys),
            torch.tensor(number),
            *own,
            complete=True,
        )
        return sent, after, info

    def _one_by_one(
        self, replica: Tree, state: Any, seeds: list[int], number: int, exchange: str
    ) -> tuple[Any, Any, Any]:
        job, results = self.job, []
        batches = exchange_key(job.data_key, exchange, number, job.site_keys[0])
        for place, seed in enumerate(seeds):
            data = job.site(0, batches, seed)
            key = exchange_key(job.run_keys[seed], exchange, number, job.site_keys[0])
            own = (trees.unstack(replica, place), trees.unstack(state, place))
            done = work(job, exchange, *own, data, key)
            results.append((done.sent, done.state, done.info))
        stacked: tuple[Any, Any, Any] = trees.stack(results)
        return stacked


def upload_schema(job: Job, exchange: str, carried: Any) -> dict[str, Tree]:
    """Return an upload's trees by group, for their names, shapes and dtypes."""
    shared = trees.unstack(carried.broadcast.replica, 0)
    client = job.algorithm.client_init(job.problem, shared)
    key = job.run_keys[0]
    upload, _, _ = job.algorithm.client_round(
        job.problem, shared, client, job.site(0, key), key, exchange
    )
    return {group: tree for group, (tree, _) in upload.items()}


def zeros(schema: dict[str, Tree], *lanes: int) -> dict[str, tuple[Tree, Tensor]]:
    """Return uploads [S, K, ...] that do not count; ``lanes``: S and K."""
    return {
        group: (
            {name: torch.zeros((*lanes, *t.shape), dtype=t.dtype) for name, t in tree.items()},
            torch.zeros(lanes),
        )
        for group, tree in schema.items()
    }
