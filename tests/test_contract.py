"""The six functions carry all three verbs: fit, solve and forget.

Each method here is written down as its paper's box, in a few dozen lines, and runs on both engines:
gradient tracking with two exchanges a round, two operators combined by the server, and two methods
whose site states follow what the server has of them. None of it is known to the engines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms.base import Algorithm, Info, Totals, Upload
from fedsift.channels import Channel, Lossless, TopM
from fedsift.data import FederatedData
from fedsift.engines.base import Carried, Job
from fedsift.problems import Batch, Problem
from fedsift.sites import SiteData
from fedsift.sparsity import GateMap, GateView
from fedsift.training import check_pair, train
from fedsift.trees import Tree
from tests.laws import ENGINES, job, largest_gap, linear_problem, normal, proceed

# --- solve: gradient tracking on a saddle


class Tracking(NamedTuple):
    point: Tree
    field: Tree


class Own(NamedTuple):
    field: Tree


@dataclass(frozen=True, kw_only=True)
class FedGDAGT(Algorithm):
    """FedGDA-GT: w ← w - η(F_c(w) - F_c(w_t) + F(w_t)), K local steps, then the mean.

    Two exchanges: ``gradient`` brings F(w_t) = Σ p_c F_c(w_t), ``local`` the points.

    Source: Sun & Wei, "A communication-efficient algorithm with linear convergence for federated
    minimax learning", NeurIPS 2022, algorithm 2.
    """

    exchanges: ClassVar[tuple[str, ...]] = ("gradient", "local")
    step: float
    local_steps: int = 5

    def server_init(self, problem: Problem, key: Tensor) -> Tracking:
        point = problem.init(key)
        return Tracking(point, trees.zeros_like(point))

    def download(self, problem: Problem, server: Tracking, exchange: str) -> Tree:
        return trees.join(point=server.point, field=server.field)

    def client_init(self, problem: Problem, shared: Tree) -> Own:
        return Own(trees.zeros_like(trees.part(shared, "point")))

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Own,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Own, Info]:
        operator, batch = problem.operators["loss"], data.batch(0, None, key)
        point = trees.part(shared, "point")
        if exchange == "gradient":
            own = operator(point, batch)
            return {"loss": (trees.join(field=own), data.share)}, Own(own), {}
        correction = trees.subtract(trees.part(shared, "field"), client.field)
        for _ in range(self.local_steps):
            point = trees.add_scaled(
                point, -self.step, trees.add(operator(point, batch), correction)
            )
        return {"loss": (trees.join(point=point), data.share)}, client, {}

    def server_round(
        self, problem: Problem, server: Tracking, totals: Totals, exchange: str
    ) -> tuple[Tracking, Info]:
        name = "field" if exchange == "gradient" else "point"
        return server._replace(**{name: trees.part(totals["loss"].mean, name)}), {}

    def solution(self, problem: Problem, server: Tracking) -> Tree:
        return server.point


SITES, HALF = 6, 4


def saddle(modulus: float = 0.5, spread: float = 1.0) -> FederatedData:
    """Make sites with f_c = μ/2 ‖u‖² + uᵀA_c v + a_cᵀu - μ/2 ‖v‖² - b_cᵀv, far from alike.

    The one "row" of a site is [M_c | q_c] of its operator M_c w + q_c; sites have unequal weights.
    """
    identity = modulus * torch.eye(HALF)
    rows = []
    for c in range(SITES):
        a = torch.eye(HALF) + spread * normal(HALF, HALF, seed=c) / 2
        m = torch.cat([torch.cat([identity, a], 1), torch.cat([-a.T, identity], 1)])
        rows.append(torch.cat([m, normal(2 * HALF, 1, seed=50 + c)], 1))
    names = tuple(f"player {c}" for c in range(SITES))
    return FederatedData(
        x=torch.stack(rows),
        y=torch.zeros(SITES),
        weight=torch.arange(1.0, SITES + 1),
        offsets=tuple(range(SITES + 1)),
        sites=names,
        features=(),
        rows=names,
        outcome="regression",
    )


def affine_operator(params: Tree, batch: Batch) -> Tree:
    share = (batch.weight / batch.weight.sum()).double()
    system = torch.tensordot(share, batch.x.double(), dims=1)
    u, v = (system[:, :-1] @ torch.cat([params["u"], params["v"]]) + system[:, -1]).split(HALF)
    return {"u": u, "v": v}


def residual(params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    return {"loss": (trees.norm(affine_operator(params, batch)), torch.ones(()))}


def affine_problem() -> Problem:
    def init(key: Tensor) -> Tree:
        draw = random.normal(key, (2, HALF), torch.float64)
        return {"u": draw[0], "v": draw[1]}

    return Problem(init=init, operators={"loss": affine_operator}, evaluate=residual)


def equilibrium(data: FederatedData) -> Tensor:
    share = data.weight.double() / data.weight.double().sum()
    system = torch.tensordot(share, data.x.double(), dims=1)
    solution: Tensor = torch.linalg.solve(system[:, :-1], -system[:, -1])
    return solution


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_tracking_solves_a_saddle_of_unlike_sites(engine: str) -> None:
    """Linear convergence to the solution of the mean system, to 1e-7, from any start."""
    seeds = (0,) if engine == "loop" else (0, 1)
    data = saddle()
    run = train(affine_problem(), data, FedGDAGT(step=0.1, rounds=90), seeds=seeds, engine=engine)
    found = torch.cat([run.params["u"], run.params["v"]], 1)
    assert (found - equilibrium(data)).abs().max() < 1e-7
    assert run.history[-1]["loss"] < 1e-7


def test_without_tracking_the_same_sites_go_elsewhere() -> None:
    """What the second exchange is for: averaging alone stops away from the solution."""

    @dataclass(frozen=True, kw_only=True)
    class Untracked(FedGDAGT):
        exchanges: ClassVar[tuple[str, ...]] = ("local",)

    data = saddle()
    run = train(affine_problem(), data, Untracked(step=0.1, rounds=90))
    found = torch.cat([run.params["u"], run.params["v"]], 1)
    assert (found - equilibrium(data)).abs().max() > 0.01


# --- forget: two operators at one site, combined by the server


class Unlearning(NamedTuple):
    point: Tree
    accepted: Tree
    length: Tensor
    limit: Tensor


@dataclass(frozen=True, kw_only=True)
class TwoOperators(Algorithm):
    """w ← w - L(g_u/‖g_u‖ + g_r/‖g_r‖)/2, with L from whether the retained loss kept its budget.

    A step is kept (L ← 1.5 L) or undone (L ← L/2) one exchange later, when the loss it led to is
    known. Neither loss rises to first order, whatever the angle between g_u and g_r.
    """

    budget: float = 0.03

    def server_init(self, problem: Problem, key: Tensor) -> Unlearning:
        point = problem.init(key)
        return Unlearning(point, point, torch.zeros(()), torch.full((), torch.inf))

    def download(self, problem: Problem, server: Unlearning, exchange: str) -> Tree:
        return trees.join(point=server.point)

    def client_init(self, problem: Problem, shared: Tree) -> tuple[()]:
        return ()

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: tuple[()],
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, tuple[()], Info]:
        point, batch = trees.part(shared, "point"), data.batch(0, None, key)
        marked = data.x[:, -1]
        total, weight = problem.evaluate(point, batch)["loss"]
        forget = trees.join(field=problem.operators["forget"](point, batch))
        retain = trees.join(
            field=problem.operators["retain"](point, batch), loss=total / weight.clamp(min=1.0)
        )
        weights = [(data.weight * m).sum() for m in (marked, 1.0 - marked)]
        return {"forget": (forget, weights[0]), "retain": (retain, weights[1])}, client, {}

    def server_round(
        self, problem: Problem, server: Unlearning, totals: Totals, exchange: str
    ) -> tuple[Unlearning, Info]:
        g_u, g_r = (trees.part(totals[group].mean, "field") for group in ("forget", "retain"))
        n_u, n_r = (trees.norm(g).clamp(min=1e-12) for g in (g_u, g_r))
        loss = totals["retain"].mean["loss"]
        first = torch.isinf(server.limit)
        limit = torch.where(first, loss + self.budget, server.limit)
        kept = loss <= limit
        length = torch.where(first, n_u, torch.where(kept, 1.5, 0.5) * server.length)
        direction = trees.add(trees.scale(g_u, 0.5 / n_u), trees.scale(g_r, 0.5 / n_r))
        stepped = trees.add_scaled(server.point, -length, direction)
        point = trees.where(kept, stepped, server.accepted)
        accepted = trees.where(kept, server.point, server.accepted)
        return Unlearning(point, accepted, length, limit), {"length": length}

    def solution(self, problem: Problem, server: Unlearning) -> Tree:
        return server.accepted


TEMPERATURE = 1.0


def digits() -> FederatedData:
    """Make 5 sites of digits; the last column marks the rows to forget: all eights, two sites."""
    x, y = load_digits(return_X_y=True)
    site = torch.arange(500) % 5
    marked = torch.from_numpy(y[:500] == 8) & (site < 2)
    rows = torch.cat([torch.from_numpy(x[:500]).float() / 16.0, marked[:, None]], 1)
    names = [f"lab {c}" for c in site.tolist()]
    return FederatedData.from_arrays(rows, y[:500], sites=names, outcome="multiclass")


def unlearning_problem(start: Tree) -> Problem:
    def logits(params: Tree, batch: Batch) -> Tensor:
        return batch.x[:, :-1] @ params["weight"].T + params["bias"]

    def mean(values: Tensor, weight: Tensor) -> Tensor:
        return (values * weight).sum() / weight.sum().clamp(min=1.0)

    def disorder(params: Tree, batch: Batch) -> Tensor:
        """Return (log K - H(p)) / log K of the marked rows, p the softmax at temperature τ."""
        log_p = torch.log_softmax(logits(params, batch) / TEMPERATURE, -1)
        missing = 1.0 + (log_p.exp() * log_p).sum(-1) / torch.log(torch.tensor(10.0))
        return mean(missing, batch.weight * batch.x[:, -1])

    def rows_loss(params: Tree, batch: Batch) -> Tensor:
        log_p = torch.log_softmax(logits(params, batch), -1)
        return -log_p.gather(1, batch.y[:, None]).squeeze(1)

    def retained(params: Tree, batch: Batch) -> Tensor:
        return mean(rows_loss(params, batch), batch.weight * (1.0 - batch.x[:, -1]))

    def evaluate(params: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        marked = batch.weight * batch.x[:, -1]
        rest = batch.weight - marked
        return {
            "loss": (retained(params, batch) * rest.sum(), rest.sum()),
            "forget": (disorder(params, batch) * marked.sum(), marked.sum()),
        }

    operators = {"forget": torch.func.grad(disorder), "retain": torch.func.grad(retained)}
    return Problem(init=lambda _: start, operators=operators, evaluate=evaluate)


def trained(data: FederatedData) -> Tree:
    """Fit all rows, those to forget included, by plain gradient steps."""
    clean = replace(data, x=data.x[:, :-1], features=data.features[:-1])
    problem = linear_problem(clean)
    batch = Batch(clean.x, clean.y, clean.weight, random.key(0))
    params = problem.init(random.key(0))
    for _ in range(150):
        params = trees.add_scaled(params, -0.5, problem.operators["loss"](params, batch))
    return params


def test_two_operators_forget_within_the_budget_of_what_is_retained() -> None:
    """The order left in the marked rows falls by half; the retained loss stays in budget."""
    data = digits()
    problem = unlearning_problem(trained(data))
    algorithm = TwoOperators(rounds=30)
    runs = [train(problem, data, algorithm, engine=e, evaluate_every=1) for e in ENGINES]
    for run in runs:
        start, end = run.history[0], run.history[-1]
        assert start["forget"] > 0.3
        assert end["forget"] < 0.5 * start["forget"]
        assert end["loss"] <= start["loss"] + algorithm.budget + 1e-5
    assert largest_gap(runs[0].params, runs[1].params) < 1e-4


# --- states that follow what the server has


class Controlled(NamedTuple):
    point: Tree
    control: Tree


class Control(NamedTuple):
    own: Tree


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al., 2020), option II: the invariant is c = Σ p_i c_i."""

    tracks_uploads: ClassVar[bool] = True
    step: float = 0.1
    local_steps: int = 2

    def server_init(self, problem: Problem, key: Tensor) -> Controlled:
        point = problem.init(key)
        return Controlled(point, trees.zeros_like(point))

    def download(self, problem: Problem, server: Controlled, exchange: str) -> Tree:
        return trees.join(point=server.point, control=server.control)

    def client_init(self, problem: Problem, shared: Tree) -> Control:
        return Control(trees.zeros_like(trees.part(shared, "point")))

    def new_control(
        self, problem: Problem, shared: Tree, own: Tree, batch: Batch
    ) -> tuple[Tree, Tree]:
        start, server = trees.part(shared, "point"), trees.part(shared, "control")
        point, correction = start, trees.subtract(server, own)
        for _ in range(self.local_steps):
            field = problem.operators["loss"](point, batch)
            point = trees.add_scaled(point, -self.step, trees.add(field, correction))
        change = trees.subtract(point, start)
        control = trees.add_scaled(
            trees.subtract(own, server), -1.0 / (self.local_steps * self.step), change
        )
        return change, control

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Control,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Control, Info]:
        change, control = self.new_control(problem, shared, client.own, data.batch(0, None, key))
        upload = trees.join(change=change, control=trees.subtract(control, client.own))
        broken = random.uniform(random.fold(key, "broken"), ()) < 0.1
        upload = {k: torch.where(broken, torch.nan, v) for k, v in upload.items()}
        return {"loss": (upload, data.share)}, Control(control), {}

    def moved(self, server: Controlled, mean: Tree) -> Tree:
        return trees.add(server.point, trees.part(mean, "change"))

    def server_round(
        self, problem: Problem, server: Controlled, totals: Totals, exchange: str
    ) -> tuple[Controlled, Info]:
        mean, weight, population = totals["loss"]
        share = weight.double() / population.double()
        control = trees.add_scaled(server.control, share, trees.part(mean, "control"))
        return Controlled(self.moved(server, mean), control), {}

    def solution(self, problem: Problem, server: Controlled) -> Tree:
        return server.point


