"""The round loop: participation, exchanges, evaluation, recovery, history."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedsift import accounting, aggregation, channels, noise, trees
from fedsift.aggregation import Aggregator, name_of
from fedsift.algorithms.base import Algorithm
from fedsift.callbacks import Callback, CallbackError
from fedsift.channels import Channel
from fedsift.checkpoints import StageCheckpoint, Watched, resume_training, save_training
from fedsift.data import FederatedData, RemoteData
from fedsift.engines import Plan, cannot_batch, make_engine, make_plan
from fedsift.engines.base import (
    Carried,
    Delivery,
    Engine,
    Job,
    Tampering,
    Weights,
    begin,
    releases,
)
from fedsift.evaluation import OwnValues, evaluate
from fedsift.heap import keep_freed_memory
from fedsift.joins import keep_before_joins
from fedsift.privacy import Privacy, check
from fedsift.problems import Problem
from fedsift.recovery import Retained, recover, reset, retain
from fedsift.sealed import fingerprint
from fedsift.trees import Tree

log = logging.getLogger(__name__)

Watch = Callable[["Training"], bool]


@dataclass(frozen=True)
class EarlyStop:
    """Ends a run when no seed has a lower loss on validation rows for a while; keeps the best.

    Attributes:
        rows: validation rows, in the units of the training rows.
        patience: evaluations without a lower loss.
    """

    rows: FederatedData
    patience: int = 5


class Best(NamedTuple):
    """The lowest validation loss of each seed [S], its ServerState, and evaluations since."""

    loss: Tensor
    server: Any
    stale: Tensor


@dataclass
class Training:
    """A training run in progress: everything that changes, and the result when it is done.

    Attributes:
        job: what is trained, on what.
        carried: states; see `engines.base.Carried`.
        round: rounds done.
        history: a record a round.
        bytes_up, bytes_down: totals for every seed, [S].
        bytes_regions: the part of ``bytes_up`` between regions and server, [S].
        retries: how often each seed was rolled back, [S].
        first_loss: the loss at the start, [S].
        best: what early stopping keeps.
        retained: the last healthy state.
        plan: how the work is done, None before that is decided.
        fingerprint: what a checkpoint must have been written for.
        spent: privacy's releases so far of each site, of all seeds together, [C].
        watched: what a watch wants to be kept in checkpoints.
        ended: a watch has ended the run.
    """

    job: Job
    carried: Carried
    round: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    bytes_up: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    bytes_down: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    bytes_regions: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    retries: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    first_loss: Tensor | None = None
    best: Best | None = None
    retained: Retained | None = None
    plan: Plan | None = None
    fingerprint: str = ""
    spent: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    watched: Watched | None = None
    ended: bool = False

    @property
    def params(self) -> Tree:
        """The solutions of all seeds, leaves [S, ...]."""
        solution: Tree = vmap(lambda s: self.job.algorithm.solution(self.job.problem, s))(
            self.carried.server
        )
        return solution

    @property
    def own(self) -> OwnValues:
        """The sites' own values of private leaves, by site, leaves [S, ...]; {} without such.

        Of sites that have worked for some seed; for other seeds they are the shared ones. Of sites
        on other machines: where they find theirs.
        """
        private, store = self.job.problem.private, self.carried.store
        if private and isinstance(self.job.data, RemoteData):
            return self.job.data.way.own(self.job, self.carried.ledger)
        if not private or not store.row_of:
            return {}
        count, sites = len(self.job.seeds), torch.tensor(list(store.row_of))
        rows = torch.tensor(list(store.row_of.values())).repeat_interleave(count)
        seeds = torch.arange(count).repeat(len(sites))
        client, _ = store.peek(rows, seeds, self.carried.ledger[:, sites].T.reshape(-1))
        shared = {leaf: self.params[leaf][seeds] for leaf in private}
        values = trees.where(client.own.trained > 0, client.own.values, shared)
        by_site = trees.map_tensors(lambda t: t.reshape(len(sites), count, *t.shape[1:]), values)
        return {
            self.job.data.sites[site]: trees.unstack(by_site, place)
            for place, site in enumerate(sites.tolist())
        }

    @property
    def epsilon(self) -> float | None:
        """ε that is spent, of the site that told most; None without privacy."""
        privacy = self.job.privacy
        return None if privacy is None else privacy.spent(int(self.spent.max()))


def train(
    problem: Problem,
    data: FederatedData,
    algorithm: Algorithm,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    data_seed: int = 0,
    participation: float = 1.0,
    weights: Weights = "samples",
    engine: str = "vectorized",
    compile: bool | Literal["auto"] = "auto",  # noqa: A002
    repeats: int = 1,
    channel: Channel | None = None,
    evaluate_every: int = 10,
    evaluate_sites: int | None = 1000,
    aggregator: Aggregator = aggregation.mean,
    regions: int | Mapping[str, str] | None = None,
    start: Any = None,
    eligible: Tensor | None = None,
    delivery: Delivery | None = None,
    tampering: Tampering | None = None,
    early_stop: EarlyStop | None = None,
    callback: Callback | None = None,
    watch: Watch | None = None,
    checkpoint: StageCheckpoint | None = None,
    joins: Path | None = None,
    withdrawn: Callable[[int], Collection[str]] | None = None,
    privacy: Privacy | None = None,
    noise_seed: int | None = None,
    spent: Tensor | None = None,
    halves: int | None = None,
) -> Training:
    """Train an algorithm and return the finished run.

    Args:
        problem: what is solved.
        data: rows of the sites; those of `RemoteData` are worked on where they are, whatever
            ``engine`` says.
        algorithm: how.
        rounds: rounds to run; the algorithm's own number by default.
        seeds: run seeds; all run together, each with its own start, noise and participants.
        data_seed: draws the batches, the same for all run seeds.
        participation: a fraction in (0, 1], or a number of sites a round.
        weights: averages weigh a site by its samples, or all sites alike.
        engine: ``vectorized`` or ``loop``.
        compile: fuse the work with `torch.compile`; "auto": when that pays by an estimate.
        repeats: how many runs of this shape there will be, for that estimate.
        channel: what travels; lossless by default.
        evaluate_every: rounds between evaluations on the training rows (and the last round).
        evaluate_sites: sites whose rows are evaluated, always the same, drawn by ``data_seed``
            where there are more; None: all.
        aggregator: combines the uploads; see `fedsift.robust` for rules that bear wrong ones.
        regions: uploads are summed up region by region before the server sums up the regions: a
            number of regions, to which sites are dealt by a hash of their names, or the name of
            each site's region. The result is the same to rounding; downloads pass through.
        start: ServerStates [S, ...] to begin from.
        eligible: which sites [S, C] may take part for each seed; all by default.
        delivery: decides which uploads arrive, for fault injection.
        tampering: changes uploads on their way, to see what hostile sites could do.
        early_stop: ends the run on validation rows, and keeps each seed's best state.
        callback: called with each round's record.
        watch: called with the run after each round, to look at it; a true answer ends it.
        checkpoint: where to keep the state; a run begins from what is there.
        joins: folder for the states before the rounds in which sites join late, from which a
            training without them can go on (`fedsift.joins`).
        withdrawn: called before every round with its number; the sites that it names are not asked
            again, for a request to forget that comes during the training.
        privacy: clips and noises what is told of the rows; nothing is evaluated then, and the
            records have ``epsilon`` and ``delta``.
        noise_seed: for tests alone: draws the noise, and whoever knows it can take it off.
        spent: releases of each site's rows before, with the same noise, [C]; they are accounted
            for together.
        halves: a seed that halves every site's rows in pairs (`data.halved`): of the run seeds the
            first two work on the halves of one pair, the next two on those of another, and so on.

    Raises:
        ValueError: a channel or an aggregator that the algorithm cannot work with, bad numbers, or
            what `privacy` does not cover.
        TrainingError: a seed diverged again and again.
    """
    keep_freed_memory()
    channel = channel or channels.Lossless()
    check_pair(algorithm, channel, aggregator)
    rounds = algorithm.rounds if rounds is None else rounds
    _check_numbers(
        problem, data, seeds, rounds, participation, weights, evaluate_every, evaluate_sites
    )
    job = Job(
        problem,
        data,
        algorithm,
        channel,
        aggregator,
        tuple(seeds),
        data_seed,
        weights,
        eligible,
        delivery,
        None if regions is None else aggregation.assign_regions(data.sites, regions),
        tampering,
        None if privacy is None else privacy.planned(1),
        noise.secret(noise_seed),
        halves,
    )
    if privacy is not None:
        check(privacy, problem, data, algorithm, weights)
        _check_uses(seeds, early_stop, checkpoint, joins, halves)
        job = replace(job, privacy=_planned(job, privacy, rounds, participation))
    algorithm.refuse(problem)
    if early_stop is not None and problem.private:
        msg = (
            "early stopping goes back to a state of the server, but sites do not go back to their"
            f" own values ({', '.join(problem.private)}); leave it out"
        )
        raise ValueError(msg)
    zeros = torch.zeros(len(seeds), dtype=torch.int64)
    run = Training(job, begin(job, start), 0, [], zeros, zeros, zeros, zeros)
    run.spent = torch.zeros(data.n_sites, dtype=torch.int64) if spent is None else spent
    if early_stop is not None:
        never = torch.full((len(seeds),), torch.inf, dtype=torch.float64)
        run.best = Best(never, run.carried.server, torch.zeros((), dtype=torch.int64))
    if checkpoint is not None or joins is not None:
        given = None if checkpoint is None else checkpoint.fingerprint
        run.fingerprint = given or fingerprint(data.fingerprint(), participation, evaluate_every)
    at_start = run.params
    if checkpoint is not None:
        resume_training(checkpoint.path, run)
    remote = data if isinstance(data, RemoteData) else None
    batched = engine == "vectorized" and remote is None
    reason = cannot_batch(job, run.carried) if batched else None
    if reason is not None:
        log.warning("this model cannot be batched (%s): the slower loop engine is used", reason)
        engine, batched = "loop", False
        run.job = replace(job, problem=replace(problem, batched=False))
    if run.plan is None:
        first = job.participants(0, participation)
        run.plan = (
            make_plan(job, first, rounds, fuse=compile, repeats=repeats) if batched else Plan()
        )
    sample = job.sample(evaluate_sites)
    if run.first_loss is None and privacy is None:
        loss = evaluate(run.job.problem, at_start, data, sample)["loss"]
        run.first_loss = torch.where(torch.isfinite(loss), loss, torch.inf)
    loop = _Loop(
        run,
        rounds,
        participation,
        evaluate_every,
        sample,
        callback,
        checkpoint,
        early_stop,
        watch,
        joins,
        withdrawn,
    )
    loop.proceed(remote.way.engine() if remote is not None else make_engine(engine, run.plan))
    return run


def _check_numbers(
    problem: Problem,
    data: FederatedData,
    seeds: Sequence[int],
    rounds: int,
    participation: float,
    weights: str,
    evaluate_every: int,
    evaluate_sites: int | None,
) -> None:
    fraction = not isinstance(participation, int)
    most = 1 if fraction else data.n_sites
    wrong = {
        f"seeds is {list(seeds)}; give one whole number or more": not len(seeds),
        f"rounds is {rounds}; give 1 or more": rounds < 1,
        f"evaluate_every is {evaluate_every}; give 1 or more": evaluate_every < 1,
        f"evaluate_sites is {evaluate_sites}; give 1 or more, or None for all": evaluate_sites
        is not None
        and evaluate_sites < 1,
        f"weights is {weights!r}; give 'samples' or 'uniform'": weights
        not in {"samples", "uniform"},
        f"participation is {participation}; give a fraction in (0, 1], or a whole number of the "
        f"{data.n_sites} sites": not 0 < participation <= most,
        f"the problem is for a {problem.outcome} target, {data.target!r} is {data.outcome}; give "
        f"the problem the outcome of the data": problem.outcome not in {None, data.outcome},
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)


def _check_uses(
    seeds: Sequence[int],
    early_stop: EarlyStop | None,
    checkpoint: StageCheckpoint | None,
    joins: Path | None,
    halves: int | None,
) -> None:
    """Refuse uses of the rows that privacy does not cover."""
    wrong = {
        f"seeds is {list(seeds)}; two that are equal would have the same noise: give each once":
            len(set(seeds)) < len(seeds),
        "early stopping looks at the loss of rows, without noise; leave it out under privacy":
            early_stop is not None,
        "a checkpoint holds what sites keep to themselves, and a run that went on from it would"
        " spend privacy again; leave it out": checkpoint is not None or joins is not None,
        "halves of the rows would be told of as often as the whole, and tell how many rows there"
        " are; leave them out under privacy": halves is not None,
    }  # fmt: skip
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)


def _planned(job: Job, privacy: Privacy, rounds: int, participation: float) -> Privacy:
    """Return privacy with the noise for these rounds."""
    if privacy.noise is not None:
        return privacy
    return privacy.planned(int(accounting.planned(job, rounds, participation).max()))


def check_pair(
    algorithm: Algorithm, channel: Channel, aggregator: Aggregator = aggregation.mean
) -> None:
    """Refuse what breaks a sum over sites, or compares messages that are zeros for the most part.

    Raises:
        ValueError: the text says what to use instead.
    """
    robust = aggregator is not aggregation.mean
    if robust and algorithm.only_mean is not None:
        msg = (
            f"{type(algorithm).__name__} cannot be aggregated by {name_of(aggregator)}: "
            f"{algorithm.only_mean}; use the mean"
        )
        raise ValueError(msg)
    if robust and not channel.lossless:
        msg = (
            f"{name_of(aggregator)} compares whole uploads, and most numbers of a message that "
            "keeps only the largest entries are zeros; use messages='dense', or the mean"
        )
        raise ValueError(msg)
    if algorithm.tracks_uploads and not channel.lossless:
        name = type(algorithm).__name__
        msg = (
            f"{name} needs a lossless channel: its sites remember what they uploaded, and a "
            "message that keeps only the largest entries would break the sum over sites; "
            "use messages='dense'"
        )
        raise ValueError(msg)


@dataclass
class _Loop:
    """The rounds that are left, and the last healthy state on the way."""

    run: Training
    rounds: int
    participation: float | int
    every: int
    sample: list[int] | None
    callback: Callback | None
    checkpoint: StageCheckpoint | None
    early_stop: EarlyStop | None
    watch: Watch | None = None
    joins: Path | None = None
    withdrawn: Callable[[int], Collection[str]] | None = None

    def __post_init__(self) -> None:
        self.retained = self.run.retained or retain(self.run)
        self.releases: dict[str, int] = {}
        self.saved = time.monotonic()

    @property
    def retained(self) -> Retained:
        """The last healthy state."""
        assert self.run.retained is not None  # noqa: S101  set before the first round
        return self.run.retained

    @retained.setter
    def retained(self, state: Retained) -> None:
        self.run.retained = state

    def proceed(self, engine: Engine) -> None:
        """Run to the end; a stop keeps the last healthy state, to go on from."""
        try:
            while self.run.round < self.rounds and not self._over():
                self._round(engine)
        except (KeyboardInterrupt, CallbackError):
            if self.checkpoint is not None and not self._passing:
                reset(self.run, self.retained)
                save_training(self.checkpoint.path, self.run)
            raise
        if self.run.best is not None:
            self.run.carried = self.run.carried._replace(server=self.run.best.server)
        if self.checkpoint is not None:
            save_training(self.checkpoint.path, self.run)

    def _over(self) -> bool:
        return self.run.ended or self._stale() or self._finished()

    @property
    def _remote(self) -> bool:
        return isinstance(self.run.job.data, RemoteData)

    @property
    def _passing(self) -> bool:
        """Whether rounds count for good: remote sites, or a watch, go back to no earlier one."""
        return self._remote or self.watch is not None

    def _figures(self) -> dict[str, Tensor]:
        """Return the figures [S] of now; with privacy none, for they have no noise."""
        job = self.run.job
        if job.privacy is not None:
            return {}
        return evaluate(job.problem, self.run.params, job.data, self.sample, self.run.own)

    def _loss(self, figures: dict[str, Tensor]) -> Tensor:
        """Return the loss [S], 0 where it is not known."""
        return figures.get("loss", torch.zeros(len(self.run.job.seeds)))

    def _stale(self) -> bool:
        best, stop = self.run.best, self.early_stop
        return best is not None and stop is not None and int(best.stale) >= stop.patience

    def _finished(self) -> bool:
        """Return whether the algorithm has ended every seed's run."""
        run = self.run
        return bool(run.job.algorithm.finished(run.carried.server).all())

    def _compare(self) -> None:
        """Keep the state of every seed whose validation loss is the lowest so far."""
        best = self.run.best
        if best is None or self.early_stop is None:
            return
        loss = evaluate(self.run.job.problem, self.run.params, self.early_stop.rows)["loss"]
        better = loss < best.loss
        self.run.best = Best(
            torch.where(better, loss, best.loss),
            trees.where(better, self.run.carried.server, best.server),
            torch.where(better.any(), 0, best.stale + 1),
        )

    def _round(self, engine: Engine) -> None:
        run, began = self.run, time.perf_counter()
        self._let_go()
        participants = run.job.participants(run.round, self.participation)
        keep_before_joins(self.joins, run, participants)
        info: dict[str, Tensor] = {}
        rejected: set[str] = set()
        remarks: dict[str, str] = {}
        engine.remember(self.retained.carried, run.carried)
        for exchange, asked in run.job.exchanges(run.carried, run.round, participants):
            self._charge(exchange, asked)
            run.carried, report = engine.exchange(run.job, run.carried, run.round, exchange, asked)
            run.bytes_up = run.bytes_up + report.bytes_up + report.bytes_regions
            run.bytes_down = run.bytes_down + report.bytes_down
            run.bytes_regions = run.bytes_regions + report.bytes_regions
            info |= report.info
            rejected |= {run.job.data.sites[c] for c in report.rejected[:, 1].tolist()}
            remarks |= report.remarks
        run.round += 1
        record: dict[str, Any] = {"round": run.round}
        if rejected:
            record["rejected"] = sorted(rejected)
        if remarks:
            record["remarks"] = dict(sorted(remarks.items()))
        due = run.round % self.every == 0 or run.round in {1, self.rounds}
        figures = self._figures() if due else {}
        healthy = (
            recover(run, self._loss(figures), self.retained, participants)
            if due
            else torch.ones(1, dtype=torch.bool)
        )
        if figures and self.sample is not None:
            record["evaluated_sites"] = len(self.sample)
        if healthy.any():
            record |= {name: float(value[healthy].mean()) for name, value in figures.items()}
        record |= {name: float(value.double().mean()) for name, value in info.items()}
        record |= {
            "exchanges": run.carried.tick,
            "bytes_up": int(run.bytes_up.sum()),
            "bytes_down": int(run.bytes_down.sum()),
            **_by_level(run),
            **_promise(run),
            "seconds": time.perf_counter() - began,
            "sites": _who(run, participants),
        }
        run.history.append(record)
        if due and healthy.all():
            self._compare()
            self._keep()
        elif due:
            # A seed that diverges again before the next healthy state must not try the same step.
            server = trees.where(healthy, self.retained.carried.server, run.carried.server)
            self.retained = self.retained._replace(
                carried=self.retained.carried._replace(server=server)
            )
        run.ended = self.watch is not None and self.watch(run)
        if self._passing:
            self._save(at_once=self._remote)
        if self.callback is not None:
            self.callback(record)

    def _charge(self, exchange: str, asked: Tensor) -> None:
        """Account for an exchange with those asked, [S, C], before it happens."""
        run = self.run
        if run.job.privacy is None:
            return
        if exchange not in self.releases:
            self.releases[exchange] = releases(run.job, exchange)
        run.spent = run.spent + self.releases[exchange] * asked.sum(0)

    def _let_go(self) -> None:
        """Ask sites that have withdrawn no more."""
        if self.withdrawn is None:
            return
        job, names = self.run.job, set(self.withdrawn(self.run.round))
        gone = torch.tensor([name in names for name in job.data.sites])
        if not (job.eligible & gone).any():
            return
        if (job.eligible & ~gone).any():
            self.run.job = replace(job, allowed=job.eligible & ~gone)
        else:
            msg = "every site has withdrawn; there is nothing to train on"
            raise ValueError(msg)

    def _keep(self) -> None:
        self.retained = retain(self.run)
        if not self._passing:
            self._save()

    def _save(self, *, at_once: bool = False) -> None:
        """Write a checkpoint if the last one is old enough."""
        if self.checkpoint is None:
            return
        if at_once or time.monotonic() - self.saved > self.checkpoint.every:
            save_training(self.checkpoint.path, self.run)
            self.saved = time.monotonic()


def _promise(run: Training) -> dict[str, float]:
    """Return the (ε, δ) so far, with privacy."""
    privacy = run.job.privacy
    if privacy is None:
        return {}
    return {"epsilon": privacy.spent(int(run.spent.max())), "delta": privacy.delta}


def _by_level(run: Training) -> dict[str, dict[str, int]]:
    """Return the bytes sent upwards by sites and by regions, where there are regions."""
    if run.job.regions is None:
        return {}
    regions = int(run.bytes_regions.sum())
    return {"bytes_up_by_level": {"sites": int(run.bytes_up.sum()) - regions, "regions": regions}}


def _who(run: Training, participants: Tensor) -> dict[str, int]:
    """Return how many seeds each participating site worked for."""
    counts = participants.sum(0)
    some = counts.nonzero().squeeze(1)
    names = run.job.data.sites
    return {names[c]: n for c, n in zip(some.tolist(), counts[some].tolist(), strict=True)}
