"""Games between sites and inside a model: several objectives, policies."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedsift import random
from fedsift.outcomes import weighted_mean
from fedsift.problems import Batch
from fedsift.sets import Ball, Box, Product, Simplex
from fedsift.trees import Tree
from fedsift.vi.named import draw
from fedsift.vi.problem import VIProblem, game
from fedsift.vi.tasks import by_site, dealt

STATES, ACTIONS = 3, 4


def multi_objective(*, seed: int = 0, n_sites: int = 20, heterogeneity: float = 0.5) -> VIProblem:
    """Return a game of three players over one model: accuracy, latency, energy.

    ``accuracy`` chooses weights w in a ball to minimise its logistic loss plus what the others
    charge, t (½ Σ a_j w_j² - 1) + e (½ Σ b_j w_j² - 1); ``latency`` and ``energy`` choose the
    prices t, e in [0, 1] to earn most, less t²/20 and e²/20. a_j and b_j are what feature j costs.
    Monotone: the charges are convex in w and cancel between the players. 569 tumours of
    scikit-learn.
    """
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    target = torch.from_numpy(y).double()
    features = torch.from_numpy((x - x.mean(0)) / x.std(0)) / x.shape[1] ** 0.5
    site = dealt(target.long(), n_sites, heterogeneity, seed)
    rows = torch.cat([2.0 * target.unsqueeze(1) - 1.0, features], 1)
    size = features.shape[1]
    costs = random.uniform(random.key("costs", seed), (2, size), torch.float64)

    def over(params: Tree) -> Tensor:
        return 0.5 * costs @ params["w"].square() - 1.0

    def accuracy(params: Tree, batch: Batch) -> Tensor:
        margins = batch.x[:, 0] * (batch.x[:, 1:] @ params["w"])
        prices = torch.cat([params["t"], params["e"]])
        return weighted_mean(softplus(-margins), batch.weight) + prices @ over(params)

    def latency(params: Tree, batch: Batch) -> Tensor:  # noqa: ARG001
        return 0.05 * params["t"].square().sum() - params["t"].sum() * over(params)[0]

    def energy(params: Tree, batch: Batch) -> Tensor:  # noqa: ARG001
        return 0.05 * params["e"].square().sum() - params["e"].sum() * over(params)[1]

    players = {
        "accuracy": (accuracy, ("w",)),
        "latency": (latency, ("t",)),
        "energy": (energy, ("e",)),
    }
    start = {
        "w": torch.zeros(size, dtype=torch.float64),
        "t": torch.full((1,), 0.5, dtype=torch.float64),
        "e": torch.full((1,), 0.5, dtype=torch.float64),
    }
    sets = Product({"w": Ball(20.0), "t": Box(0.0, 1.0), "e": Box(0.0, 1.0)})
    return game(players, start, sets, by_site(rows, site), name="multi_objective")


def policy_game(*, seed: int = 0, n_sites: int = 20, heterogeneity: float = 0.5) -> VIProblem:
    """Return a zero-sum game of policies: two players, three states, four actions in each.

    Site c sees state s with frequency d_cs and payoffs M_cs there; a player's policy is a point of
    one simplex a state. The row player pays Σ_s d_s x_sᵀM_s y_s + τ(Σ x log x - Σ y log y) with
    τ = .05: the entropy makes the equilibrium unique. One decision a state, no transitions.
    """
    key = random.key("policy_game", seed)
    shared = draw(key, "payoffs", STATES, ACTIONS, ACTIONS)
    own = heterogeneity * draw(key, "own", n_sites, STATES, ACTIONS, ACTIONS)
    often = torch.softmax(draw(key, "states", n_sites, STATES), -1)
    rows = often[..., None, None] * (shared + own - own.mean(0))
    tau, names = 0.05, [(f"x/{s}", f"y/{s}") for s in range(STATES)]

    def disorder(policy: Tensor) -> Tensor:
        return (policy * (policy + 1e-3).log()).sum()

    def paid(params: Tree, batch: Batch) -> Tensor:
        share = (batch.weight / batch.weight.sum()).to(batch.x.dtype)
        M = torch.tensordot(share, batch.x, dims=1)
        value = torch.stack([params[x] @ M[s] @ params[y] for s, (x, y) in enumerate(names)]).sum()
        for x, y in names:
            value = value + tau * (disorder(params[x]) - disorder(params[y]))
        return value

    def earned(params: Tree, batch: Batch) -> Tensor:
        return -paid(params, batch)

    players = {
        "row": (paid, tuple(x for x, _ in names)),
        "column": (earned, tuple(y for _, y in names)),
    }
    level = torch.full((ACTIONS,), 1.0 / ACTIONS, dtype=torch.float64)
    start = {name: level.clone() for pair in names for name in pair}
    sets = Product({name: Simplex() for name in start})
    return game(players, start, sets, by_site(rows, torch.arange(n_sites)), name="policy_game")
