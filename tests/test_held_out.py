"""Groups of rows: counted once, never too small, and as the rows themselves say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift.data import FederatedData
from fedsift.held_out import FEWEST, GROUPS, _confusion, _groups
from fedsift.profiles import profiles
from fedsift.selection import agreement


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=120),
    st.integers(0, 8),
)
def test_no_group_tells_a_small_count(rows: list[tuple[int, bool]], min_cell: int) -> None:
    """Groups keep the order of the predictions, are large enough, and hold each row once."""
    predicted = torch.tensor([p / 30 for p, _ in rows], dtype=torch.float64)
    observed = torch.tensor([float(o) for _, o in rows], dtype=torch.float64)
    groups = _groups(predicted, observed, max(min_cell, FEWEST), min_cell)
    assert len(groups) <= GROUPS + 1
    means = [g["predicted"] for g in groups]
    assert means == sorted(means)
    for group in groups:
        assert group["rows"] >= max(min_cell, FEWEST)
        ones = round(group["rows"] * group["observed"])
        for count in (ones, group["rows"] - ones):
            assert min_cell == 0 or count == 0 or count >= min_cell
    if groups:
        assert sum(g["rows"] for g in groups) == len(rows)
        total = sum(g["rows"] * g["observed"] for g in groups)
        assert total == pytest.approx(float(observed.sum()))


def test_a_small_count_hides_its_whole_class() -> None:
    """2 of 7 rows of class 0 were called 1: with the 5 beside them they could be worked out."""
    true = torch.tensor([0] * 7 + [1] * 6)
    said = torch.tensor([0] * 5 + [1] * 2 + [1] * 6)
    assert _confusion(true, said, 2, 0) == [[5, 2], [0, 6]]
    assert _confusion(true, said, 2, 3) == [[None, None], [0, 6]]


def test_values_of_few_rows_are_left_out_and_cannot_be_subtracted() -> None:
    """Site b has 2 rows of class p: they are left out, and so is the sum of a and b."""
    rows = [("a", "p", 1.0), ("a", "p", 2.0), ("a", "p", 3.0), ("b", "p", 9.0), ("b", "p", 8.0)]
    rows += [(site, "q", float(n)) for site in "ab" for n in range(3)]
    data = FederatedData.from_arrays(
        [[x, 0.0] for _, _, x in rows], [k for _, k, _ in rows], sites=[s for s, _, _ in rows]
    )
    (found,) = profiles(data, ["x0"])
    assert found["sites"]["a"]["p"] == {"rows": 3, "mean": 2.0, "deviation": 1.0}
    assert found["sites"]["b"]["p"] is None
    assert found["all"]["p"] is None
    assert found["all"]["q"]["rows"] == 6
    assert profiles(data, ["x0"], min_cell=4)[0]["sites"]["a"] == {"p": None, "q": None}


def test_a_measured_target_has_the_correlation() -> None:
    x = [[1.0], [2.0], [3.0], [4.0]]
    data = FederatedData.from_arrays(x, [2.5, 4.5, 6.5, 8.5], sites=["a"] * 4, target="size")
    (found,) = profiles(data, ["x0"])
    assert found["sites"]["a"]["size"]["correlation"] == pytest.approx(1.0)


def test_groups_of_seeds_agree_as_far_as_they_share_features() -> None:
    """Seeds 1-2 choose {0, 1}, seeds 3-4 {0, 2}: alone they share 1, ½ or 1 ...

    Of the 6 pairs of seeds, 2 share both features and 4 share one: (2 · 1 + 4 · ½) / 6 = 2/3.
    The two groups of 2 seeds share one of two.
    """
    masks = torch.tensor([[1.0, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1]])
    found = agreement(masks, masks, 2)
    assert [f["seeds"] for f in found] == [1, 2]
    assert [f["shared"] for f in found] == pytest.approx([2 / 3, 0.5])
    assert agreement(masks[:1], masks[:1], 2) == []
