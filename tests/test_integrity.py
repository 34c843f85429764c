"""A run's files are used for what was asked for, unchanged, or refused by name."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsift
from fedsift import RunError, workflows
from fedsift.checkpoints import CheckpointError
from fedsift.cli import main
from fedsift.exports import ExportError, export_run, write_text
from fedsift.reporting import write_report
from fedsift.run_folder import CHECKPOINTS, OWN_FILES, read_facts, without_nan, write_facts
from fedsift.runs import Run, load_run
from tests.laws import rows

DATA = rows("binary", d=6)
ASKED: dict[str, Any] = {
    "features": 2,
    "seeds": 2,
    "splits": 1,
    "rounds": 3,
    "tuning_rounds": 3,
    "beside": ("central",),
}
REPORTED = ("run.json", "model.safetensors", "features.csv", "history.jsonl")


def fit(out: Path | None, data=DATA, **changes: Any) -> Run:
    return fedsift.fit(data, out=out, **(ASKED | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("finished") / "run"
    fit(path)
    return path


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def stopped(path: Path, data=DATA, **changes: Any) -> Path:
    """Start a fit and stop it in the search of its last case."""

    def stop(record: dict[str, Any]) -> None:
        if record["case"] == "all rows":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(path, data, callbacks=[stop], **changes)
    return path


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / CHECKPOINTS).iterdir())


@pytest.mark.parametrize(
    ("other", "changes"),
    [
        (rows("binary", d=6, seed=9), {}),
        (DATA, {"features": 3}),
        (DATA, {"ridge": 2.0}),
        (DATA, {"participation": 0.5}),
    ],
)
@pytest.mark.parametrize("part", ["done", "search"])
def test_checkpoints_of_another_request_are_never_used(part, other, changes, tmp_path) -> None:
    """Neither those of a finished fit nor those of one on the way."""
    ours, theirs = stopped(tmp_path / "a"), stopped(tmp_path / "b", other, **changes)
    case = "split-1" if part == "done" else "all-rows"
    name = f"{CHECKPOINTS}/eflops-{case}-{part}.safetensors"
    shutil.copy(theirs / name, ours / name)
    with pytest.raises(CheckpointError) as refusal:
        fit(ours, resume=True)
    assert str(ours / name) in str(refusal.value)
    assert "--overwrite" in str(refusal.value)
    assert "delete" not in str(refusal.value)


def test_a_finished_fit_of_another_split_is_refused(tmp_path) -> None:
    path = stopped(tmp_path / "run", splits=2)
    one, two = (path / CHECKPOINTS / f"eflops-split-{n}-done.safetensors" for n in (1, 2))
    shutil.copy(one, two)
    with pytest.raises(CheckpointError, match="another problem"):
        fit(path, splits=2, resume=True)


def test_damaged_checkpoints_are_passed_over_and_named(tmp_path, caplog) -> None:
    path = stopped(tmp_path / "run")
    damaged = [f for f in checkpoints(path) if f.stem.endswith(("done", "all-rows-search"))]
    for file in damaged:
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    resumed, undisturbed = fit(path, resume=True), fit(None)
    for file in damaged:
        assert f"{file} is damaged" in caplog.text
    assert torch.equal(resumed.params["weight"], undisturbed.params["weight"])
    assert not (path / CHECKPOINTS).exists()


@pytest.mark.parametrize("name", ["fedsift", "torch"])
def test_results_of_two_versions_are_not_mixed(name, tmp_path, monkeypatch) -> None:
    path = stopped(tmp_path / "run")
    monkeypatch.setitem(workflows.VERSIONS, name, "99")
    with pytest.raises(RunError, match=f"was started with {name} .*, and this is 99"):
        fit(path, resume=True)


def test_an_edited_run_json_is_refused(tmp_path, capsys) -> None:
    path = stopped(tmp_path / "run")
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace('"features": 2', '"features": 3'))
    assert main(["resume", str(path)]) == 2
    assert_one_line(capsys, path / "run.json")


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda _content: b"",
    "garbled": lambda _content: bytes(range(256)),
    "a digit": lambda content: content.replace(b"1", b"2", 1),
    "list": lambda _content: b"[]",
}


def assert_one_line(capsys, file: Path) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert str(file) in err
    assert "--overwrite" in err


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", REPORTED)
def test_a_damaged_file_is_refused_in_one_line(name, damage, run, capsys) -> None:
    file = run / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert main(["report", str(run)]) == 2
    assert_one_line(capsys, file)
    if name != "history.jsonl":  # only the report's picture needs it
        assert main(["export", str(run), "--to", str(run / "new.csv")]) == 2
        assert_one_line(capsys, file)


@pytest.mark.parametrize("name", REPORTED[1:])
def test_an_absent_file_is_named(name, run, capsys) -> None:
    (run / name).unlink()
    assert main(["report", str(run)]) == 2
    assert_one_line(capsys, run / name)


def test_a_run_is_overwritten_whatever_its_run_json_says(run) -> None:
    (run / "run.json").write_text("{")
    (run / "run.json.123.tmp").write_text("left by a kill")
    fit(run, overwrite=True)
    assert load_run(run).settings.features == 2
    assert not list(run.glob("*.tmp"))


def test_a_run_of_another_format_version_is_named(run) -> None:
    write_facts(run, read_facts(run) | {"version": 1})
    with pytest.raises(RunError, match="format version 1, this release reads 2; use the release"):
        load_run(run)


def test_equal_requests_give_equal_files(run, tmp_path) -> None:
    fit(tmp_path / "again")
    for name in ("model.safetensors", "features.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()


def test_a_finished_run_is_returned_if_the_request_is_the_same(run) -> None:
    before = (run / "run.json").read_bytes()
    resumed = fit(run, resume=True)
    assert [f.name for f in resumed.features] == [f.name for f in load_run(run).features]
    assert torch.equal(resumed.params["weight"], load_run(run).params["weight"])
    assert (run / "run.json").read_bytes() == before
    with pytest.raises(RunError, match=r"other settings \(rounds, ridge\)"):
        fit(run, resume=True, rounds=4, ridge=2.0)
    with pytest.raises(RunError, match="have changed"):
        fit(run, rows("binary", d=6, seed=9), resume=True)
    with pytest.raises(RunError, match="started with beside"):
        fit(run, resume=True, beside=())
    asked = {name: value for name, value in ASKED.items() if name != "beside"}
    with pytest.raises(RunError, match="started with command 'fit', not 'compare'"):
        fedsift.compare(DATA, ["eflops"], out=run, resume=True, **asked)
    assert (run / "run.json").read_bytes() == before


def test_a_comparison_on_the_way_is_not_reported(tmp_path, capsys) -> None:
    asked = {name: value for name, value in ASKED.items() if name != "beside"}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedsift.compare(DATA, ["fedavg"], out=tmp_path / "run", callbacks=[stop], **asked)
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "is not finished (status stopped)" in capsys.readouterr().err


def test_a_finished_comparison_is_returned(tmp_path) -> None:
    asked = {name: value for name, value in ASKED.items() if name != "beside"}
    made = fedsift.compare(DATA, ["fedavg", "fedht"], out=tmp_path / "run", **asked)
    again = fedsift.compare(DATA, ["fedavg", "fedht"], out=tmp_path / "run", resume=True, **asked)
    assert again == without_nan(made)


@pytest.mark.parametrize("name", [*OWN_FILES, "run.lock"])
def test_nothing_is_exported_over_a_file_of_the_run(name, run, tmp_path) -> None:
    (tmp_path / "link").symlink_to(run)
    for file in (run / name, tmp_path / "link" / name):
        with pytest.raises(ExportError, match="is a file of a run itself"):
            write_text(file, "mine", overwrite=True)
    if file.suffix in {".csv", ".safetensors"}:
        with pytest.raises(ExportError, match="is a file of a run itself"):
            export_run(load_run(run), str(run / name), overwrite=True)
    assert write_report(run)
