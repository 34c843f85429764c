"""A sealed file gives back what was sealed, or says that it cannot."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.sealed import fingerprint, seal, unseal, write_atomic

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3)}
FACTS = {"features": ["a", "b"], "loss": 0.1, "nothing": None}


def test_equal_content_gives_equal_bytes() -> None:
    turned = {name: TENSORS[name] for name in reversed(TENSORS)}
    facts = {name: FACTS[name] for name in reversed(FACTS)}
    assert seal(TENSORS, FACTS) == seal(turned, facts)
    assert fingerprint(FACTS) == fingerprint(facts)
    assert fingerprint(FACTS) != fingerprint(FACTS | {"loss": 0.2})


@given(st.data())
@settings(max_examples=200)
def test_a_changed_byte_never_changes_what_is_read(tmp_path_factory, draw) -> None:
    raw = bytearray(seal(TENSORS, FACTS))
    for place in draw.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[place] = draw.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "sealed.safetensors"
    path.write_bytes(raw)
    try:
        tensors, facts = unseal(path)
    except ValueError:
        assert bytes(raw) != seal(TENSORS, FACTS)
        return
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("length", [0, 7, 40, -1])
def test_a_cut_file_is_refused(length, tmp_path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(seal(TENSORS, FACTS)[:length])
    with pytest.raises(ValueError, match="it cannot be read"):
        unseal(path)


def test_a_tensor_may_be_there_twice(tmp_path: Path) -> None:
    one = torch.arange(6.0)
    write_atomic(tmp_path / "file", seal({"a": one, "b": one, "c": one[2:4]}, {}))
    tensors, _ = unseal(tmp_path / "file")
    assert torch.equal(tensors["a"], one)
    assert torch.equal(tensors["b"], one)
    assert torch.equal(tensors["c"], one[2:4])
