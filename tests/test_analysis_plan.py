"""Analysis plans: what is planned is what is done; what does not fit is named, and refused."""

import json
import re
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift import toml
from fedsift.cli import main
from fedsift.data import DataError, Dictionary, read_as, read_sites
from fedsift.deployment.writing import read_plan as read_app
from fedsift.inspection import check_file
from fedsift.plans import read_plan, renew_plan
from fedsift.run_folder import RunError, read_facts
from fedsift.runs import load_run
from fedsift.sign_offs import check_signed
from fedsift.signing import check_signature, record_hash
from fedsift.signing import signed as signed_record
from tests.test_cli import TINY, write_sites

COLUMNS = ("--target", "diagnosis", "--id", "patient")
TRIED = (*TINY, "--set", "entropy=.02", "--participation", ".8")
STUDY = (*COLUMNS, "--features", "2", "--covariates", "sex,age", *TRIED)


def with_covariates(folder: Path) -> list[str]:
    """The sites of the tests of the command line, with an age and a sex."""
    files = write_sites(folder)
    for file in files:
        frame = pl.read_csv(file)
        ages = [30 + 1.5 * (3 * row % 16) for row in range(16)]
        frame = frame.with_columns(
            pl.Series("age", ages), pl.Series("sex", ["female", "male", "male", "female"] * 4)
        )
        frame.write_csv(file)
    return files


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> list[str]:
    return with_covariates(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def planned(sites, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("planned") / "plan.toml"
    words = ("--title", "Two genes", "--out", str(path), "--quiet")
    assert main(["plan", *sites, *STUDY, *words]) == 0
    return path


@pytest.fixture
def plan(planned, tmp_path) -> Path:
    """A copy of the plan, to change."""
    copy: Path = tmp_path / "plan.toml"
    copy.write_bytes(planned.read_bytes())
    return copy


def changed(path: Path, **columns) -> Path:
    """Write a site's file with other columns; None takes one out."""
    frame = pl.read_csv(path)
    gone = [name for name, values in columns.items() if values is None]
    new = {name: values for name, values in columns.items() if values is not None}
    out = path.with_name(f"changed-{path.name}")
    frame.drop(gone).with_columns(**{k: pl.Series(v) for k, v in new.items()}).write_csv(out)
    return out


def edit(plan: Path, old: str, new: str) -> None:
    text = plan.read_text()
    assert text.count(old) == 1
    plan.write_text(text.replace(old, new))


def refusal(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return str(err)


def findings(path: Path, file: Path) -> dict[str, tuple[str, str]]:
    found = check_file(file, read_plan(path).data)
    return {one["what"]: (one["state"], one["text"]) for one in found["findings"]}


# --- the file


def test_the_plan_holds_what_was_asked_and_the_method_s_own_numbers(planned):
    held = tomllib.loads(planned.read_text())
    assert held["title"] == "Two genes"
    assert held["settings"]["features"] == 2
    assert held["settings"]["knobs"] == {"entropy": 0.02}
    assert held["algorithm"]["entropy"] == 0.02
    assert held["algorithm"]["local_steps"] == 2
    assert held["data"]["covariates"] == {"sex": ["female", "male"], "age": "measured"}
    assert held["data"]["classes"] == ["sick", "well"]
    assert held["data"]["features"] == [f"gene{j}" for j in range(6)]


def test_comments_and_layout_do_not_count_and_values_do(plan):
    before = read_plan(plan)
    edit(plan, "\n[settings]\n", "\n# a note of the statistician\n\n[settings]\n")
    assert read_plan(plan) == before
    edit(plan, "seeds = 2", "seeds = 3")
    with pytest.raises(RunError, match=r"was changed since it was written.*--renew"):
        read_plan(plan)
    renewed = renew_plan(plan)
    assert read_plan(plan) == renewed
    assert renewed.settings.seeds == 3
    assert renewed.fingerprint != before.fingerprint


def test_a_renewed_plan_has_the_numbers_of_its_settings(plan):
    plan.write_text(plan.read_text().replace("entropy = 0.02", "entropy = 0.04", 1))
    assert renew_plan(plan).algorithm["entropy"] == 0.04


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("features = 2", "features = 0", r"\[settings\]: features is 0; it should be at least 1"),
        ("features = 2", "featurs = 2", "featurs is not a setting; did you mean 'features'"),
        ('"gene5"]', '"gene4"]', "features: 'gene4' stands there twice"),
        ('"gene5"]', '"age"]', "'age' of the features has another purpose"),
        ('classes = ["sick", "well"]', 'classes = ["sick"]', "outcome is binary, with two"),
        ('["female", "male"]', '["female"]', "'sex' has one level"),
        ("min_rows = 5", "min_row = 5", "data.min_row"),
        ("format = 1", "format = 2", "has format 2, this release reads 1"),
        ('target = "', "target = ", "is no TOML file that can be read"),
    ],
)
def test_what_an_edit_got_wrong_is_named(plan, old, new, said):
    edit(plan, old, new)
    with pytest.raises(RunError, match=said):
        renew_plan(plan)


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.lists(st.text(), max_size=40))
        | st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_what_is_written_as_toml_is_read_as_the_same(table):
    assert tomllib.loads("\n".join(toml.entries(table))) == table


