"""How a fit predicts at a site that had no part in it: each site is held out in turn.

A site is called shifted if leaving it out costs its own rows more than the other sites' costs make
likely. In every split of the rows, the loss on a site's test rows is taken twice: of the model of
the split's training rows, which has seen others of the site, and of the model of the other sites.
The mean difference of their roots over splits is what the site's absence costs. (An offset at a
site adds its square to the loss: where sites differ at random, a few would stand out in the loss,
and not in its root.) The site is named if its cost is above the upper end of the prediction
interval of one more cost like the others', by Student's t and at 1 - .05 / sites, and if its costs
are above 0 over the splits, at 95 %: one patient whom few splits test names no site. Of twenty
studies whose sites are alike, about one names a site. (An interval over the splits alone would not
do: all of them hold against the same model of the other sites.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedsift.data import FederatedData, Standardiser
from fedsift.evaluation import evaluate
from fedsift.linear_problems import linear_problem
from fedsift.selection import Interval, t_interval, t_quantile
from fedsift.settings import Settings
from fedsift.studies import Case, Fit

FEWEST = 4  # sites from which a site is compared with the others

Fitted = Sequence[tuple[Case, Fit]]


def site_cases(data: FederatedData) -> tuple[Case, ...]:
    """Return a case for each of several sites: the rows of the others, and its own to test."""
    return tuple(
        Case(
            f"site {number + 1} held out",
            data.at_sites([other for other in data.sites if other != name]),
            data.at_sites([name]),
        )
        for number, name in enumerate(data.sites)
    )


def held_out_figures(held: Fitted, splits: Fitted, settings: Settings) -> dict[str, Any]:
    """Return the score at each site that was held out, and which of them are shifted.

    Args:
        held: a case of `site_cases`, and its fit, for every site.
        splits: those of splits of the same rows, to compare with; without two, or four sites, no
            site is compared.
        settings: of the study; a site with fewer test rows than ``min_cell`` is not told of.

    Returns:
        ``measure``; ``score``: the mean over sites with its interval; ``sites``: of each its
        ``score``, ``extra_loss`` (what its absence costs its rows above the mean of what others'
        cost theirs, with its prediction interval, in roots of nats or units of the target) and
        ``shifted``, None where not known;
        ``shifted``: their names.
    """
    measure = "r2" if "r2" in held[0][1].scores else "accuracy"
    costs = _of_site(_costs(held, splits, settings))
    extra = _extra_losses(costs)
    sites: dict[str, dict[str, Any]] = {}
    for case, fit in held:
        assert case.test is not None  # noqa: S101  made by `site_cases`
        name = case.test.sites[0]
        told = case.test.n_samples >= settings.min_cell
        interval = extra.get(name) if told else None
        sites[name] = {
            "score": float(fit.scores[measure][fit.n_lanes :].mean()) if told else None,
            "extra_loss": interval,
            "shifted": None
            if interval is None or len(costs[name]) < 2
            else interval["low"] > 0 and _steady(costs[name]),
        }
    known = [site["score"] for site in sites.values() if site["score"] is not None]
    return {
        "measure": measure,
        "score": t_interval(known).to_json() if known else None,
        "sites": sites,
        "shifted": [name for name, site in sites.items() if site["shifted"]],
    }


def _costs(held: Fitted, splits: Fitted, settings: Settings) -> list[dict[str, float]]:
    """Return, for each split, what each site's absence adds to the root loss on its test rows."""
    if len(held) < FEWEST:
        return []
    without = {
        case.test.sites[0]: (fit, Standardiser.fit(case.train, settings.standardise))
        for case, fit in held
        if case.test is not None
    }
    costs = []
    for case, fit in splits:
        assert case.test is not None  # noqa: S101  a split has test rows
        told = [
            name
            for name, size in zip(case.test.sites, case.test.sizes, strict=True)
            if size >= max(1, settings.min_cell)
        ]
        within = Standardiser.fit(case.train, settings.standardise)
        losses = _root_losses(fit, within, case.test, told, settings)
        costs.append(
            {
                name: _root_losses(*without[name], case.test, [name], settings)[name] - losses[name]
                for name in told
            }
        )
    return costs


def _root_losses(
    fit: Fit,
    standardiser: Standardiser,
    rows: FederatedData,
    sites: Sequence[str],
    settings: Settings,
) -> dict[str, float]:
    """Return the root of the loss of a fit's ensemble on each site's rows, in target units."""
    problem, scaled = linear_problem(rows, settings.gate), standardiser.apply(rows)
    own, roots = fit.own_of_ensembles(), {}
    for name in sites:
        place = rows.sites.index(name)
        loss = float(evaluate(problem, fit.ensembles(), scaled, [place], own)["loss"][0])
        # A deviance of 0 may be rounded to less; what is not a number stays so.
        roots[name] = math.sqrt(max(loss, 0.0)) * standardiser.target_scale
    return roots


def _of_site(costs: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return each site's costs, one for every split that tests it."""
    of_site: dict[str, list[float]] = {}
    for split in costs:
        for name, cost in split.items():
            of_site.setdefault(name, []).append(cost)
    return of_site


def _steady(costs: Sequence[float]) -> bool:
    """Return whether a site's costs are above 0 on average, one-sided at 5 %, by its splits."""
    error = statistics.stdev(costs) / math.sqrt(len(costs))
    return statistics.fmean(costs) > t_quantile(0.05, len(costs) - 1) * error


def _extra_losses(of_site: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | int]]:
    """Return each site's mean cost over splits above the others' mean, with its interval."""
    if len(of_site) < FEWEST:
        return {}
    means = {name: statistics.fmean(values) for name, values in of_site.items()}
    quantile = t_quantile(0.05 / len(means), len(means) - 2)
    found: dict[str, dict[str, float | int]] = {}
    for name, mean in means.items():
        others = [value for other, value in means.items() if other != name]
        half = quantile * statistics.stdev(others) * math.sqrt(1.0 + 1.0 / len(others))
        above = mean - statistics.fmean(others)
        found[name] = Interval(above, above - half, above + half, len(others)).to_json()
    return found
