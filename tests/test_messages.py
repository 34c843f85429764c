"""Trees as bytes: nothing lost, the length known beforehand, every defect refused by name."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import messages, random
from fedsift.messages import HEADER, PART, MessageError
from fedsift.sparsity import top_mask
from fedsift.trees import Tree
from tests.laws import bit_equal, normal

DTYPES = (torch.float32, torch.float64, torch.int64)
shapes = st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=5)


@st.composite
def trees_and_masks(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """Trees of any shape, dtype and sparsity, neighbours often with one support; and masks."""
    tree: Tree = {}
    masks: Tree = {}
    support = None
    for index, shape in enumerate(draw(shapes)):
        key = random.key(draw(st.integers(0, 99)), "leaf", index)
        keep = draw(st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]))
        mask = random.uniform(random.fold(key, 1), shape) < keep
        if support is not None and support.numel() == mask.numel() and draw(st.booleans()):
            mask = support.reshape(shape)
        support = mask
        dtype = draw(st.sampled_from(DTYPES))
        value = 100 * random.normal(key, shape)
        if draw(st.booleans()):
            value = value.half().float()
        tree[f"part {index}"] = torch.where(mask, value, 0.0).to(dtype)
        masks[f"part {index}"] = mask
    return tree, masks


@given(trees_and_masks())
@settings(max_examples=200)
def test_whole_trees_arrive_as_they_were_sent(drawn: tuple[Tree, Tree]) -> None:
    tree, _ = drawn
    message = messages.encode(tree)
    assert len(message) == int(messages.size(tree))
    decoded = messages.decode(message, tree)
    assert bit_equal(decoded, tree)
    assert [v.dtype for v in decoded.values()] == [v.dtype for v in tree.values()]


@given(trees_and_masks())
@settings(max_examples=200)
def test_updates_change_what_they_name_and_nothing_else(drawn: tuple[Tree, Tree]) -> None:
    tree, masks = drawn
    held = {k: v + 1 for k, v in tree.items()}
    message = messages.encode(tree, masks)
    assert len(message) == int(messages.size(tree, masks))
    expected = {k: torch.where(masks[k], v, held[k]) for k, v in tree.items()}
    # A dense part is a whole part: where it is the shortest form it brings all of the leaf.
    decoded = messages.decode(message, tree, held)
    for name, value in decoded.items():
        assert torch.equal(value, expected[name]) or torch.equal(value, tree[name])
        assert torch.equal(value[masks[name]], tree[name][masks[name]])


@given(st.integers(0, 20), st.floats(0, 1))
@settings(max_examples=40)
def test_the_sizes_of_lanes_are_those_of_their_messages(seed: int, keep: float) -> None:
    key = random.key(seed, "lanes")
    lanes = {
        name: random.normal(random.fold(key, i), (4, *shape))
        * (random.uniform(random.fold(key, i, 9), (4, *shape)) < keep)
        for i, (name, shape) in enumerate({"a": (40,), "b": (8, 5), "c": ()}.items())
    }
    sizes = torch.func.vmap(messages.size)(lanes)
    for lane in range(4):
        assert int(sizes[lane]) == len(messages.encode({k: v[lane] for k, v in lanes.items()}))


def test_sizes_by_hand() -> None:
    """Head 8 and 12 a part; then the shortest of dense, index + value, bitmap + value, value.

    A third has no end in binary, 1 has half precision.
    """
    third = 1 / 3
    dense = {"w": torch.full((100,), third)}
    assert messages.size(dense) == 8 + 12 + 400
    few = {"w": torch.where(torch.arange(1000) < 5, third, 0.0)}
    assert messages.size(few) == 8 + 12 + 5 * (2 + 4)
    half = {"w": torch.where(torch.arange(1000) < 500, third, 0.0)}
    assert messages.size(half) == 8 + 12 + 125 + 500 * 4
    two = {"w": few["w"], "phi": 2 * few["w"]}
    assert messages.size(two) == 8 + 12 + 5 * (2 + 4) + 12 + 5 * 4
    wide = {"w": torch.where(torch.arange(70_000) < 5, third, 0.0)}
    assert messages.size(wide) == 8 + 12 + 5 * (4 + 4)
    short = {"w": 3 * few["w"], "phi": few["w"]}
    assert messages.size(short) == 8 + 12 + 5 * (2 + 2) + 12 + 5 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-9, 1e-6, 3e-5, 1.0, 1e4, 1e9])
def test_the_nearest_of_half_precision(dtype: torch.dtype, size: float) -> None:
    """None is nearer than torch's own, whatever way a tie goes; all are of half precision."""
    value = size * normal(3000).to(dtype)
    rounded = messages.to_half(value)
    known = value.half().to(dtype).clamp(-65504, 65504)
    assert torch.equal(rounded.half().to(dtype), rounded)
    assert torch.equal((rounded - value).abs(), (known - value).abs())
    assert torch.equal(messages.to_half(known), known)
    for either in (value, known, rounded, known * 1.5, value * torch.inf):
        assert torch.equal(messages.is_half(either), messages.to_half(either) == either)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_half_precision_take_two_bytes_and_arrive_as_they_were(
    dtype: torch.dtype,
) -> None:
    chosen = top_mask(normal(4000), 30)
    rounded = {"w": (normal(4000) * chosen).half().to(dtype)}
    message = messages.encode(rounded)
    assert len(message) == messages.size(rounded) == 8 + 12 + 30 * (2 + 2)
    assert bit_equal(messages.decode(message, rounded), rounded)
    held = {"w": normal(4000, seed=1).to(dtype)}
    update = messages.encode(rounded, {"w": chosen > 0})
    expected = torch.where(chosen > 0, rounded["w"], held["w"])
    assert torch.equal(messages.decode(update, held, held)["w"], expected)
    outside = {"w": 1e6 * rounded["w"]}
    assert bit_equal(messages.decode(messages.encode(outside), outside), outside)