# --- plan → fit


def test_a_planned_fit_is_the_fit_with_the_same_options(sites, plan, tmp_path):
    runs = [tmp_path / name for name in ("planned", "asked")]
    assert main(["fit", "--plan", str(plan), *sites, "--quiet", "--out", str(runs[0])]) == 0
    assert main(["fit", *sites, *STUDY, "--out", str(runs[1])]) == 0
    one, other = map(load_run, runs)
    assert one.settings == other.settings
    assert one.features == other.features
    assert set(one.params) == set(other.params)
    for name, value in one.params.items():
        assert torch.equal(value, other.params[name])
    for name, figure in one.results.items():
        if name not in {"seconds", "run"}:
            assert figure == other.results[name]
    kept = read_plan(plan)
    assert one.facts["analysis_plan"] == {
        "title": "Two genes", "fingerprint": kept.fingerprint, "signed": []
    }  # fmt: skip
    assert other.facts["analysis_plan"] is None
    page = (runs[0] / "report.html").read_text()
    assert kept.fingerprint in page
    assert "fedsift fit berlin.csv paris.csv rome.csv --plan plan.toml" in page
    assert main(["rerun", str(runs[0]), "--quiet", "--out", str(tmp_path / "again")]) == 0
    assert read_facts(tmp_path / "again")["analysis_plan"] == one.facts["analysis_plan"]


def test_the_python_functions_do_the_same(sites, plan, tmp_path):
    data = read_sites(sites, "diagnosis", id_column="patient", covariates=["sex", "age"])
    made = fedsift.write_plan(
        tmp_path / "own.toml",
        data,
        title="Two genes",
        id_column="patient",
        features=2,
        seeds=2,
        splits=1,
        rounds=3,
        tuning_rounds=3,
        participation=0.8,
        knobs={"entropy": 0.02},
    )
    assert made == fedsift.read_plan(tmp_path / "own.toml") == fedsift.read_plan(plan)
    one = fedsift.fit_plan(made, made.read(sites), beside=())
    other = fedsift.fit(data, beside=(), **_asked(made))
    assert torch.equal(one.params["weight"], other.params["weight"])
    assert one.facts["analysis_plan"]["fingerprint"] == made.fingerprint
    with pytest.raises(DataError, match=r"not there.*plan\.read"):
        fedsift.fit_plan(made, data.select_features(["gene0", "gene1"]))


def _asked(plan: fedsift.AnalysisPlan) -> dict:
    settings = plan.settings
    names = ("features", "seeds", "splits", "rounds", "tuning_rounds", "participation", "knobs")
    return {name: getattr(settings, name) for name in names}


