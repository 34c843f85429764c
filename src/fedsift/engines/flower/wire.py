"""Parts as Flower records.

A message has a ConfigRecord ``fedsift`` with the format's version and the facts of all parts as
JSON, and an ArrayRecord ``data`` with the pieces of all parts one behind the other. The messages of
an exchange are pieces in the format of `fedsift.messages`: indices, values, version; both ends know
names and shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsift.engines.flower.parts import VERSION, Part, PartError, Parts

HEAD, DATA = "fedsift", "data"
END = b"\n"  # Flower carries no empty array


def pack(parts: Parts) -> RecordDict:
    """Return the content of a message."""
    facts = {
        site: [[part.facts, [len(blob) for blob in part.blobs]] for part in several]
        for site, several in parts.items()
    }
    content = b"".join(b for several in parts.values() for part in several for b in part.blobs)
    head = ConfigRecord({"version": VERSION, "parts": json.dumps(facts, separators=(",", ":"))})
    content += END
    array = Array("uint8", (len(content),), "fedsift.bytes", content)
    return RecordDict({HEAD: head, DATA: ArrayRecord({"bytes": array})})


def unpack(content: RecordDict) -> dict[str, list[Part]]:
    """Return the parts of a message.

    Raises:
        PartError: it is not what `pack` made, or of another version.
    """
    try:
        head: Any = content[HEAD]
        version, text = head["version"], head["parts"]
        arrays: Any = content[DATA]
        data = bytes(arrays["bytes"].data)
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"it has no record {error}"
        raise PartError(msg) from error
    if version != VERSION:
        msg = f"it has format version {version}, this release reads {VERSION}"
        raise PartError(msg)
    try:
        facts = json.loads(text)
        lengths = [n for several in facts.values() for _, sizes in several for n in sizes]
        if any(n < 0 for n in lengths) or sum(lengths) + len(END) != len(data):
            msg = f"its pieces have {sum(lengths)} bytes, not {len(data) - len(END)}"
            raise PartError(msg)
        pieces = _cut(data, lengths)
        return {
            site: [Part(dict(part), tuple(next(pieces) for _ in sizes)) for part, sizes in several]
            for site, several in facts.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, PartError):
            raise
        msg = "its facts cannot be read"
        raise PartError(msg) from error


def _cut(data: bytes, lengths: list[int]) -> Iterator[bytes]:
    start = 0
    for length in lengths:
        yield data[start : start + length]
        start += length
