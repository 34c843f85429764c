"""The secret noise: the cipher's own numbers, their distribution, and that keys are apart."""

import struct

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from fedsift import noise, random


def as_words(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.int32).clone()


def test_a_block_of_the_standard():
    """RFC 8439, section 2.3.2."""
    secret = as_words(bytes(range(32)))
    nonce = as_words(bytes.fromhex("000000090000004a00000000")).unbind()
    block = noise.words(secret, nonce, 16, first=1)
    assert block.numpy().tobytes() == bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=12, max_size=12), st.integers(0, 99))
def test_the_stream_is_that_of_a_cipher_library(key, nonce, count):
    cipher = Cipher(algorithms.ChaCha20(key, struct.pack("<I", 0) + nonce), None)
    stream = cipher.encryptor().update(bytes(4 * count))
    drawn = noise.words(as_words(key), as_words(nonce).unbind(), count)
    assert drawn.numpy().tobytes() == stream


def test_numbers_are_standard_normal_and_unrelated():
    secret, keys = noise.secret(0), random.keys("noise", last=range(50))
    drawn = torch.func.vmap(lambda key: noise.normal(secret, key, 0, 20_001))(keys)
    n = drawn.numel()
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(drawn.pow(power).mean()) - moment) < 5 * (spread / n) ** 0.5
    among = torch.corrcoef(drawn) - torch.eye(len(keys))
    assert among.abs().max() < 6 / 20_001**0.5
    tail = float((drawn.abs() > 3).double().mean())
    assert tail == pytest.approx(0.0026998, abs=5 * (0.0027 / n) ** 0.5)


def test_a_lane_draws_what_it_draws_alone():
    secret, keys = noise.secret(1), random.keys("noise", last=range(4))
    together = torch.func.vmap(lambda key: noise.normal(secret, key, 2, 7))(keys)
    for row, key in zip(together, keys, strict=True):
        assert torch.equal(row, noise.normal(secret, key, 2, 7))


def test_secret_key_and_number_each_change_every_number():
    secret, key = noise.secret(), random.key("lane")
    drawn = [
        noise.normal(secret, key, 0, 50),
        noise.normal(secret, key, 1, 50),
        noise.normal(secret, key + (1 << 40), 0, 50),
        noise.normal(noise.secret(), key, 0, 50),
    ]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert (one != other).all()


def test_a_secret_is_fresh_unless_a_seed_is_given():
    assert not torch.equal(noise.secret(), noise.secret())
    assert torch.equal(noise.secret(5), noise.secret(5))
    assert not torch.equal(noise.secret(5), noise.secret(6))
