"""What --overwrite may remove."""

import pytest

from fedsift.run_folder import CHECKPOINTS, RunError, prepare


def old_run(path):
    (path / CHECKPOINTS).mkdir(parents=True)
    for name in ("run.json", "model.safetensors", "features.csv", "inclusion.png"):
        (path / name).write_text("{}")
    (path / CHECKPOINTS / "eflops-split-1-done.safetensors").write_text("x")
    return path


def test_overwriting_removes_the_run_and_leaves_what_is_not_its_own(tmp_path) -> None:
    run = old_run(tmp_path / "run")
    (run / "thesis").mkdir()
    for name in ("mydata.csv", "thesis/t.tex", f"{CHECKPOINTS}/notes.txt"):
        (run / name).write_text("mine")
    prepare(run, overwrite=True)
    left = sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file())
    assert left == [f"{CHECKPOINTS}/notes.txt", "mydata.csv", "thesis/t.tex"]


def test_an_input_with_the_name_of_a_result_is_not_lost(tmp_path) -> None:
    run = old_run(tmp_path / "run")
    with pytest.raises(RunError, match="is an input"):
        prepare(run, overwrite=True, inputs=[run / "features.csv"])
    assert (run / "model.safetensors").exists()


def test_overwriting_through_a_link_empties_the_run_it_points_to(tmp_path) -> None:
    run = old_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    prepare(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert list(run.iterdir()) == []


def test_checkpoints_behind_a_link_are_not_touched(tmp_path) -> None:
    run, elsewhere = tmp_path / "run", old_run(tmp_path / "other")
    run.mkdir()
    (run / "run.json").write_text("{}")
    (run / CHECKPOINTS).symlink_to(elsewhere / CHECKPOINTS)
    prepare(run, overwrite=True)
    assert len(list((elsewhere / CHECKPOINTS).iterdir())) == 1
