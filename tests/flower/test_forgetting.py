"""Forgetting at sites on real machines: the simulator's model and bytes, and who is needed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

import fedsift
from fedsift import trees
from fedsift.algorithms import FedAvg, StoredFedAvg
from fedsift.data import DataError, FederatedData, RemoteData, of_role, split, with_roles
from fedsift.data.federated import FORGET, HELD_OUT, RETAIN
from fedsift.deployment.at_site import node
from fedsift.deployment.demo import write_sites
from fedsift.deployment.plan import Plan
from fedsift.deployment.serving import serve
from fedsift.engines.base import Job
from fedsift.engines.flower import Policy, SitesError
from fedsift.engines.flower.site import folder_beside
from fedsift.engines.flower.wire import unpack
from fedsift.forgetting import forgetting, gated, remade
from fedsift.linear_problems import linear_problem, problem_of
from fedsift.outcomes import make_outcome
from fedsift.problems import Batch
from fedsift.settings import Settings
from fedsift.training import Training, train
from fedsift.unlearning.methods import Task, Unlearned, unlearn
from tests.flower.fake import FakeGrid, arrives, connected, nodes_of
from tests.laws import largest_gap, rows

SIZES = (9, 5, 14)
HASTY = Policy(deadline=0.05, patience=0.3, poll=0.0)
# Which rows: of sites, to forget and held out.
SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a site": ({"hospital c": None}, {}),
    "a site with rows held out": (
        {"hospital c": None},
        {"hospital c": [f"hospital c:{n}" for n in (2, 5, 9, 11)]},
    ),
    "ids at two sites": (
        {"hospital a": ["hospital a:1", "hospital a:7"], "hospital c": ["hospital c:3"]},
        {"hospital a": ["hospital a:2"], "hospital b": ["hospital b:4"]},
    ),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "fumegs": {"rounds": 6, "local_steps": 2},
    "retrain": {},
    "continue": {"rounds": 3},
    "federaser": {"every": 2},
    "ascent": {"rounds": 2, "local_steps": 3, "recovery": 2},
    "mgda": {"rounds": 3},
}


def trained(data: FederatedData) -> Training:
    algorithm = StoredFedAvg(rounds=4, learning_rate=0.3, batch_size=4)
    return train(linear_problem(data), data, algorithm, evaluate_every=100, compile=False)


def task_of(run: Training, scenario: str) -> Task:
    data = run.job.data
    return Task(
        run.job.problem,
        make_outcome(data.outcome, len(data.classes)),
        with_roles(data, *SCENARIOS[scenario]),
        trees.unstack(run.params, 0),
        FedAvg(rounds=4, learning_rate=0.3, batch_size=4),
        norms=tuple(record["update_norm"] for record in run.history),
    )


def both(folder: Path, scenario: str, outcome: str = "multiclass") -> tuple[Task, Task, FakeGrid]:
    """Return the task far away and here, and the grid of the former."""
    here = rows(outcome, sizes=SIZES)
    grid = FakeGrid(nodes_of(here, folder))
    far = task_of(trained(connected(here, grid, policy=HASTY)), scenario)
    return far, task_of(trained(here), scenario), grid


def assert_same(far: Unlearned, near: Unlearned) -> None:
    assert largest_gap(far.params, near.params) <= 1e-5
    for name in ("stop_reason", "rounds", "bytes_up", "bytes_down", "local_steps"):
        assert getattr(far, name) == getattr(near, name)
    for mine, theirs in zip(far.history, near.history, strict=True):
        assert "remarks" not in mine
        assert mine["sites"] == theirs["sites"]
        for name in theirs.keys() & {"loss", "forget_loss", "retain_rise", "membership_auc"}:
            assert mine[name] == pytest.approx(theirs[name], abs=1e-5)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("method", OPTIONS)
def test_forgetting_is_the_simulators(method: str, scenario: str, tmp_path: Path) -> None:
    far, near, _ = both(tmp_path, scenario)
    options = OPTIONS[method]
    assert_same(unlearn(far, method, **options), unlearn(near, method, **options))


@pytest.mark.parametrize("outcome", ["binary", "multiclass"])
def test_a_temperature_is_asked_of_the_sites_that_forget(outcome: str, tmp_path: Path) -> None:
    """One number of each, and the rest as with every loss."""
    far, near, grid = both(tmp_path, "ids at two sites", outcome)
    sharp = {name: 8.0 * value for name, value in near.params.items()}
    found = [
        unlearn(replace(task, params=sharp), "fumegs", loss="entropy", rounds=3)
        for task in (far, near)
    ]
    assert_same(*found)
    cold = unlearn(replace(near, params=sharp), "fumegs", loss="entropy", rounds=3, temperature=1.0)
    assert largest_gap(cold.params, found[1].params) > 1e-3
    said = [
        part
        for message in grid.got
        for several in unpack(message.content).values()
        for part in several
        if part.facts.get("kind") == "margin"
    ]
    assert len(said) == 2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_roster_knows_every_roles_rows(scenario: str, tmp_path: Path) -> None:
    """Populations, parts and splits are those of the rows, as far as their numbers go."""
    far, near, _ = both(tmp_path, scenario)

    def job(task: Task, data: FederatedData) -> Job:
        run = train(task.problem, data, FedAvg(rounds=1, learning_rate=0.1), compile=False)
        return run.job

    mine, theirs = (job(task, task.data).populations for task in (far, near))
    assert mine.keys() == theirs.keys() == {"all", "retain", "forget", "held_out"}
    for group, weight in theirs.items():
        assert torch.allclose(mine[group], weight)
    for role in (RETAIN, FORGET, HELD_OUT):
        if bool((near.role == role).any()):
            a, b = of_role(far.data, role), of_role(near.data, role)
            assert (a.sites, a.sizes) == (b.sites, b.sizes)
            assert torch.equal(a.y.bincount(), b.y.bincount())
        else:
            with pytest.raises(DataError, match="no row is"):
                of_role(far.data, role)
    for a, b in zip(split(far.data, 0), split(near.data, 0), strict=True):
        assert (a.sites, a.sizes) == (b.sites, b.sizes)
        assert a.role is not None
        assert b.role is not None
        assert torch.equal(a.role.bincount(), b.role.bincount())


def test_no_site_hears_what_is_named_of_another(tmp_path: Path) -> None:
    far, _, grid = both(tmp_path, "ids at two sites")
    unlearn(far, "fumegs", rounds=1)
    told = set()
    for message in grid.sent:
        for site, parts in unpack(message.content).items():
            said = b"".join(blob for part in parts for blob in part.blobs)
            for other in {"hospital a", "hospital b", "hospital c"} - {site}:
                assert other.encode() not in said
            told |= {site} if b"hospital a:7" in said else set()
    assert told == {"hospital a"}


def test_names_that_are_not_there_are_refused_at_once(tmp_path: Path) -> None:
    here = rows("binary", sizes=SIZES)
    patient = Policy(patience=600.0, poll=0.0)
    remote = connected(here, FakeGrid(nodes_of(here, tmp_path)), policy=patient)
    for data in (here, remote):
        with pytest.raises(DataError, match=r"'hospital b' has no row with the 1 id 'nobody'"):
            with_roles(data, {"hospital b": ["hospital b:1", "nobody"]})
        with pytest.raises(DataError, match="no site is called 'hospital d'"):
            with_roles(data, {"hospital d": None})


def test_without_the_site_that_forgets_fumegs_waits_and_retraining_goes_on(tmp_path: Path) -> None:
    """Also where the quorum is there without it."""
    far, near, grid = both(tmp_path, "a site")
    assert isinstance(far.data, RemoteData)
    link: Any = far.data.way
    grid.alive.discard(link.nodes.node_of["hospital c"])
    waited_for = r"no site with rows to forget answered.*'hospital c'.*'retrain'"
    for quorum, reason in ((1.0, "fewer than 3 sites answered.*'hospital c'"), (2, waited_for)):
        link.policy = replace(HASTY, quorum=quorum)
        with pytest.raises(SitesError, match=reason):
            unlearn(far, "fumegs", rounds=3)
    link.policy = HASTY
    assert_same(unlearn(far, "retrain"), unlearn(near, "retrain"))


def test_a_report_of_a_model_whose_rows_stay_at_their_sites(tmp_path: Path) -> None:
    here = rows("multiclass", sizes=SIZES)
    remote = connected(here, FakeGrid(nodes_of(here, tmp_path)))
    far, near = (
        fedsift.forget(trained(data), sites=["hospital c"], target=0.3, rounds=8)
        for data in (remote, here)
    )
    assert far.params is not None
    assert near.params is not None
    assert largest_gap(far.params, near.params) <= 1e-5
    assert (far.status, far.rounds, far.bytes_total) == (near.status, near.rounds, near.bytes_total)
    for when, figures in near.measures.items():
        assert far.measures[when] == pytest.approx(figures, abs=1e-5)
    with pytest.raises(DataError, match="site by site"):
        fedsift.forget(trained(remote), rows=["hospital c:1"], target=0.3)


def test_a_run_in_a_folder_forgets_sites_elsewhere(tmp_path: Path) -> None:
    """One after the other: the second request is worked on without the first one's rows."""
    here = rows("binary", sizes=(20, 16, 18, 20))
    remote = connected(here, FakeGrid(nodes_of(here, tmp_path / "sites")))
    knobs: Any = {"features": 3, "seeds": 2, "splits": 2, "rounds": 3, "tuning_rounds": 3}
    runs = [
        (fedsift.fit(data, out=tmp_path / name, beside=(), **knobs), data)
        for name, data in (("far", remote), ("near", here))
    ]
    for site, method in (("hospital c", "fumegs"), ("hospital b", "retrain")):
        far, near = (
            fedsift.forget(str(run.path), sites=[site], data=data, method=method)
            for run, data in runs
        )
        assert (far.status, far.rounds) == (near.status, near.rounds)
        assert far.bytes_total == near.bytes_total
        for when, figures in near.measures.items():
            assert far.measures[when] == pytest.approx(figures, abs=1e-5)


