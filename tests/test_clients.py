"""Two versions of a site's state: forward when the upload counted, back when it did not."""

from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
    assert store.current.shape == (2, 2)
    assert store.rows(torch.tensor([5, 10**9])).tolist() == [1, 0]
    assert all(t.shape[:3] == (2, 2, 2) for t in (store.slots.total, store.slots.tree["u"]))
    assert store.slots.total.dtype == torch.float64


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), min_size=1, max_size=60
    )
)
@settings(max_examples=60, deadline=None)
def test_the_state_counts_exactly_the_uploads_that_counted(
    visits: list[tuple[int, int, bool]],
) -> None:
    """For any order of visits, losses and interleaving of seeds, and after a copy half way."""
    store = ClientStore(TEMPLATE, 2)
    ledger, counted = torch.full((2, 4), -1), torch.zeros(2, 4)
    for tick, (site, seed, arrives) in enumerate(visits):
        if tick == len(visits) // 2:
            store = store.copy()
        assert step(store, site, seed, int(ledger[seed, site]), tick) == counted[seed, site]
        if arrives:
            ledger[seed, site] = tick
            counted[seed, site] += 1


def test_a_seed_goes_back_to_an_earlier_copy_and_the_others_go_on() -> None:
    store = ClientStore(TEMPLATE, 2)
    for seed in (0, 1):
        step(store, 0, seed, -1, tick=0)
    earlier = store.copy()
    for seed in (0, 1):
        step(store, 0, seed, 0, tick=1)
        step(store, 9, seed, -1, tick=1)  # a site the copy does not know
    store.replace_seeds(torch.tensor([1]), earlier)
    rows = store.rows(torch.tensor([0, 9]))
    stays = store.load(rows, torch.tensor([0, 0]), torch.tensor([1, 1]))
    back = store.load(rows, torch.tensor([1, 1]), torch.tensor([0, -1]))
    assert stays.total.tolist() == [2.0, 1.0]
    assert back.total.tolist() == [1.0, 0.0]
    assert earlier.load(earlier.rows(lane(0)), lane(0), lane(0)).total.tolist() == [1.0]
