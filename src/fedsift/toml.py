"""Values as TOML text, which the standard library reads and does not write."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["entries", "value"]

WIDTH = 100
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def value(content: Any) -> str:
    """Return a TOML value on one line; a JSON string is a TOML basic string."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def entries(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the lines of a table: a key and its value each, dotted keys for tables within.

    A long list of texts stands on several lines; None is left out.
    """
    lines = []
    for name, content in table.items():
        key = prefix + (name if _BARE.fullmatch(name) else value(name))
        if isinstance(content, Mapping):
            lines += entries(content, f"{key}.")
        elif content is not None:
            lines.append(f"{key} = {_shown(content, WIDTH - len(key) - 3)}")
    return lines


def _shown(content: Any, room: int) -> str:
    line = value(content)
    if not isinstance(content, Sequence) or isinstance(content, str) or len(line) <= room:
        return line
    # A blank within a name is no place for a line to break.
    words = " ".join(f"{value(item)},".replace(" ", "\0") for item in content)
    wrapped = textwrap.wrap(words, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return "[\n" + "\n".join(f"    {row}" for row in wrapped).replace("\0", " ") + "\n]"
