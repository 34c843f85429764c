"""What people read of a run: tables, plain text, pictures, and a page."""

from __future__ import annotations

from pathlib import Path

from fedsift.reporting.tables import compare_report, fit_report, to_text
from fedsift.run_folder import read_finished
from fedsift.runs import load_run
from fedsift.sealed import write_atomic

__all__ = ["compare_report", "fit_report", "page_of", "to_text", "write_report"]


def write_report(path: Path) -> list[Path]:
    """Write ``report.txt`` and ``report.html`` into a finished run, and the pictures of a fit.

    Returns:
        the files.

    Raises:
        RunError: it is not a run folder, or not finished.
    """
    facts = read_finished(path)
    text, page = path / "report.txt", path / "report.html"
    write_atomic(page, page_of(path).encode())
    if facts["command"] == "compare":
        write_atomic(text, to_text(compare_report(facts)).encode())
        return [text, page]
    from fedsift.reporting import plots  # matplotlib takes a moment to import

    run = load_run(path)
    write_atomic(text, to_text(fit_report(run)).encode())
    return [text, page, *plots.write(run)]


def page_of(path: Path) -> str:
    """Return a finished run as one HTML file; equal runs give equal texts.

    Raises:
        RunError: it is not a run folder, or not finished.
    """
    from fedsift.reporting.compare_page import compare_page
    from fedsift.reporting.fit_page import fit_page
    from fedsift.reporting.page import to_html

    facts = read_finished(path)
    if facts["command"] == "compare":
        return to_html(compare_page(facts))
    return to_html(fit_page(load_run(path)))
