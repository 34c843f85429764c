"""What `fedsift.inspection` found, in plain words, and the command to run next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsift.data.errors import counted
from fedsift.reporting.advice import Facts, identity_column, sentences
from fedsift.reporting.rich_tables import simple_table


def inspection_report(facts: Facts, following: str) -> RenderableType:
    """Return the findings, those that need a decision first, and the next command."""
    mind, fine = sentences(facts)
    parts: list[RenderableType] = [Text(_head(facts)), Text(), _site_table(facts)]
    for title, said in (("To mind", mind), ("In order", fine)):
        if said:
            parts += [Text(), Text(title, style="bold")]
            parts += [_item(sentence) for sentence in said]
    return Group(*parts, Text(), Text("Next:"), Text(f"  {following}"))


def next_command(
    facts: Facts, files: Sequence[str], options: Mapping[str, str], drop: Sequence[str] = ()
) -> str:
    """Return the command that comes next: again with a target, again once mended, or the fit.

    ``options``: those that were given, by name, such as ``--id``; ``drop``: columns left out.
    """
    left_out = [word for name in drop for word in ("--drop", name)]
    words = ["fedsift", "inspect", *files]
    said = dict(options)
    target = facts["target"]
    if target is None:
        guess = facts["candidates"]
        said["--target"] = guess[0] if len(guess) == 1 else "COLUMN"
        return _joined(words, said, left_out)
    if target["problem"] in {"one value", "text", "labels"}:
        return _joined(words, said | {"--target": "COLUMN"}, left_out)
    wrong = any(covariate["problem"] for covariate in facts["covariates"])
    unreadable = facts["columns"]["unreadable"]
    if target["problem"] == "mixed" or target["missing"] or unreadable or wrong:
        return f"{_joined(words, said, left_out)}    (once what is named above is mended)"
    words[1] = "fit"
    said.pop("--min-cell", None)
    drops = [*facts["columns"]["text"], *facts["columns"]["empty"]]
    identity = identity_column(facts)
    if "--id" not in said and identity is not None:
        said["--id"] = identity
        drops.remove(identity)
    if facts["missing"]["values"] or any(c["missing"] for c in facts["covariates"]):
        said["--impute"] = "mean"
    kept = facts["limit"]["asked"] or facts["limit"]["safe_features"]
    said["--features"] = str(min(kept, facts["features"]))
    more = ["--features-in-common"] * bool(facts["columns"]["lost"])
    left_out += [word for name in drops for word in ("--drop", name)]
    return _joined(words, said, [*more, *left_out])


def _joined(words: Sequence[str], options: Mapping[str, str], more: Sequence[str] = ()) -> str:
    pairs = [word for pair in options.items() for word in pair]
    return shlex.join([*words, *pairs, *more])


def _item(sentence: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row("·", sentence)
    return grid


def _head(facts: Facts) -> str:
    target = facts["target"]
    what = ""
    if target is not None:
        several = target["outcome"] == "multilabel"
        kind = target["outcome"] if several else " or ".join(target["classes"]) or target["outcome"]
        what = f", target {target['name']}" + (f" ({kind})" if kind else "")
    staying = len(facts["covariates"])
    beside = f", {counted(staying, 'covariate')}" if staying else ""
    return (
        f"{counted(facts['samples'], 'sample')} at {counted(len(facts['sites']), 'site')},"
        f" {counted(facts['features'], 'feature')}{beside}{what}."
    )


def _site_table(facts: Facts) -> Table:
    target = facts["target"]
    classes = list(target["classes"]) if target else []
    differ = facts["drift"]["by_site"]
    table = simple_table()
    table.add_column("site")
    for name in ("samples", *classes, *(["columns that\ndiffer"] if differ else [])):
        table.add_column(name, justify="right")
    for site, count in facts["sites"].items():
        row = [count, *(target["by_site"][site][name] for name in classes)]
        table.add_row(site, *map(_count, row), *([_count(differ.get(site))] if differ else []))
    if len(facts["sites"]) > 1 and classes:
        row = [facts["samples"], *(target["classes"][name] for name in classes)]
        table.add_row("all", *map(_count, row))
    return table


def _count(count: int | None) -> str:
    return "few" if count is None else str(count)
