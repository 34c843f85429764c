"""The main job on the embedded leukemia data, from the command line."""

import json
import os
import subprocess
import sys

import pytest

from fedsift.data import KNOWN_GENES


@pytest.mark.acceptance
@pytest.mark.acceptance_long
def test_the_demo_finds_known_genes(tmp_path, figure) -> None:
    command = "fit --demo golub --features 3 --seeds 30 --json --out"
    output = subprocess.run(
        [sys.executable, "-m", "fedsift", *command.split(), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    ).stdout
    result = json.loads(output)
    names = [feature["name"] for feature in result["features"]]
    found = [KNOWN_GENES[name] for name in names if name in KNOWN_GENES]
    figure("golub, 3 genes, 30 seeds: test_accuracy", result["test_accuracy"])
    figure("golub, 3 genes, 30 seeds: majority", 27 / 38)
    figure("golub, 3 genes, 30 seeds: genes", names)
    figure("golub, 3 genes, 30 seeds: known genes", found)
    figure("golub, 3 genes, 30 seeds: seconds of the command", result["seconds"])
    for name, beside in result["beside"].items():
        figure(f"golub, 3 genes: {name} test_accuracy", beside["test_accuracy"])
    assert result["test_accuracy"]["mean"] >= 0.88
    assert len(found) >= 1
