"""Every form of input gives the same data: packed text, AnnData, folders, frames."""

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from fedsift.data import DataError, FederatedData, from_frame, packed, read_sites, read_table
from fedsift.data.paths import site_files, site_name
from fedsift.estimators import FederatedSparseClassifier

HEAD = "patient,g1,g2,g3,y"
ROWS = {
    "berlin": ("p1,1.5,0,3,sick", "p2,2.5,7,1,well", "p3,0,0,2,sick"),
    "paris": ("q1,9.25,1,4,well", "q2,4,2,0,sick"),
}


@pytest.fixture
def plain(write) -> FederatedData:
    files = [write(f"plain/{site}.csv", HEAD, *rows) for site, rows in ROWS.items()]
    return read_sites(files, "y", id_column="patient")


@pytest.fixture
def frame() -> pl.DataFrame:
    lines = [(site, *row.split(",")) for site, rows in ROWS.items() for row in rows]
    frame = pl.DataFrame(lines, schema=["hospital", *HEAD.split(",")], orient="row")
    return frame.with_columns(pl.col("g1", "g2", "g3").cast(pl.Float64))


def same(one: FederatedData, other: FederatedData) -> None:
    assert one.fingerprint() == other.fingerprint()


def pack(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


def test_packed_text_is_read_as_the_text(write, plain):
    csv = pack(write("berlin.csv", HEAD, *ROWS["berlin"]))
    tabs = (line.replace(",", "\t") for line in (HEAD, "", *ROWS["paris"]))
    tsv = pack(write("paris.tsv", *tabs, end="\r\n"))
    same(read_sites([csv, tsv], "y", id_column="patient"), plain)
    table = read_table(csv, ["g3", "g1"], usual_id="patient")
    assert table.x.tolist() == [[3, 1.5], [1, 2.5], [2, 0]]
    assert table.rows == ("p1", "p2", "p3")
    assert read_table(csv, ["g1"], usual_id="person").rows == ("berlin:2", "berlin:3", "berlin:4")


def test_places_in_packed_text_are_those_of_the_text(write):
    path = pack(write("a.csv", "u,v,y", "1,2,0", "2,3"))
    with pytest.raises(DataError, match=r"a\.csv\.gz, line 3: 2 values for 3 columns"):
        read_sites(path, "y")
    path = pack(write("b.csv", "u,y", "1,0", "x,1"))
    with pytest.raises(DataError, match=r"b\.csv\.gz, line 3, column 'u': 'x'"):
        read_sites(path, "y")


def test_what_is_no_gzip_file_is_said(write, tmp_path):
    with pytest.raises(DataError, match=r"a\.csv\.gz: is not a gzip file"):
        read_sites(write("a.csv.gz", HEAD, *ROWS["berlin"]), "y")
    whole = pack(write("b.csv", HEAD, *ROWS["berlin"] * 50)).read_bytes()
    (tmp_path / "b.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"b\.csv\.gz: is not a gzip file"):
        read_sites(tmp_path / "b.csv.gz", "y")
    with pytest.raises(DataError, match="only text is read packed"):
        read_sites(write("c.parquet.gz", "x"), "y")


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_small_file_that_unpacks_to_much_is_refused(write, monkeypatch, end):
    """5 MB of one letter pack into 5 kB, a thousand times smaller; one line, or many.

    One line is a header, or a field too large where the limit of csv is as it comes.
    """
    monkeypatch.setattr(packed, "UNSUSPECTED", 1 << 20)
    path = pack(write("a.csv", "u,y", *["1" * 10_000 for _ in range(500)], end=end))
    with pytest.raises(DataError, match="unpacks to more than 1 MB"):
        read_sites(path, "y")
    monkeypatch.setattr(packed, "MOST_TIMES", 10_000)
    with pytest.raises(DataError, match=r"field larger|no rows|1 value for 2 columns"):
        read_sites(path, "y")


def test_a_folder_stands_for_the_tables_in_it(write, plain, tmp_path):
    write("plain/README.txt", "no table")
    write("plain/.hidden.csv", "no table")
    write("plain/berlin.fedsift/state.csv", "no table")
    same(read_sites(tmp_path / "plain", "y", id_column="patient"), plain)
    names = [file.name for file in site_files(str(tmp_path / "plain"))]
    assert names == ["berlin.csv", "paris.csv"]
    pack(tmp_path / "plain" / "paris.csv")
    same(read_sites([tmp_path / "plain"], "y", id_column="patient"), plain)
    assert len(read_table(tmp_path / "plain", ["g1"]).rows) == 5
    write("plain/paris.tsv", HEAD)
    with pytest.raises(DataError, match="2 files are called 'paris'"):
        read_sites(tmp_path / "plain", "y")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a/b.csv", "b"),
        ("b.csv.gz", "b"),
        ("b.v2.TSV.GZ", "b.v2"),
        ("b", "b"),
        ("b.v2.csv", "b.v2"),
    ],
)
def test_a_site_is_named_after_its_file(file, name):
    assert site_name(file) == name


def written_h5ad(frame: pl.DataFrame, path: Path, *, sparse: bool, text: str = "category") -> Path:
    anndata = pytest.importorskip("anndata")
    from scipy.sparse import csr_matrix

    x: Any = frame.select("g1", "g2", "g3").to_numpy().astype(np.float32)
    obs = pd.DataFrame(
        {
            "hospital": pd.Series(frame["hospital"].to_list(), dtype=text),
            "y": pd.Series(frame["y"].to_list(), dtype=text),
            "n_genes": np.count_nonzero(x, axis=1),
        }
    ).set_index(pd.Index(frame["patient"].to_list()))
    var = pd.DataFrame(index=["g1", "g2", "g3"])
    data = anndata.AnnData(csr_matrix(x) if sparse else x, obs, var)
    with anndata.settings.override(allow_write_nullable_strings=True):  # pandas 3 has such text
        data.write_h5ad(path)
    return path