def test_columns_in_another_order_and_other_columns_change_nothing(sites, planned, tmp_path):
    data = read_plan(planned).data
    whole = read_as(sites, data)
    files = []
    for file in sites:
        frame = pl.read_csv(file)
        more = frame.select(reversed(frame.columns)).with_columns(pl.lit("x").alias("remark"))
        files.append(tmp_path / Path(file).name)
        more.write_csv(files[-1])
    with pytest.warns(fedsift.DataWarning, match="left out, not being planned: 'remark'"):
        again = read_as(files, data)
    assert again.features == whole.features
    assert torch.equal(again.x, whole.x)
    assert torch.equal(again.y, whole.y)


def test_the_order_of_levels_and_classes_is_the_plan_s(sites, plan):
    edit(plan, '["female", "male"]', '["male", "female"]')
    edit(plan, '["sick", "well"]', '["well", "sick"]')
    data = renew_plan(plan).read(sites)
    usual = read_sites(sites, "diagnosis", id_column="patient", covariates=["sex"])
    assert data.features[-2:] == ("sex=female", "age")
    assert torch.equal(data.y, 1 - usual.y)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "5"), "--seeds 5 contradicts .*, which has 2; leave the option out"),
        (("--density", ".5"), r"--density 0\.5 contradicts .*, which has none"),
        (("--method", "fedavg"), "--method fedavg contradicts .*, which has eflops"),
        (("--target", "gene0"), "--target gene0 contradicts .*, which has diagnosis"),
        (("--covariates", "age"), "--covariates age contradicts .*, which has sex,age"),
        (("--drop", "gene3"), "--drop gene3 contradicts .*, which has none"),
        (("--set", "entropy=.5"), r"--set entropy=0\.5 contradicts .*, which has entropy=0\.02"),
        (("--epsilon", "1"), r"--epsilon 1\.0 contradicts .*, which has none"),
        (("--validate", "leave-one-site-out"), "--validate .* contradicts .*, which has splits"),
        (("--impute", "mean"), "--impute mean contradicts .*, which has none"),
        (("--features-in-common",), "--features-in-common does not go with --plan"),
        (("--demo", "golub"), "--demo does not go with --plan"),
    ],
)
def test_an_option_that_contradicts_the_plan_is_named(sites, planned, capsys, words, said):
    assert re.search(said, refusal(capsys, "fit", "--plan", str(planned), *sites, *words))


def test_options_that_repeat_the_plan_are_no_contradiction(sites, planned, tmp_path):
    out = tmp_path / "run"
    words = ("--method", "eflops", *STUDY, "--dry-run", "--out", str(out))
    assert main(["fit", "--plan", str(planned), *sites, *words]) == 0


def test_a_plan_of_a_release_with_other_defaults_is_refused(sites, plan, capsys, monkeypatch):
    monkeypatch.setattr("fedsift.plans._algorithm", lambda settings, data: {"rounds": 99})
    err = refusal(capsys, "fit", "--plan", str(plan), *sites)
    assert "the plan has rounds 3 for eflops, this release 99" in err


# --- what does not fit


BERLIN = "berlin.csv"
LABELS = ["sick", "well"] * 8


