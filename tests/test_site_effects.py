"""Intercepts of sites: at rest least squares with a dummy of each site; none leaves its site."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedsift
from fedsift import messages, models
from fedsift.algorithms import (
    Algorithm,
    EFLoPS,
    EFLoPSPaper,
    FedAvg,
    FedHT,
    FedIterHT,
    FedProx,
    Scaffold,
    Tuning,
)
from fedsift.channels import Lossless, TopM
from fedsift.checkpoints import StageCheckpoint
from fedsift.cli import main
from fedsift.data import FederatedData, Standardiser
from fedsift.data.remote import OwnThere
from fedsift.exports import export_run
from fedsift.outcomes import make_outcome
from fedsift.privacy import Privacy
from fedsift.problems import Problem, supervised
from fedsift.reporting.limits import limits
from fedsift.run_folder import read_facts, read_fit, write_fit
from fedsift.runs import load_run
from fedsift.settings import Settings
from fedsift.studies import Case, fit_case
from fedsift.training import EarlyStop, Training, train
from fedsift.trees import Tree
from tests.laws import bit_equal, largest_gap

SIZES = {"a": 10, "b": 20, "c": 45}
LEVELS = {"a": -2.0, "b": 1.0, "c": 4.0}
STEP: dict[str, Any] = {"local_steps": 1, "learning_rate": 0.2}
QUICK: dict[str, Any] = {
    "method": "fedht",
    "features": 2,
    "seeds": 1,
    "splits": 0,
    "rounds": 12,
    "tuning_rounds": 12,
    "beside": (),
    "weights": "samples",
}


def drawn(outcome: str = "regression") -> FederatedData:
    """Make three sites of unlike size, whose levels and means of the features differ."""
    draw = np.random.default_rng(3)
    sites = np.repeat(list(SIZES), list(SIZES.values()))
    level = np.array([LEVELS[site] for site in sites])
    x = draw.normal(size=(len(sites), 4)) + 0.1 * level[:, None]
    y = level + x[:, 0] - 0.5 * x[:, 1] + 0.3 * draw.normal(size=len(sites))
    target = y if outcome == "regression" else np.where(y > np.median(y), "high", "low")
    return FederatedData.from_arrays(x, target, sites=sites, features=[f"g{i}" for i in range(4)])


def problem(ridge: float | None = 0.0, outcome: str = "regression") -> Problem:
    base = supervised(models.linear(4, dtype=torch.float64), make_outcome(outcome))
    return base if ridge is None else base.with_private({"bias": ridge})


def trained(algorithm: Algorithm, asked: Problem, **more: Any) -> Training:
    usual: dict[str, Any] = {"data": drawn(), "compile": False, "evaluate_every": 500}
    return train(asked, algorithm=algorithm, **{**usual, **more})


def own(run: Training) -> Mapping[str, Tree]:
    assert not isinstance(run.own, OwnThere)
    return run.own


def intercepts(run: Training) -> np.ndarray:
    return np.array([float(own(run)[site]["bias"][0, 0]) for site in SIZES])


def by_dummies(data: FederatedData, ridge: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Solve min Σ (y - x w - b - a_c)² + ridge/2 Σ a_c²; return w, b + a_c and b."""
    x, y = data.x.double().numpy(), data.y.double().numpy()
    dummies = np.eye(data.n_sites)[data.site_of_row.numpy()]
    design = np.hstack([x, np.ones((len(x), 1)), dummies])
    penalty = np.diag([0.0] * 5 + [ridge / 2] * data.n_sites)
    found = np.linalg.lstsq(design.T @ design + penalty, design.T @ y, rcond=None)[0]
    return found[:4], found[4] + found[5:], found[4]


