"""From cases to a run: one method on every case, or several methods side by side."""

from __future__ import annotations

import logging
import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsift._version import __version__
from fedsift.callbacks import Callback, CallbackError, adding, calling
from fedsift.checkpoints import AFRESH, DamagedError, StageCheckpoint
from fedsift.data import FederatedData, RemoteData, Standardiser, split
from fedsift.data.groups import Groups
from fedsift.data.remote import OwnThere
from fedsift.evaluation import baseline_hazards
from fedsift.findings import (
    add_areas,
    candidates,
    feature_table,
    method_figures,
    only_scores,
    same_data,
)
from fedsift.held_out import held_out
from fedsift.held_out_sites import held_out_figures, site_cases
from fedsift.intervals import ensemble_spread, half_case, split_intervals
from fedsift.linear_problems import linear_problem
from fedsift.methods import find_method
from fedsift.private_fits import described, promise, refuse
from fedsift.profiles import profiles
from fedsift.run_folder import (
    CHECKPOINTS,
    JOINS,
    VERSION,
    RunError,
    clear_states,
    read_facts,
    read_fit,
    write_facts,
    write_fit,
)
from fedsift.runs import Run, load_run, write_run
from fedsift.sealed import fingerprint
from fedsift.selection import agreement
from fedsift.settings import Settings, effective
from fedsift.studies import Case, Fit, fit_case, planned_privacy

log = logging.getLogger(__name__)

BESIDE = ("local", "central")
VERSIONS = {"fedsift": __version__, "torch": str(torch.__version__)}
FIRST = 5  # names of features and groups that are not there
BESIDE_SEEDS = 5  # enough for an orientation, at a fraction of the time


def split_cases(data: FederatedData, settings: Settings) -> tuple[Case, ...]:
    """Return the splits of a study, and last the case of all rows."""
    data = data.harmonised(settings.harmonise)

    def one(number: int) -> Case:
        return Case(
            f"split {number + 1}", *split(data, settings.seed + number, settings.test_fraction)
        )

    return (*data.together(one, range(settings.splits)), Case("all rows", data))


@dataclass(frozen=True)
class Study:
    """The cases of a study and the folder it writes to.

    ``joins``: folder for the last case's states before sites joined late (`fedsift.joins`).
    """

    cases: tuple[Case, ...]
    settings: Settings
    path: Path | None = None
    callback: Callback | None = None
    joins: Path | None = None

    def fits(self, method: str, cases: Sequence[Case]) -> list[Fit]:
        """Fit a method on cases, taking finished ones from the folder."""
        return list(cases[-1].train.together(lambda case: self._fit(method, case), cases))

    def _fit(self, method: str, case: Case) -> Fit:
        settings = self.settings.model_copy(update={"method": method})
        standardiser = Standardiser.fit(case.train, settings.standardise)
        tell = self.callback and adding(self.callback, method=method, case=case.name)
        if self.path is None or settings.privacy is not None:
            return fit_case(case, settings, standardiser, callback=tell, repeats=len(self.cases))
        stem = self.path / CHECKPOINTS / f"{method}-{case.name.replace(' ', '-')}"
        done = stem.with_name(f"{stem.name}-done.safetensors")
        request = _request(case, settings, len(self.cases))
        if done.exists():
            try:
                return read_fit(done, request)
            except DamagedError as error:
                log.warning("%s; it is computed again", error.defect)
        fit = fit_case(
            case,
            settings,
            standardiser,
            callback=tell,
            checkpoint=StageCheckpoint(stem, fingerprint=request),
            repeats=len(self.cases),
            joins=self.joins if case is self.cases[-1] else None,
        )
        write_fit(done, fit, request)
        return fit


def _request(case: Case, settings: Settings, n_cases: int) -> str:
    """Return a fingerprint of all that decides a fit's numbers."""
    rows = [case.train] if case.test is None else [case.train, case.test]
    return fingerprint(
        settings.model_dump(mode="json"),
        [case.name, n_cases],
        [[part.sites, part.fingerprint()] for part in rows],
        VERSIONS,
    )


