"""Fixed points, recovery, checkpoints and interrupts of the round loop."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsift import models, outcomes, trees
from fedsift.algorithms import EFLoPS, FedAvg, Tuning
from fedsift.checkpoints import (
    CheckpointError,
    StageCheckpoint,
    load_training,
    previous,
    save_training,
)
from fedsift.data import FederatedData
from fedsift.data.partition import dirichlet_counts
from fedsift.evaluation import evaluate
from fedsift.problems import supervised
from fedsift.recovery import TrainingError
from fedsift.sealed import write_atomic
from fedsift.training import EarlyStop, Training, check_pair, train
from tests.laws import (
    ALGORITHMS,
    CHANNELS,
    ENGINES,
    bit_equal,
    every_algorithm,
    largest_gap,
    linear_problem,
    normal,
    rows,
)

OUTCOMES = ("regression", "binary", "multiclass", "poisson", "negative_binomial")


def state_of(run: Training) -> Any:
    kept = run.carried.store.kept
    return (run.carried.server, run.carried.broadcast, kept, run.carried.ledger, run.carried.seen)


def least_squares(data: FederatedData) -> torch.Tensor:
    x = torch.cat([data.x.double(), torch.ones(data.n_samples, 1, dtype=torch.float64)], 1)
    solution: torch.Tensor = torch.linalg.lstsq(x, data.y.double()).solution
    return solution


@pytest.mark.parametrize("algorithm", [FedAvg(local_steps=1), Tuning(local_steps=1)])
def test_one_local_step_ends_at_the_pooled_solution(algorithm: FedAvg) -> None:
    """Sites of 12, 40 and 80 rows on scales 1, 3 and .5: their curvatures differ over tenfold."""
    data = rows(sizes=(12, 40, 80), d=3)
    scale = torch.tensor([1.0, 3.0, 0.5])[data.site_of_row, None]
    data = replace(data, x=data.x * scale)
    problem = linear_problem(data, torch.float64)
    run = train(problem, data, algorithm, rounds=300, evaluate_every=300)
    curvatures = run.carried.store.kept.slots[0].curvature[:, 0]
    assert curvatures.max() > 10 * curvatures.min()
    found = torch.cat([run.params["weight"][0, 0], run.params["bias"][0]])
    assert (found - least_squares(data)).abs().max() < 1e-6


def test_the_pooled_solution_does_not_move() -> None:
    data = rows(sizes=(12, 40, 80), d=6)
    problem = linear_problem(data, torch.float64)
    best = least_squares(data)
    params = {"weight": best[None, :-1], "bias": best[-1:]}
    algorithm = Tuning(local_steps=1)
    start = trees.stack([algorithm.start(problem, params, torch.ones(problem.gates.size))])
    run = train(problem, data, algorithm, rounds=5, start=start)
    assert largest_gap(trees.unstack(run.params, 0), params) < 1e-8


def test_tuning_stays_on_its_support() -> None:
    data = rows()
    problem = linear_problem(data)
    support = torch.tensor([1.0, 1, 1] + [0] * 9)
    algorithm = Tuning(rounds=20)
    start = trees.stack([algorithm.start(problem, problem.init(torch.tensor(0)), support)])
    run = train(problem, data, algorithm, start=start)
    assert (run.params["weight"][0, 0] != 0).float().tolist() == support.tolist()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_far_too_large_is_rolled_back_and_ends_finite(name: str, engine: str) -> None:
    """A hundred times the largest stable step: left alone the loss would pass 1e30."""
    data = rows("binary" if name == "eflops" else "regression")
    problem = linear_problem(data)
    algorithm = every_algorithm(0.25, rounds=25, learning_rate=3.0)[name]
    run = train(problem, data, algorithm, engine=engine, seeds=(0, 1), evaluate_every=2)
    assert trees.all_finite(run.params)
    zero = {k: torch.zeros_like(v) for k, v in run.params.items()}
    start, end = (evaluate(problem, p, data)["loss"] for p in (zero, run.params))
    assert (end <= FedAvg.diverged * start).all()
    if name != "eflops":
        assert (run.retries > 0).all()


def test_the_engines_agree_through_a_rollback() -> None:
    data = rows()
    problem = linear_problem(data)
    slow, fast = (
        train(
            problem,
            data,
            FedAvg(rounds=20, learning_rate=0.6),
            seeds=(0, 1),
            participation=0.6,
            engine=engine,
            channel=CHANNELS["feedback"],
            evaluate_every=4,
        )
        for engine in ENGINES
    )
    assert (fast.retries > 0).any()
    assert torch.equal(slow.retries, fast.retries)
    assert largest_gap(slow.params, fast.params) < 1e-4
    assert torch.equal(slow.bytes_down, fast.bytes_down)


def test_a_seed_that_diverges_does_not_disturb_the_others() -> None:
    """Seed 1 starts far out; seed 0 does what it does alone."""
    data = rows()
    problem = linear_problem(data)
    algorithm = FedAvg(rounds=10, learning_rate=0.02)
    calm = algorithm.server_init(problem, torch.tensor(0))
    wild = calm._replace(step_scale=torch.tensor(200.0))
    both = train(
        problem, data, algorithm, seeds=(0, 1), start=trees.stack([calm, wild]), evaluate_every=1
    )
    alone = train(problem, data, algorithm, seeds=(0,), start=trees.stack([calm]), evaluate_every=1)
    assert both.retries[0] == 0
    assert both.retries[1] > 0
    assert largest_gap(trees.unstack(both.params, 0), trees.unstack(alone.params, 0)) < 1e-5


def test_a_run_that_cannot_be_saved_names_the_site() -> None:
    """The second site's rows are 1e12 times as large: no six smaller steps help."""
    data = rows(sizes=(6, 5, 7))
    data = replace(data, x=torch.where(data.site_of_row[:, None] == 1, 1e12 * data.x, data.x))
    with pytest.raises(TrainingError, match=r"FedAvg diverged .* site 'hospital b'.*learning_rate"):
        train(linear_problem(data), data, FedAvg(learning_rate=0.1), rounds=60, evaluate_every=1)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_no_default_run_ends_non_finite_on_very_uneven_sites(outcome: str) -> None:
    """Dirichlet(.3) counts, 60 rows on 12 sites: several sites of one or two rows."""
    whole = rows(outcome, sizes=(60,), d=60)
    for seed in (OUTCOMES.index(outcome),):
        data = dirichlet_counts(whole, 12, 0.3, seed)
        assert sorted(data.sizes)[2] <= 2
        problem = linear_problem(data)
        for name, algorithm in every_algorithm(0.05).items():
            knobs: dict[str, Any] = {} if name == "tuning" else {"density": 0.05}
            default = type(algorithm)(**knobs)
            run = train(problem, data, default, rounds=40, participation=0.6)
            assert trees.all_finite(run.params), name
            assert (run.retries == 0).all(), name
            assert run.history[-1]["loss"] <= 1.5 * run.history[0]["loss"] + 0.1, name


