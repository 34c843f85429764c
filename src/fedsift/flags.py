"""What settings are called on the command line."""

from __future__ import annotations

# The others are called like the setting.
NAMED = {"id_column": "id", "time_column": "time", "validation": "validate"}


def flag(name: str) -> str:
    """Return the option of a setting, such as ``--min-cell``."""
    return "--" + NAMED.get(name, name).replace("_", "-")
