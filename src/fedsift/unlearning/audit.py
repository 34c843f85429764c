"""The audit record: what was done about requests to forget, each line chained to the one before.

It says what was done and measured. It is no proof that nothing of the forgotten rows is left in the
model: no such proof is known for these methods.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsift.run_folder import RunError
from fedsift.sealed import write_atomic
from fedsift.signing import record_hash, signed

VERSION = 1
FIRST = "0" * 64
STATEMENTS = {
    "empirical": (
        "The model was changed until the measures named here were met. They are evidence from the "
        "attacks that were tried, not a proof that nothing of the forgotten rows is left."
    ),
    "exact given preprocessing": (
        "The model was trained anew without the forgotten rows. What was decided with them before "
        "the training (settings, features on offer, density) was kept."
    ),
    "exact": (
        "The model was trained anew without the forgotten rows, and the preprocessing, the tuning, "
        "the density and the early stop were redone without them, as the operator declared."
    ),
    "none": "Nothing was changed.",
}


def read_audit(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file, none if there is no file.

    Raises:
        RunError: a line is damaged, the chain is broken, or the file was emptied.
    """
    if not file.exists():
        return []
    records, previous = [], FIRST
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            record = dict(json.loads(line))
        except (TypeError, ValueError) as error:
            msg = f"line {number} of {file} is damaged ({error}); restore the file from a copy"
            raise RunError(msg) from error
        if record.get("hash") != record_hash(record) or record.get("previous") != previous:
            raise RunError(
                f"line {number} of {file} is not as it was written, or one before it is gone: "
                "the chain of hashes breaks there; restore the file from a copy"
            )
        previous = record["hash"]
        records.append(record)
    if not records:
        raise RunError(f"{file} is empty, its records are gone; restore the file from a copy")
    return records


def append_record(
    file: Path, content: dict[str, Any], key_file: Path | None = None
) -> dict[str, Any]:
    """Add a record, unless there is one of the same batch, and return it.

    Args:
        file: the audit file, a JSON record a line.
        content: what to record, with ``batch`` and ``guarantee``.
        key_file: an Ed25519 private key (PEM) to sign with.

    Raises:
        RunError: the chain is broken, or the key cannot be used.
    """
    records = read_audit(file)
    there = next((r for r in records if r["batch"] == content["batch"]), None)
    if there is not None:
        return there
    record = {
        "version": VERSION,
        "number": len(records) + 1,
        "previous": records[-1]["hash"] if records else FIRST,
        **content,
        "statement": STATEMENTS[content["guarantee"]],
    }
    record = signed(record, key_file)
    lines = [json.dumps(r, sort_keys=True, allow_nan=False) for r in [*records, record]]
    write_atomic(file, ("\n".join(lines) + "\n").encode())
    return record
