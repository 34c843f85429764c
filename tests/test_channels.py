"""What is cut from a message is late and never lost; what is published is what sites hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import messages, models, outcomes, random, trees
from fedsift.algorithms import EFLoPS
from fedsift.channels import (
    Broadcast,
    Lossless,
    TopM,
    advance,
    download_message,
    download_size,
    missed,
    start_broadcast,
)
from fedsift.engines.base import begin
from fedsift.engines.vectorized import Vectorized
from fedsift.methods import find_method
from fedsift.problems import Problem, supervised
from tests.laws import bit_equal, job, largest_gap, linear_problem, normal, rows

CLASSES, FEATURES = 3, 20
PROBLEM = supervised(models.linear(FEATURES, CLASSES), outcomes.Softmax())
DEEP = supervised(models.from_module(models.mlp((6, 5, 3))), outcomes.Softmax())


def upload(seed: int, problem: Problem = PROBLEM, dtype: torch.dtype = torch.float32) -> trees.Tree:
    params = problem.init(random.key(0))
    return trees.join(
        theta={
            k: normal(*v.shape, seed=seed + i, dtype=dtype)
            for i, (k, v) in enumerate(params.items())
        },
        phi=normal(problem.gates.size, seed=seed + 9, dtype=dtype),
        multiplier=normal(seed=seed, dtype=dtype),
    )


@pytest.mark.parametrize(("one_index_set", "half"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("problem", [PROBLEM, DEEP], ids=["linear", "network"])
def test_error_feedback_conserves_mass(problem: Problem, one_index_set: bool, half: bool) -> None:
    """Σ sent + residual = Σ uploads, after any number of uploads, to 1e-6 (float64: 1e-12)."""
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        channel = TopM(4, one_index_set=one_index_set, half=half)
        state = channel.init(problem, upload(0, problem, dtype))
        given_, sent_ = trees.zeros_like(upload(0, problem, dtype)), None
        for number in range(30):
            wanted = upload(number, problem, dtype)
            sent, state = channel.send(problem, state, wanted)
            given_ = trees.add(given_, wanted)
            sent_ = sent if sent_ is None else trees.add(sent_, sent)
        assert sent_ is not None
        total = {k: v + state[k] if k in state else v for k, v in sent_.items()}
        assert largest_gap(total, given_) < limit * 10


@given(st.integers(0, 12), st.integers(0, 20), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_exactly_m_gates_are_sent(kept: int, seed: int, feedback: bool, one: bool) -> None:
    channel = TopM(kept, feedback=feedback, one_index_set=one)
    wanted = upload(seed)
    sent, _ = channel.send(PROBLEM, channel.init(PROBLEM, wanted), wanted)
    features = (sent["theta/weight"] != 0).any(0)
    gates = sent["phi"] != 0
    assert features.sum() == gates.sum() == kept
    assert not one or torch.equal(features, gates)
    # What is sent is sent as it is, what is never cut too.
    assert torch.equal(sent["theta/weight"][:, features], wanted["theta/weight"][:, features])
    for whole in ("theta/bias", "multiplier"):
        assert torch.equal(sent[whole], wanted[whole])


def test_the_largest_changes_go_first_and_the_rest_follows() -> None:
    """Changes 3, 2, 1 once, then nothing new: 3 goes, then 2, then 1."""
    channel = TopM(1)
    change = {"theta/weight": torch.tensor([[1.0, 3.0, 2.0]])}
    problem = supervised(models.linear(3), outcomes.Squared())
    state = channel.init(problem, change)
    order = []
    for number in range(4):
        sent, state = channel.send(problem, state, trees.scale(change, float(number == 0)))
        order.append(sent["theta/weight"][0].tolist())
    assert order == [[0, 3, 0], [0, 0, 2], [1, 0, 0], [0, 0, 0]]


def test_rounded_numbers_stay_within_half_precision_and_the_rest_is_kept() -> None:
    """Whatever the size: what half precision cannot hold waits at the site."""
    channel = TopM(FEATURES, one_index_set=True, half=True)
    for size in (1e-9, 1.0, 1e9):
        wanted = trees.scale(upload(3), size)
        sent, kept = channel.send(PROBLEM, channel.init(PROBLEM, wanted), wanted)
        for leaf in ("theta/weight", "phi"):
            assert torch.equal(sent[leaf].half().float(), sent[leaf])
            assert sent[leaf].isfinite().all()
            torch.testing.assert_close(sent[leaf] + kept[leaf], wanted[leaf])
        assert torch.equal(sent["theta/bias"], wanted["theta/bias"])
    wanted = upload(3)
    replica = channel.publish(PROBLEM, trees.zeros_like(wanted), wanted)
    assert largest_gap(replica, wanted) < 2**-10 * 4
    assert bit_equal(channel.publish(PROBLEM, replica, wanted), replica)


def test_compact_messages_take_three_fifths_of_those_with_feedback() -> None:
    """A gate: index and two halves, 6 bytes, in place of two indices and two whole numbers, 12."""
    problem = supervised(models.linear(1000), outcomes.Squared())
    wanted = upload(1, problem)
    sizes = {}
    for name in ("feedback", "compact"):
        channel = find_method("eflops").channel(name, 50)
        sent, _ = channel.send(problem, channel.init(problem, wanted), wanted)
        sizes[name] = int(messages.size(sent))
    assert sizes["feedback"] - sizes["compact"] == 50 * 6
    assert sizes["compact"] < 0.6 * sizes["feedback"]


def test_without_feedback_there_is_no_residual_and_lossless_sends_all() -> None:
    wanted = upload(1)
    channel = TopM(4, feedback=False)
    assert channel.init(PROBLEM, wanted) == {}
    first, _ = channel.send(PROBLEM, {}, wanted)
    again, _ = channel.send(PROBLEM, {}, wanted)
    assert bit_equal(first, again)
    assert bit_equal(Lossless().send(PROBLEM, (), wanted)[0], wanted)


def test_a_model_that_is_no_change_is_not_cut() -> None:
    model = {"model/weight": normal(CLASSES, FEATURES)}
    channel = TopM(2)
    sent, state = channel.send(PROBLEM, channel.init(PROBLEM, model), model)
    assert bit_equal(sent, model)
    assert state == {}


def drift(seed: int, tick: int, shared: trees.Tree) -> trees.Tree:
    """Change a few numbers of everything, as a server does."""
    key = random.key(seed, "drift", tick)
    return {
        k: v
        + random.normal(random.fold(key, i), tuple(v.shape))
        * (random.uniform(random.fold(key, i, 7), tuple(v.shape)) < 0.3)
        for i, (k, v) in enumerate(shared.items())
    }


@given(
    st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(0, 30),
    st.sampled_from([Lossless(), TopM(3), TopM(3, one_index_set=True)]),
    st.booleans(),
)
@settings(max_examples=60)
def test_a_site_that_was_absent_catches_up_to_exactly_the_replica(
    visits: list[set[int]], seed: int, channel: Lossless | TopM, known: bool
) -> None:
    shared = upload(seed)
    broadcast = start_broadcast(shared, known=known)
    begin_with = shared if known else trees.zeros_like(shared)
    held = dict.fromkeys(range(4), begin_with)
    seen = dict.fromkeys(range(4), torch.tensor(-1))
    for tick, served in enumerate(visits):
        broadcast = advance(channel, PROBLEM, broadcast, shared, torch.tensor(tick))
        for site in served:
            message = download_message(broadcast, seen[site])
            assert len(message) == int(download_size(broadcast, seen[site]))
            held[site] = messages.decode(message, broadcast.replica, held[site])
            seen[site] = torch.tensor(tick)
            assert bit_equal(held[site], broadcast.replica)
        shared = drift(seed, tick, shared)


def test_a_replica_reaches_the_server_when_that_stands_still() -> None:
    """20 gates, 3 a time: after 7 exchanges the sites have all of it; lossless needs one."""
    start, goal = upload(0), upload(1)
    for channel, needed in ((TopM(3), 7), (Lossless(), 1)):
        broadcast = start_broadcast(start, known=True)
        for tick in range(needed):
            assert largest_gap(broadcast.replica, goal) > 0.01
            broadcast = advance(channel, PROBLEM, broadcast, goal, torch.tensor(tick))
        assert largest_gap(broadcast.replica, goal) < 1e-6


def test_a_start_that_is_known_costs_next_to_nothing() -> None:
    """Head 8, four parts of 12, and the parts of up to eight numbers; unknown, it costs all."""
    shared = upload(0)
    known, unknown = (
        advance(Lossless(), PROBLEM, start_broadcast(shared, known=k), shared, torch.tensor(0))
        for k in (True, False)
    )
    small = sum(4 * part.numel() for part in shared.values() if part.numel() <= messages.SMALL)
    assert int(download_size(known, torch.tensor(-1))) == 8 + 4 * 12 + small
    numbers = sum(v.numel() for v in shared.values())
    assert int(download_size(unknown, torch.tensor(-1))) == 8 + 4 * 12 + 4 * numbers


def test_a_catch_up_is_never_longer_than_the_whole() -> None:
    shared, broadcast = upload(0), start_broadcast(upload(0), known=True)
    for tick in range(6):
        shared = drift(4, tick, shared)
        broadcast = advance(TopM(8), PROBLEM, broadcast, shared, torch.tensor(tick))
        sizes = [int(download_size(broadcast, torch.tensor(seen))) for seen in range(-1, tick + 1)]
        assert max(sizes) <= int(messages.size(broadcast.replica))
        assert sizes == sorted(sizes, reverse=True)
    everything = missed(broadcast, torch.tensor(-2))
    assert all(mask.all() for mask in everything.values())
    assert isinstance(broadcast, Broadcast)


@pytest.mark.parametrize("one_index_set", [False, True])
@pytest.mark.parametrize("kept", [3, 50, 200])
def test_an_upload_of_eflops_costs_at_most_16_bytes_a_kept_parameter(
    kept: int, one_index_set: bool
) -> None:
    """One output, 1000 features: an index of 2 bytes and 4 of value, for weight and gate each."""
    data = rows(sizes=(5, 8), d=1000)
    algorithm = EFLoPS(density=kept / 1000, learning_rate=0.05)
    work = job(linear_problem(data), data, algorithm, TopM(kept, one_index_set=one_index_set))
    carried = begin(work)
    for number in range(4):
        carried, report = Vectorized().exchange(
            work, carried, number, "round", work.participants(number, 1)
        )
        assert int(report.bytes_up.max()) <= 2 * (16 * kept + 200)
        assert int(report.bytes_up.max()) <= 2 * (12 * kept + 8 + 5 * 12 + 3 * 4)
