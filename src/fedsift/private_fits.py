"""What a fit may use of the rows when it is private, and what it tells of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedsift.data import FederatedData
from fedsift.data.coding import has_unit
from fedsift.methods import find_method
from fedsift.privacy import Privacy

__all__ = ["check_data", "check_settings", "described", "promise", "refuse"]

WHY: Mapping[str, str] = {
    "compared": "every method would spend a budget of its own; fit one",
    "resumed": "what it had told before would be told again, with other noise; start it afresh with"
    " overwrite=True (--overwrite)",
    "run again": "it would spend its budget again, and end otherwise, for its noise is not kept",
    "tuned": "every trial would spend a budget, and looks at losses without noise; choose its knobs"
    " on data that are public",
    "forgotten from": "forgetting uses the rows without noise; fit anew without them",
}


def refuse(privacy: object, done: str) -> None:
    """Refuse to do something of `WHY` with a private fit.

    Raises:
        ValueError: it is private.
    """
    if privacy:
        raise ValueError(f"a private fit cannot be {done}: {WHY[done]}")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a private fit that would tell of the rows without noise, in one line.

    Args:
        settings: those of `settings.Settings`, by name.

    Raises:
        ValueError: the text says what to give, and why.
    """
    privacy = settings["privacy"]
    if privacy is None:
        return
    sites = privacy.level == "site"
    needed = {
        "splits=0 (scores)": settings["splits"] != 0,
        "no harmonise (means and deviations of a site)": settings["harmonise"] is not None,
        "no site_intercepts (what follows them)": settings["site_intercepts"] is not None,
        "validation='splits' (scores)": settings["validation"] != "splits",
        "no intervals (sums of scores)": settings["intervals"] is not None,
        "standardise='row' or standardise='none' (means and deviations)": settings["standardise"]
        not in {"row", "none"},
        "a learning_rate (curvatures)": settings["learning_rate"] is None,
        "weights='uniform' (numbers of rows)": sites and settings["weights"] != "uniform",
        "no early_stop (losses)": settings["early_stop"] is not None,
    }
    missing = [what for what, is_missing in needed.items() if is_missing]
    if missing:
        msg = (
            f"a private fit needs {', '.join(missing)}: what stands in brackets would be told of"
            " the rows without noise"
        )
        raise ValueError(msg)


def check_data(methods: Sequence[str], data: FederatedData) -> None:
    """Refuse methods and data that a private fit is not for.

    Raises:
        ValueError: the text says why.
    """
    other = next((name for name in methods if find_method(name).rows != "federated"), None)
    wrong = {
        f"{other} is no federated method; privacy is for those": other is not None,
        f"the target '{data.target}' is {data.outcome}, whose loss takes a constant from the rows"
        " without noise; privacy takes classes alone": data.outcome == "survival",
        f"the target '{data.target}' is measured, and is standardised by its mean over the rows,"
        " which has no noise; privacy takes classes alone": has_unit(data.outcome),
        "missing values are filled with means over the rows, which have no noise; fill them before,"
        " with values that are known": data.missing is not None,
        "covariates are fitted first, and their levels told, without noise; leave them out, or the"
        " privacy": bool(data.covariates),
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)


def described(facts: Mapping[str, Any], privacy: Privacy) -> dict[str, Any]:
    """Return a run's facts on its data without those that no noise covers.

    The numbers of rows are public at level ``sample``, where neighbours have as many.
    """
    kept: dict[str, Any] = {"fingerprint": None, "class_counts": {}, "unknown": {}, "notes": []}
    if privacy.level == "site":
        kept |= {"samples": None, "sites": dict.fromkeys(facts["sites"])}
    return {**facts, **kept}


def promise(privacy: Privacy, releases: int) -> dict[str, Any]:
    """Return what is promised after this many releases of a site's rows, as JSON values."""
    spent = {"epsilon": privacy.spent(releases), "releases": releases}
    return asdict(privacy) | spent | {"neighbours": f"one {privacy.level} replaced"}