def method_results(
    study: Study, method: str, cases: Sequence[Case]
) -> tuple[dict[str, Any], list[Fit]]:
    """Fit a method on cases; return its figures and the fits."""
    fits = study.fits(method, cases)
    settings = effective(study.settings.model_copy(update={"method": method}))
    return method_figures(fits, cases, settings), fits


def run_fit(
    cases: tuple[Case, ...],
    settings: Settings,
    *,
    source: dict[str, Any] | None = None,
    path: Path | None = None,
    callbacks: Sequence[Callback] = (),
    beside: Sequence[str] = BESIDE,
    analysis_plan: Mapping[str, Any] | None = None,
) -> Run:
    """Fit the method on every case, and the methods beside it where there are test rows.

    The last case is the reported one. In a folder, what is finished is not computed again.
    ``analysis_plan``: what is kept of the plan that is followed, if there is one.

    Raises:
        RunError: the folder was started with other data or settings.
        CheckpointError: a finished part is damaged, or of another request.
        CallbackError: a callback failed.
        ValueError: the method is ``local``, which gives no one model to report.
    """
    if find_method(settings.method).rows == "alone":
        msg = (
            f"{settings.method} fits a model at each site and no common one; fit another method, "
            "which shows it beside, or use compare"
        )
        raise ValueError(msg)
    began = time.perf_counter()
    more: dict[str, Any] = {"beside": list(beside), "analysis_plan": analysis_plan}
    private = planned_privacy(cases[-1].train, settings)
    if private is not None:  # said before anything is told, should the run be stopped
        more["privacy"] = promise(*private)
    facts = _start(path, cases, settings, source, "fit", more)
    if path is not None and facts["status"] == "done":
        return load_run(path)
    tell = calling(callbacks)
    study = Study(cases, settings, path, tell, path and path / JOINS)
    tested = tuple(c for c in cases if c.test is not None)
    scored = tested and not settings.controlled
    others = [name for name in beside if name != settings.method and scored]
    with _status_on_failure(path, facts):
        results, fits = method_results(study, settings.method, cases)
        figures, held, held_fits = _sites_held_out(study, cases, fits)
        results |= figures
        found, half, half_fits = _intervals(study, cases[-1], fits[-1])
        results |= found
        few = settings.model_copy(update={"seeds": min(settings.seeds, BESIDE_SEEDS)})
        aside = Study(cases, few, path, tell)
        results["beside"] = {
            name: {"seeds": few.seeds} | only_scores(method_results(aside, name, tested)[0])
            for name in others
        }
    facts["plan"] |= fits[-1].plan
    facts |= _held_out(fits, cases, settings)
    if "held_out" in facts:
        add_areas(results, facts["held_out"])
    if private is not None:
        facts["privacy"] = fits[-1].privacy
        results |= {name: facts["privacy"][name] for name in ("epsilon", "delta")}
    standardiser = Standardiser.fit(cases[-1].train, settings.standardise)
    facts |= baseline(cases[-1], settings, fits[-1], standardiser)
    facts["candidates"] = candidates(fits[-1], cases[-1])
    facts["agreement"] = agreement(
        fits[-1].masks, fits[-1].magnitudes, int(fits[-1].support[0].sum())
    )
    facts["results"] = results | {"seconds": time.perf_counter() - began, "run": _text(path)}
    facts["status"] = "done"
    features = feature_table(fits[-1], cases[-1], same_data(fits, cases))
    if private is None and settings.round_counts == 1:
        facts["profiles"] = profiles(cases[-1].train, [f.name for f in features], settings.min_cell)
    own = _own_intercepts(fits[-1], cases[-1].train)
    run = Run(settings, facts, features, fits[-1].ensemble(), standardiser, path, own)
    if run.effects:
        facts["results"]["covariates"] = [asdict(effect) for effect in run.effects]
    if path is not None:
        write_run(run, [*half_fits, *held_fits, *fits], [*half, *held, *cases])
    return run


