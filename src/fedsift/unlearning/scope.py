"""What is to be forgotten: sites, rows or classes, as roles of rows and as a name to be kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, field_validator

from fedsift.data import DataError, FederatedData, RemoteData, with_roles
from fedsift.data.coding import has_classes
from fedsift.data.errors import nearest
from fedsift.data.federated import FORGET, HELD_OUT, RETAIN
from fedsift.sealed import fingerprint


class Scope(BaseModel):
    """What a request asks to forget; the order of the names does not matter.

    Attributes:
        sites: all rows of these sites.
        rows: the rows with these ids, at any site.
        classes: all rows of these classes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sites: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @field_validator("sites", "rows", "classes")
    @classmethod
    def _sorted(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(names)))

    def __bool__(self) -> bool:
        """Tell whether anything is named."""
        return bool(self.sites or self.rows or self.classes)

    def __or__(self, other: Scope) -> Scope:
        """Return what both name."""
        parts = {name: getattr(self, name) + getattr(other, name) for name in Scope.model_fields}
        return Scope(**parts)

    @property
    def text(self) -> str:
        """Words for people."""
        named = {"site": self.sites, "row": self.rows, "class": self.classes}
        parts = [f"{kind} {', '.join(names)}" for kind, names in named.items() if names]
        return " and ".join(parts) or "nothing"

    def hashed(self, salt: str) -> str:
        """Return a hash that stays when the names are purged."""
        return fingerprint(salt, self.model_dump(mode="json"))

    def unknown(self, data: FederatedData) -> list[str]:
        """Return a line for each name that the data do not have.

        Raises:
            DataError: see `roles`.
        """
        self._refuse_rows_elsewhere(data)
        have: dict[str, Any] = {
            "site": (self.sites, data.sites),
            "row": (self.rows, data.rows),
            "class": (self.classes, data.classes if has_classes(data.outcome) else ()),
        }
        return [
            f"no {kind} is called {name!r}; {nearest(name, list(there))}"
            for kind, (asked, there) in have.items()
            if asked
            for name in sorted(set(asked) - set(there))
        ]

    def roles(self, data: FederatedData, held_out: torch.Tensor | None = None) -> FederatedData:
        """Return the data with roles; ``held_out`` [N]: rows that are only looked at.

        Raises:
            DataError: the rows are at their sites, and more is named than sites.
        """
        if isinstance(data, RemoteData):
            self._refuse_rows_elsewhere(data, held_out)
            return with_roles(data, dict.fromkeys(s for s in self.sites if s in data.sites))
        role = torch.full((data.n_samples,), RETAIN, dtype=torch.int8)
        for site, rows in zip(data.sites, data.slices, strict=True):
            if site in self.sites:
                role[rows] = FORGET
        if self.rows:
            asked = set(self.rows)
            role[torch.tensor([row in asked for row in data.rows])] = FORGET
        for name in self.classes:
            if name in data.classes and has_classes(data.outcome):
                role[data.y == data.classes.index(name)] = FORGET
        if held_out is not None:
            role[held_out] = HELD_OUT
        return replace(data, role=role)

    def _refuse_rows_elsewhere(
        self, data: FederatedData, held_out: torch.Tensor | None = None
    ) -> None:
        if isinstance(data, RemoteData) and (self.rows or self.classes or held_out is not None):
            raise DataError(
                "rows that stay at their sites are named site by site, so that no site hears of "
                "another's: give them their roles with fedsift.data.with_roles, and forget with "
                "fedsift.unlearning.methods.unlearn"
            )


def hashed_name(salt: str, kind: str, name: str) -> str:
    """Return what is kept of a name that was forgotten: enough to know it again, not to read it."""
    return hashlib.sha256(f"{salt}:{kind}:{name}".encode()).hexdigest()