@pytest.mark.parametrize(
    ("change", "what", "state", "text"),
    [
        ({"gene5": None}, "features", "wrong", "5 of 6; not there: 'gene5'"),
        ({"gene9": [1.0] * 16}, "other columns", "note", "1 column that the plan does not read"),
        ({"gene5": ["low"] + ["1"] * 15}, "numbers", "wrong", "1 cell with no number, in 'gene5'"),
        ({"gene5": ["low"] * 16}, "numbers", "wrong", "16 cells with no number, in 'gene5'"),
        (
            {"gene5": [None, None, *[1.0] * 14]},
            "missing values",
            "wrong",
            "2 cells in 1 column: 'gene5'; the plan fills none",
        ),
        ({"diagnosis": None}, "target", "wrong", "no column 'diagnosis'"),
        ({"diagnosis": ["", *LABELS[1:]]}, "target", "wrong", "diagnosis: 1 value missing"),
        ({"diagnosis": ["odd", *LABELS[1:]]}, "target", "wrong", "1 row of no class that"),
        ({"diagnosis": ["sick"] * 16}, "target", "note", "diagnosis: no row of 'well'"),
        ({"sex": None}, "covariate", "wrong", "no column 'sex' (there are"),
        ({"sex": ["other", "male"] * 8}, "covariate", "wrong", "sex: 8 rows of no level that"),
        ({"age": ["old"] * 16}, "covariate", "wrong", "age: not a number in every row"),
        ({"patient": None}, "id", "wrong", "no column 'patient'"),
        ({"patient": ["", *"abcdefghijklmno"]}, "id", "wrong", "patient: 1 value missing"),
    ],
)
def test_each_thing_that_does_not_fit_is_said_and_refused(
    sites, planned, tmp_path, change, what, state, text
):
    """What the check calls wrong a fit refuses, and what it only notes a fit takes."""
    folder = tmp_path / "sites"
    folder.mkdir()
    files = [folder / Path(file).name for file in sites]
    for here, file in zip(files, sites, strict=True):
        here.write_bytes(Path(file).read_bytes())
    changed(files[0], **change).replace(files[0])
    found = check_file(files[0], read_plan(planned).data)
    said = [one for one in found["findings"] if one["what"] == what and one["state"] == state]
    assert any(text in one["text"] for one in said), found
    assert found["fits"] == (state != "wrong")
    if state == "wrong":
        with pytest.raises(DataError):
            read_plan(planned).read(files)
    else:
        with pytest.warns(fedsift.DataWarning):
            read_plan(planned).read(files)


@pytest.mark.parametrize(
    ("outcome", "change", "what", "here"),
    [
        ("poisson", {}, "", ""),
        ("poisson", {3: "-1"}, "target", "line 5: 'stays' is -1, and counts are whole numbers"),
        ("negative_binomial", {4: "2.5"}, "target", "line 6: 'stays' is 2.5, and counts are"),
        ("poisson", {1: "two"}, "target", "line 3: the target 'stays' is 'two', not a number"),
        ("poisson", {1: ""}, "target", ""),
        ("regression", {3: "-2.5"}, "", ""),
        ("regression", {3: "1e300"}, "target", "line 5: the target 'stays' is 1e+300; correct it"),
        ("regression", {0: "NA"}, "target", ""),
    ],
)
def test_numbers_of_a_target_are_looked_at_as_a_fit_looks_at_them(
    tmp_path, outcome, change, what, here
):
    """The check refuses a value where the fit does, in the words of the fit, and only there."""
    cells = [str(row % 4) for row in range(12)]
    assert_checked_as_fitted(
        tmp_path, {"stays": cells}, ("stays", change), what, here, target="stays", outcome=outcome
    )


@pytest.mark.parametrize(
    ("column", "change", "what", "here"),
    [
        ("died", {}, "", ""),
        ("died", {0: "true", 5: "0.0"}, "", ""),
        ("died", {4: "2", 6: "3"}, "target", "line 6: 'died' is '2', not 1 (the event was seen)"),
        ("died", {4: "lost"}, "target", "line 6: 'died' is 'lost', not 1"),
        ("died", {4: ""}, "target", ""),
        ("months", {3: "0"}, "time", "line 5: the time of 'died' is 0 (1 such row)"),
        ("months", {3: "-4", 7: "0"}, "time", "line 5: the time of 'died' is -4 (2 such rows)"),
        ("months", {3: ""}, "time", ""),
        ("months", {3: "", 5: "0"}, "time", "line 7: the time of 'died' is 0"),
        ("months", {3: "long"}, "time", "line 5, column 'months': 'long' is not a number"),
        ("share", {2: "0"}, "weight", "line 4: the weight 'share' is 0.0"),
    ],
)
def test_events_times_and_weights_are_looked_at_as_a_fit_looks_at_them(
    tmp_path, column, change, what, here
):
    columns = {
        "died": ["1", "0", "1"] * 4,
        "months": [str(1 + row) for row in range(12)],
        "share": ["1.5"] * 12,
    }
    named = {"target": "died", "time_column": "months", "weight_column": "share"}
    assert_checked_as_fitted(
        tmp_path, columns, (column, change), what, here, outcome="survival", **named
    )


