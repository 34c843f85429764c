"""A finished run: its figures, features and model, predictions with it, and its files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedsift.data import FederatedData, Standardiser
from fedsift.data.errors import nearest
from fedsift.data.harmonise import own_units
from fedsift.evaluation import evaluate
from fedsift.findings import Effect, Feature, effects
from fedsift.linear_problems import linear_problem, slopes_of
from fedsift.outcomes import make_outcome
from fedsift.run_folder import (
    CHECKPOINTS,
    SITES,
    VERSION,
    RunError,
    checksum,
    clear_states,
    read_checked,
    read_finished,
    write_facts,
)
from fedsift.sealed import seal, unseal, write_atomic
from fedsift.settings import Settings
from fedsift.studies import Case, Fit


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
        own: intercepts that sites keep to themselves, [K] by site, as the simulation knows them; in
            no export. ``params`` has the common one, for rows of other sites.
    """

    settings: Settings
    facts: dict[str, Any]
    features: tuple[Feature, ...]
    params: dict[str, Tensor]
    standardiser: Standardiser
    path: Path | None = None
    own: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def results(self) -> dict[str, Any]:
        """The figures, as the command line prints them."""
        results: dict[str, Any] = self.facts["results"]
        return results

    def predict(
        self, x: ArrayLike, features: Sequence[str], site: str | None = None
    ) -> list[str] | list[float] | list[list[int]]:
        """Return class names or values for rows [n, d] with these feature names, in original units.

        Of labels: a list of K values 0 or 1 for each row.
        With ``harmonise`` the rows must be those of one site, for they are brought to its units.
        ``site``: whose own intercept counts, with ``site_intercepts``; None: the common one. Of a
        deployment it is the file in which the site has kept it (``…-own.json``).

        Raises:
            DataError: a feature that the model was trained with is absent, or a value is missing
                that no mean is known for.
            ValueError: the site has no intercept of its own, or the file is of another run.
        """
        output = self._output(x, features, site)
        prediction = make_outcome(self.facts["data"]["outcome"]).predict(output)
        classes = self.facts["data"]["classes"]
        if prediction.ndim == 2:
            labels: list[list[int]] = prediction.tolist()
            return labels
        if classes:
            return [classes[code] for code in prediction.tolist()]
        values: list[float] = self.standardiser.target_to_units(prediction.double()).tolist()
        return values

    def predict_probability(
        self, x: ArrayLike, features: Sequence[str], site: str | None = None
    ) -> Tensor:
        """Return the probability of each class, or label, [n, K]; ``site`` as for `predict`."""
        output = self._output(x, features, site)
        if self.facts["data"]["outcome"] == "multilabel":
            return torch.sigmoid(output)
        if output.shape[1] == 1:
            positive = torch.sigmoid(output[:, 0])
            return torch.stack([1 - positive, positive], 1)
        return torch.softmax(output, 1)

    def predict_survival(
        self, x: ArrayLike, features: Sequence[str], times: Sequence[float], site: str | None = None
    ) -> Tensor:
        """Return the probability that the event has not come by some times, [n, T].

        exp(-H(t) · relative risk), with the cumulative baseline hazard H of a site (None: the mean
        of all sites by rows), straight between the times that the run keeps it at.

        Raises:
            ValueError: it is no run of survival, the site told no hazard, or a time is too late.
        """
        told: dict[str, Any] = self.facts.get("baseline", {"times": [], "all": [], "sites": {}})
        hazard = told["all"] if site is None else told["sites"].get(site)
        if not hazard:
            who = "the run" if site is None else f"site '{site}'"
            raise ValueError(f"{who} told no baseline hazard; fit survival with hazard_times")
        grid = told["times"]
        if not 0 <= min(times) <= max(times) <= grid[-1]:
            raise ValueError(f"times are {list(times)}; give them from 0 to {grid[-1]:g}")
        now = np.interp(times, [0.0, *grid], [0.0, *hazard])
        risk = self._output(x, features).double().exp()
        return (-risk * torch.from_numpy(now)).exp()

    def concordance(self, data: FederatedData) -> dict[str, float]:
        """Return how often the model ranks pairs of rows of a site rightly, by site and of ``all``.

        NaN for a site without such a pair.
        """
        rows = self.standardiser.apply(data)
        params = {name: leaf.unsqueeze(0) for name, leaf in self.params.items()}
        problem = linear_problem(rows, self.settings.gate)
        groups = {site: [place] for place, site in enumerate(rows.sites)} | {"all": None}
        return {
            name: float(evaluate(problem, params, rows, places)["concordance"])
            for name, places in groups.items()
        }

    @property
    def needed(self) -> tuple[str, ...]:
        """The features that a row to predict must have, in the model's order.

        Where a row is standardised over all its features, all are needed.
        """
        if self.standardiser.whole_rows:
            return self.standardiser.features
        used = self.used.tolist()
        return tuple(
            name for name, use in zip(self.standardiser.features, used, strict=True) if use
        )

    def history(self) -> list[dict[str, Any]]:
        """Return the records of the reported fit from the run's folder, none without one.

        Raises:
            RunError: the file is absent, or was changed.
        """
        if self.path is None:
            return []
        lines = read_checked(self.path, "history.jsonl", self.facts).decode().splitlines()
        records = [json.loads(line) for line in lines]
        return [record for record in records if record["case"] == records[-1]["case"]]

    @property
    def effects(self) -> list[Effect]:
        """What each covariate does in the model."""
        data = self.facts["data"]
        return effects(self.params, self.standardiser, data["classes"], data["outcome"])

    @property
    def slopes(self) -> Tensor:
        """Weights of all columns, [K, d]: of the features, then of the covariates."""
        return slopes_of(self.params)

    @property
    def used(self) -> Tensor:
        """Which columns a prediction depends on, bool [d]; covariates always count.

        Of an empty model it is the first, with weight 0.
        """
        used = (self.slopes != 0).any(0)
        if self.standardiser.covariates:
            used[self.standardiser.n_candidates :] = True
        used[0] |= not used.any()
        return used

    def compact(self) -> tuple[Standardiser, Tensor, Tensor]:
        """Return (standardiser, weight [K, n], bias [K]) of the n needed features alone."""
        full, weight = self.standardiser, self.slopes
        if full.whole_rows:
            return full, weight, self.params["bias"]
        used = self.used
        part = replace(full, features=self.needed, mean=full.mean[used], scale=full.scale[used])
        return part, weight[:, used], self.params["bias"]

    def _output(self, x: ArrayLike, features: Sequence[str], site: str | None = None) -> Tensor:
        standardiser, weight, bias = self.compact()
        if site is not None:
            bias = self._intercept(site)
        rows = torch.as_tensor(np.require(x, requirements="W"))
        if self.settings.harmonise is not None:
            known = set(standardiser.candidates)
            own = [place for place, name in enumerate(features) if name in known]
            units, rows = torch.ones(len(rows)), rows.clone()
            rows[:, own] = own_units(rows[:, own], units, self.settings.harmonise)
        return standardiser.transform(rows, features) @ weight.T + bias

    def _intercept(self, site: str) -> Tensor:
        """Return a site's own intercept, [K]."""
        if self.settings.site_intercepts is None:
            msg = f"site is {site!r}, but the run has one intercept for all sites; leave it out"
            raise ValueError(msg)
        if "run" in self.facts["plan"]:
            return self._kept_at(site)
        if site not in self.own:
            msg = (
                f"site {site!r} had no part in the fit; {nearest(site, list(self.own))} For another"
                " site leave it out: the common intercept counts"
            )
            raise ValueError(msg)
        return self.own[site]

    def _kept_at(self, site: str) -> Tensor:
        """Return the own intercept [K] in the file that a site of a deployment has kept."""
        name, bias = self.facts["plan"]["run"], self.params["bias"]
        wanted = f"the file that the site has kept of this run, {name}-own.json"
        try:
            told = json.loads(Path(site).read_bytes())
            own = torch.tensor(told["intercept"], dtype=bias.dtype)
        except (OSError, ValueError, KeyError, TypeError) as error:
            msg = f"site is {site!r}, and sites keep their intercepts to themselves; give {wanted}"
            raise ValueError(msg) from error
        if told.get("run") != name or own.shape != bias.shape:
            msg = f"{site} is of the run {told.get('run')!r}; give {wanted}"
            raise ValueError(msg)
        return own


