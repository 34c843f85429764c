"""One process at a time in a run folder."""

import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsift.locks import claim, locked
from fedsift.run_folder import LOCK, RunError


def write_lock(folder, pid: int, host: str) -> None:
    (folder / LOCK).write_text(json.dumps({"pid": pid, "host": host}))


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path) -> None:
    run = tmp_path / "run"
    with claim(run):
        (run / "run.json").write_text("the running one")
        for resume in (True, False):
            with (
                pytest.raises(RunError, match=f"in use by process {os.getpid()} on"),
                claim(run, resume=resume, overwrite=True),
            ):
                pytest.fail("two at a time")
        assert (run / "run.json").read_text() == "the running one"
    assert [file.name for file in run.iterdir()] == ["run.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_every_end_releases(error, tmp_path) -> None:
    with pytest.raises(error), locked(tmp_path):
        raise error
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path) -> None:
    write_lock(tmp_path, dead_process(), platform.node())
    with claim(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to read states from")
def test_the_lock_of_a_process_that_nobody_buried_is_taken_over(tmp_path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    write_lock(tmp_path, process.pid, platform.node())
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    process.wait()


@pytest.mark.parametrize("content", ['{"pid": 1, "host": "elsewhere"}', "", "[]", '{"pid": "x"}'])
def test_a_lock_that_cannot_be_judged_is_refused_by_its_name(content, tmp_path) -> None:
    (tmp_path / LOCK).write_text(content)
    with pytest.raises(RunError, match=f"remove {tmp_path / LOCK}"), locked(tmp_path):
        pytest.fail("taken")


def test_of_many_that_take_over_at_once_one_works_at_a_time(tmp_path) -> None:
    inside, most, done = 0, 0, 0
    pid = dead_process()

    def work(_number: int) -> None:
        nonlocal inside, most, done
        try:
            with locked(tmp_path):
                inside += 1
                most = max(most, inside)
                time.sleep(0.005)
                inside -= 1
                done += 1
        except RunError:
            pass

    for _ in range(10):
        write_lock(tmp_path, pid, platform.node())
        before = done
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert done > before
    assert most == 1
    assert not list(tmp_path.iterdir())