@dataclass(frozen=True, kw_only=True)
class SlowField(Scaffold):
    """LIPPAX-like: u_c is the site's last field value, near the resolvent; ū = Σ p_c u_c.

    y ← y - s(F_c(y) + ū - u_c + (y - x)/γ), then u_c ← F_c(y); the server steps by
    x - γ(ū + mean of the changes of u_c).
    """

    gamma: float = 0.3

    def new_control(
        self, problem: Problem, shared: Tree, own: Tree, batch: Batch
    ) -> tuple[Tree, Tree]:
        start, operator = trees.part(shared, "point"), problem.operators["loss"]
        point, correction = start, trees.subtract(trees.part(shared, "control"), own)
        for _ in range(4):
            pull = trees.scale(trees.subtract(point, start), 1.0 / self.gamma)
            field = trees.add(trees.add(operator(point, batch), correction), pull)
            point = trees.add_scaled(point, -0.04, field)
        control = operator(point, batch)
        return trees.subtract(control, own), control

    def moved(self, server: Controlled, mean: Tree) -> Tree:
        field = trees.add(server.control, trees.part(mean, "change"))
        return trees.add_scaled(server.point, -self.gamma, field)


FATES = 4  # lost, arrives, arrives twice, arrives


def fate(tick: int, seed: Tensor, site: Tensor) -> Tensor:
    """Return how often each upload arrives: never, once or twice, at random."""
    draw = random.fold(random.fold(random.key("fate", tick), seed), site).remainder(FATES)
    return torch.tensor([0, 1, 2, 1])[draw]


