"""Callbacks see every round and cannot change a run; trackers write down what they see."""

import csv
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsift
from fedsift.callbacks import CallbackError
from fedsift.cli import main
from fedsift.data import golub38, iid
from fedsift.run_folder import read_facts
from fedsift.trackers import FigureFile, MLflow, TensorBoard, Tracker, figures

DATA = iid(golub38(), 2, 0).select_features(range(8))
ASKED: dict[str, Any] = {
    "features": 2, "seeds": 2, "splits": 1, "rounds": 3, "tuning_rounds": 3, "evaluate_every": 1,
    "beside": (), "min_cell": 0,
}  # fmt: skip
STAGES = [(case, stage) for case in ("split 1", "all rows") for stage in ("search", "refit")]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Return a run, and what a callback saw of it after another had spoilt its own records."""
    seen: list[dict[str, Any]] = []

    def spoil(record):
        record["sites"].clear()
        record["loss"] = None

    path = tmp_path_factory.mktemp("runs") / "run"
    return fedsift.fit(DATA, out=path, callbacks=[spoil, seen.append], **ASKED), seen


def test_a_callback_sees_every_round_as_the_history_has_it(watched):
    run, seen = watched
    places = [(record["case"], record["stage"], record["round"]) for record in seen]
    assert places == [(*where, number) for where in STAGES for number in (1, 2, 3)]
    kept = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    assert [r["loss"] for r in seen] == [r["loss"] for r in kept]
    assert all(len(r["sites"]) == 2 for r in (*seen, *kept))


@pytest.mark.parametrize("where", STAGES[1:3])
def test_a_callback_that_fails_stops_the_run_which_goes_on_to_the_same_end(
    tmp_path, watched, where
):
    """In a refit, and in a search of a later case, after the second of three rounds."""

    def breaks(record):
        if (record["case"], record["stage"], record["round"]) == (*where, 2):
            raise KeyError("lr")

    path = tmp_path / "run"
    said = (
        rf"callback test_\S+breaks failed in round 2 of eflops · {where[0]} · {where[1]}: KeyError"
    )
    with pytest.raises(CallbackError, match=said):
        fedsift.fit(DATA, out=path, callbacks=[breaks], **ASKED)
    assert read_facts(path)["status"] == "stopped"
    seen: list[dict[str, Any]] = []
    run = fedsift.fit(DATA, out=path, resume=True, callbacks=[seen.append], **ASKED)
    assert (seen[0]["case"], seen[0]["stage"], seen[0]["round"]) == (*where, 3)
    assert torch.equal(run.params["weight"], watched[0].params["weight"])


def told(watched: Any, tracker: Tracker) -> list[dict[str, Any]]:
    """Tell a tracker the rounds of a run, close it, and return them."""
    with tracker:
        for record in watched[1]:
            tracker(record)
    return list(watched[1])


def test_the_figures_of_a_round_are_its_numbers():
    record = {"method": "a", "round": 3, "loss": 0.5, "bytes_up": 8, "sites": {"x": 1}}
    assert figures(record) == {"loss": 0.5, "bytes_up": 8.0}


def test_a_table_has_every_figure_of_every_round(watched, tmp_path):
    seen = told(watched, FigureFile(tmp_path / "new" / "track.csv"))
    with (tmp_path / "new" / "track.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(figures(record)) for record in seen)
    losses = [float(row["value"]) for row in rows if row["figure"] == "loss"]
    assert losses == [record["loss"] for record in seen]
    assert {(row["case"], row["stage"]) for row in rows} == set(STAGES)


def test_json_lines_are_the_records_and_grow(watched, tmp_path):
    for _ in range(2):
        seen = told(watched, FigureFile(tmp_path / "track.jsonl"))
    text = (tmp_path / "track.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == 2 * seen


def test_other_files_are_not_written_to(tmp_path):
    other = tmp_path / "patients.csv"
    other.write_text("id,age\n1,70\n")
    with pytest.raises(ValueError, match="is a table of something else"):
        FigureFile(other)
    with pytest.raises(ValueError, match=r"ends in .csv or .jsonl"):
        FigureFile(tmp_path / "track.txt")


class FakeWriter:
    made: list["FakeWriter"]

    def __init__(self, log_dir: str, purge_step: int) -> None:
        self.folder, self.first, self.open = Path(log_dir), purge_step, True
        self.points: list[tuple[str, float, int]] = []
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.points.append((name, value, step))

    def flush(self) -> None:
        assert self.open

    def close(self) -> None:
        self.open = False


@pytest.fixture
def board(monkeypatch):
    FakeWriter.made = []
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return FakeWriter.made


def test_tensorboard_has_a_folder_for_every_stage(board, watched, tmp_path):
    seen = told(watched, TensorBoard(tmp_path))
    folders = [tmp_path / "eflops" / case / stage for case, stage in STAGES]
    assert [writer.folder for writer in board] == folders
    losses = [v for writer in board for name, v, _ in writer.points if name == "loss"]
    assert losses == [record["loss"] for record in seen]
    assert {step for writer in board for *_, step in writer.points} == {1, 2, 3}
    assert not any(writer.open for writer in board)


class FakeMLflow(types.ModuleType):
    """MLflow as far as it is used; a server that is told to fails."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.entities = types.SimpleNamespace(Metric=lambda *values: values)
        self.metrics: list[tuple[str, float, int, int]] = []
        self.params: dict[str, Any] = {}
        self.ended: list[str] = []
        self.active: Any = None
        self.down = False

    def active_run(self):
        return self.active

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"number of {name}"

    def start_run(self, experiment_id: str) -> Any:
        self.active = types.SimpleNamespace(info=types.SimpleNamespace(run_id=experiment_id))
        return self.active

    def log_params(self, params: dict[str, Any]) -> None:
        self.params |= params

    def MlflowClient(self) -> Any:
        return self

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:
        if self.down:
            raise ConnectionError("no server")
        assert run_id == self.active.info.run_id
        assert len(metrics) <= 1000
        self.metrics += metrics

    def end_run(self, status: str) -> None:
        self.active = None
        self.ended.append(status)


