"""Decoys: what they share with the features, what follows for the choice, and the command line."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsift import Privacy, decoys, fit
from fedsift.cli import main
from fedsift.controlled import by_decoys, false_shares, importance
from fedsift.data import DataError, FederatedData
from fedsift.reporting import fit_report, to_text
from tests.laws import normal, rows, site_names

D = 4


def correlated(sizes=(700, 900, 400), rho=0.6):
    """Gaussian rows, Σ_ij = ρ^|i-j|, deviations 1 to 4, each site around a mean of its own."""
    n = sum(sizes)
    apart = (torch.arange(D).unsqueeze(0) - torch.arange(D).unsqueeze(1)).abs()
    root = torch.linalg.cholesky(rho ** apart.double())
    x = normal(n, D, dtype=torch.float64) @ root.T * torch.arange(1, D + 1)
    data = FederatedData.from_arrays(x, x[:, 0] + normal(n), sites=site_names(sizes))
    shifts = torch.arange(3.0)[data.site_of_row].unsqueeze(1)
    return replace(data, x=data.x + 5.0 * shifts)


def split_columns(data, made):
    places = decoys.places(made.seed, D)
    joined = decoys.apply(data, made)
    return joined.x[:, places[0]].double(), joined.x[:, places[1]].double()


def test_gaussian_decoys_have_the_covariances_of_features_and_less_with_their_own():
    """Σ among decoys, Σ - diag(s) with features, around each site's mean: to 3/√N of deviations."""
    data = correlated()
    made = decoys.learn(data, "gaussian", 3)
    x, copy = split_columns(data, made)
    assert torch.equal(x, data.x.double())
    both = []
    for where in data.slices:
        assert (x[where].mean(0) - copy[where].mean(0)).abs().max() < 0.5
        both.append(torch.cat([x[where] - x[where].mean(0), copy[where] - copy[where].mean(0)], 1))
    scaled = torch.cat(both) / made.tensors["scale"].repeat(2)
    joint = scaled.T @ scaled / data.n_samples
    among, across = joint[:D, :D], joint[:D, D:]
    assert (joint[D:, D:] - among).abs().max() < 0.08
    apart = across - among
    spread = -apart.diagonal()
    assert (apart + torch.diag(spread)).abs().max() < 0.08
    expected = decoys.least_reconstructable(among)
    assert (spread - expected).abs().max() < 0.08


def test_the_spread_is_where_the_objective_is_flat():
    """∂/∂s_j: -1/s_j² + ‖(2R - S)⁻¹_j‖² = 0; independent features have decoys apart, s = 1."""
    apart = (torch.arange(6).unsqueeze(0) - torch.arange(6).unsqueeze(1)).abs()
    correlation = 0.5 ** apart.double()
    spread = decoys.least_reconstructable(correlation)
    inverse = torch.linalg.inv(2 * correlation - torch.diag(spread))
    assert torch.allclose(1 / spread, inverse.norm(dim=0), rtol=1e-2)
    assert torch.linalg.eigvalsh(2 * correlation - torch.diag(spread))[0] > 0
    unit = decoys.least_reconstructable(torch.eye(5, dtype=torch.float64))
    assert torch.allclose(unit, torch.ones(5, dtype=torch.float64))