def accepted_states(work: Job, carried: Carried, s: int) -> list[Any]:
    """Return each site's state as it will be when it hears which upload counted last."""
    states = []
    for c in range(work.data.n_sites):
        lane = torch.tensor([c])
        row = carried.store.rows(lane)
        found = carried.store.load(row, torch.tensor([s]), carried.ledger[s, c].reshape(1))
        states.append(trees.unstack(found, 0))
    return states


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [Scaffold(), SlowField()], ids=["scaffold", "lippax"])
def test_sums_over_sites_survive_lost_repeated_and_refused_uploads(
    algorithm: Algorithm, engine: str
) -> None:
    """1,008 uploads: a quarter is lost, a quarter comes twice, a tenth is not finite and refused.

    Afterwards the server's control is still Σ p_c of what the sites will hold, to 1e-6, although it
    moved far; and the point is where all agree, for the method corrects each site by it.
    """
    data = saddle()
    work = job(affine_problem(), data, algorithm, delivery=fate)
    carried, _ = proceed(work, ENGINES[engine](), 168)
    assert_some_counted(carried)
    p = data.weight.double() / data.weight.double().sum()
    own = [client.own for (client, _) in accepted_states(work, carried, 0)]
    expected = {k: sum(p[c] * own[c][k] for c in range(SITES)) for k in ("u", "v")}
    held = trees.unstack(carried.server.control, 0)
    assert trees.norm(trees.subtract(held, expected)) < 1e-6
    found = torch.cat([carried.server.point["u"][0], carried.server.point["v"][0]])
    assert (found - equilibrium(data)).abs().max() < 1e-5


