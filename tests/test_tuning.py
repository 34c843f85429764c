"""Tuning: the same budget for every method, on rows held back, never on test rows."""

import json

import pytest

from fedsift.cli import main
from fedsift.data import iid, synthetic_regression
from fedsift.methods import METHODS
from fedsift.settings import Settings
from fedsift.tuning import search_space, tune

SETTINGS = Settings(features=3, seeds=2, rounds=6, tuning_rounds=5, method="fediterht")


@pytest.fixture
def rows():
    return synthetic_regression(n_samples=60, n_features=20, n_informative=3, n_test=2).train


@pytest.fixture
def _optuna():
    pytest.importorskip("optuna", reason="the extra tune (optuna) is not installed")


def test_every_trained_method_has_knobs_of_its_own():
    for name, method in METHODS.items():
        if method.once:
            with pytest.raises(ValueError, match="nothing to tune"):
                search_space(method)
            continue
        space = search_space(method)
        assert {"safety", "local_steps"} <= set(space)
        assert ("entropy" in space) == (name in {"eflops", "central", "local"})


@pytest.mark.usefixtures("_optuna")
def test_the_first_trial_is_the_defaults_and_the_best_has_the_lowest_loss(rows):
    found = tune(rows, SETTINGS, trials=4)
    assert len(found.trials) == 4
    assert found.trials[0].knobs == {}
    assert found.best.loss == min(t.loss for t in found.trials)
    again = tune(rows, SETTINGS, trials=4)
    assert again.trials == found.trials


@pytest.mark.usefixtures("_optuna")
def test_what_is_given_is_not_tuned(rows):
    given = SETTINGS.model_copy(update={"knobs": {"schedule": "cubic"}})
    assert all("schedule" not in t.knobs for t in tune(rows, given, trials=3).trials)


def test_an_unknown_knob_is_refused_by_name(rows):
    from fedsift.studies import check_request

    with pytest.raises(ValueError, match="fediterht has no knob 'entropi'"):
        check_request(
            SETTINGS.model_copy(update={"knobs": {"entropi": 0.1}}), ["fediterht"], iid(rows, 2, 0)
        )


@pytest.mark.usefixtures("_optuna")
def test_the_command_prints_what_to_set(capsys):
    words = "tune --demo synthetic --samples 60 --features-total 20 --informative 3 --data-seeds 1"
    words += " --method fedavg --seeds 2 --rounds 5 --trials 2 --set safety=.4 --json --quiet"
    assert main(words.split()) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["method"] == "fedavg"
    assert len(said["trials"]) == 2
    assert all(set(t["knobs"]) <= {"local_steps"} for t in said["trials"])
    assert main(["tune", "--demo", "golub", "--set", "safety"]) == 2
    assert "--set safety names no value" in capsys.readouterr().err