def test_a_recipe_makes_the_problem_again() -> None:
    data = rows("multiclass", sizes=SIZES)
    outcome = make_outcome("multiclass", 3)
    problem = forgetting(gated(linear_problem(data)).with_ridge(0.1), outcome, "mixed", 2.5)
    assert problem.recipe is not None
    again = remade(problem.recipe, problem_of)
    params = problem.init(torch.tensor(1))
    assert again.recipe == problem.recipe
    assert largest_gap(again.init(torch.tensor(1)), params) == 0.0
    batch = Batch(data.x, data.y, data.weight, torch.tensor(0))
    for name, operator in problem.operators.items():
        assert largest_gap(again.operators[name](params, batch), operator(params, batch)) == 0.0
    assert replace(problem, recipe=None).with_ridge(1.0).recipe is None


class StoppedError(RuntimeError):
    pass


def test_a_deployment_leaves_nothing_at_its_sites_when_it_is_done(tmp_path: Path) -> None:
    """A server that was killed finds what they kept; at the end it is gone, and the files stay."""
    files = write_sites(rows("binary", sizes=SIZES), tmp_path / "sites")
    settings = Settings(features=3, seeds=1, splits=0, rounds=2, tuning_rounds=1)
    names = tuple(file.stem for file in files)
    out = str(tmp_path / "run")
    plan = Plan(settings=settings, sites=names, target="target", id_column="id", out=out)
    config = plan.to_config()
    grid = FakeGrid({n: node({"data": str(f)}, config) for n, f in enumerate(files, start=11)})

    def kill(_node: int, _number: int, answer: Message) -> list[tuple[int, Message]]:
        if any(p.facts.get("tick") == 2 for ps in unpack(answer.content).values() for p in ps):
            raise StoppedError
        return [(0, answer)]

    grid.fault = kill
    with pytest.raises(StoppedError):
        serve(grid, config)
    assert all(any(folder_beside(file).iterdir()) for file in files)
    grid.fault = arrives
    serve(grid, config)
    assert (tmp_path / "run" / "run.json").exists()
    assert set((tmp_path / "sites").iterdir()) == set(files)


def test_sites_remove_what_they_kept_when_a_run_has_ended(tmp_path: Path) -> None:
    """And keep that of another run, and of a run whose end they did not hear."""
    here = rows("binary", sizes=SIZES)
    grid = FakeGrid(nodes_of(here, tmp_path))
    other = connected(here, grid, run="unfinished", policy=HASTY)
    trained(other)
    remote = connected(here, grid, policy=HASTY)
    trained(remote)
    link: Any = remote.way
    grid.alive.discard(link.nodes.node_of["hospital b"])
    remote.end()
    kept = {site: {path.name for path in (tmp_path / site).iterdir()} for site in here.sites}
    assert kept == {
        "hospital a": {"unfinished"},
        "hospital b": {"unfinished", "test"},
        "hospital c": {"unfinished"},
    }
    other.end()
    assert {path.name for path in tmp_path.iterdir()} == {"hospital b"}