def assert_some_counted(carried: Carried) -> None:
    """Every site counted at some time, and not every site in the last exchange."""
    assert (carried.ledger >= 0).all()
    assert (carried.ledger < carried.tick - 1).any()


class Sum(NamedTuple):
    sent: Tree


@dataclass(frozen=True, kw_only=True)
class Walk(Algorithm):
    """Sites hand random changes to the channel and remember their sum; the server adds them up."""

    def server_init(self, problem: Problem, key: Tensor) -> Sum:
        return Sum(problem.init(key))

    def download(self, problem: Problem, server: Sum, exchange: str) -> Tree:
        return trees.join(theta=server.sent, phi=server.sent["w"].sum(0))

    def client_init(self, problem: Problem, shared: Tree) -> Tree:
        zeros: Tree = trees.zeros_like(shared)
        return zeros

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Tree,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Tree, Info]:
        change = {
            k: random.normal(random.fold(key, k), tuple(v.shape), torch.float64)
            for k, v in client.items()
        }
        return {"loss": (change, data.share)}, trees.add(client, change), {}

    def server_round(
        self, problem: Problem, server: Sum, totals: Totals, exchange: str
    ) -> tuple[Sum, Info]:
        total = totals["loss"]
        added = trees.scale(trees.part(total.mean, "theta"), total.weight.double())
        return Sum(trees.add(server.sent, added)), {}

    def solution(self, problem: Problem, server: Sum) -> Tree:
        return server.sent


