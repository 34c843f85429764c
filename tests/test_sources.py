"""Where data come from: the same description gives the same rows."""

import json

import pytest
import torch
from pydantic import ValidationError

from fedsift.data import golub38, iid, synthetic_regression
from fedsift.settings import Settings
from fedsift.sources import Source

SETTINGS = Settings(features=3, splits=2, seed=4)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "all.csv"
    rows = [f"{'ab'[i % 2]},{i / 2},{(7 * i) % 11},{'yes' if i % 3 else 'no'}" for i in range(24)]
    path.write_text("\n".join(["site,x,z,answer", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("kind", ["files", "golub", "synthetic"])
def test_a_source_read_back_from_json_gives_the_same_rows(kind, file):
    sources = {
        "files": Source(files=(file,), target="answer", site_column="site"),
        "golub": Source(demo="golub", sites=3, partition="dirichlet_labels", alpha=0.5, shift=True),
        "synthetic": Source(
            demo="synthetic", samples=30, features_total=10, informative=2, data_seeds=2
        ),
    }
    source = sources[kind]
    again = Source(**json.loads(json.dumps(source.model_dump(mode="json"))))
    assert again == source
    for one, two in zip(source.cases(SETTINGS), again.cases(SETTINGS), strict=True):
        assert one.name == two.name
        assert one.train.fingerprint() == two.train.fingerprint()


def test_files_and_golub_give_splits_and_last_all_rows(file):
    for source, rows in (
        (Source(files=(file,), target="answer", site_column="site"), 24),
        (Source(demo="golub"), 38),
    ):
        cases = source.cases(SETTINGS)
        assert [case.name for case in cases] == ["split 1", "split 2", "all rows"]
        assert cases[-1].test is None
        assert cases[-1].train.n_samples == rows
        for case in cases[:-1]:
            assert case.test is not None
            assert case.train.n_samples + case.test.n_samples == rows


def test_golub_is_spread_evenly_over_five_sites():
    data = Source(demo="golub").cases(SETTINGS)[-1].train
    assert data.fingerprint() == iid(golub38(), 5, SETTINGS.seed).fingerprint()


def test_synthetic_gives_a_case_a_data_seed_with_its_answer():
    source = Source(demo="synthetic", samples=50, features_total=30, informative=4, data_seeds=3)
    cases = source.cases(SETTINGS)
    assert [case.name for case in cases] == ["data set 4", "data set 5", "data set 6"]
    expected = synthetic_regression(n_samples=50, n_features=30, n_informative=4, seed=5)
    assert cases[1].train.fingerprint() == expected.train.fingerprint()
    assert cases[1].truth == expected.support
    assert cases[1].test is not None
    assert cases[1].test.n_samples == 5000


@pytest.mark.parametrize("partition", ["iid", "dirichlet_counts"])
def test_a_shift_moves_synthetic_sites_but_not_the_target(partition):
    size = {"samples": 40, "features_total": 8, "informative": 2, "data_seeds": 1}
    plain, moved = (
        Source(demo="synthetic", partition=partition, shift=shift, **size).cases(SETTINGS)[0].train
        for shift in (False, True)
    )
    assert torch.equal(plain.y, moved.y)
    assert plain.sizes == moved.sizes
    assert not torch.allclose(plain.x, moved.x)


def test_defaults_of_the_demos():
    assert Source(demo="golub").defaults == {"features": 3, "standardise": "array"}
    assert Source(demo="synthetic").defaults == {"features": 50, "participation": 0.6}
    assert Source(demo="synthetic", informative=7).defaults["features"] == 7
    assert Source(files=("a.csv",), target="y").defaults == {}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"files": ("a.csv",)},
        {"files": ("a.csv",), "target": "y", "demo": "golub"},
        {"demo": "leukaemia"},
        {"demo": "golub", "sites": 0},
        {"demo": "golub", "colour": "red"},
    ],
)
def test_contradictions_are_refused(given):
    with pytest.raises(ValidationError):
        Source(**given)
