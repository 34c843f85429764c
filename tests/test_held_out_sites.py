"""A site held out says what a model of the others is worth there, and whether it is unlike them."""

import json
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.cli import main
from fedsift.data import FederatedData
from fedsift.held_out_sites import _extra_losses, _of_site, _steady, site_cases
from fedsift.reporting.tables import fit_report, to_text

KNOBS: dict[str, Any] = {
    "features": 1,
    "seeds": 1,
    "splits": 3,
    "rounds": 8,
    "tuning_rounds": 15,
    "beside": (),
}


def drawn(odd: float, n: int = 180) -> FederatedData:
    """Make six sites, five alike, y = 2 x0 + noise; at site d the slope is ``odd``."""
    draw = np.random.default_rng(3)
    x, sites = draw.normal(size=(n, 4)), np.array(list("abcdef"))[np.arange(n) % 6]
    y = np.where(sites == "d", odd, 2.0) * x[:, 0] + 0.5 * draw.normal(size=n)
    return FederatedData.from_arrays(x, y, sites=sites)


def test_each_site_is_tested_once_and_has_no_part_in_its_training():
    data = drawn(2.0)
    cases = site_cases(data)
    for case, site in zip(cases, data.sites, strict=True):
        assert case.test is not None
        assert case.test.sites == (site,)
        assert case.test.fingerprint() == data.site(site).fingerprint()
        assert site not in case.train.sites
        assert case.train.n_samples + case.test.n_samples == data.n_samples


def test_a_cost_is_compared_with_one_more_like_the_others():
    """Costs 9, 0, 1, .5: others of the first have mean .5, deviation .5; t(2, .9875) is 6.205.

    The second's others are 9, 1, .5.
    """
    costs = {"a": [8.0, 10.0], "b": [0.0, 0.0], "c": [1.0], "d": [0.5]}
    assert _of_site([{k: v[0] for k, v in costs.items()}, {"a": 10.0, "b": 0.0}]) == costs
    extra = _extra_losses(costs)
    half = 6.2053 * 0.5 * (4 / 3) ** 0.5
    assert extra["a"]["mean"] == pytest.approx(8.5)
    assert extra["a"]["low"] == pytest.approx(8.5 - half, abs=1e-3)
    assert extra["b"]["mean"] == pytest.approx(-3.5)
    assert extra["b"]["low"] < 0
    assert _extra_losses({"a": [9.0], "b": [0.0], "c": [1.0]}) == {}


def test_a_cost_that_one_split_sees_is_not_steady():
    """t(2, .95) is 2.920: the mean must be above 2.920 s / √3."""
    assert not _steady([0.0, 0.9, 0.0])
    spread = 3**0.5 / 2.920
    assert _steady([1.01 - spread, 1.01, 1.01 + spread])
    assert not _steady([0.99 - spread, 0.99, 0.99 + spread])


@pytest.mark.parametrize(("odd", "named"), [(-2.0, ["d"]), (2.0, [])])
def test_a_site_unlike_the_others_is_named(odd, named):
    run = fedsift.fit(drawn(odd), validation="leave-one-site-out", **KNOBS)
    told = run.results["sites_held_out"]
    assert told["shifted"] == named
    score = told["sites"]["d"]["score"]
    assert score < 0 if named else score > 0.8
    text = to_text(fit_report(run))
    others = [site["score"] for name, site in told["sites"].items() if name != "d"]
    line = f"d stands apart: R² {score:.2f} there, {sum(others) / 5:.2f} at the others"
    assert (line in text) == bool(named)
    assert ("no site stands apart" in text.lower()) != bool(named)


def test_the_history_of_the_run_is_that_of_the_reported_fit(tmp_path):
    """Pictures and page are of the fit on all rows, not of the last site held out."""
    knobs = KNOBS | {"splits": 0, "out": tmp_path / "run"}
    run = fedsift.fit(drawn(2.0), validation="leave-one-site-out", **knobs)
    assert {record["case"] for record in run.history()} == {"all rows"}


def test_without_splits_there_are_scores_and_no_names():
    knobs = KNOBS | {"splits": 0, "min_cell": 31}
    run = fedsift.fit(drawn(2.0), validation="leave-one-site-out", **knobs)
    told = run.results["sites_held_out"]
    assert all(site["shifted"] is None for site in told["sites"].values())
    assert all(site["score"] is None for site in told["sites"].values())  # of 30 rows each


def test_what_cannot_be_validated_so_is_refused():
    with pytest.raises(ValueError, match="none can be held out"):
        fedsift.fit(drawn(2.0).pooled(), validation="leave-one-site-out", **KNOBS)
    with pytest.raises(ValueError, match="use it with fit"):
        fedsift.compare(drawn(2.0), ["eflops"], features=1, validation="leave-one-site-out")


def test_the_command_line_takes_it(tmp_path, capsys):
    data, paths = drawn(2.0, n=60), []
    for site in data.sites:
        own = data.site(site)
        rows = np.column_stack([own.y, own.x])
        paths.append(tmp_path / f"{site}.csv")
        np.savetxt(paths[-1], rows, delimiter=",", header="y,p,q,r,s", comments="")
    asked = "--target y --features 1 --seeds 1 --splits 0 --rounds 3 --tuning-rounds 3 --json"
    command = ["fit", *map(str, paths), *asked.split(), "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*command, "--validate", "leave-one-site-out"]) == 0
    assert list(json.loads(capsys.readouterr().out)["sites_held_out"]["sites"]) == list("abcdef")
    assert main([*command, "--overwrite", "--validate", "by-hand"]) == 2
    assert "--validate 'by-hand' is unknown" in capsys.readouterr().err


def test_case_names_are_file_names():
    """Sites may be called anything."""
    data = drawn(2.0).with_sites(drawn(2.0).site_of_row, ["a/b", "..", "c\\d", "e f", "g", "h"])
    assert not any("/" in case.name for case in site_cases(data))