@pytest.mark.parametrize("channel", [TopM(3), TopM(3, one_index_set=True)])
@pytest.mark.parametrize("engine", ENGINES)
def test_error_feedback_loses_nothing_when_uploads_are_lost_or_repeated(
    engine: str, channel: Channel
) -> None:
    """Σ p_c (handed to the channel - residual) is what the server added, whatever got lost."""
    data = saddle()
    problem = replace(
        affine_problem(),
        init=lambda _: {"w": torch.zeros(2, 12, dtype=torch.float64)},
        gates=GateMap({"w": GateView(0, (1, 12))}),
    )
    work = job(problem, data, Walk(), channel, delivery=fate)
    carried, _ = proceed(work, ENGINES[engine](), 168)
    assert_some_counted(carried)
    expected = torch.zeros(2, 12, dtype=torch.float64)
    for c, (handed, residuals) in enumerate(accepted_states(work, carried, 0)):
        left = residuals["round/loss"]["theta/w"]
        assert left.abs().max() > 0
        expected += data.weight[c] * (handed["theta/w"] - left)
    assert (carried.server.sent["w"][0] - expected).abs().max() < 1e-6


def test_a_state_that_follows_uploads_refuses_a_channel_that_cuts_them() -> None:
    with pytest.raises(ValueError, match="Scaffold needs a lossless channel"):
        check_pair(Scaffold(), TopM(3))
    check_pair(Scaffold(), Lossless())
