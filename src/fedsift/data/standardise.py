"""Centring and scaling, fitted on training rows only and kept with the model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import torch

from fedsift.data.coding import has_unit, is_count
from fedsift.data.covariates import Covariate, columns_of
from fedsift.data.errors import DataError, counted, listed, nearest
from fedsift.data.remote import RemoteData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedsift.data.federated import FederatedData

__all__ = ["How", "Standardiser", "per_unit", "site_sums"]

How = Literal["feature", "array", "row", "none"]

_VERSION: Final = 3
_BY_ROW: Final = ("array", "row")
_ALONE: Final = ("row", "none")
_NEGLIGIBLE: Final = 1e-7


@dataclass(frozen=True, eq=False)
class Standardiser:
    """What was learned from training rows, to be applied to any rows.

    * "feature": ``(x - mean) / scale`` for each feature, with the weighted mean and standard
      deviation (divisor: the sum of the weights) of the training rows. A feature that is constant
      there has scale 0 and becomes 0 in all rows: it was never learned from.
    * "array": each row is first brought to mean 0 and standard deviation 1 (divisor d-1) over its
      own features, then ``x - mean``; scales are 1. For arrays whose features share a unit, as
      gene expression does. The features must be those of the fit.
    * "row": each row by itself, as for "array", and nothing is learned from other rows.
    * "none": x stays as it is.

    A missing value is filled first, with the weighted mean of the feature over the training rows
    that have it: each site gives two sums, of its weights and of its weighted values.

    Columns of covariates take no part in "array" and "row": in "array" they are centred and scaled
    as by "feature", in "row" they stay as they are.

    A measured target becomes ``(y - target_mean) / target_scale`` in all of them. Counts are
    divided by their mean (``target_scale``), which with a logarithmic link moves the intercept.

    Attributes:
        how: "feature", "array", "row" or "none".
        features: names of the columns of the fit; empty for rows that are not lists of features.
        mean: float64 [...], the shape of a row.
        scale: float64 [...], the shape of a row.
        target_mean: in units of the target; 0 for classes and counts.
        target_scale: in units of the target; 1 for classes.
        fills: value for a missing cell of each feature; empty where none may be missing.
        covariates: of the fit; their columns are the last of ``features``.

    Source: S. Dudoit, J. Fridlyand & T. P. Speed, JASA 97:77 (2002), section 3 for "array".

    """

    how: How
    features: tuple[str, ...]
    mean: Tensor
    scale: Tensor
    target_mean: float = 0.0
    target_scale: float = 1.0
    fills: Mapping[str, float] = field(default_factory=dict)
    covariates: tuple[Covariate, ...] = ()

    @property
    def n_candidates(self) -> int:
        """The number of columns that are no covariates'."""
        return len(self.features) - len(columns_of(self.covariates))

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the columns that are no covariates'."""
        return self.features[: self.n_candidates]

    @property
    def learned(self) -> bool:
        """Whether anything depends on the rows of the fit."""
        target = (self.target_mean, self.target_scale)
        return self.how not in _ALONE or bool(self.fills) or target != (0.0, 1.0)

    @property
    def whole_rows(self) -> bool:
        """Whether a row is standardised over all its features, so that all are needed."""
        return self.how in _BY_ROW

    @classmethod
    def fit(cls, train: FederatedData, how: How = "feature") -> Standardiser:
        """Learn from training rows: a sum over sites of the values, then of squared deviations.

        Raises:
            DataError: ``how`` is unknown, a measured target is constant, or a row is (for "array").

        """
        if how not in get_args(How):
            raise DataError(f"standardisation '{how}' is unknown; choose {listed(get_args(How))}")
        if isinstance(train, RemoteData):
            train.refuse_single("standardised together")
            ask = train.sums
        else:
            ask = partial(site_sums, train)
        fills = _means_of_present(ask(how), train.features) if train.missing is not None else {}
        alone = how in _ALONE
        if alone and not has_unit(train.outcome):
            zeros = torch.zeros(train.x.shape[1:], dtype=torch.float64)
            ones = torch.ones_like(zeros)
            return cls(how, train.features, zeros, ones, fills=fills, covariates=train.covariates)
        first = ask(how, fills)
        total = first["weight"].sum()
        mean = {name: first[name].sum(0) / total for name in ("x", "y")}
        squares = ask(how, fills, mean)
        scale = {name: _deviation(squares[name].sum(0) / total, mean[name]) for name in mean}
        if alone:
            mean["x"] = torch.zeros_like(mean["x"])
        if alone or (how == "array" and not train.covariates):
            scale["x"] = torch.ones_like(mean["x"])
        elif how == "array":
            scale["x"][: train.n_candidates] = 1.0
        learned = cls(
            how, train.features, mean["x"], scale["x"], fills=fills, covariates=train.covariates
        )
        if not has_unit(train.outcome):
            return learned
        if scale["y"] == 0:
            raise DataError(
                f"the target '{train.target}' has one value in all training rows; use another split"
                " or target"
            )
        if is_count(train.outcome):
            return replace(learned, target_scale=mean["y"].item())
        return replace(learned, target_mean=mean["y"].item(), target_scale=scale["y"].item())

    def apply(self, data: FederatedData) -> FederatedData:
        """Return the data in standard units, filled, with the features of the fit in their order.

        Raises:
            DataError: a feature of the fit is absent, a row is constant (for "array"), or a value
                is missing and the training rows could have none missing.

        """
        if isinstance(data, RemoteData):
            return data.standardised(self)
        x = self.transform(_with_holes(data), data.features)
        y = data.y
        if has_unit(data.outcome):
            y = ((y.double() - self.target_mean) / self.target_scale).float()
        texts = {
            name: data.descriptions[name] for name in self.features if name in data.descriptions
        }
        names = self.features or data.features
        return replace(data, x=x, y=y, features=names, descriptions=texts, missing=None)

    def transform(self, x: Tensor, features: Sequence[str] = ()) -> Tensor:
        """Return rows in standard units.

        Args:
            x: [N, ...] in the units of the training data, NaN where a value is missing.
            features: names of the columns of x, in any order, others among them or not; empty for
                rows of exactly the shape of the fit.

        Returns:
            float32 [N, ...] with the features of the fit in their order.

        Raises:
            DataError: a feature of the fit is absent, the shape differs, a row is constant, or a
                value is missing and there are no `fills`.

        """
        x = _filled(self._ordered(x, features), self.features, self.fills)
        if self.how == "none":
            return x.float()
        values = x.double()
        if self.whole_rows:
            values = _rows_standardised(values, len(columns_of(self.covariates)))
        known = self.scale > 0
        return torch.where(
            known, (values - self.mean) / torch.where(known, self.scale, 1.0), 0.0
        ).float()

    def target_to_units(self, values: Tensor) -> Tensor:
        """Return a target that is a number in its own units.

        ``values target_scale + target_mean``.
        """
        return values * self.target_scale + self.target_mean

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; `from_dict` reads it back, bit by bit."""
        return {
            "version": _VERSION,
            "how": self.how,
            "features": list(self.features),
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "target_mean": self.target_mean,
            "target_scale": self.target_scale,
            "fills": dict(self.fills),
            "covariates": [covariate.to_dict() for covariate in self.covariates],
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Standardiser:
        """Rebuild a standardiser from `to_dict`.

        Raises:
            DataError: it was written in another version of the format.

        """
        if stored.get("version") != _VERSION:
            raise DataError(
                f"the standardisation has format version {stored.get('version')}, this release"
                f" reads {_VERSION}; use the release that wrote it"
            )
        return cls(
            how=cast("How", stored["how"]),
            features=tuple(stored["features"]),
            mean=torch.tensor(stored["mean"], dtype=torch.float64),
            scale=torch.tensor(stored["scale"], dtype=torch.float64),
            target_mean=float(stored["target_mean"]),
            target_scale=float(stored["target_scale"]),
            fills=stored["fills"],
            covariates=tuple(map(Covariate.from_dict, stored["covariates"])),
        )

    def _ordered(self, x: Tensor, features: Sequence[str]) -> Tensor:
        if self.features and features and tuple(features) != self.features:
            place = {name: column for column, name in enumerate(features)}
            absent = [name for name in self.features if name not in place]
            if absent:
                raise DataError(
                    f"{len(absent)} of {counted(len(self.features), 'feature')} absent:"
                    f" {listed(absent)}; {nearest(absent[0], list(features))}"
                )
            x = x[:, [place[name] for name in self.features]]
        if x.shape[1:] != self.mean.shape:
            raise DataError(
                f"rows have the shape {tuple(x.shape[1:])}, the training rows had"
                f" {tuple(self.mean.shape)}; give the same features"
            )
        return x


def _with_holes(data: FederatedData) -> Tensor:
    return data.x if data.missing is None else data.x.masked_fill(data.missing, torch.nan)


def _filled(x: Tensor, features: Sequence[str], fills: Mapping[str, float]) -> Tensor:
    holes = x.isnan()
    if not holes.any():
        return x
    if not fills:
        raise DataError(
            f"{int(holes.sum())} of {counted(x.numel(), 'value')} missing, and the training rows"
            " told no means to fill them with: read the site files with impute='mean'"
        )
    return torch.where(holes, torch.tensor([fills[name] for name in features]).to(x), x)


def site_sums(
    data: FederatedData,
    how: How,
    fills: Mapping[str, float] | None = None,
    around: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return what each of C sites says of its rows, leaves [C, ...] in float64.

    Without ``fills``: ``weight`` and ``x``, the weights and the weighted sums of the values that
    are not missing. With ``fills``: ``weight`` [C], and the weighted sums of ``x`` and of the
    target ``y``; with ``around`` those of squared deviations from it, a second exchange, because
    sums of plain squares lose all digits where the mean is large beside the deviation.
    """
    weight, pieces = data.weight.double(), data.slices
    column = weight.reshape(-1, *(1 for _ in data.x.shape[1:]))
    if fills is None:
        present = column if data.missing is None else column * ~data.missing
        terms = {"weight": present.expand(data.x.shape), "x": present * data.x}
    else:
        x = _filled(_with_holes(data), data.features, fills).double()
        x = _rows_standardised(x, len(columns_of(data.covariates))) if how in _BY_ROW else x
        # Of times not even a sum is told.
        summed = data.outcome not in {"survival", "multilabel"}
        y = data.y.double() if summed else torch.zeros_like(weight)
        if around is not None:
            x, y = (x - around["x"]).square(), (y - around["y"]).square()
        terms = {"weight": weight, "x": column * x, "y": weight * y}
    return {k: torch.stack([term[p].sum(0) for p in pieces]) for k, term in terms.items()}


