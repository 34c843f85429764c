"""`FederatedData`: rows keep their site, their name and their values through every operation."""

import dataclasses

import numpy as np
import pytest
import torch

from fedsift.data import DataError, FederatedData, affine_shift, code_target, encode


@pytest.fixture
def data() -> FederatedData:
    """Five rows of sites b, a, c, whose x tells row and column: 10 row + column."""
    x = 10 * np.arange(5)[:, None] + np.arange(3)
    return FederatedData.from_arrays(
        x,
        [0.5, 1.5, 2.5, 3.5, 4.5],
        sites=["b", "a", "b", "c", "a"],
        features=["u", "v", "w"],
        ids=["r0", "r1", "r2", "r3", "r4"],
        weight=[1, 2, 3, 4, 5],
    )


def test_from_arrays_groups_rows_by_site(data):
    assert data.sites == ("b", "a", "c")
    assert data.sizes == (2, 2, 1)
    assert data.rows == ("r0", "r2", "r1", "r4", "r3")
    assert data.x[:, 0].tolist() == [0, 20, 10, 40, 30]
    assert data.y.tolist() == [0.5, 2.5, 1.5, 4.5, 3.5]
    assert data.weight.tolist() == [1, 3, 2, 5, 4]
    assert data.site_of_row.tolist() == [0, 0, 1, 1, 2]
    assert (data.n_sites, data.n_samples, data.n_features) == (3, 5, 3)
    assert data.x.dtype == data.weight.dtype == data.y.dtype == torch.float32


def test_default_names():
    data = FederatedData.from_arrays(np.eye(3), [1.0, 2.0, 4.0], sites=["n", "s", "n"])
    assert data.features == ("x0", "x1", "x2")
    assert data.rows == ("n:1", "n:2", "s:1")
    images = FederatedData.from_arrays(torch.zeros(2, 1, 4, 4), torch.tensor([3, 7]))
    assert images.features == ()
    assert images.n_features == 16
    assert images.sites == ("site_1",)


def test_site_take_and_pooled(data):
    assert data.site("a").rows == ("r1", "r4")
    assert data.site("a").sites == ("a",)
    taken = data.take([4, 1, 0])
    assert taken.rows == ("r2", "r0", "r3")
    assert taken.sites == ("b", "c")  # a has no row left
    assert data.take(torch.tensor([True, False, True, False, False])).rows == ("r0", "r1")
    assert data.pooled().sites == ("pooled",)
    assert data.pooled().rows == data.rows
    with pytest.raises(DataError, match=r"no site is called 'A'; did you mean 'a'\?"):
        data.site("A")
    for wrong in ([], [5], [-1], torch.tensor([True])):
        with pytest.raises(DataError):
            data.take(wrong)


def test_select_features(data):
    assert data.select_features(["w", "u"]).x[1].tolist() == [22, 20]
    assert data.select_features(torch.tensor([2, 0])).features == ("w", "u")
    for wrong in (["u", "nope"], [3], [-1]):
        with pytest.raises(DataError, match="no feature"):
            data.select_features(wrong)


def test_with_sites(data):
    moved = data.with_sites(torch.tensor([1, 0, 1, 0, 0]), ["one", "two", "three"])
    assert moved.sites == ("one", "two")
    assert moved.rows == ("r2", "r4", "r3", "r0", "r1")
    with pytest.raises(DataError):
        data.with_sites(torch.tensor([0, 0, 0, 0, 1]), ["one"])


def test_fingerprint_does_not_depend_on_the_order_of_sites(data):
    listed_otherwise = data.with_sites(torch.tensor([2, 2, 1, 1, 0]), ["c", "a", "b"])
    assert listed_otherwise.sites != data.sites
    assert listed_otherwise.fingerprint() == data.fingerprint()
    assert len(data.fingerprint()) == 64


@pytest.mark.parametrize("name", ["x", "y", "weight"])
def test_fingerprint_changes_with_any_number(data, name):
    seen = {data.fingerprint()}
    tensor = getattr(data, name)
    for position in range(tensor.numel()):
        changed = tensor.clone().contiguous()
        changed.view(-1)[position] = torch.nextafter(changed.view(-1)[position], torch.tensor(9e9))
        seen.add(dataclasses.replace(data, **{name: changed}).fingerprint())
    assert len(seen) == tensor.numel() + 1