def test_dense_parts_in_an_update_are_whole_and_equal_to_the_senders() -> None:
    tree, held = {"w": normal(6)}, {"w": normal(6, seed=1)}
    masks = {"w": torch.tensor([True] * 5 + [False])}
    message = messages.encode(tree, masks)
    assert torch.equal(messages.decode(message, tree, held)["w"][:5], tree["w"][:5])


SPARSE = {
    "theta": normal(64) * top_mask(normal(64), 6),
    "phi": normal(64) * top_mask(normal(64), 6),
}
WHOLE = {"theta": normal(64), "n": torch.tensor(5), "s": torch.tensor(0.5, dtype=torch.float64)}
BITS = {"theta": normal(64) * top_mask(normal(64), 20)}
EMPTY = {"theta": torch.zeros(0), "z": torch.zeros(3)}
SAMPLES = {"sparse": SPARSE, "whole": WHOLE, "bitmap": BITS, "empty": EMPTY}


@given(st.data(), st.sampled_from(sorted(SAMPLES)))
@settings(max_examples=200)
def test_a_truncated_message_is_refused(draw: st.DataObject, name: str) -> None:
    message = messages.encode(SAMPLES[name])
    cut = draw.draw(st.integers(0, len(message) - 1))
    with pytest.raises(MessageError, match="truncated message"):
        messages.decode(message[:cut], SAMPLES[name])


@given(st.binary(min_size=1, max_size=40), st.sampled_from(sorted(SAMPLES)))
def test_an_oversized_message_is_refused(more: bytes, name: str) -> None:
    message = messages.encode(SAMPLES[name]) + more
    with pytest.raises(MessageError, match=rf"oversized message: {len(more)} bytes"):
        messages.decode(message, SAMPLES[name])


