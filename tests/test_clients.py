"""Two versions of a site's state: forward when the upload counted, back when it did not."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import trees
from fedsift.clients import ClientStore


class State(NamedTuple):
    total: torch.Tensor
    tree: dict[str, torch.Tensor]


TEMPLATE = State(torch.zeros((), dtype=torch.float64), {"u": torch.zeros(2)})


def lane(index: int) -> torch.Tensor:
    return torch.tensor([index])


def step(store: ClientStore, site: int, seed: int, last_accepted: int, tick: int) -> float:
    """Ask a site that adds one to what it holds; return what it began with."""
    row = store.rows(lane(site))
    before = store.load(row, lane(seed), lane(last_accepted))
    after = State(before.total + 1, {"u": before.tree["u"] + 10})
    store.stage(row, lane(seed), after, tick)
    return float(before.total[0])


def test_a_site_starts_at_zero_and_rolls_forward_or_back() -> None:
    store = ClientStore(TEMPLATE, 1)
    assert step(store, 3, 0, -1, tick=0) == 0
    assert step(store, 3, 0, 0, tick=4) == 1  # the upload of exchange 0 counted
    assert step(store, 3, 0, 0, tick=6) == 1  # that of exchange 4 did not
    assert step(store, 3, 0, 0, tick=7) == 1  # nor that of 6
    assert step(store, 3, 0, 7, tick=9) == 2  # that of 7 did
    final = store.load(store.rows(lane(3)), lane(0), lane(9))
    assert final.total.tolist() == [3.0]
    assert final.tree["u"].tolist() == [[30.0, 30.0]]


def test_loading_twice_changes_nothing() -> None:
    store = ClientStore(TEMPLATE, 1)
    step(store, 0, 0, -1, tick=0)
    for _ in range(3):
        assert store.load(store.rows(lane(0)), lane(0), lane(0)).total.tolist() == [1.0]


def test_memory_follows_the_sites_visited() -> None:
    store = ClientStore(TEMPLATE, 2)
    store.rows(torch.tensor([10**9, 5]))
    assert store.kept.current.shape == (2, 2)
    assert store.rows(torch.tensor([5, 10**9])).tolist() == [1, 0]
    slots = store.kept.slots
    assert all(t.shape[:3] == (2, 2, 2) for t in (slots.total, slots.tree["u"]))
    assert slots.total.dtype == torch.float64


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), min_size=1, max_size=60
    )
)
@settings(max_examples=60)
def test_the_state_counts_exactly_the_uploads_that_counted(
    visits: list[tuple[int, int, bool]],
) -> None:
    """For any order of visits, losses and interleaving of seeds, and restored half way."""
    store = ClientStore(TEMPLATE, 2)
    ledger, counted = torch.full((2, 4), -1), torch.zeros(2, 4)
    for tick, (site, seed, arrives) in enumerate(visits):
        if tick == len(visits) // 2:
            sites, kept = list(store.row_of), trees.map_tensors(torch.clone, store.kept)
            store = ClientStore(TEMPLATE, 2)
            store.restore(sites, kept)
        assert step(store, site, seed, int(ledger[seed, site]), tick) == counted[seed, site]
        if arrives:
            ledger[seed, site] = tick
            counted[seed, site] += 1


def test_a_seed_goes_back_to_the_mark_and_the_others_go_on() -> None:
    store = ClientStore(TEMPLATE, 2)
    for seed in (0, 1):
        step(store, 0, seed, -1, tick=0)
    store.mark()
    for seed in (0, 1):
        step(store, 0, seed, 0, tick=1)
        step(store, 9, seed, -1, tick=1)  # a site that was new since the mark
    store.roll_back(torch.tensor([1]))
    rows = store.rows(torch.tensor([0, 9]))
    stays = store.load(rows, torch.tensor([0, 0]), torch.tensor([1, 1]))
    back = store.load(rows, torch.tensor([1, 1]), torch.tensor([0, -1]))
    assert stays.total.tolist() == [2.0, 1.0]
    assert back.total.tolist() == [1.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
@settings(max_examples=40)
def test_rolling_back_restores_every_bit(visits: list[tuple[int, bool]]) -> None:
    """Whatever happens after the last of several marks, and more than once."""
    store = ClientStore(TEMPLATE, 1)
    store.mark()
    sites, before = 0, store.kept
    for tick, (site, marks) in enumerate(visits):
        step(store, site, 0, tick - 1, tick)
        if marks:
            store.mark()
            sites, before = len(store.row_of), trees.map_tensors(torch.clone, store.kept)
    for _ in range(2):
        store.roll_back(lane(0))
        after = trees.map_tensors(lambda t: t[:sites], store.kept)
        assert all(map(torch.equal, trees.leaves(after), trees.leaves(before)))
        assert all(not leaf[sites:].any() for leaf in trees.leaves(store.kept))
        step(store, 0, 0, -1, 99)


def test_going_back_without_a_mark_is_refused() -> None:
    with pytest.raises(RuntimeError, match="call mark first"):
        ClientStore(TEMPLATE, 1).roll_back(lane(0))


def test_large_states_lie_in_a_file_with_the_same_content(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = ClientStore(TEMPLATE, 1), ClientStore(TEMPLATE, 1)
    for tick in range(60):
        for limit, store in ((1 << 24, inside), (256, outside)):
            monkeypatch.setattr("fedsift.rows.IN_MEMORY", limit)
            if tick % 10 == 0:
                store.mark()
            step(store, (7 * tick) % 23, 0, tick - 23, tick)
    for store in (inside, outside):
        store.roll_back(lane(0))
    assert all(map(torch.equal, trees.leaves(inside.kept), trees.leaves(outside.kept)))
    assert set(inside.kept.slots.total.flatten().tolist()) == {1.0, 2.0, 3.0}
