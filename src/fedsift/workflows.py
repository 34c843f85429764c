"""From cases to a run: one method on every case, or several methods side by side."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsift._version import __version__
from fedsift.checkpoints import StageCheckpoint, write_atomic
from fedsift.data import FederatedData, Standardiser, split
from fedsift.findings import candidates, feature_table, method_figures, only_scores, same_data
from fedsift.methods import find_method
from fedsift.run_folder import VERSION, RunError, dump_fit, load_fit, read_facts, write_facts
from fedsift.runs import Run, write_run
from fedsift.studies import Case, Fit, Progress, Settings, fit_case

BESIDE = ("local", "central")
BESIDE_SEEDS = 5  # enough for an orientation, at a fraction of the time


def split_cases(data: FederatedData, settings: Settings) -> tuple[Case, ...]:
    """Return the splits of a study, and last the case of all rows."""
    cases = []
    for number in range(settings.splits):
        train, test = split(data, settings.seed + number, settings.test_fraction)
        cases.append(Case(f"split {number + 1}", train, test))
    return (*cases, Case("all rows", data))


@dataclass(frozen=True)
class Study:
    """The cases of a study and the folder it writes to."""

    cases: tuple[Case, ...]
    settings: Settings
    path: Path | None = None
    progress: Progress | None = None

    def fits(self, method: str, cases: Sequence[Case]) -> list[Fit]:
        """Fit a method on cases, taking finished ones from the folder."""
        return [self._fit(method, case) for case in cases]

    def _fit(self, method: str, case: Case) -> Fit:
        settings = self.settings.model_copy(update={"method": method})
        standardiser = Standardiser.fit(case.train, settings.standardise)
        tell = self._tell(method, case)
        if self.path is None:
            return fit_case(case, settings, standardiser, progress=tell, repeats=len(self.cases))
        stem = self.path / "checkpoints" / f"{method}-{case.name.replace(' ', '-')}"
        done = stem.with_name(f"{stem.name}-done.safetensors")
        if done.exists():
            return load_fit(done)
        fit = fit_case(
            case,
            settings,
            standardiser,
            progress=tell,
            checkpoint=StageCheckpoint(stem),
            repeats=len(self.cases),
        )
        write_atomic(done, dump_fit(fit))
        return fit

    def _tell(self, method: str, case: Case) -> Progress | None:
        """Return what passes progress on under the name of method, case and stage."""
        progress = self.progress
        if progress is None:
            return None

        def tell(stage: str, round_number: int, record: dict[str, Any]) -> None:
            progress(f"{method} · {case.name} · {stage}", round_number, record)

        return tell


def method_results(
    study: Study, method: str, cases: Sequence[Case]
) -> tuple[dict[str, Any], list[Fit]]:
    """Fit a method on cases; return its figures and the fits."""
    fits = study.fits(method, cases)
    return method_figures(fits, cases, study.settings.seeds), fits


def run_fit(
    cases: tuple[Case, ...],
    settings: Settings,
    *,
    source: dict[str, Any] | None = None,
    path: Path | None = None,
    progress: Progress | None = None,
    beside: Sequence[str] = BESIDE,
) -> Run:
    """Fit the method on every case, and the methods beside it where there are test rows.

    The last case is the reported one. In a folder, parts that are finished are not computed again.

    Raises:
        RunError: the folder was started with other data.
        ValueError: the method is ``local``, which gives no one model to report.
    """
    if find_method(settings.method).rows == "alone":
        msg = (
            f"{settings.method} fits a model at each site and no common one; fit another method, "
            "which shows it beside, or use compare"
        )
        raise ValueError(msg)
    began = time.perf_counter()
    facts = _start(path, cases, settings, source, "fit")
    study = Study(cases, settings, path, progress)
    tested = tuple(c for c in cases if c.test is not None)
    others = [name for name in beside if name != settings.method and tested]
    with _status_on_failure(path, facts):
        results, fits = method_results(study, settings.method, cases)
        few = settings.model_copy(update={"seeds": min(settings.seeds, BESIDE_SEEDS)})
        aside = Study(cases, few, path, progress)
        results["beside"] = {
            name: {"seeds": few.seeds} | only_scores(method_results(aside, name, tested)[0])
            for name in others
        }
    facts["plan"] |= {"compiled": fits[-1].compiled}
    facts["candidates"] = candidates(fits[-1], cases[-1])
    facts["results"] = results | {"seconds": time.perf_counter() - began, "run": _text(path)}
    facts["status"] = "done"
    standardiser = Standardiser.fit(cases[-1].train, settings.standardise)
    features = feature_table(fits[-1], cases[-1], same_data(fits, cases))
    run = Run(settings, facts, features, fits[-1].ensemble(), standardiser, path)
    if path is not None:
        write_run(run, fits, cases)
    return run


def run_compare(
    cases: tuple[Case, ...],
    settings: Settings,
    methods: Sequence[str],
    *,
    source: dict[str, Any] | None = None,
    path: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit several methods on the same cases; return the content of ``run.json``.

    Its ``results`` are ``{"methods": {name: figures}, "seconds": , "run": }``.

    Raises:
        RunError: the folder was started with other data.
    """
    began = time.perf_counter()
    facts = _start(path, cases, settings, source, "compare", {"methods": list(methods)})
    study = Study(cases, settings, path, progress)
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
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return facts


def _start(
    path: Path | None,
    cases: Sequence[Case],
    settings: Settings,
    source: dict[str, Any] | None,
    command: str,
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the first facts, and write them; refuse a folder that was started with other data."""
    facts = first_facts(cases[-1].train, settings, source, command) | (more or {})
    if path is None:
        return facts
    if (path / "run.json").exists() and read_facts(path)["data"]["fingerprint"] != facts["data"][
        "fingerprint"
    ]:
        msg = (
            f"the data of {path} have changed since it was started; "
            "start a new run with another --out"
        )
        raise RunError(msg)
    path.mkdir(parents=True, exist_ok=True)
    write_facts(path, facts)
    return facts


def first_facts(
    data: FederatedData, settings: Settings, source: dict[str, Any] | None, command: str
) -> dict[str, Any]:
    """Return what is known of a run before it starts."""
    return {
        "version": VERSION,
        "command": command,
        "status": "running",
        "settings": settings.model_dump(),
        "source": source,
        "data": {
            "fingerprint": data.fingerprint(),
            "samples": data.n_samples,
            "features": data.n_features,
            "sites": dict(zip(data.sites, data.sizes, strict=True)),
            "outcome": data.outcome,
            "classes": list(data.classes),
            "class_counts": _class_counts(data),
            "target": data.target,
            "notes": list(data.notes),
        },
        "versions": {
            "fedsift": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "plan": {"engine": settings.engine, "threads": torch.get_num_threads()},
    }


def _class_counts(data: FederatedData) -> dict[str, int]:
    counts = torch.bincount(data.y, minlength=len(data.classes)).tolist() if data.classes else []
    return dict(zip(data.classes, counts, strict=True))


@contextmanager
def _status_on_failure(path: Path | None, facts: dict[str, Any]) -> Iterator[None]:
    """Write into run.json whether the work was interrupted (to be resumed) or failed."""
    try:
        yield
    except BaseException as error:
        facts["status"] = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        if path is not None:
            write_facts(path, facts)
        raise


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
