"""Partitions: every row at exactly one site, sizes and skews as promised, the same everywhere."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.data import (
    DataError,
    FederatedData,
    affine_shift,
    dirichlet_counts,
    dirichlet_labels,
    iid,
)


def made(n_rows: int, n_classes: int = 3) -> FederatedData:
    labels = np.arange(n_rows) % n_classes
    x = np.arange(n_rows, dtype=np.float64)[:, None]
    return FederatedData.from_arrays(x, labels, outcome="multiclass")


PARTITIONS = {
    "iid": lambda data, n_sites, alpha, seed: iid(data, n_sites, seed),
    "counts": dirichlet_counts,
    "labels": dirichlet_labels,
}


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=40)
@given(
    n_rows=st.integers(3, 80),
    n_sites=st.integers(1, 12),
    alpha=st.sampled_from([1e-4, 0.05, 0.5, 2.0, 1e4]),
    seed=st.integers(0, 2**33),
)
def test_each_row_is_at_one_site_and_no_site_is_empty(name, n_rows, n_sites, alpha, seed):
    n_sites = min(n_sites, n_rows)
    data = made(n_rows)
    parted = PARTITIONS[name](data, n_sites, alpha, seed)
    assert parted.sites == tuple(f"site_{number}" for number in range(1, n_sites + 1))
    assert min(parted.sizes) >= 1
    assert sorted(parted.rows) == sorted(data.rows)
    label = dict(zip(data.rows, data.y.tolist(), strict=True))
    assert [label[row] for row in parted.rows] == parted.y.tolist()
    assert parted.fingerprint() == PARTITIONS[name](data, n_sites, alpha, seed).fingerprint()


@pytest.mark.parametrize("name", PARTITIONS)
def test_another_seed_gives_another_partition(name):
    data = made(60)
    seen = {PARTITIONS[name](data, 4, 1.0, seed).fingerprint() for seed in range(5)}
    assert len(seen) == 5


def test_iid_sites_have_equal_sizes_and_classes():
    parted = iid(made(62), 5, 1)
    assert sorted(parted.sizes) == [12, 12, 12, 13, 13]
    counts = torch.stack(
        [torch.bincount(parted.site(name).y, minlength=3) for name in parted.sites]
    )
    assert (counts.amax(0) - counts.amin(0)).max() <= 1


def test_iid_shuffles_a_regression():
    data = FederatedData.from_arrays(np.arange(50.0)[:, None], np.arange(50.0) / 7)
    assert data.outcome == "regression"
    assert iid(data, 2, 0).x[:25, 0].tolist() != list(range(0, 50, 2))


def test_dirichlet_counts_have_the_right_mean_and_spread():
    """Share of a site under Dirichlet(2, x5): mean .2, variance .2 .8 / 11 = .0145."""
    data = made(1005, 2)
    shares = (
        np.array([np.array(dirichlet_counts(data, 5, 2.0, s).sizes) - 1 for s in range(200)]) / 1000
    )
    assert shares.mean(0) == pytest.approx([0.2] * 5, abs=0.04)
    assert shares.var() == pytest.approx(0.0145, rel=0.2)


def test_a_small_alpha_is_skewed_and_a_large_one_even():
    data = made(300)
    skewed, even = (dirichlet_counts(data, 5, alpha, 7).sizes for alpha in (0.01, 1e6))
    assert max(skewed) > 250
    assert max(even) - min(even) <= 2
    labels = dirichlet_labels(data, 5, 1e6, 7)
    assert max(labels.sizes) - min(labels.sizes) <= 3


def test_affine_shift_is_one_pair_a_site():
    data = iid(made(40), 4, 0)
    shifted = affine_shift(data, 3)
    assert torch.equal(shifted.y, data.y)
    pairs = []
    for rows in data.slices:
        slope, level = np.polyfit(data.x[rows, 0].double(), shifted.x[rows, 0].double(), 1)
        np.testing.assert_allclose(shifted.x[rows, 0], slope * data.x[rows, 0] + level, atol=1e-4)
        assert 0.9 <= slope <= 1.1
        assert abs(level) < 0.6
        pairs.append(round(slope, 6))
    assert len(set(pairs)) == 4


def test_a_site_keeps_its_shift_when_another_leaves():
    data = iid(made(40), 4, 0)
    alone = affine_shift(data.site("site_3"), 3)
    assert torch.equal(alone.x, affine_shift(data, 3).site("site_3").x)


def test_what_cannot_be_partitioned():
    for name, partition in PARTITIONS.items():
        for n_sites in (0, 4):
            with pytest.raises(DataError, match="3 rows cannot be spread"):
                partition(made(3), n_sites, 1.0, 0)
        if name != "iid":
            with pytest.raises(DataError, match="alpha is 0"):
                partition(made(3), 2, 0, 0)
    measured = FederatedData.from_arrays(np.eye(3), [0.1, 0.2, 0.4])
    with pytest.raises(DataError, match="dirichlet_counts"):
        dirichlet_labels(measured, 2, 1.0, 0)
