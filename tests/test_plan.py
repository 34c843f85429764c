"""What is decided before the first round, and that it changes speed only."""

import pytest
import torch

from fedsift import models, outcomes
from fedsift.algorithms import EFLoPS, FedAvg
from fedsift.checkpoints import StageCheckpoint
from fedsift.engines import Plan, make_plan, plan
from fedsift.engines.vectorized import Vectorized
from fedsift.problems import supervised
from fedsift.training import train
from tests.laws import job, largest_gap, linear_problem, proceed, rows

SIZES = (9, 30, 12, 8, 31, 10, 7)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_run_in_chunks_is_the_run_in_one_piece(seeds: tuple[int, ...]) -> None:
    data = rows("binary", sizes=SIZES, d=6)
    problem = supervised(models.from_module(models.mlp((6, 5, 1))), outcomes.Logistic())
    work = job(problem, data, FedAvg(learning_rate=0.1, batch_size=8), seeds=seeds)
    whole, bytes_whole = proceed(work, Vectorized(), 6, 0.7)
    parts, bytes_parts = proceed(work, Vectorized(chunk=2), 6, 0.7)
    assert largest_gap(whole.server, parts.server) <= 1e-6
    assert torch.equal(bytes_whole, bytes_parts)


def test_fusing_pays_for_long_runs_only() -> None:
    data = rows("regression", sizes=SIZES, d=12)
    work = job(linear_problem(data), data, EFLoPS(density=0.25))
    first = work.participants(0, 1.0)
    assert make_plan(work, first, 10, fuse="auto") == Plan(fused=False)
    assert make_plan(work, first, 10, fuse="auto", repeats=100_000).fused
    assert make_plan(work, first, 10, fuse=True).fused


def test_a_chunk_is_measured_for_large_models_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int | None] = []

    def faster_in_parts(_job: object, _participants: object, chunk: int | None) -> float:
        tried.append(chunk)
        return {None: 4.0, 16: 2.0, 4: 3.0}[chunk]

    monkeypatch.setattr(plan, "_seconds", faster_in_parts)
    monkeypatch.setattr(plan, "LARGE", 1)
    monkeypatch.setattr(plan, "_CHUNKS", {})
    data = rows("regression", sizes=(8,) * 64, d=3)
    work = job(linear_problem(data), data, FedAvg())
    first = work.participants(0, 1.0)
    for _ in range(2):
        assert plan.best_chunk(work, first, 100) == 16
    assert tried == [None, 16, 4]
    assert plan.best_chunk(work, first, 5) is None


def test_a_run_goes_on_by_the_plan_that_it_began_with(tmp_path) -> None:
    data = rows("regression", sizes=SIZES, d=12)
    problem, algorithm = linear_problem(data), EFLoPS(density=0.25)
    checkpoint = StageCheckpoint(tmp_path / "state")
    begun = train(problem, data, algorithm, rounds=2, compile=False, checkpoint=checkpoint)
    assert begun.plan == Plan()
    again = train(problem, data, algorithm, rounds=4, compile=True, checkpoint=checkpoint)
    assert again.plan == Plan()
