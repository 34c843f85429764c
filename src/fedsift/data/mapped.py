"""Data in a folder of memory-mapped arrays: as many sites as the disk holds.

The folder holds ``x.npy``, ``y.npy`` and ``weight.npy`` with the rows of all sites, one site below
the other, ``offsets.npy``, where ids were given ``ids.npy`` and ``id_ends.npy`` (their text, and
where each ends), and ``data.json`` with names, kinds and the version of the format.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import torch

from fedsift.data.coding import code_labels, encode, has_classes
from fedsift.data.errors import DataError
from fedsift.data.federated import FederatedData
from fedsift.data.grouping import Numbered, Texts, plain_values, texts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from numpy.typing import ArrayLike
    from torch import Tensor

    from fedsift.data.coding import Label, Outcome

__all__ = ["MappedWriter", "open_mapped", "save_mapped"]

VERSION = 1
_FACTS = "data.json"
_TYPES = {"x": "<f4", "weight": "<f4", "ids": "|u1", "id_ends": "<i8"}


class _Column:
    """An .npy file to which rows are added; its length is written into the head at the end."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.count = shape, dtype, 0
        self.file: BinaryIO = path.open("wb")
        self._head()

    def _head(self) -> None:
        # NumPy leaves room in the head for a length of any digits.
        head = {"descr": self.dtype, "fortran_order": False, "shape": (self.count, *self.shape)}
        self.file.seek(0)
        np.lib.format.write_array_header_1_0(self.file, head)

    def add(self, values: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.count += len(values)

    def close(self) -> None:
        self._head()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


class MappedWriter:
    """Writes a data set one site at a time, so that no more than one site is in memory.

    The folder appears when the ``with`` block ends; after an error there is none.

        with MappedWriter("cohort", outcome="regression", features=genes) as writer:
            for name in hospitals:
                writer.add(name, *load(name))
        data = open_mapped("cohort")
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        outcome: Outcome,
        classes: Sequence[str] = (),
        features: Sequence[str] = (),
        target: str = "target",
    ) -> None:
        """Begin.

        Args:
            folder: to be made; it must not exist.
            outcome: as in `FederatedData`.
            classes: names of the classes in the order of their codes; none for other outcomes.
            features: names of the columns; empty for "x0", "x1", ... (tables) or none (images).
            target: name of the target.

        Raises:
            DataError: the folder exists.
        """
        self.folder = Path(folder)
        if self.folder.exists():
            raise DataError(f"{self.folder} exists; give a new folder, or remove it first")
        self.outcome, self.target = outcome, target
        self.classes, self.features = tuple(classes), tuple(features)
        self.notes: tuple[str, ...] = ()
        self.descriptions: dict[str, str] = {}
        self._sites: dict[str, None] = {}
        self._ends = [0]
        self._columns: dict[str, _Column] = {}
        self._partial = self.folder.with_name(f".{self.folder.name}-{os.getpid()}")

    def add(
        self,
        site: str,
        x: ArrayLike | Tensor,
        y: Sequence[Label] | ArrayLike | Tensor,
        *,
        weight: ArrayLike | Tensor | None = None,
        ids: Sequence[object] | ArrayLike | None = None,
    ) -> None:
        """Write the rows of a site.

        Args:
            site: its name, another one each time.
            x: n rows of numbers [n, ...], the same kind of row at every site.
            y: n numbers, or names of classes; or [n, K] labels, as `FederatedData.from_arrays`.
            weight: n positive sample weights; None for ones.
            ids: n ids, for all sites or for none; None for "site:number".

        Raises:
            DataError: the arrays do not fit together or the sites before, or a value is not finite.
        """
        values = torch.as_tensor(x, dtype=torch.float32)
        if not self.features and values.ndim == 2:
            self.features = tuple(f"x{column}" for column in range(values.shape[1]))
        try:
            part = FederatedData(
                x=values,
                y=self._coded(plain_values(y)),
                weight=torch.ones(len(values))
                if weight is None
                else torch.as_tensor(weight).float(),
                offsets=(0, len(values)),
                sites=(site,),
                features=self.features,
                rows=Numbered((site,), (0, len(values))) if ids is None else tuple(texts(ids)),
                outcome=self.outcome,
                classes=self.classes,
                target=self.target,
            )
        except (DataError, TypeError, ValueError) as error:
            raise DataError(f"site '{site}': {error}") from error
        self._append(part, ids=ids is not None)

    def _coded(self, y: list[Any]) -> Tensor:
        if self.outcome == "multilabel":
            return code_labels([list(column) for column in zip(*y, strict=True)], self.classes)
        if has_classes(self.outcome):
            return encode(y, self.classes, self.target)
        return torch.tensor(y, dtype=torch.float32)

    def __enter__(self) -> Self:
        self._partial.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for column in self._columns.values():
                column.file.close()
            shutil.rmtree(self._partial, ignore_errors=True)

    def _append(self, part: FederatedData, *, ids: bool) -> None:
        """Write data that were checked."""
        shape = tuple(part.x.shape[1:])
        if not self._columns:
            kinds = {**_TYPES, "y": "<f4" if part.y.is_floating_point() else "<i8"}
            shapes = {"x": shape, "y": tuple(part.y.shape[1:])}
            names = ["x", "y", "weight"] + ["ids", "id_ends"] * ids
            for name in names:
                path = self._partial / f"{name}.npy"
                self._columns[name] = _Column(path, kinds[name], shapes.get(name, ()))
        before = self._columns["x"].shape
        if shape != before or ids != ("ids" in self._columns):
            change = f"rows of shape {shape}" if shape != before else "ids for some sites only"
            raise DataError(
                f"site '{part.sites[0]}': {change}; give every site rows of shape {before} and"
                " either ids or none"
            )
        for name in part.sites:
            if name in self._sites:
                raise DataError(f"site '{name}' was written before; site names must differ")
            self._sites[name] = None
        self._ends += [self._ends[-1] + end for end in part.offsets[1:]]
        for name in ("x", "y", "weight"):
            self._columns[name].add(getattr(part, name).numpy())
        if ids:
            encoded = [row.encode() for row in part.rows]
            start = self._columns["ids"].count
            self._columns["id_ends"].add(start + np.cumsum([len(text) for text in encoded]))
            self._columns["ids"].add(np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def _finish(self) -> None:
        if not self._sites:
            raise DataError(f"no site was written to {self.folder}; add one at least")
        offsets = _Column(self._partial / "offsets.npy", "<i8", ())
        offsets.add(np.array(self._ends))
        for column in [*self._columns.values(), offsets]:
            column.close()
        facts = {
            "format": "fedsift data",
            "version": VERSION,
            "outcome": self.outcome,
            "classes": self.classes,
            "target": self.target,
            "features": self.features,
            "sites": list(self._sites),
            "ids": "ids" in self._columns,
            "descriptions": self.descriptions,
            "notes": self.notes,
        }
        with (self._partial / _FACTS).open("w", encoding="utf-8") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        self._partial.rename(self.folder)


def save_mapped(data: FederatedData, folder: str | Path) -> FederatedData:
    """Write data to a folder, and return them as `open_mapped` does.

    Raises:
        DataError: the folder exists, or values are missing.
    """
    if data.missing is not None and bool(data.missing.any()):
        raise DataError(
            "values are missing; fill them first with Standardiser.fit(data).apply(data)"
        )
    own = not isinstance(data.rows, Numbered)
    with MappedWriter(
        folder,
        outcome=data.outcome,
        classes=data.classes,
        features=data.features,
        target=data.target,
    ) as writer:
        writer.notes, writer.descriptions = data.notes, dict(data.descriptions)
        writer._append(data, ids=own)  # noqa: SLF001
    return open_mapped(folder)


def open_mapped(folder: str | Path) -> FederatedData:
    """Open a folder that `MappedWriter` made; rows are read from disk when they are needed.

    The numbers were checked when they were written, and are not read for opening. They are
    read-only. What stays in memory is about 150 bytes a site.

    Raises:
        DataError: there is no such folder, its format is another version, or a file is damaged.
    """
    folder = Path(folder)
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        version = facts["version"] if facts.get("format") == "fedsift data" else None
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} holds no {_FACTS}; give a folder that fedsift.data.MappedWriter made"
        ) from error
    except (OSError, ValueError, AttributeError, KeyError) as error:
        raise DataError(f"{folder / _FACTS} cannot be read ({error}); write it again") from error
    if version != VERSION:
        raise DataError(f"{folder} has format version {version}, this release reads {VERSION}")
    try:
        return _opened(folder, facts)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} is damaged ({error}); write it again") from error


def _opened(folder: Path, facts: dict[str, Any]) -> FederatedData:
    offsets = tuple(np.load(folder / "offsets.npy").tolist())
    sites = tuple(facts["sites"])
    rows: Sequence[str] = Numbered(sites, offsets)
    if facts["ids"]:
        rows = Texts(_mapped(folder, "ids"), _mapped(folder, "id_ends"))
    x = _tensor(folder, "x")
    return FederatedData(
        x=x,
        y=_tensor(folder, "y"),
        weight=_tensor(folder, "weight"),
        offsets=offsets,
        sites=sites,
        features=tuple(facts["features"]),
        rows=rows,
        outcome=facts["outcome"],
        classes=tuple(facts["classes"]),
        target=facts["target"],
        descriptions=facts["descriptions"],
        notes=tuple(facts["notes"]),
        checked=x,
    )


def _mapped(folder: Path, name: str) -> np.ndarray:
    path = folder / f"{name}.npy"
    values: np.ndarray = np.load(path, mmap_mode="r")
    return values


def _tensor(folder: Path, name: str) -> Tensor:
    with warnings.catch_warnings():
        # Nothing in this package writes to the tensors of a data set.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(_mapped(folder, name))
