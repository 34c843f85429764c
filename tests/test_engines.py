"""One result, whatever engine: the solution to rounding, the bytes exactly."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsift import models, outcomes, trees
from fedsift.algorithms import EFLoPS, FedAvg, FedIterHT
from fedsift.data import FederatedData
from fedsift.engines import ENGINES, make_engine, sampling
from fedsift.engines.base import Carried, Job, begin
from fedsift.engines.envelopes import Envelope, Inbox, schema_of
from fedsift.engines.grid import lay_out
from fedsift.engines.loop import Loop
from fedsift.engines.vectorized import Vectorized
from fedsift.problems import supervised
from fedsift.training import train
from tests.laws import (
    ALGORITHMS,
    CHANNELS,
    KEPT,
    every_algorithm,
    job,
    largest_gap,
    linear_problem,
    proceed,
    rows,
)

OUTCOMES = ("regression", "binary", "multiclass")
ROWS_OF_TEN = rows(sizes=(1,) * 10, d=3)


def both(work: Job, rounds: int, participation: float, limit: float) -> None:
    slow, bytes_slow = proceed(work, Loop(), rounds, participation)
    fast, bytes_fast = proceed(work, Vectorized(), rounds, participation)
    assert_same(work, slow, fast, limit)
    assert torch.equal(bytes_slow, bytes_fast)


def assert_same(work: Job, a: Carried, b: Carried, limit: float) -> None:
    scale = max(1.0, size_of(a.server))
    assert largest_gap(a.server, b.server) <= limit * scale
    assert largest_gap(a.broadcast.replica, b.broadcast.replica) <= limit * scale
    for s in range(len(work.seeds)):
        one, other = (
            work.algorithm.solution(work.problem, trees.unstack(x.server, s)) for x in (a, b)
        )
        assert largest_gap(one, other) <= limit * max(1.0, size_of(one))
    assert torch.equal(a.ledger, b.ledger)
    assert torch.equal(a.seen, b.seen)
    assert a.tick == b.tick


def size_of(structure: object) -> float:
    floats = (leaf for leaf in trees.leaves(structure) if leaf.is_floating_point() and leaf.numel())
    return max(float(leaf.abs().max()) for leaf in floats)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_engines_agree(name: str, channel: str) -> None:
    """Uneven sites down to one row, some absent, several seeds, a target of each kind in turn."""
    place = ALGORITHMS.index(name) + list(CHANNELS).index(channel)
    data = rows(OUTCOMES[place % 3])
    batch_size = (None, 4)[place % 2]
    # Later, less than m gates of a thresholded average still move, and a channel that sends m of
    # them chooses among differences of one rounding.
    rounds = 6 if name == "fediterht" and channel != "dense" else 15
    algorithm = every_algorithm(0.25, rounds=rounds, batch_size=batch_size)[name]
    work = job(linear_problem(data), data, algorithm, CHANNELS[channel], seeds=(0, 1))
    # What lies in the middle of two numbers of half precision may be rounded to either.
    both(work, rounds, 0.6, 2**-10 if channel == "half precision" else 1e-5)


@pytest.mark.parametrize("name", ["eflops", "fediterht"])
def test_the_engines_agree_on_a_network(name: str) -> None:
    data = rows("multiclass", d=6)
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3))
    problem = supervised(models.from_module(network), outcomes.Softmax())
    algorithm = every_algorithm(0.4, rounds=20, batch_size=4)[name]
    both(job(problem, data, algorithm, seeds=(0, 1)), 20, 0.6, 1e-5)


def test_the_engines_agree_on_a_network_in_float64() -> None:
    data = rows("binary", d=6)
    problem = supervised(models.from_module(models.mlp((6, 4, 1)).double()), outcomes.Logistic())
    work = job(problem, data, EFLoPS(density=0.5, rounds=15), seeds=(0, 1))
    slow, _ = proceed(work, Loop(), 15, 0.6)
    fast, _ = proceed(work, Vectorized(), 15, 0.6)
    assert slow.server.theta["1.weight"].dtype == torch.float64
    assert largest_gap(slow.server.theta, fast.server.theta) <= 1e-4  # float32 gates steer it


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_engines_agree_when_sites_and_seeds_are_not_all_eligible(weights: str) -> None:
    data = rows()
    eligible = torch.tensor([[True, True, False, True, True], [False, True, True, True, True]])
    work = job(
        linear_problem(data),
        data,
        FedAvg(),
        CHANNELS["feedback"],
        seeds=(0, 1),
        allowed=eligible,
        weights=weights,
    )
    both(work, 8, 0.5, 1e-5)
    assert not (work.participants(3, 0.5) & ~eligible).any()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_no_site_is_asked_twice_before_the_others(number: int) -> None:
    data = rows()
    work = job(linear_problem(data), data, FedAvg(), CHANNELS["feedback"], seeds=(0, 1))
    turns, orders = data.n_sites // number, []
    for first in range(0, 6 * turns, turns):
        drawn = [work.participants(first + turn, number) for turn in range(turns)]
        assert all((who.sum(1) == number).all() for who in drawn)
        assert torch.stack(drawn).sum(0).max() == 1
        orders.append(torch.stack(drawn))
    assert not all(torch.equal(orders[0], order) for order in orders)


@pytest.mark.parametrize("name", ["eflops", "fedavg"])
def test_the_engines_agree_when_uploads_are_lost_and_repeated(name: str) -> None:
    data = rows()
    algorithm = every_algorithm(0.25, rounds=15)[name]

    def delivery(tick: int, seed: torch.Tensor, site: torch.Tensor) -> torch.Tensor:
        return (tick * 7 + seed * 3 + site * 5) % 3  # lost, arrives, arrives twice

    problem, channel = linear_problem(data), CHANNELS["feedback"]
    both(job(problem, data, algorithm, channel, seeds=(0, 1), delivery=delivery), 15, 1.0, 1e-5)


def test_a_round_in_which_nothing_arrives_leaves_the_server_alone() -> None:
    data = rows()
    problem = linear_problem(data)
    for engine in (Loop(), Vectorized()):
        work = job(problem, data, FedAvg(), delivery=lambda _t, s, _c: torch.zeros_like(s))
        carried, _ = proceed(work, engine, 3)
        assert largest_gap(carried.server, begin(work).server) == 0.0
        assert (carried.ledger == -1).all()


@pytest.mark.parametrize("name", ["eflops", "fediterht"])
def test_chunks_of_sites_change_nothing(name: str) -> None:
    data = rows(sizes=(9, 1, 14, 2, 6, 3, 3, 8))
    algorithm = every_algorithm(0.25, rounds=15, batch_size=5)[name]
    work = job(linear_problem(data), data, algorithm, CHANNELS["feedback"], seeds=(0, 1, 2))
    whole, bytes_whole = proceed(work, Vectorized(), 15, 0.6)
    pieces, bytes_pieces = proceed(work, Vectorized(memory=1.0), 15, 0.6)
    assert_same(work, whole, pieces, 1e-5)
    assert torch.equal(bytes_whole, bytes_pieces)


@pytest.mark.parametrize("name", ["eflops", "fedavg", "fediterht"])
def test_regions_change_nothing_but_the_bytes(name: str) -> None:
    """The engines agree on regions, some of whose uploads are lost, and with no regions to 1e-6."""
    data = rows()

    def delivery(tick: int, seed: torch.Tensor, site: torch.Tensor) -> torch.Tensor:
        return (site + seed + tick) % 4

    algorithm = every_algorithm(0.25, rounds=6)[name]
    flat = job(linear_problem(data), data, algorithm, CHANNELS["feedback"], seeds=(0, 1))
    flat = replace(flat, delivery=delivery)
    tree = replace(flat, regions=torch.tensor([0, 1, 0, 1, 2]))
    both(tree, 6, 0.8, 1e-5)
    whole, bytes_whole = proceed(flat, Vectorized(), 6, 0.8)
    parts, bytes_parts = proceed(tree, Vectorized(), 6, 0.8)
    assert largest_gap(whole.server, parts.server) <= 1e-6 * max(1.0, size_of(whole.server))
    assert not bytes_whole[2].any()
    assert (bytes_parts[2] > 0).all()
    if name != "fediterht":  # a last digit may decide which of two equal weights it keeps
        assert torch.equal(bytes_whole[0], bytes_parts[0])


def test_one_region_passes_on_what_the_server_would_sum_up() -> None:
    """3 dense uploads: 8 bytes of header and, a part, 12 and its numbers: 12 weights, bias, 1/η.

    The region's message has one part more, its weight.
    """
    data = rows(sizes=(4, 4, 4))
    work = job(linear_problem(data), data, FedAvg(learning_rate=0.1), regions=torch.zeros(3).long())
    _, sizes = proceed(work, Vectorized(), 1)
    upload = 8 + (12 + 48) + (12 + 4) + (12 + 4)
    assert sizes[0].tolist() == [3 * upload]
    assert sizes[2].tolist() == [upload + 12 + 4]


def test_regions_are_refused_with_a_rule_that_is_not_linear() -> None:
    def median(stacked: Any, weight: torch.Tensor) -> Any:
        return trees.map_tensors(lambda t: t.median(0).values, stacked)

    data = rows()
    with pytest.raises(ValueError, match="median cannot be taken region by region"):
        Job(
            linear_problem(data),
            data,
            FedAvg(),
            CHANNELS["dense"],
            median,
            (0,),
            regions=torch.zeros(5, dtype=torch.int64),
        )


@pytest.mark.parametrize("engine", [Loop, Vectorized])
def test_a_seed_that_asks_nobody_stays_as_it_is(engine: Any) -> None:
    data = rows()
    work = job(linear_problem(data), data, FedAvg(), CHANNELS["feedback"], seeds=(0, 1, 2))
    carried, _ = proceed(work, engine(), 1)
    asked = work.eligible.clone()
    asked[1] = False
    after, report = engine().exchange(work, carried, 1, "curvature", asked)
    for part in ("server", "broadcast"):
        before, now = (trees.unstack(getattr(c, part), 1) for c in (carried, after))
        assert largest_gap(before, now) == 0
    assert torch.equal(after.ledger[1], carried.ledger[1])
    assert torch.equal(after.seen[1], carried.seen[1])
    assert report.bytes_up.tolist()[1] == report.bytes_down.tolist()[1] == 0
    assert (report.bytes_up[[0, 2]] > 0).all()
    assert not (after.seen[[0, 2]] == carried.seen[[0, 2]]).any()


def test_a_site_measures_its_curvature_when_it_is_first_asked() -> None:
    data = rows(sizes=(3,) * 9)
    work = job(linear_problem(data), data, FedAvg(), seeds=(0, 1))
    carried, engine = begin(work), Vectorized()
    for number in range(9):
        participants = work.participants(number, 2)
        new = (participants & (carried.ledger < 0)).any(1)
        steps = work.exchanges(carried, number, participants)
        for exchange, asked in steps:
            carried, _ = engine.exchange(work, carried, number, exchange, asked)
            if exchange == "curvature":
                assert torch.equal(asked.any(1), new | (number == 0))
        assert steps[-1][1] is participants
        assert len(steps) == 1 + bool(new.any())
    measured = carried.store.kept.slots[0].curvature.amax(1)  # [sites visited, S]
    visited = (carried.seen.T >= 0)[list(carried.store.row_of)]
    assert torch.equal(measured > 0, visited)


def test_seeds_are_independent() -> None:
    """What a seed does is the same beside other seeds as alone."""
    data = rows()
    problem = linear_problem(data)
    algorithm = EFLoPS(density=0.25, rounds=12, batch_size=4)
    many, bytes_many = proceed(
        job(problem, data, algorithm, seeds=(0, 1, 2)), Vectorized(), 12, 0.6
    )
    one, bytes_one = proceed(job(problem, data, algorithm, seeds=(1,)), Vectorized(), 12, 0.6)
    assert largest_gap(
        trees.unstack(many.server, 1), trees.unstack(one.server, 0)
    ) <= 1e-5 * size_of(one.server)
    assert torch.equal(bytes_many[:, 1:2], bytes_one)


@given(st.data())
@settings(max_examples=60)
def test_the_grid_has_every_lane_once(draw: st.DataObject) -> None:
    seeds, sites = draw.draw(st.integers(1, 6)), draw.draw(st.integers(1, 8))
    count = draw.draw(st.integers(1, sites))
    participants = torch.zeros((seeds, sites), dtype=torch.bool)
    for s in range(seeds):
        chosen = draw.draw(st.permutations(range(sites)))[:count]
        participants[s, chosen] = True
    order = torch.tensor(draw.draw(st.permutations(range(sites))))
    rank = torch.argsort(order)
    grid = lay_out(participants, rank)
    width = grid.seeds.shape[1]
    assert grid.lane.shape == grid.site.shape == (seeds, count)
    for s in range(seeds):
        assert grid.site[s].tolist() == [c for c in order.tolist() if participants[s, c]]
    assert torch.equal(
        grid.seeds.reshape(-1)[grid.lane], torch.arange(seeds)[:, None].expand(-1, count)
    )
    assert torch.equal(grid.sites[grid.lane // width], grid.site)
    real = torch.zeros(grid.seeds.numel(), dtype=torch.bool)
    real[grid.lane.reshape(-1)] = True
    assert torch.equal(real.reshape(grid.seeds.shape), grid.real)
    assert grid.real.sum() == participants.sum()
    # A place that is no lane repeats one, so that what it does is harmless.
    assert participants[grid.seeds, grid.sites.unsqueeze(1)].all()
    assert (rank[grid.sites].diff() > 0).all()
    assert width <= seeds
    assert grid.full == bool(participants.all())
    assert grid.complete == bool(participants[:, participants.any(0)].all())
    place = torch.arange(grid.seeds.numel() * 2).reshape(-1, 2)
    assert torch.equal(grid.by_seed({"x": place})["x"], place[grid.lane])


def rename(data: FederatedData, old: str, new: str) -> FederatedData:
    return replace(data, sites=tuple(new if name == old else name for name in data.sites))


@pytest.mark.parametrize("change", ["renamed", "removed"])
def test_a_site_that_leaves_or_is_renamed_changes_no_other_site(change: str) -> None:
    data = rows()
    gone = data.sites[1]
    other = rename(data, gone, "clinic")
    if change == "removed":
        other = data.take(data.site_of_row != 1)
    before, after = (
        job(linear_problem(d), d, FedAvg(), seeds=(0, 1), data_seed=3) for d in (data, other)
    )
    for site in (c for c in data.sites if c != gone):
        old, new = data.sites.index(site), other.sites.index(site)
        assert torch.equal(before.site_keys[old], after.site_keys[new])
    # Whoever was chosen before the change and is still there is chosen again.
    names = {n: data.sites.index(n) for n in data.sites if n != gone}
    for number in range(20):
        was, now = before.participants(number, 3), after.participants(number, 3)
        for s in range(2):
            stayed = {n for n, c in names.items() if was[s, c]}
            assert change == "renamed" or stayed <= {
                n for n, c in zip(other.sites, now[s], strict=True) if c
            }


def test_a_site_has_the_same_luck_in_a_larger_federation() -> None:
    """With one site more, a round has the same participants apart from those it displaces."""
    sizes = (2,) * 9
    data = rows(sizes=sizes)
    fewer = data.take(data.site_of_row != 8)
    for number in range(30):
        many, few = (
            {
                d.sites[int(c)]
                for c in job(linear_problem(d), d, FedAvg()).participants(number, 4)[0].nonzero()
            }
            for d in (data, fewer)
        )
        assert len(many) == len(few) == 4
        assert len(few - many) <= 1


@given(st.integers(1, 7), st.integers(1, 9), st.floats(0.01, 1.0), st.integers(0, 50))
@settings(max_examples=40)
def test_the_number_of_participants_is_exact(
    seeds: int, sites: int, fraction: float, number: int
) -> None:
    data = rows(sizes=(1,) * 10, d=3).take(range(sites))
    work = job(linear_problem(data), data, FedAvg(), seeds=tuple(range(seeds)))
    expected = max(1, int(fraction * sites + 1e-9))
    assert (work.participants(number, fraction).sum(1) == expected).all()
    for count in (1, sites, sites + 3):
        assert (work.participants(number, count).sum(1) == min(count, sites)).all()


def test_who_takes_part_does_not_depend_on_what_was_asked_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "DRAWN", 40)  # two or three orders at a time
    data = rows(sizes=(1,) * 8, d=3)
    work = job(linear_problem(data), data, FedAvg(), seeds=(0, 1))
    for number in (0, 1, 9, 7, 8, 0, 30, 29):
        fresh = job(linear_problem(data), data, FedAvg(), seeds=(0, 1))
        for share in (0.4, 5):
            expected = fresh.participants(number, share)
            assert torch.equal(work.participants(number, share), expected)


def test_sites_take_part_equally_often() -> None:
    """600 draws of 3 in 5: each site 360 times, standard deviation 12."""
    data = rows()
    work = job(linear_problem(data), data, FedAvg(), seeds=tuple(range(6)))
    counts = torch.stack([work.participants(r, 0.6) for r in range(100)]).sum((0, 1))
    assert (counts - 360).abs().max() < 60


def test_fractions_are_not_cut_short_by_rounding() -> None:
    """.29 · 100 is 28.999999999999996 in floating point."""
    data = rows(sizes=(1,) * 100, d=3)
    assert job(linear_problem(data), data, FedAvg()).participants(0, 0.29).sum() == 29


def test_samples_or_sites_count_alike() -> None:
    data = rows()
    by_rows, alike = (
        job(linear_problem(data), data, FedAvg(), weights=w) for w in ("samples", "uniform")
    )
    assert by_rows.shares.tolist() == list(data.sizes)
    assert alike.shares.tolist() == [1.0] * data.n_sites


def test_an_exception_names_site_round_and_seed() -> None:
    data = rows()

    def broken(_params: trees.Tree, _batch: object) -> trees.Tree:
        msg = "no such layer"
        raise RuntimeError(msg)

    problem = replace(linear_problem(data), operators={"loss": broken})
    work = job(linear_problem(data), data, FedAvg(learning_rate=0.1), seeds=(4,))
    carried = begin(work)
    with pytest.raises(RuntimeError) as caught:
        Loop().exchange(
            replace_problem(work, problem), carried, 2, "round", work.participants(2, 1)
        )
    assert any("round 2, seed 4" in note and "hospital" in note for note in caught.value.__notes__)


def replace_problem(work: Job, problem: object) -> Job:
    object.__setattr__(work, "problem", problem)
    return work


@pytest.mark.parametrize("engine", ENGINES)
def test_an_upload_that_is_not_finite_is_refused_and_reported(engine: str) -> None:
    """The site with an infinite weight in its loss does no harm to the others."""
    data = rows()
    problem = linear_problem(data)
    honest = problem.operators["loss"]

    def poisoned(params: trees.Tree, batch: object) -> trees.Tree:
        one_row = batch.weight.sum() == 1.0  # type: ignore[attr-defined]
        return {k: torch.where(one_row, torch.nan, v) for k, v in honest(params, batch).items()}  # type: ignore[arg-type]

    problem = replace(problem, operators={"loss": poisoned})
    work = job(problem, data, FedAvg(learning_rate=0.05), CHANNELS["feedback"])
    carried, report = make_engine(engine).exchange(
        work, begin(work), 0, "round", work.participants(0, 1.0)
    )
    assert report.rejected.tolist() == [[0, 1]]
    assert carried.ledger.tolist() == [[0, -1, 0, 0, 0]]
    assert trees.all_finite(carried.server)


def test_the_loop_engine_counts_the_bytes_it_really_sends() -> None:
    """A dense FedAvg upload: head 8, three parts of 12, 4 bytes a number."""
    data = rows(d=12)
    work = job(linear_problem(data), data, FedAvg(learning_rate=0.1))
    _, total = proceed(work, Loop(), 1)
    assert total[0].tolist() == [data.n_sites * (8 + 3 * 12 + 4 * (12 + 1 + 1))]


def test_no_such_engine() -> None:
    with pytest.raises(ValueError, match="no engine 'spark'; use one of vectorized, loop"):
        make_engine("spark")


def test_train_runs_on_either_engine() -> None:
    data = rows()
    problem = linear_problem(data)
    slow, fast = (
        train(problem, data, FedIterHT(density=0.25, rounds=10), seeds=(0, 1), engine=e)
        for e in ("loop", "vectorized")
    )
    assert largest_gap(slow.params, fast.params) <= 1e-5
    assert (slow.params["weight"] != 0).sum(2).max() <= KEPT
    assert torch.equal(slow.bytes_up, fast.bytes_up)
    assert torch.equal(slow.bytes_down, fast.bytes_down)


def test_one_site_and_one_row() -> None:
    data = rows(sizes=(2,)).take([0])
    both(job(linear_problem(data), data, FedAvg(), seeds=(0, 1)), 5, 1.0, 1e-5)


ASKED = Inbox(run=1, tick=7, exchange="round", schema=3, asked=frozenset({"a", "b"}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": 2}, "it belongs to another run"),
        ({"schema": 4}, "the site runs another method, message format or model"),
        ({"tick": 6}, "it answers exchange round 6, not round 7"),
        ({"exchange": "value"}, "it answers exchange value 7, not round 7"),
        ({"site": "c"}, "site 'c' was not asked"),
    ],
)
def test_an_envelope_that_does_not_fit_is_refused(
    change: dict[str, int | str], reason: str
) -> None:
    inbox = replace(ASKED, taken=set())
    fields: dict[str, Any] = {"run": 1, "tick": 7, "exchange": "round", "site": "a", "schema": 3}
    envelope = Envelope(**{**fields, **change})
    assert inbox.refusal(envelope) == reason
    assert not inbox.take(envelope)
    assert inbox.taken == set()


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_an_upload_counts_once(arrivals: list[str]) -> None:
    inbox = replace(ASKED, taken=set())
    envelopes = [Envelope(1, 7, "round", site, 3) for site in arrivals]
    counted = [e.site for e in envelopes if inbox.take(e)]
    assert sorted(counted) == sorted(set(arrivals) & {"a", "b"})
    for e in envelopes:
        assert not inbox.take(e)


def test_the_schema_tells_methods_messages_and_models_apart() -> None:
    shared = {"theta/weight": torch.zeros(2, 3)}
    base = schema_of(FedAvg(), CHANNELS["dense"], shared)
    assert base == schema_of(FedAvg(), CHANNELS["dense"], {"theta/weight": torch.ones(2, 3)})
    others = {
        schema_of(FedAvg(local_steps=3), CHANNELS["dense"], shared),
        schema_of(FedAvg(), CHANNELS["feedback"], shared),
        schema_of(FedAvg(), CHANNELS["dense"], {"theta/weight": torch.zeros(3, 2)}),
        schema_of(FedAvg(), CHANNELS["dense"], {"theta/weight": torch.zeros(2, 3).double()}),
    }
    assert len(others | {base}) == 5