@given(st.data(), st.sampled_from(sorted(SAMPLES)), st.booleans())
@settings(max_examples=500)
def test_flipped_bytes_give_a_message_error_or_a_valid_tree(
    draw: st.DataObject, name: str, update: bool
) -> None:
    tree = SAMPLES[name]
    masks = {k: v != 0 for k, v in tree.items()} if update else None
    raw = bytearray(messages.encode(tree, masks))
    for place in draw.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[place] = draw.draw(st.integers(0, 255))
    try:
        decoded = messages.decode(bytes(raw), tree, tree if update else None)
    except MessageError:
        return
    for leaf, value in decoded.items():
        assert value.shape == tree[leaf].shape
        assert value.dtype == tree[leaf].dtype
        assert torch.isfinite(value).all()


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_noise_is_refused(noise: bytes) -> None:
    for tree in SAMPLES.values():
        with pytest.raises(MessageError):
            messages.decode(noise, tree)


@given(st.binary(max_size=120), st.integers(0, 255), st.integers(0, 255))
@settings(max_examples=200)
def test_a_good_head_with_noise_behind_it_raises_nothing_else(
    noise: bytes, form: int, dtype: int
) -> None:
    head = HEADER.pack(b"FSM", messages.VERSION, 0, 2, 0) + PART.pack(form, dtype, 0, 64, 6)
    try:
        messages.decode(head + noise, SPARSE)
    except MessageError:
        return


def with_indices(indices: list[int]) -> bytes:
    head = HEADER.pack(b"FSM", messages.VERSION, 0, 1, 0) + PART.pack(1, 0, 0, 64, len(indices))
    return head + struct.pack(f"<{len(indices)}H", *indices) + struct.pack("<f", 1.0) * len(indices)


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([3, 64], "index out of range in 'theta': 64 of 64"),
        ([3, 65535], "index out of range"),
        ([3, 3], "duplicate or unsorted index in 'theta'"),
        ([5, 3], "duplicate or unsorted index"),
    ],
)
def test_bad_indices_are_refused_by_name(indices: list[int], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        messages.decode(with_indices(indices), {"theta": torch.zeros(64)})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("filled", [1, 30, 64])
def test_values_that_are_not_finite_are_refused_by_name(
    value: float, dtype: torch.dtype, filled: int
) -> None:
    bad = torch.zeros(64, dtype=dtype)
    bad[:filled] = value
    message = messages.encode({"theta": bad})
    assert len(message) == int(messages.size({"theta": bad}))
    with pytest.raises(MessageError, match="non-finite value in 'theta'"):
        messages.decode(message, {"theta": bad})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"theta": torch.zeros(65), "phi": torch.zeros(64)},
            "wrong shape of 'theta': .* expected 65",
        ),
        ({"theta": torch.zeros(64)}, "wrong number of parts: 2, expected 1"),
        ({"theta": torch.zeros(64).double(), "phi": torch.zeros(64)}, "wrong dtype of 'theta'"),
    ],
)
def test_another_schema_is_refused_by_name(schema: Tree, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        messages.decode(messages.encode(SPARSE), schema)


def test_a_bitmap_that_contradicts_its_count_is_refused() -> None:
    raw = bytearray(messages.encode(BITS))
    raw[HEADER.size + PART.size] ^= 1
    with pytest.raises(MessageError, match="the bitmap marks"):
        messages.decode(bytes(raw), BITS)


def test_versions_and_kinds() -> None:
    message = messages.encode(SPARSE)
    with pytest.raises(MessageError, match="not a version 1 message"):
        messages.decode(message[:3] + b"\x09" + message[4:], SPARSE)
    with pytest.raises(MessageError, match="an update, but nothing is held"):
        messages.decode(messages.encode(SPARSE, {k: v != 0 for k, v in SPARSE.items()}), SPARSE)
    with pytest.raises(MessageError, match="unexpected kind of message: 7"):
        messages.decode(message[:4] + b"\x07" + message[5:], SPARSE)
    with pytest.raises(MessageError, match="unknown form 9"):
        messages.decode(message[:8] + b"\x09" + message[9:], SPARSE)


def test_a_dtype_that_has_no_code_says_so() -> None:
    with pytest.raises(MessageError, match=r"'theta' is torch\.float16; send float32"):
        messages.encode({"theta": torch.zeros(3, dtype=torch.float16)})
