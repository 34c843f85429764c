"""Where data come from, as a description that a run keeps: `resume` reads the same rows again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedsift.data import (
    FederatedData,
    affine_shift,
    dirichlet_counts,
    dirichlet_labels,
    golub38,
    golub72,
    iid,
    read_as,
    read_sites,
    synthetic_regression,
)
from fedsift.data.coding import Asked
from fedsift.data.paths import site_name
from fedsift.plans import read_plan
from fedsift.settings import Settings
from fedsift.studies import Case
from fedsift.workflows import split_cases

Partition = Literal["iid", "dirichlet_labels", "dirichlet_counts"]
Demo = Literal["golub", "golub72", "synthetic"]

SITES = 5
ALPHA = 2.0
INFORMATIVE = 50
DEFAULTS: Mapping[str | None, Mapping[str, Any]] = {
    None: {},
    "golub": {"features": 3, "standardise": "array"},
    "golub72": {"features": 3, "standardise": "array"},
    "synthetic": {"features": INFORMATIVE, "participation": 0.6},
}
"""Settings that differ from `Settings`' own defaults, by demo; None for files."""


class Source(BaseModel):
    """Site files, or a named data set and how it is spread over sites.

    Attributes:
        files: site files; the other arguments of `read_sites` follow.
        plan: file of the analysis plan by which the site files are read, if there is one.
        demo: ``golub`` (embedded), ``golub72`` (raw files in ``data``) or ``synthetic``.
        sites: how many sites a named data set is spread over.
        partition: how; by default ``iid``, and ``dirichlet_counts`` for synthetic data.
        alpha: concentration of the Dirichlet partitions; small is uneven.
        shift: give each site its own scale and offset (`affine_shift`).
        samples, features_total, informative: size of a synthetic data set.
        data_seeds: how many synthetic data sets.
        data: folder of data that are not embedded; None for ``FEDSIFT_DATA``.
        groups: the file that the settings' groups were read from, for the report.

    Raises:
        ValueError: neither files nor a named set, or both, or files without a target.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: tuple[str, ...] = ()
    target: str | None = None
    site_column: str | None = None
    id_column: str | None = None
    weight_column: str | None = None
    time_column: str | None = None
    features_in_common: bool = False
    impute: Literal["mean"] | None = None
    outcome: Asked = "auto"
    drop: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    separator: str | None = None
    plan: str | None = None
    demo: Demo | None = None
    sites: int = Field(SITES, ge=1)
    partition: Partition | None = None
    alpha: float = Field(ALPHA, gt=0)
    shift: bool = False
    samples: int = Field(400, ge=2)
    features_total: int = Field(1000, ge=1)
    informative: int = Field(INFORMATIVE, ge=1)
    data_seeds: int = Field(5, ge=1)
    data: str | None = None
    groups: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Source:
        if bool(self.files) == (self.demo is not None):
            msg = "give site files or the name of a demo, and not both"
            raise ValueError(msg)
        if self.files and self.target is None:
            msg = "say which column is to be predicted (target)"
            raise ValueError(msg)
        return self

    @property
    def name(self) -> str:
        """A short name for folders."""
        return self.demo or site_name(self.files[0])

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The settings that this data set has defaults of its own for."""
        chosen = dict(DEFAULTS[self.demo])
        return chosen | ({"features": self.informative} if self.demo == "synthetic" else {})

    def cases(self, settings: Settings) -> tuple[Case, ...]:
        """Return the cases of a study; the last one is reported.

        Real rows give the splits, then all rows; each synthetic data set is a case with test rows
        of its own and a known answer. ``settings.seed`` draws partitions and synthetic data.
        """
        if self.demo == "synthetic":
            seeds = range(settings.seed, settings.seed + self.data_seeds)
            cases = (self._synthetic(seed) for seed in seeds)
            return tuple(
                case._replace(
                    train=case.train.harmonised(settings.harmonise),
                    test=case.test and case.test.harmonised(settings.harmonise),
                )
                for case in cases
            )
        return split_cases(self._real(settings.seed), settings)

    def _real(self, seed: int) -> FederatedData:
        if self.plan is not None:
            return read_as(list(self.files), read_plan(self.plan).data)
        if self.demo is None:
            return read_sites(
                list(self.files),
                str(self.target),
                site_column=self.site_column,
                id_column=self.id_column,
                weight_column=self.weight_column,
                time_column=self.time_column,
                features_in_common=self.features_in_common,
                impute=self.impute,
                outcome=self.outcome,
                drop=self.drop,
                covariates=self.covariates,
                separator=self.separator,
            )
        pooled = golub38() if self.demo == "golub" else golub72(self.data)
        return self._spread(pooled, self.partition, seed)

    def _synthetic(self, seed: int) -> Case:
        drawn = synthetic_regression(
            n_samples=self.samples,
            n_features=self.features_total,
            n_informative=self.informative,
            seed=seed,
            n_sites=self.sites,
            alpha=self.alpha,
            n_test=5000,
        )
        if self.partition in {None, "dirichlet_counts"}:  # the generator's own way
            train = affine_shift(drawn.train, seed) if self.shift else drawn.train
        else:
            train = self._spread(drawn.train, self.partition, seed)
        return Case(f"data set {seed}", train, drawn.test, drawn.support)

    def _spread(self, rows: FederatedData, partition: Partition | None, seed: int) -> FederatedData:
        if partition in {None, "iid"}:
            spread = iid(rows, self.sites, seed)
        elif partition == "dirichlet_labels":
            spread = dirichlet_labels(rows, self.sites, self.alpha, seed)
        else:
            spread = dirichlet_counts(rows, self.sites, self.alpha, seed)
        return affine_shift(spread, seed) if self.shift else spread
