"""Names from files, made safe to look at: what a terminal or a reader would obey is spelled out."""

from __future__ import annotations

import unicodedata
from typing import Any

# Control characters, marks that turn the direction of writing, lone surrogates, line separators.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d\u00ad")  # scripts and words need them, and they move nothing


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return a text in which control and direction characters are spelled out: ``\x1b``.

    A name may hold an escape sequence that clears the terminal or renames its window, or a mark
    that shows it backwards. With ``lines`` the ends of lines and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(sign) if _is_obeyed(sign, lines=lines) else sign for sign in text)


def all_visible(value: Any) -> Any:
    """Return JSON values with all texts, keys too, as `visible` shows them."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {all_visible(k): all_visible(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [all_visible(v) for v in value]
    return value


def _is_obeyed(sign: str, *, lines: bool) -> bool:
    if lines and sign in "\n\t":
        return False
    return unicodedata.category(sign) in _OBEYED and sign not in _JOINERS


def _spelled(sign: str) -> str:
    code = ord(sign)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
