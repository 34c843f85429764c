"""Standardisation: fitted on training rows only, applied by name, stored as JSON."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from fedsift.data import (
    DataError,
    DataWarning,
    FederatedData,
    Standardiser,
    golub38,
    read_sites,
    split,
)


def made(n_rows: int = 30, *, outcome: str = "regression", weight=None) -> FederatedData:
    generator = np.random.default_rng(5)
    x = generator.normal([5.0, -2000.0, 0.001, 1e6], [2.0, 10.0, 1e-4, 300.0], (n_rows, 4))
    y = 3 + 7 * generator.normal(size=n_rows)
    labels = y if outcome == "regression" else y > 3
    return FederatedData.from_arrays(
        x,
        labels,
        sites=[f"s{row % 3}" for row in range(n_rows)],
        features=["a", "b", "c", "d"],
        weight=weight,
    )


def test_training_rows_get_mean_zero_and_deviation_one():
    train = made()
    x = Standardiser.fit(train).apply(train).x.double()
    torch.testing.assert_close(x.mean(0), torch.zeros(4).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0, unbiased=False), torch.ones(4).double(), atol=1e-6, rtol=0)


def test_weights_count_as_copies_of_rows():
    weight = torch.tensor([1.0, 2.0, 3.0] * 10)
    weighted = made(weight=weight)
    copies = weighted.take(torch.repeat_interleave(torch.arange(30), weighted.weight.long()))
    copies = dataclasses.replace(copies, weight=torch.ones(copies.n_samples))
    one, two = Standardiser.fit(weighted), Standardiser.fit(copies)
    torch.testing.assert_close(one.mean, two.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(one.scale, two.scale, rtol=1e-9, atol=0)
    assert one.target_scale == pytest.approx(two.target_scale, rel=1e-12)


@pytest.mark.parametrize("how", ["feature", "array", "row", "none"])
def test_sites_do_not_matter_and_test_rows_do_not_reach_the_fit(how):
    data = made()
    train, test = data.take(range(20)), data.take(range(20, 30))
    before = Standardiser.fit(train, how)
    pooled = Standardiser.fit(train.pooled(), how)
    torch.testing.assert_close(before.mean, pooled.mean, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(before.scale, pooled.scale, rtol=1e-9, atol=0)
    moved = dataclasses.replace(test, x=test.x * 1000)
    assert before.apply(moved).n_samples == 10
    again = Standardiser.fit(train, how)
    assert before.to_dict() == again.to_dict()
    # A training row looks the same whatever stands beside it.
    together = before.apply(data)
    assert torch.equal(together.take(range(20)).x, before.apply(train).x)


def test_the_target_of_a_regression_is_standardised_and_comes_back():
    train = made()
    fitted = Standardiser.fit(train, "none")
    applied = fitted.apply(train)
    assert torch.equal(applied.x, train.x)
    assert applied.y.mean().item() == pytest.approx(0, abs=1e-6)
    assert applied.y.std(unbiased=False).item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(fitted.target_to_units(applied.y), train.y)
    classes = made(outcome="binary")
    assert torch.equal(Standardiser.fit(classes).apply(classes).y, classes.y)


def test_arrays_are_standardised_one_by_one_then_centred():
    """Rows (1, 2, 3) and (0, 0, 6): (-1, 0, 1) and (-1, -1, 2)/sqrt(3) with divisor d-1."""
    train = FederatedData.from_arrays([[1.0, 2.0, 3.0], [0.0, 0.0, 6.0]], ["p", "q"])
    row = torch.tensor([[-1.0, 0.0, 1.0], [-1 / 3**0.5, -1 / 3**0.5, 2 / 3**0.5]])
    fitted = Standardiser.fit(train, "array")
    torch.testing.assert_close(fitted.apply(train).x, row - row.mean(0))
    torch.testing.assert_close(
        fitted.transform(torch.tensor([[10.0, 20.0, 30.0]])), row[:1] - row.mean(0)
    )


def test_rows_by_themselves_learn_nothing_from_others():
    train = made(outcome="binary")
    fitted = Standardiser.fit(train, "row")
    assert fitted.to_dict() == Standardiser.fit(train.take(range(7)), "row").to_dict()
    x = fitted.apply(train).x
    torch.testing.assert_close(x.mean(1), torch.zeros(30), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(1), torch.ones(30))


def test_leukemia_arrays_are_standardised_already():
    data = golub38()
    x = Standardiser.fit(data, "array").apply(data).x
    torch.testing.assert_close(x, data.x - data.x.mean(0), atol=2e-5, rtol=0)


def test_a_feature_constant_in_training_becomes_zero_everywhere():
    train = FederatedData.from_arrays([[1.0, 1e7], [2.0, 1e7], [4.0, 1e7]], [0.0, 1.0, 3.0])
    fitted = Standardiser.fit(train)
    assert fitted.scale[1] == 0
    assert fitted.transform(torch.tensor([[1.0, 5.0]]))[0, 1] == 0


def test_columns_are_found_by_name():
    train = made()
    fitted = Standardiser.fit(train)
    shuffled = train.select_features(["d", "b", "a", "c"])
    applied = fitted.apply(shuffled)
    assert applied.features == train.features
    assert torch.equal(applied.x, fitted.apply(train).x)
    with pytest.raises(DataError, match="2 of 4 features absent: 'b', 'd'; there are 'c', 'a'"):
        fitted.apply(train.select_features(["c", "a"]))
    with pytest.raises(DataError, match="shape"):
        fitted.transform(torch.zeros(2, 3))


def test_images_keep_their_shape():
    x = torch.arange(2 * 12, dtype=torch.float32).reshape(2, 1, 3, 4) ** 1.5
    images = FederatedData.from_arrays(x, ["p", "q"])
    for how in ("feature", "array"):
        fitted = Standardiser.fit(images, how)
        assert fitted.mean.shape == (1, 3, 4)
        assert fitted.apply(images).x.shape == x.shape


@pytest.mark.parametrize("how", ["feature", "array", "row", "none"])
def test_it_survives_json_bit_by_bit(how):
    train = made()
    fitted = Standardiser.fit(train, how)
    read = Standardiser.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert torch.equal(read.apply(train).x, fitted.apply(train).x)
    assert torch.equal(read.apply(train).y, fitted.apply(train).y)
    with pytest.raises(DataError, match="version 99"):
        Standardiser.from_dict({**fitted.to_dict(), "version": 99})


def with_holes(data: FederatedData, missing: torch.Tensor) -> FederatedData:
    return dataclasses.replace(data, x=data.x.masked_fill(missing, 0.0), missing=missing)


def test_a_hole_is_filled_with_the_weighted_mean_of_the_training_rows_that_have_a_value():
    """Feature a: (2*1 + 1*4) / 3 = 2 over two sites. Deviation: (2*1 + 1*4 + 1*0) / 4, root."""
    rows = FederatedData.from_arrays(
        [[1.0, 5.0], [4.0, 6.0], [9.0, 7.0]],
        ["p", "q", "p"],
        sites=["n", "s", "n"],
        weight=[2, 1, 1],
    )
    holes = with_holes(rows, torch.tensor([[False, False], [True, False], [False, False]]))
    fitted = Standardiser.fit(holes)
    assert fitted.fills["x0"] == 2.0
    assert fitted.mean[0] == 2
    assert fitted.scale[0] == pytest.approx(1.5**0.5)
    applied = fitted.apply(holes)
    assert applied.missing is None
    assert applied.x[:, 0].tolist() == pytest.approx([-(1.5**-0.5), 0, 2 * 1.5**-0.5])
    kept = Standardiser.fit(holes, "none")
    assert kept.apply(holes).x[:, 0].tolist() == [1, 2, 4]
    new = torch.tensor([[torch.nan, 6.0]])
    assert kept.transform(new).tolist() == [[2, 6]]
    with pytest.raises(DataError, match=r"1 of 2 values missing.*impute"):
        Standardiser.fit(rows).transform(new)


def test_arrays_are_filled_before_they_are_standardised():
    """Row (1, ., 3) with fill 2, the other row's value: (-1, 0, 1) with divisor d-1."""
    rows = FederatedData.from_arrays([[1.0, 9.0, 3.0], [0.0, 2.0, 7.0]], ["p", "q"])
    missing = torch.tensor([[False, True, False], [False, False, False]])
    full = FederatedData.from_arrays([[1.0, 2.0, 3.0], [0.0, 2.0, 7.0]], ["p", "q"])
    holes = with_holes(rows, missing)
    one, two = Standardiser.fit(holes, "array"), Standardiser.fit(full, "array")
    assert torch.equal(one.apply(holes).x, two.apply(full).x)