@given(
    st.integers(0, 10),
    st.sampled_from([("eflops", "feedback"), ("fediterht", "dense"), ("fedavg", "feedback")]),
)
@settings(max_examples=6)
def test_a_resumed_run_is_bit_equal(
    tmp_path_factory: pytest.TempPathFactory, stop: int, pair: tuple[str, str]
) -> None:
    """Interrupted in any round, with residuals, absent sites and minibatches."""
    name, channel = pair
    data = rows()
    problem = linear_problem(data)
    algorithm = every_algorithm(0.25, rounds=12, batch_size=4)[name]
    path = StageCheckpoint(tmp_path_factory.mktemp("run") / "state.safetensors", every=0.0)

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == stop + 1:
            raise KeyboardInterrupt

    def proceed(checkpoint: StageCheckpoint | None, callback: Any = None) -> Training:
        return train(
            problem,
            data,
            algorithm,
            seeds=(0, 1),
            participation=0.6,
            channel=CHANNELS[channel],
            evaluate_every=3,
            checkpoint=checkpoint,
            callback=callback,
        )

    whole = proceed(None)
    with pytest.raises(KeyboardInterrupt):
        proceed(path, interrupt)
    resumed = proceed(path)
    assert bit_equal(state_of(whole), state_of(resumed))
    assert torch.equal(whole.bytes_up, resumed.bytes_up)
    assert torch.equal(whole.bytes_down, resumed.bytes_down)
    assert without_seconds(whole) == without_seconds(resumed)


