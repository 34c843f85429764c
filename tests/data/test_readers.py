"""Everything that can be wrong with site files, and what a user is told."""

import re
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from fedsift.data import DataError, DataWarning, read_sites, read_table

GOOD = ("id,age,bmi,y", "p1,50,21.5,ALL", "p2,61,24,AML", "p3,40,30,ALL")
OTHER = ("id,age,bmi,y", "q1,33,19,AML", "q2,35,20,ALL")


def refused(*needles: str):
    """Expect one line that contains each of the needles."""
    pattern = "".join(f"(?=.*{re.escape(needle)})" for needle in needles)
    return pytest.raises(DataError, match=rf"\A{pattern}[^\n]*\Z")


def test_one_file_a_site(write):
    data = read_sites([write("a.csv", *GOOD), write("b.csv", *OTHER)], "y", id_column="id")
    assert data.sites == ("a", "b")
    assert data.offsets == (0, 3, 5)
    assert data.features == ("age", "bmi")
    assert data.rows == ("p1", "p2", "p3", "q1", "q2")
    assert (data.outcome, data.classes) == ("binary", ("ALL", "AML"))
    assert data.y.tolist() == [0, 1, 0, 1, 0]
    torch.testing.assert_close(data.x[1], torch.tensor([61.0, 24.0]))
    assert data.notes == ()


def test_one_file_with_a_site_column_keeps_the_order_of_first_appearance(write):
    path = write("all.tsv", "hospital\tg\ty", "north\t1\t1.5", "south\t2\t2.5", "north\t3\t9")
    data = read_sites(path, "y", site_column="hospital")
    assert data.sites == ("north", "south")
    assert data.x[:, 0].tolist() == [1, 3, 2]
    assert data.rows == ("all:2", "all:4", "all:3")
    assert data.outcome == "regression"


def test_parquet_equals_csv(write, tmp_path: Path):
    frame = pl.DataFrame({"age": [50, 61, 40], "bmi": [21.5, 24.0, 30.0], "y": ["u", "v", "u"]})
    frame.write_parquet(tmp_path / "s.parquet")
    frame.write_csv(tmp_path / "s.csv")
    one, two = (read_sites(tmp_path / name, "y") for name in ("s.parquet", "s.csv"))
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert one.rows == ("s:1", "s:2", "s:3")


def test_columns_may_stand_in_another_order(write):
    paths = [write("a.csv", "u,v,y", "1,2,0", "3,5,1"), write("b.csv", "y,v,u", "0,20,10")]
    with pytest.warns(DataWarning, match="one class"):
        data = read_sites(paths, "y")
    assert data.x.tolist() == [[1, 2], [3, 5], [10, 20]]


def test_byte_order_mark_spaces_blank_lines_and_windows_line_ends(write):
    lines = ("\ufeffage , y", " 1 ,a", "", "2, b ", "")
    data = read_sites(write("a.csv", *lines, end="\r\n"), "y")
    assert data.features == ("age",)
    assert data.classes == ("a", "b")
    assert data.rows == ("a:2", "a:4")


def test_sites_of_one_row_and_repeated_ids_are_allowed(write):
    paths = [write("a.csv", *GOOD, "p3,41,31,ALL"), write("b.csv", *OTHER[:2])]
    with pytest.warns(DataWarning, match="sites with one class of 'y' only: 'b'"):
        data = read_sites(paths, "y", id_column="id")
    assert data.sizes == (4, 1)
    assert data.rows.count("p3") == 2
    assert "'b'" in data.notes[0]


def test_large_whole_numbers_are_read(write):
    data = read_sites(write("a.csv", "u,y", "123456789012345,0", "5,1"), "y")
    assert data.x[0, 0] == pytest.approx(123456789012345, rel=1e-6)


def test_weights(write):
    path = write("a.csv", "u,w,y", "1,2,0", "3,.5,1")
    assert read_sites(path, "y", weight_column="w").weight.tolist() == [2, 0.5]
    bad = write("b.csv", "u,w,y", "1,2,0", "3,0,1", "4,-1,1")
    with refused("b.csv, line 3", "weight 'w' is 0.0", "2 such rows", "positive"):
        read_sites(bad, "y", weight_column="w")


def test_missing_values_are_refused_with_the_counts(write):
    a = write("a.csv", "u,v,w,y", "1,2,1,0", "3,NA,2,1")
    b = write("b.csv", "u,v,w,y", "nan,,3,0", "3,1,4,1")
    with refused("a.csv, line 3, column 'v'", "missing in all: 3", "'u' 1", "'v' 2", "impute"):
        read_sites([a, b], "y")