@pytest.mark.parametrize("how", ["feature", "array", "row", "none"])
def test_a_feature_without_a_training_value_stays_finite(how):
    data = made(6)
    missing = torch.zeros(6, 4, dtype=torch.bool)
    missing[:4, 1] = True
    holes = with_holes(data, missing)
    fitted = Standardiser.fit(holes.take(range(4)), how)
    assert torch.isfinite(fitted.apply(holes).x).all()
    if how == "feature":
        assert not fitted.apply(holes).x[:, 1].any()


@pytest.mark.parametrize("how", ["feature", "array", "row", "none"])
def test_test_rows_with_holes_do_not_reach_the_training_rows(write, how):
    """Files that differ in the test rows, by 100 x + 10^4, train on the same bits."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 5)).round(4)
    x[:, 4] = 3.0  # of no use, in the training rows at least
    missing = generator.random(x.shape) < 0.3
    in_test = np.zeros(40, dtype=bool)

    def rows(name: str, values: np.ndarray):
        lines = [
            ",".join("" if hole else str(value) for value, hole in zip(*cells, strict=True))
            for cells in zip(values, missing, strict=True)
        ]
        path = write(name, "a,b,c,d,e,y", *(f"{line},{i % 2}" for i, line in enumerate(lines)))
        with pytest.warns(DataWarning):
            return split(read_sites(path, "y", impute="mean"), 3)

    train, test = rows("one/s.csv", x)
    in_test[[int(name.split(":")[1]) - 2 for name in test.rows]] = True
    moved_train, moved_test = rows("two/s.csv", np.where(in_test[:, None], 100 * x + 1e4, x))
    assert moved_test.rows == test.rows
    assert not torch.equal(moved_test.x, test.x)
    one, two = Standardiser.fit(train, how), Standardiser.fit(moved_train, how)
    assert one.to_dict() == two.to_dict()
    assert torch.equal(one.apply(train).x, two.apply(moved_train).x)
    read = Standardiser.from_dict(json.loads(json.dumps(one.to_dict())))
    assert torch.equal(read.apply(test).x, one.apply(test).x)


def test_what_cannot_be_standardised():
    with pytest.raises(DataError, match="'genewise' is unknown"):
        Standardiser.fit(made(), "genewise")  # type: ignore[arg-type]
    train = made()
    with pytest.raises(DataError, match="one value in all training rows"):
        Standardiser.fit(dataclasses.replace(train, y=torch.ones(30)))
    flat = FederatedData.from_arrays([[1.0, 2.0], [3.0, 3.0]], ["p", "q"])
    with pytest.raises(DataError, match="row 2 has the same value"):
        Standardiser.fit(flat, "array")
