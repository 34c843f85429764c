"""The work of the Golub experiment: a method on all splits of the patients, as lanes of one run.

Every split is five sites of its own; a lane, a seed on a split, sees only those. The genes of all
splits stand in one list, and those that a split's training patients rule out are 0 there: their
weights never move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedsift import trees
from fedsift.algorithms import Tuning
from fedsift.data import (
    DataError,
    FederatedData,
    How,
    Standardiser,
    dirichlet_counts,
    golub38,
    golub_raw,
    golub_recipe,
    split,
)
from fedsift.evaluation import evaluate
from fedsift.linear_problems import linear_problem
from fedsift.methods import find_method
from fedsift.models import GateUnit
from fedsift.problems import Problem
from fedsift.selection import ensemble_support, nogueira_stability
from fedsift.settings import Settings
from fedsift.training import Training, train
from fedsift.tuning import tune

SITES, ALPHA = 5, 2.0
RIDGE = 1.0  # weight of the refit's penalty, in units of one patient
# name in the tables → (method, its knobs, whether its runs differ by seed with everybody there)
METHODS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "E-FLoPS": ("eflops", {}, True),
    "FedIter-HT": ("fediterht", {}, False),
    "FedIter-HT, scheduled": ("fediterht", {"schedule": "cubic"}, False),
    "FLoPS (T=0)": ("flops", {}, True),
    "Fed-HT": ("fedht", {}, False),
    "Fed-HT, scheduled": ("fedht", {"schedule": "cubic"}, False),
    "FedAvg + top-m": ("fedavg", {}, False),
}
POOLED = ("pooled L1, largest", "pooled t-test")


class Splits(NamedTuple):
    """Training rows of all splits, site names ``split:site``; test rows, one set a split."""

    train: FederatedData
    tests: list[FederatedData]
    first: int

    @property
    def split_of_site(self) -> Tensor:
        """Place of each site's split among the splits, [C]."""
        numbers = [int(name.split(":", 1)[0]) for name in self.train.sites]
        return torch.tensor(numbers) - self.first


def full_data() -> bool:
    """Return whether the 72 patients are here."""
    try:
        golub_raw()
    except DataError:
        return False
    return True


@cache
def make_splits(how: How, first: int, count: int, *, classes: bool = False) -> Splits:
    """Return ``count`` splits: 57 patients at five sites, and 15 to test (30 and 8 of the 38).

    Genes are chosen, arrays or genes standardised, on the training patients alone. ``classes``:
    for a softmax.
    """
    raw = golub_raw() if full_data() else golub38()
    fraction = 15 / 72 if raw.n_samples == 72 else 8 / 38
    pieces, tests, sites = [], [], []
    genes = golub_recipe(raw).features if raw.n_samples == 72 else raw.features
    place = {name: number for number, name in enumerate(raw.rows)}
    for number in range(first, first + count):
        rows, _ = split(raw, number, fraction)
        chosen = [place[name] for name in rows.rows]
        scaled = golub_recipe(raw, chosen) if raw.n_samples == 72 else raw
        rows, test = split(scaled, number, fraction)
        standardiser = Standardiser.fit(rows, how)
        spread = dirichlet_counts(rows, SITES, ALPHA, number)
        pieces.append(_on_all_genes(standardiser.apply(spread), genes))
        tests.append(_on_all_genes(standardiser.apply(test), genes))
        names = [spread.sites[c] for c in spread.site_of_row.tolist()]
        sites += [f"{number}:{name}" for name in names]
    joined = FederatedData.from_arrays(
        torch.cat([piece.x for piece in pieces]),
        [piece.classes[code] for piece in pieces for code in piece.y.tolist()],
        sites=sites,
        features=genes,
        outcome="multiclass" if classes else "binary",
        target=raw.target,
    )
    if classes:
        tests = [replace(test, outcome="multiclass") for test in tests]
    return Splits(replace(joined, descriptions=raw.descriptions), tests, first)


def _on_all_genes(data: FederatedData, genes: tuple[str, ...]) -> FederatedData:
    """Return the rows with a column for each of ``genes``, 0 where the data have none."""
    place = {name: column for column, name in enumerate(genes)}
    wide = torch.zeros(data.n_samples, len(genes))
    wide[:, [place[name] for name in data.features]] = data.x
    return replace(data, x=wide, features=genes, descriptions={})


