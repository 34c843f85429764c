"""The experiments of the papers, run anew: ``fedsift reproduce NAME``, one file each.

To add one, write a subclass of `base.Experiment` in a file of its own and name it below.
"""

from __future__ import annotations

from importlib import import_module

from fedsift.data.errors import nearest
from fedsift.experiments.base import Experiment

# name → module; the class is the module's `EXPERIMENT`. Imported when it is asked for.
MODULES: dict[str, str] = {
    "golub": "golub",
    "mnist": "mnist",
    "synthetic": "synthetic",
    "unlearning": "unlearning",
    "vi": "vi",
}


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name.

    Raises:
        ValueError: there is none; the text names the nearest.
    """
    if name not in MODULES:
        msg = f"no experiment {name!r}: {nearest(name, list(MODULES))}"
        raise ValueError(msg)
    experiment: Experiment = import_module(f"fedsift.experiments.{MODULES[name]}").EXPERIMENT
    return experiment
