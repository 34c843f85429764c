"""An experiment goes on where it stopped, refuses what is not its own, and says what it found."""

import json
import subprocess
import sys
import time
from multiprocessing import parent_process

import pytest

from fedsift.experiments import find_experiment
from fedsift.experiments.base import Cell, Experiment, Outcome, Progress, read_cells, run_experiment
from fedsift.experiments.tables import shown, table_csv, table_markdown
from fedsift.locks import is_alive
from fedsift.reporting.charts import Chart, Series, draw_chart
from fedsift.run_folder import RunError

CALLS: list[int] = []


def square(number):
    CALLS.append(number)
    if number == 3 and len(CALLS) == 3 and parent_process() is None:
        raise KeyboardInterrupt
    return {"value": number**2}


class Squares(Experiment):
    name = "squares"
    summary = "squares of numbers"

    def cells(self, *, quick):
        return [Cell(f"n={n}", square, {"number": n}) for n in ((1, 2) if quick else (1, 2, 3, 4))]

    def outcome(self, found, *, quick):
        rows = [{"cell": name, **result} for name, result in found.items()]
        chart = Chart("Squares", "cell", "value", {"a": Series([1, 2], [1, 4])})
        return Outcome({"rows": rows}, table_markdown(rows), {"squares": chart})


@pytest.fixture(autouse=True)
def _forget_calls():
    CALLS.clear()


def test_it_goes_on_where_it_stopped(tmp_path):
    folder, seen = tmp_path / "e", list[Progress]()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(Squares(), folder)
    assert set(read_cells(folder)) == {"n=1", "n=2"}
    with (folder / "cells.jsonl").open("a") as file:
        file.write('\n{"cell": "n=3", "res')  # cut off by a crash
    results = run_experiment(Squares(), folder, progress=seen.append)
    assert CALLS == [1, 2, 3, 3, 4]
    assert [row["value"] for row in results["rows"]] == [1, 4, 9, 16]
    assert [p.done for p in seen] == [3, 4]
    assert seen[-1].share == 1
    assert seen[-1].seconds_left == 0
    assert json.loads((folder / "experiment.json").read_text())["status"] == "done"
    written = {"results.json", "results.csv", "page.md", "squares.png"}
    assert written <= {file.name for file in folder.iterdir()}
    assert run_experiment(Squares(), folder) == results
    assert len(CALLS) == 5


def test_a_cell_with_other_arguments_is_worked_at_again(tmp_path):
    run_experiment(Squares(), tmp_path / "e", quick=True)
    file = tmp_path / "e" / "cells.jsonl"
    file.write_text(file.read_text().replace('{"number": 2}', '{"number": 5}'))
    results = run_experiment(Squares(), tmp_path / "e", quick=True)
    assert CALLS == [1, 2, 2]
    assert [row["value"] for row in results["rows"]] == [1, 4]


def test_processes_work_side_by_side(tmp_path):
    results = run_experiment(Squares(), tmp_path / "e", jobs=2)
    assert sorted(row["value"] for row in results["rows"]) == [1, 4, 9, 16]
    assert not CALLS


def test_what_is_not_its_own_is_refused(tmp_path):
    run_experiment(Squares(), tmp_path / "e", quick=True)
    with pytest.raises(RunError, match="quick is True, not False; choose another folder"):
        run_experiment(Squares(), tmp_path / "e")
    run_experiment(Squares(), tmp_path / "e", overwrite=True, jobs=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    with pytest.raises(RunError, match="no folder of an experiment"):
        run_experiment(Squares(), tmp_path / "mine", overwrite=True)
    with pytest.raises(ValueError, match="no experiment 'golib'"):
        find_experiment("golib")


def test_tables():
    rows: list[dict] = [
        {"method": "a", "r2": {"mean": 0.91234, "low": 0.9, "high": 0.92, "n": 3}, "bytes": 12345},
        {"method": "b", "r2": {"mean": 0.5, "low": float("nan"), "high": float("nan"), "n": 1}},
    ]
    assert table_csv(rows).splitlines()[0] == "method,r2,r2_low,r2_high,r2_n,bytes"
    assert "| a | 0.912 (0.9 to 0.92) | 12,345 |" in table_markdown(rows)
    assert "| b | 0.5 | – |" in table_markdown(rows)
    assert shown(value=True) == "yes"


@pytest.mark.parametrize("kind", ["lines", "points", "bars"])
def test_charts_show_every_series(kind):
    series = {"a": Series([1, 2], [1, 4], [0, 3], [2, 5]), "b": Series([1, 2], [2, 3])}
    figure = draw_chart(Chart("T", "x", "y", series, kind, marks={"target": 3.0}, note="n"))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["a", "b"]


def test_a_worker_ends_with_its_parent():
    child = (
        "import os, time; from fedsift.experiments.base import end_with; end_with(os.getppid());"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
        " stdout=subprocess.PIPE, text=True); print(p.stdout.readline(), flush=True)"
    )
    told = subprocess.run(
        [sys.executable, "-c", parent, child], capture_output=True, text=True, check=True
    )
    deadline = time.monotonic() + 20.0
    while is_alive(int(told.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
