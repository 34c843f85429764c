"""Laws of the counter-based randomness: known hashes, statistics, prefixes, and batching."""

import hashlib
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fedsift import random
from fedsift.random import bits, fold, key, normal, uniform

WORDS = 2**32
LONGS = 2**64
KEY = key(7, "tests")
FLOATS = (torch.float32, torch.float64)
int64 = st.integers(-(2**63), 2**63 - 1)


def mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % LONGS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % LONGS
    return x ^ (x >> 31)


def fold_in_integers(k: int, datum: int) -> int:
    return mix64(k % LONGS ^ mix64((datum + 0x9E3779B97F4A7C15) % LONGS))


def mix32(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D % WORDS
    x = (x ^ (x >> 15)) * 0x846CA68B % WORDS
    return x ^ (x >> 16)


def word_in_integers(k: int, i: int) -> int:
    low, high = k % WORDS, (k >> 32) % WORDS
    return mix32(mix32((i + low) % WORDS) ^ (high + i * 0x9E3779B9) % WORDS)


def unsigned(words: Tensor) -> list[int]:
    return [w % WORDS for w in words.tolist()]


def test_the_mixers_reproduce_published_values() -> None:
    """SplitMix64 seeded with 1234567 starts with 6457827717110365317 (the reference C program)."""
    assert mix64((1234567 + 0x9E3779B97F4A7C15) % LONGS) == 6457827717110365317
    assert len({mix32(x) for x in range(10_000)}) == 10_000


@given(int64, st.lists(int64, max_size=3))
def test_fold_equals_integer_arithmetic(k: int, data: list[int]) -> None:
    expected = k
    for datum in data:
        expected = fold_in_integers(expected, datum)
    assert fold(torch.tensor(k), *data).item() % LONGS == expected % LONGS
    assert torch.equal(
        fold(torch.tensor(k), *map(torch.tensor, data)), fold(torch.tensor(k), *data)
    )


@given(int64)
def test_bits_equal_integer_arithmetic(k: int) -> None:
    assert unsigned(bits(torch.tensor(k), 5)) == [word_in_integers(k, i) for i in range(5)]


def test_uniform_is_the_centre_of_the_cell_of_the_signed_word() -> None:
    """The word -2**31 is the lowest cell, so the top bit of the unsigned word is flipped."""
    expected = [((w >> 9 ^ 2**22) + 0.5) / 2**23 for w in unsigned(bits(KEY, 100))]
    assert uniform(KEY, (100,), torch.float32).double().tolist() == expected


def test_key_is_blake2b_of_tagged_parts() -> None:
    payload = (
        b"i" + (2).to_bytes(8, "little") + b"-7" + b"s" + (2).to_bytes(8, "little") + b"\xc3\xa9"
    )
    digest = hashlib.blake2b(payload, digest_size=8).digest()
    assert key(-7, "é").item() == int.from_bytes(digest, "little", signed=True)


def test_keys_are_unambiguous() -> None:
    parts: list[tuple[int | str, ...]] = [
        ("a", "b"), ("ab",), ("b", "a"), ("a", "b", ""), ("", "a", "b"), ("a",), (1,), ("1",),
        (-1,), (1, 1), (11,), (2**64 + 1,), ("i1",), (1, "1"), ("1", 1),
    ]  # fmt: skip
    assert len({key(*p).item() for p in parts}) == len(parts)


def test_the_same_numbers_in_another_process() -> None:
    code = (
        "from fedsift.random import *; "
        "print(normal(fold(key(1, 'x'), 2, 'y'), (3,)).tolist(), bits(key('z'), 3).tolist())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    here = normal(fold(key(1, "x"), 2, "y"), (3,)).tolist(), bits(key("z"), 3).tolist()
    assert run.stdout.strip() == f"{here[0]} {here[1]}"


def test_fold_is_a_chain_and_keeps_apart() -> None:
    assert torch.equal(fold(KEY, 1, "a", 2), fold(fold(fold(KEY, 1), "a"), 2))
    assert torch.equal(fold(KEY), KEY)
    assert fold(KEY, 1, 2) != fold(KEY, 2, 1)
    many = fold(fold(KEY, torch.arange(300)).unsqueeze(1), torch.arange(-300, 300))
    assert many.shape == (300, 600)
    assert many.unique().numel() == many.numel()


@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_longer_draw_starts_with_the_shorter(draw, dtype: torch.dtype) -> None:
    long = draw(KEY, (1003,), dtype)
    for n in (0, 1, 2, 17, 1002):
        assert torch.equal(draw(KEY, (n,), dtype), long[:n])
    assert torch.equal(draw(KEY, (17, 59), dtype), long.reshape(17, 59))
    assert draw(KEY, (), dtype).shape == ()
    assert torch.equal(draw(KEY, (), dtype), long[0])


def test_bits_prefix() -> None:
    assert torch.equal(bits(KEY, 1000)[:333], bits(KEY, 333))


@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize("dtype", FLOATS)
def test_vmap_batched_keys_and_a_loop_agree(draw, dtype: torch.dtype) -> None:
    keys = fold(KEY, torch.arange(12)).reshape(3, 4)
    loop = torch.stack([torch.stack([draw(k, (8, 2), dtype) for k in row]) for row in keys])
    one = torch.func.vmap(lambda k: draw(k, (8, 2), dtype))
    assert torch.equal(torch.func.vmap(one)(keys), loop)
    assert torch.equal(draw(keys, (8, 2), dtype), loop)


def test_fold_under_vmap_with_either_side_batched() -> None:
    keys, data = fold(KEY, torch.arange(5)), torch.arange(5)
    vmap = torch.func.vmap
    assert torch.equal(vmap(lambda k: fold(k, 3))(keys), fold(keys, 3))
    assert torch.equal(vmap(lambda d: fold(KEY, d, "s"))(data), fold(KEY, data, "s"))
    assert torch.equal(vmap(fold)(keys, data), fold(keys, data))
    both = vmap(vmap(fold, (None, 0)), (0, None))(keys, data)
    assert torch.equal(both, fold(keys.unsqueeze(1), data))


def test_uniform_stays_inside_the_open_interval() -> None:
    high = torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32)
    low = torch.tensor([0, -1], dtype=torch.int32)
    for dtype, half_cell in ((torch.float32, 2.0**-24), (torch.float64, 2.0**-53)):
        values = random._unit((high, low), dtype).tolist()
        assert values == [half_cell, 1 - half_cell]
        assert 0 < values[0] < values[1] < 1


def test_float64_refines_float32() -> None:
    u32, u64 = uniform(KEY, (10_000,)), uniform(KEY, (10_000,), torch.float64)
    assert (u32.double() - u64).abs().max() <= 2.0**-24
    x32, x64 = normal(KEY, (10_000,)), normal(KEY, (10_000,), torch.float64)
    assert (x32.double() - x64).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_is_uniform(dtype: torch.dtype) -> None:
    """Chi-square on 1000 cells, Kolmogorov-Smirnov, and every bit is fair to 5 standard errors."""
    u = uniform(KEY, (1_000_000,), dtype).double().numpy()
    counts = torch.histc(torch.from_numpy(u), 1000, 0, 1).numpy()
    assert 1e-4 < stats.chisquare(counts).pvalue < 1 - 1e-4
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    words = bits(KEY, 1_000_000)
    fair = torch.stack([((words >> b) & 1).double().mean() for b in range(32)])
    assert (fair - 0.5).abs().max() < 5 * 0.5e-3


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_is_normal(dtype: torch.dtype) -> None:
    """Moments 0, 1, 0, 3 within 5 standard errors: sqrt(1, 2, 15, 96 over n)."""
    n = 1_000_000
    x = normal(KEY, (n,), dtype).double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean().item() - moment) < 5 * math.sqrt(variance / n)
    assert stats.kstest(x.numpy(), "norm").pvalue > 1e-4
    assert torch.isfinite(x).all()
    assert x.abs().max() < 6 + 3 * (dtype == torch.float64)