@pytest.mark.parametrize(
    ("algorithm", "ridge"),
    [
        (FedAvg(local_steps=1, safety=1.0), 0.0),
        (FedAvg(local_steps=1, safety=1.0), 40.0),
        (FedIterHT(density=1.0, **STEP), 0.0),
        (FedHT(density=1.0, **STEP), 40.0),
        (Tuning(**STEP), 40.0),
        (FedProx(**STEP), 0.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_at_rest_it_is_least_squares_with_dummies_of_sites_or_a_ridge_on_them(algorithm, ridge):
    run = trained(algorithm, problem(ridge), rounds=70)
    weight, level, middle = by_dummies(drawn(), ridge)
    assert run.params["weight"][0, 0].numpy() == pytest.approx(weight, abs=2e-3)
    assert intercepts(run) == pytest.approx(level, abs=2e-3)
    if ridge:
        assert float(run.params["bias"][0, 0]) == pytest.approx(middle, abs=2e-3)


def test_with_equal_steps_the_common_intercept_is_the_mean_of_the_sites_own_by_rows():
    run = trained(FedAvg(learning_rate=0.05, local_steps=3), problem(), rounds=6)
    mean = np.average(intercepts(run), weights=list(SIZES.values()))
    assert float(run.params["bias"][0, 0]) == pytest.approx(mean, abs=1e-6)
    assert np.ptp(intercepts(run)) > 1.0


def test_a_strong_ridge_gives_the_fit_without():
    algorithm = FedAvg(local_steps=1, safety=1.0)
    own, plain = (trained(algorithm, problem(ridge), rounds=60) for ridge in (1e9, None))
    assert largest_gap(own.params, plain.params) < 1e-3
    assert intercepts(own) == pytest.approx(float(plain.params["bias"][0, 0]), abs=1e-3)
    assert plain.own == {}


@pytest.mark.parametrize("channel", [Lossless(), TopM(2)], ids=["dense", "feedback"])
@pytest.mark.parametrize(
    "algorithm",
    [EFLoPS(density=0.5, local_steps=2), FedAvg(), FedIterHT(density=0.5)],
    ids=lambda a: type(a).__name__,
)
def test_engines_agree_and_no_message_is_longer_or_holds_the_sites_own(
    algorithm, channel, monkeypatch
):
    sent: list[dict[str, torch.Tensor]] = []
    encode = messages.encode

    def recorded(tree: dict[str, torch.Tensor], *rest: Any) -> bytes:
        sent.append(tree)
        return encode(tree, *rest)

    monkeypatch.setattr(messages, "encode", recorded)
    knobs: dict[str, Any] = {"rounds": 4, "channel": channel, "seeds": (0, 1)}
    looped = trained(algorithm, problem(3.0), engine="loop", **knobs)
    held = [leaf for tree in sent for leaf in tree.values()]
    names = {name for tree in sent for name in tree}
    sent.clear()
    plain = trained(algorithm, problem(None), engine="loop", **knobs)
    assert names == {name for tree in sent for name in tree}
    batched = trained(algorithm, problem(3.0), **knobs)
    assert largest_gap((looped.params, looped.own), (batched.params, batched.own)) < 1e-8
    for run in (looped, batched):
        assert run.bytes_up.tolist() == plain.bytes_up.tolist()
        if not isinstance(algorithm, EFLoPS):  # a multiplier that stays at 0 costs nothing
            assert run.bytes_down.tolist() == plain.bytes_down.tolist()
    kept = torch.cat([leaf.flatten() for site in own(looped).values() for leaf in site.values()])
    told = torch.cat([leaf.double().flatten() for leaf in held])
    assert not torch.isclose(told.unsqueeze(1), kept, rtol=0.0, atol=1e-12).any()


@pytest.mark.slow
def test_the_compiled_work_is_the_same():
    algorithm = EFLoPS(density=0.5, local_steps=2)
    knobs: dict[str, Any] = {"rounds": 4, "channel": TopM(2), "seeds": (0, 1)}
    plain, fused = (
        trained(algorithm, problem(3.0), **{**knobs, "compile": compiled})
        for compiled in (False, True)
    )
    assert largest_gap((plain.params, plain.own), (fused.params, fused.own)) < 1e-8
    assert torch.equal(plain.bytes_up, fused.bytes_up)


def test_a_site_goes_back_to_its_own_before_an_upload_that_did_not_count():
    never = trained(
        FedAvg(), problem(), rounds=3, delivery=lambda _tick, _seed, site: (site != 1).long()
    )
    assert torch.equal(own(never)["b"]["bias"], never.params["bias"])
    assert not torch.equal(own(never)["a"]["bias"], never.params["bias"])


def test_a_resumed_run_is_bit_equal(tmp_path):
    path = StageCheckpoint(tmp_path / "state.safetensors", every=0.0)
    knobs: dict[str, Any] = {"participation": 0.7, "evaluate_every": 2, "rounds": 6}

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    algorithm = EFLoPS(density=0.5, batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        trained(algorithm, problem(2.0), checkpoint=path, callback=interrupt, **knobs)
    resumed = trained(algorithm, problem(2.0), checkpoint=path, **knobs)
    straight = trained(algorithm, problem(2.0), **knobs)
    assert bit_equal((resumed.params, resumed.own), (straight.params, straight.own))
    assert [r["loss"] for r in resumed.history if "loss" in r] == [
        r["loss"] for r in straight.history if "loss" in r
    ]


@pytest.mark.parametrize(
    ("algorithm", "more", "what"),
    [
        (Scaffold(), {}, "Scaffold gives sites no values of their own"),
        (EFLoPSPaper(density=0.5), {}, "EFLoPSPaper gives sites no values"),
        (FedAvg(), {"early_stop": EarlyStop(drawn())}, "early stopping goes back"),
        (
            FedAvg(learning_rate=0.1),
            {"privacy": Privacy(clip=1.0, noise=1.0, delta=1e-5), "weights": "uniform"},
            "follow their rows without noise",
        ),
    ],
)
def test_training_refuses_what_cannot_keep_them(algorithm, more, what):
    with pytest.raises(ValueError, match=what):
        trained(algorithm, problem(), rounds=1, **more)


def test_only_leaves_without_gates_can_be_the_sites_own():
    with pytest.raises(ValueError, match="'weight' of their own; choose from bias"):
        problem(None).with_private({"weight": 0.0})
    with pytest.raises(ValueError, match="'slope' of their own"):
        problem(None).with_private({"slope": 0.0})
    with pytest.raises(ValueError, match="give 0 or more"):
        problem(None).with_private({"bias": -1.0})


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"method": "oneshot"}, "OneShot gives sites no values of their own"),
        ({"method": "central"}, "central has no sites that train together"),
        ({"messages": "paper", "method": "eflops"}, "EFLoPSPaper gives sites no values"),
        ({"early_stop": 3}, "leave it out, or site_intercepts"),
        ({"site_ridge": 2.0}, "goes with site_intercepts='random' only"),
        ({"site_intercepts": "fixed"}, "'fixed' is unknown"),
    ],
)
def test_a_fit_refuses_in_one_line_what_has_no_intercepts_of_sites(settings, what):
    with pytest.raises(ValueError, match=what):
        fedsift.fit(drawn(), **{**QUICK, "site_intercepts": "own", **settings})


