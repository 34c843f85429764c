"""What `fedsift inspect` says of site files whose contents are known."""

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedsift.cli import main
from fedsift.data import DataError
from fedsift.information import (
    fewest_samples,
    most_features,
    nats_of_classes,
    nats_of_measured,
    nats_of_sets,
)
from fedsift.inspection import inspect_files

SITES = ("berlin", "paris", "rome")
TINY = ("--seeds", "2", "--splits", "0", "--rounds", "2", "--tuning-rounds", "2", "--quiet")


def rows_of_sites(n: int = 20, d: int = 8, *, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {site: rng.normal(5, 2, (n, d)) for site in SITES}


def write_sites(folder: Path, sites: dict[str, np.ndarray], labels=None, ids=None) -> list[str]:
    files = []
    for site, x in sites.items():
        y = labels[site] if labels else ["sick" if v > 5 else "well" for v in x[:, 0]]
        names = ids[site] if ids else [f"{site}{row}" for row in range(len(x))]
        lines = [f"patient,{','.join(f'gene{j}' for j in range(x.shape[1]))},diagnosis"]
        for name, row, label in zip(names, x, y, strict=True):
            cells = ["" if math.isnan(v) else repr(float(v)) for v in row]
            lines.append(",".join([name, *cells, label]))
        files.append(str(folder / f"{site}.csv"))
        Path(files[-1]).write_text("\n".join(lines) + "\n")
    return files


def test_the_information_limit_is_that_of_the_published_size():
    """1000 features, 50 of them, SNR 20: ln C(1000, 50) = 195.6 and ½ ln 21 = 1.522 give 128.5."""
    nats = nats_of_measured(20.0)
    assert fewest_samples(50, 1000, nats) == 129
    assert round(2 * 50 * math.log(1000 / 50) / math.log(21)) == 98
    assert nats_of_sets(50, 1000) == pytest.approx(math.log(math.comb(1000, 50)))


@pytest.mark.parametrize("power", [1, 5, 10])
def test_one_feature_of_a_power_of_two_takes_a_balanced_label_a_bit(power):
    assert fewest_samples(1, 2**power, nats_of_classes([7, 7])) == power
    assert fewest_samples(1, 4**power, nats_of_classes([3, 3, 3, 3])) == power


@pytest.mark.parametrize("samples", [1, 20, 72, 400])
def test_the_most_features_are_the_last_for_which_the_samples_are_enough(samples):
    nats = nats_of_classes([47, 25])
    most = most_features(samples, 1000, nats)
    assert most == 0 or fewest_samples(most, 1000, nats) <= samples
    assert fewest_samples(most + 1, 1000, nats) > samples


def test_counts_are_those_of_the_files(tmp_path):
    sites = rows_of_sites()
    sites["paris"][:3, 2] = np.nan
    sites["rome"][4, 2:4] = np.nan
    for x in sites.values():
        x[:, 7] = 1.0
    facts = inspect_files(write_sites(tmp_path, sites), target="diagnosis", id_column="patient")
    assert facts["sites"] == dict.fromkeys(SITES, 20)
    assert (facts["samples"], facts["features"]) == (60, 8)
    assert facts["columns"]["constant"] == ["gene7"]
    assert facts["missing"] | {"share": 0} == {
        "values": 5, "rows": 4, "columns": 2, "worst": {"gene2": 4, "gene3": 1}, "share": 0,
    }  # fmt: skip
    for site, x in sites.items():
        assert facts["target"]["by_site"][site]["sick"] == (x[:, 0] > 5).sum()
    whole = facts["target"]["classes"]
    assert sum(whole.values()) == 60
    assert facts["duplicates"]["ids_at_several_sites"] == 0


def test_neither_drift_nor_scale_nor_duplicates_are_seen_where_there_are_none(tmp_path):
    facts = inspect_files(write_sites(tmp_path, rows_of_sites(30, 100)), target="diagnosis")
    assert facts["drift"]["worst"] == []
    assert facts["scale"]["sites"] == {}
    assert facts["duplicates"]["told"]
    assert facts["duplicates"]["at_several_sites"] == 0


def test_a_column_that_is_shifted_at_a_site_is_named_with_its_difference(tmp_path):
    """A shift of 3 deviations against rows of equal spread: SMD near 3, and its sign."""
    sites = rows_of_sites(30, 50)
    sites["paris"][:, 17] -= 6
    worst = inspect_files(write_sites(tmp_path, sites), drop=["diagnosis"])["drift"]["worst"]
    assert (worst[0]["column"], worst[0]["site"]) == ("gene17", "paris")
    assert worst[0]["smd"] == pytest.approx(-3, abs=0.7)
    both = np.concatenate([sites["berlin"], sites["rome"]])[:, 17]
    here = sites["paris"][:, 17]
    pooled = math.sqrt((30 * here.var() + 60 * both.var()) / 88)
    assert worst[0]["smd"] == pytest.approx((here.mean() - both.mean()) / pooled)


def test_a_column_constant_at_two_sites_with_two_values_differs(tmp_path):
    sites = rows_of_sites()
    for number, x in enumerate(sites.values()):
        x[:, 2] = float(number == 1)
    worst = inspect_files(write_sites(tmp_path, sites))["drift"]["worst"]
    assert (worst[0]["column"], worst[0]["site"]) == ("gene2", "paris")


@pytest.mark.parametrize("factor", [1000.0, 1 / 1000])
def test_a_site_in_other_units_is_named_with_the_factor(tmp_path, factor):
    sites = rows_of_sites()
    sites["rome"] *= factor
    found = inspect_files(write_sites(tmp_path, sites))["scale"]["sites"]
    assert found["rome"] == pytest.approx(factor, rel=0.3)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda z: z, "standardised"),
        (lambda z: np.floor(np.exp(z + 3)), "counts"),
        (lambda z: np.exp(z + 6), "raw"),
        (lambda z: z + 8, "logarithms"),
        (lambda z: 5 * z, "measured"),
    ],
)
def test_the_kind_of_the_values(tmp_path, change, kind):
    sites = {site: change((x - 5) / 2) for site, x in rows_of_sites(40, 30).items()}
    assert inspect_files(write_sites(tmp_path, sites))["scale"]["kind"] == kind


