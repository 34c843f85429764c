"""Groups of features share a gate: all of a group is chosen, or nothing of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift import models, random
from fedsift.cli import main
from fedsift.data import DataError, DataWarning, FederatedData, Standardiser
from fedsift.data.groups import groups_of, named_groups, read_gmt
from fedsift.estimators import FederatedSparseClassifier, FederatedSparseRegressor
from fedsift.forgetting import remade
from fedsift.linear_problems import linear_problem, problem_of
from fedsift.outcomes import make_outcome
from fedsift.problems import Batch, supervised
from fedsift.reporting.tables import fit_report, to_text
from fedsift.runs import load_run
from fedsift.selection import swaps
from fedsift.settings import Settings
from fedsift.sparsity import GateMap, GateView, grouping
from fedsift.studies import Case, check_request, fit_case
from tests.laws import normal

QUICK: dict[str, Any] = {
    "seeds": 2, "splits": 0, "rounds": 25, "tuning_rounds": 25, "beside": (),
}  # fmt: skip
NAMES = [f"g{i}" for i in range(12)]
GROUPS = {"true": NAMES[:4], "other": NAMES[3:7], "third": NAMES[7:10]}
"""g3 is in two groups, g10 and g11 are in none."""

members = st.lists(st.lists(st.integers(0, 6), min_size=1, unique=True), max_size=4)


def drawn(outcome: str = "regression", n: int = 120) -> FederatedData:
    """Make rows at three sites that follow the group "true" and the feature g11 alone."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(n, len(NAMES)))
    score = x[:, :4] @ [0.8, -0.8, 0.8, 0.8] + 1.6 * x[:, 11] + 0.5 * draw.normal(size=n)
    cuts = {"regression": None, "binary": [0.0], "multiclass": [-1.0, 1.0]}[outcome]
    y = score if cuts is None else np.digitize(score, cuts)
    sites = [f"site {row % 3}" for row in range(n)]
    return FederatedData.from_arrays(x, y, sites=sites, features=NAMES, outcome=outcome)


@given(members)
def test_every_column_has_a_gate_and_a_copy_for_each_further_group(groups):
    layout = grouping(7, groups)
    inside = {column for own in groups for column in own}
    assert layout.size == len(groups) + 7 - len(inside)
    assert len(layout.copies) == sum(map(len, groups)) - len(inside)
    columns = [*range(7), *layout.copies]
    for gate in range(layout.size):
        of = {c for c, g in zip(columns, layout.gates, strict=True) if g == gate}
        assert of == set(groups[gate]) if gate < len(groups) else len(of) == 1
        mask = torch.zeros(layout.size)
        mask[gate] = 1.0
        chosen = layout.columns_of(mask).nonzero().squeeze(1).tolist()
        assert set(chosen) == of
    assert layout.columns_of(torch.ones(layout.size)).eq(1.0).all()


@given(members, st.integers(0, 9))
def test_reduce_is_the_transpose_of_expand_where_columns_share_gates(groups, seed):
    layout = grouping(7, groups)
    gates = GateMap({"weight": GateView(0, (1, len(layout.gates)), layout.gates)})
    weight, vector = normal(3, len(layout.gates), seed=seed), normal(gates.size, seed=seed + 1)
    by_leaf = (gates.multiply({"weight": weight}, vector)["weight"] * weight).sum()
    by_gate = vector @ gates.reduce({"weight": weight * weight})
    torch.testing.assert_close(by_leaf, by_gate, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_model_with_copies_is_the_model_of_the_summed_weights(outputs):
    layout = grouping(12, groups_of(GROUPS, NAMES).members)
    model, plain = models.grouped(layout, outputs), models.linear(12, outputs)
    params = {
        leaf: random.normal(random.key(leaf), value.shape)
        for leaf, value in model.init(torch.zeros((), dtype=torch.int64)).items()
    }
    summed = {**params, "weight": layout.total(params["weight"])}
    data = drawn("multiclass" if outputs == 3 else "binary")
    key = torch.zeros((), dtype=torch.int64)
    torch.testing.assert_close(model.apply(params, data.x, None), plain.apply(summed, data.x, None))
    batch = Batch(data.x, data.y, data.weight, key)
    outcome = make_outcome(data.outcome, outputs)
    variants = [model, replace(model, pullback=None)]
    variants += [] if model.apart is None else [model.apart]
    by_hand, *others = (supervised(m, outcome).operators["loss"](params, batch) for m in variants)
    for other in others:
        for leaf, value in by_hand.items():
            torch.testing.assert_close(value, other[leaf], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "outcome"),
    [
        ("eflops", "regression"),
        ("eflops", "multiclass"),
        ("flops", "binary"),
        ("fedavg", "regression"),
        ("fedht", "binary"),
        ("fediterht", "regression"),
        ("central", "binary"),
    ],
)
def test_every_method_chooses_whole_groups(method, outcome):
    run = fedsift.fit(drawn(outcome), method=method, features=2, groups=GROUPS, **QUICK)
    assert {f.name for f in run.features} == {*GROUPS["true"], "g11"}
    (group,) = run.results["groups"]
    assert group["name"] == "true"
    assert group["inclusion_probability"] == 1.0
    weights = {f.name: f.weight for f in run.features}
    assert {row["name"]: row["weight"] for row in group["features"]} == pytest.approx(
        {name: weights[name] for name in GROUPS["true"]}
    )