def write_run(run: Run, fits: Sequence[Fit], cases: Sequence[Case]) -> None:
    """Write the finished run, the reported fit last of ``fits``; its checkpoints go at the end."""
    path = run.path
    if path is None:
        return
    meta = {"version": VERSION, "standardiser": run.standardiser.to_dict()}
    table = io.StringIO()
    writer = csv.DictWriter(table, list(asdict(run.features[0])) if run.features else ["name"])
    writer.writeheader()
    writer.writerows(asdict(f) for f in run.features)
    lines = [
        json.dumps({"version": VERSION, "case": case.name, **record})
        for fit, case in zip(fits, cases, strict=True)
        for record in fit.history
    ]
    files = {
        "model.safetensors": seal(run.params, meta),
        "features.csv": table.getvalue().encode(),
        "history.jsonl": ("\n".join(lines) + "\n").encode(),
        **_site_files(run),
    }
    for name, content in files.items():
        write_atomic(path / name, content)
    run.facts["files"] = {name: checksum(content) for name, content in files.items()}
    write_facts(path, run.facts)
    clear_states(path, CHECKPOINTS)


def _site_files(run: Run) -> dict[str, bytes]:
    """Return the files that stand for what is at the sites alone: each one's own intercept."""
    return {
        f"{SITES}/{number}-{quote(site, safe=' ')[:80]}.json": json.dumps(
            {"version": VERSION, "site": site, "intercept": intercept.tolist()}
        ).encode()
        for number, (site, intercept) in enumerate(run.own.items(), 1)
    }


