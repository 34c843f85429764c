"""Every command and every block of Python of README and docs runs, page by page, in its order."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsift
from fedsift.outcomes import OUTCOMES
from tests.pages import OF_FIT, PAGES, ROOT, Block, blocks, run_command, run_python, write_run

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))

# With the numbers of seeds, splits and rounds that they, or the defaults, have.
AS_WRITTEN = {
    "quickstart.md", "analysis-plan.md", "study.md", "groups.md", "engineers.md", "authors.md",
}  # fmt: skip

NOT_RUN = {
    "fedsift deploy --loopback 3 --demo golub": "starts real nodes; tests/flower/test_real.py does",
    "fedsift deploy --loopback 3 berlin.csv paris.csv rome.csv --target diagnosis --features 5": (
        "the same"
    ),
    "from fedsift.engines.flower.roster import connect": "needs nodes; tests/flower does it",
    "fedsift predict RUN_FOLDER NEW.csv --site SITE.fedsift/RUN-own.json": (
        "needs a deployment; tests/flower does it"
    ),
    "fedsift reproduce synthetic --quick": "minutes; tests/acceptance does it",
    "fedsift reproduce synthetic --jobs 2 --out synthetic": "hours",
    "fedsift reproduce synthetic --out synthetic --so-far": "goes on with the former",
    "fedsift reproduce golub --quick": "minutes; tests/acceptance does it",
    "fedsift reproduce golub --jobs 2 --out golub": "half an hour",
    "fedsift reproduce mnist --quick": "minutes; tests/acceptance does it",
    "fedsift reproduce mnist --jobs 2 --out mnist": "an hour",
    "fedsift fit --demo golub --track csv --track tensorboard:board": (
        "needs fedsift[track]; tests/test_trackers.py does it"
    ),
}
"""First lines of what is not run, and why."""

MODULE = """
from fedsift.vi.catalogue import PROBLEMS


def make_problem():
    return PROBLEMS["bilinear_ball"](n_sites=4)
"""


def drawn(outcome: str = "regression") -> fedsift.FederatedData:
    """Return 60 rows of 8 features at three sites."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=g)
    score = x[:, 0] - x[:, 1] + 0.1 * torch.randn(60, generator=g)
    y = score if outcome == "regression" else (score > 0).long()
    return fedsift.FederatedData.from_arrays(x, y, sites=["a", "b", "c"] * 20)


def practices() -> dict[str, Any]:
    def load(name: str) -> tuple[torch.Tensor, list[str]]:
        return torch.randn(4, 3), ["no", "yes", "no", "yes"]

    return {"practices": ["north", "south"], "load": load}


GIVEN: Mapping[str, Callable[[], dict[str, Any]]] = {
    "error-control.md": lambda: {"data": drawn()},
    "inference.md": lambda: {"data": drawn()},
    "privacy.md": lambda: {
        "data": drawn("binary"),
        "problem": fedsift.supervised(fedsift.linear(8), OUTCOMES["binary"]),
    },
    "scale.md": practices,
}
"""Names that the Python of a page supposes."""


def first_line(block: Block) -> str:
    return block.text.splitlines()[0]


def run(block: Block, page: Path, names: dict[str, Any]) -> None:
    if block.language == "python":
        if '"RUN"' in block.text:
            write_run(fresh=True)
        run_python(block, page, names)
    elif page.name in AS_WRITTEN:
        run_command(block.text, fewer={})
    else:
        run_command(block.text)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * ("golub" in page.read_text()), id=page.name)
        for page in PAGES
        if blocks(page)
    ],
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """With fewer seeds, splits, rounds and exchanges where a page names none."""
    monkeypatch.chdir(tmp_path)
    if page.name not in AS_WRITTEN:
        few: dict[str, Any] = {
            name[2:].replace("-", "_"): int(value) for name, value in OF_FIT.items()
        }
        monkeypatch.setattr(fedsift, "fit", partial(fedsift.fit, **few))
    (tmp_path / "mymodule.py").write_text(MODULE)
    names: dict[str, Any] = {"__name__": "__main__", **GIVEN.get(page.name, dict)()}
    for block in blocks(page):
        if first_line(block) not in NOT_RUN and block.language in {"command", "python"}:
            run(block, page, names)


def test_what_is_not_run_is_on_a_page():
    assert set(NOT_RUN) <= {first_line(block) for page in PAGES for block in blocks(page)}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(path, tmp_path):
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    plain = {**os.environ, "MPLBACKEND": "agg"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=plain, check=True, timeout=600)