def _own_intercepts(fit: Fit, data: FederatedData) -> dict[str, Tensor]:
    """Return the sites' own intercepts [K]; sites on other machines keep theirs to themselves."""
    own = fit.own_of_ensembles()
    if not isinstance(own, OwnThere):
        return {site: values["bias"][0] for site, values in own.items()}
    assert isinstance(data, RemoteData)  # noqa: S101  whose own values are there
    for site in data.way.keep(data, own):
        log.warning("site %r has kept no intercept of its own: it was away, or never asked", site)
    return {}


def _held_out(fits: Sequence[Fit], cases: Sequence[Case], settings: Settings) -> dict[str, Any]:
    """Return the loss on test rows, and how they are told apart; nothing without test rows."""
    tested = [f for f, c in zip(fits, cases, strict=True) if c.test is not None]
    if not tested:
        return {}
    losses = [float(f.scores["loss"][f.n_lanes :].mean()) for f in tested]
    facts: dict[str, Any] = {"held_out_loss": sum(losses) / len(losses)}
    if settings.round_counts == 1:  # groups are counted exactly
        facts["held_out"] = held_out(fits, cases, settings.standardise, settings.min_cell)
    return facts


def validation_cases(
    cases: Sequence[Case], settings: Settings
) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Return the cases that hold out a site, and the splits that they are compared with.

    None, if the settings ask for no such validation. The splits are those of the study, or, where
    the test rows come from elsewhere, new ones.
    """
    if settings.validation == "splits":
        return (), ()
    data = cases[-1].train
    splits = tuple(c for c in cases[:-1] if c.test is not None and c.truth is None)
    if cases[-1].truth is not None:
        plain = settings.model_copy(update={"harmonise": None})  # they are in own units already
        splits = split_cases(data, plain)[:-1]
    return site_cases(data), splits


def _sites_held_out(
    study: Study, cases: Sequence[Case], fits: Sequence[Fit]
) -> tuple[dict[str, Any], tuple[Case, ...], list[Fit]]:
    """Return the figures of sites held out, their cases and fits; nothing if none is asked for."""
    settings, method = study.settings, study.settings.method
    held, splits = validation_cases(cases, settings)
    if not held:
        return {}, (), []
    known = dict(zip((case.name for case in cases), fits, strict=True))
    new = [case for case in splits if case.name not in known]
    if new:
        known |= dict(zip((case.name for case in new), study.fits(method, new), strict=True))
    held_fits = study.fits(method, held)
    figures = held_out_figures(
        list(zip(held, held_fits, strict=True)),
        [(case, known[case.name]) for case in splits],
        settings,
    )
    return {"sites_held_out": figures}, held, held_fits


def _intervals(
    study: Study, case: Case, fit: Fit
) -> tuple[dict[str, Any], tuple[Case, ...], list[Fit]]:
    """Return the intervals of effects, the case that they needed and its fit; of what is asked."""
    settings = study.settings
    if settings.intervals is None:
        return {}, (), []
    if settings.intervals == "ensemble":
        return {"intervals": ensemble_spread(case, fit, settings)}, (), []
    half, second = half_case(case, settings)
    fits = study.fits(settings.method, [half])
    return {"intervals": split_intervals(half, fits[0], second, settings)}, (half,), fits


def baseline(
    case: Case, settings: Settings, fit: Fit, standardiser: Standardiser
) -> dict[str, Any]:
    """Return ``baseline``: the cumulative baseline hazard of each site; of survival alone.

    None where few events tell it; ``all``: the mean over sites, by their rows. Without
    ``hazard_times`` the times are 20 steps to a round number, so that none is that of a row; sites
    on other machines tell nothing then.
    """
    data, times = case.train, list(settings.hazard_times)
    if data.outcome != "survival":
        return {}
    if not times and isinstance(data, RemoteData):
        return {"baseline": {"times": [], "all": [], "sites": {}}}
    if not times:
        last = float(data.y.abs().max())
        unit = 10.0 ** math.floor(math.log10(last))
        end = next(k * unit for k in (1, 2, 5, 10) if k * unit >= last)
        times = [end * step / 20 for step in range(1, 21)]
    rows = standardiser.apply(data)
    hazards = baseline_hazards(linear_problem(rows, settings.gate), fit.ensemble(), rows, times)
    total = zip(*(hazards[s] for s in data.sites), strict=True)
    mean = [sum(h * n for h, n in zip(row, data.sizes, strict=True)) for row in total]
    told = _counts(data.sites, events(data), settings)
    hazard = {
        "times": times,
        "all": [value / data.n_samples for value in mean],
        "sites": {site: None if told[site] is None else hazards[site] for site in data.sites},
    }
    return {"baseline": hazard}


def run_compare(
    cases: tuple[Case, ...],
    settings: Settings,
    methods: Sequence[str],
    *,
    source: dict[str, Any] | None = None,
    path: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Fit several methods on the same cases; return the content of ``run.json``.

    Its ``results`` are ``{"methods": {name: figures}, "seconds": , "run": }``.

    Raises:
        RunError: the folder was started with other data or settings.
        CheckpointError: a finished part is damaged, or of another request.
        CallbackError: a callback failed.
    """
    for name, usual in (("validation", "splits"), ("intervals", None)):
        if (asked := getattr(settings, name)) != usual:
            msg = f"{name} {asked!r} is of one method; use it with fit"
            raise ValueError(msg)
    began = time.perf_counter()
    facts = _start(path, cases, settings, source, "compare", {"methods": list(methods)})
    if facts["status"] == "done":
        return facts
    study = Study(cases, settings, path, calling(callbacks))
    by_method = {}
    with _status_on_failure(path, facts):
        for name in methods:
            method_began = time.perf_counter()
            results, _ = method_results(study, name, cases)
            by_method[name] = results | {"seconds": time.perf_counter() - method_began}
    facts["results"] = {
        "methods": by_method,
        "seconds": time.perf_counter() - began,
        "run": _text(path),
    }
    facts["status"] = "done"
    if path is not None:
        write_facts(path, facts)
        clear_states(path, CHECKPOINTS)
    return facts