def test_groups_of_one_change_nothing():
    data, alone = drawn(), {name: [name] for name in NAMES}
    plain, grouped = (fedsift.fit(data, features=5, groups=g, **QUICK) for g in (None, alone))
    for leaf, value in plain.params.items():
        assert torch.equal(value, grouped.params[leaf])
    assert plain.results["bytes_up"] == grouped.results["bytes_up"]


@pytest.mark.parametrize("method", ["eflops", "fediterht"])
def test_engines_agree(method):
    knobs = QUICK | {"rounds": 6}
    one, other = (
        fedsift.fit(
            drawn("binary"), method=method, features=2, groups=GROUPS, engine=engine, **knobs
        )
        for engine in ("vectorized", "loop")
    )
    for leaf, value in one.params.items():
        torch.testing.assert_close(value, other.params[leaf], rtol=1e-5, atol=1e-5)
    assert one.results["bytes_up"] == other.results["bytes_up"]


def test_covariates_stay_beside_groups():
    data = drawn().with_covariates(["g11"])
    run = fedsift.fit(data, features=1, groups=GROUPS, **QUICK)
    assert {f.name for f in run.features} == set(GROUPS["true"])
    assert [effect.covariate for effect in run.effects] == ["g11"]


def test_the_problem_is_made_again_elsewhere():
    data = Standardiser.fit(drawn()).apply(drawn())
    problem = linear_problem(data, "feature", groups_of(GROUPS, NAMES))
    again = remade(json.loads(json.dumps(problem.told())), problem_of)
    assert again.gates == problem.gates
    key = torch.zeros((), dtype=torch.int64)
    params = {"weight": normal(1, 13, seed=1), "bias": torch.zeros(1)}
    batch = Batch(data.x, data.y, data.weight, key)
    one, other = (p.operators["loss"](params, batch) for p in (problem, again))
    assert all(torch.equal(one[leaf], other[leaf]) for leaf in one)


