"""Ctrl-C ends a command with one line and code 130."""

import signal
import subprocess
import sys

import pytest

from fedsift.cli import main
from fedsift.locks import locked
from fedsift.sources import Source
from fedsift.workflows import Study

FIT = ("fit", "--demo", "golub", "--seeds", "2", "--splits", "0", "--quiet")


def interrupt(*_args, **_more):
    raise KeyboardInterrupt


def test_an_interrupt_while_data_are_read_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Source, "cases", interrupt)
    assert main(FIT) == 130
    assert capsys.readouterr() == ("", "stopped\n")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_of_the_work_says_how_to_go_on_and_releases(
    tmp_path, monkeypatch, capsys
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(Study, "fits", interrupt)
    assert main([*FIT, "--out", str(run)]) == 130
    assert capsys.readouterr() == ("", f"stopped; go on with: fedsift resume {run}\n")
    with locked(run):
        pass


READING = """
import sys, time
from fedsift.cli import main
from fedsift.sources import Source

def read(*_):
    print("reading", flush=True)
    try:
        time.sleep(60)
    except BaseException as error:  # what native code makes of an exception in a callback
        sys.exit(f"panic: {error!r}")

Source.cases = read
sys.argv = ["fedsift", "fit", "--demo", "golub"]
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_a_signal_in_native_code_is_one_line_too() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", READING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "stopped\n")