@pytest.mark.filterwarnings("ignore")  # anndata's own
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("text", ["category", "object"])
def test_an_annotated_file_with_a_site_column(sparse, text, frame, plain, tmp_path):
    """X gives the features; of obs nothing but the named columns is looked at."""
    path = written_h5ad(frame, tmp_path / "all.h5ad", sparse=sparse, text=text)
    data = read_sites(path, "y", site_column="hospital", id_column="obs_names")
    same(data, plain)
    table = read_table(path, ["g3"], target="y", classes=("sick", "well"))
    assert table.rows[:2] == ("all:1", "all:2")
    assert table.y is not None
    assert table.y.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.filterwarnings("ignore")
def test_an_annotated_file_a_site(frame, plain, tmp_path):
    for site in ROWS:
        rows = frame.filter(pl.col("hospital") == site)
        written_h5ad(rows, tmp_path / f"{site}.h5ad", sparse=True)
    folder = [tmp_path / "berlin.h5ad", tmp_path / "paris.h5ad"]
    same(read_sites(folder, "y", id_column="obs_names"), plain)
    with pytest.raises(
        DataError, match=r"berlin\.h5ad: no column 'Y' \(target\); did you mean 'y'"
    ):
        read_sites(folder, "Y")


@pytest.mark.filterwarnings("ignore")
def test_annotated_files_that_cannot_be_used(frame, tmp_path, monkeypatch, write):
    from fedsift.data import annotated

    path = written_h5ad(frame, tmp_path / "all.h5ad", sparse=True)
    with pytest.raises(DataError, match=r"text\.h5ad: is not an AnnData file"):
        read_sites(write("text.h5ad", "x,y"), "y")
    with monkeypatch.context() as patch:
        patch.setattr(annotated, "MOST_VALUES", 14)
        with pytest.raises(DataError, match="X has 5 × 3 values, too many"):
            read_sites(path, "y")
    monkeypatch.setitem(sys.modules, "anndata.io", None)
    with pytest.raises(DataError, match=r"pip install 'fedsift\[anndata\]'"):
        read_sites(path, "y")


def test_a_polars_frame(frame, plain):
    same(from_frame(frame, "y", site_column="hospital", id_column="patient"), plain)
    same(from_frame(frame.lazy(), "y", site_column="hospital", id_column="patient"), plain)


def test_a_pandas_frame(frame, plain):
    """Columns of numbers, of text, of categories and of nullable numbers alike."""
    pandas = pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
    pandas["hospital"] = pandas["hospital"].astype("category")
    pandas["g2"] = pandas["g2"].astype("Int64")
    same(from_frame(pandas, "y", site_column="hospital", id_column="patient"), plain)
    pandas.loc[1, "g2"] = None
    with pytest.raises(DataError, match=r"frame, row 2, column 'g2': a value is missing"):
        from_frame(pandas, "y", site_column="hospital", id_column="patient")
    with pytest.raises(DataError, match=r"no column 'hospitl'.*did you mean 'hospital'"):
        from_frame(pandas, "y", site_column="hospitl")
    with pytest.raises(DataError, match="the frame is a list"):
        from_frame([[1, 2]], "y", site_column="hospital")


def test_a_pandas_column_of_a_mixture_is_text_and_is_refused_with_its_place():
    mixed = pd.DataFrame({"s": ["a"] * 3, "u": [1, "x", 2.5], "y": [True, False, True]})
    with pytest.raises(DataError, match=r"frame, row 2, column 'u': 'x' is not a number"):
        from_frame(mixed, "y", site_column="s")
    data = from_frame(mixed.assign(u=[1, 2, 3]), "y", site_column="s")
    assert data.classes == ("False", "True")


@pytest.mark.parametrize("kind", ["polars", "pandas"])
def test_estimators_take_frames(kind):
    """Columns of a frame with the sites of its rows give what arrays give."""
    rng = np.random.default_rng(0)
    x, sites = rng.normal(size=(24, 4)), np.array(["a", "b", "c"] * 8)
    y = np.where(x[:, 0] > 0, "sick", "well")
    names = [f"g{column}" for column in range(4)]
    make: Any = pl.DataFrame if kind == "polars" else pd.DataFrame
    columns = {name: x[:, column] for column, name in enumerate(names)}
    frame = make(columns | {"hospital": sites, "y": y})
    options: dict[str, Any] = {"n_seeds": 2, "rounds": 3, "tuning_rounds": 2}
    model, plain = (FederatedSparseClassifier(1, **options) for _ in range(2))
    model.fit(frame[names], frame["y"], sites=frame["hospital"])
    plain.fit(x, y, sites=sites)
    assert np.array_equal(model.coef_, plain.coef_)
    assert list(model.feature_names_in_) == names
    assert list(model.predict(frame[names])) == list(plain.predict(x))


def test_a_frame_can_be_fitted(frame):
    import fedsift

    data = from_frame(pl.concat([frame] * 3), "y", site_column="hospital", drop=["patient"])
    run = fedsift.fit(data, features=1, seeds=2, splits=0, rounds=2, tuning_rounds=2)
    assert torch.isfinite(run.params["weight"]).all()
