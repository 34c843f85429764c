"""Learning tasks as variational inequalities: fair and robust classification, writers, roles."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedsift import random
from fedsift.data import DataError, FederatedData
from fedsift.outcomes import weighted_mean
from fedsift.problems import Batch
from fedsift.sets import Ball, Product, Simplex, Slab
from fedsift.trees import Tree
from fedsift.vi.problem import VIProblem, from_loss, saddle

RIDGE = 0.01
SYMBOLS = " abcdefghijklmnopqrstuvwxyz'"
CONTEXT = 4


def fair_logistic(
    *, seed: int = 0, n_sites: int = 20, heterogeneity: float = 0.5, radius: float = 10.0
) -> VIProblem:
    """Return min_w max_q Σ_g q_g L_g(w) + .005 ‖w‖²: logistic regression, fair to the worst group.

    Real rows, the 442 diabetes patients that scikit-learn ships; the target is a progression above
    the median, the four groups are sex by age (below and above the median). w is in a ball, q on a
    simplex. ``heterogeneity``: the share of rows that are dealt to sites in order of their group.

    Source: Mohri, Sivek & Suresh, "Agnostic federated learning", 2019 (their groups are sites).
    """
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    old, sex = x[:, 0] > np.median(x[:, 0]), x[:, 1] > 0
    group = torch.from_numpy(2 * sex + old)
    target = torch.from_numpy(y > np.median(y)).double()
    return _fair(
        "fair_logistic", x, target, group, dealt(group, n_sites, heterogeneity, seed), radius
    )


def robust_logistic(
    *, seed: int = 0, n_sites: int = 20, heterogeneity: float = 0.5, radius: float = 10.0
) -> VIProblem:
    """Return the same over sites: logistic regression that is robust to any mixture of the sites.

    Real rows, the 569 tumours (30 features) that scikit-learn ships; sites differ in their share of
    malignant ones by ``heterogeneity``.
    """
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    target = torch.from_numpy(y).double()
    site = dealt(target.long(), n_sites, heterogeneity, seed)
    return _fair("robust_logistic", x, target, site, site, radius)


def _fair(
    name: str, x: np.ndarray, target: Tensor, group: Tensor, site: Tensor, radius: float
) -> VIProblem:
    """Rows are [features, 1, N/n_g at the row's group]; labels ±1 are the first column."""
    groups = int(group.max()) + 1
    features = torch.from_numpy((x - x.mean(0)) / x.std(0)) / x.shape[1] ** 0.5
    counts = torch.bincount(group, minlength=groups).double()
    member = torch.nn.functional.one_hot(group, groups).double() * (len(group) / counts)
    ones = torch.ones(len(group), 1, dtype=torch.float64)
    rows = torch.cat([2.0 * target.unsqueeze(1) - 1.0, features, ones, member], 1)
    size = features.shape[1] + 1

    def margins(params: Tree, batch: Batch) -> Tensor:
        value: Tensor = batch.x[:, 0] * (batch.x[:, 1 : size + 1] @ params["w"])
        return value

    def loss(params: Tree, batch: Batch) -> Tensor:
        weights = batch.x[:, size + 1 :] @ params["q"]
        own = weighted_mean(weights * softplus(-margins(params, batch)), batch.weight)
        return own + 0.5 * RIDGE * params["w"].square().sum()

    def measures(params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        right = (margins(params, batch) > 0).to(batch.x.dtype)
        inside = (batch.x[:, size + 1 :] > 0) * batch.weight.unsqueeze(1)
        return {
            f"accuracy_{g}": ((right * inside[:, g]).sum(), inside[:, g].sum())
            for g in range(groups)
        } | {"accuracy": ((right * batch.weight).sum(), batch.weight.sum())}

    start = {
        "w": torch.zeros(size, dtype=torch.float64),
        "q": torch.full((groups,), 1.0 / groups, dtype=torch.float64),
    }
    sets = Product({"w": Ball(radius), "q": Simplex()})
    return saddle(
        loss,
        by_site(rows, site),
        start,
        ("q",),
        sets,
        name=name,
        measures=measures,
        summarise=_worst,
    )


def demographic_parity(features: Tensor, group: Tensor, limit: float) -> Slab:
    """Return the weights w for which the mean scores of two groups differ by at most ``limit``.

    |⟨w, m_1 - m_0⟩| ≤ limit, a slab; ``features`` [n, d], ``group`` [n] of zeros and ones.
    """
    means = [features[group == value].double().mean(0) for value in (0, 1)]
    return Slab(means[1] - means[0], -limit, limit)


def digits_writers(*, seed: int = 0, n_sites: int = 20, heterogeneity: float = 1.0) -> VIProblem:
    """Return softmax regression on scikit-learn's 1,797 digits, in ``n_sites`` made-up hands.

    Writer c shears, shifts and thickens every digit in its own way, more with ``heterogeneity``.
    A stand-in for real writers, and called so.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images = torch.from_numpy(x / 16.0).reshape(-1, 1, 8, 8)
    site = torch.arange(len(y)) % n_sites
    key = random.key("digits_writers", seed)
    styled = torch.zeros(len(y), 64, dtype=torch.float64)
    for c in range(n_sites):
        shear, across, down, thick = (
            heterogeneity * random.normal(random.fold(key, c), (4,), torch.float64)
        ).tolist()
        motion = torch.tensor([[[1.0, 0.25 * shear, 0.15 * across], [0.0, 1.0, 0.15 * down]]])
        own = images[site == c]
        grid = torch.nn.functional.affine_grid(
            motion.expand(len(own), 2, 3).double(), list(own.shape), align_corners=False
        )
        moved = torch.nn.functional.grid_sample(own, grid, align_corners=False)
        styled[site == c] = moved.reshape(-1, 64).clamp(0.0, 1.0) ** (2.0 ** (0.4 * thick))
    return _softmax("digits_writers", styled, torch.from_numpy(y), site, 10)


def shakespeare_roles(*, seed: int = 0, n_sites: int = 20, data: str | None = None) -> VIProblem:
    """Return a character model of Shakespeare: the next of 28 symbols from the four before it.

    A site is a speaking role (the text's "NAME:" lines), the ``n_sites`` that say most, 400 places
    of each. Softmax regression on the four symbols, one-hot. The text is looked for in ``data`` or
    the folder that FEDSIFT_DATA names, as shakespeare/tinyshakespeare.txt.

    Raises:
        DataError: there is no such file.
    """
    folder = Path(data or os.environ.get("FEDSIFT_DATA", "."))
    file = folder / "shakespeare" / "tinyshakespeare.txt"
    if not file.exists():
        msg = f"no file {file}; name the folder that holds shakespeare/ with FEDSIFT_DATA"
        raise DataError(msg)
    spoken: Counter[str] = Counter()
    lines: dict[str, str] = {}
    for speech in re.split(r"\n\n+", file.read_text()):
        name, _, text = speech.partition(":\n")
        if text:
            clean = "".join(s for s in text.lower().replace("\n", " ") if s in SYMBOLS)
            lines[name] = f"{lines.get(name, '')} {clean}"
            spoken[name] += len(clean)
    names = [name for name, _ in spoken.most_common(n_sites)]
    key, rows, targets, site = random.key("shakespeare", seed), [], [], []
    for c, name in enumerate(names):
        codes = torch.tensor([SYMBOLS.index(s) for s in lines[name]])
        windows = codes.unfold(0, CONTEXT + 1, 1)
        draw = random.uniform(random.fold(key, name), (len(windows),), torch.float64)
        chosen = windows[draw.argsort()[:400]]
        rows.append(torch.nn.functional.one_hot(chosen[:, :CONTEXT], len(SYMBOLS)).flatten(1))
        targets.append(chosen[:, CONTEXT])
        site.append(torch.full((len(chosen),), c))
    return _softmax(
        "shakespeare_roles",
        torch.cat(rows).double(),
        torch.cat(targets),
        torch.cat(site),
        len(SYMBOLS),
        tuple(names),
    )


def _softmax(
    name: str, x: Tensor, y: Tensor, site: Tensor, classes: int, names: tuple[str, ...] = ()
) -> VIProblem:
    """Multinomial logistic regression with a ridge; rows are [class, site, features, 1]."""
    head = torch.stack([y.double(), site.double()], 1)
    rows = torch.cat([head, x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    size, sites = x.shape[1] + 1, int(site.max()) + 1

    def logits(params: Tree, batch: Batch) -> Tensor:
        return torch.log_softmax(batch.x[:, 2:] @ params["w"].T, -1)

    def loss(params: Tree, batch: Batch) -> Tensor:
        chosen = logits(params, batch).gather(1, batch.x[:, :1].long()).squeeze(1)
        ridge = 0.5 * RIDGE * params["w"].square().sum()
        return ridge - weighted_mean(chosen, batch.weight)

    def measures(params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        right = (logits(params, batch).argmax(-1) == batch.x[:, 0]).to(batch.x.dtype)
        at = (batch.x[:, 1:2] == torch.arange(sites)) * batch.weight.unsqueeze(1)
        own = {f"accuracy_{c}": ((right * at[:, c]).sum(), at[:, c].sum()) for c in range(sites)}
        return own | {"accuracy": ((right * batch.weight).sum(), batch.weight.sum())}

    start = {"w": torch.zeros(classes, size, dtype=torch.float64)}
    data = by_site(rows, site, names)
    return from_loss(loss, data, start, Ball(100.0), name=name, measures=measures, summarise=_worst)


def _worst(means: dict[str, Tensor]) -> dict[str, Tensor]:
    groups = [v for k, v in means.items() if k != "accuracy"]
    lowest = torch.stack(groups).nan_to_num(nan=torch.inf).amin(0)
    return {"accuracy": means["accuracy"], "worst_accuracy": lowest}


def dealt(group: Tensor, n_sites: int, heterogeneity: float, seed: int) -> Tensor:
    """Deal rows to sites of equal size, the first share of a shuffle in order of their group."""
    draw = random.uniform(random.key("dealt", seed), (len(group),), torch.float64)
    order = draw.argsort()
    cut = round(min(max(heterogeneity, 0.0), 1.0) * len(group))
    skewed = order[:cut]
    skewed = skewed[group[skewed].argsort(stable=True)]
    site = torch.empty(len(group), dtype=torch.int64)
    site[skewed] = torch.arange(cut) * n_sites // max(cut, 1)
    site[order[cut:]] = torch.arange(len(group) - cut) % n_sites
    return site


def by_site(rows: Tensor, site: Tensor, names: tuple[str, ...] = ()) -> FederatedData:
    """Return float64 rows [N, ...] by site."""
    order = site.argsort(stable=True)
    counts = torch.bincount(site).tolist()
    offsets = tuple(np.cumsum([0, *counts]).tolist())
    names = names or tuple(f"site_{c + 1}" for c in range(len(counts)))
    return FederatedData(
        x=rows[order].double(),
        y=torch.zeros(len(rows)),
        weight=torch.ones(len(rows)),
        offsets=offsets,
        sites=names,
        features=(),
        rows=tuple(f"row_{n + 1}" for n in order.tolist()),
        outcome="regression",
    )
