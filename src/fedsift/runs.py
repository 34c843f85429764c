"""A run on disk, and the way from data to it.

A run folder holds ``run.json`` (settings, data, versions, status, results), ``history.jsonl`` (a
record a round), ``model.safetensors`` (parameters on standardised features), ``features.csv`` and,
until it is done, ``checkpoints/``. Every file carries the version of its format.
"""

from __future__ import annotations

import csv
import io
import json
import math
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedsift import trees
from fedsift._version import __version__
from fedsift.checkpoints import CheckpointError, write_atomic
from fedsift.data import FederatedData, Standardiser, split
from fedsift.outcomes import make_outcome
from fedsift.selection import (
    Interval,
    inclusion_probability,
    jaccard_stability,
    nogueira_stability,
    t_interval,
)
from fedsift.studies import Case, Fit, Progress, Settings, fit_case, summarise
from fedsift.training import StageCheckpoint

VERSION = 1
BESIDE = ("local", "central")
BESIDE_SEEDS = 5  # enough for an orientation, at a fraction of the time


class RunError(RuntimeError):
    """A run folder that cannot be used; the text names it and the next action."""


@dataclass(frozen=True)
class Feature:
    """A feature of the reported set.

    ``weight`` is per standard unit, of the refitted ensemble; ``weight_low`` and ``weight_high`` are the
    95 % interval of its mean over the refitted seeds that chose the feature.
    """

    name: str
    inclusion_probability: float
    split_frequency: float | None
    weight: float
    weight_low: float
    weight_high: float
    description: str = ""


@dataclass(frozen=True)
class Run:
    """A finished fit.

    Attributes:
        settings: what was asked for.
        facts: everything that ``run.json`` holds.
        features: the chosen features, most often chosen first.
        params: the refitted model on standardised features.
        standardiser: how to bring rows to standard units.
        path: the folder, if it was written.
    """

    settings: Settings
    facts: dict[str, Any]
    features: tuple[Feature, ...]
    params: dict[str, Tensor]
    standardiser: Standardiser
    path: Path | None = None

    @property
    def results(self) -> dict[str, Any]:
        """The figures, as the command line prints them."""
        results: dict[str, Any] = self.facts["results"]
        return results

    def predict(self, x: Tensor, features: Sequence[str]) -> list[str] | list[float]:
        """Return class names or values for rows [n, d] with these feature names, in original units.

        Raises:
            DataError: a feature that the model was trained with is absent.
        """
        output = self._output(x, features)
        prediction = make_outcome(self.facts["data"]["outcome"]).predict(output)
        classes = self.facts["data"]["classes"]
        if classes:
            return [classes[code] for code in prediction.tolist()]
        values: list[float] = self.standardiser.target_to_units(prediction.double()).tolist()
        return values

    def predict_probability(self, x: Tensor, features: Sequence[str]) -> Tensor:
        """Return the probability of each class, [n, K]."""
        output = self._output(x, features)
        if output.shape[1] == 1:
            positive = torch.sigmoid(output[:, 0])
            return torch.stack([1 - positive, positive], 1)
        return torch.softmax(output, 1)

    @property
    def needed(self) -> tuple[str, ...]:
        """The features that a row to predict must have, in the model's order.

        An array is standardised over all its features, so all are needed there.
        """
        if self.standardiser.how == "array":
            return self.standardiser.features
        used = (self.params["weight"] != 0).any(0).tolist()
        return tuple(
            name for name, use in zip(self.standardiser.features, used, strict=True) if use
        )

    def compact(self) -> tuple[Standardiser, Tensor, Tensor]:
        """Return (standardiser, weight [K, n], bias [K]) of the n needed features alone."""
        full, weight = self.standardiser, self.params["weight"]
        if full.how == "array":
            return full, weight, self.params["bias"]
        used = (weight != 0).any(0)
        part = replace(full, features=self.needed, mean=full.mean[used], scale=full.scale[used])
        return part, weight[:, used], self.params["bias"]

    def _output(self, x: Tensor, features: Sequence[str]) -> Tensor:
        standardiser, weight, bias = self.compact()
        return standardiser.transform(x, features) @ weight.T + bias


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
        tell: Progress | None = None
        if self.progress is not None:
            progress = self.progress
            tell = lambda stage, r, record: progress(f"{method} · {case.name} · {stage}", r, record)  # noqa: E731
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


def split_cases(data: FederatedData, settings: Settings) -> tuple[Case, ...]:
    """Return the splits of a study, and last the case of all rows."""
    cases = []
    for number in range(settings.splits):
        train, test = split(data, settings.seed + number, settings.test_fraction)
        cases.append(Case(f"split {number + 1}", train, test))
    return (*cases, Case("all rows", data))


def dump_fit(fit: Fit) -> bytes:
    """Return a fit as the content of a file."""
    tensors = {
        "masks": fit.masks,
        "magnitudes": fit.magnitudes,
        "weights": fit.weights,
        "support": fit.support,
    }
    tensors |= trees.join(params=fit.params, scores=fit.scores)
    facts = {k: getattr(fit, k) for k in ("bytes_up", "bytes_down", "bytes_dense", "compiled", "history")}
    contiguous = {k: v.contiguous().clone() for k, v in tensors.items()}
    return save(contiguous, {"fit": json.dumps({"version": VERSION, **facts})})


