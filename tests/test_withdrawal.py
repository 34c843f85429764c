"""Sites that leave during a training, and the state before those that joined late."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedsift.algorithms import FedAvg
from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData, iid
from fedsift.joins import go_on_without, join_file
from fedsift.models import linear
from fedsift.outcomes import OUTCOMES
from fedsift.problems import supervised
from fedsift.training import train

ALGORITHM = FedAvg(rounds=9, learning_rate=0.1)
PROBLEM = supervised(linear(3), OUTCOMES["binary"])


def five_sites() -> FederatedData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    return iid(FederatedData.from_arrays(x, (x[:, 0] > 0).long(), outcome="binary"), 5, 0)


def test_a_site_that_withdraws_is_not_asked_again() -> None:
    data = five_sites()
    run = train(
        PROBLEM, data, ALGORITHM, withdrawn=lambda number: {"site_2"} if number >= 3 else set()
    )
    asked = [set(record["sites"]) for record in run.history]
    assert all("site_2" in names for names in asked[:3])
    assert all(names == set(data.sites) - {"site_2"} for names in asked[3:])
    assert float(run.job.populations["all"][0]) == 48.0


def test_all_sites_cannot_withdraw() -> None:
    data = five_sites()
    with pytest.raises(ValueError, match="every site has withdrawn"):
        train(PROBLEM, data, ALGORITHM, withdrawn=lambda number: data.sites)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_training_on_from_the_state_before_a_late_site_is_exact(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    """Two of five sites a round: who was not drawn yet has left no trace, bit for bit."""
    data = five_sites()
    whole = train(PROBLEM, data, ALGORITHM, seeds=seeds, participation=2, joins=tmp_path)
    first = {
        site: next(r["round"] for r in whole.history if site in r["sites"]) - 1
        for site in data.sites
    }
    late = max(first, key=lambda site: first[site])
    assert first[late] > 0
    files = {join_file(tmp_path, number) for number in first.values() if number}
    assert set(tmp_path.iterdir()) == files
    rest = data.take(data.site_of_row != data.sites.index(late))
    checkpoint = StageCheckpoint(tmp_path / "rest", fingerprint="rest")
    start = go_on_without(join_file(tmp_path, first[late]), checkpoint, data.sites, rest.sites)
    assert start is not None
    again, scratch = (
        train(PROBLEM, rest, ALGORITHM, seeds=seeds, participation=2, checkpoint=begin)
        for begin in (checkpoint, None)
    )
    assert start.round == first[late]
    assert len(again.history) == 9
    assert all(torch.equal(v, scratch.params[k]) for k, v in again.params.items())
    assert torch.equal(again.bytes_up, scratch.bytes_up)
    assert again.first_loss is not None
    assert scratch.first_loss is not None
    assert torch.equal(again.first_loss, scratch.first_loss)
    assert "loss" not in again.history[0]  # it was taken on the rows of the late site too


def test_a_site_that_joined_early_with_one_seed_is_late_with_none(tmp_path: Path) -> None:
    """With eight seeds every site is drawn in round 0 by one of them: there is no late site."""
    data = five_sites()
    train(PROBLEM, data, ALGORITHM, seeds=range(8), participation=2, joins=tmp_path)
    assert list(tmp_path.iterdir()) == []
