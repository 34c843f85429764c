"""What fits found: the scores of a method, the features it chose, how stable the choice is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedsift.data import FederatedData, Standardiser
from fedsift.data.coding import is_count
from fedsift.data.groups import Groups
from fedsift.data.standardise import per_unit
from fedsift.outcomes import make_outcome
from fedsift.selection import (
    Interval,
    inclusion_probability,
    jaccard_stability,
    nogueira_stability,
    swaps,
    t_interval,
)
from fedsift.settings import Settings
from fedsift.studies import Case, Fit
from fedsift.trees import Tree


@dataclass(frozen=True)
class Feature:
    """A feature of the reported set.

    ``weight`` is per standard unit, of the refitted ensemble; ``weight_low`` and ``weight_high``
    are the 95 % interval of its mean over the refitted seeds that chose the feature.
    """

    name: str
    inclusion_probability: float
    split_frequency: float | None
    weight: float
    weight_low: float
    weight_high: float
    description: str = ""


@dataclass(frozen=True)
class Effect:
    """What a covariate does in the reported model.

    ``coefficient`` is in units of the target (log-odds or scores for classes), per unit of a
    measured covariate, or of ``level`` against ``reference``. ``output``: the class that it is for,
    with more than two.
    """

    covariate: str
    level: str | None
    reference: str | None
    output: str | None
    coefficient: float


def method_figures(
    fits: Sequence[Fit], cases: Sequence[Case], settings: Settings
) -> dict[str, Any]:
    """Return the figures of a method's fits on cases; bytes are those of all cases."""
    scored = [
        (f, c)
        for f, c in zip(fits, cases, strict=True)
        if c.test is not None or c.truth is not None
    ]
    results = scores([f for f, _ in scored], [c for _, c in scored], settings.min_cell)
    for name in ("bytes_up", "bytes_down", "bytes_dense", "bytes_formula"):
        results[name] = sum(getattr(f, name) for f in fits)
    results["bytes_per_seed"] = (results["bytes_up"] + results["bytes_down"]) // settings.seeds
    tested = same_data(fits, cases)
    table = feature_table(fits[-1], cases[-1], tested)
    results["features"] = [
        {"name": f.name, "inclusion_probability": f.inclusion_probability, "weight": f.weight}
        for f in table
    ]
    if cases[-1].train.outcome == "multilabel":
        weights = label_weights(fits[-1], cases[-1], table)
        rows = zip(results["features"], weights, strict=True)
        results["features"] = [row | {"weights": own} for row, own in rows]
    results |= choice_figures(fits[-1], cases[-1], settings)
    if fits[-1].control:
        results["error_control"] = fits[-1].control
    return results | stability(fits[-1], tested)


