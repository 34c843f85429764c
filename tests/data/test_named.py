"""Named data sets: what they contain, against their sources and their definitions."""

import os
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.data import (
    KNOWN_GENES,
    NAMED,
    DataError,
    FederatedData,
    Standardiser,
    golub38,
    golub72,
    golub_raw,
    golub_recipe,
    split,
    synthetic_regression,
)


def test_golub38_is_what_the_paper_describes():
    data = golub38()
    assert data.x.shape == (38, 3051)
    assert data.classes == ("ALL", "AML")
    assert data.y.tolist() == [0] * 27 + [1] * 11
    assert data.rows[0] == "patient 1"
    assert data.rows[-1] == "patient 38"
    assert len(data.descriptions) == 3051
    assert "Cystatin C" in data.descriptions["M27891_at"]
    x = data.x.double()
    torch.testing.assert_close(x.mean(1), torch.zeros(38).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(1), torch.ones(38).double(), atol=1e-5, rtol=0)


def test_golub38_is_small_and_its_known_genes_tell_the_classes_apart():
    assert len((files("fedsift.data") / "golub38.npz.xz").read_bytes()) < 500_000
    data = golub38()
    aml = data.y == 1
    gap = (data.x[aml].mean(0) - data.x[~aml].mean(0)).abs()
    rank = gap.argsort(descending=True).argsort()
    for accession in KNOWN_GENES:
        assert rank[data.features.index(accession)] < 100, accession  # of 3051


@pytest.mark.needs_data
def test_golub38_equals_the_raw_files(golub_folder, capsys):
    embedded = golub38()
    recipe = golub72(golub_folder, filter_on="train38").take(range(38))
    assert recipe.x.shape == (38, 3051)
    assert recipe.features == embedded.features
    assert recipe.rows == embedded.rows
    assert torch.equal(recipe.y, embedded.y)
    difference = (recipe.x.double() - embedded.x.double()).abs().max().item()
    with capsys.disabled():
        print(f"\ngolub38 against the raw files: largest difference {difference:.1e}")
    assert difference < 6e-6  # the embedded values have five decimals


@pytest.mark.needs_data
def test_golub72_has_the_sizes_of_the_literature(golub_folder):
    data = golub72(golub_folder)
    assert data.x.shape == (72, 3571)
    assert torch.bincount(data.y).tolist() == [47, 25]
    assert data.rows == tuple(f"patient {number}" for number in range(1, 73))
    assert set(KNOWN_GENES) <= set(data.features)
    assert golub72(golub_folder, filter_on="train38").x.shape == (72, 3051)


@pytest.mark.needs_data
def test_genes_can_be_chosen_on_training_rows_only(golub_folder):
    """The filter on 57 training patients keeps 3285 to 3473 genes (measured over splits)."""
    raw = golub_raw(golub_folder)
    assert raw.x.shape == (72, 7129)
    train, _ = split(raw, 0)
    chosen = [raw.rows.index(row) for row in train.rows]
    data = golub_recipe(raw, chosen)
    assert 3200 < data.n_features < 3571
    # Other values in the test rows leave the choice as it is.
    test_rows = torch.ones(72, dtype=torch.bool).index_fill(0, torch.tensor(chosen), False)
    scrambled = torch.where(test_rows[:, None], raw.x.flip(1), raw.x)
    assert golub_recipe(replace(raw, x=scrambled), chosen).features == data.features


def test_absent_raw_files_are_explained(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSIFT_DATA", raising=False)
    with pytest.raises(DataError, match="set FEDSIFT_DATA to the folder"):
        golub72()
    with pytest.raises(DataError, match=r"data_set_ALL_AML_train.csv.* not found"):
        golub72(tmp_path)
    monkeypatch.setenv("FEDSIFT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=str(tmp_path)):
        golub72()
    assert "FEDSIFT_DATA" in os.environ


def test_synthetic_regression_is_its_definition():
    train, test, coefficients = synthetic_regression(seed=1)
    assert train.x.shape == (400, 1000)
    assert test.x.shape == (5000, 1000)
    assert train.n_sites == 5
    assert test.sites == ("test",)
    assert sorted(coefficients.unique().tolist()) == [-1, 0, 1]
    assert (coefficients != 0).sum() == 50
    # Correlations of neighbours .2, of their neighbours .04; standard error .014 / sqrt(1000).
    x = test.x.double()
    assert x.mean().item() == pytest.approx(0, abs=0.002)
    assert x.var().item() == pytest.approx(1, abs=0.01)
    for lag, expected in ((1, 0.2), (2, 0.04), (5, 0.2**5)):
        assert (x[:, lag:] * x[:, :-lag]).mean().item() == pytest.approx(expected, abs=0.003)
    # The true coefficients explain snr / (1 + snr) = .952 of the variance.
    error = test.y - test.x @ coefficients
    assert 1 - (error.var() / test.y.var()).item() == pytest.approx(20 / 21, abs=0.005)
    error = train.y - train.x @ coefficients
    assert 1 - (error.var() / train.y.var()).item() == pytest.approx(20 / 21, abs=0.015)


def test_synthetic_regression_names_its_support():
    made = synthetic_regression(n_samples=20, n_features=30, n_informative=4, n_test=10, seed=3)
    chosen = {f"x{number}" for number in made.coefficients.nonzero().flatten().tolist()}
    assert made.support == chosen
    assert len(made.support) == 4
    again = synthetic_regression(n_samples=20, n_features=30, n_informative=4, n_test=10, seed=3)
    assert again.train.fingerprint() == made.train.fingerprint()
    other = synthetic_regression(n_samples=20, n_features=30, n_informative=4, n_test=10, seed=4)
    assert other.support != made.support


def test_a_larger_synthetic_set_begins_with_the_smaller_one():
    sizes: dict[str, Any] = {"n_features": 30, "n_informative": 4, "n_test": 10, "n_sites": 1}
    small = synthetic_regression(n_samples=20, **sizes)
    large = synthetic_regression(n_samples=50, **sizes)
    assert torch.equal(small.coefficients, large.coefficients)
    kept = [large.train.rows.index(row) for row in small.train.rows]
    assert torch.equal(large.train.x[kept], small.train.x)
    assert torch.equal(large.train.y[kept], small.train.y)


def test_the_shift_moves_the_training_features_only():
    sizes = {"n_samples": 60, "n_features": 30, "n_informative": 4, "n_test": 10}
    plain, shifted = (synthetic_regression(**sizes, shift=shift) for shift in (None, "affine"))
    assert torch.equal(plain.train.y, shifted.train.y)
    assert torch.equal(plain.test.x, shifted.test.x)
    assert not torch.equal(plain.train.x, shifted.train.x)
    assert np.corrcoef(plain.train.x.flatten(), shifted.train.x.flatten())[0, 1] > 0.99


@pytest.mark.parametrize("wrong", [{"n_informative": 40}, {"correlation": 1.0}, {"snr": 0.0}])
def test_impossible_synthetic_data_are_refused(wrong):
    with pytest.raises(DataError, match="choose"):
        synthetic_regression(**{"n_features": 30, "n_informative": 4, **wrong})


def test_the_registry_makes_what_it_says():
    assert set(NAMED) == {"digits", "golub", "golub72", "synthetic"}
    golub = NAMED["golub"]()
    assert isinstance(golub, FederatedData)
    assert Standardiser.fit(golub, "array").apply(golub).n_samples == 38
