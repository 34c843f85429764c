"""One case of what a user asks for: select features, refit them, score on held-out rows.

A study runs each method on each case (a split of the rows, or a synthetic data set): all seeds
search together, their ensemble picks the features, a ridge refit on the picked features follows,
and the test rows are scored once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift import decoys, trees
from fedsift.accounting import planned
from fedsift.aggregation import AGGREGATORS, Aggregator
from fedsift.algorithms import Algorithm, Tuning
from fedsift.callbacks import Callback, adding
from fedsift.channels import Channel, Lossless
from fedsift.checkpoints import StageCheckpoint
from fedsift.controlled import (
    Choice,
    by_decoys,
    by_halves,
    importance,
    least_threshold,
)
from fedsift.data import FederatedData, Standardiser, split
from fedsift.data.errors import DataWarning, nearest
from fedsift.data.remote import OwnThere
from fedsift.engines import Plan
from fedsift.engines.base import Job
from fedsift.evaluation import OwnValues, evaluate
from fedsift.inference import check_half
from fedsift.linear_problems import constants_of, linear_problem
from fedsift.methods import Method, find_method
from fedsift.privacy import Privacy, check
from fedsift.private_fits import check_data, check_settings, promise
from fedsift.problems import Problem
from fedsift.selection import ensemble_support
from fedsift.settings import Settings, effective
from fedsift.sparsity import grouping
from fedsift.training import EarlyStop, Training, check_pair, train
from fedsift.trees import Tree


def check_request(settings: Settings, methods: Sequence[str], data: FederatedData) -> None:
    """Refuse what cannot be done with the data, before anything is written.

    Raises:
        ValueError: the text names the setting, its value and the next action.
    """
    if not methods:
        msg = "no method is named; give one or several of fedsift's methods"
        raise ValueError(msg)
    if settings.participation > max(1, data.n_sites):
        msg = (
            f"participation is {settings.participation:.0f} sites a round, the data have "
            f"{data.n_sites}; give at most {data.n_sites}, or a fraction up to 1"
        )
        raise ValueError(msg)
    if settings.validation != "splits" and data.n_sites < 2:
        msg = f"there is one site ('{data.sites[0]}'): none can be held out; give the files of two"
        raise ValueError(msg)
    if settings.hazard_times and data.outcome != "survival":
        msg = f"hazard_times are for survival, and '{data.target}' is {data.outcome}; leave it out"
        raise ValueError(msg)
    _check_site_intercepts(settings, methods, data)
    rows = {find_method(name).rows for name in methods}
    if settings.messages != "auto" and rows == {"pooled"}:
        msg = (
            f"messages is {settings.messages!r}, but {methods[0]} has all rows in one place and "
            "sends none; leave it out"
        )
        raise ValueError(msg)
    if settings.privacy is not None:
        check_data(methods, data)
        check_settings(dict(settings))
    _check_groups(settings, methods, data)
    kept = _check_kept(settings, methods, data)
    density = kept / settings.gates(data)
    algorithms = [search_algorithm(settings, find_method(name), density) for name in methods]
    problem = linear_problem(data, settings.gate, settings.groups_in(data))
    problem = _with_site_intercepts(problem, settings)
    for name, algorithm in zip(methods, algorithms, strict=True):
        algorithm.refuse(problem)
        method = find_method(name)
        if settings.privacy is not None:
            check(settings.privacy, problem, data, algorithm, settings.weights)
        check_pair(algorithm, _channel(settings, method, kept), _aggregator(settings, method))
    if settings.schedule == "cubic" and not any(hasattr(a, "schedule") for a in algorithms):
        msg = (
            f"{methods[0]} has no density schedule, for it is dense while it trains; "
            "with a schedule it is fedht: use --method fedht"
        )
        raise ValueError(msg)


def _check_site_intercepts(settings: Settings, methods: Sequence[str], data: FederatedData) -> None:
    """Refuse intercepts of sites where rows are in one place, or have no intercept.

    Raises:
        ValueError: the text says why.
    """
    if settings.site_intercepts is None:
        return
    other = next((name for name in methods if find_method(name).rows != "federated"), None)
    wrong = {
        f"{other} has no sites that train together, and site_intercepts are of those; use another"
        " method, or leave them out": other is not None,
        f"the target '{data.target}' is a time until an event, where the baseline hazard of each"
        " site takes the place of an intercept; leave site_intercepts out":
            data.outcome == "survival",
    }  # fmt: skip
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)


def _check_groups(settings: Settings, methods: Sequence[str], data: FederatedData) -> None:
    """Warn of groups' features that the data do not have, and refuse methods without gates.

    Raises:
        ValueError: a solver chooses single features, or no group has a feature of the data.
    """
    groups = settings.groups_in(data)
    if groups is None:
        return
    single = [name for name in methods if find_method(name).once]
    if single:
        msg = f"{single[0]} has a solver that chooses single features; with groups use eflops"
        raise ValueError(msg)
    for note in groups.notes():
        warnings.warn(note, DataWarning, stacklevel=3)


def _check_kept(settings: Settings, methods: Sequence[str], data: FederatedData) -> int:
    """Return how many columns each run of the search keeps.

    Raises:
        ValueError: too many, or the error rate that is asked for cannot be kept with them.
    """
    kept = settings.kept(settings.gates(data))
    if settings.intervals == "split":
        check_half(data, settings.seed, 1 if settings.controlled else kept)
    if not settings.controlled:
        return kept
    alone = [name for name in methods if find_method(name).rows == "alone"]
    if alone:
        msg = (
            f"{alone[0]} chooses features at each site by itself; fdr and pfer are of a choice by"
            " all: use another method"
        )
        raise ValueError(msg)
    if data.covariates:
        msg = (
            "fdr and pfer take no covariates: they are fitted to all rows before, and have no"
            " decoys; leave covariates out, or say how many features"
        )
        raise ValueError(msg)
    if settings.pfer is not None:
        least_threshold(settings.pfer, kept, data.n_features, settings.pairs, settings.assume)
    else:
        decoys.check(data, settings.decoys)
    return kept


class Case(NamedTuple):
    """One fit: training rows, test rows if any, and the true support if known."""

    name: str
    train: FederatedData
    test: FederatedData | None = None
    truth: frozenset[str] | None = None


@dataclass(frozen=True)
class Fit:
    """What a method made of a case. L lanes: S seeds, for ``alone`` those of each site in turn.

    Attributes:
        masks, magnitudes: [L, G] the gates each lane chose, and its effective weights.
        support: [E, G] the ensembles' choices, one, or one a site.
        params: refitted parameters, leaves [L + E, ...], the ensembles last.
        own: sites' own intercepts in them, by site, leaves [L + E, ...]; {} without such.
        scores: test figures of every lane and ensemble, [L + E], if there are test rows.
        bytes_up, bytes_down, bytes_dense: of all seeds, refit included; dense: if every number of
            the model travelled both ways.
        bytes_formula: of the search's uploads by the paper's count (`Method.formula`).
        plan: how the search was worked on (`engines.Plan`), by name.
        history: records of the search and the refit.
        privacy: what is promised (`private_fits.promise`), {} without privacy.
        control: how errors were controlled (`controlled.Choice.facts`), {} if they were not.
    """

    masks: Tensor
    magnitudes: Tensor
    weights: Tensor
    support: Tensor
    params: Tree
    scores: dict[str, Tensor]
    bytes_up: int
    bytes_down: int
    bytes_dense: int
    bytes_formula: int
    plan: dict[str, Any]
    history: list[dict[str, Any]]
    privacy: dict[str, Any] = field(default_factory=dict)
    control: dict[str, Any] = field(default_factory=dict)
    own: OwnValues = field(default_factory=dict)

    @property
    def n_lanes(self) -> int:
        """The number of lanes, L."""
        return len(self.masks)

    def ensembles(self) -> Tree:
        """Return the refitted parameters of the ensembles, leaves [E, ...]."""
        chosen: Tree = trees.map_tensors(lambda t: t[self.n_lanes :], self.params)
        return chosen

    def ensemble(self) -> Tree:
        """Return the refitted parameters of the (first) ensemble."""
        first: Tree = trees.unstack(self.ensembles(), 0)
        return first

    def own_of_ensembles(self) -> OwnValues:
        """Return the sites' own intercepts in the ensembles' models, leaves [E, ...]."""
        if isinstance(self.own, OwnThere):
            return self.own.of_seeds(slice(self.n_lanes, None))
        return {
            site: {leaf: value[self.n_lanes :] for leaf, value in values.items()}
            for site, values in self.own.items()
        }


def fit_case(
    case: Case,
    settings: Settings,
    standardiser: Standardiser,
    *,
    callback: Callback | None = None,
    checkpoint: StageCheckpoint | None = None,
    repeats: int = 1,
    joins: Path | None = None,
) -> Fit:
    """Search with all seeds, pick by ensemble, refit with a ridge, score the test rows.

    ``callback``: called with each round's record, which begins with its ``stage``. ``repeats``: how
    many such cases there are, to decide whether compiling pays. ``joins``: folder for the search's
    states before sites joined late, which rows that were standardised by all of them, or whose loss
    has a constant of them, do not have.
    """
    method = find_method(settings.method)
    settings = effective(settings)
    rows = standardiser.apply(case.train)
    made = None if settings.fdr is None else decoys.learn(rows, settings.decoys, settings.seed)
    searched = rows if made is None else decoys.apply(rows, made)
    if method.rows == "pooled":
        rows, searched = rows.pooled(), searched.pooled()
    constants = constants_of(rows, standardiser.target_scale)
    problem = linear_problem(rows, settings.gate, constants=constants)
    problem = as_asked(problem, rows, settings, method)
    if standardiser.learned or constants or settings.privacy or settings.site_intercepts:
        joins = None
    private = planned_privacy(rows, settings)
    settings = settings.model_copy(update={"privacy": private and private[0]})
    first = _covariates_first(
        problem, rows, settings, method, _of_stage(callback, "covariates"), checkpoint
    )
    groups = settings.groups_in(rows)
    layout = None if groups is None else grouping(rows.n_candidates, groups.members)
    sought = linear_problem(searched, settings.gate, groups, constants=constants)
    sought = as_asked(sought, searched, settings, method)
    if first is not None:
        sought = sought.beginning(
            {leaf: value[0] for leaf, value in first.params.items() if leaf != "weight"}
        )
    kept, tell = settings.kept(sought.gates.size), _of_stage(callback, "search")
    search = _search(sought, searched, settings, method, kept, tell, checkpoint, repeats, joins)
    params, choice = _chosen(search.params, settings, rows.features)
    magnitudes = torch.func.vmap((sought if made is None else problem).gates.magnitude)(params)
    masks = (magnitudes > 0).to(magnitudes.dtype)
    places = rows.n_sites if method.rows == "alone" else 1
    if choice is None:
        by_place = zip(masks.chunk(places), magnitudes.chunk(places), strict=True)
        support = torch.stack([ensemble_support(m, w, kept) for m, w in by_place])
    else:
        support = choice.support.unsqueeze(0)
    size, chosen, supports = (sought.gates.size, kept), masks, support
    if layout is not None:
        params = params | {"weight": layout.total(params["weight"])}
        chosen, supports = layout.columns_of(masks), layout.columns_of(support)
        size = (len(layout.gates), round(float(chosen.sum(1).mean())))
    means = trees.map_tensors(lambda t: t.reshape(places, -1, *t.shape[1:]).mean(1), params)
    start = means
    if private is None:
        start = trees.map_tensors(lambda a, b: torch.cat([a, b]), params, means)
        supports = torch.cat([chosen, supports])
    final, tuned = _refit(
        rows, settings, constants, start, supports, method, _of_stage(callback, "refit"),
        checkpoint, search.spent,
    )  # fmt: skip
    if private is not None:
        final = trees.map_tensors(lambda a, b: torch.cat([a, b]), params, final)
    scores = (
        {}
        if case.test is None
        else evaluate(problem, final, standardiser.apply(case.test), own=tuned.own)
    )
    stages = {"covariates": first, "search": search, "refit": tuned}
    done = {name: run for name, run in stages.items() if run is not None}
    up, down = _bytes_sent(method, rows, list(done.values()))
    return Fit(
        masks=masks,
        magnitudes=magnitudes,
        weights=params["weight"],
        support=support,
        params=final,
        scores=scores,
        bytes_up=up,
        bytes_down=down,
        bytes_dense=sum(map(_dense_bytes, done.values())),
        bytes_formula=_visits(search) * method.formula(*size),
        plan=(search.plan or Plan())._asdict(),
        history=[{"stage": name, **r} for name, run in done.items() for r in run.history],
        privacy={} if private is None else promise(private[0], int(tuned.spent.max())),
        control={} if choice is None else choice.facts,
        own=tuned.own,
    )


def _chosen(
    params: Tree, settings: Settings, features: Sequence[str]
) -> tuple[Tree, Choice | None]:
    """Return a search's parameters without decoys, and the choice where errors are controlled."""
    weight = params["weight"]
    if settings.fdr is not None:
        places = decoys.places(settings.seed, len(features))
        found = by_decoys(importance(weight, places), settings.fdr, settings.fdr_rule)
        found.facts["decoys"] = settings.decoys
        return params | {"weight": weight[..., places[0]]}, found
    if settings.pfer is not None:
        masks, kept = (weight != 0).any(1).double(), settings.kept(len(features))
        return params, by_halves(masks, kept, settings.pfer, settings.assume, features)
    return params, None