def _start(
    path: Path | None,
    cases: Sequence[Case],
    settings: Settings,
    source: dict[str, Any] | None,
    command: str,
    more: dict[str, Any],
) -> dict[str, Any]:
    """Return the first facts, and write them; or those of a run to go on with, or a finished one.

    Raises:
        RunError: the folder was started with another request.
    """
    facts = first_facts(cases[-1].train, settings, source, command) | more
    if path is None:
        return facts
    if (path / "run.json").exists():
        earlier = read_facts(path)
        if earlier["status"] != "done" or settings.privacy is None:
            refuse(settings.privacy, "resumed")
        _check_same(path, earlier, facts)
        if earlier["status"] == "done":
            return earlier
        facts = earlier | {"status": "running"}
    path.mkdir(parents=True, exist_ok=True)
    write_facts(path, facts)
    return facts


def _check_same(path: Path, earlier: dict[str, Any], facts: dict[str, Any]) -> None:
    """Refuse to go on with a folder if results of two requests would be mixed."""
    if earlier["data"]["fingerprint"] != facts["data"]["fingerprint"]:
        msg = f"the data of {path} have changed since it was started; {AFRESH}"
        raise RunError(msg)
    if earlier["settings"] != facts["settings"]:
        names = [k for k, v in facts["settings"].items() if earlier["settings"].get(k, v) != v]
        msg = f"{path} was started with other settings ({', '.join(names)}); give the same ones"
        raise RunError(f"{msg}, or {AFRESH}")
    for name in ("command", "methods", "beside"):
        if earlier.get(name) != facts.get(name):
            had, now = earlier.get(name), facts.get(name)
            msg = f"{path} was started with {name} {had!r}, not {now!r}; give the same"
            raise RunError(f"{msg}, or {AFRESH}")
    for name, now in VERSIONS.items() if earlier["status"] != "done" else ():
        if (had := earlier["versions"][name]) != now:
            msg = f"{path} was started with {name} {had}, and this is {now}; use the same version"
            raise RunError(f"{msg}, or {AFRESH}")


