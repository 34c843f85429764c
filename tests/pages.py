"""The code of the documentation: what a page shows, and how it is run."""

import contextlib
import io
import shlex
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsift.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

SHELLS = frozenset({"bash", "console", "sh"})
WRITTEN_BY = frozenset({"--out", "--to"})
READ = (".csv", ".parquet")
COUNTS = frozenset({"poisson", "negative_binomial"})
OF_RUNS = frozenset({"forget", "predict"})  # commands whose files have the columns of the run RUN

RUN = "fedsift fit berlin.csv paris.csv rome.csv --target diagnosis --id patient --features 3"
"""What makes the run that pages call RUN."""

OF_FIT = {"--seeds": "2", "--splits": "2", "--rounds": "3", "--tuning-rounds": "3"}
FEWER: Mapping[str, Mapping[str, str]] = {
    "fit": OF_FIT,
    "compare": OF_FIT,
    "solve": {"--max-exchanges": "20"},
}
"""Options that make a command quick, where it does not have them."""


class Block(NamedTuple):
    """A command, or a block of Python, with its line."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return fenced blocks, and the commands of a page: lines that begin with fedsift.

    Commands are indented lines, or lines of a fenced block of a shell.
    """
    found: list[Block] = []
    fence: list[str] | None = None
    language, start = "", 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence is not None and line.startswith("```"):
            if language not in SHELLS:
                found.append(Block(language, "\n".join(fence) + "\n", start))
            fence = None
        elif fence is not None:
            fence.append(line)
            if language in SHELLS and (command := line.removeprefix("$ ")).startswith("fedsift "):
                found.append(Block("command", command, number))
        elif line.startswith("```"):
            fence, language, start = [], line[3:].strip(), number
        elif line.startswith("    fedsift "):
            found.append(Block("command", line.strip(), number))
    return found


def run_command(text: str, fewer: Mapping[str, Mapping[str, str]] = FEWER) -> None:
    """Run a command of a page in the current folder; its input files are made to fit it.

    Where it is asked to choose by errors, or to forget until a target is met, it may also end with
    code 3: nothing was chosen, the target was missed.
    """
    words = shlex.split(text, comments=True)[1:]
    write_inputs(words)
    own = options_of(words)
    small = dict(fewer.get(words[0], {}))
    if own.get("--demo") == "synthetic":  # has test rows of its own
        small.pop("--splits", None)
    more = [word for name, value in small.items() if name not in own for word in (name, value)]
    allowed = {0, 3} if words[0] == "forget" or {"--fdr", "--pfer"} & set(own) else {0}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as e:
        assert main([*words, *more]) in allowed, f"{text}\n{e.getvalue()}"


def options_of(words: list[str]) -> dict[str, str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {name: value for name, value in pairs if name.startswith("--")}


def input_files(words: list[str]) -> Iterator[str]:
    for before, word in zip(["", *words], words, strict=False):
        if before not in WRITTEN_BY and word.endswith(READ):
            yield word


def write_inputs(words: list[str]) -> None:
    """Write what a command reads, unless it is there; a run to forget from is a fresh one."""
    options = options_of(words)
    if words[0] in OF_RUNS:
        options |= {"--target": "diagnosis", "--id": "patient"}
    if words[0] == "predict":
        del options["--target"]
    for name in input_files(words):
        if not Path(name).exists():
            write_rows(Path(name), options)
    if "RUN" in words:
        write_run(fresh=words[0] == "forget")


def write_run(*, fresh: bool) -> None:
    """Fit the run that pages call RUN, once; ``fresh``: as it was then."""
    kept = Path("kept")
    if not kept.exists():
        run_command(f"{RUN} --out kept")
    if fresh or not Path("RUN").exists():
        shutil.rmtree("RUN", ignore_errors=True)
        shutil.copytree(kept, "RUN")


def write_rows(path: Path, options: Mapping[str, str]) -> None:
    """Write 24 rows of 8 genes of which two decide, with the columns that the options name.

    The target is measured if it is called response, 0 or 1 where there are several, else ALL or
    AML. Ids go on from file to file.
    """
    import polars as pl

    rng = np.random.default_rng(zlib.crc32(path.stem.encode()))
    first = 24 * len(list(Path().glob("*.csv")))
    x = rng.normal(0.0, 1.0, (24, 8))
    score = x[:, 1] - x[:, 4] + rng.normal(0, 0.3, 24)
    table: dict[str, Any] = {f"gene{j}": x[:, j] for j in range(8)}
    if "--id" in options:
        table[options["--id"]] = [f"patient-{first + row}" for row in range(24)]
    if "--site-column" in options:
        table[options["--site-column"]] = ["berlin", "paris", "rome"] * 8
    if "--target" in options:
        classes = np.where(score > 0, "ALL", "AML").tolist()
        table[options["--target"]] = score if options["--target"] == "response" else classes
    if "," in options.get("--target", ""):
        del table[options["--target"]]
        for name in options["--target"].split(","):
            table[name] = (score + rng.normal(0, 1.0, 24) > 0).astype(int)
    if options.get("--outcome") in COUNTS:
        table[options["--target"]] = rng.poisson(np.exp(1.0 + 0.5 * score))
    if "--event" in options:
        table[options["--event"]] = rng.integers(0, 2, 24)
        table[options["--time"]] = rng.exponential(20.0 * np.exp(-score)).round(2) + 0.01
    frame = pl.DataFrame(table)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Run a Python block; a traceback names the page and its line."""
    source = "\n" * block.line + block.text
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, str(page), "exec", dont_inherit=True), names)  # noqa: S102
