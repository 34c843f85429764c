"""Values of the chosen features by class and site: means and deviations of groups of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedsift.data import FederatedData, RemoteData

LEAST = 3  # rows of a group: mean and deviation of two rows are the two rows
MOST_FEATURES, MOST_SITES, MOST_CLASSES = 12, 40, 12


def profiles(
    data: FederatedData, features: Sequence[str], min_cell: int = 0
) -> list[dict[str, Any]]:
    """Return the values of features by site and class, in the units of the data.

    Empty where rows stay at their sites, and for more than `MOST_SITES` sites or `MOST_CLASSES`
    classes. The first `MOST_FEATURES` features are looked at. A group of fewer than ``min_cell``
    rows (3 at least) is None; so is that of all sites where the groups left out could be
    subtracted from it.

    Returns:
        ``{"name": , "sites": {site: {class: group}}, "all": {class: group}}`` a feature, with group
        ``{"rows": , "mean": , "deviation": }``. The groups of labels are the rows that have each,
        so that a row may be in several. A measured target is one class of its own name, and its
        groups have the ``correlation`` of feature and target, None where one is constant.
    """
    kinds, kind_of_row = _kinds(data)
    remote = isinstance(data, RemoteData)
    if remote or data.n_sites > MOST_SITES or len(kinds) > MOST_CLASSES:
        return []
    places = {name: column for column, name in enumerate(data.features)}
    least = max(LEAST, min_cell)
    found = []
    for name in features[:MOST_FEATURES]:
        column = places[name]
        known = torch.ones(data.n_samples, dtype=torch.bool)
        if data.missing is not None:
            known = ~data.missing[:, column]
        x = data.x[:, column].double()
        sites: dict[str, Any] = {site: {} for site in data.sites}
        everyone = {}
        for kind, own in zip(kinds, kind_of_row.T, strict=True):
            members = known & own
            hidden = 0
            for site, rows in zip(data.sites, data.slices, strict=True):
                chosen = members[rows]
                count = int(chosen.sum())
                hidden += count if count < least else 0
                sites[site][kind] = _group(data, x[rows][chosen], data.y[rows][chosen], least)
            fair = hidden == 0 or hidden >= least
            everyone[kind] = _group(data, x[members], data.y[members], least) if fair else None
        found.append({"name": name, "sites": sites, "all": everyone})
    return found


def _kinds(data: FederatedData) -> tuple[tuple[str, ...], Tensor]:
    """Return names of kinds of rows, and whether a row is of each, bool [N, kinds]."""
    if data.outcome == "multilabel":
        return data.classes, data.y > 0
    if not data.classes:
        return (data.target,), torch.ones(data.n_samples, 1, dtype=torch.bool)
    return data.classes, data.y.unsqueeze(1) == torch.arange(len(data.classes))


def _group(data: FederatedData, x: Tensor, y: Tensor, least: int) -> dict[str, Any] | None:
    if len(x) < least:
        return None
    group = {"rows": len(x), "mean": float(x.mean()), "deviation": float(x.std())}
    return group if data.classes else group | {"correlation": _correlation(x, y.double())}


def _correlation(x: Tensor, y: Tensor) -> float | None:
    spread = float(x.std() * y.std())
    if spread == 0.0:
        return None
    covariance = float(((x - x.mean()) * (y - y.mean())).sum()) / (len(x) - 1)
    return covariance / spread
