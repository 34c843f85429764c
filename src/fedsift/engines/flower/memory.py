"""What a site keeps in files between messages, so that it survives the process and the machine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsift import trees
from fedsift.engines.flower.parts import VERSION, PartError
from fedsift.sealed import seal, unseal, write_atomic
from fedsift.trees import Tree

NAMES = {"bias": "intercept"}  # of leaves, for people


class LostError(PartError):
    """A state that the server counts on is not here any more."""


@dataclass(frozen=True)
class Memory:
    """The folder of one run at a site: definitions, and states after exchanges that may count.

    The state after an exchange is pending until the server names the exchange as the last that it
    accepted; it may also go back to an earlier one, after a divergence or when it was restarted.
    Every state is a file of its own, by the number of its exchange, and the server says with each
    request which ones to keep.
    """

    folder: Path

    @classmethod
    def of(cls, folder: Path, run: str) -> Memory:
        """Return the memory of a run in the folder of a site.

        Raises:
            PartError: the run's name is none, and could lead elsewhere.
        """
        if not re.fullmatch(r"[\w-]{1,64}", run):
            msg = f"{run!r} is no name of a run"
            raise PartError(msg)
        return cls(folder / run)

    def define(self, key: str, content: bytes) -> None:
        """Keep a definition."""
        write_atomic(self._definition(key), content)

    def definition(self, key: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and facts of a definition.

        Raises:
            LostError: it was never told, or its file is damaged.
        """
        try:
            return unseal(self._definition(key))
        except ValueError as error:
            raise LostError(f"definition {key}") from error

    def _definition(self, key: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{1,64}", key):
            msg = f"{key!r} is no key"
            raise PartError(msg)
        return self.folder / f"{key}.safetensors"

    def check_rows(self, mark: str) -> None:
        """Remember the rows' fingerprint, which stays at the site; refuse other rows later.

        Raises:
            PartError: the site's file has changed since the run began.
        """
        file = self.folder / "rows.sha256"
        if not file.exists():
            write_atomic(file, mark.encode())
        elif file.read_text() != mark:
            msg = "the site's file has changed since the run began; bring it back, or begin anew"
            raise PartError(msg)

    def leave(self, site: str, own: Tree) -> Path:
        """Write the site's own values to a file beside the folder, which outlives the run."""
        file = self.folder.with_name(f"{self.folder.name}-own.json")
        values = {NAMES.get(leaf, leaf): value.tolist() for leaf, value in own.items()}
        told = {"version": VERSION, "run": self.folder.name, "site": site, **values}
        write_atomic(file, json.dumps(told, indent=1).encode())
        return file

    def remove(self) -> None:
        """Remove the folder, and that of the site's runs if nothing else is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()

    def exchanges(self, work: str) -> Exchanges:
        """Return the states of a piece of work."""
        return Exchanges(self._definition(work).with_suffix(""))


@dataclass(frozen=True)
class Exchanges:
    """The states after the exchanges of one training, a file each."""

    folder: Path

    def load(self, start: Mapping[int, Any], seeds: Sequence[int], ticks: Sequence[int]) -> Any:
        """Return the state [S, ...] of each seed after the exchange of its number.

        ``start``: what seeds have before their first exchange, the number -1.

        Raises:
            LostError: a file is gone or damaged.
        """
        template = next(iter(start.values()))
        found: dict[int, dict[int, Any]] = {-1: dict(start)}
        for tick in set(ticks) - {-1}:
            held, state = self._read(tick, template)
            found[tick] = {seed: trees.unstack(state, row) for row, seed in enumerate(held)}
        try:
            return trees.stack(found[tick][seed] for seed, tick in zip(seeds, ticks, strict=True))
        except KeyError as error:
            raise LostError(f"the state of seed {error} after an exchange") from error

    def _read(self, tick: int, template: Any) -> tuple[list[int], Any]:
        try:
            tensors, _ = unseal(self._file(tick))
            seeds = tensors["seeds"].tolist()
            numbers = iter(range(len(trees.leaves(template))))
            state = trees.map_tensors(lambda _: tensors[f"{next(numbers)}"], template)
        except (ValueError, KeyError) as error:
            raise LostError(f"the state of exchange {tick}") from error
        return seeds, state

    def save(self, tick: int, seeds: Sequence[int], state: Any, facts: dict[str, Any]) -> None:
        """Keep the state [S, ...] of seeds after an exchange."""
        tensors = {str(i): leaf for i, leaf in enumerate(trees.leaves(state))}
        write_atomic(self._file(tick), seal(tensors | {"seeds": torch.tensor(seeds)}, facts))

    def keep(self, ticks: Iterable[int]) -> None:
        """Forget all other exchanges."""
        kept = {self._file(tick) for tick in ticks}
        for file in self.folder.glob("*.safetensors"):
            if file not in kept:
                file.unlink(missing_ok=True)

    def _file(self, tick: int) -> Path:
        return self.folder / f"{tick:07d}.safetensors"