def test_patients_at_two_sites_are_counted_by_pair(tmp_path):
    sites = rows_of_sites()
    sites["rome"][:4] = sites["berlin"][5:9]
    sites["paris"][0] = sites["paris"][1]
    ids = {site: [f"{site}{row}" for row in range(20)] for site in SITES}
    ids["paris"][3] = "rome7"
    files = write_sites(tmp_path, sites, ids=ids)
    found = inspect_files(files, id_column="patient")["duplicates"]
    assert found == {
        "told": True, "at_several_sites": 4, "by_pair": {"berlin and rome": 4}, "within_sites": 1,
        "ids_at_several_sites": 1,
    }  # fmt: skip


def test_rows_of_few_coarse_columns_are_no_duplicates(tmp_path):
    sites = {site: np.round(x[:, :3] / 4) for site, x in rows_of_sites().items()}
    assert not inspect_files(write_sites(tmp_path, sites))["duplicates"]["told"]


def test_few_rows_are_not_told(tmp_path):
    sites = rows_of_sites() | {"rome": np.full((3, 8), 5.5)}
    labels = {site: ["sick", "well"] * 10 for site in SITES} | {"rome": ["sick", "sick", "well"]}
    files = write_sites(tmp_path, sites, labels)
    facts = inspect_files(files, target="diagnosis", min_cell=5)
    assert facts["sites"]["rome"] is None
    assert facts["target"]["by_site"]["rome"] == {"sick": None, "well": None}
    assert facts["target"]["by_site"]["berlin"] == {"sick": 10, "well": 10}
    assert "rome" not in facts["drift"]["by_site"]


def test_no_value_of_a_patient_is_shown(tmp_path, capsys):
    """Neither a number, nor a text, nor an id; not even of a target that is an id."""
    sites = rows_of_sites()
    sites["rome"][7, 3] = 98765.4321
    files = write_sites(tmp_path, sites)
    text = Path(files[1]).read_text().replace(repr(float(sites["paris"][0, 0])), "secret")
    Path(files[1]).write_text(text)
    values = {repr(float(v)) for x in sites.values() for v in x.flat}
    values |= {f"{site}{row}" for site in SITES for row in range(20)} | {"secret", "98765"}
    for options in ([], ["--target", "diagnosis"], ["--target", "patient"], ["--target", "gene0"]):
        for form in ([], ["--json"]):
            assert main(["inspect", *files, *options, *form]) == 0
            out = capsys.readouterr().out
            assert not {value for value in values if value in out}


