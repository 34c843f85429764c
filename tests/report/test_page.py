"""The page says what the run says, whatever the names; equal runs have equal pages."""

from __future__ import annotations

import json
import math
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.cli import main
from fedsift.data import FederatedData
from fedsift.reporting import fit_report, page_of, to_text
from fedsift.reporting.commands import fit_command
from fedsift.reporting.page import Page, to_html
from fedsift.reporting.svg import Axis, Line, line_chart, shortened, thinned, ticks
from fedsift.runs import load_run
from fedsift.settings import Settings
from fedsift.sources import Source
from fedsift.visible import visible
from fedsift.workflows import run_fit
from tests.report.conftest import CLASSES, FEATURES, SITES, TINY, hostile_data

VOID = {"meta", "link", "circle", "rect", "line", "path", "polyline", "br"}


class Reader(HTMLParser):
    """The tags in use and the text; fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_names_are_shown_and_never_obeyed(hostile: Path) -> None:
    page = (hostile / "report.html").read_text()
    found = read(page)
    assert not {"script", "img", "iframe", "object", "embed"} & set(found.tags)
    assert found.tags.count("h1") == 1
    assert not any(name.startswith("on") or name == "src" for name, _ in found.attributes)
    assert {value for name, value in found.attributes if name == "href"} <= {
        "data:,",
        *(f"#{value}" for name, value in found.attributes if name == "id"),
    }
    for name in (*SITES, *CLASSES):
        assert visible(name) in found.text
    for feature in load_run(hostile).features:
        assert visible(feature.name) in found.text
    signs = set(page) - {"\n"}
    assert not any(ord(sign) < 32 or sign == "\u202e" for sign in signs)


def test_every_chart_has_words_and_numbers(hostile: Path) -> None:
    page = (hostile / "report.html").read_text()
    found = read(page)
    charts = found.tags.count("svg")
    assert charts >= 8
    assert found.tags.count("title") == charts + 1
    assert found.tags.count("desc") == charts
    assert found.tags.count("details") == charts
    assert found.attributes.count(("role", "img")) == charts


def test_the_terminal_obeys_no_name(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(hostile)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"\x1b" in shown
    assert to_text(fit_report(load_run(hostile))) == (hostile / "report.txt").read_text()
    assert main(["predict", str(hostile), "\x1b[2J.csv"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_equal_runs_have_equal_pages(hostile: Path, tmp_path: Path) -> None:
    fedsift.fit(hostile_data(), features=3, out=tmp_path / "again", **TINY)
    assert (tmp_path / "again/report.html").read_bytes() == (hostile / "report.html").read_bytes()


def test_it_is_written_where_asked_and_not_over_another(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "genes.html"
    assert main(["report", str(hostile), "-o", str(file)]) == 0
    assert file.read_text() == page_of(hostile)
    capsys.readouterr()
    assert main(["report", str(hostile), "-o", str(file)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["report", str(hostile), "-o", str(file), "--overwrite"]) == 0


def test_a_folder_of_answers_is_named_for_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.txt").write_text("equilibria")
    assert main(["report", str(tmp_path)]) == 2
    assert f"read {tmp_path / 'report.txt'}" in capsys.readouterr().err


def test_the_command_gives_the_settings_again() -> None:
    """The command on the page, read by the command line, is the request that the run came from."""
    from typer.testing import CliRunner

    source = Source(demo="golub", sites=4, partition="dirichlet_labels", alpha=0.5)
    settings = Settings(
        features=5,
        standardise="array",
        seeds=3,
        min_cell=4,
        weights="uniform",
        validation="leave-one-site-out",
        knobs={"entropy": 0.02},
    )
    facts = {
        "source": source.model_dump(mode="json"),
        "settings": settings.model_dump(),
        "plan": {"engine": "vectorized"},
    }
    command = fit_command(facts)
    assert command is not None
    from fedsift.cli import commands

    asked: list[Any] = []

    def keep(request: Any, _command: str, methods: list[str], *_rest: Any) -> None:
        asked.append((request.source(), request.settings(request.source(), methods[0])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "_study", keep)
        done = CliRunner().invoke(commands.app, shlex.split(command)[1:])
    assert done.exception is None
    assert asked == [(source, settings)]
    assert fit_command(facts | {"source": None}) is None


def test_a_measured_target_and_one_without_test_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(80, 6))
    y = 3 * x[:, 0] - 2 * x[:, 1] + 10 + 0.1 * random.normal(size=80)
    data = FederatedData.from_arrays(x, y, sites=["a", "b"] * 40, target="yield")
    fedsift.fit(data, features=2, out=tmp_path / "run", **TINY)
    text = read((tmp_path / "run/report.html").read_text()).text
    assert "correlation with the target" in text
    assert "typical error" in text
    fedsift.fit(data, features=2, out=tmp_path / "blind", **{**TINY, "splits": 0})
    text = read((tmp_path / "blind/report.html").read_text()).text
    assert "how well the model predicts is not known" in text
    fedsift.compare(
        data, ["eflops", "fedavg"], features=2, out=tmp_path / "both",
        **{k: v for k, v in TINY.items() if k != "beside"},
    )  # fmt: skip
    text = read((tmp_path / "both/report.html").read_text()).text
    assert "fedavg" in text
    assert "too good" in text


def test_a_wide_run_has_a_small_page(tmp_path: Path) -> None:
    """7129 features, half of them kept, in a page of at most 5 MB."""
    random = np.random.default_rng(2)
    names = [f"gene_{n:05d}" for n in range(7129)]
    data = FederatedData.from_arrays(
        random.normal(size=(24, 7129)), ["p", "q"] * 12, sites=["a"] * 12 + ["b"] * 12,
        features=names,
    )  # fmt: skip
    source, settings = None, Settings(density=0.5, seeds=1, splits=0, rounds=1, tuning_rounds=1)
    from fedsift.workflows import split_cases

    run_fit(split_cases(data, settings), settings, source=source, path=tmp_path / "run", beside=())
    page = page_of(tmp_path / "run")
    assert len(page.encode()) < 5e6
    assert "more in features.csv" in page


def test_ticks_are_round_and_within() -> None:
    for axis in (Axis("", 0, 1), Axis("", -3.2, 17.9), Axis("", 1e-3, 40, logarithmic=True)):
        found = ticks(axis)
        assert 2 <= len(found) <= 8
        assert all(axis.low - 1e-9 <= value <= axis.high + 1e-9 for value in found)
    assert ticks(Axis("", 0, 2.1, whole=True)) == [0, 1, 2]


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    points = [(float(n), math.sin(n)) for n in range(5000)]
    kept = thinned(points)
    assert len(kept) <= 201
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert shortened("abcdef", 4) == "abc…"


def test_charts_escape_their_texts() -> None:
    chart = line_chart(
        "<b>", '"&', [Line("<i>", [0, 1], [0, 1]), Line("'", [0, 1], [1, 0], 1)],
        Axis("<x>", 0, 1), Axis("<y>", 0, 1),
    )  # fmt: skip
    assert {"b", "i", "x", "y"}.isdisjoint(read(chart).tags)
    page = Page(title="<title>", subtitle="", summary="{{ 7 * 7 }}")
    assert "&lt;title&gt;" in to_html(page)
    assert "{{ 7 * 7 }}" in to_html(page)


def test_facts_of_the_run_are_sealed(hostile: Path) -> None:
    facts = json.loads((hostile / "run.json").read_text())
    assert {"held_out", "profiles", "agreement"} <= facts.keys()
    assert len(facts["profiles"]) == 3
    assert all(name in FEATURES for name in (p["name"] for p in facts["profiles"]))


def test_a_site_that_the_model_was_fitted_without_is_in_the_page(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedsift.fit(hostile_data(), features=3, validation="leave-one-site-out", out=out, **TINY)
    text = read((out / "report.html").read_text()).text
    assert "Sites that the model was fitted without" in text
    assert "extra loss" in text


def test_times_have_events_and_no_curves(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 4))
    months = draw.exponential(20.0 * np.exp(-x[:, 0]))
    data = FederatedData.from_arrays(
        x, months < 24, time=months.clip(max=24), sites=["a", "b"] * 30, target="relapse"
    )
    fedsift.fit(data, features=1, seeds=2, rounds=5, splits=2, beside=(), out=tmp_path / "run")
    text = read((tmp_path / "run/report.html").read_text()).text
    assert "Samples and events at each site" in text
    assert "a risk is no time" in text
    assert "no site has enough samples" not in text
