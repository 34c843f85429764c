"""Counter-based randomness in torch operations: the library's only source of random numbers.

A number is a pure function of a 64-bit key and a counter, so there is no generator to seed, carry
or restore: the same key gives the same numbers on every engine, in every process and under
``torch.func.vmap`` and ``torch.compile``, and a longer draw starts with the shorter one, so padding
changes nothing. Statistical quality is the aim; these functions are not for cryptography.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["bits", "fold", "key", "keys", "normal", "uniform"]


def _signed(value: int, width: int) -> int:
    """Return the two's complement reading of an unsigned ``width``-bit constant."""
    return value - (1 << width) if value >> (width - 1) else value


_GOLDEN_64: Final = _signed(0x9E3779B97F4A7C15, 64)
_MIX_64: Final = (
    (30, _signed(0xBF58476D1CE4E5B9, 64)),
    (27, _signed(0x94D049BB133111EB, 64)),
    (31, None),
)
_GOLDEN_32: Final = _signed(0x9E3779B9, 32)
_MIX_32: Final = (
    (16, 0x7FEB352D),
    (15, _signed(0x846CA68B, 32)),
    (16, None),
)
_STREAMS: Final = (0, 0x3C6EF372, 0x1BBE2A55, 0x5A4D0F93)
_MAX_COUNT: Final = 2**31 - 1
_FLOATS: Final = (torch.float32, torch.float64)


def key(*parts: int | str) -> Tensor:
    """Hash any sequence of integers and strings to a key, on the host.

    ``key = blake2b-64(tag, length, payload of each part)``; types and boundaries enter the hash, so
    ``key("a", "b")``, ``key("ab")`` and ``key(1)``, ``key("1")`` all differ.

    Args:
        parts: at least one integer (of any size) or string.

    Returns:
        int64 scalar tensor on the CPU, any value of 64 bits.

    Raises:
        ValueError: no part was given.
        TypeError: a part is neither ``int`` nor ``str`` (a ``bool`` is refused: it equals 0 or 1).

    Source: RFC 7693 (BLAKE2).

    """
    if not parts:
        msg = "key() needs at least one part; pass for example key(seed, round, 'purpose')"
        raise ValueError(msg)
    return torch.tensor(_digest(parts), dtype=torch.int64)


def keys(*parts: int | str, last: Sequence[int | str]) -> Tensor:
    """Return ``key(*parts, p)`` for every p of ``last``, int64 [len(last)]."""
    digests = (_digest((*parts, part)) for part in last)
    return torch.from_numpy(np.fromiter(digests, dtype=np.int64, count=len(last)))


def fold(key: Tensor, *data: int | str | Tensor) -> Tensor:
    """Derive a new key from a key and further parts, in tensor operations only.

    ``fold(k, d) = mix(k xor mix(d + golden))``, ``fold(k, d, e) = fold(fold(k, d), e)``; ``mix`` is
    a bijection of 64 bits, so one key never gives two integers the same new key.

    Args:
        key: int64 tensor of any shape.
        data: integers of 64 signed bits, strings (each becomes the integer ``key(string)``), or
            integer tensors, whose shapes broadcast with ``key``.

    Returns:
        int64 tensor of the broadcast shape, on the device of ``key``.

    Raises:
        TypeError: ``key`` is not int64, or a datum is none of these (a ``bool`` is refused).
        ValueError: a Python integer does not fit 64 signed bits.

    Source: Steele, Lea & Flood 2014 (SplitMix), the finaliser with Stafford's constants.

    """
    _check_key(key)
    for datum in data:
        if isinstance(datum, torch.Tensor):
            mixed: int | Tensor = _mix(_as_int64(datum, key) + _GOLDEN_64, _MIX_64, 64)
        else:
            mixed = _mix_host(_as_host_int(datum) + _GOLDEN_64)
        key = _mix(key ^ mixed, _MIX_64, 64)
    return key


def bits(key: Tensor, n: int) -> Tensor:
    """Draw ``n`` words of 32 uniform bits.

    ``word_i = mix(mix(i + low) xor (high + i golden))``, with low and high the halves of the key.

    Args:
        key: int64 tensor; a scalar for one stream, shape ``B`` for one stream a key.
        n: number of words, 0 to 2**31 - 1.

    Returns:
        int32 tensor of shape ``B + (n,)``; its first ``m`` words are ``bits(key, m)``.

    Raises:
        TypeError: ``key`` is not int64.
        ValueError: ``n`` is out of range.

    Source: the 32-bit finaliser "lowbias32" of C. Wellons' hash-prospector, 2018.

    """
    return _words(key, n, (0,))[0]


