"""Run the notebooks of docs/notebooks and keep their outputs in the files; needs `fedsift[docs]`.

Without an argument all of them; `make notebooks` calls it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def main(paths: list[Path]) -> None:
    """Execute each notebook in an empty folder, and write it back without run times."""
    os.environ.setdefault("NO_COLOR", "1")
    for path in paths or sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            where = {"metadata": {"path": folder}}
            NotebookClient(
                notebook, timeout=3600, startup_timeout=600, resources=where, record_timing=False
            ).execute()
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
