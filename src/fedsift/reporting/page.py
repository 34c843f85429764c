"""A page of sections in one HTML file that asks the network for nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from fedsift._version import __version__

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Words:
    """A paragraph; with ``caution`` one that must not be overlooked."""

    text: str
    caution: bool = False
    kind: ClassVar[str] = "words"


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    items: Sequence[str]
    kind: ClassVar[str] = "points"


@dataclass(frozen=True)
class Code:
    """Lines to type."""

    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Table:
    """Rows of texts. Columns of ``numbers`` stand right; the first cell of a row heads it.

    ``shades``: for each row the strength of its cells' ground, 0 to 1, None for none.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    shades: Sequence[Sequence[float | None]] | None = None
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Figure:
    """A chart (`fedsift.reporting.svg`), a sentence on how to read it, and its numbers."""

    title: str
    svg: str
    note: str
    table: Table | None = None


@dataclass(frozen=True)
class Figures:
    """Charts, side by side where there is room."""

    items: Sequence[Figure]
    kind: ClassVar[str] = "figures"


Block: TypeAlias = Words | Points | Code | Table | Figures


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading; ``name`` is that of its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole page: what it is about, its finding in a sentence, figures to see first, sections."""

    title: str
    subtitle: str
    summary: str
    facts: Sequence[tuple[str, str, str]] = field(default=())
    cautions: Sequence[str] = field(default=())
    sections: Sequence[Section] = field(default=())


def to_html(page: Page) -> str:
    """Return the page as one HTML file; equal pages give equal texts.

    The template escapes every text; charts escape their own.
    """
    text: str = _template().render(
        page=page, style=(HERE / "page.css").read_text(encoding="utf-8"), version=__version__
    )
    return text


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # takes a moment to import

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