def assert_checked_as_fitted(folder, columns, change, what, here, **dictionary) -> None:
    """Check and read a file with some cells changed: wrong is what is refused, and is named."""
    column, cells = change
    columns = {"gene": [str(row) for row in range(12)], **columns}
    columns[column] = [cells.get(row, value) for row, value in enumerate(columns[column])]
    file = folder / "berlin.csv"
    pl.DataFrame(columns).write_csv(file)
    held = Dictionary(features=("gene",), **dictionary)
    found = check_file(file, held)
    wrong = [one for one in found["findings"] if one["state"] == "wrong"]
    assert {one["what"] for one in wrong} == ({what} if what else set())
    if not what:
        read_as([file], held)
        return
    with pytest.raises(DataError):
        read_as([file], held)
    assert here in wrong[-1]["here"]
    assert all(column in one["text"] and "\n" not in one["here"] for one in wrong)
    values = [value for value in cells.values() if value]
    assert not any(repr(value) in one["text"] for one in wrong for value in values)


def test_columns_in_another_order_are_noted(sites, planned, tmp_path):
    frame = pl.read_csv(sites[0])
    frame.select(reversed(frame.columns)).write_csv(tmp_path / BERLIN)
    assert findings(planned, tmp_path / BERLIN)["features"] == (
        "note", "6 of 6, in another order, which does not matter"
    )  # fmt: skip


def test_a_site_with_few_rows_does_not_fit(sites, planned, tmp_path):
    pl.read_csv(sites[0]).head(4).write_csv(tmp_path / BERLIN)
    assert findings(planned, tmp_path / BERLIN)["rows"] == (
        "wrong", "4; the plan asks for 5 of a site"
    )  # fmt: skip
    with pytest.raises(DataError, match="site 'berlin' has 4 rows, the plan asks for 5"):
        read_plan(planned).read([tmp_path / BERLIN, *sites[1:]])


def test_a_class_and_a_level_that_no_site_has_are_refused(sites, plan):
    edit(plan, '["female", "male"]', '["female", "male", "other"]')
    with pytest.raises(DataError, match="no row of any site has 'other' of the covariate 'sex'"):
        renew_plan(plan).read(sites)
    text = plan.read_text().replace(', "other"]', "]")
    text = text.replace('outcome = "binary"', 'outcome = "multiclass"')
    plan.write_text(text.replace('["sick", "well"]', '["dead", "sick", "well"]'))
    made = renew_plan(plan)
    with (
        pytest.warns(fedsift.DataWarning, match="one or two rows: 'dead'"),
        pytest.raises(DataError, match="no row of any site has 'dead' of the target"),
    ):
        made.read(sites)


def test_values_of_rows_stay_at_the_site(sites, planned, tmp_path, capsys):
    """The check shows an unknown value at the site; a record is not written of such a file."""
    file = changed(Path(sites[0]), diagnosis=["Jane Doe", *LABELS[1:]])
    assert main(["check-site", str(planned), str(file), "--site", "berlin"]) == 3
    out = capsys.readouterr().out
    file.unlink()
    assert "Jane Doe" in out
    assert "DOES NOT FIT" in out


# --- signing


def sign(plan: Path, file: str, folder: Path, *words: str) -> int:
    return main(["check-site", str(plan), file, "--sign", "A. Meyer", "--out", str(folder), *words])


def test_all_sites_sign_and_the_run_says_who(sites, plan, tmp_path, capsys):
    folder = tmp_path / "signed"
    for file in sites:
        assert sign(plan, file, folder, "--tell-rows") == 0
    record = json.loads((folder / "plan.rome.signed.json").read_text())
    assert record["plan"] == read_plan(plan).fingerprint
    assert (record["site"], record["signed_by"], record["rows"]) == ("rome", "A. Meyer", 16)
    assert record["signed_at"].endswith("+00:00")
    out, words = tmp_path / "run", ("--signed", str(folder), "--quiet")
    assert main(["fit", "--plan", str(plan), *sites, *words, "--out", str(out)]) == 0
    signed = read_facts(out)["analysis_plan"]["signed"]
    assert [one["site"] for one in signed] == ["berlin", "paris", "rome"]
    assert "Signed off by berlin (A. Meyer, " in (out / "report.html").read_text()


