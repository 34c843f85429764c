"""Data in memory as site files, to try a deployment with."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fedsift.data import FederatedData
from fedsift.sealed import write_atomic


def write_sites(data: FederatedData, folder: Path) -> list[Path]:
    """Write a CSV file a site, with the columns ``id``, the target and the features.

    Numbers are written such that they are read as the same.
    """
    files = []
    for site in data.sites:
        rows = data.site(site)
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(["id", rows.target, *rows.features])
        labels = [rows.classes[c] for c in rows.y.tolist()] if rows.classes else rows.y.tolist()
        for name, label, values in zip(rows.rows, labels, rows.x.tolist(), strict=True):
            writer.writerow([name, label, *map(repr, values)])
        files.append(folder / f"{site}.csv")
        write_atomic(files[-1], table.getvalue().encode())
    return files