def test_survival_has_a_baseline_hazard_in_place_of_an_intercept():
    data = drawn()
    times = FederatedData.from_arrays(
        data.x, data.y > 0, time=data.y.abs() + 1.0, sites=list(np.repeat(list("abc"), 25))
    )
    with pytest.raises(ValueError, match="baseline hazard of each site takes the place"):
        fedsift.fit(times, **{**QUICK, "site_intercepts": "own"})


def test_a_run_predicts_with_the_sites_own_and_exports_the_common_one(tmp_path, capsys):
    data, path = drawn(), tmp_path / "run"
    run = fedsift.fit(data, site_intercepts="random", out=path, **{**QUICK, "splits": 1})
    loaded = load_run(path)
    assert list(loaded.own) == list(SIZES)
    assert bit_equal(dict(loaded.own), dict(run.own))
    rows = data.site("c")
    plain, own = (np.array(run.predict(rows.x, rows.features, site=s)) for s in (None, "c"))
    gap = float(run.own["c"][0] - run.params["bias"][0]) * run.standardiser.target_scale
    assert own - plain == pytest.approx(np.full(len(plain), gap), abs=1e-4)
    truth = rows.y.numpy()
    assert np.abs(own - truth).mean() < np.abs(plain - truth).mean()
    with pytest.raises(ValueError, match="had no part in the fit"):
        run.predict(rows.x, rows.features, site="d")
    export_run(loaded, str(tmp_path / "model.safetensors"), overwrite=False)
    own_texts = [repr(float(value)) for value in run.own["c"]]
    shared = [file for file in path.iterdir() if file.is_file()]
    for file in [*shared, tmp_path / "model.safetensors"]:
        assert not any(text.encode() in file.read_bytes() for text in own_texts), file
    kept = sorted((path / "sites").iterdir())
    assert [file.name for file in kept] == ["1-a.json", "2-b.json", "3-c.json"]
    assert json.loads(kept[2].read_text())["site"] == "c"
    assert read_facts(path)["settings"]["site_intercepts"] == "random"

    table = tmp_path / "new.csv"
    table.write_text("id,g0,g1,g2,g3\n1,0,0,0,0\n")
    assert main(["predict", str(path), str(table), "--site", "c"]) == 0
    with_own = capsys.readouterr().out
    assert main(["predict", str(path), str(table)]) == 0
    assert with_own != capsys.readouterr().out
    assert main(["predict", str(path), str(table), "--site", "nowhere"]) == 2
    assert "had no part in the fit" in capsys.readouterr().err

    again = fedsift.fit(data, out=path, overwrite=True, **QUICK)
    assert not again.own
    assert not any((path / "sites").glob("*"))
    with pytest.raises(ValueError, match="one intercept for all sites"):
        again.predict(rows.x, rows.features, site="c")