def test_a_site_that_does_not_fit_does_not_sign(sites, plan, tmp_path, capsys):
    file = changed(Path(sites[0]), gene5=None)
    assert sign(plan, str(file), tmp_path, "--json") == 3
    file.unlink()
    assert json.loads(capsys.readouterr().out)["record"] is None
    assert not list(tmp_path.glob("*.signed.json"))


def test_sign_offs_of_another_plan_other_rows_or_too_few_sites_are_refused(
    sites, plan, tmp_path, capsys
):
    folder = tmp_path / "signed"
    fit = ("fit", "--plan", str(plan), *sites, "--signed", str(folder))
    assert "no such file or folder of sign-offs" in refusal(capsys, *fit)
    for file in sites[:2]:
        assert sign(plan, file, folder) == 0
    capsys.readouterr()
    assert "no sign-off of 'rome'" in refusal(capsys, *fit)
    fewer = tmp_path / "rome.csv"
    pl.read_csv(sites[2]).head(15).write_csv(fewer)
    assert sign(plan, str(fewer), folder, "--tell-rows") == 0
    capsys.readouterr()
    assert "'rome' signed for 15 rows, its file has 16" in refusal(capsys, *fit)
    assert "exists already" in refusal(
        capsys, "check-site", str(plan), sites[2], "--sign", "B", "--out", str(folder)
    )
    assert sign(plan, sites[2], folder, "--overwrite") == 0
    edit(plan, "seeds = 2", "seeds = 3")
    renew_plan(plan)
    capsys.readouterr()
    assert "'berlin' signed another plan" in refusal(capsys, *fit)


def test_a_record_that_was_changed_is_refused(sites, plan, tmp_path, capsys):
    assert sign(plan, sites[0], tmp_path) == 0
    file = tmp_path / "plan.berlin.signed.json"
    file.write_text(file.read_text().replace("A. Meyer", "B. Meyer"))
    capsys.readouterr()
    err = refusal(capsys, "fit", "--plan", str(plan), sites[0], "--signed", str(file))
    assert "is not as it was written" in err


@pytest.fixture
def keyed(sites, plan, tmp_path) -> Path:
    """Berlin's record, signed with its key; the key lies beside it."""
    assert sign(plan, sites[0], tmp_path, "--key", str(new_key(tmp_path / "key.pem"))) == 0
    record: Path = tmp_path / "plan.berlin.signed.json"
    return record


def new_key(path: Path) -> Path:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization

    path.write_bytes(
        ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def test_a_record_can_be_signed_with_a_key(plan, keyed, tmp_path):
    record, key = json.loads(keyed.read_text()), tmp_path / "key.pem"
    assert check_signature(record)
    assert check_signature(record, key)
    assert not check_signature(record | {"hash": "0" * 64}, key)
    assert not check_signature(record | {"signed_by": "B. Meyer"}, key)
    assert not check_signature(record, new_key(tmp_path / "other.pem"))
    (signed,) = check_signed(read_plan(plan), {"berlin": 16}, [keyed])
    assert signed == {name: record[name] for name in ("site", "signed_by", "signed_at", "key")}


def sealed(record):
    return record | {"hash": record_hash(record)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r, o: r | {"signed_by": "B"}, "is not as it was written"),
        (lambda r, o: r | {"hash": "0" * 64}, "is not as it was written"),
        (lambda r, o: r | {"key": o["key"]}, "is not as it was written"),
        (lambda r, o: sealed(r | {"signed_by": "B"}), "is not that of its key and its content"),
        (lambda r, o: sealed(r | {"key": o["key"]}), "is not that of its key and its content"),
        (lambda r, o: sealed(r | {"key": "no hex"}), "is not that of its key and its content"),
        (lambda r, o: sealed(r | {"key": None}), "is not that of its key and its content"),
        (lambda r, o: r | {"signature": o["signature"]}, "is not that of its key and its content"),
        (lambda r, o: r | {"signature": r["signature"][:-2]}, "is not that of its key and its"),
        (lambda r, o: r | {"signature": 7}, "is not that of its key and its content"),
        (lambda r, o: {k: v for k, v in r.items() if k != "signature"}, "no signature is there"),
        (lambda r, o: sealed({k: v for k, v in r.items() if k != "key"}), "no key is there"),
    ],
)
def test_each_part_of_a_signed_record_is_checked(
    sites, plan, keyed, tmp_path, capsys, change, said
):
    """One line names the site and the file, whichever part was tampered with."""
    record = json.loads(keyed.read_text())
    other = signed_record({k: v for k, v in record.items() if k not in {"hash", "signature"}},
                          new_key(tmp_path / "other.pem"))  # fmt: skip
    keyed.write_text(json.dumps(change(record, other)))
    capsys.readouterr()
    err = refusal(capsys, "fit", "--plan", str(plan), sites[0], "--signed", str(keyed))
    assert said in err
    assert str(keyed) in err
    assert "'berlin'" in err