def test_neighbouring_keys_counters_and_streams_are_uncorrelated() -> None:
    """Correlation of n independent pairs has standard error 1/sqrt(n); 5 of them are allowed."""
    lanes, n = 200, 2000
    keys = torch.stack([fold(KEY, torch.arange(lanes)), KEY + torch.arange(lanes)])
    for batch in keys:  # folded keys, and raw keys one apart
        u = (uniform(batch, (n,), torch.float64) - 0.5) * math.sqrt(12)
        for pair in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1]), (u[1:, 1:], u[:-1, :-1])):
            assert (pair[0] * pair[1]).mean().abs() < 5 / math.sqrt(pair[0].numel())
        sums = u.sum(1) / math.sqrt(n)
        assert abs(sums.var().item() - 1) < 5 * math.sqrt(2 / lanes)
    streams = torch.stack(random._words(KEY, 100_000, (0, 1, 2, 3))).double() / 2**31
    correlation = torch.corrcoef(streams) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(100_000)


def test_serial_pairs_fill_the_square() -> None:
    u = uniform(fold(KEY, 1), (2_000_000,)).double().reshape(-1, 2)
    cells = (u[:, 0] * 100).long() * 100 + (u[:, 1] * 100).long()
    assert 1e-4 < stats.chisquare(torch.bincount(cells, minlength=10_000)).pvalue < 1 - 1e-4


