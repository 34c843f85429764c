"""The methods to forget with, on a small federation: laws, costs, membership inference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedsift
from fedsift import trees
from fedsift.algorithms.erasers import FedEraser, ProjectedAscent, StoredFedAvg
from fedsift.data import FederatedData, iid
from fedsift.models import from_module, mlp
from fedsift.outcomes import Softmax
from fedsift.problems import supervised
from fedsift.training import Training, train
from fedsift.unlearning import membership
from fedsift.unlearning.in_memory import task_of
from fedsift.unlearning.methods import FORGETTERS, Task, unlearn
from fedsift.unlearning.scope import Scope


@pytest.fixture(scope="module")
def trained() -> Training:
    """Three overlapping classes at three sites; an eighth of the rows of site_1 is held out."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(96) % 3
    x = torch.eye(3, 6)[y] + torch.randn(96, 6, generator=generator)
    data = iid(FederatedData.from_arrays(x, y, outcome="multiclass"), 3, 0)
    problem = supervised(from_module(mlp((6, 8, 3))), Softmax(3))
    algorithm = StoredFedAvg(rounds=12, local_steps=2, learning_rate=0.3)
    return train(problem, data, algorithm, evaluate_every=100, compile=False)


@pytest.fixture(scope="module")
def task(trained: Training) -> Task:
    held_out = torch.zeros(96, dtype=torch.bool)
    held_out[:8] = True
    found = task_of(trained, Scope(sites=("site_1",)), None, held_out)
    return replace(found, norms=tuple(r["update_norm"] for r in trained.history))


def test_retraining_is_the_training_without_the_rows(trained: Training, task: Task) -> None:
    """Bit for bit, and with the cost of the two sites that are left."""
    found = unlearn(task, "retrain")
    rest = trained.job.data.take(torch.arange(32, 96))
    alone = train(
        trained.job.problem, rest, trained.job.algorithm, evaluate_every=100, compile=False
    )
    assert all(torch.equal(found.params[k], v[0]) for k, v in alone.params.items())
    assert found.local_steps == 12 * 2 * 2
    assert found.bytes_total == int(alone.bytes_up + alone.bytes_down)


@pytest.mark.parametrize("method", [m for m in FORGETTERS if m != "retrain"])
def test_every_method_changes_the_model_and_counts_its_bytes(task: Task, method: str) -> None:
    options: dict[str, Any] = {} if method == "federaser" else {"rounds": 3}
    found = unlearn(task, method, **options)
    assert all(torch.isfinite(v).all() for v in found.params.values())
    assert any(not torch.equal(found.params[k], v) for k, v in task.params.items())
    assert found.bytes_up > 0
    assert found.bytes_down > 0
    assert found.local_steps > 0


def test_federaser_takes_the_stored_lengths(trained: Training, task: Task) -> None:
    """With every update calibrated in place of every second, each step has the stored length."""
    norms = task.norms
    assert norms is not None
    algorithm = FedEraser(rounds=1, norms=norms[:1], learning_rate=0.3)
    start = trained.job.problem.init(torch.tensor(7))
    state = algorithm.server_init(trained.job.problem, torch.tensor(0))._replace(theta=start)
    run = train(
        trained.job.problem, task.rest(), algorithm, start=trees.stack([state]), compile=False
    )
    moved = trees.norm(trees.subtract(trees.unstack(run.params, 0), start))
    assert float(moved) == pytest.approx(norms[0], rel=1e-4)


def test_ascent_stays_in_its_ball(task: Task) -> None:
    found = unlearn(task, "ascent", radius=0.05, local_steps=200, learning_rate=1.0)
    away = trees.norm(trees.subtract(found.params, task.params))
    assert float(away) <= 0.05 * float(trees.norm(task.params)) * (1 + 1e-5)
    assert ProjectedAscent().rounds == 1


