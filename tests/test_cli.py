"""The command line: exit codes, the JSON contract, wrong use, interrupt and resume, export."""

import csv
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedsift import run_folder, runs, workflows
from fedsift.cli import commands, main
from fedsift.cli.commands import free_folder
from fedsift.cli.quick import asked
from fedsift.settings import Settings
from fedsift.sources import Source

TINY = ("--seeds", "2", "--splits", "1", "--rounds", "3", "--tuning-rounds", "3", "--quiet")
SYNTHETIC = (
    *("--demo", "synthetic", "--samples", "60", "--features-total", "20", "--informative", "3"),
    *("--data-seeds", "2", "--seeds", "2", "--rounds", "4", "--tuning-rounds", "4", "--quiet"),
)
RESULTS = {"features", "bytes_up", "bytes_down", "bytes_dense", "bytes_per_seed"}


def write_sites(folder: Path, target: str = "diagnosis") -> list[str]:
    """Three sites of 16 rows with six genes, of which gene1 and gene4 decide."""
    rng = np.random.default_rng(5)
    files = []
    for site in ("berlin", "paris", "rome"):
        x = rng.normal(3.0, 5.0, (16, 6))
        score = x[:, 1] - x[:, 4] + rng.normal(0, 1, 16)
        values = np.where(score > 0, "sick", "well") if target == "diagnosis" else score.round(4)
        lines = [f"patient,{','.join(f'gene{j}' for j in range(6))},{target}"]
        lines += [f"{site}{i},{','.join(f'{v:.6f}' for v in x[i])},{values[i]}" for i in range(16)]
        path = folder / f"{site}.csv"
        path.write_text("\n".join(lines) + "\n")
        files.append(str(path))
    return files


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> list[str]:
    return write_sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def fitted(sites, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("fitted") / "run"
    common = ("--target", "diagnosis", "--id", "patient", "--features", "2", *TINY)
    assert main(["fit", *sites, *common, "--out", str(path)]) == 0
    return path


def shown_json(capsys):
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def is_interval(figure) -> bool:
    return set(figure) == {"mean", "low", "high", "n"}


def test_fit_writes_a_run_folder_and_says_what_a_reader_wants(sites, tmp_path, capsys):
    common = ("--target", "diagnosis", "--id", "patient", "--features", "2", *TINY)
    assert main(["fit", *sites, *common, "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in (
        "2 features of 6",
        "sick or well",
        "held-out accuracy",
        "always guessing",
        "Next:",
    ):
        assert part in out
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written == {
        *("run.json", "history.jsonl", "model.safetensors", "features.csv"),
        *("report.txt", "report.html", "inclusion.png", "training.png"),
    }


def test_fit_json_keeps_the_contract(capsys, tmp_path):
    assert main(["fit", *SYNTHETIC, "--json", "--out", str(tmp_path / "run")]) == 0
    results = shown_json(capsys)
    assert set(results) >= RESULTS | {"seconds", "run", "beside"}
    for name in ("test_r2", "single_seed_r2", "support_recovery", "ensemble_support_recovery"):
        assert is_interval(results[name])
        assert results[name]["n"] == 2
    assert len(results["features"]) == 3
    assert set(results["features"][0]) >= {"name", "inclusion_probability", "weight"}
    assert set(results["beside"]) == {"local", "central"}
    assert results["run"] == str(tmp_path / "run")


def test_fit_json_of_classes(sites, capsys, tmp_path):
    args = ("--target", "diagnosis", "--id", "patient", "--density", ".34", *TINY, "--json")
    assert main(["fit", *sites, *args, "--out", str(tmp_path / "run")]) == 0
    results = shown_json(capsys)
    assert is_interval(results["test_accuracy"])
    assert is_interval(results["single_seed_accuracy"])
    assert "support_recovery" not in results
    assert len(results["features"]) == 2


def test_compare_json_keeps_the_contract(capsys, tmp_path):
    args = ("--methods", "eflops,fediterht,fedavg", "--json", "--out", str(tmp_path / "run"))
    assert main(["compare", *SYNTHETIC, *args]) == 0
    results = shown_json(capsys)
    assert list(results["methods"]) == ["eflops", "fediterht", "fedavg"]
    for figures in results["methods"].values():
        assert set(figures) >= RESULTS | {
            "seconds",
            "support_recovery",
            "ensemble_support_recovery",
        }
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "fediterht" in capsys.readouterr().out
    assert main(["predict", str(tmp_path / "run"), "x.csv"]) == 2
    assert "comparison" in capsys.readouterr().err


def test_default_folders_are_numbered(sites, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ("--target", "diagnosis", "--id", "patient", "--features", "2", *TINY, "--splits", "0")
    for number in (1, 2):
        assert main(["fit", *sites, *args, "--json"]) == 0
        results = shown_json(capsys)
        assert Path(results["run"]) == Path("runs", f"berlin-{number}")
        assert "test_accuracy" not in results  # without splits there is nothing to score on


def test_runs_that_begin_at_once_get_folders_of_their_own(tmp_path, monkeypatch):
    """Each asks before any has written a file."""
    monkeypatch.chdir(tmp_path)
    source = Source(demo="golub")
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: free_folder(source, "fit", make=True), range(8)))
    assert {path.name for path in paths} == {f"golub-{n}" for n in range(1, 9)}
    assert not free_folder(source, "fit", make=False).exists()


def test_a_run_is_not_overwritten_unasked(sites, fitted, capsys, tmp_path):
    args = ("--target", "diagnosis", "--id", "patient", "--features", "2", *TINY, "--splits", "0")
    before = (fitted / "run.json").read_text()
    assert main(["fit", *sites, *args, "--out", str(fitted)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (fitted / "run.json").read_text() == before
    keep = tmp_path / "precious.txt"
    keep.write_text("mine")
    assert main(["fit", *sites, *args, "--out", str(tmp_path), "--overwrite"]) == 2
    assert "not a run folder" in capsys.readouterr().err
    assert keep.read_text() == "mine"


def test_require_decides_between_0_and_3(sites, capsys, tmp_path):
    args = ("--target", "diagnosis", "--id", "patient", "--features", "2", *TINY, "--json")
    wanted = ("--method", "fedavg", "--require", "test_accuracy>=0", "--require", "bytes_up<1e12")
    assert main(["fit", *sites, *args, *wanted, "--out", str(tmp_path / "a")]) == 0
    shown_json(capsys)
    never = ("--method", "fedavg", "--require", "test_accuracy>=1.01")
    assert main(["fit", *sites, *args, *never, "--out", str(tmp_path / "b")]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["run"] == str(tmp_path / "b")
    assert "not met: test_accuracy>=1.01" in err


MISTAKES = {
    "nothing": ([], "--demo golub"),
    "no target": (["{berlin}"], "--target is missing"),
    "misspelt target": (["{berlin}", "--target", "diagnosi", "--features", "2"], "'diagnosis'?"),
    "no size": (["{berlin}", "--target", "diagnosis", "--id", "patient"], "--features is missing"),
    "negative density": (["--demo", "golub", "--density", "-1"], "--density is -1.0"),
    "both sizes": (["--demo", "golub", "--density", ".1", "--features", "3"], "not both"),
    "too many": (["--demo", "golub", "--features", "5000"], "of 3051 features"),
    "text in numbers": (["{berlin}", "--target", "diagnosis", "--features", "2"], "--id patient"),
    "misspelt option": (["--demo", "golub", "--featurs", "3"], "--features"),
    "not a number": (["--demo", "golub", "--features", "three"], "--features"),
    "misspelt method": (["--demo", "golub", "--method", "eflop"], "did you mean 'eflops'"),
    "misspelt choice": (["--demo", "golub", "--messages", "dens"], "did you mean 'dense'"),
    "other filling": (
        ["{berlin}", "--target", "diagnosis", "--features", "2", "--impute", "median"],
        "'mean'",
    ),
    "splits of data with test rows": (
        ["--demo", "synthetic", "--splits", "3"],
        "--splits goes with real rows",
    ),
    "concentration of even sites": (["--demo", "golub", "--alpha", "3"], "--alpha goes with"),
    "messages of pooled rows": (
        ["--demo", "golub", "--method", "central", "--messages", "dense"],
        "all rows in one place",
    ),
    "misspelt demo": (["--demo", "goloob"], "did you mean 'golub'"),
    "option of another source": (["--demo", "golub", "--samples", "9"], "--demo synthetic only"),
    "files and demo": (["{berlin}", "--demo", "golub"], "choose one"),
    "absent file": (["absent.csv", "--target", "y", "--features", "2"], "no such file"),
    "one class": (["{one}", "--target", "y", "--features", "1"], "same value"),
    "wrong delimiter": (["{semicolons}", "--target", "y", "--features", "1"], "--separator ';'"),
    "missing target": (["{gap}", "--target", "y", "--features", "1"], "target 'y' is missing"),
    "missing value": (["{hole}", "--target", "y", "--features", "1"], "--impute mean"),
    "patient at two sites": (
        ["{berlin}", "{again}", "--target", "diagnosis", "--id", "patient", "--features", "2"],
        "id 'berlin0' is at site",
    ),
    "odd participation": (["--demo", "golub", "--participation", "2.5"], "participation is 2.5"),
    "rule that compares whole messages": (
        ["--demo", "golub", "--aggregation", "median", "--messages", "feedback"],
        "median compares whole uploads",
    ),
    "misspelt rule": (
        ["--demo", "golub", "--aggregation", "medain"],
        "aggregation 'medain' is unknown; did you mean 'median'",
    ),
    "messages of another method": (
        ["--demo", "golub", "--messages", "paper", "--method", "fedavg", "--splits", "0"],
        "messages 'paper'",
    ),
    "requirement": (["--demo", "golub", "--require", "test_accuracy"], "test_accuracy>=.9"),
    "unknown result": (["--demo", "golub", "--require", "test_acuracy>=.9"], "'test_accuracy'?"),
    "no test rows": (["--demo", "golub", "--splits", "0", "--require", "test_r2>1"], "gives no"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_use_gives_one_line_and_code_2(name, sites, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "one": "x,y\n1,a\n2,a\n3,a\n",
        "semicolons": "x;y\n1;2\n2;3\n",
        "gap": "x,y\n1,a\n2,\n3,b\n",
        "hole": "x,y\n1,a\n,b\n3,b\n",
        "again": Path(sites[0]).read_text(),
    }
    places = {"berlin": sites[0]}
    for stem, content in files.items():
        places[stem] = str(tmp_path / f"{stem}.csv")
        Path(places[stem]).write_text(content)
    arguments, expected = MISTAKES[name]
    assert main(["fit", *(a.format(**places) for a in arguments), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert expected in err
    assert not list(tmp_path.glob("runs/*"))


def test_other_commands_used_wrongly(fitted, tmp_path, capsys):
    (tmp_path / "few.csv").write_text("gene1\n1\n")
    needed = runs.load_run(fitted).needed
    for arguments, expected in (
        (["predict", str(tmp_path), "few.csv"], "no run.json"),
        (
            ["predict", str(fitted), str(tmp_path / "few.csv")],
            f"'{next(n for n in needed if n != 'gene1')}'",
        ),
        (["export", str(fitted), "--to", "coeficients"], "did you mean 'coefficients'"),
        (["resume", str(tmp_path / "absent")], "not a run folder"),
        (["compare", "--demo", "golub", "--methods", "eflops,fedavgg"], "did you mean 'fedavg'"),
        (["frobnicate"], "No such command"),
    ):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert expected in err


def test_unexpected_failures_exit_with_1_and_show_a_traceback_only_when_asked(monkeypatch, capsys):
    def broken(*_args, **_more):
        msg = "the\nunforeseen"
        raise ZeroDivisionError(msg)

    monkeypatch.setattr(Source, "cases", broken)
    assert main(["fit", "--demo", "golub"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines() == [
        (
            "fedsift: unexpected ZeroDivisionError: the unforeseen"
            " (add --debug for the traceback, and please report it)"
        )
    ]
    assert main(["fit", "--demo", "golub", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedsift ")
    assert main(["fit", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--features" in out
    assert "fedsift fit --demo golub" in out


def test_dry_run_writes_nothing(sites, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ("--target", "diagnosis", "--id", "patient", "--features", "2", *TINY, "--dry-run")
    assert main(["fit", *sites, *args, "--json"]) == 0
    facts = shown_json(capsys)
    assert facts["samples"] == 48
    assert facts["cases"] == ["split 1", "all rows"]
    assert facts["rounds"] == {"eflops": 3, "local": 3, "central": 3}
    assert facts["bytes_expected"] > 0
    assert facts["seconds_expected"] > 0
    assert main(["fit", *sites, *args]) == 0
    assert "Nothing is written" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_dry_run_foresees_the_bytes_of_dense_messages(sites, tmp_path, capsys):
    """Dense messages have one size, but for the exchange of curvatures: within 15 %."""
    common = (*sites, "--target", "diagnosis", "--id", "patient", "--features", "2", *TINY)
    args = ("fit", *common, "--messages", "dense", "--rounds", "9", "--json", "--method", "fedavg")
    assert main([*args, "--dry-run"]) == 0
    expected = shown_json(capsys)["bytes_expected"]
    assert main([*args, "--out", str(tmp_path / "run")]) == 0
    results = shown_json(capsys)
    sent = results["bytes_up"] + results["bytes_down"]
    assert expected == pytest.approx(sent, rel=0.15)


def interrupted(source: Source, settings: Settings, path: Path, after: int) -> None:
    """Start a fit as the command line does, and stop it in the given call of the callback."""
    calls = 0

    def stop(_record):
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workflows.run_fit(
            source.cases(settings),
            settings,
            source=source.model_dump(mode="json"),
            path=path,
            callbacks=[stop],
        )


@pytest.mark.parametrize("after", [2, 5, 8])
def test_a_resumed_run_equals_one_never_stopped(after, sites, fitted, tmp_path, capsys):
    """Stopped in the first search, in the first refit, or in a later case."""
    source = Source(files=tuple(sites), target="diagnosis", id_column="patient")
    settings = Settings(features=2, seeds=2, splits=1, rounds=3, tuning_rounds=3)
    path = tmp_path / "run"
    interrupted(source, settings, path, after)
    assert run_folder.read_facts(path)["status"] == "stopped"
    assert main(["predict", str(path), sites[0]]) == 2
    assert f"fedsift resume {path}" in capsys.readouterr().err
    assert main(["resume", str(path), "--quiet"]) == 0
    assert "Next:" in capsys.readouterr().out
    whole, resumed = (load_file(p / "model.safetensors") for p in (fitted, path))
    for name, value in whole.items():
        assert torch.equal(value, resumed[name])
    assert (path / "features.csv").read_text() == (fitted / "features.csv").read_text()
    assert main(["resume", str(path)]) == 0
    assert "finished already" in capsys.readouterr().out


def test_rerun_gives_the_same_and_says_when_not(sites, fitted, tmp_path, capsys, monkeypatch):
    again = tmp_path / "again"
    assert main(["rerun", str(fitted), "--out", str(again), "--quiet"]) == 0
    assert "to the last bit" in capsys.readouterr().out
    monkeypatch.setitem(workflows.VERSIONS, "torch", "99")
    options = ("--out", str(again), "--overwrite", "--quiet", "--json")
    assert main(["rerun", str(fitted), *options]) == 0
    assert shown_json(capsys)["versions"]["torch"][1] == "99"
    facts = runs.load_run(fitted).facts
    worse = facts | {"results": facts["results"] | {"bytes_up": 1}}
    run_folder.write_facts(again, worse | {"source": facts["source"]})
    assert main(["rerun", str(again), "--out", str(tmp_path / "third"), "--quiet"]) == 3
    assert "differs" in (said := capsys.readouterr().out)
    assert "bytes_up" in said
    content = Path(sites[0]).read_bytes()
    try:
        Path(sites[0]).write_bytes(content.replace(b"sick", b"well", 1))
        assert main(["rerun", str(fitted), "--out", str(tmp_path / "fourth"), "--quiet"]) == 2
        assert "have changed" in capsys.readouterr().err
    finally:
        Path(sites[0]).write_bytes(content)


def test_resume_goes_on_with_a_comparison_and_notices_other_data(tmp_path, capsys, monkeypatch):
    files = write_sites(tmp_path)
    stopped = tmp_path / "run"
    args = (*files, "--target", "diagnosis", "--id", "patient", "--features", "2", *TINY)

    def stop(*_args, **_more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workflows, "method_results", stop)
        assert main(["compare", *args, "--methods", "fedavg,fedht", "--out", str(stopped)]) == 130
    assert capsys.readouterr().err.strip() == f"stopped; go on with: fedsift resume {stopped}"
    text = Path(files[0]).read_text()
    Path(files[0]).write_text(text.replace("berlin0,", "berlin99,"))
    assert main(["resume", str(stopped)]) == 2
    assert "have changed" in capsys.readouterr().err
    Path(files[0]).write_text(text)
    assert main(["resume", str(stopped), "--json", "--quiet"]) == 0
    assert list(shown_json(capsys)["methods"]) == ["fedavg", "fedht"]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_predict_needs_the_chosen_features_only(fitted, sites, tmp_path, capsys):
    assert main(["predict", str(fitted), sites[0]]) == 0
    table = rows_of(capsys.readouterr().out)
    assert [row["id"] for row in table[:2]] == ["berlin0", "berlin1"]
    assert {row["predicted_diagnosis"] for row in table} <= {"sick", "well"}
    for row in table:
        chances = {name: float(row[f"probability_{name}"]) for name in ("sick", "well")}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert max(chances, key=lambda k: chances[k]) == row["predicted_diagnosis"]
    needed = runs.load_run(fitted).needed
    assert len(needed) == 2
    with Path(sites[0]).open() as file:
        lines = [",".join(row[name] for name in needed[::-1]) for row in csv.DictReader(file)]
    (tmp_path / "few.csv").write_text("\n".join([",".join(needed[::-1]), *lines]) + "\n")
    out = tmp_path / "predictions.csv"
    assert main(["predict", str(fitted), str(tmp_path / "few.csv"), "--out", str(out)]) == 0
    again = rows_of(out.read_text())
    assert [r["probability_sick"] for r in again] == [r["probability_sick"] for r in table]
    assert main(["predict", str(fitted), str(tmp_path / "few.csv"), "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err


def coefficients_of(path: Path, capsys) -> tuple[float, dict[str, float]]:
    assert main(["export", str(path), "--to", "coefficients", "--overwrite"]) == 0
    capsys.readouterr()
    rows = rows_of((path / "coefficients.csv").read_text())
    values = {row["feature"]: float(row["coefficient"]) for row in rows}
    return values.pop("(intercept)"), values


def test_exported_coefficients_predict_what_predict_does(fitted, sites, capsys):
    """In original units: log-odds of the second class = b + Σ w x."""
    intercept, slopes = coefficients_of(fitted, capsys)
    assert main(["predict", str(fitted), sites[1]]) == 0
    table = rows_of(capsys.readouterr().out)
    with Path(sites[1]).open() as file:
        for row, predicted in zip(csv.DictReader(file), table, strict=True):
            score = intercept + sum(w * float(row[name]) for name, w in slopes.items())
            chance = 1 / (1 + math.exp(-score))
            assert chance == pytest.approx(float(predicted["probability_well"]), abs=1e-5)


@pytest.mark.parametrize("standardise", ["feature", "none"])
def test_exported_coefficients_of_a_measured_target(standardise, tmp_path, capsys):
    files = write_sites(tmp_path, "response")
    path = tmp_path / "run"
    common = ("--target", "response", "--id", "patient", "--features", "2", *TINY, "--splits", "0")
    assert main(["fit", *files, *common, "--standardise", standardise, "--out", str(path)]) == 0
    intercept, slopes = coefficients_of(path, capsys)
    assert main(["predict", str(path), files[0]]) == 0
    table = rows_of(capsys.readouterr().out)
    with Path(files[0]).open() as file:
        for row, predicted in zip(csv.DictReader(file), table, strict=True):
            value = intercept + sum(w * float(row[name]) for name, w in slopes.items())
            assert value == pytest.approx(float(predicted["predicted_response"]), abs=1e-4)


def test_exported_state_is_that_of_a_linear_layer(fitted, tmp_path, capsys):
    path = tmp_path / "layer.safetensors"
    assert main(["export", str(fitted), "--to", str(path)]) == 0
    layer = torch.nn.Linear(6, 1)
    layer.load_state_dict(load_file(path))
    run = runs.load_run(fitted)
    assert torch.equal(layer.weight.data, run.params["weight"])


@pytest.mark.parametrize("how", ["feature", "array"])
def test_exported_onnx_gives_the_probabilities(how, fitted, sites, tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = fitted
    if how == "array":
        path = tmp_path / "run"
        common = ("--target", "diagnosis", "--id", "patient", "--features", "2", *TINY)
        more = ("--splits", "0", "--standardise", "array", "--out", str(path))
        assert main(["fit", *sites, *common, *more]) == 0
    file = tmp_path / "model.onnx"
    assert main(["export", str(path), "--to", str(file)]) == 0
    assert "Skipping" not in capsys.readouterr().err
    run = runs.load_run(path)
    meta = {entry.key: json.loads(entry.value) for entry in onnx.load(file).metadata_props}
    assert meta["features"] == list(run.needed)
    x = torch.randn(5, len(run.needed)) * 5 + 3
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy()})
    expected = run.predict_probability(x, run.needed)
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-6, rtol=1e-5)


def test_notes_on_data_are_single_lines(tmp_path, capsys):
    lines = ["a,b,constant,y"] + [f"{i % 7},{i % 3},1,{'pq'[i % 2]}" for i in range(20)]
    (tmp_path / "site.csv").write_text("\n".join(lines) + "\n")
    args = (
        "--target",
        "y",
        "--features",
        "1",
        "--seeds",
        "2",
        "--rounds",
        "2",
        "--tuning-rounds",
        "2",
    )
    out = ("--splits", "0", "--out", str(tmp_path / "run"))
    assert main(["fit", str(tmp_path / "site.csv"), *args, *out]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1
    assert notes[0].startswith("note: ")
    assert "constant" in notes[0]


def test_early_stop_ends_the_refit(sites, tmp_path):
    """At the latest it ends when the ridge regression has converged, after some hundred rounds."""
    options = ("--target", "diagnosis", "--id", "patient", "--features", "2", "--seeds", "2")
    short = ("--splits", "0", "--rounds", "3", "--tuning-rounds", "3000", "--early-stop", "2")
    path = tmp_path / "run"
    assert main(["fit", *sites, *options, *short, "--quiet", "--out", str(path)]) == 0
    assert run_folder.read_facts(path)["settings"]["early_stop"] == 2
    records = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    last = max(record["round"] for record in records if record["stage"] == "refit")
    assert 10 <= last < 3000


def test_a_request_that_cannot_work_leaves_the_old_run_alone(tmp_path) -> None:
    """The messages are refused before anything of the run in the folder is removed."""
    run = tmp_path / "old"
    run.mkdir()
    (run / "run.json").write_text('{"version": 1, "status": "done"}')
    (run / "model.safetensors").write_text("precious")
    command = f"--demo golub --method fedht --messages paper --out {run} --overwrite"
    assert main(["fit", *command.split()]) == 2
    assert (run / "model.safetensors").read_text() == "precious"


def test_only_the_command_that_is_asked_for_has_parameters(monkeypatch):
    from typer.main import get_command

    whole = get_command(commands.app).commands  # type: ignore[attr-defined]
    some = get_command(asked(commands.app, ["predict", "run"])).commands  # type: ignore[attr-defined]
    assert list(some) == list(whole)
    for name, command in some.items():
        assert command.help == whole[name].help
        shown = [p.name for p in command.params]
        assert shown == ([p.name for p in whole[name].params] if name == "predict" else [])
    monkeypatch.setenv("_FEDSIFT_COMPLETE", "complete_bash")
    assert asked(commands.app, []) is commands.app
