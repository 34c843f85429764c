"""The wire format: trees of tensors as bytes.

A message holds the parts of a tree in order. Each part takes the smallest of four forms: dense
values (always for up to 8 numbers); indices and values; a bitmap and values; or values alone, at
the positions of the part before it, parts of up to 8 numbers aside. Where all values of one of the
last three are numbers of half precision, they are sent as such. Names and shapes are not sent: both
ends know the schema. `size` gives the length of `encode` without encoding, in tensor operations, so
that an engine can count bytes for a batch of messages.

Layout, little endian: magic ``FSM``, version (u8), kind (u8: 0 replaces, 1 updates), parts (u16),
reserved (u8); per part form (u8), dtype (u8), reserved (u16), numbers (u32), count (u32), payload.
Indices are u16 where a part has at most 65,536 numbers, else u32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift.trees import Tree

VERSION = 1
HEADER = struct.Struct("<3sBBHB")
PART = struct.Struct("<BBHII")
DENSE, INDEX, BITMAP, SAME = range(4)
REPLACE, UPDATE = range(2)
SMALL = 8  # parts of up to this many numbers are always dense
DTYPES = (torch.float32, torch.float64, torch.int64)
NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("<f4"),
    torch.float64: np.dtype("<f8"),
    torch.int64: np.dtype("<i8"),
}


HALF = len(DTYPES)  # code of values in half precision, of a part whose type is another


class MessageError(ValueError):
    """A message that does not fit its schema; the text names the defect and the part."""


def to_half(value: Tensor) -> Tensor:
    """Return the nearest numbers of half precision, in the type of ``value``.

    By sums: compilers may leave out a change of type there and back. Splitting (Dekker, 1971) keeps
    11 binary digits; below 2⁻¹⁴ half precision has multiples of 2⁻²⁴.
    """
    half, own = torch.finfo(torch.float16), torch.finfo(value.dtype)
    value = value.clamp(half.min, half.max)
    scaled = value * (half.eps / own.eps + 1.0)
    shift = 1.5 * half.smallest_normal * half.eps / own.eps
    small = (value + shift) - shift
    return torch.where(value.abs() < half.smallest_normal, small, scaled - (scaled - value))


def is_half(value: Tensor) -> Tensor:
    """Return which numbers are of half precision: those that `to_half` leaves as they are."""
    half, own = torch.finfo(torch.float16), torch.finfo(value.dtype)
    scaled = value * (half.eps / own.eps + 1.0)
    steps = value / (half.smallest_normal * half.eps)
    digits = scaled - (scaled - value) == value
    return digits & (steps.trunc() == steps) & (value.abs() <= half.max)


def _none(mask: Tensor) -> Tensor:
    """Return whether a mask is False everywhere; compiled, a sum is vectorised, `any` is not."""
    return mask.sum(dtype=torch.int32) == 0


def _index_bytes(numbers: int) -> int:
    return 2 if numbers <= 1 << 16 else 4


def _width(value: Tensor, mask: Tensor) -> Tensor:
    """Return the bytes of each chosen value, an int64 scalar tensor: 2 if half precision does."""
    width = torch.full((), value.element_size(), dtype=torch.int64)
    if not value.is_floating_point():
        return width
    return torch.where(_none(mask & ~is_half(value)), 2, width)


def _form_sizes(count: Tensor, numbers: int, itemsize: int, width: Tensor) -> Tensor:
    """Return the payload bytes of the forms dense, index and bitmap, stacked."""
    dense = torch.full_like(count, numbers * itemsize)
    index = count * (_index_bytes(numbers) + width)
    bitmap = (numbers + 7) // 8 + count * width
    return torch.stack([dense, index, bitmap])


def size(tree: Tree, changed: Tree | None = None) -> Tensor:
    """Return the length in bytes of `encode` for the same arguments, an int64 scalar tensor."""
    total = torch.zeros((), dtype=torch.int64) + HEADER.size
    before: Tensor | None = None
    listed = torch.zeros((), dtype=torch.bool)
    for name, value in tree.items():
        if value.numel() <= SMALL:
            total = total + PART.size + value.numel() * value.element_size()
            continue
        mask = (value != 0 if changed is None else changed[name]).reshape(-1)
        count = mask.sum(dtype=torch.int32).long()
        width = _width(value.reshape(-1), mask)
        sizes = _form_sizes(count, mask.numel(), value.element_size(), width)
        payload, form = sizes.amin(0), sizes.argmin(0)
        if before is not None and before.numel() == mask.numel():
            same = listed & _none(mask ^ before) & (count * width < payload)
            payload = torch.where(same, count * width, payload)
            form = torch.where(same, SAME, form)
        total = total + PART.size + payload
        before, listed = mask, form != DENSE
    return total


def encode(tree: Tree, changed: Tree | None = None) -> bytes:
    """Encode a tree; with ``changed`` (boolean masks), only those positions of it, as an update."""
    kind = REPLACE if changed is None else UPDATE
    pieces = [HEADER.pack(b"FSM", VERSION, kind, len(tree), 0)]
    before: Tensor | None = None
    for name, value in tree.items():
        if value.dtype not in DTYPES:
            msg = f"part {name!r} is {value.dtype}; send float32, float64 or int64"
            raise MessageError(msg)
        flat = value.detach().cpu().reshape(-1)
        mask = (flat != 0) if changed is None else changed[name].cpu().reshape(-1)
        width = int(_width(flat, mask))
        form = _form(flat, mask, before, width)
        pieces += _encode_part(flat, mask, form, width)
        if mask.numel() > SMALL:
            before = None if form == DENSE else mask
    return b"".join(pieces)


def _form(flat: Tensor, mask: Tensor, before: Tensor | None, width: int) -> int:
    if mask.numel() <= SMALL:
        return DENSE
    count = int(mask.sum())
    sizes = _form_sizes(torch.tensor(count), mask.numel(), flat.element_size(), torch.tensor(width))
    form = int(sizes.argmin())
    same = before is not None and torch.equal(mask, before)
    return SAME if same and count * width < sizes[form] else form


def _encode_part(flat: Tensor, mask: Tensor, form: int, width: int) -> list[bytes]:
    values = flat if form == DENSE else flat[mask]
    halved = form != DENSE and width < flat.element_size()
    code = HALF if halved else DTYPES.index(flat.dtype)
    payload = values.numpy().astype("<f2" if halved else NUMPY[flat.dtype]).tobytes()
    if form == INDEX:
        indices = mask.nonzero().squeeze(-1).numpy()
        payload = indices.astype(f"<u{_index_bytes(mask.numel())}").tobytes() + payload
    elif form == BITMAP:
        payload = np.packbits(mask.numpy(), bitorder="little").tobytes() + payload
    return [PART.pack(form, code, 0, mask.numel(), int(mask.sum())), payload]


@dataclass
class _Reader:
    message: bytes
    position: int = 0

    def take(self, length: int, what: str) -> bytes:
        piece = self.message[self.position : self.position + length]
        if len(piece) < length:
            msg = f"truncated message: {what} needs {length} bytes, {len(piece)} are left"
            raise MessageError(msg)
        self.position += length
        return piece


def decode(message: bytes, schema: Tree, held: Tree | None = None) -> Tree:
    """Decode a message for a tree with the shapes and dtypes of ``schema``.

    Args:
        message: what `encode` made.
        schema: a tree with the expected leaves.
        held: what the receiver has; an update is laid over it.

    Raises:
        MessageError: truncated, oversized, another version, wrong shape or dtype, an index out of
            range, duplicate or unsorted, non-finite values, or an update without ``held``.
    """
    reader = _Reader(message)
    magic, version, kind, parts, _ = HEADER.unpack(reader.take(HEADER.size, "the header"))
    if magic != b"FSM" or version != VERSION:
        msg = f"not a version {VERSION} message: it begins with {message[:4]!r}"
        raise MessageError(msg)
    if kind not in {REPLACE, UPDATE}:
        msg = f"unexpected kind of message: {kind}"
        raise MessageError(msg)
    if kind == UPDATE and held is None:
        msg = "an update, but nothing is held"
        raise MessageError(msg)
    if parts != len(schema):
        msg = f"wrong number of parts: {parts}, expected {len(schema)}"
        raise MessageError(msg)
    decoded = dict(_decode_parts(reader, schema, held if kind == UPDATE else None))
    if reader.position != len(message):
        msg = f"oversized message: {len(message) - reader.position} bytes after the last part"
        raise MessageError(msg)
    return decoded


def _decode_parts(reader: _Reader, schema: Tree, held: Tree | None) -> Iterator[tuple[str, Tensor]]:
    before: np.ndarray | None = None
    for name, expected in schema.items():
        form, dtype, _, numbers, count = PART.unpack(
            reader.take(PART.size, f"the head of {name!r}")
        )
        halved = dtype == HALF and form != DENSE and expected.is_floating_point()
        if not halved and (dtype >= len(DTYPES) or DTYPES[dtype] != expected.dtype):
            msg = f"wrong dtype of {name!r}: code {dtype}, expected {expected.dtype}"
            raise MessageError(msg)
        if numbers != expected.numel() or count > numbers:
            found = f"{count} of {numbers} numbers"
            msg = f"wrong shape of {name!r}: {found}, expected {expected.numel()}"
            raise MessageError(msg)
        positions = _positions(reader, name, form, numbers, count, before)
        stored = np.dtype("<f2") if halved else NUMPY[expected.dtype]
        values = np.frombuffer(
            reader.take(len(positions) * stored.itemsize, f"the values of {name!r}"), stored
        )
        if not np.isfinite(values).all():
            msg = f"non-finite value in {name!r}"
            raise MessageError(msg)
        flat = (
            np.zeros(numbers, NUMPY[expected.dtype])
            if held is None
            else held[name].cpu().numpy().reshape(-1).copy()
        )
        flat[positions] = values
        if numbers > SMALL:
            before = None if form == DENSE else positions
        yield name, torch.from_numpy(flat.copy()).reshape(expected.shape)


def _positions(
    reader: _Reader, name: str, form: int, numbers: int, count: int, before: np.ndarray | None
) -> np.ndarray:
    if form == DENSE:
        return np.arange(numbers)
    if form == INDEX:
        width = _index_bytes(numbers)
        raw = reader.take(count * width, f"the indices of {name!r}")
        indices = np.frombuffer(raw, f"<u{width}").astype(np.int64)
        if count and indices.max() >= numbers:
            msg = f"index out of range in {name!r}: {indices.max()} of {numbers}"
            raise MessageError(msg)
        if (np.diff(indices) <= 0).any():
            msg = f"duplicate or unsorted index in {name!r}"
            raise MessageError(msg)
        return indices
    if form == BITMAP:
        raw = reader.take((numbers + 7) // 8, f"the bitmap of {name!r}")
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), count=numbers, bitorder="little")
        marked = int(bits.sum())
        if marked != count:
            msg = (
                f"wrong shape of {name!r}: the bitmap marks {marked} numbers, the head says {count}"
            )
            raise MessageError(msg)
        return np.flatnonzero(bits)
    if (
        form == SAME
        and before is not None
        and len(before) == count
        and (not count or before.max() < numbers)
    ):
        return before
    msg = f"unknown form {form} of {name!r}"
    raise MessageError(msg)
