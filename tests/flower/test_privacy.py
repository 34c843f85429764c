"""Privacy at real sites: the noise is the site's, its budget holds whatever a server asks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift import fit
from fedsift.data import DataError, FederatedData
from fedsift.deployment.at_site import limit_of, node
from fedsift.deployment.plan import Plan
from fedsift.engines.flower import Policy, SitesError
from fedsift.engines.flower.limits import Limit
from fedsift.engines.flower.memory import Memory
from fedsift.engines.flower.node import Node
from fedsift.engines.flower.parts import Part, PartError
from fedsift.engines.flower.site import Site
from fedsift.linear_problems import linear_problem, problem_of
from fedsift.privacy import Level, Privacy
from fedsift.settings import Settings
from fedsift.training import train
from tests.flower.fake import FakeGrid, connected, nodes_of
from tests.laws import largest_gap, rows
from tests.private import METHODS, PAIRED

SIZES = (9, 5, 14)
DELTA = 1e-5
LOUD = Privacy(clip=1e4, noise=1e-12, delta=DELTA)
WHOLE = Privacy(clip=1.0, noise=30.0, delta=DELTA)


def limited(
    data: FederatedData,
    folder: Path,
    *,
    level: Level = "site",
    epsilon: float | None = None,
    **knobs: Any,
) -> dict[int, Node]:
    """Return nodes whose sites have a limit."""
    found = {}
    for number, there in nodes_of(data, folder, **knobs).items():
        sources = {}
        for name, source in there.sources.items():
            limit = Limit(level, source.folder / "privacy.jsonl", epsilon, DELTA)
            sources[name] = replace(source, limit=limit)
        found[number] = replace(there, sources=sources)
    return found


def ledger(folder: Path, site: str) -> float:
    lines = (folder / site / "privacy.jsonl").read_text().splitlines()
    return float(sum(json.loads(line)["told"] for line in lines))


@pytest.mark.parametrize("level", ["site", "sample"])
@pytest.mark.parametrize(("method", "channel"), PAIRED)
def test_with_hardly_any_noise_it_is_the_simulators_run(method, channel, level, tmp_path):
    data = rows("binary", sizes=SIZES)
    remote = connected(data, FakeGrid(limited(data, tmp_path, level=level, per_node=2)))
    knobs: Any = {
        "seeds": (3, 4),
        "rounds": 3,
        "participation": 2,
        "weights": "uniform",
        "channel": channel,
        "privacy": replace(LOUD, level=level),
    }
    far = train(linear_problem(remote), remote, METHODS[method], **knobs)
    near = train(linear_problem(data), data, METHODS[method], compile=False, **knobs)
    assert largest_gap(far.carried.server, near.carried.server) <= 1e-5
    assert torch.equal(far.spent, near.spent)
    assert far.history[-1]["epsilon"] == near.history[-1]["epsilon"]


def test_a_private_fit_at_sites(tmp_path):
    """The ledger of each site holds what the run says it spent, and every message has new noise."""
    data = rows("binary", sizes=SIZES)
    remote = connected(data, FakeGrid(limited(data, tmp_path, epsilon=2.0)))
    promise = Privacy(clip=1.0, epsilon=2.0, delta=DELTA)
    knobs: Any = {
        "features": 3, "seeds": 2, "splits": 0, "rounds": 3, "tuning_rounds": 4,
        "learning_rate": 0.1, "local_steps": 1, "standardise": "row", "weights": "uniform",
        "beside": (),
    }  # fmt: skip
    run = fit(remote, privacy=promise, out=tmp_path / "run", **knobs)
    assert run.results["epsilon"] == pytest.approx(2.0, rel=1e-6)
    facts = run.facts["privacy"]
    for site in data.sites:
        assert ledger(tmp_path, site) == pytest.approx(facts["releases"] * 4 / facts["noise"] ** 2)
    assert set(run.facts["data"]["sites"].values()) == {None}
    again = connected(
        data, FakeGrid(limited(data, tmp_path, epsilon=2.0)), run="again", policy=HASTY
    )
    with pytest.raises(SitesError, match="its budget of epsilon 2 would be exceeded"):
        fit(again, privacy=promise, **knobs)


HASTY = Policy(deadline=0.2, patience=0.2, poll=0.0)


def test_the_server_hears_of_no_rows_but_their_number_at_most(tmp_path):
    data = rows("binary", sizes=SIZES)
    worlds: dict[Level, tuple[int, ...]] = {"site": (1, 1, 1), "sample": SIZES}
    for level, sizes in worlds.items():
        remote = connected(data, FakeGrid(limited(data, tmp_path / level, level=level)))
        assert remote.sizes == sizes
        assert not remote.y.any()


@pytest.mark.parametrize(
    ("privacy", "text"),
    [
        (None, "its rows are private, and the run is not"),
        (Privacy(clip=1.0, noise=30.0, delta=DELTA, level="sample"), "all of its rows together"),
    ],
)
def test_a_run_that_protects_less_is_not_answered(privacy, text, tmp_path):
    data = rows("binary", sizes=SIZES)
    remote = connected(data, FakeGrid(limited(data, tmp_path)), policy=HASTY)
    with pytest.raises(SitesError, match=f"{text}|answers no question of the kind 'evaluate'"):
        train(
            linear_problem(remote), remote, METHODS["fedavg"], rounds=1, weights="uniform",
            privacy=privacy,
        )  # fmt: skip
    told = tmp_path / data.sites[0] / "privacy.jsonl"
    assert not told.exists() or ledger(tmp_path, data.sites[0]) == 0.0


@pytest.mark.parametrize("kind", ["strata", "sums", "margin", "evaluate", "nonsense"])
def test_other_questions_are_not_answered(kind, tmp_path):
    data = rows("binary", sizes=(9,))
    site = Site(data, Memory(tmp_path), problem_of, limit=Limit("sample", tmp_path / "told"))
    answer = site.answer(Part({"kind": kind, "data": []}))
    assert f"answers no question of the kind '{kind}'" in answer.facts["error"]


def asked(data: FederatedData, folder: Path, **limit: Any) -> tuple[Site, list[Part]]:
    """Return a site that was part of a run, and the requests it got."""
    requests: list[Part] = []
    real = Site.answer

    def spied(self: Site, part: Part) -> Part:
        if part.facts["kind"] == "exchange":
            requests.append(part)
        return real(self, part)

    grid = FakeGrid(limited(data, folder, **limit))
    remote = connected(data, grid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "answer", spied)
        train(
            linear_problem(remote), remote, METHODS["fedavg"], rounds=2, seeds=(0, 1),
            weights="uniform", privacy=WHOLE,
        )  # fmt: skip
    source = next(iter(grid.nodes.values())).sources[data.sites[0]]
    memory = Memory.of(source.folder, "test")
    return Site(data.site(data.sites[0]), memory, problem_of, limit=source.limit), requests


def test_the_same_question_gets_the_same_answer_and_another_new_noise(tmp_path):
    data = rows("binary", sizes=(9,))
    site, requests = asked(data, tmp_path)
    before = ledger(tmp_path, site.name)
    first, second = (site.answer(requests[-1]) for _ in range(2))
    assert first.blobs == second.blobs
    assert ledger(tmp_path, site.name) == before
    other = Part({**requests[-1].facts, "life": 7}, requests[-1].blobs)
    third = site.answer(other)
    assert third.blobs[0] != first.blobs[0]
    assert ledger(tmp_path, site.name) == pytest.approx(before + 2 * 4 / 30.0**2)


def test_a_seed_twice_would_have_the_same_noise_and_is_refused(tmp_path):
    data = rows("binary", sizes=(9,))
    site, requests = asked(data, tmp_path)
    facts, blobs = requests[-1]
    twice = {"seeds": [0, 0], "last": [facts["last"][0]] * 2, "base": [facts["base"][0]] * 2}
    before = ledger(tmp_path, site.name)
    answer = site.answer(Part({**facts, **twice}, (blobs[0], blobs[0])))
    assert answer.facts["error"] == "a seed is named twice"
    assert ledger(tmp_path, site.name) == before
    assert len(site.answer(requests[-1]).blobs) == 2


def test_what_is_refused_spends_nothing(tmp_path):
    limit = Limit("site", tmp_path / "told", 1.0, DELTA)
    limit.charge(WHOLE, 3)
    with pytest.raises(PartError, match="would be exceeded"):
        limit.charge(WHOLE, 10**6)
    limit.charge(WHOLE, 3)
    assert limit._told() == pytest.approx(6 * 4 / 900)


def test_a_spoiled_ledger_ends_all_answers(tmp_path):
    limit = Limit("site", tmp_path / "told", 1.0, DELTA)
    for content, text in (
        ("{", "cannot be read"),
        ('{"version": 9, "told": 0}\n', "another release"),
    ):
        limit.file.write_text(content)
        with pytest.raises(PartError, match=text):
            limit.charge(WHOLE, 1)


# --- what a site is told in its own configuration

SETTINGS = Settings(
    features=3, seeds=1, splits=0, learning_rate=0.1, local_steps=1, standardise="row",
    weights="uniform", privacy=replace(WHOLE, level="sample"),
)  # fmt: skip


def plan(**more: Any) -> Plan:
    return Plan(settings=SETTINGS.model_copy(update=more), sites=("a", "b"), target="y")


def test_a_plan_keeps_its_privacy_in_the_configuration_of_a_run():
    assert Plan.from_config(plan().to_config()) == plan()
    open_plan = plan(privacy=None)
    assert Plan.from_config(open_plan.to_config()) == open_plan


@pytest.mark.parametrize(
    ("here", "private", "level", "epsilon"),
    [
        ({}, False, None, None),
        ({}, True, "sample", None),
        ({"epsilon": "3", "delta": 1e-6}, True, "site", 3.0),
        ({"epsilon": 3, "delta": "1e-6", "privacy-level": "sample"}, True, "sample", 3.0),
        ({"epsilon": 3, "delta": "1e-6", "privacy-level": "sample"}, False, "sample", 3.0),
    ],
)
def test_a_site_keeps_to_its_own_limit_or_to_the_plan(here, private, level, epsilon, tmp_path):
    found = limit_of(here, plan() if private else plan(privacy=None), tmp_path)
    if level is None:
        assert found is None
    else:
        assert found is not None
        assert (found.level, found.epsilon) == (level, epsilon)


@pytest.mark.parametrize(
    "here",
    [
        {"epsilon": 3},
        {"delta": 1},
        {"epsilon": 0, "delta": 1e-5},
        {"epsilon": 1, "delta": 1e-5, "privacy-level": "row"},
    ],
)
def test_a_configuration_that_is_not_complete_is_refused(here, tmp_path):
    with pytest.raises(DataError, match="needs epsilon and delta, and a known level"):
        node({"data": str(tmp_path / "a.csv"), **here}, plan().to_config())


def test_a_protected_site_does_not_decline_for_its_few_rows(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("x1,x2,y\n1,2,p\n3,1,q\n")
    config = plan().to_config()
    declined = node({"data": str(file)}, config).sources["a"].describe({})
    assert "declines" in declined
    here = {"data": str(file), "epsilon": 1, "delta": 1e-5}
    assert "declines" not in node(here, config).sources["a"].describe({})