def load_fit(path: Path) -> Fit:
    """Return the fit of a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = json.loads(file.metadata()["fit"])
    if facts.pop("version") != VERSION:
        msg = f"{path} was written by another release; delete it to compute this part again"
        raise CheckpointError(msg)
    parts = {k: tensors[k] for k in ("masks", "magnitudes", "weights", "support")}
    return Fit(
        **parts, params=trees.part(tensors, "params"), scores=trees.part(tensors, "scores"), **facts
    )


def prepare(path: Path, *, overwrite: bool) -> None:
    """Make an empty run folder.

    Raises:
        RunError: it exists and may not be overwritten, or is no run folder.
    """
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        if not overwrite:
            go_on = f", or go on with it: fedsift resume {path}" if _unfinished(path) else ""
            msg = f"{path} exists already; choose another folder with --out, or add --overwrite{go_on}"
            raise RunError(msg)
        if not (path / "run.json").exists():
            msg = f"{path} is not a run folder (it has no run.json), so it is not overwritten; choose another"
            raise RunError(msg)
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)


def _unfinished(path: Path) -> bool:
    file = path / "run.json"
    return file.exists() and read_facts(path)["status"] != "done"


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Write run.json."""
    write_atomic(
        path / "run.json", json.dumps(without_nan(facts), indent=1, allow_nan=False).encode()
    )


