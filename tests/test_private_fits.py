"""Private fits: one budget for all that is told, nothing else in the folder, and refusals."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedsift
from fedsift import studies
from fedsift.cli import main
from fedsift.deployment.plan import Plan
from fedsift.privacy import Privacy
from fedsift.settings import Settings
from fedsift.studies import planned_privacy
from fedsift.training import train
from fedsift.tuning import tune
from tests.laws import linear_problem, rows
from tests.private import METHODS, SITE

SAMPLE = Privacy(clip=1.0, epsilon=5.0, delta=1e-5, level="sample")
SITES = replace(SAMPLE, level="site")
SMALL: dict[str, Any] = {
    "features": 3,
    "seeds": 2,
    "splits": 0,
    "rounds": 3,
    "tuning_rounds": 4,
    "learning_rate": 0.1,
    "local_steps": 1,
    "standardise": "row",
    "weights": "uniform",
}
OPTIONS = [
    *("--features=3", "--seeds=2", "--splits=0", "--rounds=3", "--tuning-rounds=4"),
    *("--learning-rate=.1", "--local-steps=1", "--standardise=row", "--weights=uniform"),
    *("--epsilon=5", "--privacy-clip=1", "--privacy-delta=1e-5", "--quiet"),
]


@pytest.fixture
def files(tmp_path):
    data = rows("binary", sizes=(8, 9, 7))
    paths = []
    for c, name in enumerate(data.sites):
        own = slice(data.offsets[c], data.offsets[c + 1])
        lines = [",".join([*data.features, "y"])]
        lines += [
            ",".join([*(f"{v:.4f}" for v in x.tolist()), ["no", "yes"][y]])
            for x, y in zip(data.x[own], data.y[own].tolist(), strict=True)
        ]
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text("\n".join(lines) + "\n")
    return [*map(str, paths), "--target", "y"]


# --- the budget


@pytest.mark.parametrize(
    ("privacy", "method", "more", "releases"),
    [
        (SITES, "eflops", {}, 2 * 3 + 4),
        (SITES, "fedht", {"participation": 2}, 2 * 3 + 4),
        (SAMPLE, "fedavg", {"local_steps": 5}, 2 * 3 * 5 + 4),
        (SAMPLE, "eflops", {"knobs": {"gate_samples": 3}}, 2 * 3 * 3 + 4),
    ],
)
def test_search_and_refit_share_one_budget(privacy, method, more, releases):
    """Every seed's rounds, steps and draws, and one refit of 4 rounds for the ensemble."""
    run = fedsift.fit(rows("binary"), method=method, privacy=privacy, **{**SMALL, **more})
    found = run.facts["privacy"]
    if "participation" in more:  # two of five sites in a round
        assert 4 < found["releases"] < releases
    else:
        assert found["releases"] == releases
    assert found["epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert replace(privacy, epsilon=None, noise=found["noise"]).spent(found["releases"]) == (
        pytest.approx(5.0, rel=1e-6)
    )
    assert run.results["epsilon"] == found["epsilon"]
    assert run.results["delta"] == 1e-5


def test_with_a_given_noise_more_seeds_spend_more():
    given = replace(SITES, epsilon=None, noise=20.0)
    spent = [
        fedsift.fit(rows("binary"), privacy=given, **SMALL | {"seeds": seeds}).results["epsilon"]
        for seeds in (1, 2, 4)
    ]
    assert spent == sorted(spent)
    assert spent[0] == pytest.approx(given.spent(3 + 4))
    assert spent[2] == pytest.approx(given.spent(4 * 3 + 4))


def test_the_records_end_with_all_that_was_spent(tmp_path):
    run = fedsift.fit(rows("binary"), privacy=SITES, out=tmp_path / "run", **SMALL)
    lines = (tmp_path / "run/history.jsonl").read_text().splitlines()
    spent = [json.loads(line)["epsilon"] for line in lines]
    assert spent == sorted(spent)
    assert spent[-1] == run.results["epsilon"]


def test_only_the_ensemble_is_refitted(monkeypatch):
    lanes = []

    def spied(problem, data, algorithm, **knobs):
        lanes.append(len(knobs["seeds"]))
        return train(problem, data, algorithm, **knobs)

    monkeypatch.setattr(studies, "train", spied)
    fedsift.fit(rows("binary"), privacy=SITES, **SMALL)
    assert lanes == [2, 1]


# --- what the folder holds