def _read_own(path: Path, facts: dict[str, Any], like: Tensor) -> dict[str, Tensor]:
    """Return the sites' own intercepts, in the type of the common one."""
    names = [name for name in facts["files"] if name.startswith(f"{SITES}/")]
    told = [json.loads(read_checked(path, name, facts)) for name in names]
    return {one["site"]: torch.tensor(one["intercept"], dtype=like.dtype) for one in told}


def load_run(path: str | Path) -> Run:
    """Return a finished run from its folder.

    Raises:
        RunError: it is not a run folder, not finished, or a file of it was changed.
    """
    path = Path(path)
    facts = read_finished(path)
    if facts["command"] != "fit":
        msg = f"{path} is a comparison of methods and holds no model; name the folder of a fit"
        raise RunError(msg)
    read_checked(path, "model.safetensors", facts)
    stored, meta = unseal(path / "model.safetensors")
    leaves = ("weight", "bias", "covariate")  # the order of messages
    params = {name: stored[name] for name in leaves if name in stored}
    standardiser = Standardiser.from_dict(meta["standardiser"])
    table = read_checked(path, "features.csv", facts).decode()
    features = tuple(_feature(row) for row in csv.DictReader(io.StringIO(table, newline="")))
    settings = Settings(**facts["settings"])
    own = _read_own(path, facts, params["bias"])
    return Run(settings, facts, features, params, standardiser, path, own)


def _feature(row: dict[str, str]) -> Feature:
    """Return a feature from its row of ``features.csv``; an empty cell is a missing number."""
    texts = {"name", "description"}
    values: dict[str, Any] = {
        k: v if k in texts else (float(v) if v else None) for k, v in row.items()
    }
    return Feature(**values)
