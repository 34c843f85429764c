"""Figures that acceptance tests print; `make acceptance` also writes them into the docs."""

import json
import os
from pathlib import Path

import pytest

FIGURES: dict[str, object] = {}


@pytest.fixture
def figure():
    """Return a function that prints a named figure as JSON and keeps it for the table."""

    def keep(name, value):
        print(json.dumps({name: value}))
        FIGURES[name] = value

    return keep


def pytest_sessionfinish():
    folder = os.environ.get("FEDSIFT_FIGURES")
    if not folder or not FIGURES:
        return
    store = Path(folder) / "figures.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    merged = dict(sorted({**known, **FIGURES}.items()))
    store.write_text(json.dumps(merged, indent=1) + "\n")
    lines = ["# Figures", "", "Written by `make acceptance`; do not edit.", ""]
    lines += ["| figure | value |", "| --- | --- |"]
    lines += [f"| {name} | {_text(value)} |" for name, value in merged.items()]
    (Path(folder) / "figures.md").write_text("\n".join(lines) + "\n")


def _text(value):
    if isinstance(value, dict) and set(value) == {"mean", "low", "high", "n"}:
        low, high = max(value["low"], 0.0), value["high"]
        return f"{value['mean']:.3f} ({low:.3f} to {high:.3f}, n = {value['n']})"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_text(v)}" for k, v in value.items())
    return str(value)