def planned_privacy(rows: FederatedData, settings: Settings) -> tuple[Privacy, int] | None:
    """Return privacy with its noise, and the releases of a site's rows in search and refit.

    None without privacy.
    """
    if settings.privacy is None:
        return None
    method = find_method(settings.method)
    problem = linear_problem(rows, settings.gate, settings.groups_in(rows))
    kept = settings.kept(problem.gates.size)
    search = search_algorithm(settings, method, kept / problem.gates.size)
    total = torch.zeros(rows.n_sites, dtype=torch.int64)
    for algorithm, seeds, participation in (
        (search, settings.seeds, sites_a_round(settings)),
        (_tuning(settings), 1, 1.0),
    ):
        job = Job(
            problem,
            rows,
            algorithm,
            Lossless(),
            AGGREGATORS["mean"],
            tuple(range(settings.seed, settings.seed + seeds)),
            weights=settings.weights,
            privacy=settings.privacy.planned(1),
        )
        total += planned(job, algorithm.rounds, participation)
    releases = int(total.max())
    return settings.privacy.planned(releases), releases


def _bytes_sent(method: Method, rows: FederatedData, stages: Sequence[Training]) -> tuple[int, int]:
    """Return the bytes up and down: nothing for sites alone, the rows once for pooled ones."""
    if method.rows == "alone":
        return 0, 0
    if method.rows == "pooled":
        return 4 * rows.n_samples * (rows.n_features + 1), 0
    return (
        sum(int(run.bytes_up.sum()) for run in stages),
        sum(int(run.bytes_down.sum()) for run in stages),
    )


