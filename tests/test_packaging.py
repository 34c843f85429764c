"""What is built is what is tracked: the package with its data in the wheel, and no more."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def tracked(*folders: str) -> set[str]:
    """Return the files that git knows; skip without git."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout of the repository")
    found = subprocess.run(
        ["git", "ls-files", "--", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(found.stdout.splitlines())


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return Path(folder)


def test_the_wheel_is_the_package(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if ".dist-info/" not in name}
    assert package == {name.removeprefix("src/") for name in tracked("src/fedsift")}
    assert {"fedsift/py.typed", "fedsift/data/golub38.npz.xz"} <= package
    licences = {name.partition(".dist-info/licenses/")[2] for name in names - package}
    assert {"LICENSE", "NOTICE"} <= licences


def test_the_source_archive_has_what_is_needed_to_build_and_test_it(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert tracked("src", "tests", "docs", "pyproject.toml", "CITATION.cff", "NOTICE") <= names
    assert names <= tracked() | {"PKG-INFO"}


def test_the_wheel_imports_with_nothing_beside_it(built):
    """As from ``pip install --no-deps`` in a new environment: names load when they are used."""
    (wheel,) = built.glob("*.whl")
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); "
        "import fedsift; print(fedsift.__file__, fedsift.__version__)"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    )
    file, version = found.stdout.split()
    assert Path(file).is_relative_to(wheel)
    assert f"-{version}-" in wheel.name


def test_the_citation_names_the_version_and_the_papers():
    text = (ROOT / "CITATION.cff").read_text()
    (version,) = re.findall(r"^version: (\S+)$", text, re.MULTILINE)
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    for paper in ("2607.00275", "2512.23071", "2602.09164", "Neurocomputing"):
        assert paper in text