def without_seconds(run: Training) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in run.history]


def test_an_interrupt_keeps_the_last_healthy_state(tmp_path: Path) -> None:
    """Evaluated every 4 rounds, interrupted after 6: the state of round 4 is what is kept."""
    data = rows()
    problem = linear_problem(data)
    path = tmp_path / "state.safetensors"

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            problem,
            data,
            FedAvg(rounds=20),
            evaluate_every=4,
            checkpoint=StageCheckpoint(path, every=1e9),
            callback=interrupt,
        )
    seen: list[int] = []
    train(
        problem,
        data,
        FedAvg(rounds=20),
        evaluate_every=4,
        checkpoint=StageCheckpoint(path),
        callback=lambda r: seen.append(r["round"]),
    )
    assert seen == list(range(5, 21))


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    data = rows()
    checkpoint = StageCheckpoint(tmp_path / "state.safetensors")
    records: list[dict[str, Any]] = []
    runs = [
        train(
            linear_problem(data),
            data,
            FedAvg(rounds=4),
            checkpoint=checkpoint,
            callback=records.append,
        )
        for _ in range(2)
    ]
    assert len(records) == 4
    assert bit_equal(runs[0].params, runs[1].params)
    assert not list(tmp_path.glob("*.tmp"))


def saved(tmp_path: Path) -> tuple[Path, Training]:
    data = rows()
    path = tmp_path / "state.safetensors"
    run = train(linear_problem(data), data, FedAvg(rounds=2), checkpoint=StageCheckpoint(path))
    return path, run


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "other file"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path, run = saved(tmp_path)
    content = path.read_bytes()
    noise = bytes(range(256)) * 4
    path.write_bytes(
        {"cut": content[:-40], "empty": b"", "noise": noise, "other file": b"{}" + content[2:]}[
            damage
        ]
    )
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_training(path, run)


