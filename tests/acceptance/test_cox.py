"""Sparse Cox models on breast cancer: E-FLoPS over five sites against a lasso on pooled rows.

198 patients, 76 genes and four clinical features, 51 distant metastases (scikit-survival's set;
Desmedt et al., Clin. Cancer Res. 13, 2007). Both keep ten features. Concordance on the same
held-out rows, pairs within sites.
"""

import numpy as np
import pytest
import torch
from torch.func import vmap

import fedsift
from fedsift import trees
from fedsift.algorithms import EFLoPS, Tuning
from fedsift.channels import TopM
from fedsift.data import FederatedData, Standardiser, iid, split
from fedsift.evaluation import evaluate
from fedsift.experiments.lanes import by_part, choices, joined, train_side_by_side
from fedsift.linear_problems import constants_of, linear_problem
from fedsift.outcomes.survival import concordance
from fedsift.selection import t_interval

KEPT = 10


def patients() -> FederatedData:
    datasets = pytest.importorskip("sksurv.datasets", reason="scikit-survival is not installed")
    table, y = datasets.load_breast_cancer()
    for name in table.select_dtypes("category"):
        table[name] = table[name].cat.codes.astype(float)
    data = FederatedData.from_arrays(
        table.to_numpy(dtype=float), y["e.tdm"], time=y["t.tdm"], features=list(table.columns),
        target="metastasis",
    )  # fmt: skip
    return iid(data, 5, seed=0)


def lasso(train: FederatedData, test: FederatedData) -> float:
    """Return the concordance of the path's last model of at most ten features."""
    from sksurv.linear_model import CoxnetSurvivalAnalysis

    target = np.array(
        [(value > 0, abs(value)) for value in train.y.tolist()], dtype=[("seen", "?"), ("t", "<f8")]
    )
    path = CoxnetSurvivalAnalysis(l1_ratio=1.0, n_alphas=200, alpha_min_ratio=0.05)
    path.fit(train.x.double().numpy(), target)
    few = np.flatnonzero((path.coef_ != 0).sum(0) <= KEPT)
    risk = test.x.double() @ torch.from_numpy(path.coef_[:, few[-1]].copy())
    pairs = [concordance(risk[s], test.y[s], test.weight[s]) for s in test.slices]
    right, total = (sum(float(pair[k]) for pair in pairs) for k in (0, 1))
    return right / total


def fitted(parts: list[FederatedData], seeds: int, rounds: int) -> list[trees.Tree]:
    """Return the refitted ensemble of each part, all parts side by side."""
    problem = linear_problem(parts[0], constants=constants_of(parts[0], 1.0))
    method = EFLoPS(density=KEPT / parts[0].n_features, rounds=rounds)
    search = train_side_by_side(
        problem, parts, method, seeds=seeds, participation=1.0, channel=TopM(KEPT)
    )
    weights = [found["params"]["weight"] for found in by_part(search, len(parts))]
    chosen = torch.stack([choices(weight[:, 0], KEPT)[1] for weight in weights])
    means = {
        "weight": torch.stack([w.mean(0) for w in weights]),
        "bias": torch.zeros(len(parts), 1),
    }
    data, part_of_site = joined(parts)
    tuning = Tuning(rounds=100, local_steps=1)
    refit = fedsift.train(
        problem.with_ridge(1.0 / parts[0].n_samples), data, tuning, seeds=range(len(parts)),
        start=vmap(lambda p, m: tuning.start(problem, p, m))(means, chosen),
        eligible=torch.arange(len(parts)).unsqueeze(1) == part_of_site, compile=False,
        evaluate_every=100,
    )  # fmt: skip
    return [trees.unstack(refit.params, number) for number in range(len(parts))]


def compared(splits: int, seeds: int = 8, rounds: int = 300) -> tuple[list[float], list[float]]:
    """Return the concordance of both on each split."""
    data = patients()
    pairs = [split(data, number) for number in range(splits)]
    learned = [Standardiser.fit(train) for train, _ in pairs]
    parts = [s.apply(train) for s, (train, _) in zip(learned, pairs, strict=True)]
    tests = [s.apply(test) for s, (_, test) in zip(learned, pairs, strict=True)]
    ours = [
        float(evaluate(linear_problem(test), trees.stack([params]), test)["concordance"])
        for params, test in zip(fitted(parts, seeds, rounds), tests, strict=True)
    ]
    return ours, [lasso(train, test) for train, test in zip(parts, tests, strict=True)]


@pytest.mark.acceptance
@pytest.mark.filterwarnings("ignore")
def test_a_few_splits_rank_better_than_chance(figure) -> None:
    ours, lassos = compared(3, seeds=2, rounds=60)
    figure("breast cancer, 10 features, 3 splits: concordance", float(np.mean(ours)))
    figure("breast cancer, 10 features, 3 splits: pooled lasso", float(np.mean(lassos)))
    assert np.mean(ours) > 0.5


@pytest.mark.acceptance
@pytest.mark.acceptance_long
@pytest.mark.filterwarnings("ignore")
def test_sites_rank_as_well_as_a_lasso_on_pooled_rows(figure) -> None:
    ours, lassos = compared(30)
    figure("breast cancer, 10 features, 30 splits: concordance", t_interval(ours, 0.25).to_json())
    figure("breast cancer, 10 features, 30 splits: pooled lasso", float(np.mean(lassos)))
    assert np.mean(ours) >= np.mean(lassos) - 0.01
