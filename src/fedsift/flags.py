"""What settings are called on the command line."""

from __future__ import annotations

NAMED = {"id_column": "id", "validation": "validate"}  # the others are called like the setting


def flag(name: str) -> str:
    """Return the option of a setting, such as ``--min-cell``."""
    return "--" + NAMED.get(name, name).replace("_", "-")