def shown(arguments, capsys):
    assert main(["inspect", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_next_command_can_be_run(tmp_path, capsys):
    sites = rows_of_sites()
    sites["paris"][0, 2] = np.nan
    files = write_sites(tmp_path, sites)
    facts = shown(files, capsys)
    assert facts["candidates"] == ["diagnosis"]
    again = shlex.split(facts["next"])
    assert again[1:] == ["inspect", *files, "--target", "diagnosis"]
    fit = shlex.split(shown(again[2:], capsys)["next"])
    assert fit[1] == "fit"
    assert {"--impute", "--id", "--features"} <= set(fit)
    assert main([*fit[1:], *TINY, "--out", str(tmp_path / "run")]) == 0


def test_a_target_that_is_none_leads_back(tmp_path, capsys):
    files = write_sites(tmp_path, rows_of_sites())
    facts = shown([*files, "--target", "patient"], capsys)
    assert facts["target"]["problem"] == "text"
    assert facts["limit"] is None
    assert facts["next"].endswith("--target COLUMN")
    assert main(["inspect", *files, "--target", "diagnose"]) == 2
    assert "did you mean 'diagnosis'" in capsys.readouterr().err
    with pytest.raises(DataError, match="no such file"):
        inspect_files(tmp_path / "berln.csv")


def test_too_few_samples_are_said_with_the_number_that_would_do(tmp_path, capsys):
    files = write_sites(tmp_path, rows_of_sites(10, 200))
    limit = shown([*files, "--target", "diagnosis", "--features", "20"], capsys)["limit"]
    assert limit["samples_needed"] > 30
    assert fewest_samples(limit["safe_features"], 200, limit["nats"]) <= 15
    assert main(["inspect", *files, "--target", "diagnosis", "--features", "20"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"at least {limit['samples_needed']} samples" in out
    assert f"ask for {limit['safe_features']}" in out


def test_columns_and_cells_that_a_fit_would_refuse_are_told(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("u,v,w,day,y\n1,2,3,mo,0\n2,low,4,tu,1\n3,inf,5,mo,1\n")
    (tmp_path / "b.csv").write_text("u,v,day,y\n1,2,mo,0\n2,4,mo,1\n")
    files = [str(tmp_path / f"{name}.csv") for name in "ab"]
    facts = shown([*files, "--target", "y"], capsys)
    assert facts["columns"]["lost"] == ["w"]
    assert facts["columns"]["text"] == {"day": 2}
    assert facts["columns"]["unreadable"] == {"v": {"cells": 2, "first": "a.csv, line 3"}}


def with_covariates(folder: Path, sexes: str = "fm", ages: str = "") -> list[str]:
    """Write two sites of 20 rows with four genes, an age, a sex and a target."""
    files = []
    for name in "ab":
        rng, lines = np.random.default_rng(ord(name)), ["age,sex,g0,g1,g2,g3,y"]
        for row in range(20):
            x = rng.normal(size=4)
            age = ages or f"{rng.normal(60, 9):.1f}"
            sex = sexes[row % len(sexes)]
            lines.append(f"{age},{sex},{','.join(map(str, x))},{x[0] + rng.normal():.4f}")
        files.append(str(folder / f"{name}.csv"))
        Path(files[-1]).write_text("\n".join(lines) + "\n")
    return files


def test_covariates_are_shown_as_such_and_count_as_no_features(tmp_path, capsys):
    files = with_covariates(tmp_path)
    asked = [*files, "--target", "y", "--covariates", "age,sex"]
    facts = shown(asked, capsys)
    assert facts["features"] == facts["drift"]["columns"] == 4
    assert facts["covariates"] == [
        {"name": "age", "missing": 0, "levels": {}, "problem": None},
        {"name": "sex", "missing": 0, "levels": {"f": 20, "m": 20}, "problem": None},
    ]
    assert facts["columns"]["text"] == {}
    assert "sex" not in inspect_files(files, covariates=["age", "sex"])["candidates"]
    assert main(["inspect", *asked]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 features, 2 covariates" in out
    assert "stay in the model: 'age' (measured), 'sex' (f 20, m 20)" in out
    fit = shlex.split(facts["next"])
    assert fit[1] == "fit"
    assert main([*fit[1:], *TINY, "--out", str(tmp_path / "run")]) == 0


def test_covariates_that_a_fit_would_refuse_are_told(tmp_path, capsys):
    files = with_covariates(tmp_path, sexes="abcdefghijklmnopqrst", ages="3")
    Path(files[1]).write_text(Path(files[1]).read_text().replace("3,t,", "3,z,"))
    facts = inspect_files(files, target="y", covariates=["age", "sex"], min_cell=5)
    assert [c["problem"] for c in facts["covariates"]] == ["one value", "texts"]
    assert main(["inspect", *files, "--target", "y", "--covariates", "age,sex"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "'age' has one value" in out
    assert "'sex' has too many different texts" in out
    assert "once what is named above is mended" in out
    few = inspect_files(
        with_covariates(tmp_path, sexes="ffffffffffffffffffm"), min_cell=5, covariates=["sex"]
    )
    assert few["covariates"][0]["levels"] == {"f": 38, "m": None}
    assert main(["inspect", *files, "--target", "y", "--covariates", "ages"]) == 2
    assert "did you mean 'age'" in capsys.readouterr().err
