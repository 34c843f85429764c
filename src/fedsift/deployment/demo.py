"""Data in memory as site files, to try a deployment with."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fedsift.data import FederatedData
from fedsift.data.coding import target_columns
from fedsift.sealed import write_atomic


def _labels(rows: FederatedData) -> list[list[object]]:
    """Return what stands in the columns of the target, one for each row."""
    if rows.outcome == "multilabel":
        return [["" if code < 0 else code for code in codes] for codes in rows.y.tolist()]
    return [[rows.classes[y] if rows.classes else y] for y in rows.y.tolist()]


def write_sites(data: FederatedData, folder: Path) -> list[Path]:
    """Write a CSV file a site, with the columns ``id``, the target and the features.

    Numbers are written such that they are read as the same.
    """
    files = []
    for site in data.sites:
        rows = data.site(site)
        table = io.StringIO()
        writer = csv.writer(table)
        targets = target_columns(rows.target, rows.outcome)
        writer.writerow(["id", *targets, *rows.features])
        for name, labels, values in zip(rows.rows, _labels(rows), rows.x.tolist(), strict=True):
            writer.writerow([name, *labels, *map(repr, values)])
        files.append(folder / f"{site}.csv")
        write_atomic(files[-1], table.getvalue().encode())
    return files
