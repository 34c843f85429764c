"""What a site tells at most, whatever a server asks: its own ledger of privacy."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsift.engines.flower.parts import Part, PartError
from fedsift.privacy import SENSITIVITY, Level, Privacy, gaussian_epsilon
from fedsift.sealed import seal, unseal, write_atomic

VERSION = 1
ROUNDING = 1e-6  # share of ε by which sums of what was planned may be above it
ANSWERED = ("define", "counts", "exchange", "end")
STEPS = ("select", "standardise")  # what may be done with rows: each by itself


@dataclass(frozen=True)
class Limit:
    """The privacy of a site's rows over all runs: only private exchanges are answered.

    Attributes:
        level: what is protected at least.
        file: where what was told is added up.
        epsilon: ε of all that is told; None: as much as is asked.
        delta: δ of that.
    """

    level: Level
    file: Path
    epsilon: float | None = None
    delta: float = 1e-5

    def admit(self, kind: str) -> None:
        """Refuse a question whose answer would have no noise.

        Raises:
            PartError: it is one.
        """
        if kind not in ANSWERED:
            msg = f"its rows are private: it answers no question of the kind {kind!r}"
            raise PartError(msg)

    def admit_step(self, kind: str) -> None:
        """Refuse to choose rows by what other rows are.

        Raises:
            PartError: a step does.
        """
        if kind not in STEPS:
            msg = f"its rows are private: it does no step of the kind {kind!r}"
            raise PartError(msg)

    def counts(self, rows: int) -> dict[str, torch.Tensor]:
        """Return how many rows may be told: of no class, and of a protected site one."""
        count = torch.tensor([1 if self.level == "site" else rows])
        return {"rows": count, "weight": count.double()}

    def charge(self, privacy: Privacy | None, releases: int) -> None:
        """Add releases to what was told, before they are.

        Raises:
            PartError: they have no noise, protect less than the site wants, or are too many.
        """
        if privacy is None or privacy.noise is None:
            msg = "its rows are private, and the run is not"
            raise PartError(msg)
        if self.level == "site" and privacy.level != "site":
            msg = "it protects all of its rows together, and the run each alone"
            raise PartError(msg)
        new = releases * (SENSITIVITY / privacy.noise) ** 2
        # Written down first, so that of two processes one at least sees both.
        self._add(new)
        try:
            epsilon = gaussian_epsilon(self._told() ** 0.5, self.delta)
        except ValueError as error:
            raise PartError(str(error)) from error
        if self.epsilon is not None and epsilon > self.epsilon * (1.0 + ROUNDING):
            self._add(-new)
            msg = f"its budget of epsilon {self.epsilon:g} would be exceeded: it tells no more"
            raise PartError(msg)

    def _add(self, told: float) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps({"version": VERSION, "told": told}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _told(self) -> float:
        """Return Σ (2/σ)² of all releases so far."""
        try:
            lines = [json.loads(line) for line in self.file.read_text().splitlines()]
            known = all(line["version"] == VERSION for line in lines)
            told = math.fsum(line["told"] for line in lines)
        except (OSError, KeyError, TypeError, ValueError) as error:
            msg = f"its ledger of privacy cannot be read ({type(error).__name__})"
            raise PartError(msg) from error
        if not known:
            msg = "its ledger of privacy is of another release of fedsift"
            raise PartError(msg)
        return told


def name_of(part: Part) -> str:
    """Return a name of a request that any other request does not have."""
    head = json.dumps(part.facts, sort_keys=True).encode()
    return hashlib.sha256(
        b"".join(hashlib.sha256(p).digest() for p in (head, *part.blobs))
    ).hexdigest()


def keep_answer(file: Path, name: str, answer: Part) -> None:
    """Keep the last answer: the same request again gets the same one, and tells nothing more."""
    blobs = {f"{i}": _bytes(blob) for i, blob in enumerate(answer.blobs)}
    write_atomic(file, seal(blobs, {"name": name, "facts": answer.facts, "blobs": len(blobs)}))


def kept_answer(file: Path, name: str) -> Part | None:
    """Return the answer to a request, if it was the last."""
    if not file.exists():
        return None
    tensors, kept = unseal(file)
    if kept["name"] != name:
        return None
    blobs: Sequence[bytes] = [tensors[f"{i}"].numpy().tobytes() for i in range(kept["blobs"])]
    facts: Mapping[str, Any] = kept["facts"]
    return Part(dict(facts), tuple(blobs))


def _bytes(blob: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else torch.zeros(0).byte()
