"""Sites that leave during a training, and the state before those that joined late."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fedsift.algorithms import FedAvg
from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData, iid
from fedsift.models import linear
from fedsift.outcomes import OUTCOMES
from fedsift.problems import supervised
from fedsift.training import join_file, train

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


def test_retraining_from_the_state_before_a_late_site_is_exact(tmp_path: Path) -> None:
    """Two of five sites a round: who was not drawn yet has left no trace, bit for bit."""
    data = five_sites()
    whole = train(PROBLEM, data, ALGORITHM, participation=2, joins=tmp_path)
    first = {
        site: next(r["round"] for r in whole.history if site in r["sites"]) - 1
        for site in data.sites
        if any(site in r["sites"] for r in whole.history)
    }
    late = max(first, key=lambda site: first[site])
    assert first[late] > 0
    assert {f.name for f in tmp_path.iterdir()} == {
        join_file(tmp_path, site).name for site, number in first.items() if number > 0
    }
    rest = torch.tensor([[name != late for name in data.sites]])
    start = tmp_path / "start.safetensors"
    shutil.copy(join_file(tmp_path, late), start)
    again = train(
        PROBLEM, data, ALGORITHM, participation=2, eligible=rest, checkpoint=StageCheckpoint(start)
    )
    scratch = train(PROBLEM, data, ALGORITHM, participation=2, eligible=rest)
    assert len(again.history) == 9
    assert all(torch.equal(v, scratch.params[k]) for k, v in again.params.items())
    assert all(late not in record["sites"] for record in again.history)