def test_missing_values_are_marked_and_noted_on_request(write):
    a = write("a.csv", "u,k,y", "1,2,0", "4,1,1")
    b = write("b.csv", "u,k,y", "2,1,0", ",7,1")
    with pytest.warns(DataWarning, match="1 missing value in 1 column filled"):
        data = read_sites([a, b], "y", weight_column="k", impute="mean")
    assert data.x[:, 0].tolist() == [1, 4, 2, 0]
    assert data.missing is not None
    assert data.missing[:, 0].tolist() == [False, False, False, True]
    assert "1 missing value in 1 column" in data.notes[0]
    assert read_sites(a, "y", weight_column="k").missing is None
    with refused("no row of any site", "'u'", "drop"):
        read_sites(write("c.csv", "u,v,y", ",1,0", ",2,1"), "y", impute="mean")


def test_a_constant_column_is_kept_with_a_warning(write):
    """Leaving it out would let the test rows decide which columns there are."""
    paths = [write("a.csv", "u,c,y", "1,7,0", "3,7,1"), write("b.csv", "u,c,y", "4,7,0", "5,7,1")]
    with pytest.warns(DataWarning, match="1 column with one value in all rows, of no use: 'c'"):
        data = read_sites(paths, "y")
    assert data.features == ("u", "c")
    assert "'c'" in data.notes[0]
    with refused("every feature", "'c'"):
        read_sites(write("d.csv", "c,y", "7,0", "7,1"), "y")


def test_a_column_that_single_precision_makes_constant_is_called_so(write):
    near = write("a.csv", "u,c,y", "1,100000000.001,0", "3,99999999.999,1")
    with pytest.warns(DataWarning, match=r"once rounded to single precision .*: 'c'"):
        read_sites(near, "y")
    with refused("every feature", "rounded to single precision", "'c'"):
        read_sites(write("d.csv", "c,y", "100000000.001,0", "99999999.999,1"), "y")


def test_columns_that_look_like_ids_are_noted(write):
    """Unlike whole numbers in 20 rows; measured or repeated numbers, and few rows, are not."""
    lines = [f"{900 - 7 * row},{row / 2},{row % 19},{row % 2}" for row in range(20)]
    path = write("a.csv", "nr,half,age,y", *lines)
    with pytest.warns(DataWarning, match="1 column with another whole number in each row: 'nr'"):
        read_sites(path, "y")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_sites(path, "y", id_column="nr")
        read_sites(write("b.csv", "nr,half,age,y", *lines[:19]), "y")


def test_classes_of_few_rows_or_of_almost_one_name_are_noted(write):
    labels = ["ALL"] * 9 + ["all"] * 8 + ["A ll", "AML", "AML"]
    lines = [f"{row / 2},{label}" for row, label in enumerate(labels)]
    with pytest.warns(DataWarning) as caught:
        data = read_sites(write("a.csv", "u,y", *lines), "y")
    rare, alike = (str(warning.message) for warning in caught)
    assert rare == "classes of 'y' with one or two rows: 'A ll', 'AML'"
    assert alike == "classes of 'y' that differ in case or blanks only: 'A ll', 'ALL', 'all'"
    assert data.notes == (rare, alike)
    assert caught[0].filename == __file__