def without_nan(value: Any) -> Any:
    """Return a JSON value with null in the place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_facts(path: Path) -> dict[str, Any]:
    """Read run.json.

    Raises:
        RunError: the folder holds no run, or one of another format version.
    """
    file = path / "run.json"
    if not file.exists():
        msg = f"{path} is not a run folder: it has no run.json"
        raise RunError(msg)
    try:
        facts: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        msg = f"{file} is damaged ({error}); start the run again with --overwrite"
        raise RunError(msg) from error
    if facts.get("version") != VERSION:
        msg = f"{file} has format version {facts.get('version')}, this release reads {VERSION}"
        raise RunError(msg)
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
            "fills": dict(data.fills),
        },
        "versions": {
            "fedsift": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "plan": {"engine": settings.engine, "threads": torch.get_num_threads()},
    }


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
    """
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
            name: {"seeds": few.seeds} | method_results(aside, name, tested)[0] for name in others
        }
    facts["plan"] |= {"compiled": fits[-1].compiled}
    facts["candidates"] = candidates(fits[-1], cases[-1])
    facts["results"] = results | {"seconds": time.perf_counter() - began, "run": _text(path)}
    facts["status"] = "done"
    standardiser = Standardiser.fit(cases[-1].train, settings.standardise)
    features = feature_table(fits[-1], cases[-1], same_data(fits, cases))
    run = Run(settings, facts, features, fits[-1].ensemble(), standardiser, path)
    if path is not None:
        _write(run, fits, cases)
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
    figures = {}
    with _status_on_failure(path, facts):
        for name in methods:
            method_began = time.perf_counter()
            results, _ = method_results(study, name, cases)
            figures[name] = results | {"seconds": time.perf_counter() - method_began}
    facts["results"] = {
        "methods": figures,
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
        msg = f"the data of {path} have changed since it was started; start a new run with another --out"
        raise RunError(msg)
    path.mkdir(parents=True, exist_ok=True)
    write_facts(path, facts)
    return facts


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


def _class_counts(data: FederatedData) -> dict[str, int]:
    counts = torch.bincount(data.y, minlength=len(data.classes)).tolist() if data.classes else []
    return dict(zip(data.classes, counts, strict=True))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def method_results(
    study: Study, method: str, cases: Sequence[Case]
) -> tuple[dict[str, Any], list[Fit]]:
    """Fit a method on cases; return its figures and the fits. Bytes are those of all cases."""
    fits = study.fits(method, cases)
    scored = [
        (f, c)
        for f, c in zip(fits, cases, strict=True)
        if c.test is not None or c.truth is not None
    ]
    results = summarise([f for f, _ in scored], [c for _, c in scored])
    for name in ("bytes_up", "bytes_down", "bytes_dense"):
        results[name] = sum(getattr(f, name) for f in fits)
    results["bytes_per_seed"] = (
        results["bytes_up"] + results["bytes_down"]
    ) // study.settings.seeds
    tested = same_data(fits, cases)
    results["features"] = [
        {"name": f.name, "inclusion_probability": f.inclusion_probability, "weight": f.weight}
        for f in feature_table(fits[-1], cases[-1], tested)
    ]
    return results | stability(fits[-1], tested), fits


def same_data(fits: Sequence[Fit], cases: Sequence[Case]) -> list[Fit]:
    """Return the fits of splits of one data set; cases with a known truth are data sets of their own."""
    return [f for f, c in zip(fits, cases, strict=True) if c.test is not None and c.truth is None]


def stability(fit: Fit, split_fits: Sequence[Fit]) -> dict[str, Any]:
    """Return how stable the selection is over seeds, and over splits."""
    figures = {
        "stability_seeds": {
            "nogueira": nogueira_stability(fit.masks),
            "jaccard": jaccard_stability(fit.masks),
        }
    }
    if len(split_fits) > 1:
        chosen = torch.stack([f.support[0] for f in split_fits])
        figures["stability_splits"] = {
            "nogueira": nogueira_stability(chosen),
            "jaccard": jaccard_stability(chosen),
        }
    return figures


def feature_table(fit: Fit, case: Case, split_fits: Sequence[Fit]) -> tuple[Feature, ...]:
    """Return the chosen features, most often chosen first.

    With several outputs the weight shown is that of the output where it is largest.
    """
    chosen = (fit.weights != 0).any(1)
    probability = inclusion_probability(chosen)
    ensembles = fit.ensembles()["weight"]
    weight = ensembles.mean(0)
    candidates = (ensembles != 0).any(1).any(0).nonzero().squeeze(1).tolist()
    kept = int((ensembles[0] != 0).any(0).sum())
    picked = sorted(candidates, key=lambda j: -float(probability[j]))[:kept]
    over_splits = [(f.ensemble()["weight"] != 0).any(0) for f in split_fits]
    rows = []
    for j in picked:
        output = int(weight[:, j].abs().argmax())
        refitted = fit.params["weight"][: fit.n_lanes, output, j][chosen[:, j]]
        spread = (
            t_interval(refitted) if len(refitted) else Interval(math.nan, math.nan, math.nan, 0)
        )
        name = case.train.features[j]
        rows.append(
            Feature(
                name=name,
                inclusion_probability=float(probability[j]),
                split_frequency=float(torch.stack(over_splits)[:, j].double().mean())
                if over_splits
                else None,
                weight=float(weight[output, j]),
                weight_low=spread.low,
                weight_high=spread.high,
                description=case.train.descriptions.get(name, ""),
            )
        )
    return tuple(sorted(rows, key=lambda f: (-f.inclusion_probability, -abs(f.weight))))


def candidates(fit: Fit, case: Case, count: int = 20) -> list[dict[str, Any]]:
    """Return the features that seeds chose most often, those of the ensemble among them, for a plot."""
    probability = inclusion_probability((fit.weights != 0).any(1))
    kept = (fit.ensembles()["weight"] != 0).any(1).any(0)
    size = fit.weights.abs().amax(1).double().mean(0)
    order = sorted(
        (probability > 0).nonzero().squeeze(1).tolist(),
        key=lambda j: (-float(probability[j]), not kept[j], -float(size[j])),
    )
    shown = [j for place, j in enumerate(order) if place < count or kept[j]]
    return [
        {
            "name": (name := case.train.features[j]),
            "description": case.train.descriptions.get(name, ""),
            "inclusion_probability": float(probability[j]),
            "chosen": bool(kept[j]),
        }
        for j in shown
    ]


def _write(run: Run, fits: Sequence[Fit], cases: Sequence[Case]) -> None:
    """Write the finished run; its checkpoints go last."""
    path = run.path
    if path is None:
        return
    standard = run.standardiser.to_dict()
    meta = {"version": str(VERSION), "standardiser": json.dumps(standard)}
    write_atomic(
        path / "model.safetensors", save({k: v.contiguous() for k, v in run.params.items()}, meta)
    )
    table = io.StringIO()
    writer = csv.DictWriter(table, list(asdict(run.features[0])) if run.features else ["name"])
    writer.writeheader()
    writer.writerows(asdict(f) for f in run.features)
    write_atomic(path / "features.csv", table.getvalue().encode())
    lines = [
        json.dumps({"version": VERSION, "case": case.name, **record})
        for fit, case in zip(fits, cases, strict=True)
        for record in fit.history
    ]
    write_atomic(path / "history.jsonl", ("\n".join(lines) + "\n").encode())
    write_facts(path, run.facts)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)


def load_run(path: str | Path) -> Run:
    """Return a finished run from its folder.

    Raises:
        RunError: it is not a run folder, or not finished.
    """
    path = Path(path)
    facts = read_facts(path)
    if facts["command"] != "fit":
        msg = f"{path} is a comparison of methods and holds no model; name the folder of a fit"
        raise RunError(msg)
    if facts["status"] != "done":
        msg = (
            f"{path} is not finished (status {facts['status']}); go on with: fedsift resume {path}"
        )
        raise RunError(msg)
    with safe_open(path / "model.safetensors", "pt") as file:
        params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        standardiser = Standardiser.from_dict(json.loads(file.metadata()["standardiser"]))
    with (path / "features.csv").open(newline="") as file:
        features = tuple(_feature(row) for row in csv.DictReader(file))
    settings = Settings(**facts["settings"])
    return Run(settings, facts, features, params, standardiser, path)


def _feature(row: dict[str, str]) -> Feature:
    """Return a feature from its row of ``features.csv``; an empty cell is a missing number."""
    texts = {"name", "description"}
    values: dict[str, Any] = {
        k: v if k in texts else (float(v) if v else None) for k, v in row.items()
    }
    return Feature(**values)