def test_nothing_to_forget_leaves_the_model(task: Task) -> None:
    """Byte-identical, and nothing is sent."""
    none = replace(task, data=replace(task.data, role=torch.zeros_like(task.role)))
    found = unlearn(none, "fumegs", target=0.1)
    assert found.stop_reason == "nothing_to_forget"
    assert all(torch.equal(found.params[k], v) for k, v in task.params.items())
    assert found.bytes_total == 0


def test_everything_to_forget_is_refused(task: Task) -> None:
    every = replace(task, data=replace(task.data, role=torch.ones_like(task.role)))
    with pytest.raises(ValueError, match="nothing would be left to keep"):
        unlearn(every, "fumegs", target=0.1)


def test_from_python_the_model_comes_back(trained: Training) -> None:
    held_out = torch.zeros(96, dtype=torch.bool)
    held_out[:8] = True
    report = fedsift.forget(trained, sites=["site_1"], held_out=held_out, rounds=3)
    assert report.guarantee == "empirical"
    assert report.params is not None
    assert set(report.measures["before"]) >= {"forget_accuracy", "held_out_accuracy"}
    with pytest.raises(ValueError, match="nothing says when to stop"):
        fedsift.forget(trained, sites=["site_1"])
    with pytest.raises(ValueError, match="no site is called 'x'"):
        fedsift.forget(trained, sites=["x"], target=0.1)
    with pytest.raises(ValueError, match="nothing is named"):
        fedsift.forget(trained, target=0.1)


def test_batch_norm_is_refused_and_integer_buffers_are_not_touched() -> None:
    with pytest.raises(ValueError, match="running statistics"):
        from_module(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))


def test_inference_on_scores_that_tell_all_or_nothing() -> None:
    """Separated: AUC 1, rate 1. The same: AUC ½, rate about 1 %."""
    low, high = torch.linspace(0, 1, 200), torch.linspace(2, 3, 200)
    apart = membership.infer(high, low)
    assert (apart.auc.value, apart.tpr_at_1_fpr.value) == (1.0, 1.0)
    same = membership.infer(low, low)
    assert same.auc.value == pytest.approx(0.5)
    assert same.tpr_at_1_fpr.value == pytest.approx(0.01, abs=0.006)
    assert same.auc.low < 0.5 < same.auc.high


def test_the_interval_of_the_auc_covers() -> None:
    """Scores of equal law: 95 % of 400 intervals should hold ½; 90 % at least must."""
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(400):
        a, b = torch.randn(2, 40, generator=generator)
        found = membership.infer(a, b).auc
        held += found.low <= 0.5 <= found.high
    assert held >= 360


def test_wilson_by_hand() -> None:
    """8 of 10 with z = 1.96: (.490, .943)."""
    found = membership.wilson(8, 10)
    assert found.low == pytest.approx(0.490, abs=1e-3)
    assert found.high == pytest.approx(0.943, abs=1e-3)


def test_the_likelihood_ratio_prefers_what_shadows_say() -> None:
    """Members' scores around 3, others' around 0: a row at 3 is a member, one at 0 is none."""
    generator = torch.Generator().manual_seed(0)
    inside = 3 + torch.randn(16, 2, generator=generator).double()
    outside = torch.randn(16, 2, generator=generator).double()
    inside[0, 0] = torch.nan
    found = membership.likelihood_ratio(torch.tensor([3.0, 0.0]).double(), inside, outside)
    assert found[0] > 0 > found[1]


def test_shadow_models_tell_a_memorised_row() -> None:
    """A model that knows the rows it was fitted to: s = 5 inside, -5 outside; LiRA finds it."""
    problem = supervised(fedsift.linear(1, 2), Softmax(2))
    x, y = torch.arange(12.0).unsqueeze(1), torch.zeros(12, dtype=torch.int64)

    def fit(mask: Tensor, number: int) -> trees.Tree:
        return {"weight": torch.zeros(2, 1), "bias": torch.tensor([float(mask.sum()) / 6, 0.0])}

    inside, outside = membership.shadow_scores(fit, problem, x, y, 8)
    assert bool((inside.isnan() ^ outside.isnan()).all())
    assert inside.shape == (8, 12)