def test_a_gmt_file_is_read(tmp_path):
    file = tmp_path / "sets.gmt"
    file.write_text("true\thttp://x\tg0\tg1\t\nother\t\tg1\tg2\n\n", encoding="utf-8-sig")
    assert read_gmt(file) == {"true": ["g0", "g1"], "other": ["g1", "g2"]}
    assert named_groups(str(file)) == read_gmt(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a\tb\n", "line 1: a group is a name, a description and features"),
        ("a\tb\tg0\na\tb\tg1\n", "line 2: there are two groups 'a'"),
        ("\n", "has no group"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_gmt_file_says_where(tmp_path, content, said):
    file = tmp_path / "sets.gmt"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=said):
        read_gmt(file)


def test_unknown_names_are_told_and_ignored():
    groups = GROUPS | {"true": ["zz", *GROUPS["true"], "g0"], "absent": ["q1", "q2"]}
    with pytest.warns(DataWarning) as warned:
        run = fedsift.fit(drawn(), features=2, groups=groups, **QUICK)
    told = [str(warning.message) for warning in warned]
    assert any("3 features of groups left out" in text and "'zz'" in text for text in told)
    assert any("1 group left out" in text and "'absent'" in text for text in told)
    assert run.facts["groups"] == {
        "groups": 3, "single": 2, "gates": 5,
        "unknown": {"count": 3, "first": ["zz", "q1", "q2"]},
        "empty": {"count": 1, "first": ["absent"]},
    }  # fmt: skip
    assert "zz, q1, q2" in to_text(fit_report(run))
    known = fedsift.fit(drawn(), features=2, groups=GROUPS, **QUICK)
    for leaf, value in run.params.items():
        assert torch.equal(value, known.params[leaf])


def test_what_groups_do_not_go_with_says_so():
    data = drawn()
    with pytest.raises(ValueError, match=r"no group has a feature of the data.*'q1'.*'g0'"):
        check_request(Settings(features=1, groups={"a": ["q1"]}), ["eflops"], data)
    for method in ("oneshot", "abess", "lasso"):
        with pytest.raises(ValueError, match=f"{method} has a solver that chooses single"):
            check_request(Settings(features=1, groups=GROUPS), [method], data)
    with pytest.raises(ValueError, match="keeps 6 of 5 gates of groups and features"):
        check_request(Settings(features=6, groups=GROUPS), ["eflops"], data)
    with pytest.raises(ValueError, match="leave groups out"):
        Settings(fdr=0.1, groups=GROUPS)
    with pytest.raises(ValueError, match="gate is 'scalar', but groups"):
        Settings(features=1, gate="scalar", groups=GROUPS)
    with pytest.raises(DataError, match="group 'a' is the text 'g1'"):
        fedsift.fit(data, features=1, groups={"a": "g1"}, **QUICK)


def files(folder: Path) -> list[str]:
    data = drawn("binary", 90)
    for site in data.sites:
        own = data.site(site)
        lines = [",".join([*NAMES, "y"])]
        for row, y in zip(own.x.tolist(), own.y.tolist(), strict=True):
            lines.append(",".join(map(str, [*row, y])))
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    lines = ["\t".join([name, "-", *own]) for name, own in GROUPS.items()]
    (folder / "sets.gmt").write_text("\n".join(lines) + "\n")
    return [str(folder / f"{site}.csv") for site in data.sites]


def test_the_command_line_takes_groups_and_its_run_keeps_them(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    command = ["fit", *files(tmp_path), "--target", "y", "--groups", str(tmp_path / "sets.gmt")]
    command += ["--features", "2", "--seeds", "2", "--splits", "2", "--rounds", "20"]
    command += ["--tuning-rounds", "20", "--out", str(out), "-q"]
    assert main([*command, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [group["name"] for group in results["groups"]] == ["true"]
    assert main(["report", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Chosen: 1 of 3 groups, and 1 of 2 features in no group" in text
    page = (out / "report.html").read_text()
    assert "Chosen groups" in page
    assert "--groups sets.gmt" in page
    (tmp_path / "sets.gmt").unlink()  # a run keeps what was in the file
    facts = json.loads((out / "run.json").read_text())
    assert facts["settings"]["groups"] == GROUPS
    assert main(["rerun", str(out), "-q"]) == 0
    capsys.readouterr()


def test_a_run_with_groups_goes_on(tmp_path):
    data, out = drawn("binary"), tmp_path / "run"
    whole = fedsift.fit(data, features=2, groups=GROUPS, **QUICK)

    def stop(record: dict[str, Any]) -> None:
        if record["stage"] == "refit" and record["round"] == 5:
            raise KeyboardInterrupt

    knobs = {"features": 2, "groups": GROUPS, "out": out, **QUICK}
    with pytest.raises(KeyboardInterrupt):
        fedsift.fit(data, callbacks=[stop], **knobs)
    resumed = fedsift.fit(data, resume=True, **knobs)
    for leaf, value in whole.params.items():
        assert torch.equal(value, resumed.params[leaf])
    assert load_run(out).results["groups"] == whole.results["groups"]
    with pytest.raises(fedsift.RunError, match="other settings"):
        fedsift.fit(data, resume=True, **knobs | {"groups": {"true": NAMES[:3]}})


def test_forgetting_retrains_with_groups(tmp_path):
    data, out = drawn("binary"), tmp_path / "run"
    fedsift.fit(data, features=2, groups=GROUPS, out=out, **QUICK)
    fedsift.forget(out, sites=["site 1"], data=data, method="retrain")
    left = data.at_sites(["site 0", "site 2"])
    fresh, after = fedsift.fit(left, features=2, groups=GROUPS, **QUICK), load_run(out)
    for leaf, value in fresh.params.items():
        assert torch.equal(value, after.params[leaf])
    assert after.results["groups"] == fresh.results["groups"]


def test_estimators_take_groups_by_number_and_by_name():
    data = drawn("binary")
    x, y = data.x.numpy(), data.y.numpy()
    knobs: dict[str, Any] = {"n_seeds": 2, "rounds": 25, "tuning_rounds": 25}
    numbers = {name: [NAMES.index(item) for item in own] for name, own in GROUPS.items()}
    by_number = FederatedSparseClassifier(2, groups=numbers, **knobs).fit(x, y)
    assert by_number.groups_ == {"true": 1.0}
    assert by_number.support_.nonzero()[0].tolist() == [0, 1, 2, 3, 11]
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(x, columns=NAMES)
    by_name = FederatedSparseClassifier(2, groups=GROUPS, **knobs).fit(table, y)
    assert np.array_equal(by_name.coef_, by_number.coef_)
    with pytest.raises(ValueError, match="X has no column 12; there are 0 to 11"):
        FederatedSparseRegressor(1, groups={"a": [12]}, **knobs).fit(x, y)
    # A covariate moves to the end of the rows; columns keep their numbers.
    apart = FederatedSparseClassifier(1, groups=numbers, covariates=[11], **knobs)
    assert apart.fit(x, y).support_.nonzero()[0].tolist() == [0, 1, 2, 3]


def test_privacy_takes_groups():
    private = fedsift.Privacy(epsilon=50.0, delta=1e-5, clip=1.0)
    run = fedsift.fit(
        drawn("binary"), features=2, groups=GROUPS, privacy=private, standardise="none",
        learning_rate=0.1, weights="uniform", local_steps=1, **QUICK,
    )  # fmt: skip
    assert len(run.results["groups"]) <= 2
    assert run.results["epsilon"] == pytest.approx(50.0, rel=0.05)


def twins(*, twin: bool, d: int = 20, n: int = 90) -> FederatedData:
    """Make rows that follow g0, g1 and g2 strongly; with a twin, g3 is g2 again."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(n, d))
    y = 2.0 * x[:, :3].sum(1) + 0.5 * draw.normal(size=n)
    if twin:
        x[:, 3] = x[:, 2]
    sites = [f"site {row % 3}" for row in range(n)]
    return FederatedData.from_arrays(x, y, sites=sites, features=[f"g{i}" for i in range(d)])


def test_identical_columns_are_each_others_alternatives(tmp_path):
    knobs = QUICK | {"features": 3, "seeds": 20, "rounds": 60}
    run = fedsift.fit(twins(twin=True), out=tmp_path / "run", **knobs)
    ((kept, (other,)),) = run.results["alternatives"].items()
    assert {kept, other["name"]} == {"g2", "g3"}
    assert other["seeds"] == other["without"] > 0
    shown = f"{kept}: {other['name']} ({other['seeds']} of {other['without']})"
    assert shown in to_text(fit_report(run))
    assert shown in (tmp_path / "run" / "report.html").read_text()
    assert load_run(tmp_path / "run").results["alternatives"] == run.results["alternatives"]
    # Each takes the place of the other, whichever is kept; so do groups of them.
    pairs = {"one": ["g2"], "other": ["g3"]}
    grouped = fedsift.fit(twins(twin=True), groups=pairs, **knobs)
    ((kept, (other,)),) = grouped.results["alternatives"].items()
    assert {kept, other["name"]} == {"one", "other"}
    data = twins(twin=True)
    fit = fit_case(
        Case("all rows", data),
        Settings(features=3, seeds=20, rounds=60, tuning_rounds=2),
        Standardiser.fit(data),
    )
    found = swaps((fit.weights != 0).any(1), torch.ones(data.n_features, dtype=torch.bool))
    assert {(swap.gate, swap.other) for swap in found} == {(2, 3), (3, 2)}


def test_strong_features_have_no_alternatives():
    run = fedsift.fit(twins(twin=False), **QUICK | {"features": 3, "seeds": 20, "rounds": 60})
    assert {f.name for f in run.features} == {"g0", "g1", "g2"}
    assert run.results["alternatives"] == {}
    assert "Alternatives" not in to_text(fit_report(run))
