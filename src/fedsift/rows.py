"""Tables of tensors that grow by the row, and leave the memory when they are large."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from typing import Any

import torch
from torch import Tensor

from fedsift import trees

IN_MEMORY = 1 << 24  # bytes of a tensor from which it lies in a file


class Rows:
    """Equally shaped structures, a row each; new rows are zeros.

    A tensor of more than `IN_MEMORY` bytes lies in a temporary file without a name, mapped into
    memory: rows that are seldom used cost disk, not memory. The file is in the folder that
    ``TMPDIR`` names.

    Attributes:
        values: the structure, leaves [capacity, ...]; another one after each `grow`.
        count: rows in use.
        capacity: rows there are.
    """

    def __init__(self, template: Any) -> None:
        """Start empty; ``template`` is one row, leaves [...]."""
        self.count = self.capacity = 0
        self.values = trees.map_tensors(lambda t: t.new_zeros((0, *t.shape)), template)
        self._files: dict[int, Any] = {}

    def grow(self, count: int) -> None:
        """Have ``count`` rows in use, at least.

        Raises:
            OSError: the disk is full.
        """
        self.count = max(self.count, count)
        if count > self.capacity:
            leaves = enumerate(trees.leaves(self.values))
            capacity = max(count, self.capacity + self.capacity // 2)
            larger = iter([self._larger(number, leaf, capacity) for number, leaf in leaves])
            self.values = trees.map_tensors(lambda _: next(larger), self.values)
            self.capacity = capacity

    def used(self) -> Any:
        """Return the rows in use, leaves [count, ...]."""
        return trees.map_tensors(lambda t: t[: self.count], self.values)

    def fill(self, values: Any) -> None:
        """Begin anew with the rows of a structure."""
        rows = len(trees.leaves(values)[0])
        self.count = 0
        self.grow(rows)

        def put(mine: Tensor, given: Tensor) -> None:
            mine[:rows], mine[rows:] = given, 0

        trees.map_tensors(put, self.values, values)

    def _larger(self, number: int, leaf: Tensor, capacity: int) -> Tensor:
        shape = (capacity, *leaf.shape[1:])
        size = leaf.element_size() * math.prod(shape)
        if size <= IN_MEMORY or leaf.device.type != "cpu":
            return torch.cat([leaf, leaf.new_zeros((capacity - len(leaf), *leaf.shape[1:]))])
        moves = number not in self._files
        if moves:
            opened = tempfile.TemporaryFile(prefix="fedsift-")  # noqa: SIM115 - lives as long as self
            weakref.finalize(self, opened.close)
            self._files[number] = opened
        file = self._files[number].fileno()
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size)  # a full disk is an error now, not a crash later
            else:
                os.truncate(file, size)
        except OSError as error:
            error.add_note(
                f"the states of the sites need {size >> 20} MB in {tempfile.gettempdir()}; "
                "set TMPDIR to a folder with more room"
            )
            raise
        mapped = torch.frombuffer(mmap.mmap(file, size), dtype=leaf.dtype).reshape(shape)
        if moves:
            mapped[: len(leaf)] = leaf
        return mapped
