"""What `inspection.check_file` found, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedsift.data.errors import counted
from fedsift.reporting.rich_tables import simple_table

STATES = {"fits": "fits", "note": "to know", "wrong": "DOES NOT FIT"}


def site_check(
    facts: Mapping[str, Any], plan: str, title: str, signed_by: str | None
) -> RenderableType:
    """Return the findings and the verdict; ``facts``: those of ``check-site --json``."""
    table = simple_table()
    for name in ("what", "", "found"):
        table.add_column(name)
    for finding in facts["findings"]:
        here = f"\n({finding['here']})" if finding["here"] else ""
        table.add_row(finding["what"], STATES[finding["state"]], finding["text"] + here)
    name = f"{plan} ({title})" if title else plan
    head = f"Site {facts['site']} and the plan {name}, fingerprint {facts['plan'][:12]}."
    return Group(Text(head), Text(), table, Text(), Text(_verdict(facts, signed_by)))


def _verdict(facts: Mapping[str, Any], signed_by: str | None) -> str:
    wrong = sum(finding["state"] == "wrong" for finding in facts["findings"])
    if wrong:
        mend = f"It does not fit: {counted(wrong, 'thing')} to mend, or to change in the plan."
        return mend if signed_by is None else f"{mend} Nothing was signed."
    if facts["record"] is None:
        return "It fits. To sign the plan, add --sign 'YOUR NAME'."
    return f"It fits, and {signed_by} signed: {facts['record']}"
