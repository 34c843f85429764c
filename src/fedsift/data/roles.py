"""What rows are for when something is to be forgotten, the same on every machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedsift.data.errors import DataError, NamesError, counted, listed, nearest
from fedsift.data.federated import FORGET, HELD_OUT, RETAIN
from fedsift.data.remote import RemoteData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedsift.data.federated import FederatedData

__all__ = ["of_role", "with_roles"]


def with_roles(
    data: FederatedData,
    forget: Mapping[str, Sequence[str] | None],
    held_out: Mapping[str, Sequence[str]] | None = None,
) -> FederatedData:
    """Return the data with a role for each row; the others are retained.

    Args:
        data: rows that are here, or at their sites; each site hears what is named of it alone.
        forget: of some sites, the ids of the rows to forget; None: all rows of the site.
        held_out: of some sites, the ids of rows that are only looked at, whatever ``forget`` says.

    Raises:
        DataError: a site or an id is unknown.
    """
    held_out = held_out or {}
    for site in (*forget, *held_out):
        if site not in data.sites:
            raise DataError(f"no site is called '{site}'; {nearest(site, data.sites)}")
    if isinstance(data, RemoteData):
        return data.with_roles(forget, held_out)
    role = torch.full((data.n_samples,), RETAIN, dtype=torch.int8)
    for value, named in ((FORGET, forget), (HELD_OUT, held_out)):
        for site, ids in named.items():
            rows = data.slices[data.sites.index(site)]
            role[rows] = torch.where(_among(site, data.rows[rows], ids), value, role[rows])
    return replace(data, role=role)


def of_role(data: FederatedData, role: int) -> FederatedData:
    """Return the rows of a role, and nothing of roles.

    Raises:
        DataError: there is none.
    """
    assert data.role is not None  # noqa: S101  asked of data with roles
    if isinstance(data, RemoteData):
        return data.of_role(role)
    return replace(data.take(data.role == role), role=None)


def _among(site: str, rows: Sequence[str], ids: Sequence[str] | None) -> Tensor:
    """Return which rows are named; no other id is told, for this is said to the server, too."""
    if ids is None:
        return torch.ones(len(rows), dtype=torch.bool)
    unknown = sorted(set(ids) - set(rows))
    if unknown:
        raise NamesError(
            f"site '{site}' has no row with the {counted(len(unknown), 'id')} {listed(unknown)};"
            " correct the ids, or leave them out"
        )
    wanted = set(ids)
    return torch.tensor([row in wanted for row in rows])
