"""Samples of several sites as flat tensors, with the names that a result needs."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from fedsift.data.coding import (
    Coded,
    Label,
    Outcome,
    by_label,
    check_labels,
    code_labels,
    code_survival,
    code_target,
    target_columns,
    target_name,
)
from fedsift.data.covariates import Covariate, columns_of
from fedsift.data.errors import DataError, counted, listed, nearest
from fedsift.data.grouping import Numbered, group_rows, plain_values, texts
from fedsift.data.harmonise import Harmonise, check_table, own_units
from fedsift.data.validation import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

    from numpy.typing import ArrayLike
    from torch import Tensor

__all__ = ["FORGET", "HELD_OUT", "RETAIN", "FederatedData", "Outcome"]

RETAIN, FORGET, HELD_OUT = 0, 1, 2
UNNAMED = "target"  # of a target without a name

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Samples of C sites; the N rows of all sites lie one below the other, a site's rows together.

    Attributes:
        x: tensor [N, ...], finite; [N, d] for tables; 0 where a value is missing. float32, or
            float64 where `fedsift.solve` needs every digit.
        y: tensor [N]: int64 codes 0 .. K-1 of ``classes``, or float32 values of other outcomes; of
            survival the time, negative where the event was not seen. Of multilabel int64 [N, K]: 1,
            0, or -1 where a label is not known.
        weight: float32 tensor [N] of sample weights, positive; ones when nothing else is known.
        offsets: C+1 row numbers; site c has the rows ``offsets[c]:offsets[c+1]``, at least one.
        sites: C distinct names.
        features: d distinct names, or empty where a row is not a list of features (images).
        rows: N ids. Rows of one id belong together (one patient) and are never split apart. A
            tuple, or a sequence that makes them when they are asked for.
        outcome: "regression", "binary", "multiclass", "multilabel", "poisson", "negative_binomial"
            or "survival".
        classes: K names in the order of the codes, or of the labels of multilabel; empty for other
            outcomes.
        target: name of the target; of multilabel the labels with commas between.
        descriptions: text for a feature, where there is one.
        notes: what a reader should know, such as columns left out.
        missing: bool tensor [N, d], True where a table lacks a value, which `Standardiser` fills
            with the mean of its training rows; None where no value may be missing.
        role: int8 tensor [N]: what a row is for when something is to be forgotten, `RETAIN`,
            `FORGET` or `HELD_OUT` (only looked at, to compare); None where nothing is.
        covariates: what stays in a model whatever is chosen; their columns are the last of x.
        checked: an ``x`` whose numbers are known to be finite, so that they are not read again.

    Raises:
        DataError: lengths, names, codes or values contradict the above.

    """

    x: Tensor
    y: Tensor
    weight: Tensor
    offsets: tuple[int, ...]
    sites: tuple[str, ...]
    features: tuple[str, ...]
    rows: Sequence[str]
    outcome: Outcome
    classes: tuple[str, ...] = ()
    target: str = "target"
    descriptions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    missing: Tensor | None = None
    role: Tensor | None = None
    covariates: tuple[Covariate, ...] = ()
    checked: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse data that contradict themselves."""
        check(self)
        object.__setattr__(self, "checked", self.x)

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | Tensor,
        y: Sequence[Label] | Sequence[Sequence[Label | None]] | ArrayLike | Tensor,
        *,
        sites: Sequence[object] | ArrayLike | Tensor | None = None,
        features: Sequence[str] | None = None,
        ids: Sequence[object] | ArrayLike | Tensor | None = None,
        outcome: str = "auto",
        target: str | Sequence[str] = UNNAMED,
        weight: ArrayLike | Tensor | None = None,
        time: ArrayLike | Tensor | None = None,
    ) -> FederatedData:
        """Build the data from arrays whose rows may come in any order of sites.

        Args:
            x: numbers [N, ...]; stored as float32.
            y: N numbers, strings or booleans; or [N, K] labels, each 1, true or yes, 0, false or
                no, and None or NaN where it is not known.
            sites: site of each row; None for one site called "site_1". Sites keep the order in
                which they appear first, rows the order they have within their site.
            features: names of the columns of a table; None for "x0", "x1", ...
            ids: id of each row; None for "site:number", numbered from 1 within the site.
            outcome: as above, or "auto" (`code_target` says how).
            target: name of the target, or names of the labels ("y0", "y1", ... where not given).
            weight: N positive sample weights; None for ones.
            time: N times until an event or the last sight; y is then whether it was seen, and the
                outcome "survival".

        Raises:
            DataError: the arrays do not fit together, or the target has one value only.

        """
        if not torch.is_tensor(x):
            x = np.require(x, requirements="W")  # torch shares memory, and warns of what is fixed
        values = torch.as_tensor(x, dtype=torch.float32)
        count = len(values)
        target = target_name(target)
        given_y: list[Any] = plain_values(y)
        if time is not None:
            times = [float(value) for value in plain_values(time)]
            coded = Coded(code_survival(given_y, times, target), "survival", ())
        elif outcome == "multilabel" or (outcome == "auto" and _several(given_y)):
            coded = _labels(given_y, target)
            target = target_name(coded.classes)
        else:
            coded = code_target(given_y, outcome, target)
        labels = ["site_1"] * count if sites is None else texts(sites)
        names_of_rows = [""] * count if ids is None else texts(ids)
        weights = torch.ones(count) if weight is None else torch.as_tensor(weight).float()
        given: dict[str, Sized] = {
            "y": coded.y,
            "sites": labels,
            "ids": names_of_rows,
            "weight": weights,
        }
        for name, entries in given.items():
            if len(entries) != count:
                raise DataError(
                    f"{name} has length {len(entries)} for {counted(count, 'row')}; give one a row"
                )
        order, names, offsets = group_rows(labels)
        if features is None:
            features = [f"x{column}" for column in range(values.shape[1])] * (values.ndim == 2)
        if ids is None:
            rows = tuple(Numbered(names, offsets))
        else:
            rows = tuple(names_of_rows[row] for row in order)
        return cls(
            x=values[order],
            y=coded.y[order],
            weight=weights[order],
            offsets=offsets,
            sites=names,
            features=tuple(features),
            rows=rows,
            outcome=coded.outcome,
            classes=coded.classes,
            target=target,
        )

    @property
    def n_sites(self) -> int:
        """Number of sites C."""
        return len(self.sites)

    @property
    def n_samples(self) -> int:
        """Number of rows N of all sites."""
        return len(self.x)

    @property
    def n_features(self) -> int:
        """Numbers in one row."""
        return math.prod(self.x.shape[1:])

    @property
    def n_candidates(self) -> int:
        """Numbers in one row that a choice is made among: those that are no covariates."""
        return self.n_features - len(columns_of(self.covariates))

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the features that a choice is made among."""
        return self.features[: self.n_candidates]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each site."""
        return tuple(stop - start for start, stop in pairwise(self.offsets))

    @property
    def slices(self) -> tuple[slice, ...]:
        """Rows of each site as a slice."""
        return tuple(slice(start, stop) for start, stop in pairwise(self.offsets))

    @property
    def strata(self) -> Tensor:
        """Codes [N] of the kinds of rows that splits share out evenly.

        The classes; of labels how many of a row are 1; of survival whether the event was seen; else
        one kind.
        """
        if self.outcome == "survival":
            return (self.y > 0).long()
        if self.outcome == "multilabel":
            return (self.y > 0).sum(1)
        return self.y if self.classes else torch.zeros(len(self.y), dtype=torch.int64)

    @property
    def class_sizes(self) -> dict[str, int]:
        """Rows of each class, or with each label; none of other outcomes."""
        if self.outcome == "multilabel":
            return dict(zip(self.classes, (self.y > 0).sum(0).tolist(), strict=True))
        if not self.classes:
            return {}
        sizes = torch.bincount(self.y, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, sizes, strict=True))

    @property
    def unknown(self) -> dict[str, int]:
        """Rows that do not know a label, by label; none of other outcomes."""
        if self.outcome != "multilabel":
            return {}
        return dict(zip(self.classes, (self.y < 0).sum(0).tolist(), strict=True))

    @property
    def n_strata(self) -> int:
        """Number of such kinds."""
        if self.outcome == "survival":
            return 2
        return max(1, len(self.classes) + (self.outcome == "multilabel"))

    @property
    def site_of_row(self) -> Tensor:
        """Number 0 .. C-1 of each row's site, int64 [N]."""
        return torch.repeat_interleave(torch.arange(self.n_sites), torch.tensor(self.sizes))

    def site(self, name: str) -> FederatedData:
        """Return the data of one site, alone.

        Raises:
            DataError: no site has that name.

        """
        if name not in self.sites:
            raise DataError(f"no site is called '{name}'; {nearest(name, self.sites)}")
        rows = self.slices[self.sites.index(name)]
        return self.take(torch.arange(rows.start, rows.stop))

    def at_sites(self, names: Sequence[str]) -> FederatedData:
        """Return the data of some sites, in their own order.

        Raises:
            DataError: no site has one of the names, or none is named.

        """
        for name in names:
            if name not in self.sites:
                raise DataError(f"no site is called '{name}'; {nearest(name, self.sites)}")
        wanted = torch.tensor([name in names for name in self.sites])
        return self.take(wanted[self.site_of_row])

    def harmonised(self, how: Harmonise | None) -> FederatedData:
        """Return the rows in the units of their own site (`data.harmonise`); covariates stay.

        Raises:
            DataError: the rows are not lists of features, or values are missing.

        """
        if how is None:
            return self
        check_table(self)
        x = self.x.clone()
        own = slice(0, self.n_candidates)
        for rows in self.slices:
            x[rows, own] = own_units(self.x[rows, own], self.weight[rows], how)
        return replace(self, x=x)

    def take(self, indices: Sequence[int] | range | np.ndarray | Tensor) -> FederatedData:
        """Return some rows.

        Args:
            indices: row numbers in any order, repeats allowed, or a boolean mask [N].

        Returns:
            the rows in the order given within each site; sites keep their order, and a site without
            a row is left out, because a site that takes part must have something to say.

        Raises:
            DataError: no row, a mask of another length, or a row number out of range.

        """
        chosen = torch.as_tensor(indices)
        if chosen.dtype == torch.bool and len(chosen) != self.n_samples:
            raise DataError(
                f"the mask has length {len(chosen)} for {counted(self.n_samples, 'row')};"
                " give one a row"
            )
        chosen = chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen.long()
        if not len(chosen) or chosen.min() < 0 or chosen.max() >= self.n_samples:
            raise DataError(
                f"{counted(len(chosen), 'row')} chosen from {self.n_samples}; choose one at"
                f" least, and numbers from 0 to {self.n_samples - 1}"
            )
        ends = torch.tensor(self.offsets[1:])
        return self._regrouped(chosen, torch.bucketize(chosen, ends, right=True), self.sites)

    def with_sites(self, site_of_row: Tensor, sites: Sequence[str]) -> FederatedData:
        """Return the same rows at other sites.

        Args:
            site_of_row: number of the new site of each row, int64 [N], each below ``len(sites)``.
            sites: names of the new sites; one without a row is left out.

        Raises:
            DataError: a length or a number does not fit.

        """
        if (
            len(site_of_row) != self.n_samples
            or site_of_row.min() < 0
            or site_of_row.max() >= len(sites)
        ):
            raise DataError(
                f"site_of_row must name one of {counted(len(sites), 'site')} for each of"
                f" {counted(self.n_samples, 'row')}"
            )
        return self._regrouped(torch.arange(self.n_samples), site_of_row, sites)

    def select_features(self, chosen: Sequence[str] | Sequence[int] | Tensor) -> FederatedData:
        """Return some features, in the order given, by name or by number; covariates stay.

        Raises:
            DataError: a name is unknown, a number out of range, or the rows are not lists of
            features.

        """
        if not self.features:
            raise DataError("the rows of this data set have no named features to select from")
        names = self.candidates
        places = {name: place for place, name in enumerate(names)}
        numbers: list[int] = []
        for item in chosen.tolist() if isinstance(chosen, torch.Tensor) else chosen:
            place = places.get(item) if isinstance(item, str) else int(item)
            if place is None or not 0 <= place < len(names):
                raise DataError(f"no feature '{item}'; {nearest(str(item), names)}")
            numbers.append(place)
        numbers += range(len(names), len(self.features))
        names = tuple(self.features[number] for number in numbers)
        texts = {name: self.descriptions[name] for name in names if name in self.descriptions}
        missing = None if self.missing is None else self.missing[:, numbers]
        return replace(
            self, x=self.x[:, numbers], features=names, descriptions=texts, missing=missing
        )

    def with_covariates(self, names: Sequence[str]) -> FederatedData:
        """Return the data with some measured features as covariates, after those there are.

        Raises:
            DataError: a name is no feature that a choice is made among.
        """
        chosen = tuple(dict.fromkeys(names))
        self.select_features(chosen)  # refuses what is none
        rest = [name for name in self.candidates if name not in chosen]
        order = [*rest, *self.features[self.n_candidates :], *chosen]
        whole = replace(self, covariates=()).select_features(order)
        return replace(whole, covariates=(*self.covariates, *map(Covariate, chosen)))

    def pooled(self) -> FederatedData:
        """Return the same rows as one site called "pooled"."""
        return replace(self, offsets=(0, self.n_samples), sites=("pooled",))

    def together(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Sequence[Result]:
        """Return the function of each item, work on these rows that does not depend on the rest."""
        return [function(item) for item in items]

    def fingerprint(self) -> str:
        """Return a SHA-256 (hex) over every number and name.

        Sites enter in the order of their names, so the order in which files were listed does not
        matter; the order of the features and of a site's rows does. Descriptions and notes do not
        enter.
        """
        head = [self.target, self.outcome, self.classes, self.features, list(self.x.shape[1:])]
        head += [[covariate.to_dict() for covariate in self.covariates]] if self.covariates else []
        digest = hashlib.sha256(json.dumps(head).encode())
        tensors = [self.x, self.y, self.weight]
        tensors += [part for part in (self.missing, self.role) if part is not None]
        for site in sorted(range(self.n_sites), key=self.sites.__getitem__):
            rows = slice(self.offsets[site], self.offsets[site + 1])
            digest.update(json.dumps([self.sites[site], list(self.rows[rows])]).encode())
            for tensor in tensors:
                digest.update(tensor[rows].contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def _regrouped(self, rows: Tensor, site_of_row: Tensor, sites: Sequence[str]) -> FederatedData:
        order = torch.argsort(site_of_row, stable=True)
        sizes = torch.bincount(site_of_row, minlength=len(sites)).tolist()
        rows = rows[order]
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            weight=self.weight[rows],
            missing=None if self.missing is None else self.missing[rows],
            role=None if self.role is None else self.role[rows],
            rows=tuple(self.rows[row] for row in rows.tolist()),
            sites=tuple(name for name, size in zip(sites, sizes, strict=True) if size),
            offsets=(0, *np.cumsum([size for size in sizes if size]).tolist()),
        )


def _several(y: Sequence[Any]) -> bool:
    return bool(y) and isinstance(y[0], list)


def _labels(y: Sequence[Any], target: str) -> Coded:
    """Return the labels of rows [N, K], or [N] of one; refuse what is none."""
    rows = [row if isinstance(row, list) else [row] for row in y]
    names = target_columns(target, "multilabel")
    count = len(rows[0]) if rows else 0
    if names == (UNNAMED,) and count > 1:
        names = tuple(f"y{place}" for place in range(count))
    if any(len(row) != len(names) for row in rows):
        raise DataError(
            f"y has rows of {counted(count, 'label')}, and the target has"
            f" {counted(len(names), 'name')} ({listed(names)}); give one to each"
        )
    coded = code_labels([list(column) for column in zip(*rows, strict=True)], names)
    check_labels(by_label(coded, names))
    return Coded(coded, "multilabel", names)