def test_a_record_without_key_and_signature_is_a_statement(plan, keyed):
    """Documented: a record that was stripped of both is one without a key, and the run says so."""
    record = json.loads(keyed.read_text())
    keyed.write_text(
        json.dumps(sealed({k: v for k, v in record.items() if k not in {"key", "signature"}}))
    )
    (signed,) = check_signed(read_plan(plan), {"berlin": 16}, [keyed])
    assert "key" not in signed


def test_a_signature_that_cannot_be_checked_is_refused(plan, keyed, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(RunError, match=r"'berlin' cannot be checked: .*fedsift\[sign\]"):
        check_signed(read_plan(plan), {"berlin": 16}, [keyed])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fit", "berlin.csv", "--signed", "x"), "--signed goes with --plan only"),
        (("plan", "--renew", "absent.toml"), "absent.toml: No such file or directory"),
        (("plan", "a.csv", "--renew", "plan.toml"), "--renew takes a plan that is there"),
        (("check-site", "PLAN", "SITE", "--tell-rows"), "--tell-rows goes with --sign NAME only"),
        (("check-site", "PLAN", "SITE", "--sign", " "), "no name is given to sign with"),
        (("plan", "SITE", *COLUMNS, "--features", "2", "--out", "PLAN"), "exists already"),
        (
            ("plan", "SITE", *COLUMNS, "--features", "2", "--min-rows", "17", "--out", "new.toml"),
            "site 'berlin' has 16 rows, the plan asks for 17",
        ),
        (
            ("plan", "SITE", *COLUMNS, "--features", "2", "--set", "entrpy=1", "--out", "new.toml"),
            "eflops has no knob 'entrpy'",
        ),
    ],
)
def test_wrong_use_is_one_line(sites, plan, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    places = {"PLAN": str(plan), "SITE": sites[0]}
    drop = ("--drop", "age", "--drop", "sex") if words[0] == "plan" and "SITE" in words else ()
    assert said in refusal(capsys, *(places.get(word, word) for word in words), *drop)
    assert not Path("new.toml").exists()


# --- deploy


def test_a_deployment_follows_the_plan(plan, tmp_path, capsys):
    app = tmp_path / "app"
    sites = ("--site", "berlin", "--site", "rome")
    assert main(["deploy", str(app), "--plan", str(plan), *sites]) == 0
    agreed, deployed = read_plan(plan), read_app(app)
    assert deployed.settings == agreed.settings
    assert deployed.analysis_plan == agreed.facts | {"signed": []}
    assert deployed.covariates == ("sex", "age")
    assert deployed.min_rows == 5
    capsys.readouterr()
    words = ("deploy", str(app), "--plan", str(plan), *sites, "--overwrite")
    assert "--min-rows 9 contradicts" in refusal(capsys, *words, "--min-rows", "9")
    assert "--rounds 40 contradicts" in refusal(capsys, *words, "--rounds", "40")
    assert "no sign-off of 'berlin', 'rome'" in refusal(capsys, *words, "--signed", str(tmp_path))
