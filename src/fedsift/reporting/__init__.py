"""What people read of a run: tables, plain text and pictures."""

from __future__ import annotations

from pathlib import Path

from fedsift.reporting.tables import compare_report, fit_report, to_text
from fedsift.run_folder import read_finished
from fedsift.runs import load_run
from fedsift.sealed import write_atomic

__all__ = ["compare_report", "fit_report", "to_text", "write_report"]


def write_report(path: Path) -> list[Path]:
    """Write ``report.txt`` into a finished run, and for a fit the pictures; return the files.

    Raises:
        RunError: it is not a run folder, or not finished.
    """
    facts = read_finished(path)
    text = path / "report.txt"
    if facts["command"] == "compare":
        write_atomic(text, to_text(compare_report(facts)).encode())
        return [text]
    from fedsift.reporting import plots  # matplotlib takes a moment to import

    run = load_run(path)
    write_atomic(text, to_text(fit_report(run)).encode())
    return [text, *plots.write(run)]