def fit_splits(
    how: How,
    method: str,
    kept: int,
    gate: GateUnit,
    splits: int,
    seeds: int,
    rounds: int,
    tuning_rounds: int,
    participation: float = 1.0,
    first: int = 0,
    knobs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a method makes of every split, ``seeds`` runs each: scores and chosen genes.

    ``kept`` gates, one a gene (``gate="feature"``, one logit) or one a weight of a softmax
    (``"scalar"``). The search is followed by a federated refit of each run and of the ensemble.
    ``knobs``: hyperparameters in place of the method's own.
    """
    data = make_splits(how, first, splits, classes=gate == "scalar")
    if method in POOLED:
        return _pooled(data, method, kept)
    problem = linear_problem(data.train, gate)
    name, own, varies = METHODS[method]
    seeds = seeds if varies or participation < 1.0 else 1
    algorithm = find_method(name).build(
        "dense", rounds=rounds, density=kept / problem.gates.size, **{**own, **(knobs or {})}
    )
    which = torch.arange(splits).repeat_interleave(seeds)
    search = train(
        problem,
        data.train,
        algorithm,
        seeds=list(range(seeds)) * splits,
        eligible=which.unsqueeze(1) == data.split_of_site,
        participation=participation,
        evaluate_every=rounds,
    )
    magnitudes = vmap(problem.gates.magnitude)(search.params)
    masks = (magnitudes > 0).to(magnitudes.dtype)
    support = torch.stack(
        [ensemble_support(masks[which == s], magnitudes[which == s], kept) for s in range(splits)]
    )
    means = trees.map_tensors(
        lambda t: t.reshape(splits, seeds, *t.shape[1:]).mean(1), search.params
    )
    start = trees.map_tensors(lambda a, b: torch.cat([a, b]), search.params, means)
    lanes = torch.cat([which, torch.arange(splits)])
    params, tuned = _refitted(data, start, torch.cat([masks, support]), lanes, gate, tuning_rounds)
    scores = torch.stack(
        [_accuracies(problem, params, data.tests[int(s)], i) for i, s in enumerate(lanes)]
    )
    genes = masks.reshape(len(masks), -1, data.train.n_features).amax(1)
    chosen = support.reshape(splits, -1, data.train.n_features).amax(1)
    return {
        "accuracy": scores[len(which) :].tolist(),
        "accuracy_seeds": scores[: len(which)].reshape(splits, seeds).tolist(),
        "stability_splits": nogueira_stability(chosen),
        "stability_seeds": _mean(
            [nogueira_stability(genes[which == s]) for s in range(splits)] if seeds > 1 else []
        ),
        "bytes_total": int((search.bytes_up + search.bytes_down).sum()) // splits
        + int((tuned.bytes_up + tuned.bytes_down).sum()) // splits,
        "genes": _gene_counts(data.train, genes, chosen, params["weight"]),
    }


def fit_tuned(
    how: How,
    method: str,
    splits: int,
    trials: int,
    seeds: int,
    rounds: int,
    tuning_rounds: int,
) -> dict[str, Any]:
    """Return the accuracy on each split of a method that was tuned on that split's training rows.

    ``trials`` settings are compared by the loss on a fifth of them, held back at every site.
    """
    settings = Settings(
        method=METHODS[method][0],
        features=3,
        seeds=2,
        rounds=rounds,
        tuning_rounds=tuning_rounds,
        messages="dense",
        standardise="none",
        ridge=RIDGE,
    )
    scores: dict[str, list[float]] = {"accuracy": [], "by_default": []}
    chosen = []
    for number in range(splits):
        best = tune(make_splits(how, number, 1).train, settings, trials=trials).best
        chosen.append(best.knobs)
        for name, knobs in (("accuracy", best.knobs), ("by_default", {})):
            found = fit_splits(
                how, method, 3, "feature", 1, seeds, rounds, tuning_rounds, 1.0, number, knobs
            )
            scores[name] += found["accuracy"]
    return {**scores, "knobs": chosen}


def _refitted(
    data: Splits,
    start: trees.Tree,
    support: Tensor,
    lanes: Tensor,
    gate: GateUnit,
    rounds: int,
) -> tuple[trees.Tree, Training]:
    """Retrain on supports [L, G] of the splits ``lanes`` [L], on the genes that some lane chose."""
    by_gene = support.reshape(len(support), -1, data.train.n_features)
    columns = by_gene.amax((0, 1)).nonzero().squeeze(1)
    rows = data.train.select_features(columns)
    patients = data.train.n_samples / len(data.tests)
    small = linear_problem(rows, gate).with_ridge(RIDGE / patients)
    algorithm = Tuning(rounds=rounds, local_steps=1)
    begin = start | {"weight": start["weight"][..., columns]}
    run = train(
        small,
        rows,
        algorithm,
        seeds=list(range(len(lanes))),
        start=vmap(lambda p, m: algorithm.start(small, p, m))(
            begin, by_gene[..., columns].flatten(1)
        ),
        eligible=lanes.unsqueeze(1) == data.split_of_site,
        evaluate_every=rounds,
    )
    weight = torch.zeros_like(start["weight"])
    weight[..., columns] = run.params["weight"]
    return run.params | {"weight": weight}, run


def _accuracies(problem: Problem, params: trees.Tree, test: FederatedData, lane: int) -> Tensor:
    one = trees.map_tensors(lambda t: t[lane : lane + 1], params)
    return evaluate(problem, one, test)["accuracy"][0]


def _gene_counts(
    rows: FederatedData, genes: Tensor, chosen: Tensor, weight: Tensor
) -> list[dict[str, Any]]:
    """Return the genes chosen most often: by splits' ensembles, by runs, and their direction.

    ``weight`` [L, K, d]: the refitted weights of the runs, then of the ensembles; positive speaks
    for the second class.
    """
    towards = weight[:, -1] - (weight[:, 0] if weight.shape[1] > 1 else 0.0)
    order = (chosen.mean(0) + 1e-3 * genes.mean(0)).argsort(descending=True)
    found = []
    for gene in order[:20].tolist():
        if not (genes[:, gene].any() or chosen[:, gene].any()):
            break
        name = rows.features[gene]
        found.append(
            {
                "gene": name,
                "description": rows.descriptions.get(name, ""),
                "split_frequency": float(chosen[:, gene].mean()),
                "run_frequency": float(genes[:, gene].mean()),
                "more_speaks_for": rows.classes[int(towards[:, gene].sum() > 0)],
            }
        )
    return found


def _pooled(data: Splits, method: str, kept: int) -> dict[str, Any]:
    """Return the same for solvers that have all rows in one place: choose, refit with the ridge."""
    from sklearn.linear_model import LogisticRegression

    accuracy, chosen = [], torch.zeros(len(data.tests), data.train.n_features)
    row_split = data.split_of_site[data.train.site_of_row]
    for number, test in enumerate(data.tests):
        x, y = (t[row_split == number].numpy() for t in (data.train.x, data.train.y))
        score = _l1_scores(x, y) if method == POOLED[0] else _t_scores(x, y)
        best = np.argsort(-score, kind="stable")[:kept]
        refit = LogisticRegression(C=1.0 / RIDGE).fit(x[:, best], y)
        accuracy.append(float(refit.score(test.x[:, best].numpy(), test.y.numpy())))
        chosen[number, best] = 1.0
    return {
        "accuracy": accuracy,
        "accuracy_seeds": [[a] for a in accuracy],
        "stability_splits": nogueira_stability(chosen),
        "stability_seeds": None,
        "bytes_total": None,
        "genes": [],
    }


def _l1_scores(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return |coefficients| of an L1 fit, its strength the best of a path by 5-fold loss."""
    from sklearn.linear_model import LogisticRegressionCV

    fit = LogisticRegressionCV(
        Cs=np.logspace(-1.5, 1.0, 8),
        cv=5,
        l1_ratios=(1.0,),
        solver="liblinear",
        scoring="neg_log_loss",
        use_legacy_attributes=False,
        random_state=0,
    ).fit(x, y)
    return np.asarray(np.abs(fit.coef_[0]))


def _t_scores(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return |t| of Welch's test of each gene; 0 for a constant one."""
    groups = [x[y == code] for code in (0, 1)]
    error = sum(g.var(0, ddof=1) / len(g) for g in groups)
    gap = np.abs(groups[1].mean(0) - groups[0].mean(0))
    return np.where(error > 0, gap / np.sqrt(np.where(error > 0, error, 1.0)), 0.0)


def _mean(values: list[float]) -> float | None:
    known = [v for v in values if v == v]  # noqa: PLR0124  NaN is not equal to itself
    return sum(known) / len(known) if known else None