def _means_of_present(sums: dict[str, Tensor], features: Sequence[str]) -> dict[str, float]:
    """Return the weighted mean of each feature's present values, in the precision of the rows.

    A feature without one takes the mean of all: only for "array" does it matter, and there the
    features share a unit.
    """
    mass, total = sums["weight"].sum(0), sums["x"].sum(0)
    means = torch.where(mass > 0, total / mass, total.sum() / mass.sum())
    return dict(zip(features, means.float().tolist(), strict=True))


def _deviation(variance: Tensor, mean: Tensor) -> Tensor:
    """Return the standard deviation; 0 for mere rounding."""
    deviation = variance.sqrt()
    return torch.where(deviation > _NEGLIGIBLE * mean.abs(), deviation, 0.0)


def per_unit(values: Tensor, scale: Tensor) -> Tensor:
    """Return values over their columns' scales, 0 for a column that does not vary."""
    return torch.where(scale > 0, values / torch.where(scale > 0, scale, 1.0), 0.0)


def _rows_standardised(x: Tensor, width: int = 0) -> Tensor:
    """Bring each row of float64 [N, ...] to mean 0 and standard deviation 1 over itself.

    The last ``width`` numbers, those of covariates, stay as they are.
    """
    if width:
        return torch.cat([_rows_standardised(x[:, :-width]), x[:, -width:]], 1)
    flat = x.flatten(1)
    mean = flat.mean(1, keepdim=True)
    deviation = ((flat - mean).square().sum(1, keepdim=True) / max(flat.shape[1] - 1, 1)).sqrt()
    constant = (deviation <= _NEGLIGIBLE * mean.abs()).flatten().nonzero().flatten().tolist()
    if constant:
        raise DataError(
            f"row {constant[0] + 1} has the same value in every feature"
            f" ({counted(len(constant), 'such row')}), so it cannot be standardised as an array;"
            " remove it or standardise by feature"
        )
    return ((flat - mean) / deviation).reshape(x.shape)
