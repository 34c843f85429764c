"""A data dictionary: the columns that a study takes from every site's file, and their values."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedsift.data.coding import Outcome, by_label, check_labels, has_classes, target_columns
from fedsift.data.columns import Roles
from fedsift.data.covariates import Covariate, columns_of
from fedsift.data.errors import DataError, counted, listed
from fedsift.sealed import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

    from fedsift.data.federated import FederatedData

__all__ = ["MEASURED", "Dictionary", "columns_fingerprint"]

MEASURED: Literal["measured"] = "measured"


class Dictionary(BaseModel):
    """What the file of a site holds. Columns that are not named here are not read.

    Attributes:
        target, id_column, site_column, weight_column, time_column, impute, separator: as for
            `read_sites`.
        outcome: kind of the target.
        classes: its classes in order, of two the second is the positive one, or its labels; none
            if measured.
        drop: columns that sites are known to have, and the study leaves out.
        min_rows: rows that a site has at least.
        covariates: their levels in order, the first is what others are compared with; or
            ``measured``.
        features: columns to choose from, in the order of the model.

    Raises:
        ValueError: a column has two purposes, or the classes are not those of the outcome.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    outcome: Outcome
    classes: tuple[str, ...] = ()
    id_column: str | None = None
    site_column: str | None = None
    weight_column: str | None = None
    time_column: str | None = None
    drop: tuple[str, ...] = ()
    impute: Literal["mean"] | None = None
    separator: str | None = None
    min_rows: int = Field(5, ge=1)
    covariates: dict[str, Literal["measured"] | tuple[str, ...]] = Field(default_factory=dict)
    features: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Dictionary:
        lists = {"classes": self.classes, "features": self.features}
        lists |= {f"levels of {c.name}": c.levels for c in self.staying}
        for what, names in lists.items():
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                msg = f"{what}: {listed(twice)} stands there twice; leave out one"
                raise ValueError(msg)
        both = [name for name in self.features if name in self.taken]
        if both:
            msg = f"{listed(both)} of the features has another purpose, too; leave it out there"
            raise ValueError(msg)
        for covariate in self.staying:
            if len(covariate.levels) == 1:
                msg = f"the covariate '{covariate.name}' has one level; give two, or 'measured'"
                raise ValueError(msg)
        if (self.outcome == "survival") != (self.time_column is not None):
            msg = "time_column is of survival, which needs it; give both or neither"
            raise ValueError(msg)
        if self.outcome == "multilabel" and self.classes != self.roles.targets:
            msg = (
                f"the target is '{self.target}', and classes are {listed(self.classes)}; of labels"
                " these are the same names"
            )
            raise ValueError(msg)
        if self.outcome != "multilabel":
            self._check_classes()
        return self

    def _check_classes(self) -> None:
        wanted = {"binary": "two", "multiclass": "two or more"}.get(self.outcome, "none")
        fits = {"none": not self.classes, "two": len(self.classes) == 2}
        if not fits.get(wanted, len(self.classes) > 1):
            msg = (
                f"the outcome is {self.outcome}, with {wanted} of classes, and there are"
                f" {len(self.classes)}; correct one of the two"
            )
            raise ValueError(msg)

    @property
    def staying(self) -> tuple[Covariate, ...]:
        """The covariates."""
        return tuple(
            Covariate(name, () if levels == MEASURED else tuple(levels))
            for name, levels in self.covariates.items()
        )

    @property
    def roles(self) -> Roles:
        """What the columns that are not features are for; those to drop need not be there."""
        return Roles(
            target_columns(self.target, self.outcome),
            self.site_column,
            self.id_column,
            self.weight_column,
            covariates=tuple(self.covariates),
            time=self.time_column,
        )

    @property
    def taken(self) -> set[str]:
        """The columns that are not features."""
        own = {column for _, column in self.roles.uses}
        return {*own, *self.covariates, *self.drop}

    @classmethod
    def of(
        cls,
        data: FederatedData,
        *,
        id_column: str | None = None,
        site_column: str | None = None,
        weight_column: str | None = None,
        time_column: str | None = None,
        drop: tuple[str, ...] = (),
        separator: str | None = None,
        min_rows: int = 5,
    ) -> Dictionary:
        """Return the dictionary of rows that `read_sites` has read.

        Raises:
            DataError: as `check_filled` says.
        """
        dictionary = cls(
            target=data.target,
            outcome=data.outcome,
            classes=data.classes,
            id_column=id_column,
            site_column=site_column,
            weight_column=weight_column,
            time_column=time_column,
            drop=drop,
            impute=None if data.missing is None else "mean",
            separator=separator,
            min_rows=min_rows,
            covariates={c.name: c.levels or MEASURED for c in data.covariates},
            features=data.candidates,
        )
        dictionary.check_filled(data)
        return dictionary

    def check(self, data: FederatedData) -> None:
        """Refuse rows that are not what the dictionary says.

        Raises:
            DataError: the text names the first difference.
        """
        self.check_columns(data.target, data.candidates)
        had = data.outcome, data.classes
        if had != (self.outcome, self.classes):
            raise DataError(
                f"the target is {data.outcome} with classes {listed(data.classes)}; the plan has"
                f" {self.outcome} with {listed(self.classes)}"
            )
        if data.covariates != self.staying:
            raise DataError(
                f"the covariates' columns are {listed(columns_of(data.covariates))}; the plan has"
                f" {listed(columns_of(self.staying))}"
            )
        self.check_filled(data)

    def check_columns(self, target: str, features: tuple[str, ...]) -> None:
        """Refuse another target, or other features.

        Raises:
            DataError: the text names them.
        """
        if target != self.target:
            raise DataError(f"the target is '{target}', the plan's '{self.target}'")
        if features == self.features:
            return
        known, present = set(self.features), set(features)
        lost = [name for name in self.features if name not in present]
        extra = [name for name in features if name not in known]
        parts = [f"of the plan's features {listed(lost)} are not there"] if lost else []
        parts += [f"the plan does not have {listed(extra)}"] if extra else []
        said = " and ".join(parts) or "the features stand in another order than in the plan"
        raise DataError(f"{said}; read the files as it says: plan.read(files)")

    def check_filled(self, data: FederatedData) -> None:
        """Refuse a site with too few rows, and classes and levels that no row has.

        Raises:
            DataError: the text names it.
        """
        for site, count in zip(data.sites, data.sizes, strict=True):
            if count < self.min_rows:
                raise DataError(
                    f"site '{site}' has {counted(count, 'row')}, the plan asks for {self.min_rows}"
                    " at least (min_rows): leave the site out, or plan for fewer"
                )
        empty: list[str] = []
        if data.outcome == "multilabel":
            check_labels(by_label(data.y, data.classes))
        elif has_classes(data.outcome):
            there = set(data.y.tolist())
            empty = [name for code, name in enumerate(data.classes) if code not in there]
        what = f"the target '{data.target}'"
        start = data.n_candidates
        for covariate in data.covariates:
            place = slice(start, start := start + len(covariate.columns))
            unused = _unused(covariate, data.x[:, place])
            if unused and not empty:
                empty, what = unused, f"the covariate '{covariate.name}'"
        if empty:
            raise DataError(
                f"no row of any site has {listed(empty)} of {what}; take it out of the plan, or"
                " give the files of all sites"
            )


def _unused(covariate: Covariate, x: Tensor) -> list[str]:
    """Return the levels that no row has, from their columns [N, L - 1]; a gap counts as none."""
    levels = covariate.levels
    used = [bool((x == 0).all(1).any()), *(x == 1).any(0).tolist()]
    return [name for name, some in zip(levels, used, strict=False) if not some]


def columns_fingerprint(data: FederatedData | Dictionary) -> str:
    """Return a SHA-256 (hex) of the columns that a model has, by which sites' files are told."""
    if isinstance(data, Dictionary):
        features, covariates = data.features, data.staying
    else:
        features, covariates = data.candidates, data.covariates
    coded = [covariate.to_dict() for covariate in covariates]
    return fingerprint(data.target, data.outcome, list(data.classes), coded, list(features))
