"""The laws of a split: a partition of whole ids, stratified, fair to sites, the same everywhere."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.data import DataError, FederatedData, split
from fedsift.data.splitting import apportion


def made(labels, ids=None, sites=None, outcome="multiclass") -> FederatedData:
    x = np.arange(len(labels), dtype=np.float64)[:, None]
    return FederatedData.from_arrays(x, labels, ids=ids, sites=sites, outcome=outcome)


@st.composite
def datasets(draw):
    n_rows = draw(st.integers(4, 60))
    labels = draw(st.lists(st.integers(0, 2), min_size=n_rows, max_size=n_rows))
    people = draw(st.lists(st.integers(0, n_rows), min_size=n_rows, max_size=n_rows))
    # A person has one diagnosis and one site.
    ids = [f"{person}-{label}" for person, label in zip(people, labels, strict=True)]
    sites = [f"s{person % 3}" for person in people]
    return labels, ids, sites


@settings(max_examples=60)
@given(datasets(), st.integers(0, 2**40), st.floats(0.05, 0.9))
def test_a_split_is_a_partition_of_whole_ids_with_each_class_in_both(parts, seed, fraction):
    labels, ids, sites = parts
    groups = Counter(label for label, _ in {*zip(labels, ids, strict=True)})
    if len(groups) < 2 or max(groups.values()) < 2:
        return
    data = made(labels, ids, sites)
    train, test = split(data, seed, fraction)
    assert sorted(train.x[:, 0].tolist() + test.x[:, 0].tolist()) == list(range(len(labels)))
    assert not set(train.rows) & set(test.rows)
    for label, n_groups in groups.items():
        if n_groups >= 2:
            code = data.classes.index(str(label))
            assert (train.y == code).any()
            assert (test.y == code).any()


def test_sizes_of_the_leukemia_split():
    """72 patients, 47 ALL and 25 AML: ceil(14.4)=15 for the test, 47/72*15=9.8 of them ALL."""
    data = made(["ALL"] * 47 + ["AML"] * 25, outcome="binary")
    train, test = split(data, 0)
    assert (train.n_samples, test.n_samples) == (57, 15)
    assert torch.bincount(test.y).tolist() == [10, 5]


def test_each_site_gives_its_share():
    labels = ["a", "b"] * 150
    sites = ["one"] * 100 + ["two"] * 60 + ["three"] * 140
    data = made(labels, sites=sites, outcome="binary")
    for seed in range(5):
        _, test = split(data, seed)
        for size, expected in zip(test.sizes, (20, 12, 28), strict=True):
            assert abs(size - expected) <= 2  # within one id of each of two classes


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    data = made([float(value) for value in range(40)], outcome="regression")
    first, again, other = (split(data, seed)[1].rows for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert len(first) == 8


def test_the_order_of_the_sites_does_not_matter():
    data = made([0, 1] * 20, sites=["n", "e", "s", "w"] * 10, outcome="binary")
    turned = data.with_sites(3 - data.site_of_row, data.sites[::-1])
    assert turned.sites != data.sites
    assert set(split(turned, 5)[1].rows) == set(split(data, 5)[1].rows)


def test_every_row_has_the_same_chance():
    """500 splits of 20 rows with 4 for the test: 100 each, standard deviation 9."""
    data = made([0, 1] * 10, outcome="binary")
    counts = Counter(row for seed in range(500) for row in split(data, seed)[1].rows)
    assert len(counts) == 20
    assert max(abs(count - 100) for count in counts.values()) < 45


def test_what_cannot_be_split():
    data = made(["a", "b"], outcome="binary")
    with pytest.raises(DataError, match="no class has two"):
        split(data, 0)
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(DataError, match="test_fraction"):
            split(made([0, 1] * 5), 0, fraction)


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 1e6), min_size=1, max_size=20))
def test_apportion_gives_all_within_one_of_the_share(total, shares):
    parts = apportion(total, shares)
    assert sum(parts) == total
    exact = total * np.array(shares) / sum(shares)
    assert np.abs(parts - exact).max() < 1 + 1e-9