def test_a_column_constant_at_one_site_only_is_kept(write):
    paths = [write("a.csv", "u,c,y", "1,7,0", "3,7,1"), write("b.csv", "u,c,y", "4,8,0", "5,8,1")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_sites(paths, "y").features == ("u", "c")


@pytest.mark.parametrize(
    ("lines", "needles"),
    [
        ((), ("a.csv", "empty")),
        (("", "  "), ("a.csv", "empty")),
        (("u,y",), ("a.csv", "no rows")),
        (("u,v,u,y", "1,2,3,0"), ("a.csv", "repeated", "'u'", "columns 1, 3", "rename")),
        (("u,,y", "1,2,0"), ("a.csv", "column 2 of 3 has no name")),
        (("u,y", "1,0", "2,1,5"), ("a.csv, line 3", "3 values for 2 columns")),
        (("u,v,y", "1,2,0", "2,3"), ("a.csv, line 3", "2 values for 3 columns")),
        (("u;v;y", "1;2;0"), ("a.csv", "no comma", "semicolon", "separator=';'")),
        (("u,y", "1,0", "two,1", "x,1"), ("a.csv, line 3, column 'u'", "'two'", "2 of 3", "drop")),
        (("u,y", "1,0", "2,1", "x,1"), ("a.csv, line 4", "1 of 3 values is not", "leave empty")),
        (("u,y", "1,0", '"2,5",1'), ("a.csv, line 3, column 'u'", "'2,5'", "decimal point")),
        (("u,y", "1,0", "inf,1"), ("a.csv, line 3, column 'u'", "inf", "infinite")),
        (("u,y", "1,0", "1e60,1"), ("a.csv, line 3, column 'u'", "1e+60", "infinite")),
        (("u,y", "1,0", "2,"), ("a.csv, line 3", "target 'y' is missing", "1 of 2 rows")),
        (("u,y", "1,0", "2,inf"), ("a.csv, line 3", "target 'y' is inf")),
        (("u,y", "1,0", "2,0"), ("target 'y'", "same value (0) in all 2 rows")),
        (("u,Y", "1,0", "2,1"), ("a.csv", "no column 'y' (target)", "did you mean 'Y'?")),
        (("y", "0", "1"), ("a.csv", "no column is left as a feature")),
        (("u,y", "1,p1", "2,p2", "3,p3", "4,p4"), ("target 'y'", "4 different texts in 4", "id")),
        (("u,y", '"1', '2",0', "3,1"), ("a.csv, line 2, column 'u'", r"'1\n2'")),
        (
            ("u,y", *(f"1,{n}.5" for n in range(9)), "1,oops"),
            ("a.csv, line 11", "'oops'", "1 such"),
        ),
        (("u,y", '1,"0'), ("a.csv", "cannot be read")),
    ],
)
def test_a_bad_file_is_refused_in_one_line(write, lines, needles):
    path = write("a.csv", *lines)
    with refused(*needles):
        read_sites(path, "y")


def test_the_line_is_right_after_blank_lines(write):
    with refused("a.csv, line 6"):
        read_sites(write("a.csv", "", "u,y", "1,0", "", "", "oops,1"), "y")


def test_a_site_that_is_not_the_first_is_named(write):
    with refused("b.csv, line 2, column 'age'", "'old'"):
        read_sites(
            [write("a.csv", *GOOD), write("b.csv", GOOD[0], "q,old,3,ALL")], "y", drop=["id"]
        )


def test_text_in_the_target_of_a_regression(write):
    path = write("a.csv", "u,y", "1,0.5", "2,high", "3,1.5")
    with refused("a.csv, line 3", "target 'y' is 'high'", "not a number"):
        read_sites(path, "y", outcome="regression")


def test_too_many_classes_for_a_binary_outcome(write):
    with refused("3 classes", "'a', 'b', 'c'", "multiclass"):
        read_sites(write("a.csv", "u,y", "1,a", "2,b", "3,c"), "y", outcome="binary")
    with refused("outcome 'binry' is unknown", "did you mean 'binary'?"):
        read_sites(write("a.csv", "u,y", "1,a", "2,b"), "y", outcome="binry")


def test_columns_that_differ_between_sites(write):
    a = write("a.csv", "u,v,w,y", "1,2,3,0", "2,3,4,1")
    b = write("b.csv", "w,u,z,y", "1,2,3,0", "2,3,5,1")
    with refused("b.csv", "lacks 1 column of a.csv", "'v'", "has 1", "'z'", "features_in_common"):
        read_sites([a, b], "y")
    with pytest.warns(DataWarning, match="2 columns left out.*: 'v', 'z'"):
        data = read_sites([a, b], "y", features_in_common=True)
    assert data.features == ("u", "w")
    assert data.x.tolist() == [[1, 3], [2, 4], [2, 1], [3, 2]]


def test_the_same_id_at_two_sites(write):
    paths = [write("a.csv", *GOOD), write("b.csv", OTHER[0], "p2,33,19,AML", "p3,35,20,ALL")]
    with refused("id 'p2'", "'a' (a.csv, line 3)", "'b' (b.csv, line 2)", "such ids: 2"):
        read_sites(paths, "y", id_column="id")


def test_an_empty_id_or_site(write):
    path = write("a.csv", "id,s,u,y", "p,n,1,0", ",n,2,1", "q,,3,1")
    with refused("a.csv, line 3", "id 'id' is missing"):
        read_sites(path, "y", id_column="id", drop=["s"])
    with refused("a.csv, line 4", "site 's' is missing"):
        read_sites(path, "y", site_column="s", drop=["id"])


def test_files_that_cannot_be_sites(write, tmp_path: Path):
    with refused("no site file"):
        read_sites([], "y")
    good = write("clinic_a.csv", *GOOD)
    with refused("clinic_b.csv", "no such file", "did you mean 'clinic_a.csv'?"):
        read_sites(tmp_path / "clinic_b.csv", "y")
    (tmp_path / "empty").mkdir()
    with refused("empty: the folder has no file", ".csv", "name site files"):
        read_sites(tmp_path / "empty", "y")
    with refused("nowhere", "no such file", "not a folder"):
        read_sites(tmp_path / "nowhere" / "a.csv", "y")
    with refused("2 files are called 'clinic_a'", "rename"):
        read_sites([good, write("other/clinic_a.csv", *GOOD)], "y")
    with refused("a.xlsx", "'.xlsx'", "save it as .csv"):
        read_sites(write("a.xlsx", *GOOD), "y")
    with refused("a.parquet", "not a Parquet file"):
        read_sites(write("a.parquet", *GOOD), "y")
    with refused("latin.csv", "UTF-8"):
        read_sites(write("latin.csv", "größe,y", "1,0", "2,1", encoding="latin-1"), "y")
    with refused("late.csv", "UTF-8"):
        read_sites(write("late.csv", "u,y", "1,ä", "2,b", encoding="latin-1"), "y")


def test_columns_named_twice_or_not_there(write):
    path = write("a.csv", *GOOD)
    with refused("column 'id' is named for 'id', 'drop'"):
        read_sites(path, "y", id_column="id", drop=["id"])
    with refused("'agee'", "did you mean 'age'?"):
        read_sites(path, "y", drop=["id", "agee"])
    with refused("a.csv", "'hospital' (site)"):
        read_sites(path, "y", site_column="hospital")


def test_another_separator(write):
    path = write("a.csv", "u;y", "1;0", "2;1")
    assert read_sites(path, "y", separator=";").x[:, 0].tolist() == [1, 2]
    with refused("separator ';;'"):
        read_sites(path, "y", separator=";;")


def test_a_parquet_column_of_dates(tmp_path: Path):
    frame = pl.DataFrame({"u": [1, 2], "day": ["2020-01-01", "2020-01-02"], "y": [0, 1]})
    frame.with_columns(pl.col("day").str.to_date()).write_parquet(tmp_path / "a.parquet")
    with refused("a.parquet", "column 'day' holds Date", "drop=['day']"):
        read_sites(tmp_path / "a.parquet", "y")


def test_parquet_keeps_booleans_and_missing_values(tmp_path: Path):
    frame = pl.DataFrame({"u": [1.0, None, float("nan")], "b": [True, False, True], "y": [1, 2, 1]})
    frame.write_parquet(tmp_path / "a.parquet")
    with refused("a.parquet, row 2, column 'u'", "'u' 2"):
        read_sites(tmp_path / "a.parquet", "y")
    with pytest.warns(DataWarning) as caught:
        data = read_sites(tmp_path / "a.parquet", "y", impute="mean")
    assert "2 missing values in 1 column" in str(caught[0].message)
    assert "one value in all rows, of no use: 'u'" in str(caught[1].message)
    assert data.x.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert data.classes == ("1", "2")


def test_a_wide_file_is_read_quickly(tmp_path: Path):
    values = np.arange(40 * 7129, dtype=np.float64).reshape(40, -1) / 7
    frame = pl.DataFrame(values, schema=[f"g{column}" for column in range(7129)])
    frame.with_columns(y=pl.Series([0.0, 1.0] * 20)).write_csv(tmp_path / "wide.csv")
    start = time.process_time()
    data = read_sites(tmp_path / "wide.csv", "y")
    # Half a second of work; the bound only catches work that grows with columns squared.
    assert time.process_time() - start < 10
    np.testing.assert_array_equal(data.x.numpy(), values.astype(np.float32))


def test_read_table_for_prediction(write):
    path = write("new.csv", "name,bmi,extra,age,y", "p,20,text,50,AML", "q,NA,text,51,ALL")
    table = read_table(
        path,
        ["age", "bmi"],
        target="y",
        classes=["ALL", "AML"],
        id_column="name",
        fills={"bmi": 25.0},
    )
    assert table.x.tolist() == [[50, 20], [51, 25]]
    assert table.rows == ("p", "q")
    assert table.y is not None
    assert table.y.tolist() == [1, 0]
    assert read_table(path, ["age"], target="outcome").y is None
    assert read_table(path, ["age"]).rows == ("new:2", "new:3")


def test_read_table_refuses(write):
    path = write("new.csv", "bmi,age,y", "20,50,AML", "NA,51,XX")
    with refused("new.csv", "1 of 2 features absent: 'Age'", "did you mean 'age'?"):
        read_table(path, ["Age", "bmi"])
    with refused("new.csv, line 3, column 'bmi'", "missing"):
        read_table(path, ["bmi"])
    with refused("new.csv, line 3", "'XX' is not a class of 'y'"):
        read_table(path, ["age"], target="y", classes=["ALL", "AML"])
    with refused("new.csv", "'pid' (id)"):
        read_table(path, ["age"], id_column="pid")
