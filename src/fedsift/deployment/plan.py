"""What a deployment does: the study's settings, the sites' columns, and whom a round waits for.

Not the analysis plan (`fedsift.plans`), which sites agree on before; a deployment may follow one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedsift.data.coding import Asked
from fedsift.data.site_files import SiteFile, Small
from fedsift.engines.flower import Policy
from fedsift.methods import find_method
from fedsift.private_fits import check_settings
from fedsift.settings import Settings

DEFAULTS: Mapping[str, Any] = {
    "rounds": 40,
    "local_steps": 10,
    "tuning_rounds": 20,
    "evaluate_every": 20,
}
"""Settings that differ from a simulation's, because a round costs seconds whatever it does."""

# Settings and fields of several values.
STRUCTURED = ("knobs", "privacy", "hazard_times", "groups", "analysis_plan")


class Plan(BaseModel):
    """A deployment.

    Attributes:
        settings: of the study.
        sites: the names of the sites, all of which are waited for at the start.
        target, id_column, weight_column, time_column, outcome, drop, impute, covariates, separator:
            as for `read_sites`.
        min_rows: rows below which a site declines, or weighs as many (``below_min_rows``).
        quorum: sites that must answer a round: a whole number, or a fraction of those asked.
        deadline: seconds after which a round goes on without the others.
        patience: seconds after which a run with too few sites ends; it can be resumed.
        wait: seconds to wait for the sites at the start.
        analysis_plan: what the run keeps of the analysis plan that is followed, if there is one.
        columns: fingerprint of the columns that this has.
        out: the run's folder on the server.
        overwrite: whether a finished run there is replaced.

    Raises:
        ValueError: a value is out of range, or the method needs all rows in one place.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: Settings
    sites: tuple[str, ...] = Field(min_length=1)
    target: str
    id_column: str | None = None
    weight_column: str | None = None
    time_column: str | None = None
    outcome: Asked = "auto"
    drop: tuple[str, ...] = ()
    impute: Literal["mean"] | None = None
    covariates: tuple[str, ...] = ()
    separator: str | None = None
    min_rows: int = Field(5, ge=1)
    below_min_rows: Small = "decline"
    quorum: float = Field(1.0, gt=0, allow_inf_nan=False)
    deadline: float = Field(60.0, gt=0, allow_inf_nan=False)
    patience: float = Field(600.0, gt=0, allow_inf_nan=False)
    wait: float = Field(600.0, gt=0, allow_inf_nan=False)
    analysis_plan: dict[str, Any] | None = None
    columns: str | None = None
    out: str = "runs/deployment"
    overwrite: bool = False

    @field_validator("sites")
    @classmethod
    def _distinct(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        odd = next((name for name in sites if not name.strip() or {*"/\\\n;"} & set(name)), None)
        if odd is not None:
            msg = f"a site is called {odd!r}; its name is that of files: leave out / \\ and ;"
            raise ValueError(msg)
        if len(set(sites)) < len(sites):
            msg = f"sites are named twice: {', '.join(sites)}; give each a name of its own"
            raise ValueError(msg)
        return sites

    @model_validator(mode="after")
    def _check(self) -> Plan:
        if self.quorum > 1 and self.quorum != int(self.quorum):
            msg = f"quorum is {self.quorum}; give a fraction up to 1 or a whole number of sites"
            raise ValueError(msg)
        if self.quorum > max(1, len(self.sites)):
            msg = f"quorum is {self.quorum:.0f}, the plan has {len(self.sites)} sites; give fewer"
            raise ValueError(msg)
        check_settings(dict(self.settings))
        if self.covariates and self.settings.privacy is not None:
            msg = "sites tell the levels of covariates without noise; leave out one of the two"
            raise ValueError(msg)
        method = find_method(self.settings.method)
        if method.rows != "federated":
            msg = (
                f"{self.settings.method} is no federated method ({method.summary}); deploy another,"
                " and use fedsift compare to see it beside"
            )
            raise ValueError(msg)
        return self

    @property
    def policy(self) -> Policy:
        """Whom a round waits for; a quorum above 1 is a number of sites, and so is 1 of 1.0."""
        whole = self.quorum > 1
        quorum: float = int(self.quorum) if whole else self.quorum
        return Policy(quorum, self.deadline, self.patience)

    @property
    def wanted(self) -> dict[str, Any]:
        """What sites are asked of their columns."""
        return {"target": self.target, "outcome": self.outcome, "impute": self.impute}

    def site_file(self, path: Path, site: str) -> SiteFile:
        """Return how a site reads its file."""
        names = (
            "target", "id_column", "weight_column", "time_column", "outcome", "drop", "impute",
            "covariates",
            "separator", "min_rows", "below_min_rows",
        )  # fmt: skip
        return SiteFile(path, site, **{name: getattr(self, name) for name in names})

    def to_config(self) -> dict[str, str | int | float | bool]:
        """Return the plan as Flower's run configuration: flat, dashes in names, no null.

        Lists are joined by line breaks, which no column name has; what is in `STRUCTURED` is JSON.
        """
        values = self.model_dump(mode="json")
        flat = {**values.pop("settings"), **values}
        flat |= {name: json.dumps(flat[name]) for name in STRUCTURED if flat[name] is not None}
        return {
            name.replace("_", "-"): "\n".join(value) if isinstance(value, list) else value
            for name, value in flat.items()
            if value is not None
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Plan:
        """Return the plan of a run configuration."""
        given = {name.replace("-", "_"): value for name, value in config.items()}
        for name in ("sites", "drop", "covariates"):
            if isinstance(given.get(name), str):
                given[name] = [part for part in given[name].split("\n") if part]
        given |= {name: json.loads(given[name]) for name in STRUCTURED if name in given}
        settings = {k: given.pop(k) for k in list(given) if k in Settings.model_fields}
        return cls(settings=Settings(**settings), **given)
