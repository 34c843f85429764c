"""What README and docs say is what the code has: names, defaults, links, options, outputs."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsift
from fedsift.algorithms import EFLoPS
from fedsift.checkpoints import StageCheckpoint
from fedsift.cli.commands import app
from fedsift.methods import METHODS
from fedsift.solvers import SOLVERS
from fedsift.training import train
from fedsift.unlearning.methods import FORGETTERS
from tests.laws import CHANNELS, ENGINES, job, largest_gap, linear_problem, proceed, rows
from tests.pages import PAGES, ROOT, blocks, run_python
from tests.test_contract import fate

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def table(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_readme_names_every_method():
    named = [row[0].strip("`").split("`")[0] for row in table(ROOT / "README.md")]
    assert named == list(METHODS)


def test_the_page_of_eflops_has_its_defaults():
    said = {row[0].strip("`"): row[-1].strip("`") for row in table(ROOT / "docs/methods/eflops.md")}
    own = {f.name: f.default for f in fields(EFLoPS) if f.name not in {"density", "gate"}}
    assert set(said) == set(own)
    for name, default in own.items():
        if default is None:
            assert said[name].startswith("automatic")
        else:
            assert said[name] == str(default)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page):
    from typer.main import get_command

    commands = get_command(app).commands  # type: ignore[attr-defined]
    text = page.read_text()
    found = re.findall(r"^    (fedsift [^#\n]+)|`(fedsift [^`]+)`", text, re.MULTILINE)
    for line in ("".join(pair) for pair in found):
        words = shlex.split(line)
        known = {o for p in commands[words[1]].params for o in p.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize(("number", "names"), list(enumerate([METHODS, SOLVERS, FORGETTERS])))
def test_every_method_has_its_formulas_and_when_not_to_use_it(number, names):
    lines = (DOCS / "methods/index.md").read_text().split("\n## ")[number + 1].splitlines()
    row = re.compile(r"\| `(\w+)` \|.*\]\((\w+\.md)")
    found = {match[1]: match[2] for line in lines if (match := row.match(line))}
    assert set(found) == set(names)
    for name, page in found.items():
        text = (DOCS / "methods" / page).read_text()
        assert name.lower() in text.lower().replace("-", "")
        assert re.search(r"when not to use (it|them)", text, re.IGNORECASE)


def test_the_reference_has_every_public_name():
    text = (DOCS / "reference.md").read_text()
    modules = {"data", "vi", "__version__"}
    named = {line.rsplit(".", 1)[1] for line in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    assert set(fedsift.__all__) - modules <= named


def test_the_pages_that_the_site_names_are_there():
    text = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]
    at_root = {name.lower() for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")}
    for name in re.findall(r"(\S+\.(?:md|ipynb))$", text, re.MULTILINE):
        assert (DOCS / name).exists() or name in at_root | {"changelog.md"}, name


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs_jupyter", reason="the site needs fedsift[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    assert (tmp_path / "notebooks/a_site_leaves.html").exists()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_in_order_and_has_its_outputs(path):
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        source = "".join(cell["source"])
        assert bool(cell["outputs"]) == ("print(" in source or "plt." in source)
        assert not any(output["output_type"] == "error" for output in cell["outputs"])


# --- the algorithm of the tutorial for method authors


@pytest.fixture(scope="module")
def tutorial() -> Any:
    page = DOCS / "tutorials/authors.md"
    block = blocks(page)[0]
    assert block.text.count("\n") <= 150
    names: dict[str, Any] = {"__name__": "__main__"}
    run_python(block, page, names)
    return names["ProximalGradient"](step=0.05, penalty=0.1, rounds=12)


@pytest.mark.parametrize("channel", CHANNELS)
def test_the_engines_agree_on_the_algorithm_of_the_tutorial(channel, tutorial):
    """In double precision: the last bit of a float may decide what is among the largest.

    These seeds have no tie there; weights that shrink by just step · penalty would be one.
    """
    data = rows("multiclass")
    problem = linear_problem(data, torch.float64)
    work = job(problem, data, tutorial, CHANNELS[channel], seeds=(8, 9))
    (slow, up), (fast, also) = (proceed(work, engine(), 12, 0.6) for engine in ENGINES.values())
    assert largest_gap(slow.server, fast.server) <= 1e-9
    assert torch.equal(up, also)


def test_the_algorithm_of_the_tutorial_bears_lost_and_repeated_uploads(tutorial):
    data = rows("binary")
    problem = linear_problem(data)
    one, other = (train(problem, data, tutorial, engine=e, delivery=fate) for e in ENGINES)
    assert largest_gap(one.params, other.params) <= 1e-5


def test_the_algorithm_of_the_tutorial_goes_on_after_a_crash(tutorial, tmp_path):
    class CrashError(Exception):
        pass

    def crash(record: dict[str, Any]) -> None:
        if record["round"] == 7:
            raise CrashError

    data = rows()
    problem, kept = linear_problem(data), StageCheckpoint(tmp_path / "kept", every=0.0)
    whole = train(problem, data, tutorial)
    with pytest.raises(CrashError):
        train(problem, data, tutorial, checkpoint=kept, callback=crash)
    again = train(problem, data, tutorial, checkpoint=kept)
    assert torch.equal(again.params["weight"], whole.params["weight"])


def test_the_examples_of_the_outcomes_run():
    examples = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/outcomes.md").read_text(), re.DOTALL
    )
    assert len(examples) == 3
    for block in examples:
        exec(compile(block, "docs/outcomes.md", "exec"), {})  # noqa: S102
