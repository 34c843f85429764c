"""The synthetic experiment: lanes of several data sets are runs of their own; every part works."""

from typing import Any

import pytest
import torch

from fedsift.algorithms import EFLoPS
from fedsift.channels import TopM
from fedsift.data import synthetic_regression
from fedsift.experiments import find_experiment, synthetic
from fedsift.experiments.base import run_experiment
from fedsift.experiments.lanes import by_part, joined, prepare, train_side_by_side
from fedsift.experiments.synthetic_rows import difference
from fedsift.linear_problems import linear_problem
from fedsift.run_folder import RunError
from fedsift.training import train

SETTING: dict[str, Any] = {"n_features": 40, "n_informative": 4, "n_test": 60}
TINY = synthetic.Design(
    samples=(50,),
    close=(50,),
    centre=50,
    data=2,
    seeds=2,
    aside=2,
    rounds=8,
    factors=(0.5,),
    networks=((4, 0.5),),
    trials=2,
    steps=(1.0,),
    setting=SETTING,
)


def test_lanes_side_by_side_are_runs_of_their_own():
    parts = [prepare(s, synthetic_regression(n_samples=40, seed=s, **SETTING)) for s in (0, 1)]
    rows = [part.train for part in parts]
    problem, algorithm, channel = linear_problem(rows[0]), EFLoPS(density=0.1), TopM(4)
    run = train_side_by_side(
        problem, rows, algorithm, seeds=2, participation=0.6, channel=channel, rounds=20
    )
    whole, part_of_site = joined(rows)
    assert part_of_site.tolist() == [0] * 5 + [1] * 5
    for number, found in enumerate(by_part(run, 2)):
        own = whole.take(part_of_site[whole.site_of_row] == number)
        alone = train(
            problem,
            own,
            algorithm,
            rounds=20,
            seeds=[0, 1],
            participation=0.6,
            channel=channel,
            compile=False,
        )
        assert found["bytes_up"].tolist() == alone.bytes_up.tolist()
        for leaf, value in alone.params.items():
            torch.testing.assert_close(found["params"][leaf], value, atol=1e-5, rtol=1e-4)


def test_differences_are_paired():
    """By data set 2 - 1, 4 - 3 and 9 - 5: the mean is 2, whatever the order."""
    a = {"sets": [{"data": n, "v": v} for n, v in enumerate((2.0, 4.0, 9.0))]}
    b = {"sets": [{"data": n, "v": v} for n, v in ((2, 5.0), (0, 1.0), (1, 3.0))]}
    assert difference(a, b, "v")["mean"] == pytest.approx(2.0)


@pytest.mark.slow
def test_every_part_of_the_experiment_works(tmp_path, monkeypatch):
    pytest.importorskip("abess", reason="the extra oneshot (abess) is not installed")
    pytest.importorskip("optuna", reason="the extra tune (optuna) is not installed")
    monkeypatch.setattr(synthetic, "QUICK", TINY)
    monkeypatch.setattr(synthetic, "TUNED", synthetic.TUNED[2:3])
    monkeypatch.setattr(synthetic, "SWEEP", (*synthetic.SWEEP[:4], synthetic.Contender("central")))
    monkeypatch.setattr(synthetic, "BUDGET", synthetic.BUDGET[:2])
    monkeypatch.setattr(synthetic, "UNTUNED", {"logistic": {"binary": True}})
    monkeypatch.setattr(synthetic.Synthetic, "curved", (synthetic.SWEEP[0], synthetic.SWEEP[2]))
    experiment = find_experiment("synthetic")
    with pytest.raises(RunError, match="nothing is done yet"):
        run_experiment(experiment, tmp_path / "e", quick=True, so_far=True)
    results = run_experiment(experiment, tmp_path / "e", quick=True)
    assert {"eflops", "flops", "fediterht-cubic", "central", "abess", "lasso", "oneshot"} == {
        row["method"] for row in results["rows"]
    }
    wanted = {"method", "messages", "samples", "support_recovery", "ensemble_support_recovery"}
    wanted |= {"test_r2", "refit_r2", "bytes_total"}
    assert all(set(row) == wanted for row in results["rows"])
    page = (tmp_path / "e" / "page.md").read_text()
    for title in (
        "Does entropy help",
        "nobody tuned",
        "how many bytes",
        "Tuned alike",
        "Step sizes",
        "leaves open",
    ):
        assert title in page
    pictures = {f.stem for f in (tmp_path / "e").glob("*.png")}
    assert pictures == {"refit-r2", "recovery", "curves", "bytes", "steps"}
    assert run_experiment(experiment, tmp_path / "e", quick=True, so_far=True) == results
