"""Noise that nobody can take off again: a stream cipher in torch operations.

`fedsift.random` is made for reproducible runs, and from some of its numbers the others can be
computed. Here a number is a function of a secret of 256 bits as well; without it a draw cannot be
told from chance, however many others are known (the cipher of RFC 8439, ChaCha20).
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["normal", "secret", "words"]

_CONSTANT = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_BLOCK = 16  # words


def secret(seed: int | None = None) -> Tensor:
    """Return a secret, int32 [8]: fresh from the operating system, or a function of ``seed``."""
    if seed is None:
        drawn = secrets.token_bytes(32)
    else:
        drawn = hashlib.sha256(f"fedsift noise {seed}".encode()).digest()
    return torch.frombuffer(bytearray(drawn), dtype=torch.int32).clone()


def words(secret: Tensor, nonce: Sequence[Tensor], n: int, first: int = 0) -> Tensor:
    """Return the first n words of the key stream, int32 [n].

    Args:
        secret: int32 [8].
        nonce: three int32 scalars; never twice the same for one secret and other data.
        n: how many.
        first: number of the first block.

    Source: RFC 8439, section 2.3.
    """
    blocks = -(-n // _BLOCK)
    device = nonce[0].device
    counter = torch.arange(first, first + blocks, dtype=torch.int32, device=device)
    constant = torch.tensor(_CONSTANT, dtype=torch.int32, device=device)
    fixed = torch.cat([constant, secret.to(device)])
    tail = torch.stack([counter, *(part.expand(blocks) for part in nonce)], 1)
    start = torch.cat([fixed.expand(blocks, 12), tail], 1)
    a, b, c, d = rows = start.reshape(blocks, 4, 4).unbind(1)
    for _ in range(10):
        a, b, c, d = _quarter(a, b, c, d)
        a, b, c, d = _quarter(a, b.roll(-1, -1), c.roll(-2, -1), d.roll(-3, -1))
        b, c, d = b.roll(1, -1), c.roll(2, -1), d.roll(3, -1)
    mixed = [after + before for after, before in zip((a, b, c, d), rows, strict=True)]
    return torch.stack(mixed, 1).reshape(-1)[:n]


def normal(secret: Tensor, key: Tensor, number: int, n: int) -> Tensor:
    """Return n standard normal numbers, float64 [n], up to 8.6 in size.

    ``√(-2 log u) cos 2πw`` and ``... sin 2πw`` of uniform numbers with 53 bits.

    Args:
        secret: int32 [8].
        key: int64 scalar.
        number: of the draw; never twice the same key and number for other data.
        n: how many.

    Source: Box & Muller, 1958.
    """
    half = -(-n // 2)
    number_word = torch.tensor(number, dtype=torch.int32, device=key.device)
    nonce = (key.to(torch.int32), (key >> 32).to(torch.int32), number_word)
    drawn = words(secret, nonce, 4 * half).reshape(4, half).to(torch.int64) & 0xFFFFFFFF
    u, w = (
        ((high << 21 | low >> 11).double() + 0.5) * 2.0**-53
        for high, low in ((drawn[0], drawn[1]), (drawn[2], drawn[3]))
    )
    radius, angle = (-2.0 * u.log()).sqrt(), 2.0 * math.pi * w
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:n]


def _quarter(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the quarter round of four columns or diagonals at once."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    return a, _rotated(b ^ c, 7), c, d


def _rotated(x: Tensor, bits: int) -> Tensor:
    """Return words rotated to the left; torch shifts to the right arithmetically."""
    return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))
