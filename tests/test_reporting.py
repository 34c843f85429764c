"""Tables and pictures: they say what the run says, in width and in words."""

import json
from typing import Any, cast

import pytest
from matplotlib.patches import Rectangle
from PIL import Image

import fedsift
from fedsift.data import FederatedData, golub38, iid
from fedsift.reporting import compare_report, fit_report, plots, to_text, write_report
from fedsift.reporting.tables import direction, duration, size
from fedsift.runs import Run, load_run
from fedsift.settings import Settings
from fedsift.sources import Source

TINY: dict[str, Any] = {"seeds": 2, "splits": 2, "rounds": 3, "tuning_rounds": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    data = iid(golub38(), 4, 0)
    out = tmp_path_factory.mktemp("report") / "run"
    return fedsift.fit(data, features=3, standardise="array", out=out, **TINY)


def test_the_report_names_the_genes_and_the_scores(run):
    text = to_text(fit_report(run))
    for feature in run.features:
        assert feature.name in text
        assert feature.description[:20] in text
    assert f"{run.results['test_accuracy']['mean']:.0%}" in text
    assert "always guessing ALL" in text
    # 6 of the 8 held-out patients of every split are ALL, though 27 of all 38 are.
    assert "75%" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_narrow_terminal_still_shows_every_figure(run):
    text = to_text(fit_report(run), 80)
    assert "…" not in text.replace("…\n", "")
    for feature in run.features:
        assert feature.name in text
        assert f"{feature.weight:+.2f}" in text


def test_the_loaded_run_reports_the_same(run):
    assert run.path is not None
    assert to_text(fit_report(load_run(run.path))) == to_text(fit_report(run))
    assert (run.path / "report.txt").read_text() == to_text(fit_report(run))


def test_pictures_are_written_and_not_empty(run):
    files = [path for path in write_report(run.path) if path.suffix == ".png"]
    assert [path.name for path in files] == ["inclusion.png", "training.png"]
    for path in files:
        with Image.open(path) as image:
            assert min(image.size) > 300
            assert len(set(image.convert("L").tobytes())) > 5


def test_the_inclusion_plot_shows_features_that_were_not_kept(run):
    candidates = run.facts["candidates"]
    assert {c["name"] for c in candidates if c["chosen"]} == {f.name for f in run.features}
    assert any(not c["chosen"] for c in candidates)
    axes = plots.inclusion(run).axes[0]
    widths = [cast("Rectangle", bar).get_width() for bar in axes.patches]
    assert widths == pytest.approx([c["inclusion_probability"] for c in candidates[: plots.BARS]])
    assert widths == sorted(widths, reverse=True)
    colours = {bar.get_facecolor() for bar in axes.patches}
    assert len(colours) == 2


def test_the_training_plot_has_the_history_of_the_reported_fit(run):
    records = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    reported = [r for r in records if r["case"] == "all rows"]
    figure = plots.training(run, reported)
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "density", "multiplier"]
    drawn: Any = figure.axes[2].lines[0].get_ydata()
    assert list(drawn) == [r["multiplier"] for r in reported if "multiplier" in r]


def test_methods_without_gates_are_drawn_without_their_panels(tmp_path):
    data = iid(golub38(), 2, 0).select_features(range(5))
    options: dict[str, Any] = {**TINY, "splits": 0, "method": "fedavg", "standardise": "array"}
    made = fedsift.fit(data, features=2, out=tmp_path / "run", **options)
    records = [
        json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    ]
    assert [axes.get_ylabel() for axes in plots.training(made, records).axes] == ["loss"]


def test_the_direction_names_the_class_that_a_larger_value_speaks_for(tmp_path):
    """gene a is large in class p, gene b in class q, so each must speak for its own."""
    rows = [[3.0 + i % 3, i % 2] for i in range(12)] + [[i % 2, 3.0 + i % 3] for i in range(12)]
    data = FederatedData.from_arrays(
        rows, ["p"] * 12 + ["q"] * 12, sites=["s", "t"] * 12, features=["a", "b"]
    )
    made = fedsift.fit(data, features=2, splits=0, seeds=2, rounds=20, tuning_rounds=20)
    assert {f.name: direction(made, f) for f in made.features} == {"a": "p", "b": "q"}


def test_a_comparison_has_a_line_a_method(tmp_path):
    data = iid(golub38(), 2, 0).select_features(range(6))
    names = ("eflops", "fedavg")
    figures = fedsift.compare(data, names, features=2, out=tmp_path / "run", **TINY)
    assert tuple(figures) == names
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    text = to_text(compare_report(facts))
    assert text == (tmp_path / "run" / "report.txt").read_text()
    for name in names:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert f"{figures[name]['test_accuracy']['mean']:.0%}" in line


def test_synthetic_runs_report_recovery(tmp_path):
    from fedsift.workflows import run_fit

    source = Source(demo="synthetic", samples=40, features_total=12, informative=2, data_seeds=2)
    settings = Settings(features=2, seeds=2, rounds=3, tuning_rounds=3)
    made = run_fit(source.cases(settings), settings)
    text = to_text(fit_report(made))
    assert "truly matter" in text
    assert "chosen in" not in text  # the data sets differ: their choices have nothing in common


def test_the_python_interface_keeps_its_promises(tmp_path):
    data = iid(golub38(), 2, 0).select_features(range(6))
    options: dict[str, Any] = {**TINY, "splits": 0}

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedsift.fit(data, features=2, out=tmp_path / "run", callbacks=[stop], **options)
    with pytest.raises(fedsift.RunError, match="exists already"):
        fedsift.fit(data, features=2, out=tmp_path / "run", **options)
    with pytest.raises(fedsift.RunError, match=r"other settings \(features\)"):
        fedsift.fit(data, features=3, out=tmp_path / "run", resume=True, **options)
    resumed = fedsift.fit(data, features=2, out=tmp_path / "run", resume=True, **options)
    whole = fedsift.fit(data, features=2, **options)
    assert resumed.features == whole.features
    with pytest.raises(ValueError, match="of 6 features"):
        fedsift.fit(data, features=7, **options)
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        fedsift.fitt  # noqa: B018
    assert {"fit", "EFLoPS", "data"} <= set(dir(fedsift))
    for name in fedsift.__all__:
        assert getattr(fedsift, name) is not None


def test_importing_fedsift_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, fedsift, fedsift.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_fit_loads_no_optimiser_before_it_needs_one():
    """Every message of a deployment starts a process that imports the studies."""
    import subprocess
    import sys

    code = "import sys, fedsift.studies; sys.exit('scipy.optimize' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes_and_times_read_well():
    assert [size(n) for n in (12, 1500, 2_500_000, 3e9)] == ["12 B", "1.5 kB", "2.5 MB", "3.0 GB"]
    assert [duration(s) for s in (3, 100, 8000)] == ["3 s", "2 min", "2.2 h"]
