"""Support recovery on the synthetic task, with default settings, beside rivals at their best step.

d = 1000, m = 50, N = 400, 5 sites, 60 % participation, 300 rounds.
"""

import pytest
import torch

from fedsift.algorithms import EFLoPS, FedAvg, FedIterHT
from fedsift.channels import Lossless, TopM
from fedsift.data import Standardiser, synthetic_regression
from fedsift.linear_problems import linear_problem
from fedsift.selection import ensemble_support, t_interval
from fedsift.training import train

STEPS = (0.003, 0.01, 0.03, 0.1, 0.3)
KEPT = 50


def recover(algorithm, channel, data_seed, *, seeds, samples=400):
    """Return the recovery of single runs and of their ensemble, and the bytes of a seed."""
    drawn = synthetic_regression(n_samples=samples, seed=data_seed, n_test=2)
    rows = Standardiser.fit(drawn.train, "feature").apply(drawn.train)
    problem = linear_problem(rows)
    run = train(
        problem,
        rows,
        algorithm,
        seeds=range(seeds),
        participation=0.6,
        channel=channel,
        data_seed=data_seed,
    )
    magnitude = run.params["weight"].abs().squeeze(1)
    true = (drawn.coefficients != 0).double()
    chosen = (magnitude > 0).double()
    assert chosen.sum(1).tolist() == [KEPT] * seeds
    ensemble = ensemble_support(chosen, magnitude, KEPT)
    total = int((run.bytes_up + run.bytes_down).sum()) // seeds
    return float((chosen @ true).mean() / KEPT), float(ensemble @ true) / KEPT, total


def best_of_steps(kind, data_seeds):
    """Return the best mean recovery over the step sizes, and that step."""
    means = {}
    for step in STEPS:
        algorithm, values = kind(density=0.05, learning_rate=step), []
        for data_seed in data_seeds:
            try:
                values.append(recover(algorithm, Lossless(), data_seed, seeds=1)[0])
            except RuntimeError:
                values.append(0.0)
        means[step] = sum(values) / len(values)
    step = max(means, key=lambda s: means[s])
    return means[step], step, means


def figures(data_seeds):
    """Return every figure of the table."""
    table = {}
    for name, channel in {"dense": Lossless(), "feedback": TopM(KEPT)}.items():
        runs = [recover(EFLoPS(density=0.05), channel, s, seeds=8) for s in data_seeds]
        table[f"eflops_{name}"] = t_interval([r[0] for r in runs]).to_json()
        table[f"eflops_{name}_ensemble"] = t_interval([r[1] for r in runs]).to_json()
        table[f"eflops_{name}_bytes"] = sum(r[2] for r in runs) // len(runs)
    for name, kind in {"fediterht": FedIterHT, "fedavg": FedAvg}.items():
        table[name], table[f"{name}_best_step"], table[f"{name}_steps"] = best_of_steps(
            kind, data_seeds
        )
    return table


@pytest.mark.acceptance
@pytest.mark.slow
def test_recovery(figure) -> None:
    table = figures(range(5))
    for name, value in table.items():
        figure(f"synthetic recovery, N=400: {name}", value)
    assert table["eflops_dense"]["mean"] >= 0.95
    assert table["eflops_feedback"]["mean"] >= 0.92
    assert table["eflops_dense_ensemble"]["mean"] >= 0.98
    assert table["eflops_dense"]["mean"] >= table["fediterht"] + 0.15
    assert table["eflops_dense"]["mean"] >= table["fedavg"] + 0.05


@pytest.mark.acceptance
@pytest.mark.acceptance_long
@pytest.mark.parametrize("samples", [200, 250, 300, 400, 700, 1000])
def test_the_defaults_hold_over_sample_sizes(samples, figure) -> None:
    """Settings tuned by hand for this task reached .53 at N = 200 and .98 from 250 on."""
    for name, channel in {"dense": Lossless(), "feedback": TopM(KEPT)}.items():
        runs = [
            recover(EFLoPS(density=0.05), channel, s, seeds=8, samples=samples) for s in range(5)
        ]
        single = t_interval([r[0] for r in runs])
        ensemble = t_interval([r[1] for r in runs])
        figure(f"synthetic recovery, N={samples}: eflops_{name}", single.to_json())
        figure(f"synthetic recovery, N={samples}: eflops_{name}_ensemble", ensemble.to_json())
        assert single.mean >= {200: 0.5, 250: 0.85}.get(samples, 0.95)


@pytest.mark.acceptance
@pytest.mark.parametrize("data_seed", range(3))
def test_nothing_turns_non_finite_on_tiny_sites(data_seed) -> None:
    """Dirichlet(.3) counts over 10 sites: several have one or two rows."""
    drawn = synthetic_regression(
        n_samples=60,
        n_features=200,
        n_informative=10,
        n_sites=10,
        alpha=0.3,
        seed=data_seed,
        n_test=2,
    )
    assert min(drawn.train.sizes) <= 2
    rows = Standardiser.fit(drawn.train, "feature").apply(drawn.train)
    problem = linear_problem(rows)
    for algorithm in (EFLoPS(density=0.05), FedAvg(density=0.05), FedIterHT(density=0.05)):
        run = train(problem, rows, algorithm, participation=0.6, rounds=60, seeds=(0, 1))
        assert all(torch.isfinite(leaf).all() for leaf in run.params.values())
        assert run.retries.tolist() == [0, 0]
        print(type(algorithm).__name__, "sizes", drawn.train.sizes, "loss", run.history[-1]["loss"])
