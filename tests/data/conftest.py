"""Small site files, and the folder of the data that are not embedded."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path):
    """Write a file and return its path: ``write("a.csv", "x,y", "1,2", ...)``."""

    def writer(name: str, *lines: str, end: str = "\n", encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(line + end for line in lines).encode(encoding))
        return path

    return writer


@pytest.fixture(scope="session")
def golub_folder() -> Path:
    """Folder with the raw leukemia files, or a skip that says how to provide it."""
    folder = Path(os.environ.get("FEDSIFT_DATA", "")) / "golub"
    if "FEDSIFT_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("set FEDSIFT_DATA to a folder with golub/ to test on the raw files")
    return folder