@pytest.mark.parametrize(("damaged", "first"), [((), 7), ((0,), 6), ((0, 1), 1)])
def test_damaged_checkpoints_are_passed_over(
    damaged: tuple[int, ...], first: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed after round 6: two states are there; the earlier is used if the later one is cut."""
    data = rows()
    path = tmp_path / "state.safetensors"

    def proceed(until: int, seen: list[int]) -> Training:
        def tell(record: dict[str, Any]) -> None:
            seen.append(record["round"])
            if record["round"] == until:
                raise RuntimeError

        return train(
            linear_problem(data),
            data,
            FedAvg(rounds=8),
            checkpoint=StageCheckpoint(path, every=0.0),
            evaluate_every=1,
            callback=tell,
        )

    with pytest.raises(RuntimeError):
        proceed(6, [])
    for number in damaged:
        (path, previous(path))[number].write_bytes(b"cut")
    seen: list[int] = []
    resumed = proceed(9, seen)
    whole = train(linear_problem(data), data, FedAvg(rounds=8), evaluate_every=1)
    assert seen[0] == first
    assert bit_equal(state_of(resumed), state_of(whole))
    assert caplog.text.count("is damaged") == len(damaged)


@given(st.data())
@settings(max_examples=60)
def test_flipped_bytes_in_the_header_raise_nothing_but_a_checkpoint_error(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    path, run = saved(tmp_path_factory.mktemp("flip")) if not FLIP else FLIP[0]
    FLIP[:] = [(path, run)]
    good = FLIP_CONTENT.setdefault(path, path.read_bytes())
    raw = bytearray(good)
    length = int.from_bytes(good[:8], "little")
    for place in draw.draw(st.lists(st.integers(0, 8 + length), min_size=1, max_size=3)):
        raw[place] = draw.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    try:
        load_training(path, run)
    except CheckpointError:
        return
    finally:
        path.write_bytes(good)


FLIP: list[tuple[Path, Training]] = []
FLIP_CONTENT: dict[Path, bytes] = {}


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    for other in (rows(d=13), rows("multiclass")):
        with pytest.raises(CheckpointError, match="another problem"):
            train(linear_problem(other), other, FedAvg(rounds=2), checkpoint=StageCheckpoint(path))
    data = rows()
    with pytest.raises(CheckpointError, match="another problem"):
        train(
            linear_problem(data),
            data,
            EFLoPS(density=0.5, rounds=2),
            checkpoint=StageCheckpoint(path),
        )
    with pytest.raises(CheckpointError, match="another problem"):
        train(
            linear_problem(data),
            data,
            FedAvg(rounds=2),
            seeds=(0, 1),
            checkpoint=StageCheckpoint(path),
        )


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_atomic(path, b"old")

    def broken(_self: Path, _target: Path) -> None:
        msg = "disk full"
        raise OSError(msg)

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_saving_and_loading_is_the_identity(tmp_path: Path) -> None:
    path, run = saved(tmp_path)
    before = state_of(run)
    save_training(path, run)
    load_training(path, run)
    assert bit_equal(before, state_of(run))


@pytest.mark.parametrize("participation", [0.0, -0.5, 1.5, 0])
def test_a_participation_that_makes_no_sense_is_refused(participation: float) -> None:
    data = rows()
    with pytest.raises(ValueError, match=f"participation is {participation}"):
        train(linear_problem(data), data, FedAvg(), participation=participation)


def test_every_algorithm_here_works_with_every_channel() -> None:
    for algorithm in every_algorithm(0.25).values():
        for channel in CHANNELS.values():
            check_pair(algorithm, channel)


def test_evaluation_adds_up_over_rows_and_weighs_them() -> None:
    data = rows(sizes=(30, 11))
    weighted = replace(data, weight=1.0 + torch.arange(41.0) % 3)
    problem = linear_problem(data)
    params = {"weight": normal(2, 1, 12), "bias": normal(2, 1)}
    found = evaluate(problem, params, weighted)
    output = data.x @ params["weight"][1, 0] + params["bias"][1]
    share = weighted.weight / weighted.weight.sum()
    loss = (share * (output - data.y) ** 2).sum()
    variance = (share * data.y**2).sum() - (share * data.y).sum() ** 2
    assert float(found["loss"][1]) == pytest.approx(float(loss), rel=1e-5)
    assert float(found["r2"][1]) == pytest.approx(float(1 - loss / variance), rel=1e-4)


def test_the_history_says_who_took_part_and_what_it_cost() -> None:
    data = rows()
    run = train(
        linear_problem(data),
        data,
        EFLoPS(density=0.25, rounds=6),
        seeds=(0, 1),
        participation=3,
        evaluate_every=2,
    )
    assert [r["round"] for r in run.history] == [1, 2, 3, 4, 5, 6]
    for record in run.history:
        assert sum(record["sites"].values()) == 3 * 2
        assert set(record["sites"]) <= set(data.sites)
        assert {"density", "multiplier", "seconds"} <= set(record)
    assert [("loss" in r) for r in run.history] == [True, True, False, True, False, True]
    assert run.history[-1]["bytes_up"] == int(run.bytes_up.sum())
    up = [r["bytes_up"] for r in run.history]
    assert up == sorted(up)


def test_a_model_that_cannot_be_batched_runs_on_the_loop_engine(caplog) -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = torch.nn.LSTM(2, 3, batch_first=True), torch.nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.out(self.layer(x)[0][:, -1])
            return output

    x = normal(12, 4, 2)
    data = FederatedData.from_arrays(
        x, [i % 3 for i in range(12)], sites=[i % 2 for i in range(12)], outcome="multiclass"
    )
    problem = supervised(models.from_module(Recurrent()), outcomes.Softmax(3))
    run = train(problem, data, FedAvg(), rounds=2, seeds=(0, 1))
    assert "cannot be batched" in caplog.text
    assert all(torch.isfinite(leaf).all() for leaf in run.params.values())


def test_early_stopping_keeps_the_state_with_the_lowest_validation_loss() -> None:
    """Twelve rows, forty features: least squares soon overfits, so an early state is the best."""
    x, noise = normal(24, 40), normal(24, seed=3)
    data = FederatedData.from_arrays(x, x[:, 0] + 2.0 * noise, outcome="regression")
    rows, held_out = data.take(range(12)), data.take(range(12, 24))
    problem = supervised(models.linear(40), outcomes.Squared())
    stop = EarlyStop(held_out, patience=3)
    run = train(problem, rows, FedAvg(), rounds=400, early_stop=stop, evaluate_every=5)
    full = train(problem, rows, FedAvg(), rounds=400, evaluate_every=5)
    losses = [
        float(evaluate(problem, train(problem, rows, FedAvg(), rounds=r).params, held_out)["loss"])
        for r in range(5, run.round + 1, 5)
    ]
    assert run.round < 400
    kept = float(evaluate(problem, run.params, held_out)["loss"])
    assert kept == pytest.approx(min(losses), rel=1e-6)
    assert kept < float(evaluate(problem, full.params, held_out)["loss"])


def test_regions_are_counted_by_level_and_change_nothing_else() -> None:
    data = rows(sizes=(3,) * 12)
    whole, parts = (
        train(
            linear_problem(data),
            data,
            EFLoPS(density=0.25),
            rounds=6,
            seeds=(0, 1),
            participation=7,
            channel=CHANNELS["feedback"],
            regions=regions,
        )
        for regions in (None, 3)
    )
    assert largest_gap(whole.params, parts.params) <= 1e-6 * max(
        1.0, float(whole.params["weight"].abs().max())
    )
    assert "bytes_up_by_level" not in whole.history[-1]
    for one, other in zip(whole.history, parts.history, strict=True):
        levels = other["bytes_up_by_level"]
        assert levels["sites"] == one["bytes_up"]
        assert levels["sites"] + levels["regions"] == other["bytes_up"]
        assert other["bytes_down"] == one["bytes_down"]
    assert int(parts.bytes_regions.sum()) == parts.history[-1]["bytes_up_by_level"]["regions"] > 0


def test_few_sites_evaluated_give_their_loss_always_the_same() -> None:
    """And as many as there are, or None, give that of all."""
    data = rows(sizes=(3,) * 12)

    def losses(count: int | None, seeds: tuple[int, ...] = (0,)) -> list[float]:
        run = train(
            linear_problem(data),
            data,
            FedAvg(),
            rounds=3,
            seeds=seeds,
            evaluate_every=1,
            evaluate_sites=count,
        )
        return [record["loss"] for record in run.history]

    assert losses(12) == losses(None) != losses(4)
    run = train(linear_problem(data), data, FedAvg(), rounds=2, evaluate_sites=4)
    sample = run.job.sample(4)
    assert sample is not None
    assert len(set(sample)) == 4
    chosen = data.take(torch.isin(data.site_of_row, torch.tensor(sample)))
    assert run.history[-1]["loss"] == pytest.approx(
        float(evaluate(run.job.problem, run.params, chosen)["loss"]), rel=1e-6
    )


def test_evaluation_in_pieces_is_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rows(sizes=(9, 1, 14, 2, 6))
    run = train(linear_problem(data), data, FedAvg(), rounds=1)
    whole = evaluate(run.job.problem, run.params, data)
    monkeypatch.setattr("fedsift.evaluation.GATHERED_ROWS", 5)
    monkeypatch.setattr("fedsift.evaluation.EVALUATION_ROWS", 7)
    for sites in (None, range(5)):
        found = evaluate(run.job.problem, run.params, data, sites)
        for name, value in whole.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)