def search_algorithm(settings: Settings, method: Method, density: float) -> Algorithm:
    """Return the algorithm of a search.

    Raises:
        ValueError: the method cannot do what the settings ask.
    """
    named = {
        "rounds": settings.rounds,
        "schedule": settings.schedule,
        "learning_rate": settings.learning_rate,
        "local_steps": settings.local_steps,
        "batch_size": settings.batch_size,
    }
    own = {f.name for f in fields(method.algorithm)} - {"density", "gate"}
    for name in settings.knobs:
        if name not in own - method.options.keys():
            msg = f"{settings.method} has no knob {name!r}; {nearest(name, sorted(own))}"
            raise ValueError(msg)
    messages = settings.messages if method.rows == "federated" else "auto"
    return method.build(messages, density=density, **(named | settings.knobs))


def _search(
    problem: Problem,
    rows: FederatedData,
    settings: Settings,
    method: Method,
    kept: int,
    callback: Callback | None,
    checkpoint: StageCheckpoint | None,
    repeats: int,
    joins: Path | None,
) -> Training:
    algorithm = search_algorithm(settings, method, kept / problem.gates.size)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    alone = method.rows == "alone"
    return train(
        problem,
        rows,
        algorithm,
        seeds=[s for _ in rows.sites for s in seeds] if alone else list(seeds),
        eligible=torch.eye(rows.n_sites, dtype=torch.bool).repeat_interleave(len(seeds), 0)
        if alone
        else None,
        data_seed=settings.seed,
        participation=sites_a_round(settings) if method.rows == "federated" else 1.0,
        weights=settings.weights,
        engine=settings.engine,
        channel=_channel(settings, method, kept),
        aggregator=_aggregator(settings, method),
        evaluate_every=settings.evaluate_every,
        callback=callback,
        checkpoint=checkpoint and checkpoint.named("search"),
        repeats=repeats,
        joins=joins,
        privacy=settings.privacy,
        halves=None if settings.pfer is None else settings.seed,
    )


