"""What the models of the splits said of rows they never saw: counts and means of groups of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift.data import FederatedData, How, RemoteData, Standardiser
from fedsift.data.remote import OwnThere
from fedsift.forgetting import class_logits
from fedsift.linear_problems import slopes_of
from fedsift.measures import auc
from fedsift.outcomes import make_outcome
from fedsift.selection import t_interval
from fedsift.studies import Case, Fit

GROUPS = 20  # groups of predictions at most
FEWEST = 5  # rows of a group, and of a site that is shown, whatever `min_cell` is
MOST_CLASSES = 12


class Scored(NamedTuple):
    """Rows held out in a case and what its model says: probabilities [n, K], or values [n, 1]."""

    case: Case
    rows: FederatedData
    predicted: Tensor


def held_out(
    fits: Sequence[Fit], cases: Sequence[Case], how: How, min_cell: int = 0
) -> dict[str, Any] | None:
    """Return how predictions of rows held out compare with what was observed.

    None where no row was held out, where rows stay at their sites, for times until an event, and
    for more than `MOST_CLASSES` classes. A row counts once, in the first case that held it out;
    areas under the curve are means over the cases.

    Args:
        fits: of the cases.
        cases: splits, or data sets with test rows.
        how: of the standardisation.
        min_cell: no count between 0 and this number is told.

    Returns:
        ``rows``; ``groups``, by class (of two, the second; or the target's name): rows with
        neighbouring predictions, ``{"rows": , "predicted": mean, "observed": mean}``; ``by_site``:
        ``rows`` and the ``accuracy`` or ``rmse`` of sites with enough of them; for classes ``auc``
        by class and ``confusion`` [true][predicted], None in rows with small counts. Of labels
        ``groups`` and ``auc`` are of the rows that know them, ``macro_auc`` the mean over labels.
    """
    scored = [
        _scored(fit, case, how)
        for fit, case in zip(fits, cases, strict=True)
        if case.test is not None and not isinstance(case.test, RemoteData)
    ]
    if not scored or len(scored[0].rows.classes) > MOST_CLASSES:
        return None
    if scored[0].rows.outcome == "survival":  # times are not to be told, and a risk is no time
        return None
    once = _each_once(scored)
    outcome, y = once[0].rows.outcome, torch.cat([s.rows.y for s in once])
    predicted = torch.cat([s.predicted for s in once])
    names = [s.rows.sites[code] for s in once for code in s.rows.site_of_row.tolist()]
    classes, target = scored[0].rows.classes, scored[0].rows.target
    if not classes:
        groups = {target: _groups(predicted[:, 0], y.double(), max(min_cell, FEWEST))}
        error = (predicted[:, 0] - y.double()) ** 2
        by_site = _by_site(names, error, "rmse", max(min_cell, FEWEST))
        return {"rows": len(y), "groups": groups, "by_site": by_site}
    least = max(min_cell, FEWEST)
    if outcome == "multilabel":
        known, right = y >= 0, (predicted > 0.5) == (y > 0)
        some = known.any(1)
        shares = (right & known).sum(1).double() / known.sum(1).clamp(min=1)
        own = [name for name, one in zip(names, some.tolist(), strict=True) if one]
        return {
            "rows": len(y),
            "groups": {
                name: _groups(
                    predicted[known[:, k], k], y[known[:, k], k].double(), least, min_cell
                )
                for k, name in enumerate(classes)
            },
            "by_site": _by_site(own, shares[some], "accuracy", least),
            "auc": {name: _area(scored, [k]) for k, name in enumerate(classes)},
            "macro_auc": _area(scored, range(len(classes))),
        }
    shown = range(1, 2) if len(classes) == 2 else range(len(classes))
    right = (predicted.argmax(1) == y).double()
    return {
        "rows": len(y),
        "groups": {
            classes[k]: _groups(predicted[:, k], (y == k).double(), least, min_cell) for k in shown
        },
        "by_site": _by_site(names, right, "accuracy", least),
        "auc": {classes[k]: _area(scored, [k]) for k in shown},
        "confusion": _confusion(y, predicted.argmax(1), len(classes), min_cell),
    }


def _scored(fit: Fit, case: Case, how: How) -> Scored:
    """Return what the ensemble of a case says of its test rows."""
    assert case.test is not None  # noqa: S101  asked before
    standardiser = Standardiser.fit(case.train, how)
    model, own = fit.ensemble(), fit.own_of_ensembles()
    assert not isinstance(own, OwnThere)  # noqa: S101  the rows are here
    intercepts = [own[s]["bias"][0] if s in own else model["bias"] for s in case.test.sites]
    of_row = torch.stack(intercepts)[case.test.site_of_row]
    output = standardiser.apply(case.test).x @ slopes_of(model).T + of_row
    if case.test.outcome == "multilabel":
        return Scored(case, case.test, output.double().sigmoid())
    if case.test.classes:
        return Scored(case, case.test, class_logits(output.double()).softmax(-1))
    values = make_outcome(case.test.outcome).predict(output).double()
    return Scored(case, case.test, standardiser.target_to_units(values).unsqueeze(1))


def _each_once(scored: Sequence[Scored]) -> list[Scored]:
    """Return the cases with the rows alone that no case before held out.

    Data sets of different origin share no rows, though they name them alike.
    """
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for case, rows, predicted in scored:
        origin = "" if case.truth is None else case.name
        sites = [rows.sites[code] for code in rows.site_of_row.tolist()]
        keys = [(origin, site, name) for site, name in zip(sites, rows.rows, strict=True)]
        new = torch.tensor([key not in seen for key in keys])
        seen.update(keys)
        if bool(new.any()):
            kept.append(Scored(case, rows.take(new), predicted[new]))
    return kept


def _groups(
    predicted: Tensor, observed: Tensor, least: int, min_cell: int = 0
) -> list[dict[str, float]]:
    """Return rows grouped by neighbouring predictions.

    A group has ``least`` rows at least, and where ``min_cell`` is given and rows are 0 or 1, no
    fewer than that of each kind, or none. Equal predictions stay together.
    """
    order = predicted.argsort(stable=True)
    x, y = predicted[order], observed[order]
    count = len(x)
    ones = [0.0, *y.cumsum(0).tolist()]

    def allowed(start: int, stop: int, size: int) -> bool:
        """Tell whether a group is large enough, and each kind in it, where kinds count."""
        kinds = (ones[stop] - ones[start], stop - start - ones[stop] + ones[start])
        small = min_cell > 0 and any(0 < kind < min_cell for kind in kinds)
        return stop - start >= size and not small

    between = (x[1:] != x[:-1]).nonzero().flatten().add(1).tolist()
    size = max(least, math.ceil(count / GROUPS))
    bounds = [0]
    for stop in between:
        if allowed(bounds[-1], stop, size):
            bounds.append(stop)
    bounds.append(count)
    while len(bounds) > 2 and not allowed(bounds[-2], count, least):
        del bounds[-2]  # what is left over joins the group before it, until it may be told
    pieces = [(a, b) for a, b in pairwise(bounds) if allowed(a, b, least)]
    return [
        {"rows": b - a, "predicted": float(x[a:b].mean()), "observed": float(y[a:b].mean())}
        for a, b in pieces
    ]


def _by_site(
    names: Sequence[str], values: Tensor, measure: str, least: int
) -> dict[str, dict[str, float]]:
    """Return the mean of row values of each site that has enough rows; of an rmse, its root."""
    rows: dict[str, list[float]] = {}
    for name, value in zip(names, values.tolist(), strict=True):
        rows.setdefault(name, []).append(value)
    found = {}
    for name in sorted(rows):
        own = rows[name]
        mean = sum(own) / len(own)
        if len(own) >= least:
            found[name] = {"rows": len(own), measure: mean**0.5 if measure == "rmse" else mean}
    return found


def _area(scored: Sequence[Scored], outputs: Sequence[int]) -> dict[str, Any] | None:
    """Return the area under the ROC curve of a class, or label, or the mean of those of several.

    Over the cases with rows of both kinds.
    """
    areas = []
    for _, rows, predicted in scored:
        parts = []
        for k in outputs:
            label = rows.outcome == "multilabel"
            known = rows.y[:, k] >= 0 if label else torch.ones(rows.n_samples, dtype=torch.bool)
            own = (rows.y[known, k] > 0 if label else rows.y == k).double()
            if 0 < float(own.sum()) < len(own):
                score = predicted[known, k]
                parts.append(float(auc(score, own, score, 1.0 - own)))
        if len(parts) == len(outputs):
            areas.append(sum(parts) / len(parts))
    if not areas:
        return None
    case = scored[0].case
    overlap = 0.0 if case.truth is not None else scored[0].rows.n_samples / case.train.n_samples
    return t_interval(areas, overlap).to_json()


def _confusion(
    true: Tensor, predicted: Tensor, kinds: int, min_cell: int
) -> list[list[int | None]]:
    """Return the counts [true][predicted], None in rows with a small one, lest it be inferred."""
    counts = torch.bincount(true * kinds + predicted, minlength=kinds * kinds)
    table: list[list[int | None]] = counts.reshape(kinds, kinds).tolist()
    return [[None] * kinds if any(0 < (n or 0) < min_cell for n in row) else row for row in table]
