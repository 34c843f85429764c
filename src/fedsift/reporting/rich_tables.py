"""Tables of the terminal, and the same as tables of a page, so that both say the same."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from fedsift.data.errors import counted
from fedsift.reporting.page import Block, Table, Words
from fedsift.settings import Settings


def simple_table() -> RichTable:
    """Return an empty table of the house style."""
    return RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")


def searches(settings: Settings) -> str:
    """Return how many runs a search has, in words."""
    return counted(settings.lanes, "seed" if settings.pfer is None else "half-sample")


def plain_table(caption: str, table: RichTable) -> Table:
    """Return a terminal's table for a page."""
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    return Table(
        caption,
        [_plain(column.header) for column in table.columns],
        list(zip(*columns, strict=True)),
        frozenset(n for n, column in enumerate(table.columns) if column.justify == "right"),
    )


def blocks(content: Group, caption: str) -> list[Block]:
    """Return texts and tables of a terminal's report for a page."""
    found: list[Block] = []
    for part in content.renderables:
        if isinstance(part, RichTable):
            found.append(plain_table(caption, part))
        elif isinstance(part, Text):
            found += [Words(line) for line in part.plain.splitlines() if line.strip()]
    return found


def _plain(cell: object) -> str:
    text = cell.plain if isinstance(cell, Text) else str(cell)
    indent = "site: " if text.startswith("  ") else ""  # a terminal indents what belongs together
    return indent + " ".join(text.split())
