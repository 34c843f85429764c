"""From cells of the synthetic experiment to rows with intervals, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsift.selection import t_interval

Found = Mapping[str, dict[str, Any]]
FIGURES = ("support_recovery", "ensemble_support_recovery", "test_r2", "test_accuracy", "refit_r2")
GRAM = "oneshot"


def parts(name: str) -> list[str]:
    """Return the parts of a cell's name."""
    return name.split(" · ")


def of_kind(found: Found, kind: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the cells of a kind by the rest of their names."""
    return {tuple(parts(n)[1:]): r for n, r in found.items() if parts(n)[0] == kind}


def row(method: str, messages: str, result: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a row: the figures' means over data sets with 95 % intervals."""
    sets = result["sets"]
    figures = {
        name: t_interval([s[name] for s in sets]).to_json() for name in FIGURES if name in sets[0]
    }
    sent = sum(s["bytes_total"] for s in sets) // len(sets)
    return {"method": method, "messages": messages, **more, **figures, "bytes_total": sent}


def sweep_rows(found: Found) -> list[dict[str, Any]]:
    """Return a row for every method at every sample size."""
    rows = []
    for (size, method, messages), result in of_kind(found, "sweep").items():
        samples = int(size.removeprefix("N="))
        rows.append(row(method, messages, result, samples=samples))
        if method == "abess":
            # The same solver on the same sums: one message of each site holds them.
            rows.append(row(GRAM, "sums", _as_sums(result), samples=samples))
    return sorted(rows, key=lambda r: (r["samples"], -r["support_recovery"]["mean"]))


def _as_sums(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result with the bytes of five sites' sums in place of those of the rows."""
    return {"sets": [{**s, "bytes_total": s.get("bytes_sums", 0)} for s in result["sets"]]}


def truth_rows(found: Found) -> list[dict[str, Any]]:
    """Return, for each sample size, R² of the fit on the true support."""
    seen = {}
    for (size, _, _), result in of_kind(found, "sweep").items():
        values = [s["true_refit_r2"] for s in result["sets"]]
        seen[int(size.removeprefix("N="))] = t_interval(values).to_json()
    return [{"samples": n, "true_refit_r2": seen[n]} for n in sorted(seen)]


def difference(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the mean of a - b over the data sets that both have, with a paired 95 % interval."""
    other = {s["data"]: s[name] for s in b["sets"]}
    return t_interval([s[name] - other[s["data"]] for s in a["sets"]]).to_json()


def paired_rows(found: Found) -> list[dict[str, Any]]:
    """Return E-FLoPS less each other method, data set by data set: ensembles against ensembles."""
    cells = of_kind(found, "sweep")
    rows = []
    for (size, method, messages), result in cells.items():
        ours = cells.get((size, "eflops", "dense"))
        if ours is None or (method, messages) == ("eflops", "dense"):
            continue
        rows.append(
            {
                "samples": int(size.removeprefix("N=")),
                "eflops_less": method if messages in {"dense", "rows"} else f"{method} {messages}",
                "support_recovery": difference(ours, result, "support_recovery"),
                "ensemble_support_recovery": difference(ours, result, "ensemble_support_recovery"),
                "refit_r2": difference(ours, result, "refit_r2"),
            }
        )
    return sorted(rows, key=lambda r: (r["samples"], r["eflops_less"]))


def entropy_rows(found: Found) -> list[dict[str, Any]]:
    """Return E-FLoPS less FLoPS, the same without entropy, at each sample size."""
    return [
        {k: v for k, v in r.items() if k != "eflops_less"}
        for r in paired_rows(found)
        if r["eflops_less"] == "flops"
    ]


def untuned_rows(found: Found) -> list[dict[str, Any]]:
    """Return a row for every setting and method."""
    return [
        row(method, messages, result, setting=setting)
        for (setting, method, messages), result in of_kind(found, "untuned").items()
    ]


def budget_rows(found: Found) -> list[dict[str, Any]]:
    """Return a row for every network, budget and method."""
    return [
        row(
            method,
            messages,
            result,
            network=network,
            budget=float(factor.removeprefix("x")),
            rounds=result["rounds"],
            bytes_allowed=result["bytes_allowed"],
        )
        for (network, factor, method, messages), result in of_kind(found, "bytes").items()
    ]


def step_rows(found: Found) -> list[dict[str, Any]]:
    """Return a row for every method and factor of the automatic step."""
    return [
        row(method, messages, result, factor=float(factor.removeprefix("x")))
        for (factor, method, messages), result in of_kind(found, "steps").items()
    ]


def tuned_rows(found: Found) -> list[dict[str, Any]]:
    """Return a row for every tuned method, with what was chosen."""
    return [
        row(method, messages, result, knobs=_shown(result["knobs"]))
        for (method, messages), result in of_kind(found, "tuned").items()
    ]


def _shown(knobs: Mapping[str, Any]) -> str:
    texts = (f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in knobs.items())
    return ", ".join(texts) or "defaults"
