"""Retraining from the state before a late site joined: the model of a training from the start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.cli import main
from fedsift.run_folder import JOINS
from fedsift.runs import load_run
from fedsift.unlearning.rows import participation

SITES = "abcde"


def write_sites(folder: Path) -> list[str]:
    """Five files of 16 rows, 8 features, the first two of which count."""
    random = np.random.default_rng(0)
    files = []
    for site in SITES:
        x = random.normal(size=(16, 8))
        sick = x[:, 0] - x[:, 1] + 0.3 * random.normal(size=16) > 0
        lines = [",".join(["patient", *(f"g{i}" for i in range(8)), "sick"])]
        lines += [
            ",".join([f"{site}{i}", *(f"{v:.4f}" for v in x[i]), "yes" if sick[i] else "no"])
            for i in range(16)
        ]
        files.append(str(folder / f"{site}.csv"))
        Path(files[-1]).write_text("\n".join(lines) + "\n")
    return files


def fit(folder: Path, files: list[str], *more: str) -> Path:
    """Fit two seeds for seven rounds by the command line; return the run's folder."""
    out = folder / "run"
    arguments = ["fit", *files, "--target", "sick", "--id", "patient", "--features", "2"]
    arguments += ["--seeds", "2", "--splits", "0", "--rounds", "7", "--tuning-rounds", "5"]
    assert main([*arguments, *more, "--out", str(out), "-q"]) == 0
    return out


@pytest.fixture(scope="module", params=["eflops", "fedavg"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late")
    return fit(
        folder, write_sites(folder), "--participation", "2", "--standardise", "none",
        "--method", request.param,
    )  # fmt: skip


def late_site(run: Path) -> tuple[str, int]:
    """Return the site that joined last, and its first round for any seed."""
    first: dict[str, int] = {}
    for site, _, _, number, _ in participation(load_run(run)):
        first[site] = min(number, first.get(site, number))
    late = max(first, key=lambda site: first[site])
    assert first[late] > 0
    return late, first[late]


def forget(run: Path, capsys: pytest.CaptureFixture[str], *what: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["forget", str(run), *what, "--method", "retrain", "--json", "-q"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("rows", [False, True])
def test_the_kept_state_gives_the_model_of_a_training_from_the_start(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: bool
) -> None:
    """Bit for bit, for a whole site and for two rows of it; and it costs fewer rounds and bytes."""
    late, number = late_site(original)
    what = ["--row", f"{late}0", "--row", f"{late}3"] if rows else ["--site", late]
    for name in ("kept", "anew"):
        shutil.copytree(original, tmp_path / name)
    shutil.rmtree(tmp_path / "anew" / JOINS)
    kept, anew = (forget(tmp_path / name, capsys, *what) for name in ("kept", "anew"))
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("kept", "anew")]
    assert models[0] == models[1]
    assert kept["guarantee"] == "exact given preprocessing"
    assert f"after round {number}" in kept["notes"][0]
    assert (kept["rounds"], anew["notes"]) == (anew["rounds"] - number, [])
    assert kept["bytes_total"] < anew["bytes_total"]
    assert not (tmp_path / "kept" / JOINS).exists()
    records = (tmp_path / "kept" / "history.jsonl").read_text().splitlines()
    assert "loss" not in json.loads(records[0])  # it was taken on the rows to forget too


def test_it_is_the_model_of_a_fit_on_the_other_files(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late, _ = late_site(original)
    shutil.copytree(original, tmp_path / "kept")
    forget(tmp_path / "kept", capsys, "--site", late)
    run = load_run(tmp_path / "kept")
    files = [str(original.parent / f"{s}.csv") for s in SITES if s != late]
    alone = load_run(
        fit(tmp_path, files, "--participation", "2", "--standardise", "none",
            "--method", run.settings.method)
    )  # fmt: skip
    assert all((run.params[k] == v).all() for k, v in alone.params.items())


def test_a_crash_after_the_state_was_taken_over_changes_nothing(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from fedsift import training

    late, _ = late_site(original)
    for name in ("calm", "crashed"):
        shutil.copytree(original, tmp_path / name)
    calm = forget(tmp_path / "calm", capsys, "--site", late)

    def die(*_: Any) -> None:
        raise RuntimeError("a power cut")

    with monkeypatch.context() as patched:
        patched.setattr(training._Loop, "_round", die)
        assert main(["forget", str(tmp_path / "crashed"), "--site", late, "--method", "retrain"])
    again = forget(tmp_path / "crashed", capsys, "--site", late)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("calm", "crashed")]
    assert models[0] == models[1]
    assert again["rounds"] == calm["rounds"]


@pytest.mark.parametrize(
    "more",
    [
        ("--participation", "2"),  # standardised by all rows
        ("--standardise", "none"),  # all sites from the start
    ],
)
def test_no_state_is_kept_that_the_rows_had_a_part_in(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    assert not (fit(tmp_path, write_sites(tmp_path), *more) / JOINS).exists()


def test_where_other_sites_would_have_been_asked_it_trains_from_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three fifths of five sites are three, of four two: the rounds before would be others."""
    run = fit(
        tmp_path, write_sites(tmp_path), "--participation", "0.6", "--standardise", "none",
        "--seeds", "1",
    )  # fmt: skip
    late, _ = late_site(run)
    assert list((run / JOINS).iterdir())
    assert forget(run, capsys, "--site", late)["notes"] == []
    assert not (run / JOINS).exists()


def test_a_damaged_state_is_passed_over(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late, number = late_site(original)
    for name in ("damaged", "anew"):
        shutil.copytree(original, tmp_path / name)
    shutil.rmtree(tmp_path / "anew" / JOINS)
    file = tmp_path / "damaged" / JOINS / f"before-round-{number}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    found = [forget(tmp_path / name, capsys, "--site", late) for name in ("damaged", "anew")]
    assert found[0]["rounds"] == found[1]["rounds"]
    models = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("damaged", "anew")]
    assert models[0] == models[1]


def test_overwriting_a_run_removes_its_states(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path / "run")
    fit(tmp_path, write_sites(tmp_path), "--overwrite")
    assert not (tmp_path / "run" / JOINS).exists()