def first_facts(
    data: FederatedData, settings: Settings, source: dict[str, Any] | None, command: str
) -> dict[str, Any]:
    """Return what is known of a run before it starts."""
    described_data = _data_facts(data, settings)
    if settings.privacy is not None:
        described_data = described(described_data, settings.privacy)
    grouped = settings.groups_in(data)
    return {
        "version": VERSION,
        "command": command,
        "status": "running",
        "settings": settings.model_dump(mode="json"),
        **({} if grouped is None else {"groups": _group_facts(grouped, settings.gates(data))}),
        "source": source,
        "data": described_data,
        "versions": VERSIONS | {"python": platform.python_version()},
        "plan": {
            **(
                {"engine": "flower", "run": data.way.run}
                if isinstance(data, RemoteData)
                else {"engine": settings.engine}
            ),
            "threads": torch.get_num_threads(),
        },
    }


def _group_facts(groups: Groups, gates: int) -> dict[str, Any]:
    """Return how many groups there are, how many gates, and what groups name that is not there."""
    return {
        "groups": len(groups.names),
        "single": gates - len(groups.names),
        "gates": gates,
        "unknown": {"count": len(groups.unknown), "first": list(groups.unknown[:FIRST])},
        "empty": {"count": len(groups.empty), "first": list(groups.empty[:FIRST])},
    }


def _data_facts(data: FederatedData, settings: Settings) -> dict[str, Any]:
    vague = settings.min_cell > 0 or settings.round_counts > 1
    return {
        "fingerprint": data.fingerprint(),
        "samples": _rounded(data.n_samples, settings.round_counts),
        "features": data.n_candidates,
        "covariates": [covariate.to_dict() for covariate in data.covariates],
        "sites": _counts(data.sites, data.sizes, settings),
        "outcome": data.outcome,
        "classes": list(data.classes),
        "class_counts": _named_counts(data.class_sizes, settings),
        "unknown": _named_counts(data.unknown, settings),
        "events": _counts(data.sites, events(data), settings) if data.outcome == "survival" else {},
        "target": data.target,
        "notes": [] if vague else list(data.notes),
    }


def _named_counts(counts: Mapping[str, int], settings: Settings) -> dict[str, int | None]:
    return _counts(list(counts), list(counts.values()), settings)


def events(data: FederatedData) -> list[int]:
    """Return how many events each site saw."""
    return [int(data.strata[rows].sum()) for rows in data.slices]


def _counts(
    names: Sequence[str], counts: Sequence[int], settings: Settings
) -> dict[str, int | None]:
    """Return counts by name, rounded if so set; None for those below ``min_cell``."""
    return {
        name: _rounded(n, settings.round_counts) if n >= settings.min_cell else None
        for name, n in zip(names, counts, strict=True)
    }


def _rounded(count: int, step: int) -> int:
    """Return the multiple of ``step`` next to a count, the upper of two."""
    return (2 * count + step) // (2 * step) * step


@contextmanager
def _status_on_failure(path: Path | None, facts: dict[str, Any]) -> Iterator[None]:
    """Write into run.json whether the work was interrupted (to be resumed) or failed."""
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | CallbackError)
        facts["status"] = "stopped" if stopped else "failed"
        if path is not None:
            write_facts(path, facts)
        raise


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
