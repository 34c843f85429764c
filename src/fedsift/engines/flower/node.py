"""A node: the process at one or several sites that answers the server's messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsift._version import __version__
from fedsift.data import DataError, FederatedData
from fedsift.engines.flower.limits import Limit
from fedsift.engines.flower.memory import Memory
from fedsift.engines.flower.nodes import HELLO
from fedsift.engines.flower.parts import CLASSES, Part, Parts
from fedsift.engines.flower.site import Problems, Site

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Where a site's rows and state are.

    Attributes:
        describe: (what the server wants to predict) → what it must know of the columns, or why the
            site declines, under "declines".
        read: (what all sites agreed on) → the rows.
        folder: where the state of runs is kept.
        limit: what the site tells at most; None: whatever is asked.
    """

    describe: Callable[[Mapping[str, Any]], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], FederatedData]
    folder: Path
    limit: Limit | None = None


@dataclass(frozen=True)
class Node:
    """Sites by name, and how to make the problems that a server may describe."""

    sources: Mapping[str, Source]
    problems: Problems
    classes: Mapping[str, type] = field(default_factory=lambda: CLASSES)

    def answer(self, parts: Parts) -> dict[str, list[Part]]:
        """Answer a message: a greeting, or questions to some of the sites."""
        head = parts[HELLO][0].facts if parts.get(HELLO) else {}
        if head.get("kind") == "hello":
            return {name: [self._hello(source, head)] for name, source in self.sources.items()}
        return {
            name: self._site(name, head, several)
            for name, several in parts.items()
            if name != HELLO
        }

    def _hello(self, source: Source, wanted: Mapping[str, Any]) -> Part:
        try:
            said = source.describe(wanted)
        except DataError as error:
            # A message about a file may quote its cells, which stay here.
            log.error("the site's file cannot be used: %s", error)  # noqa: TRY400  one line
            return Part({"kind": "hello", "error": "its file cannot be used; its log says why"})
        return Part({"kind": "hello", "version": __version__, **said})

    def _site(self, name: str, head: Mapping[str, Any], parts: Sequence[Part]) -> list[Part]:
        if name not in self.sources:
            error = {"kind": "error", "error": f"site {name!r} is not at this node"}
            return [Part(error) for _ in parts]
        source = self.sources[name]
        try:
            data = source.read(head)
            memory = Memory.of(source.folder, str(head["run"]))
            memory.check_rows(data.fingerprint())
        except (DataError, OSError, KeyError, ValueError) as error:
            log.error("site %r cannot take part: %s", name, error)  # noqa: TRY400  one line
            said = {"kind": "error", "error": "its file cannot be used; its log says why"}
            return [Part(said) for _ in parts]
        site = Site(data, memory, self.problems, self.classes, source.limit)
        return [site.answer(part) for part in parts]