def as_asked(problem: Problem, rows: FederatedData, settings: Settings, method: Method) -> Problem:
    """Return the problem with sites' own intercepts and the penalty of the covariates, if any."""
    problem = _with_site_intercepts(problem, settings)
    if not (rows.covariates and settings.covariate_ridge):
        return problem
    total = float(rows.weight.sum()) / (rows.n_sites if method.rows == "alone" else 1)
    return problem.with_ridge(settings.covariate_ridge / total, ("covariate",))


def _with_site_intercepts(problem: Problem, settings: Settings) -> Problem:
    if settings.site_intercepts is None:
        return problem
    ridge = settings.site_ridge if settings.site_intercepts == "random" else 0.0
    return problem.with_private({"bias": ridge})


def _covariates_first(
    problem: Problem,
    rows: FederatedData,
    settings: Settings,
    method: Method,
    callback: Callback | None,
    checkpoint: StageCheckpoint | None,
) -> Training | None:
    """Fit the covariates and the intercept alone, from which the search begins.

    So features are told apart by what they add to the covariates, from the first round on. None
    without covariates, for a method that solves at once, and for sites alone, which begin at zero.
    """
    if not rows.covariates or method.once or method.rows == "alone":
        return None
    algorithm = _tuning(settings)
    nothing = torch.zeros(problem.gates.size)
    start = algorithm.start(problem, problem.init(torch.zeros((), dtype=torch.int64)), nothing)
    return train(
        problem,
        rows,
        algorithm,
        seeds=[settings.seed],
        start=trees.stack([start]),
        weights=settings.weights,
        aggregator=_aggregator(settings, method),
        engine=settings.engine,
        compile=False,
        evaluate_every=settings.evaluate_every,
        callback=callback,
        checkpoint=checkpoint and checkpoint.named("covariates"),
    )


