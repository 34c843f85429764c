"""Small runs to report on: one whose names try to break out of the page, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.data import FederatedData

TINY: dict[str, Any] = {"seeds": 4, "splits": 3, "rounds": 3, "tuning_rounds": 3, "beside": ()}
FEATURES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "\x1b[2J\x07bell",
    "{{ 7 * 7 }}",
    "a" * 120,
    "ünïcode 基因",
)
SITES = ("<svg/onload=alert(3)>", "site \"quoted\" & 'b'", "\x1b]0;title\x07evil\u202e")
CLASSES = ("</td><script>alert(4)</script>", "b\x1b[31m\u202egnp.exe")


def hostile_data(rows: int = 90) -> FederatedData:
    """Return rows of two classes that the first two features tell apart."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, len(FEATURES)))
    kind = (x[:, 0] + x[:, 1] + 0.3 * random.normal(size=rows) > 0).astype(int)
    return FederatedData.from_arrays(
        x,
        np.array(CLASSES)[kind],
        sites=[SITES[row % 3] for row in range(rows)],
        features=FEATURES,
        target="<h1>target</h1>\x1b[1m",
    )


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with hostile names."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    fedsift.fit(hostile_data(), features=3, out=folder, **TINY)
    return folder
