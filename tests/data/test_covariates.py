"""Covariates are coded with the same levels at every site."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift.data import Covariate, DataError, FederatedData, Standardiser, read_sites, read_table
from fedsift.data.covariates import FEW_LEVELS, agree, covariate_facts
from fedsift.data.site_files import SiteFile

HEAD = "y,age,sex,stage,g0,g1"
FILES = {
    "a": ["1.5,60,f,I,1,2", "2.5,50.5,m,II,2,1", "0.5,70,f,I,0,3"],
    "b": ["1.0,55,m,III,1,1", "3.5,45,f,I,2,2", "2.0,52,m,II,4,0"],
}
STAY = ("age", "sex", "stage")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{name}.csv" for name in FILES]
    for path, lines in zip(paths, FILES.values(), strict=True):
        path.write_text("\n".join([HEAD, *lines]) + "\n")
    return paths


def test_columns_of_levels_are_those_of_all_sites(files):
    """Site a has no stage III; its column is there, and 0."""
    data = read_sites(files, "y", covariates=STAY)
    assert data.candidates == ("g0", "g1")
    assert data.features[2:] == ("age", "sex=m", "stage=II", "stage=III")
    assert data.covariates[2] == Covariate("stage", ("I", "II", "III"))
    np.testing.assert_array_equal(data.site("a").x[:, 3:], [[0, 0, 0], [1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(data.site("b").x[:, 3:], [[1, 0, 1], [0, 0, 0], [1, 1, 0]])


def test_a_site_reads_its_file_with_the_levels_of_all(files):
    """What a deployment's sites agree on gives the rows that reading all files gives."""
    whole = read_sites(files, "y", covariates=STAY)
    sites = [SiteFile(file, file.stem, "y", covariates=STAY, min_rows=1) for file in files]
    said = {site.site: site.describe() for site in sites}
    agreed = [agree(name, {k: v["covariates"][name] for k, v in said.items()}) for name in STAY]
    assert tuple(agreed) == whole.covariates
    for site in sites:
        own = site.read("regression", (), agreed)
        assert own.features == whole.features
        assert torch.equal(own.x, whole.site(site.site).x)


@given(st.lists(st.integers(0, 10), min_size=2), st.randoms(use_true_random=False))
def test_few_whole_numbers_are_levels_however_they_lie(values, shuffle):
    """Which site has which value decides nothing."""
    shuffle.shuffle(values)
    cut = len(values) // 2
    said = {
        name: covariate_facts([float(v) for v in part], "stage")
        for name, part in {"a": values[:cut], "b": values[cut:]}.items()
    }
    distinct = sorted(set(values))
    if len(distinct) < 2:
        with pytest.raises(DataError, match="leave it out"):
            agree("stage", said)
    elif len(distinct) > FEW_LEVELS:
        assert agree("stage", said).levels == ()
    else:
        assert agree("stage", said).levels == tuple(str(v) for v in distinct)


def test_of_a_measured_covariate_nothing_is_told():
    assert covariate_facts([61.5, 40.0, None], "age") == {"kind": "measured", "names": []}


def test_text_and_measures_do_not_mix():
    said = {"a": covariate_facts(["old", "young"], "age"), "b": covariate_facts([31.5], "age")}
    with pytest.raises(DataError, match="text at 'a' and measured at 'b'"):
        agree("age", said)


def test_texts_that_look_like_ids_are_refused():
    with pytest.raises(DataError, match="at most 20 can be levels"):
        covariate_facts([f"patient {i}" for i in range(21)], "name")


def test_a_level_that_the_model_does_not_know_is_named(files, tmp_path):
    data = read_sites(files, "y", covariates=STAY)
    new = tmp_path / "new.csv"
    new.write_text("stage,sex,g0,age\nI,f,1,50\nIIII,m,2,60\n")
    with pytest.raises(DataError, match="line 3: 'IIII' is none of the 3 levels") as told:
        read_table(new, ["g0"], covariates=data.covariates)
    assert "did you mean 'III'?" in str(told.value)
    new.write_text("stage,sex,g0,age\nI,f,1,50\nIII,m,2,60\n")
    table = read_table(new, ["g0"], covariates=data.covariates)
    assert table.features == ("g0", "age", "sex=m", "stage=II", "stage=III")
    np.testing.assert_array_equal(table.x, [[1, 50, 0, 0, 0], [2, 60, 1, 0, 1]])


def test_missing_values_are_refused_or_filled_with_means(files):
    lines = [*FILES["a"][:2], "0.5,,,I,0,3"]
    files[0].write_text("\n".join([HEAD, *lines]) + "\n")
    with pytest.raises(DataError, match=r"a\.csv, line 4, column 'age': a value is missing"):
        read_sites(files, "y", covariates=STAY)
    data = read_sites(files, "y", covariates=STAY, impute="mean")
    filled = Standardiser.fit(data, "none").fills
    assert filled["age"] == pytest.approx((60 + 50.5 + 55 + 45 + 52) / 5)
    assert filled["sex=m"] == pytest.approx(3 / 5)


def test_a_column_has_one_purpose(files):
    with pytest.raises(DataError, match="named for 'target', 'covariates'"):
        read_sites(files, "y", covariates=["y"])
    with pytest.raises(DataError, match="no column 'sexe'"):
        read_sites(files, "y", covariates=["sexe"])


def test_covariates_stay_in_what_is_selected():
    x = torch.arange(12.0).reshape(3, 4)
    data = FederatedData.from_arrays(x, [0.5, 1.5, 2.5], features=["a", "b", "c", "d"])
    data = data.with_covariates(["b"])
    assert data.features == ("a", "c", "d", "b")
    assert data.candidates == ("a", "c", "d")
    part = data.select_features(["d"])
    assert part.features == ("d", "b")
    assert torch.equal(part.x, x[:, [3, 1]])
    with pytest.raises(DataError, match="no feature 'b'"):
        data.select_features(["b"])
    assert data.with_covariates(["d"]).features == ("a", "c", "b", "d")


def test_arrays_are_standardised_without_their_covariates():
    """A covariate's unit changes nothing of the others, and it is centred and scaled itself."""
    draw = np.random.default_rng(0)
    genes, age = draw.normal(size=(9, 5)), draw.normal(60, 10, size=9)
    y = draw.normal(size=9)

    def standard(scale: float) -> FederatedData:
        x = np.column_stack([age * scale, genes])
        data = FederatedData.from_arrays(x, y).with_covariates(["x0"])
        fitted = Standardiser.fit(data, "array")
        assert Standardiser.from_dict(fitted.to_dict()).covariates == data.covariates
        return fitted.apply(data)

    one, other = standard(1.0), standard(365.0)
    torch.testing.assert_close(one.x, other.x)
    alone = FederatedData.from_arrays(genes, y)
    torch.testing.assert_close(one.x[:, :5], Standardiser.fit(alone, "array").apply(alone).x)
    assert float(one.x[:, 5].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(one.x[:, 5].std(correction=0)) == pytest.approx(1.0, abs=1e-6)