@pytest.mark.parametrize(
    "change",
    [
        {"sites": ("b", "a", "d")},
        {"features": ("u", "v", "z")},
        {"rows": ("r0", "r2", "r1", "r4", "other")},
        {"offsets": (0, 1, 4, 5)},
        {"target": "other"},
    ],
)
def test_fingerprint_changes_with_any_name(data, change):
    assert dataclasses.replace(data, **change).fingerprint() != data.fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(4)}, "y has length 4 for 5 rows"),
        ({"rows": ("r",)}, "rows has length 1 for 5 rows"),
        ({"offsets": (0, 2, 4)}, "offsets"),
        ({"offsets": (0, 2, 2, 5)}, "offsets"),
        ({"offsets": (1, 2, 4, 5)}, "offsets"),
        ({"sites": ("b", "a", "b")}, "site names must differ; repeated: 'b'"),
        ({"features": ("u", "v", "u")}, "feature names must differ; repeated: 'u'"),
        ({"features": ("u", "v")}, "2 feature names"),
        ({"x": torch.full((5, 3), torch.nan)}, "finite"),
        ({"x": torch.zeros((5, 3), dtype=torch.float16)}, "float32"),
        ({"weight": torch.zeros(5)}, "weights must be positive"),
        ({"outcome": "ordinal"}, "outcome 'ordinal' is unknown"),
        ({"outcome": "binary", "classes": ("n", "p")}, "y does not fit"),
        ({"y": torch.full((5,), torch.inf)}, "y does not fit"),
    ],
)
def test_data_that_contradict_themselves_are_refused(data, change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(data, **change)


def test_from_arrays_refuses_lengths_that_differ():
    for wrong in ({"sites": ["a"]}, {"ids": ["a"]}, {"weight": [1.0]}):
        with pytest.raises(DataError, match="length 1 for 2 rows"):
            FederatedData.from_arrays(np.eye(2), [1.0, 2.0], **wrong)


def test_what_is_missing_stays_with_its_cell(data):
    """Cells are numbered; every operation must move a cell and its mark together."""
    missing = data.x % 4 == 1
    holes = dataclasses.replace(data, x=data.x.masked_fill(missing, 0.0), missing=missing)
    operations = [
        lambda d: d.take([4, 1, 0]),
        lambda d: d.site("a"),
        lambda d: d.pooled(),
        lambda d: d.select_features(["w", "u"]),
        lambda d: d.with_sites(torch.tensor([1, 0, 1, 0, 0]), ["one", "two"]),
    ]
    for operation in operations:
        assert torch.equal(operation(holes).missing, operation(data).x % 4 == 1)
    assert not affine_shift(holes, 1).x[missing].any()
    assert holes.fingerprint() != dataclasses.replace(holes, missing=None).fingerprint()
    for wrong in (missing[:2], missing.float(), ~missing):
        with pytest.raises(DataError, match="missing must be"):
            dataclasses.replace(holes, missing=wrong)


@pytest.mark.parametrize(
    ("labels", "outcome", "classes"),
    [
        (["b", "a", "b"], "binary", ("a", "b")),
        ([True, False, True], "binary", ("False", "True")),
        ([1, 2, 2], "binary", ("1", "2")),
        (["1", "0", "1.0"], "binary", ("0", "1")),
        ([0.5, -3.0, 0.5], "binary", ("-3", "0.5")),
        (["x", "y", "z"] * 2, "multiclass", ("x", "y", "z")),
        ([0, 1, 2] * 2, "multiclass", ("0", "1", "2")),
        ([3, 2, 1] * 2, "multiclass", ("1", "2", "3")),
        ([0, 1, 2, 2], "regression", ()),  # a class of one row
        ([0, 2, 4] * 2, "regression", ()),  # a gap
        ([2, 3, 4] * 2, "regression", ()),  # classes start at 0 or 1
        ([0.1, 0.7, 0.3], "regression", ()),
        (list(range(11)) * 2, "regression", ()),  # more than ten
    ],
)
def test_the_outcome_is_inferred(labels, outcome, classes):
    coded = code_target(labels)
    assert (coded.outcome, coded.classes) == (outcome, classes)
    if classes:
        assert encode(labels, classes).tolist() == coded.y.tolist()
    else:
        torch.testing.assert_close(coded.y, torch.tensor(labels, dtype=torch.float32))


def test_the_outcome_can_be_named():
    assert code_target([0, 1, 2] * 2, "regression").classes == ()
    assert code_target([1.5, 2.5, 4], "multiclass").classes == ("1.5", "2.5", "4")
    assert code_target([0, 1, 1], "multiclass").outcome == "multiclass"
