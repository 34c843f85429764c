"""What README and docs say about names and defaults is what the code has."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from fedsift.algorithms import EFLoPS
from fedsift.cli.commands import app
from fedsift.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rows(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_readme_names_every_method():
    named = [row[0].strip("`").split("`")[0] for row in rows(ROOT / "README.md")]
    assert named == list(METHODS)


def test_the_page_of_eflops_has_its_defaults():
    said = {row[0].strip("`"): row[-1].strip("`") for row in rows(ROOT / "docs/methods/eflops.md")}
    own = {f.name: f.default for f in fields(EFLoPS) if f.name not in {"density", "gate"}}
    assert set(said) == set(own)
    for name, default in own.items():
        if default is None:
            assert said[name].startswith("automatic")
        else:
            assert said[name] == str(default)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
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
