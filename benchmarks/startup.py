"""How long fedsift takes to start, against the libraries that it cannot do without.

- `help_ratio`: `fedsift --help` over `import typer, rich`.
- `import_ratio`: `import fedsift` over `import torch`; names are loaded when they are first used.
- `use_ratio`: `import fedsift` and the first use of `fedsift.fit`, which brings torch, polars and
  more, over `import torch`.

Processor seconds of new processes, user and system, which a busy machine leaves as they are;
medians of interleaved repeats after one that warms the file cache.
Run: `python benchmarks/startup.py [--quick] [--repeats 5] [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":
    # From the root of the repository: names in this folder would hide packages of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks._common import Results, Target, run_script, versions
from benchmarks._plots import bars

HELP, IMPORT = 3.0, 1.15
COMMANDS = {
    "help": ("-m", "fedsift", "--help"),
    "typer_rich": ("-c", "import typer, rich"),
    "import": ("-c", "import fedsift"),
    "use": ("-c", "import fedsift; fedsift.fit"),
    "torch": ("-c", "import torch"),
}


def processor_seconds(commands: Mapping[str, Sequence[str]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each of Python's command lines, over repeats that take turns."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as installed
    times: dict[str, list[float]] = {name: [] for name in commands}
    for repeat in range(repeats + 1):
        for name, command in commands.items():
            before = os.times()
            subprocess.run(
                [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=env
            )
            after = os.times()
            if repeat:  # the first is a warm-up
                user = after.children_user - before.children_user
                times[name].append(user + after.children_system - before.children_system)
    return {name: statistics.median(values) for name, values in times.items()}


def ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds over those of what is needed in any case."""
    return {
        "help_ratio": seconds["help"] / seconds["typer_rich"],
        "import_ratio": seconds["import"] / seconds["torch"],
        "use_ratio": seconds["use"] / seconds["torch"],
    }


def measure(arguments: argparse.Namespace) -> Results:
    """Return the figures."""
    repeats = min(arguments.repeats, 1) if arguments.quick else arguments.repeats
    seconds = processor_seconds(COMMANDS, repeats)
    figures = ratios(seconds)
    return {
        "versions": versions("typer", "rich"),
        "targets": [
            Target("fedsift --help / import typer, rich", HELP).judge(figures["help_ratio"]),
            Target("import fedsift / import torch", IMPORT).judge(figures["import_ratio"]),
        ],
        "seconds": seconds,
        **figures,
    }


def plot(results: Results, path: Path) -> None:
    """Draw the ratios."""
    names = {
        "help_ratio": "fedsift --help / import typer, rich",
        "import_ratio": "import fedsift / import torch",
        "use_ratio": "first use of fedsift.fit / import torch",
    }
    values = {text: results[name] for name, text in names.items()}
    bars(path, "Starting", "processor time over that of the other", values, (IMPORT, HELP))


if __name__ == "__main__":
    run_script(__doc__, measure, plot)
