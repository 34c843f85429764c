"""Several labels from files to files: reading, inspection, plans, a run and its predictions."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from fedsift.cli import main
from fedsift.data import DataError, FederatedData, open_mapped, read_sites, save_mapped
from fedsift.deployment.demo import write_sites
from fedsift.exports import coefficients, predictions
from fedsift.inspection import check_file, inspect_files
from fedsift.plans import read_plan
from fedsift.runs import load_run
from fedsift.workflows import Study
from tests.laws import bit_equal, rows

pytestmark = pytest.mark.filterwarnings("ignore::fedsift.data.DataWarning")
QUICK = ("--features=3", "--seeds=2", "--rounds=2", "--tuning-rounds=2", "--quiet", "--id=id")


@pytest.fixture(scope="module")
def files(tmp_path_factory: Any) -> list[str]:
    data = rows("multilabel", sizes=(24, 26), d=6)
    return [str(file) for file in write_sites(data, tmp_path_factory.mktemp("sites"))]


@pytest.fixture(scope="module")
def run(files: list[str], tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs") / "one"
    words = ["fit", *files, "--target", "a, b", *QUICK, "--splits=1", f"--out={folder}"]
    assert main(words) == 0
    return folder


def changed(file: str, **columns: list[Any]) -> str:
    """Write a site's file with other columns."""
    out = Path(file).with_name(f"changed-{Path(file).name}")
    frame = pl.read_csv(file, infer_schema=False)
    frame.with_columns(**{k: pl.Series(v, dtype=pl.String) for k, v in columns.items()}).write_csv(
        out
    )
    return str(out)