def _tuning(settings: Settings) -> Tuning:
    """Return the algorithm of a refit; its step is measured unless that would tell of the rows."""
    step = None if settings.privacy is None else settings.learning_rate
    return Tuning(rounds=settings.tuning_rounds, local_steps=1, learning_rate=step)


def _refit(
    rows: FederatedData,
    settings: Settings,
    constants: Mapping[str, float],
    start: Tree,
    support: Tensor,
    method: Method,
    callback: Callback | None,
    checkpoint: StageCheckpoint | None,
    spent: Tensor,
) -> tuple[Tree, Training]:
    """Retrain on fixed supports [R, G]; every site takes part, for only kept numbers travel.

    Only the features that some lane chose are looked at, one at least. Return the parameters for
    all features, leaves [R, ...], and the run.
    """
    by_gate = support.reshape(len(support), -1, rows.n_candidates)
    some = (by_gate > 0).flatten(0, 1).any(0)
    columns = some.nonzero().squeeze(1) if some.any() else torch.zeros(1, dtype=torch.int64)
    chosen = rows.select_features(columns)
    algorithm, privacy = _tuning(settings), settings.privacy
    total, eligible = float(rows.weight.sum()), None
    if privacy is not None and privacy.level == "site":
        total = float(rows.n_sites)  # the number of rows is not to be told
    if method.rows == "alone":
        own = torch.eye(rows.n_sites, dtype=torch.bool)
        eligible = torch.cat([own.repeat_interleave(settings.seeds, 0), own])
        total /= rows.n_sites
    problem = linear_problem(chosen, settings.gate, constants=constants)
    problem = problem.with_ridge(settings.ridge / total)
    problem = as_asked(problem, rows, settings, method)
    stop = None
    if settings.early_stop is not None and method.rows != "alone":
        chosen, held_out = split(chosen, settings.seed)
        stop = EarlyStop(held_out, settings.early_stop)
    small = start | {"weight": start["weight"][..., columns]}
    mask = by_gate[..., columns].flatten(1)
    run = train(
        problem,
        chosen,
        algorithm,
        seeds=list(range(len(support))),
        start=torch.func.vmap(lambda p, m: algorithm.start(problem, p, m))(small, mask),
        eligible=eligible,
        weights=settings.weights,
        aggregator=_aggregator(settings, method),
        engine=settings.engine,
        evaluate_every=settings.evaluate_every,
        early_stop=stop,
        callback=callback,
        checkpoint=checkpoint and checkpoint.named("refit"),
        privacy=privacy,
        spent=None if privacy is None else spent,
    )
    weight = torch.zeros_like(start["weight"])
    weight[..., columns] = run.params["weight"]
    return run.params | {"weight": weight}, run


def _channel(settings: Settings, method: Method, kept: int) -> Channel:
    """Return what carries the messages; rules that compare them get whole ones by default."""
    whole = settings.messages == "auto" and settings.aggregation != "mean"
    return method.channel("dense" if whole else settings.messages, kept)


def _aggregator(settings: Settings, method: Method) -> Aggregator:
    return AGGREGATORS[settings.aggregation if method.rows == "federated" else "mean"]


def sites_a_round(settings: Settings) -> float | int:
    """Return the share of the sites that a round of the search asks, or their number."""
    return settings.participation if settings.participation <= 1 else int(settings.participation)


def _of_stage(callback: Callback | None, stage: str) -> Callback | None:
    return None if callback is None else adding(callback, stage=stage)


def _dense_bytes(run: Training) -> int:
    """Return the bytes if the whole of what a run trains had travelled both ways in every round."""
    numbers = sum(leaf.numel() for leaf in run.job.problem.init(run.job.run_keys[0]).values())
    return 2 * 4 * numbers * _visits(run)


def _visits(run: Training) -> int:
    """Return how often a site worked for a seed."""
    return sum(sum(record["sites"].values()) for record in run.history)