def test_a_finished_fit_is_read_with_each_sites_own(tmp_path):
    """Whatever the order of the sites' names, and where sites on other machines find theirs."""
    data = FederatedData.from_arrays(
        drawn().x.numpy(), drawn().y.numpy(), sites=["z"] * 20 + ["b"] * 30 + ["m"] * 25
    )
    settings = Settings(**{k: v for k, v in QUICK.items() if k != "beside"}, site_intercepts="own")
    fit = fit_case(Case("all rows", data), settings, Standardiser.fit(data, "feature"))
    file = tmp_path / "fit.safetensors"
    write_fit(file, fit, "request")
    read = read_fit(file, "request").own
    assert not isinstance(read, OwnThere)
    assert not isinstance(fit.own, OwnThere)
    assert list(read) == list(fit.own) != sorted(read)
    assert bit_equal(dict(read), dict(fit.own))
    there = OwnThere({"z": {"work": "1", "data": ["2"], "seeds": [0, 1], "last": [3, -1]}})
    write_fit(file, replace(fit, own=there), "request")
    assert read_fit(file, "request").own == there


def test_rows_held_out_are_scored_with_the_intercept_of_their_site():
    plain, own = (
        fedsift.fit(drawn(), site_intercepts=kind, **{**QUICK, "splits": 2})
        for kind in (None, "own")
    )
    assert own.results["test_r2"]["mean"] > plain.results["test_r2"]["mean"] + 0.1
    said = "Each site has an intercept of its own"
    assert any(text.startswith(said) for text in limits(own))
    assert not any(text.startswith(said) for text in limits(plain))
    sites = own.facts["held_out"]["by_site"]
    assert all(sites[s]["rmse"] < plain.facts["held_out"]["by_site"][s]["rmse"] for s in sites)


def test_features_are_found_that_levels_of_sites_would_hide():
    """Eight sites whose levels, and most features with them, differ by more than features tell."""
    draw = np.random.default_rng(0)
    sites = np.repeat(np.arange(8), 10)
    level = 3.0 * draw.normal(size=8)
    x = draw.normal(size=(80, 40))
    x[:, 3:] += draw.normal(size=37) * level[sites][:, None] / 3.0
    y = x[:, 0] - x[:, 1] + x[:, 2] + level[sites] + 0.5 * draw.normal(size=80)
    data = FederatedData.from_arrays(
        x, y, sites=[f"s{c}" for c in sites], features=[f"g{i}" for i in range(40)]
    )
    asked: dict[str, Any] = {**QUICK, "method": "eflops", "features": 3, "rounds": 60}
    found = {
        kind: {f.name for f in fedsift.fit(data, site_intercepts=kind, **asked).features}
        for kind in (None, "own", "random")
    }
    true = {"g0", "g1", "g2"}
    assert found["own"] == found["random"] == true
    assert len(found[None] & true) < 3