@pytest.mark.parametrize("privacy", [SITES, SAMPLE])
def test_rows_are_used_by_the_training_alone(privacy, monkeypatch, tmp_path):
    """No sum for standardisation, no loss; what is written is alike for other rows."""

    def refused(*args: Any, **knobs: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("fedsift.data.standardise.site_sums", refused)
    monkeypatch.setattr("fedsift.training.evaluate", refused)
    monkeypatch.setattr("fedsift.studies.evaluate", refused)
    for seed in (0, 1):
        path = tmp_path / str(seed)
        fedsift.fit(rows("binary", seed=seed), privacy=privacy, out=path, **SMALL)
        assert "loss" not in (path / "history.jsonl").read_text()
        assert not (path / "checkpoints").exists()
    facts = [json.loads((tmp_path / f"{seed}/run.json").read_text()) for seed in (0, 1)]
    assert facts[0]["data"] == facts[1]["data"]
    assert facts[0]["data"]["fingerprint"] is None
    assert set(facts[0]["data"]["sites"].values()) == (
        {None} if privacy is SITES else {9, 1, 14, 2, 6}
    )
    assert "held_out_loss" not in facts[0]
    assert "ε = 5, δ = 1e-05" in (tmp_path / "0/report.txt").read_text()


def test_the_numbers_of_rows_at_a_site_do_not_show(tmp_path):
    for name, sizes in (("few", (4, 5, 6)), ("many", (9, 3, 20))):
        data = rows("binary", sizes=sizes)
        fedsift.fit(data, privacy=SITES, out=tmp_path / name, **SMALL)
    facts = [json.loads((tmp_path / f"{name}/run.json").read_text()) for name in ("few", "many")]
    for fact in facts:
        for changing in ("results", "files", "candidates", "agreement", "sha256"):
            del fact[changing]
    assert facts[0] == facts[1]


def test_another_row_gives_another_run_and_so_does_the_same(tmp_path):
    one, other = (fedsift.fit(rows("binary"), privacy=SITES, **SMALL) for _ in range(2))
    assert not torch.equal(one.params["bias"], other.params["bias"])


def test_what_a_stopped_run_may_have_told_is_in_its_folder(tmp_path):
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedsift.fit(rows("binary"), privacy=SITES, out=path, callbacks=[stop], **SMALL)
    facts = json.loads((path / "run.json").read_text())
    assert facts["status"] == "stopped"
    assert facts["privacy"]["epsilon"] == pytest.approx(5.0)
    with pytest.raises(ValueError, match="cannot be resumed: what it had told before"):
        fedsift.fit(rows("binary"), privacy=SITES, out=path, resume=True, **SMALL)
    fedsift.fit(rows("binary"), privacy=SITES, out=path, overwrite=True, **SMALL)


# --- the command line


def test_a_private_fit_from_the_command_line(files, tmp_path, capsys):
    path = str(tmp_path / "run")
    assert (
        main(["fit", *files, *OPTIONS, "--out", path, "--json", "--require", "epsilon<=5.1"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == pytest.approx(5.0)
    assert main(["report", path]) == 0
    assert "Private: ε = 5, δ = 1e-05 for all of a site, 10 releases" in capsys.readouterr().out
    for command, text in (
        (["forget", path, "--site", "hospital a"], "cannot be forgotten from: forgetting uses"),
        (["rerun", path], "cannot be run again: it would spend"),
        (["compare", *files, *OPTIONS, "--methods", "fedht,fedavg"], "cannot be compared"),
        (["tune", *files, *OPTIONS, "--trials", "1"], "cannot be tuned"),
    ):
        assert main(command) == 2
        assert text in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_promised(files, tmp_path, capsys):
    assert main(["fit", *files, *OPTIONS, "--dry-run"]) == 0
    assert "privacy   ε = 5, δ = 1e-05 for all of a site, 10 releases" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("left_out", "added", "text"),
    [
        ("--privacy-clip=1", (), "--privacy-clip is missing"),
        ("--privacy-delta=1e-5", (), "--privacy-delta is missing"),
        ("--epsilon=5", (), "give the noise or the epsilon of privacy"),
        ("", ("--privacy-noise=1",), "and not both"),
        ("", ("--privacy-level=row",), "level is 'row'"),
        ("--splits=0", (), "a private fit needs --splits 0 (scores): what stands in brackets"),
        ("--standardise=row", (), "--standardise row or --standardise none"),
        ("--learning-rate=.1", (), "a --learning-rate (curvatures)"),
        ("--weights=uniform", (), "--weights uniform (numbers of rows)"),
        ("--local-steps=1", (), "give --local-steps 1"),
        ("", ("--early-stop=2",), "no early_stop (losses)"),
        ("", ("--method=central",), "central is no federated method"),
        ("", ("--method=fediterht",), "whole models"),
        ("", ("--batch-size=4", "--privacy-level=sample"), "batch_size is 4"),
    ],
)
def test_what_is_missing_is_said_in_one_line(left_out, added, text, files, tmp_path, capsys):
    options = [option for option in OPTIONS if option != left_out]
    assert main(["fit", *files, *options, *added, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert not (tmp_path / "run").exists()


def test_all_that_is_missing_is_said_at_once():
    with pytest.raises(ValueError, match=r"splits=0 .*standardise='row' .*learning_rate .*uniform"):
        fedsift.fit(rows("binary"), features=3, privacy=SITES)


# --- data that cannot be


def test_what_is_filled_or_scaled_by_the_rows_is_refused():
    with pytest.raises(ValueError, match="'target' is measured, and is standardised by its mean"):
        fedsift.fit(rows("regression"), privacy=SITES, **SMALL)
    data = rows("binary")
    holes = replace(data, missing=torch.zeros(data.x.shape, dtype=torch.bool))
    with pytest.raises(ValueError, match="missing values are filled with means"):
        fedsift.fit(holes, privacy=SITES, **SMALL)


def test_forgetting_in_a_private_training_is_refused():
    data = rows("binary")
    trained = train(
        linear_problem(data), data, METHODS["fedavg"], rounds=1, weights="uniform", privacy=SITE
    )
    with pytest.raises(ValueError, match="forgetting uses the rows without noise"):
        fedsift.forget(trained, sites=["hospital a"])


def test_other_studies_are_refused():
    settings = Settings(**SMALL, privacy=SITES)
    with pytest.raises(ValueError, match="every trial would spend a budget"):
        tune(rows("binary"), settings, trials=1)
    with pytest.raises(ValueError, match="every method would spend a budget of its own"):
        fedsift.compare(rows("binary"), ["fedht"], privacy=SITES, **SMALL)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"a private fit needs splits=0 \(scores\)"):
        Plan(settings=settings.model_copy(update={"splits": 2}), sites=("a", "b"), target="y")


def test_settings_come_back_from_a_file():
    settings = Settings(**SMALL, privacy=SITES)
    read = Settings(**json.loads(json.dumps(settings.model_dump())))
    assert read == settings
    assert planned_privacy(rows("binary"), read) == planned_privacy(rows("binary"), settings)
    assert planned_privacy(rows("binary"), Settings(features=3)) is None
