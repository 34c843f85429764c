"""Verification: are a run's model, its measures and its audit record what they say they are?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsift.data import FederatedData
from fedsift.run_folder import RunError
from fedsift.runs import load_run
from fedsift.signing import check_signature
from fedsift.unlearning.audit import read_audit
from fedsift.unlearning.figures import measure_run
from fedsift.unlearning.process import AUDIT, FOLDER, open_ledger
from fedsift.unlearning.rows import read_rows
from fedsift.unlearning.scope import Scope

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Verification:
    """What was checked.

    Attributes:
        checks: name → whether it holds; None where it could not be checked.
        lines: what does not hold, or could not be checked, and why.
        records: the audit records.
        measures: of the model now, on the rows that are left.
    """

    checks: dict[str, bool | None]
    lines: tuple[str, ...]
    records: list[dict[str, Any]]
    measures: dict[str, float]

    @property
    def holds(self) -> bool:
        """Tell whether nothing that was checked failed."""
        return False not in self.checks.values()

    def to_json(self) -> dict[str, Any]:
        """Return it as the command line prints it."""
        return {
            "verified": self.holds,
            "checks": self.checks,
            "notes": list(self.lines),
            "records": self.records,
            "measures": self.measures,
        }


def verify_run(
    path: Path, data: FederatedData | None = None, key_file: Path | None = None
) -> Verification:
    """Check the chain, the signatures and the model, and measure it again.

    The rows that were forgotten are gone; their measures are those stored when the request was
    taken and when it was carried out.

    Raises:
        RunError: there is no finished fit, or no record.
    """
    if not (path / FOLDER / AUDIT).exists():
        raise RunError(f"{path} has no audit record: nothing was forgotten there")
    checks: dict[str, bool | None] = {}
    lines: list[str] = []
    try:
        records = read_audit(path / FOLDER / AUDIT)
        checks["chain"] = True
    except RunError as error:
        return Verification({"chain": False}, (str(error),), [], {})
    if key_file is not None:
        signed = [check_signature(record, key_file) for record in records]
        checks["signatures"] = all(signed)
        if not all(signed):
            lines.append(f"record {signed.index(False) + 1} is not signed with {key_file}")
    try:
        run = load_run(path)
        last = records[-1]
        checks["model"] = run.facts["files"]["model.safetensors"] == last["model_after"]
    except RunError as error:
        checks["model"] = False
        return Verification(checks, (*lines, str(error)), records, {})
    if not checks["model"]:
        lines.append("the model is not the one that the last record speaks of")
    measures: dict[str, float] = {}
    with open_ledger(path) as ledger:
        try:
            rows = read_rows(run, Scope(), ledger, data)
        except RunError as error:
            checks["measures"] = None
            lines.append(f"the measures were not taken again: {error}")
            return Verification(checks, tuple(lines), records, measures)
    assert rows.data is not None  # noqa: S101  nothing is asked to be forgotten, so all are there
    measures = {
        k: v
        for k, v in measure_run(run, Scope().roles(rows.data)).values.items()
        if k.startswith("retain_")
    }
    told = last["measures"]["after"] if last["status"] == "verified" else {}
    apart = [k for k, v in measures.items() if abs(told.get(k, v) - v) > TOLERANCE * (1 + abs(v))]
    checks["measures"] = not apart
    lines += [f"{k} is {measures[k]:.6g}, the record says {told[k]:.6g}" for k in apart]
    return Verification(checks, tuple(lines), records, measures)