def test_every_key_bit_changes_half_of_the_output() -> None:
    """Avalanche: each of 64 input bits flips each of 32 output bits with probability 1/2."""
    keys = fold(KEY, torch.arange(2000))
    before = bits(keys, 4)
    for bit in range(64):
        mask = 1 << bit if bit < 63 else -(2**63)
        flipped = before ^ bits(keys ^ mask, 4)
        rate = torch.stack([((flipped >> b) & 1).double().mean((0, 1)) for b in range(32)])
        # The 4 counters share a key, so count the 2000 keys only: standard error 0.5/sqrt(2000).
        assert (rate - 0.5).abs().max() < 6 * 0.5 / math.sqrt(2000)


def test_words_repeat_as_random_words_do() -> None:
    """n = 2**18 words have n**2 / 2**33 = 8 expected pairs, Poisson: neither 0 nor 30 occurs."""
    n = 2**18
    assert 0 < n - bits(KEY, n).unique().numel() < 30


@pytest.mark.slow
def test_compiled_code_draws_the_same_numbers() -> None:
    keys = fold(KEY, torch.arange(16))

    def draws(k: Tensor) -> tuple[Tensor, ...]:
        k = fold(k, 1, "compiled")
        return (
            bits(k, 100),
            uniform(k, (100,)),
            uniform(k, (100,), torch.float64),
            normal(k, (100,)),
        )

    eager, compiled = torch.func.vmap(draws)(keys), torch.compile(torch.func.vmap(draws))(keys)
    for a, b in zip(eager[:3], compiled[:3], strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(compiled[3], eager[3], rtol=1e-6, atol=1e-6)


def test_refusals_name_the_value() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        key()
    for bad in (True, 1.5, None):
        with pytest.raises(TypeError, match=f"{bad}"):
            key(bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"{bad}"):
            fold(KEY, bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float32"):
        fold(KEY, torch.ones(2))
    with pytest.raises(ValueError, match="64 signed bits"):
        fold(KEY, 2**63)
    with pytest.raises(TypeError, match="int32"):
        bits(KEY.to(torch.int32), 3)
    with pytest.raises(TypeError, match="float16"):
        uniform(KEY, (3,), torch.float16)
    for n in (-1, 2**31):
        with pytest.raises(ValueError, match=f"{n} words"):
            bits(KEY, n)
