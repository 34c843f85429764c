"""One site's file, read at the site: what may be said of it, and its rows once all have agreed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fedsift.data.coding import (
    check_counts,
    encode,
    has_classes,
    is_count,
    label_facts,
    labels_seen,
    target_columns,
)
from fedsift.data.columns import Roles
from fedsift.data.covariates import (
    Covariate,
    code_covariates,
    columns_of,
    covariate_facts,
)
from fedsift.data.errors import DataError
from fedsift.data.federated import FederatedData
from fedsift.data.files import load_table
from fedsift.data.missing import refuse_missing
from fedsift.data.readers import (
    complete_labels,
    event_times,
    read_labels,
    row_ids,
    row_weights,
)
from fedsift.data.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsift.data.coding import Outcome

__all__ = ["SiteFile", "Small"]

Small = Literal["decline", "uniform"]


@dataclass(frozen=True)
class SiteFile:
    """A site's file and what its columns are for.

    Attributes:
        path: a file that `read_sites` reads.
        site: the site's name.
        target, id_column, weight_column, time_column, outcome, drop, impute, covariates, separator:
            as for `read_sites`.
        min_rows: rows below which a site does what ``below_min_rows`` says.
        below_min_rows: ``decline``: it takes no part; ``uniform``: its rows weigh as ``min_rows``
            rows together, whatever their number.
    """

    path: Path
    site: str
    target: str
    id_column: str | None = None
    weight_column: str | None = None
    time_column: str | None = None
    outcome: str = "auto"
    drop: tuple[str, ...] = ()
    impute: Literal["mean"] | None = None
    covariates: tuple[str, ...] = ()
    separator: str | None = None
    min_rows: int = 5
    below_min_rows: Small = "decline"

    def describe(self) -> dict[str, Any]:
        """Return what the server must know: the features' names, and what the target's values are.

        Of classes and of a covariate's levels the names are told, of each of several labels the
        values that there are, of measured ones nothing.

        Raises:
            DataError: the file cannot be used.
        """
        tables, features = self._open()
        if tables.starts[-1] < self.min_rows and self.below_min_rows == "decline":
            return {"declines": f"it has fewer than {self.min_rows} rows"}
        if self.time_column is not None:
            event_times(tables, self.target, self.time_column)
            return {"features": features, "labels": {"kind": "measured", "names": []}}
        if self.outcome == "multilabel" or len(self.targets) > 1:
            labels = labels_seen(read_labels(tables, self.targets), self.targets)
        else:
            labels = label_facts(complete_labels(tables, self.target), self.outcome, self.target)
        return {
            "features": features,
            "labels": labels,
            "covariates": {
                name: covariate_facts(tables.labels(name), name) for name in self.covariates
            },
        }

    def read(
        self, outcome: Outcome, classes: Sequence[str], covariates: Sequence[Covariate] = ()
    ) -> FederatedData:
        """Return the rows, with classes and levels of covariates that all sites share.

        Raises:
            DataError: anything is wrong with the file.
        """
        tables, features = self._open()
        values = np.concatenate(
            [tables.numbers(features), code_covariates(tables, covariates)], axis=1
        )
        features = [*features, *columns_of(covariates)]
        if self.impute is None:
            refuse_missing(tables, features, values)
        missing = torch.from_numpy(np.isnan(values))
        if self.time_column is not None:
            y = event_times(tables, self.target, self.time_column)
        elif outcome == "multilabel":
            y = read_labels(tables, classes)
        elif has_classes(outcome):
            y = encode(complete_labels(tables, self.target), classes, self.target, tables.where)
        else:
            numbers = tables.numbers([self.target])[:, 0]
            if is_count(outcome):
                check_counts(numbers.tolist(), self.target, tables.where)
            y = torch.from_numpy(numbers).float()
        data = FederatedData(
            x=torch.from_numpy(values.astype(np.float32)).masked_fill(missing, 0.0),
            y=y,
            weight=torch.from_numpy(row_weights(tables, self.weight_column).astype(np.float32)),
            offsets=(0, len(values)),
            sites=(self.site,),
            features=tuple(features),
            rows=tuple(row_ids(tables, self.id_column)),
            outcome=outcome,
            classes=tuple(classes),
            target=self.target,
            missing=missing if self.impute is not None else None,
            covariates=tuple(covariates),
        )
        if data.n_samples >= self.min_rows:
            return data
        if self.below_min_rows == "decline":
            raise DataError(f"{self.path.name}: fewer than {self.min_rows} rows")
        return replace(data, weight=data.weight * (self.min_rows / data.weight.sum()))

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns of the target."""
        timed = self.time_column is not None
        return target_columns(self.target, "survival" if timed else self.outcome)

    def _open(self) -> tuple[Tables, list[str]]:
        roles = Roles(
            self.targets,
            None,
            self.id_column,
            self.weight_column,
            self.drop,
            self.covariates,
            self.time_column,
        )
        tables = Tables((load_table(self.path, self.separator),))
        roles.check(tables.parts)
        features = roles.features(tables.parts[0])
        if not features:
            raise DataError(f"{self.path.name}: no column is left as a feature")
        return tables, features