def only_scores(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a method that stands beside the reported one.

    Its features are those of one split, and its bytes are no messages: neither would be understood.
    """
    return {k: v for k, v in figures.items() if k.startswith(("test_", "single_seed_"))}


def scores(fits: Sequence[Fit], cases: Sequence[Case], min_cell: int) -> dict[str, Any]:
    """Return the scores of a method over its cases, as the command line prints them.

    A site's own score in a split with fewer than ``min_cell`` test rows of it does not count.
    """
    figures: dict[str, Any] = {}
    tested = [
        (f, c.train, c.test, c.truth)
        for f, c in zip(fits, cases, strict=True)
        if c.test is not None
    ]
    if tested:
        measure = make_outcome(tested[0][1].outcome).measure
        _, train_rows, test_rows, truth = tested[0]
        overlap = 0.0 if truth is not None else test_rows.n_samples / train_rows.n_samples
        ensemble = [float(f.scores[measure][f.n_lanes :].mean()) for f, *_ in tested]
        single = [float(f.scores[measure][: f.n_lanes].mean()) for f, *_ in tested]
        figures[f"test_{measure}"] = t_interval(ensemble, overlap).to_json()
        figures[f"single_seed_{measure}"] = t_interval(single, overlap).to_json()
        if tested[0][1].outcome == "multilabel":
            figures |= label_scores([f for f, *_ in tested], tested[0][1].classes, overlap)
        elif measure == "accuracy":
            guesses = [guessing(train, test) for _, train, test, _ in tested]
            figures["guessing_accuracy"] = sum(guesses) / len(guesses)
        if len(tested[0][0].support) > 1:
            by_site: dict[str, list[float]] = {}
            # A site of few rows may be all test rows in a split.
            for f, rows, test_rows, _ in tested:
                own = f.scores[measure][f.n_lanes :]
                counts = dict(zip(test_rows.sites, test_rows.sizes, strict=True))
                for site, score in zip(rows.sites, own, strict=True):
                    if counts.get(site, 0) >= min_cell:
                        by_site.setdefault(site, []).append(float(score))
            figures[f"test_{measure}_by_site"] = {
                site: t_interval(values, overlap).to_json() for site, values in by_site.items()
            }
    known = [recovery(f, c) for f, c in zip(fits, cases, strict=True) if c.truth is not None]
    if known:
        figures["support_recovery"] = t_interval([single for single, _ in known]).to_json()
        figures["ensemble_support_recovery"] = t_interval(
            [together for _, together in known]
        ).to_json()
    return figures


def label_scores(fits: Sequence[Fit], labels: Sequence[str], overlap: float) -> dict[str, Any]:
    """Return the figures of several labels over test rows: of all, and by label.

    Guessing says of each label what most test rows have.
    """

    def means(name: str) -> list[float]:
        return [float(f.scores[name][f.n_lanes :].mean()) for f in fits]

    def guesses(label: int) -> list[float]:
        return [max(share, 1.0 - share) for share in means(f"prevalence_{label}")]

    def told(values: Sequence[float]) -> dict[str, Any] | None:
        known = [value for value in values if not math.isnan(value)]
        return t_interval(known, overlap).to_json() if known else None

    guessed = [sum(guesses(k)) / len(fits) for k in range(len(labels))]
    whole = ("cross_entropy", "hamming_loss", "subset_accuracy")
    return {
        **{f"test_{name}": told(means(name)) for name in whole},
        "guessing_accuracy": sum(guessed) / len(guessed),
        "labels": {
            name: {
                "test_accuracy": told(means(f"accuracy_{k}")),
                "test_cross_entropy": told(means(f"cross_entropy_{k}")),
                "guessing_accuracy": guessed[k],
            }
            for k, name in enumerate(labels)
        },
    }


def add_areas(results: dict[str, Any], found: dict[str, Any] | None) -> None:
    """Add the areas under the ROC curves of labels, as `held_out` gives them, to their figures."""
    if found is None or "macro_auc" not in found:
        return
    results["test_auc"] = found["macro_auc"]
    for name, area in found["auc"].items():
        results["labels"][name]["test_auc"] = area


def guessing(train: FederatedData, test: FederatedData) -> float:
    """Return the accuracy on test rows of always saying the training rows' heaviest class."""
    heaviest = torch.bincount(train.y, train.weight, minlength=len(train.classes)).argmax()
    return float(((test.y == heaviest) * test.weight).sum() / test.weight.sum())


def recovery(fit: Fit, case: Case) -> tuple[float, float]:
    """Return the share of the true features found, by the seeds on average and by the ensembles."""
    truth = case.truth or frozenset()
    true = torch.tensor([name in truth for name in case.train.candidates])
    chosen = (fit.weights != 0).any(1)
    together = (fit.ensembles()["weight"] != 0).any(1)
    share = [float((c & true).sum(1).double().mean() / true.sum()) for c in (chosen, together)]
    return share[0], share[1]


def same_data(fits: Sequence[Fit], cases: Sequence[Case]) -> list[Fit]:
    """Return the fits of splits of one data set; a case with a known truth is a set of its own."""
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


def label_weights(fit: Fit, case: Case, features: Sequence[Feature]) -> list[dict[str, float]]:
    """Return the weight of each feature for each label, per standard unit."""
    weight = fit.ensembles()["weight"].mean(0)
    places = {name: column for column, name in enumerate(case.train.features)}
    columns = (weight[:, places[feature.name]].tolist() for feature in features)
    return [dict(zip(case.train.classes, column, strict=True)) for column in columns]


def choice_figures(fit: Fit, case: Case, settings: Settings) -> dict[str, Any]:
    """Return the chosen groups, with groups, and the alternatives of what is chosen."""
    groups = settings.groups_in(case.train)
    told = {} if groups is None else {"groups": chosen_groups(fit, case, groups)}
    return {**told, "alternatives": alternatives(fit, case, groups)}


def chosen_groups(fit: Fit, case: Case, groups: Groups) -> list[dict[str, Any]]:
    """Return the chosen groups, most often chosen first, with the weights of their features."""
    probability, weight = inclusion_probability(fit.masks), fit.ensembles()["weight"].mean(0)
    largest = weight.gather(0, weight.abs().argmax(0, keepdim=True)).squeeze(0).tolist()
    found = []
    for gate, (name, members) in enumerate(zip(groups.names, groups.members, strict=True)):
        if fit.support[0, gate]:
            rows = [{"name": case.train.features[j], "weight": largest[j]} for j in members]
            rows.sort(key=lambda row: -abs(row["weight"]))
            share = float(probability[gate])
            found.append({"name": name, "inclusion_probability": share, "features": rows})
    return sorted(found, key=lambda group: -group["inclusion_probability"])


def alternatives(
    fit: Fit, case: Case, groups: Groups | None = None, most: int = 5
) -> dict[str, list[dict[str, Any]]]:
    """Return what took the place of chosen features in seeds without them (`selection.swaps`).

    A list by name of the feature, or group: ``name`` of the other, ``seeds`` in which it was chosen
    of the ``without`` that did not choose the first.
    """
    names = case.train.candidates
    if groups is None:
        masks, kept = (fit.weights != 0).any(1), (fit.ensemble()["weight"] != 0).any(0)
    else:
        masks, kept = fit.masks, fit.support[0] > 0
        inside = {column for members in groups.members for column in members}
        single = (name for column, name in enumerate(names) if column not in inside)
        names = (*groups.names, *single)
    found: dict[str, list[dict[str, Any]]] = {}
    for swap in swaps(masks, kept):
        rows = found.setdefault(names[swap.gate], [])
        if len(rows) < most:
            told = {"name": names[swap.other], "seeds": swap.seeds, "without": swap.without}
            rows.append(told)
    return found


def effects(
    params: Tree, standardiser: Standardiser, classes: Sequence[str], outcome: str
) -> list[Effect]:
    """Return what each covariate does in a model, in the order of their columns."""
    if not standardiser.covariates:
        return []
    scale = standardiser.scale[standardiser.n_candidates :]
    slopes = per_unit(params["covariate"], scale)
    if not is_count(outcome):  # whose logarithm has no unit
        slopes = slopes * standardiser.target_scale
    places = [
        (one.name, level, one.levels[0] if level else None)
        for one in standardiser.covariates
        for level in one.levels[1:] or (None,)
    ]
    outputs = classes if len(slopes) > 1 else (None,)
    return [
        Effect(name, level, reference, output, slope)
        for (name, level, reference), column in zip(places, slopes.T.tolist(), strict=True)
        for output, slope in zip(outputs, column, strict=True)
    ]


def candidates(fit: Fit, case: Case, count: int = 20) -> list[dict[str, Any]]:
    """Return the features that seeds chose most often, and all of the ensemble's, for a plot."""
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
