"""fedsift: find the few parameters that matter, with data that stay at their sites.

Names are loaded when they are first used, so that ``import fedsift`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsift import data, sets, trackers, vi
    from fedsift._version import __version__
    from fedsift.algorithms import FUMEGS, EFLoPS, FedAvg, FedHT, FedIterHT, Lippax, Scaffold
    from fedsift.api import compare, fit, fit_plan, forget, write_plan
    from fedsift.callbacks import CallbackError
    from fedsift.data import DataError, DataWarning, FederatedData
    from fedsift.estimators import FederatedSparseClassifier, FederatedSparseRegressor
    from fedsift.evaluation import evaluate
    from fedsift.methods import METHODS
    from fedsift.models import from_module, linear
    from fedsift.plans import AnalysisPlan, read_plan
    from fedsift.privacy import Privacy
    from fedsift.problems import Problem, supervised
    from fedsift.recovery import TrainingError
    from fedsift.run_folder import RunError
    from fedsift.runs import Run, load_run
    from fedsift.settings import Settings
    from fedsift.solving import Equilibrium, solve
    from fedsift.training import train
    from fedsift.vi import VIProblem

__all__ = [
    "FUMEGS",
    "METHODS",
    "AnalysisPlan",
    "CallbackError",
    "DataError",
    "DataWarning",
    "EFLoPS",
    "Equilibrium",
    "FedAvg",
    "FedHT",
    "FedIterHT",
    "FederatedData",
    "FederatedSparseClassifier",
    "FederatedSparseRegressor",
    "Lippax",
    "Privacy",
    "Problem",
    "Run",
    "RunError",
    "Scaffold",
    "Settings",
    "TrainingError",
    "VIProblem",
    "__version__",
    "compare",
    "data",
    "evaluate",
    "fit",
    "fit_plan",
    "forget",
    "from_module",
    "linear",
    "load_run",
    "read_plan",
    "sets",
    "solve",
    "supervised",
    "trackers",
    "train",
    "vi",
    "write_plan",
]

_HOME = {
    "FUMEGS": "algorithms",
    "METHODS": "methods",
    "AnalysisPlan": "plans",
    "CallbackError": "callbacks",
    "DataError": "data",
    "DataWarning": "data",
    "EFLoPS": "algorithms",
    "Equilibrium": "solving",
    "FedAvg": "algorithms",
    "FedHT": "algorithms",
    "FedIterHT": "algorithms",
    "FederatedData": "data",
    "FederatedSparseClassifier": "estimators",
    "FederatedSparseRegressor": "estimators",
    "Lippax": "algorithms",
    "Privacy": "privacy",
    "Problem": "problems",
    "Run": "runs",
    "RunError": "run_folder",
    "Scaffold": "algorithms",
    "Settings": "settings",
    "TrainingError": "recovery",
    "VIProblem": "vi",
    "__version__": "_version",
    "compare": "api",
    "evaluate": "evaluation",
    "fit": "api",
    "fit_plan": "api",
    "forget": "api",
    "from_module": "models",
    "linear": "models",
    "load_run": "runs",
    "read_plan": "plans",
    "solve": "solving",
    "supervised": "problems",
    "train": "training",
    "write_plan": "api",
}


def __getattr__(name: str) -> Any:
    if name in {"data", "sets", "trackers", "vi"}:
        return importlib.import_module(f"fedsift.{name}")
    if name not in _HOME:
        msg = f"module 'fedsift' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"fedsift.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
