"""Tuning: a method's own hyperparameters, chosen on rows held back at every site.

Every method gets the same number of trials. A trial searches with all seeds on the training rows,
refits, and sums up the loss of the ensemble over the sites' validation rows (two numbers a site);
test rows and a known truth are never looked at. Which rows validate is decided by the seed and the
rows' ids, so it is the same in every trial and for every method.

Source: Akiba et al., "Optuna", KDD 2019; its tree-structured Parzen estimator (TPE).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from fedsift.algorithms import EFLoPS, FedHT, LocalTraining
from fedsift.data import FederatedData, Standardiser, split
from fedsift.methods import Method, find_method
from fedsift.private_fits import refuse
from fedsift.settings import Settings
from fedsift.studies import Case, check_request, fit_case

VALIDATION = 0.2  # share of the rows that validate

Space = dict[str, tuple[float, float] | list[Any]]
_STEPS: Space = {"safety": (0.1, 1.0), "local_steps": [1, 2, 5]}
_GATES: Space = {"multiplier_pace": (20.0, 1000.0), "start_density": (0.05, 0.6)}


class Trial(NamedTuple):
    """A trial: what was set, and the ensemble's loss on the validation rows."""

    knobs: dict[str, Any]
    loss: float


class Tuned(NamedTuple):
    """All trials in order, the first at the defaults, and the best of them."""

    trials: list[Trial]
    best: Trial


def search_space(method: Method) -> Space:
    """Return a method's own knobs: ends of a range, taken in logarithms, or choices.

    Raises:
        ValueError: it has none.
    """
    own, space = method.algorithm, Space()
    if issubclass(own, LocalTraining):
        space |= _STEPS
    if issubclass(own, FedHT):
        space["schedule"] = ["constant", "cubic"]
    if issubclass(own, EFLoPS):
        space |= _GATES
        if "entropy" not in method.options:
            space["entropy"] = (0.003, 0.3)
    if not space:
        msg = "this method has nothing to tune; fit it as it is"
        raise ValueError(msg)
    return space


def tune(
    data: FederatedData,
    settings: Settings,
    *,
    trials: int = 20,
    progress: Callable[[int, Trial], None] | None = None,
) -> Tuned:
    """Choose the hyperparameters of ``settings.method``; the first trial is the defaults.

    Args:
        data: training rows of the sites.
        settings: of the fit that is to be tuned; its ``knobs`` stay as given.
        trials: how many settings are tried.
        progress: called after each trial with its number from 1.

    Raises:
        ValueError: optuna is not installed, or the method has nothing to tune.
    """
    if find_spec("optuna") is None:
        msg = "optuna, which proposes the trials, is not installed; pip install 'fedsift[tune]'"
        raise ValueError(msg)
    import optuna

    space = search_space(find_method(settings.method))
    space = {name: given for name, given in space.items() if name not in settings.knobs}
    refuse(settings.privacy, "tuned")
    check_request(settings, [settings.method], data)
    train_rows, held_out = split(data, settings.seed, VALIDATION)
    case = Case("validation", train_rows, held_out)
    standardiser = Standardiser.fit(train_rows, settings.standardise)
    done: list[Trial] = []

    def loss(knobs: dict[str, Any]) -> float:
        asked = settings.model_copy(update={"knobs": {**settings.knobs, **knobs}})
        fit = fit_case(case, asked, standardiser, repeats=trials)
        done.append(Trial(knobs, float(fit.scores["loss"][fit.n_lanes :].mean())))
        if progress is not None:
            progress(len(done), done[-1])
        return done[-1].loss

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=settings.seed))
    loss({})
    for _ in range(trials - 1):
        trial = study.ask()
        knobs = {name: _proposed(trial, name, given) for name, given in space.items()}
        study.tell(trial, loss(knobs))
    return Tuned(done, min(done, key=lambda t: t.loss))


def _proposed(trial: Any, name: str, given: tuple[float, float] | list[Any]) -> Any:
    if isinstance(given, list):
        return trial.suggest_categorical(name, given)
    return trial.suggest_float(name, *given, log=True)