def uniform(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw uniform numbers of the open interval (0, 1).

    ``(k + 1/2) / 2**p`` with ``k`` uniform on 0 .. 2**p - 1; ``p`` = 23 (float32) or 52 (float64).
    ``k`` is the top of the word of ``bits``, read as a signed number, plus ``2**(p - 1)``.
    Exact in either type, symmetric about 1/2, never 0 or 1. The float64 draw refines the float32
    draw of the same key: they differ by less than 2**-24.

    Args:
        key: int64 tensor of shape ``B`` (a scalar for one draw).
        shape: shape of one draw; elements are numbered row by row.
        dtype: ``torch.float32`` or ``torch.float64``.

    Returns:
        tensor of shape ``B + shape``, from 2**-24 (2**-53) to 1 minus the same.

    Raises:
        TypeError: ``key`` is not int64, or ``dtype`` is another type.
        ValueError: the draw has more than 2**31 - 1 elements.

    """
    count = _count(shape, dtype)
    words = _words(key, count, (0,) if dtype == torch.float32 else (0, 2))
    return _unit(words, dtype).reshape(key.shape + torch.Size(shape))


def normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers.

    ``x = sqrt(-2 log u) cos(2 pi w)``, ``u`` the uniform draw of the same key, ``w`` another one;
    so do not use both draws of one key as if they were independent: fold the key first.
    The float64 draw is the float32 draw of the same key with more digits.
    Compiled and eager code agree to rounding, not bit for bit (their ``log`` and ``cos`` differ).

    Args:
        key: int64 tensor of shape ``B`` (a scalar for one draw).
        shape: shape of one draw; elements are numbered row by row.
        dtype: ``torch.float32`` or ``torch.float64``.

    Returns:
        tensor of shape ``B + shape``; its range is +-5.77 (float32) or +-8.57 (float64).

    Raises:
        TypeError: ``key`` is not int64, or ``dtype`` is another type.
        ValueError: the draw has more than 2**31 - 1 elements.

    Source: Box & Muller 1958, one of the two numbers, so that element i depends on counter i alone.

    """
    count = _count(shape, dtype)
    words = _words(key, count, (0, 1) if dtype == torch.float32 else (0, 2, 1, 3))
    half = len(words) // 2
    radius = _unit(words[:half], dtype).log_().mul_(-2.0).sqrt_()
    angle = _unit(words[half:], dtype).mul_(2.0 * math.pi)
    return radius.mul_(angle.cos_()).reshape(key.shape + torch.Size(shape))


def _count(shape: Sequence[int], dtype: torch.dtype) -> int:
    if dtype not in _FLOATS:
        msg = f"dtype {dtype} is not supported; draw float32 or float64 and convert"
        raise TypeError(msg)
    return math.prod(shape)


def _unit(words: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Turn one word (float32) or two words (float64) into a number of (0, 1), without rounding."""
    # An arithmetic shift keeps the top 23 bits as a signed number, k - 2**22: one pass less than
    # masking, and the 1/2 that undoes it is added last, where the sum still fits the type.
    value = (words[0] >> 9).to(dtype).mul_(2.0**-23)
    if dtype == torch.float32:
        return value.add_(0.5 + 2.0**-24)
    low = ((words[1] >> 3) & 0x1FFFFFFF).to(dtype).mul_(2.0**-52)
    return value.add_(low).add_(0.5 + 2.0**-53)


def _words(key: Tensor, n: int, streams: Sequence[int]) -> list[Tensor]:
    """Return the first ``n`` words of some of the four streams that belong to a key."""
    _check_key(key)
    if not 0 <= n <= _MAX_COUNT:
        msg = f"cannot draw {n} words from one key (0 to {_MAX_COUNT}); fold the key, draw in parts"
        raise ValueError(msg)
    low = key.to(torch.int32).unsqueeze(-1)
    high = (key >> 32).to(torch.int32).unsqueeze(-1)
    # The counter enters twice, so that two keys with one half in common share no shifted stream and
    # words may repeat as random ones do. Times a constant it is written as a difference: fused, the
    # product alone would become a sequence whose overflow C++ compilers take for impossible.
    index = torch.arange(n, dtype=torch.int32, device=key.device) + low
    spread = index * _GOLDEN_32
    start = low * _GOLDEN_32
    inner = _mix(index, _MIX_32, 32)
    return [_mix(inner ^ (spread + ((high ^ _STREAMS[s]) - start)), _MIX_32, 32) for s in streams]


def _mix(x: Tensor, rounds: Sequence[tuple[int, int | None]], width: int) -> Tensor:
    """Apply ``x ^= x >>> shift; x *= factor`` for each round, overwriting ``x``."""
    for shift, factor in rounds:
        # Torch shifts signed numbers arithmetically; the mask drops the copies of the sign.
        x = x.bitwise_xor_((x >> shift).bitwise_and_((1 << (width - shift)) - 1))
        if factor is not None:
            x = x.mul_(factor)
    return x


def _check_key(key: Tensor) -> None:
    if key.dtype != torch.int64:
        msg = f"key has dtype {key.dtype}; make keys with fedsift.random.key or fold (int64)"
        raise TypeError(msg)


def _digest(parts: tuple[int | str, ...]) -> int:
    """Hash the parts, each with its type and length, to a signed 64-bit integer."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (int, str)):
            msg = f"key part {part!r} is a {type(part).__name__}; convert it to int or str"
            raise TypeError(msg)
        payload = str(part).encode("utf-8")
        digest.update(b"i" if isinstance(part, int) else b"s")
        digest.update(len(payload).to_bytes(8, "little"))
        digest.update(payload)
    return int.from_bytes(digest.digest(), "little", signed=True)


# What torch.compiler.assume_constant_result does, which would import torch's compiler for it and
# make every start of a process seconds longer.
_digest._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001


def _mix_host(value: int) -> int:
    """Apply the 64-bit ``_mix`` to a Python integer, where no tensor is needed."""
    mask = (1 << 64) - 1
    value &= mask
    for shift, factor in _MIX_64:
        value ^= value >> shift
        if factor is not None:
            value = value * factor & mask
    return _signed(value, 64)


def _as_int64(datum: Tensor, key: Tensor) -> Tensor:
    if datum.is_floating_point() or datum.is_complex() or datum.dtype == torch.bool:
        msg = f"fold needs integers, got a tensor of {datum.dtype}; convert it explicitly"
        raise TypeError(msg)
    return datum.to(device=key.device, dtype=torch.int64)


def _as_host_int(datum: int | str) -> int:
    value = _digest((datum,)) if isinstance(datum, str) else datum
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"fold needs int, str or integer tensors, got {datum!r}; convert it"
        raise TypeError(msg)
    if not -(2**63) <= value < 2**63:
        msg = f"fold got {value}, which does not fit 64 signed bits; pass it as a string"
        raise ValueError(msg)
    return value
