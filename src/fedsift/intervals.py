"""How sure the effects of chosen features are: by a sample split, or how far seeds differ.

Rows that chose a feature think too well of it: an interval of the same rows misses the effect much
more often than it says. So one half of the rows chooses, and the other, which had no part in it,
gives the intervals (Cox, "A note on data-splitting for the evaluation of significance levels",
Biometrika 62, 1975). They are of the best model of the chosen features, each effect with the others
equal, and hold for these features whatever chose them. The seeds' spread says nothing of other
rows: it is no confidence interval.
"""

from __future__ import annotations

from typing import Any

from fedsift.data import FederatedData, Standardiser
from fedsift.findings import feature_table
from fedsift.inference import NotEstimableError, estimate, halves
from fedsift.linear_problems import constants_of
from fedsift.selection import t_quantile
from fedsift.settings import Settings
from fedsift.studies import Case, Fit

__all__ = ["ensemble_spread", "half_case", "split_intervals"]

HALF = "half that chooses"
TAIL = 0.025  # of a 95 % interval, on either side


def half_case(case: Case, settings: Settings) -> tuple[Case, FederatedData]:
    """Return the case of the half of a case's rows that chooses, and the other half."""
    first, second = halves(case.train, settings.seed)
    return Case(HALF, first), second


def split_intervals(
    case: Case, fit: Fit, second: FederatedData, settings: Settings
) -> dict[str, Any]:
    """Return the effects of the features that half of the rows chose, from the other half.

    Returns:
        ``how``; ``rows`` of the second half; ``errors``: which; ``effects`` by feature (and class,
        of several): ``name``, ``output`` and ``reference`` class (None for two), ``estimate`` with
        its standard ``error``, the 95 % interval ``low`` to ``high``, and ``low_all`` to
        ``high_all``, which hold all their effects at once with 95 % (Bonferroni); in units of the
        target (log-odds, logarithms of rates or hazards) per standard unit of the feature.
        ``reason``: why there are none, else None.
    """
    survival = case.train.outcome == "survival"
    told: dict[str, Any] = {
        "how": "split",
        "rows": second.n_samples if second.n_samples >= settings.min_cell else None,
        "errors": "robust (Lin & Wei)" if survival else "robust (HC3)",
        "effects": [],
        "reason": None,
    }
    names = [feature.name for feature in feature_table(fit, case, ())]
    if not names:
        return told | {"reason": "half of the rows chose no feature"}
    standardiser = Standardiser.fit(case.train, settings.standardise)
    rows = standardiser.apply(second).select_features(names)
    try:
        found = estimate(rows, constants_of(rows, standardiser.target_scale))
    except NotEstimableError as refused:
        return told | {"reason": str(refused)}
    unit, outputs = _unit(standardiser, case.train), case.train.classes[1:]
    freedom = found.freedom if case.train.outcome == "regression" else float("inf")
    one = t_quantile(TAIL, freedom)
    every = t_quantile(TAIL / (len(names) * found.effects.shape[1]), freedom)
    for place, name in enumerate(names):
        for output in range(found.effects.shape[1]):
            middle = unit * float(found.effects[place, output])
            error = unit * float(found.errors[place, output])
            several = len(outputs) > 1
            told["effects"].append(
                {
                    "name": name,
                    "output": outputs[output] if several else None,
                    "reference": case.train.classes[0] if several else None,
                    "estimate": middle,
                    "error": error,
                    "low": middle - one * error,
                    "high": middle + one * error,
                    "low_all": middle - every * error,
                    "high_all": middle + every * error,
                }
            )
    return told


def ensemble_spread(case: Case, fit: Fit, settings: Settings) -> dict[str, Any]:
    """Return how the effects of the chosen features differ between the runs that chose them.

    Returns:
        ``how``; ``effects`` as in `split_intervals`, with ``estimate``: the mean over the ``runs``
        that chose the feature, ``deviation``, and ``low`` to ``high``, the least and the largest.
    """
    standardiser = Standardiser.fit(case.train, settings.standardise)
    unit, classes = _unit(standardiser, case.train), case.train.classes
    several = len(classes) > 2
    chosen, weight = (fit.weights != 0).any(1), fit.params["weight"][: fit.n_lanes].double()
    effects = []
    for feature in feature_table(fit, case, ()):
        column = case.train.features.index(feature.name)
        own = unit * weight[chosen[:, column], :, column]
        for output in range(1, own.shape[1]) if several else (0,):
            values = own[:, output] - own[:, 0] if several else own[:, 0]
            few = len(values) < 2
            effects.append(
                {
                    "name": feature.name,
                    "output": classes[output] if several else None,
                    "reference": classes[0] if several else None,
                    "estimate": None if not len(values) else float(values.mean()),
                    "deviation": None if few else float(values.std()),
                    "low": None if few else float(values.min()),
                    "high": None if few else float(values.max()),
                    "runs": len(values),
                }
            )
    return {"how": "ensemble", "effects": effects, "reason": None}


def _unit(standardiser: Standardiser, data: FederatedData) -> float:
    """Return what effects are multiplied by, to be in units of the target; 1 where it has none."""
    return standardiser.target_scale if data.outcome == "regression" else 1.0