def test_files_give_the_labels_that_were_written(files: list[str]) -> None:
    data, known = read_sites(files, "a, b", id_column="id"), rows("multilabel", (24, 26), d=6)
    assert (data.outcome, data.classes, data.target) == ("multilabel", ("a", "b"), "a,b")
    assert torch.equal(data.y, known.y)
    assert data.unknown == {name: int((known.y[:, k] < 0).sum()) for k, name in enumerate("ab")}
    assert any("do not know a label" in note for note in data.notes)
    words = changed(files[0], a=["Yes", "no", ""] * 8)
    mixed = read_sites([words, files[1]], ["a", "b"], id_column="id")
    assert mixed.y[:24, 0].tolist() == [1, 0, -1] * 8
    one = read_sites(files, "a", id_column="id", drop=["b"], outcome="multilabel")
    assert torch.equal(one.y, data.y[:, :1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target=a,x0",), "line 2: the label 'x0' is '"),
        (("--target=a,a",), "the target 'a,a' names 'a' twice; name each label once"),
        (("--target=a,",), "the target 'a,' has no name between commas"),
        (("--target=a,nope",), "no column 'nope' (target)"),
        (("--target=a,b", "--covariates=b"), "column 'b' is named for 'target', 'covariates'"),
        (("--target=a,b", "--outcome=binary"), "no column 'a,b' (target)"),
        (("--target=a,b", "--method=oneshot"), "this target is multilabel: use eflops"),
    ],
)
def test_mistakes_are_one_line(
    files: list[str], options: tuple[str, ...], said: str, capsys: Any
) -> None:
    assert main(["fit", *files, *QUICK, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_label_with_one_value_at_all_sites_is_refused(files: list[str]) -> None:
    same = [changed(file, b=["1", ""] * (n // 2)) for file, n in zip(files, (24, 26), strict=True)]
    with pytest.raises(DataError, match="the label 'b' is 1 in all rows of all sites; leave it"):
        read_sites(same, ["a", "b"], id_column="id")


def test_inspection_counts_each_label(files: list[str], capsys: Any) -> None:
    data = read_sites(files, ["a", "b"], id_column="id")
    facts = inspect_files(files, target=["a", "b"], id_column="id")["target"]
    assert facts["classes"] == data.class_sizes
    assert facts["unknown"] == data.unknown
    for site in data.sites:
        assert facts["by_site"][site] == data.site(site).class_sizes
    assert main(["inspect", *files, "--target=a,b", "--id=id"]) == 0
    told = capsys.readouterr().out
    assert f"Rows that do not know a label count for the others: a 1, b {data.unknown['b']}" in told
    assert "--target a,b" in told
    bad = inspect_files([changed(files[0], b=["maybe"] * 24)], target="a,b")["target"]
    assert (bad["problem"], bad["outcome"]) == ("labels", None)
    assert "line 2: the label 'b' is 'maybe'" in bad["reason"]


def test_a_plan_holds_the_labels_and_a_site_checks_them(
    files: list[str], tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "plan.toml"
    words = ["plan", *files, "--target=a,b", "--features=3", "--id=id", f"--out={out}", "--quiet"]
    assert main(words) == 0
    held = read_plan(out)
    assert (held.data.outcome, held.data.classes) == ("multilabel", ("a", "b"))
    assert torch.equal(held.read(files).y, read_sites(files, "a,b", id_column="id").y)
    assert check_file(Path(files[0]), held.data)["fits"]
    wrong = check_file(Path(changed(files[0], b=["maybe"] * 24)), held.data)
    told = [one for one in wrong["findings"] if one["state"] == "wrong"]
    assert [(one["what"], one["text"]) for one in told] == [
        ("target", "b: not a label in every row")
    ]
    assert "line 2: the label 'b' is 'maybe', not 1 or yes, 0 or no" in told[0]["here"]
    same = check_file(Path(changed(files[0], b=["1"] * 23 + [""])), held.data)
    assert same["fits"]  # another site may have the other
    assert {"what": "target", "state": "note", "text": "b: no row of '0'", "here": ""} in (
        same["findings"]
    )
    capsys.readouterr()
    assert main(["fit", "--plan", str(out), *files, "--target=b,a", "--dry-run"]) == 2
    assert "--target b,a contradicts" in capsys.readouterr().err


def test_a_run_predicts_a_probability_for_each_label(
    run: Path, files: list[str], capsys: Any
) -> None:
    fitted = load_run(run)
    table = list(csv.DictReader(predictions(fitted, Path(files[0])).splitlines()))
    assert list(table[0]) == ["id", "probability_a", "probability_b"]
    data = read_sites([files[0]], "a,b", id_column="id")
    chance = fitted.predict_probability(data.x, data.features)
    told = [[float(row[f"probability_{name}"]) for name in "ab"] for row in table]
    np.testing.assert_allclose(told, chance.numpy(), rtol=1e-5)
    lines = list(csv.DictReader(coefficients(fitted).splitlines()))
    by_name = {row["feature"]: row for row in lines}
    names = [feature.name for feature in fitted.features]
    slopes = np.array([[float(by_name[n][f"coefficient_{k}"]) for n in names] for k in "ab"])
    start = [float(by_name["(intercept)"][f"coefficient_{k}"]) for k in "ab"]
    x = data.x[:, [data.features.index(name) for name in names]].double().numpy()
    np.testing.assert_allclose(1 / (1 + np.exp(-(x @ slopes.T + start))), chance, atol=1e-5)
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    told_text = capsys.readouterr().out
    assert "chosen to predict a and b" in told_text
    assert "Means over labels: accuracy" in told_text
    page = (run / "report.html").read_text()
    assert "Scores by label" in page
    assert "Values by label and site" in page


def test_a_finished_run_is_told_as_json_and_not_done_again(run: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main(["resume", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["labels"]) == {"a", "b"}
    assert set(told["features"][0]["weights"]) == {"a", "b"}


def test_a_run_that_was_stopped_goes_on_to_the_same_model(
    run: Path, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    stopped, fits = tmp_path / "run", Study.fits

    def interrupt(study: Study, method: str, cases: Any) -> Any:
        if method == "eflops":
            fits(study, method, cases[:1])
        raise KeyboardInterrupt

    words = ["fit", *files, "--target", "a, b", *QUICK, "--splits=1", f"--out={stopped}"]
    with monkeypatch.context() as patched:
        patched.setattr(Study, "fits", interrupt)
        assert main(words) == 130
    assert f"fedsift resume {stopped}" in capsys.readouterr().err
    assert main(["resume", str(stopped), "--quiet"]) == 0
    assert bit_equal(load_run(stopped).params, load_run(run).params)


def test_a_site_is_forgotten_by_a_fit_of_the_others(
    files: list[str], tmp_path: Path, capsys: Any
) -> None:
    data = rows("multilabel", sizes=(24, 26, 22), d=6)
    three = [str(file) for file in write_sites(data, tmp_path / "sites")]
    words = ["--target", "a, b", *QUICK, "--splits=0"]
    assert main(["fit", *three, *words, f"--out={tmp_path / 'run'}"]) == 0
    assert main(["fit", *three[:2], *words, f"--out={tmp_path / 'two'}"]) == 0
    gone = Path(three[2]).stem
    assert main(["forget", str(tmp_path / "run"), "--site", gone, "--method", "retrain"]) == 0
    assert bit_equal(load_run(tmp_path / "run").params, load_run(tmp_path / "two").params)
    assert main(["verify", str(tmp_path / "run")]) == 0


def test_labels_stay_in_a_mapped_folder(tmp_path: Path) -> None:
    data = rows("multilabel", (24, 26), d=6)
    stored = save_mapped(data, tmp_path / "cohort")
    assert torch.equal(stored.y, data.y)
    assert open_mapped(tmp_path / "cohort").fingerprint() == data.fingerprint()


def test_classes_are_not_there_to_be_forgotten_or_skewed(run: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main(["forget", str(run), "--class", "a"]) != 0
    assert "no class is called 'a'" in capsys.readouterr().err
    site = Path(json.loads((run / "run.json").read_text())["source"]["files"][0]).stem
    assert main(["forget", str(run), "--site", site, "--method", "fumegs"]) != 0
    assert "use --method retrain" in capsys.readouterr().err


def test_data_that_contradict_themselves_are_refused() -> None:
    data = rows("multilabel", (24, 26), d=6)
    with pytest.raises(DataError, match="y does not fit the outcome 'multilabel' with 2 classes"):
        FederatedData(
            data.x, data.y[:, :1], data.weight, data.offsets, data.sites, data.features,
            data.rows, "multilabel", data.classes,
        )  # fmt: skip