@pytest.fixture
def flow(monkeypatch):
    module = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def test_mlflow_is_sent_every_figure_and_ended(flow, watched):
    seen = told(watched, MLflow("genes", {"features": 2}))
    assert flow.params == {"features": 2}
    assert flow.ended == ["FINISHED"]
    found = {(name, step): value for name, value, _, step in flow.metrics}
    for record in seen:
        place = f"eflops/{record['case']}/{record['stage']}"
        for name, value in figures(record).items():
            assert found.pop((f"{place}/{name}", record["round"])) == value
    assert not found


def test_a_run_of_mlflow_that_was_active_stays_so(flow, watched):
    flow.start_run("mine")
    told(watched, MLflow())
    assert flow.metrics
    assert not flow.ended


def test_a_server_that_fails_says_so_once(flow, watched):
    flow.down = True
    with pytest.raises(ConnectionError, match="no server"):
        told(watched, MLflow())
    tracker = MLflow()
    tracker(watched[1][0])
    tracker.close(failed=True)  # the failure before is the one that is said


def test_the_real_mlflow_and_tensorboard(watched, tmp_path):
    flow = pytest.importorskip("mlflow")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    flow.set_tracking_uri(f"sqlite:///{tmp_path / 'flow.db'}")
    seen = told(watched, MLflow("genes", {"features": 2}))
    told(watched, TensorBoard(tmp_path / "board"))
    (run,) = flow.search_runs(experiment_names=["genes"], output_format="list")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["eflops/all rows/refit/loss"] == pytest.approx(seen[-1]["loss"])
    events = reading.EventAccumulator(str(tmp_path / "board/eflops/all rows/refit")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [
        (record["round"], pytest.approx(record["loss"])) for record in seen[-3:]
    ]


COMMAND = [
    *("fit", "--demo", "golub", "--features", "2", "--seeds", "1", "--splits", "0"),
    *("--rounds", "2", "--tuning-rounds", "2", "--quiet"),
]


def test_the_command_line_tracks(board, flow, tmp_path, capsys):
    path = tmp_path / "run"
    tracked = [word for kind in ("csv", "tensorboard", "mlflow:x") for word in ("--track", kind)]
    assert main([*COMMAND, "--out", str(path), *tracked]) == 0
    with (path / "track.csv").open() as file:
        assert {(r["stage"], r["round"]) for r in csv.DictReader(file)} == {
            (stage, number) for stage in ("search", "refit") for number in ("1", "2")
        }
    assert board[0].folder == path / "tensorboard" / "eflops" / "all rows" / "search"
    assert flow.params["features"] == 2
    assert flow.ended == ["FINISHED"]
    assert main([*COMMAND, "--out", str(path), "--overwrite"]) == 0
    assert not (path / "track.csv").exists()


def test_a_table_beside_the_run_is_not_in_the_way(tmp_path, monkeypatch):
    """By default the figures go into the run's own folder."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "track.csv"
    other.write_text("artist,song\n")
    assert main([*COMMAND, "--track", "csv"]) == 0
    assert other.read_text() == "artist,song\n"
    assert len(list(tmp_path.glob("runs/*/track.csv"))) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("csw", "no tracker is called 'csw'; did you mean 'csv'"),
        ("csv:x.txt", "ends in '.txt'; name a file that ends in .csv or .jsonl"),
        ("mlflow", "the package mlflow is not installed; pip install 'fedsift[track]'"),
        ("tensorboard", "the package tensorboard is not installed; pip install 'fedsift[track]'"),
    ],
)
def test_what_cannot_be_tracked_is_refused_before_there_is_a_folder(
    asked, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.chdir(tmp_path)
    assert main([*COMMAND, "--track", asked]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not list(tmp_path.iterdir())


def test_a_tracker_that_fails_leaves_a_run_that_goes_on(flow, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedsift.trackers.EVERY", -1.0)
    flow.down, path = True, tmp_path / "run"
    assert main([*COMMAND, "--out", str(path), "--track", "mlflow"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "MLflow failed in round 1" in line
    assert line.endswith(f"go on with: fedsift resume {path}")
    assert main(["resume", str(path), "--quiet", "--track", "csv"]) == 0
    with (path / "track.csv").open() as file:
        assert next(csv.DictReader(file))["round"] == "2"