def test_shrunk_correlations_are_the_sample_where_rows_are_many_and_have_an_inverse_where_few():
    z = normal(20000, 3, dtype=torch.float64) @ torch.tensor(
        [[1.0, 0.7, 0.0], [0.0, 0.7, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64
    )
    z = z / z.square().mean(0).sqrt()
    sums = (z.T @ z, z.square().sum(1).square().sum(), torch.tensor(20000.0))
    assert (decoys.shrunk(*sums) - sums[0] / 20000).abs().max() < 0.01
    few = normal(6, 30, dtype=torch.float64)
    few = few / few.square().mean(0).sqrt()
    sums = (few.T @ few, few.square().sum(1).square().sum(), torch.tensor(6.0))
    assert torch.linalg.eigvalsh(decoys.shrunk(*sums))[0] > 0.1


@pytest.mark.parametrize("how", ["gaussian", "permuted"])
def test_a_sites_decoys_are_made_of_its_own_rows(how):
    data = correlated(sizes=(30, 40, 20))
    made = decoys.learn(data, how, 1)
    whole = decoys.apply(data, made)
    alone = decoys.apply(data.site("hospital b"), made)
    assert torch.equal(alone.x, whole.x[whole.slices[1]])
    assert sum("(decoy)" in name for name in whole.features) == D


def test_permuted_decoys_are_rows_of_the_site():
    data = correlated(sizes=(30, 40, 20))
    x, copy = split_columns(data, decoys.learn(data, "permuted", 1))
    for where in data.slices:
        assert torch.equal(x[where].sort(0).values, copy[where].sort(0).values)
        rows_of_site = {tuple(row) for row in x[where].tolist()}
        assert {tuple(row) for row in copy[where].tolist()} == rows_of_site


def test_no_column_is_preferred_by_its_position():
    places = decoys.places(5, 400)
    assert sorted(places.flatten().tolist()) == list(range(800))
    assert torch.equal(places[0] % 400, torch.arange(400))
    assert 150 < int((places[0] < 400).sum()) < 250


def test_swapping_a_feature_with_its_decoy_changes_the_sign_of_its_w_alone():
    weights, places = normal(5, 2, 6) * (normal(5, 1, 6) > 0), decoys.places(0, 3)
    w = importance(weights, places)
    swapped = places.clone()
    swapped[:, 1] = places.flip(0)[:, 1]
    assert torch.equal(importance(weights, swapped), w * torch.tensor([1.0, -1.0, 1.0]))


def test_shares_and_sets_derived_by_hand():
    """W = 9, 8, 7, 6, 5, -4, 3, 3, -1, 0. At t = 5 five are above and none below: (1 + 0)/5 = .2;
    at 3 seven above, one below: 2/7; at 1 seven and two: 3/7."""
    w = torch.tensor([9.0, 8, 7, 6, 5, -4, 3, 3, -1, 0])
    steps, shares = false_shares(w)
    assert steps.tolist() == [1, 3, 4, 5, 6, 7, 8, 9]
    assert shares.tolist() == pytest.approx([3 / 7, 2 / 7, 2 / 5, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 1])
    strict = by_decoys(w, 0.2, "knockoff+")
    assert strict.support.nonzero().squeeze(1).tolist() == [0, 1, 2, 3, 4]
    assert strict.facts["estimated_fdp"] == pytest.approx(0.2)
    # Both of the features that are tied at 3 are in.
    assert by_decoys(w, 0.3, "knockoff+").facts["chosen"] == 7
    assert by_decoys(w, 0.3, "minimum").facts["chosen"] == 5


def test_an_empty_set_says_why():
    """At t = .5 three are above and one below: 2/3; at 1 three and none: 1/3; then 1/2 and 1."""
    w = torch.tensor([3.0, 2.0, 1.0, -0.5])
    empty = by_decoys(w, 0.1, "knockoff+")
    assert not empty.support.any()
    assert empty.facts["estimated_fdp"] is None
    reason = empty.facts["reason"]
    assert "it is least, 0.33, for 3 features (at 0.1 a set has 10 features" in reason
    none = by_decoys(torch.tensor([0.0, -1.0]), 0.1, "minimum")
    assert none.facts["reason"] == "no feature weighs more than its decoy"


KNOBS: dict[str, Any] = {
    "features": 8,
    "seeds": 2,
    "splits": 0,
    "rounds": 40,
    "tuning_rounds": 5,
    "fdr": 0.34,
}


@pytest.mark.parametrize("how", ["gaussian", "permuted"])
def test_engines_choose_the_same(how):
    data = rows(sizes=(30, 41, 24))
    ends = [fit(data, engine=e, decoys=how, **KNOBS) for e in ("vectorized", "loop")]
    assert [f.name for f in ends[0].features] == [f.name for f in ends[1].features]
    assert ends[0].results["error_control"]["decoys"] == how
    gap = ends[0].params["weight"] - ends[1].params["weight"]
    assert gap.abs().max() < 1e-4
    text = to_text(fit_report(ends[0]))
    assert f"against {how} decoys by the rule knockoff+" in text
    if how == "gaussian":
        assert [f.name for f in ends[0].features] == ["x0", "x1", "x2"]
        assert "estimated share of false features 0.33" in text


def test_what_has_no_decoys_is_refused_in_one_line():
    data = rows("binary", sizes=(9, 6))
    with pytest.raises(ValueError, match="local chooses features at each site by itself"):
        fit(data, method="local", **KNOBS)
    with pytest.raises(ValueError, match="two ways to control errors"):
        fit(data, pfer=1.0, **KNOBS)
    with pytest.raises(ValueError, match="errors are controlled by feature"):
        fit(data, gate="scalar", **KNOBS)
    private = Privacy(noise=1.0, clip=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="a private fit has no fdr or pfer"):
        fit(data, privacy=private, **KNOBS)
    wide = FederatedData.from_arrays(np.zeros((4, 501)), [0, 1, 0, 1])
    with pytest.raises(DataError, match="Gaussian decoys of 501 features"):
        fit(wide, **KNOBS)


def test_an_empty_set_ends_with_3_and_a_run_that_can_be_used(tmp_path, capsys):
    """Six features cannot be told to hold one false one in ten, whatever they are."""
    site = tmp_path / "site.csv"
    x, y = normal(40, 6), normal(40, seed=4)
    lines = [",".join([*(f"g{j}" for j in range(6)), "y"])]
    table = torch.cat([x, y.unsqueeze(1)], 1).tolist()
    lines += [",".join(f"{value:.5f}" for value in row) for row in table]
    site.write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    short = ["--seeds", "2", "--splits", "2", "--rounds", "5", "--tuning-rounds", "3", "--quiet"]
    asked = ["fit", str(site), "--target", "y", "--fdr", ".1", *short, "--json", "--out", str(out)]
    code = main(asked)
    said = capsys.readouterr()
    assert code == 3
    assert said.err.startswith("no feature is chosen: ")
    results = json.loads(said.out)
    assert results["features"] == []
    assert results["error_control"]["rule"] == "knockoff+"
    assert "None is chosen" in (out / "report.txt").read_text()
    assert main(["predict", str(out), str(site)]) == 0
    assert main(["rerun", str(out), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert main(["fit", str(site), "--target", "y", "--decoys", "permuted", "--features", "2"]) == 2
    assert "decoys goes with fdr only" in capsys.readouterr().err
