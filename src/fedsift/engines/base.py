"""What an engine is given, what it carries, and what it reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import messages, noise, random, trees
from fedsift.aggregation import Aggregator, mean, name_of
from fedsift.algorithms.base import Algorithm, Info, Upload
from fedsift.channels import Broadcast, Channel, start_broadcast
from fedsift.clients import ClientStore
from fedsift.data import FederatedData, halved
from fedsift.engines.grid import block_rows
from fedsift.engines.sampling import Sampling
from fedsift.privacy import Guard, Privacy
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree

Weights = Literal["samples", "uniform"]
# (exchange tick, seed indices [L], site indices [L]) → how often each upload arrives, [L]: 0 or
# False is lost or refused, 1 or True arrives, more arrives again and must count once.
Delivery = Callable[[int, Tensor, Tensor], Tensor]
# (exchange tick, seed indices [L], site indices [L], uploads, leaves [L, ...]) → what arrives in
# their place.
Tampering = Callable[[int, Tensor, Tensor, Upload], Upload]


@dataclass(frozen=True)
class Job:
    """A problem, the data of its sites, and how to train: all that does not change in a run.

    ``allowed`` [S, C] says which sites may take part for each seed; None: all. ``regions`` [C]: the
    region that sums up a site's uploads before the server does; None: no regions. ``privacy``: how
    releases are clipped and noised; ``secret``: of that noise, fresh by default. ``halves``: a seed
    that halves every site's rows, so that run seed number s works on half s % 2 of pair s // 2
    alone (`data.halved`); None: on all rows. Derived:
    ``run_keys`` [S], ``data_key``, ``site_keys`` [C]; ``shares`` [C] the weights of sites in
    averages; ``offsets`` and ``sizes`` [C] of their rows, ``rank`` [C] their places in the order of
    size, ``block_rows`` [C] their rows with padding; ``eligible`` [S, C], what ``allowed`` means;
    ``sampling``, who of them takes part; ``populations``, the weight of all eligible sites, [S]: of
    all their rows (``all``), and of the groups ``forget``, ``retain`` and ``held_out`` where rows
    have a role.

    Raises:
        ValueError: seeds have different numbers of eligible sites, or an aggregator cannot work
            with regions.
    """

    problem: Problem
    data: FederatedData
    algorithm: Algorithm
    channel: Channel
    aggregator: Aggregator
    seeds: tuple[int, ...]
    data_seed: int = 0
    weights: Weights = "samples"
    allowed: Tensor | None = None
    delivery: Delivery | None = None
    regions: Tensor | None = None
    tampering: Tampering | None = None
    privacy: Privacy | None = None
    secret: Tensor = field(default_factory=noise.secret, repr=False)
    halves: int | None = None
    run_keys: Tensor = field(init=False)
    data_key: Tensor = field(init=False)
    site_keys: Tensor = field(init=False)
    shares: Tensor = field(init=False)
    offsets: Tensor = field(init=False)
    sizes: Tensor = field(init=False)
    block_rows: Tensor = field(init=False)
    rank: Tensor = field(init=False)
    eligible: Tensor = field(init=False)
    populations: dict[str, Tensor] = field(init=False)
    sampling: Sampling = field(init=False)

    def __post_init__(self) -> None:
        keys = torch.stack([random.key("run", seed) for seed in self.seeds])
        names = random.keys("site", last=self.data.sites)
        offsets = torch.tensor(self.data.offsets)
        sizes = offsets.diff()
        rows = torch.segment_reduce(self.data.weight, "sum", lengths=sizes)
        shares = rows if self.weights == "samples" else torch.ones_like(rows)
        everyone = torch.ones((len(self.seeds), self.data.n_sites), dtype=torch.bool)
        eligible = everyone if self.allowed is None else self.allowed
        if len(eligible.sum(1).unique()) > 1:
            msg = (
                "eligible names a different number of sites for different seeds; "
                "give all the same number"
            )
            raise ValueError(msg)
        if self.regions is not None and self.aggregator is not mean:
            msg = (
                f"{name_of(self.aggregator)} cannot be taken region "
                "by region: of the uploads, a region passes on the mean alone; use "
                "fedsift.aggregation.mean, or no regions"
            )
            raise ValueError(msg)
        derived: dict[str, Any] = {
            "run_keys": keys,
            "data_key": random.key("batches", self.data_seed),
            "site_keys": names,
            "shares": shares,
            "offsets": offsets[:-1],
            "sizes": sizes,
            "block_rows": block_rows(sizes),
            "rank": sizes.argsort(stable=True).argsort(),
            "eligible": eligible,
            "sampling": Sampling(keys, names, eligible),
            "populations": {
                group: (eligible * weight).sum(1)
                for group, weight in _group_weights(self.data, shares, rows).items()
            },
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def participants(self, round_number: int, participation: float) -> Tensor:
        """Return who takes part in a round, [S, C] bool; see `Sampling`."""
        return self.sampling.of_round(round_number, participation)

    def exchanges(
        self, carried: Carried, round_number: int, participants: Tensor
    ) -> list[tuple[str, Tensor]]:
        """Return the exchanges of a round, and who is asked in each, [S, C].

        An exchange for newcomers goes to the participants of the seeds that have some.
        """
        new = (participants & (carried.ledger < 0)).any(1)
        always = self.algorithm.exchanges_at(round_number)
        due = self.algorithm.exchanges_at(round_number, newcomers=bool(new.any()))
        some = participants if new.all() else participants & new.unsqueeze(1)
        return [(name, participants if name in always else some) for name in due]

    def sample(self, count: int | None) -> list[int] | None:
        """Return ``count`` sites, the same for all run seeds; None: all, or there are no more."""
        if count is None or count >= self.data.n_sites:
            return None
        draw = random.fold(random.key("evaluation", self.data_seed), self.site_keys)
        return sorted(torch.topk(draw, count, largest=False).indices.tolist())

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What there is of every row: x, y, weight and, where something is forgotten, role."""
        tables = (self.data.x, self.data.y, self.data.weight)
        return tables if self.data.role is None else (*tables, self.data.role)

    @cached_property
    def half_of_row(self) -> Tensor:
        """The half of each row in each pair of halves, int8 [pairs, N]; see `data.halved`."""
        assert self.halves is not None  # noqa: S101  asked for only where there are halves
        return halved(self.data, self.halves, (len(self.seeds) + 1) // 2)

    def counted(self, seeds: Tensor, rows: Tensor) -> Tensor:
        """Return whether rows of numbers [..., n] count for run seeds [..., Q]: [..., Q, n] bool.

        Where there are ``halves``; else all do.
        """
        half = self.half_of_row[seeds.unsqueeze(-1) // 2, rows.unsqueeze(-2)]
        return half == seeds.unsqueeze(-1) % 2

    def rows_of(self, site: int) -> slice:
        """Return where a site's rows are."""
        return slice(self.data.offsets[site], self.data.offsets[site + 1])

    def site(self, site: int, key: Tensor, seed: int | None = None) -> SiteData:
        """Return the rows of a site; ``key``: of its batches, ``seed``: number of the run seed."""
        rows = self.rows_of(site)
        data = site_data([table[rows] for table in self.tables], self.shares[site], key)
        if seed is None or self.halves is None:
            return data
        counted = self.counted(torch.tensor([seed]), torch.arange(rows.start, rows.stop))
        return data.only(counted[0])


def _group_weights(data: FederatedData, shares: Tensor, rows: Tensor) -> dict[str, Tensor]:
    """Return the weights of the sites [C] in each group of uploads that has its own."""
    weights = {"all": shares}
    if data.role is not None:
        for role, group in enumerate(("retain", "forget", "held_out")):
            own = data.weight * (data.role == role)
            counted = torch.segment_reduce(own, "sum", lengths=torch.tensor(data.sizes))
            weights[group] = shares * counted / rows
    return weights


def population_of(populations: dict[str, Tensor], group: str) -> Tensor:
    """Return the weight of all sites in a group of uploads."""
    return populations.get(group, populations["all"])


def site_data(tables: Sequence[Tensor], share: Tensor, key: Tensor) -> SiteData:
    """Return the rows of a site from its part of `Job.tables`."""
    x, y, weight, *role = tables
    return SiteData(x, y, weight, share, key, *role)


def exchange_key(key: Tensor, exchange: str, number: int | Tensor, site: Tensor) -> Tensor:
    """Return the key of a site in an exchange of round ``number``.

    ``key`` is the run's, for a lane's own noise, or the data's, which draws the batches: the same
    for all run seeds.
    """
    return random.fold(random.fold(key, exchange, number), site)


class Carried(NamedTuple):
    """What goes from exchange to exchange, for S seeds; leaves [S, ...] unless said otherwise.

    ``ledger`` [S, C]: the last exchange of each site that was accepted; ``seen`` [S, C]: the last
    one in which it was served; -1 for never.
    """

    server: Any
    broadcast: Broadcast
    store: ClientStore
    ledger: Tensor
    seen: Tensor
    tick: int


class Report(NamedTuple):
    """What an exchange cost and said.

    ``info``: diagnostics, leaves [S], of an exchange in which every seed asked somebody.
    ``bytes_up``, ``bytes_down`` [S]: of the sites' messages. ``rejected``: (seed, site) pairs with
    a non-finite upload. ``bytes_regions`` [S]: of what regions pass on to the server. ``remarks``:
    what became of sites that did not answer as they should.
    """

    info: dict[str, Tensor]
    bytes_up: Tensor
    bytes_down: Tensor
    rejected: Tensor
    bytes_regions: Tensor
    remarks: Mapping[str, str] = MappingProxyType({})


class Work(NamedTuple):
    """What a site made of a request: what is sent of its upload, its state after, diagnostics.

    ``bytes`` of the messages; ``releases``: how often something with noise was told of the rows.
    """

    sent: Upload
    state: Any
    info: Info
    bytes: Tensor
    releases: int


def work(
    job: Job,
    exchange: str,
    shared: Tree,
    state: Any,
    data: SiteData,
    key: Tensor,
    problem: Problem | None = None,
) -> Work:
    """Do a site's part of an exchange: its round, and the way of its upload into the channel.

    ``problem``: another form of the job's, for this engine.
    """
    problem = problem or job.problem
    client, residual = state
    guard = None if job.privacy is None else Guard(job.privacy, job.secret, key)
    seen = (problem, data) if guard is None else guard.rows(problem, data)
    upload, client, info = job.algorithm.client_round(
        seen[0], shared, client, seen[1], key, exchange
    )
    sent, residual, size = _send(job, exchange, upload, residual, guard)
    client = job.algorithm.sent(client, sent, exchange)
    if guard is None:
        return Work(sent, (client, residual), info, size, 0)
    told = {} if guard.privacy.level == "site" else info
    return Work(sent, (client, residual), told, size, guard.releases)


def _send(
    job: Job, exchange: str, upload: Upload, residual: Any, guard: Guard | None
) -> tuple[Upload, Any, Tensor]:
    """Pass the groups of one site's upload through the channel; also return the bytes."""
    protect = None if guard is None else guard.message(job.algorithm.clear_parts())
    sent, kept, size = {}, dict(residual), torch.zeros((), dtype=torch.int64)
    for group, (tree, weight) in upload.items():
        name = f"{exchange}/{group}"
        sent_tree, kept[name] = job.channel.send(job.problem, residual[name], tree, protect)
        sent[group] = (sent_tree, weight)
        # A site that has no row of a group sends nothing for it.
        size = size + torch.where(weight > 0, messages.size(sent_tree), 0)
    return sent, kept, size


def releases(job: Job, exchange: str) -> int:
    """Return how many releases a site makes in an exchange for a seed: the same for every site.

    Counted in a discarded call with the rows of one site; 0 without privacy.

    Raises:
        ValueError: at level ``sample``, the rows are looked at in another way than by an operator.
    """
    if job.privacy is None:
        return 0
    server = trees.unstack(start_servers(job, [0]), 0)
    shared = job.algorithm.download(job.problem, server, exchange)
    state, key = state_template(job, shared), job.run_keys[0]
    done = work(job, exchange, shared, state, job.site(0, key), key)
    if not done.releases:
        name = type(job.algorithm).__name__
        msg = f"{name} does not work by an operator on the rows; use privacy at level='site'"
        raise ValueError(msg)
    return done.releases


def region_message(mean: Tree, weight: Tensor) -> Tree:
    """Return what a region passes on to the server: the mean of its sites, and their weight."""
    return {**mean, "weight": weight}


def begin(job: Job, server: Any = None) -> Carried:
    """Return what is carried before the first exchange.

    Without ``server`` (ServerStates [S, ...]) the algorithm starts from the run keys, which the
    sites have too, so that the start costs no message. A discarded call of every exchange with the
    rows of one site tells the shapes of the states.
    """
    known = server is None
    if known:
        server = start_servers(job, range(len(job.seeds)))
    shared = first_download(job, server)
    return Carried(
        server=server,
        broadcast=start_broadcast(shared, known=known),
        store=ClientStore(state_template(job, trees.unstack(shared, 0)), len(job.seeds)),
        ledger=torch.full_like(job.eligible, -1, dtype=torch.int32),
        seen=torch.full_like(job.eligible, -1, dtype=torch.int32),
        tick=0,
    )


def start_servers(job: Job, seeds: Iterable[int]) -> Any:
    """Return the ServerStates [s, ...] with which these seeds begin, drawn from their run keys."""
    return trees.stack(
        job.algorithm.server_init(job.problem, random.fold(job.run_keys[s], "start")) for s in seeds
    )


def first_download(job: Job, server: Any) -> Tree:
    """Return what is downloaded first from ServerStates [s, ...]."""
    first = job.algorithm.exchanges_at(0)[0]
    shared: Tree = vmap(lambda s: job.algorithm.download(job.problem, s, first))(server)
    return shared


def state_template(job: Job, shared: Tree) -> Any:
    """Return (client state, channel state) of a site that was never asked, for one seed."""
    client = job.algorithm.client_init(job.problem, shared)
    key = job.run_keys[0]
    data, residuals = job.site(0, key), {}
    for exchange in dict.fromkeys(job.algorithm.exchanges_at(0) + job.algorithm.exchanges_at(1)):
        upload, _, _ = job.algorithm.client_round(job.problem, shared, client, data, key, exchange)
        for group, (tree, _) in upload.items():
            residuals[f"{exchange}/{group}"] = job.channel.init(job.problem, tree)
    return client, residuals


class Engine(ABC):
    """Runs one exchange of an algorithm at the sites and on the server."""

    def remember(self, *states: Carried) -> None:  # noqa: B027  most engines need not know
        """Be told, before every round, which states the run may be brought back to."""

    @abstractmethod
    def exchange(
        self, job: Job, carried: Carried, round_number: int, exchange: str, participants: Tensor
    ) -> tuple[Carried, Report]:
        """Return what is carried on, and the report.

        ``participants`` [S, C]: the sites that are asked, for every seed the same number or none.
        """
