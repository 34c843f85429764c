"""How many of the features that matter are found: fedsift over sites, and solvers on pooled rows.

The synthetic task (1000 features, 50 that matter, correlation .2, SNR 20) at 5 sites; every method
is told that there are 50, so the share of the true ones among the 50 it keeps is the only question.
Pooled are all but `eflops`: `central` is E-FLoPS on all rows, `abess` and `lasso` (cross-validated,
cut to 50) are fedsift's pooled rivals; `skglm_lasso` and `skglm_mcp` are the solutions of skglm
where its path of penalties first keeps 50, cut to 50. Quality only: no times are taken.

Prints JSON: by number of rows, `recovery` by method with a 95 % t-interval over data sets.
Run: `python benchmarks/sparse_solvers.py [--quick]`, where skglm is installed; without it the
others are measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # From the root of the repository: names in this folder would hide packages of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch

from benchmarks._common import MissingPeerError, Results, require, versions
from fedsift.data import Standardiser, synthetic_regression
from fedsift.selection import t_interval
from fedsift.settings import Settings
from fedsift.sources import Source
from fedsift.workflows import run_compare

ROWS, DATA_SETS, SEEDS = (250, 300), 3, 8
METHODS = ("eflops", "central", "abess", "lasso")
PENALTIES = np.geomspace(1.0, 0.01, 100)


def own(rows: int, data_sets: int, seeds: int) -> dict[str, Any]:
    """Return the recovery of the ensemble of fedsift's methods."""
    source = Source(demo="synthetic", samples=rows, data_seeds=data_sets)
    settings = Settings(seeds=seeds, **source.defaults)
    found = run_compare(source.cases(settings), settings, METHODS)["results"]["methods"]
    return {name: found[name]["ensemble_support_recovery"] for name in METHODS}


def of_skglm(rows: int, data_sets: int) -> dict[str, Any]:
    """Return the recovery of skglm's lasso and MCP, on the same pooled rows.

    Raises:
        MissingPeerError: skglm is not installed.
    """
    skglm = require("skglm", "skglm")
    kinds = {"skglm_lasso": skglm.Lasso, "skglm_mcp": skglm.MCPRegression}
    recovery: dict[str, list[float]] = {name: [] for name in kinds}
    for seed in range(data_sets):
        drawn = synthetic_regression(n_samples=rows, seed=seed, n_test=2)
        train = Standardiser.fit(drawn.train, "feature").apply(drawn.train)
        x, y = np.asfortranarray(train.x.double().numpy()), train.y.double().numpy()
        true = drawn.coefficients.numpy() != 0
        for name, kind in kinds.items():
            size = np.abs(_first_to_keep(int(true.sum()), kind, x, y))
            kept = np.argsort(-size, kind="stable")[: true.sum()]
            recovery[name].append(float(true[kept].mean()))
    return {name: t_interval(values).to_json() for name, values in recovery.items()}


def _first_to_keep(count: int, kind: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weights where the path of penalties first keeps so many features."""
    largest = float(np.abs(x.T @ y).max()) / len(y)
    estimator = kind(fit_intercept=False, warm_start=True)
    for penalty in largest * PENALTIES:
        weights: np.ndarray = estimator.set_params(alpha=penalty).fit(x, y).coef_
        if np.count_nonzero(weights) >= count:
            break
    return weights


def measure(*, quick: bool = False) -> Results:
    """Return the figures."""
    rows, data_sets, seeds = ((250,), 1, 2) if quick else (ROWS, DATA_SETS, SEEDS)
    recovery = {str(count): own(count, data_sets, seeds) for count in rows}
    try:
        for count in rows:
            recovery[str(count)] |= of_skglm(count, data_sets)
    except MissingPeerError as error:
        print(error, file=sys.stderr)
    return {
        "versions": versions("abess", "scikit-learn", "skglm"),
        "data_sets": data_sets,
        "seeds": seeds,
        "recovery": recovery,
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one data set of 250 rows, two seeds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(quick=arguments.quick), indent=1))


if __name__ == "__main__":
    main()
