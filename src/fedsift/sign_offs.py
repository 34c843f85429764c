"""Sign-offs of an analysis plan: a site's record that its file fits, and that it agrees.

A record names the site, who signed when, and the fingerprint of the plan, so that it counts for
this plan alone. It holds names and counts, no values of rows. Without a key it is a statement with
a name below it; signed with an Ed25519 key it names the public one, and its signature is checked
(`fedsift.signing`). Whose key that is, the site says by another way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsift._version import __version__
from fedsift.data.errors import counted, listed
from fedsift.plans import AnalysisPlan
from fedsift.run_folder import RunError
from fedsift.sealed import write_atomic
from fedsift.signing import check_signature, record_hash, signed

__all__ = ["check_signed", "sign_off"]

VERSION = 1
ENDING = ".signed.json"


def sign_off(
    plan: AnalysisPlan,
    found: Mapping[str, Any],
    name: str,
    folder: Path,
    stem: str,
    *,
    tell_rows: bool = False,
    key_file: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the record of a site whose file fits the plan; return its file.

    Args:
        plan: what is signed.
        found: what `inspection.check_file` found.
        name: who signs.
        folder: where the record is written.
        stem: name of the plan's file, less the ending.
        tell_rows: say how many rows the site has.
        key_file: Ed25519 private key (PEM) to sign with.
        overwrite: replace an earlier record.

    Raises:
        RunError: the file does not fit, no name is given, or there is a record already.
    """
    site = str(found["site"])
    if not found["fits"]:
        raise RunError(f"site '{site}' does not fit the plan, so it is not signed; mend its file")
    if not name.strip():
        raise RunError("no name is given to sign with; say who signs: --sign 'NAME'")
    path = folder / f"{stem}.{site}{ENDING}"
    if path.exists() and not overwrite:
        raise RunError(f"{path} exists already; add --overwrite to sign anew")
    kept = [
        {"what": finding["what"], "state": finding["state"], "text": finding["text"]}
        for finding in found["findings"]
        if finding["what"] != "rows"
    ]
    record = {
        "version": VERSION,
        "fedsift": __version__,
        "plan": plan.fingerprint,
        "title": plan.title,
        "site": site,
        "signed_by": name.strip(),
        "signed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": found["rows"] if tell_rows else None,
        "findings": kept,
    }
    whole = signed(record, key_file)
    write_atomic(path, (json.dumps(whole, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def check_signed(
    plan: AnalysisPlan, sites: Mapping[str, int | None], places: Sequence[Path]
) -> list[dict[str, Any]]:
    """Return who signed for each site, and with which key; none if no place is named.

    Args:
        plan: what was to be signed.
        sites: how many rows each site has, None where that is not known here.
        places: records, or folders of them.

    Raises:
        RunError: a site did not sign, or signed another plan or other rows, a record was changed,
            or its signature is not that of its key.
    """
    if not places:
        return []
    records: dict[str, dict[str, Any]] = {}
    for file in _files(places):
        record = _read(file)
        site = record["site"]
        if site not in sites:
            continue
        if record["plan"] != plan.fingerprint:
            raise RunError(
                f"{file}: site '{site}' signed another plan ({record['plan'][:12]}, this is"
                f" {plan.fingerprint[:12]}); have it check and sign this one"
            )
        had, now = record["rows"], sites[site]
        if None not in {had, now} and had != now:
            raise RunError(
                f"{file}: site '{site}' signed for {counted(had, 'row')}, its file has {now}; have"
                " it check and sign again"
            )
        kept = ("site", "signed_by", "signed_at", "key")
        records[site] = {name: record[name] for name in kept if name in record}
    absent = [site for site in sites if site not in records]
    if absent:
        where = ", ".join(map(str, places))
        raise RunError(
            f"no sign-off of {listed(absent)} in {where}; at the site: fedsift check-site PLAN FILE"
            " --sign NAME"
        )
    return [records[site] for site in sites]


def _files(places: Sequence[Path]) -> list[Path]:
    files = []
    for place in places:
        if not place.exists():
            raise RunError(f"{place}: no such file or folder of sign-offs")
        files += sorted(place.glob(f"*{ENDING}")) if place.is_dir() else [place]
    return files


def _read(file: Path) -> dict[str, Any]:
    try:
        record = dict(json.loads(file.read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        raise RunError(f"{file} is no sign-off that can be read ({error})") from error
    if record.get("version") != VERSION:
        raise RunError(
            f"{file} has version {record.get('version')}, this release reads {VERSION}; have the"
            " site sign anew"
        )
    site = record.get("site")
    if record.get("hash") != record_hash(record):
        raise RunError(
            f"{file}: the sign-off of site '{site}' is not as it was written (its hash differs);"
            " get it from the site again"
        )
    _check_signature(file, record)
    return record


def _check_signature(file: Path, record: Mapping[str, Any]) -> None:
    """Refuse a signature that is not that of the record's key; a record may have neither.

    Raises:
        RunError: it is not, one of the two is not there, or it cannot be checked here.
    """
    carried = {"key", "signature"} & set(record)
    if not carried:
        return
    about = f"{file}: the signature of site '{record.get('site')}'"
    if len(carried) == 1:
        absent = "key" if "signature" in carried else "signature"
        raise RunError(f"{about} cannot be checked (no {absent} is there); have the site sign anew")
    try:
        valid = check_signature(record)
    except RunError as error:
        raise RunError(f"{about} cannot be checked: {error}") from error
    if not valid:
        raise RunError(
            f"{about} is not that of its key and its content; get the record from the site again"
        )
