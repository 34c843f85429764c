"""What people do wrong first, and whether the answer says what to do next."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from fedsift.cli import main
from fedsift.run_folder import VERSION, write_facts

TINY = ("--seeds", "2", "--splits", "0", "--rounds", "2", "--tuning-rounds", "2")
GENES = [f"gene{j}" for j in range(6)]


def site(name: str, rows: int = 20) -> list[list[str]]:
    """Return the lines of a site's file: an id, six genes, a class that two of them decide."""
    x = np.random.default_rng(len(name)).normal(6, 1.5, (rows, 6))
    classes = np.where(x[:, 1] > x[:, 4], "sick", "well")
    lines = [
        [f"{name}{row}", *(f"{value:.4f}" for value in x[row]), str(classes[row])]
        for row in range(rows)
    ]
    return [["patient", *GENES, "diagnosis"], *lines]


def written(path: Path, lines: list[list[str]], separator: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(lines)
    path.write_text(text.getvalue())
    return path.name


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch) -> None:
    """Two good files, and one for each mistake."""
    monkeypatch.chdir(tmp_path)
    for name in ("berlin", "paris"):
        written(tmp_path / f"{name}.csv", site(name))
    written(tmp_path / "semicolons.csv", site("semicolons"), ";")
    written(tmp_path / "copy.csv", site("berlin"))
    for name, value in (("allsick", "sick"), ("allwell", "well")):
        lines = site(name)
        written(tmp_path / f"{name}.csv", [lines[0], *([*row[:-1], value] for row in lines[1:])])
    lines = site("words")
    lines[3][2] = "low"
    written(tmp_path / "words.csv", lines)
    lines = site("gap")
    lines[5][-1] = lines[9][-1] = ""
    written(tmp_path / "gap.csv", lines)
    lines = site("numbered")
    numbered = [["nr", *lines[0][1:-1], "sick"]]
    for number, row in enumerate(lines[1:]):
        numbered.append([str(700 + 3 * number), *row[1:-1], str(int(row[-1] == "sick"))])
    written(tmp_path / "numbered.csv", numbered)
    (tmp_path / "old").mkdir()
    write_facts(tmp_path / "old", {"version": VERSION, "status": "done"})


REFUSED = {
    "misspelt target": (
        "berlin.csv paris.csv --target diagnose --id patient --features 2",
        ("'diagnose'", "did you mean 'diagnosis'?"),
    ),
    "a gene as target, the diagnosis among the features": (
        "berlin.csv paris.csv --target gene3 --id patient --features 2",
        ("column 'diagnosis'", "--drop diagnosis", "--target diagnosis"),
    ),
    "an id as target": (
        "berlin.csv paris.csv --target patient --features 2",
        ("'patient'", "looks like an id", "choose another target"),
    ),
    "one class in all": (
        "allsick.csv --target diagnosis --id patient --features 2",
        ("same value (sick) in all 20 rows", "choose another"),
    ),
    "text among numbers": (
        "berlin.csv words.csv --target diagnosis --id patient --features 2",
        ("words.csv, line 4, column 'gene1'", "'low'", "leave empty what is missing"),
    ),
    "semicolons": (
        "semicolons.csv --target diagnosis --id patient --features 2",
        ("no comma but 7 semicolons", "--separator ';'"),
    ),
    "one patient at two sites": (
        "berlin.csv copy.csv --target diagnosis --id patient --features 2",
        ("'berlin0'", "such ids: 20", "Remove one of each pair"),
    ),
    "no diagnosis for some": (
        "gap.csv --target diagnosis --id patient --features 2",
        ("gap.csv, line 6", "2 of 20 rows", "remove the rows"),
    ),
    "negative density": (
        "berlin.csv --target diagnosis --id patient --density -0.1",
        ("--density is -0.1", "greater than 0", "at most 1"),
    ),
    "more features than there are": (
        "berlin.csv --target diagnosis --id patient --features 20",
        ("20 of 6 features", "ask for 1 to 6"),
    ),
    "an option that is not there": (
        "berlin.csv --target diagnosis --id patient --feature 2",
        ("--feature", "--features", "fedsift fit --help"),
    ),
    "a GPU": (
        "berlin.csv --target diagnosis --id patient --features 2 --device cuda",
        ("--device", "on processors alone", "leave it out"),
    ),
    "the folder of another run": (
        "berlin.csv paris.csv --target diagnosis --id patient --features 2 --out old",
        ("old exists already", "--out", "--overwrite"),
    ),
    "a misspelt file": (
        "berlin.csv pariss.csv --target diagnosis --id patient --features 2",
        ("pariss.csv: no such file", "did you mean 'paris.csv'?"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_answer_is_one_line_with_the_thing_and_the_next_action(name, capsys):
    words, needles = REFUSED[name]
    assert main(["fit", *words.split(), *TINY]) == 2
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert out == ""
    for needle in needles:
        assert needle in line


def test_a_misspelt_command_is_told_once(capsys):
    assert main(["fitt", "--demo", "golub"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.lower().count("did you mean 'fit'?") == 1
    assert "fedsift --help" in line


NOTED = {
    "one class a site": (
        "allsick.csv allwell.csv --id patient --target diagnosis",
        ("one class of 'diagnosis' only: 'allsick', 'allwell'", "what tells sites apart"),
    ),
    "equal rows at two sites, without ids": (
        "berlin.csv copy.csv --drop patient --target diagnosis",
        ("20 rows with all values equal", "berlin and copy (20)", "remove one of each pair"),
    ),
    "a number of the patient as target": (
        "numbered.csv --target nr",
        ("target 'nr' has another whole number in each row", "predict another column"),
    ),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_can_be_done_but_should_not_is_noted(name, capsys):
    words, needles = NOTED[name]
    assert main(["fit", *words.split(), "--features", "2", *TINY]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert any(all(needle in note for needle in needles) for note in notes)


def test_texts_are_classes_and_there_is_nothing_to_say(capsys):
    words = "berlin.csv paris.csv --target diagnosis --id patient --features 2"
    assert main(["fit", *words.split(), *TINY]) == 0
    out, err = capsys.readouterr()
    assert "sick or well" in out
    assert err == ""
