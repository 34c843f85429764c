"""The page on own data: every command of it runs, one after the other."""

import csv
import re
import shlex
from pathlib import Path

import torch

from fedsift.cli import main
from fedsift.data import golub38, iid, read_sites
from tests.test_typical_mistakes import site, written

PAGE = Path(__file__).parents[1] / "docs" / "own-data.md"
TINY = ["--seeds", "2", "--splits", "1", "--rounds", "3", "--tuning-rounds", "3"]


def test_the_page_leads_from_files_to_predictions(tmp_path, monkeypatch, capsys):
    """Less thorough than on the page, so that it is quick; the new rows have no diagnosis."""
    monkeypatch.chdir(tmp_path)
    for name in ("berlin", "paris", "rome"):
        written(tmp_path / f"{name}.csv", site(name))
    written(tmp_path / "new.csv", [row[:-1] for row in site("a new hospital", 7)])
    commands = re.findall(r"^    fedsift (.+)$", PAGE.read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["inspect", "fit", "report", "predict"]
    shown = []
    for command in commands:
        words = shlex.split(command)
        assert main(words + TINY * (words[0] == "fit")) == 0
        shown.append(capsys.readouterr().out)
    assert "fedsift fit berlin.csv paris.csv rome.csv" in shown[0]
    assert "2 features of 6" in shown[1]
    assert "2 features of 6" in shown[2]
    with Path("predictions.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == 7
    assert {row["predicted_diagnosis"] for row in table} <= {"sick", "well"}


def test_a_demo_as_site_files_has_the_rows_of_the_demo(tmp_path, capsys):
    folder = str(tmp_path / "sites")
    assert main(["demo", folder, "--sites", "3", "--seed", "2"]) == 0
    files = capsys.readouterr().out.split()
    assert files == [str(tmp_path / "sites" / f"site_{number}.csv") for number in (1, 2, 3)]
    read, spread = read_sites(files, "diagnosis", id_column="id"), iid(golub38(), 3, 2)
    assert (read.sites, read.rows, read.features) == (spread.sites, spread.rows, spread.features)
    assert torch.equal(read.x, spread.x)
    assert torch.equal(read.y, spread.y)
    assert main(["demo", folder]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["demo", folder, "--demo", "synthetic", "--overwrite"]) == 2
