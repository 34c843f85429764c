"""The code of the documentation: what a page shows, and how it is run."""

import contextlib
import io
import shlex
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsift.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

WRITTEN_BY = frozenset({"--out", "--to"})


class Block(NamedTuple):
    """A command, or a block of Python, with its line."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the commands (indented lines that begin with fedsift) and fenced blocks of a page."""
    found: list[Block] = []
    fence: list[str] | None = None
    language, start = "", 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence is not None and line.startswith("```"):
            found.append(Block(language, "\n".join(fence) + "\n", start))
            fence = None
        elif fence is not None:
            fence.append(line)
        elif line.startswith("```"):
            fence, language, start = [], line[3:].strip(), number
        elif line.startswith("    fedsift "):
            found.append(Block("command", line.strip(), number))
    return found


def run_command(text: str) -> None:
    """Run a command of a page in the current folder; its input files are made to fit it."""
    words = shlex.split(text)[1:]
    write_inputs(words, options_of(words))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as e:
        assert main(words) == 0, f"{text}\n{e.getvalue()}"


def options_of(words: list[str]) -> dict[str, str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {name: value for name, value in pairs if name.startswith("--")}


def input_files(words: list[str]) -> Iterator[str]:
    for before, word in zip(["", *words], words, strict=False):
        if before not in WRITTEN_BY and word.endswith(".csv"):
            yield word


def write_inputs(words: list[str], options: dict[str, str]) -> None:
    """Write the files that a command reads, unless they are there."""
    for name in input_files(words):
        if not Path(name).exists():
            write_rows(Path(name), options)


def write_rows(path: Path, options: dict[str, str]) -> None:
    """Write 24 rows of 8 genes of which two decide, with the columns that the options name."""
    import polars as pl

    rng = np.random.default_rng(zlib.crc32(path.stem.encode()))
    x = rng.normal(0.0, 1.0, (24, 8))
    score = x[:, 1] - x[:, 4] + rng.normal(0, 0.3, 24)
    table: dict[str, Any] = {options["--id"]: [f"{path.stem}-{i}" for i in range(24)]}
    table |= {f"gene{j}": x[:, j] for j in range(8)}
    table[options["--target"]] = np.where(score > 0, "sick", "well").tolist()
    pl.DataFrame(table).write_csv(path)


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Run a Python block; a traceback names the page and its line."""
    source = "\n" * block.line + block.text
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, str(page), "exec", dont_inherit=True), names)  # noqa: S102
