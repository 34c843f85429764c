"""FU-MEGS: federated unlearning by flexible gradient scaling.

After Sun, Chen, Li and Chen (Neurocomputing); a reconstruction, since the paper's formulas were
not at hand. In every exchange the sites send two sums, the gradient of the forget loss F_u over the
rows to forget and that of the retained loss F_r over the others; the server steps along a
combination under which neither loss rises to first order, and takes the step back one exchange
later if F_r left its budget. There is no recovery phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsift import combiners, trees
from fedsift.algorithms.base import Algorithm, Info, Totals, Upload
from fedsift.data.federated import FORGET, HELD_OUT, RETAIN
from fedsift.forgetting import forget_figures
from fedsift.problems import Batch, Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree

RUNNING, TARGET_MET, STATIONARY, BUDGET_BROKEN = range(4)
STOP_REASONS = ("max_rounds", "target_met", "stationary", "retain_budget_broken")


class SiteState(NamedTuple):
    """What a site keeps: F_r when it was asked first, and whether it was."""

    first_retain: Tensor
    asked: Tensor


class ServerState(NamedTuple):
    """What the server carries.

    ``theta``: the tried parameters; ``kept``: the accepted ones, ``direction`` the step that is
    tried from there, ``length`` its L and ``first_length`` the first one; ``first_gap``: to the
    target at the start; ``calm``: exchanges in a row with opposite gradients; ``stop``: a number of
    `STOP_REASONS`, 0 while it goes on.
    """

    round: Tensor
    theta: Tree
    kept: Tree
    direction: Tree
    length: Tensor
    first_length: Tensor
    first_gap: Tensor
    calm: Tensor
    stop: Tensor


@dataclass(frozen=True, kw_only=True)
class FUMEGS(Algorithm):
    """Forget some rows and keep what was learned of the others.

    With n_u, n_r the norms of the two gradients, c their cosine and s = max(0, -c):

        d = L (a g_u/n_u + b g_r/n_r)/2,  a = 2ρ/(1+ρ),  b = 2/(1+ρ),  ρ = 1
        w ← w - d;  one exchange later: F_r(w) ≤ F_r(start) + δ ?  L ← 1.5 L  :  undo, L ← L/2

    or, on request, ρ = clip(e_u/e_r, s, 1/s), with e_u the share of the way to the target that is
    left and e_r the share of δ that is spent; ρ = 0 once the target is met, until F_r is back.
    Begin it with `start`; the data say by their roles which rows are to be forgotten.

    Attributes:
        rule: ``flexible``, or a rule of `combiners` that weighs by the gradients' norms.
        ratio: ρ, or ``conflict`` for the rule above; the smaller, the gentler.
        length: ``adaptive`` as above, ``fixed`` n_u at most ``cap``, or ``safe`` (IMTL-G's).
        first: the first length in units of n_u.
        growth: of the length after an accepted step.
        budget: δ in nats.
        local_steps: gradient steps a site takes on each loss; it sends their mean gradient.
        learning_rate: of those steps, and the length of a rule's step.
        momentum: share of the last direction that is kept; directions add up.
        quorum: share of the retained weight below which an exchange changes nothing.
        target: stop when the mean probability of the labels to forget is at most this; None: never.
        neutral: stop when the rows to forget cannot be told from rows held out at the same site:
            by their loss, with an AUC of at most this, or by their accuracy, which is not higher;
            None: never.
        level: stop when the mean loss of the rows to forget is at least this, such as that of rows
            never seen; None: never.
        settled: share of δ that F_r may have risen for the target to count as met.
        patience: exchanges in a row at which opposite gradients stop the run.
        stationary: √((1+c)/2) up to which gradients count as opposite.
    """

    diverged: ClassVar[float] = torch.inf  # the rows to forget are meant to be lost

    rounds: int = 40
    rule: Literal["flexible", "mgda", "imtl_g", "pcgrad", "orthogonal", "sum"] = "flexible"
    ratio: float | Literal["conflict"] = 1.0
    length: Literal["adaptive", "fixed", "safe"] = "adaptive"
    first: float = 0.2
    growth: float = 1.5
    cap: float = 1.0
    budget: float = 0.03
    local_steps: int = 5
    learning_rate: float = 0.1
    momentum: float = 0.0
    quorum: float = 0.5
    target: float | None = None
    neutral: float | None = None
    level: float | None = None
    settled: float = 0.0
    patience: int = 3
    stationary: float = 0.1

    def server_init(self, problem: Problem, key: Tensor) -> ServerState:
        return self.start(problem.init(key))

    def start(self, params: Tree) -> ServerState:
        """Return the state before round 0, at the parameters of the model that is to forget."""
        number, zero = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.float64)
        still = trees.zeros_like(params)
        return ServerState(number, params, params, still, zero, zero, zero, number, number)

    def client_init(self, problem: Problem, shared: Tree) -> SiteState:
        return SiteState(torch.zeros(()), torch.zeros((), dtype=torch.bool))

    def download(self, problem: Problem, server: ServerState, exchange: str) -> Tree:
        return trees.join(theta=server.theta)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: SiteState,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, SiteState, Info]:
        theta = trees.part(shared, "theta")
        (forget, n_u), (retain, n_r), (held_out, _) = (
            data.part(role, key) for role in (FORGET, RETAIN, HELD_OUT)
        )
        gradient_u, loss_u = self.mean_gradient(problem, "forget", theta, forget)
        gradient_r, loss_r = self.mean_gradient(problem, "retain", theta, retain)
        first = torch.where(client.asked, client.first_retain, loss_r.to(torch.float32))
        figures = forget_figures(problem, theta, forget, held_out)
        upload = {
            "forget": (trees.join(gradient=gradient_u, loss=loss_u, **figures), n_u),
            "retain": (trees.join(gradient=gradient_r, loss=loss_r, rise=loss_r - first), n_r),
        }
        return upload, SiteState(first, torch.ones_like(client.asked)), {}

    def mean_gradient(
        self, problem: Problem, name: str, theta: Tree, batch: Batch
    ) -> tuple[Tree, Tensor]:
        """Return the mean gradient of the local steps, and the loss before the first."""
        at, objective = theta, problem.objectives[name]
        total, loss = torch.func.grad_and_value(objective)(at, batch)
        for _ in range(self.local_steps - 1):
            at = trees.add_scaled(theta, -self.learning_rate, total)
            total = trees.add(total, torch.func.grad(objective)(at, batch))
        return trees.scale(total, 1.0 / self.local_steps), loss

    def server_round(
        self, problem: Problem, server: ServerState, totals: Totals, exchange: str
    ) -> tuple[ServerState, Info]:
        forget, retain = totals["forget"], totals["retain"]
        loss_u, rise = forget.mean["loss"].double(), retain.mean["rise"].double()
        begun = server.round > 0
        gap = self.gap(forget.mean)
        first_gap = torch.where(begun, server.first_gap, gap)
        missing = (gap / first_gap.clamp(min=1e-12)).clamp(0.0, 1.0)
        kept = rise <= self.budget
        g_u, g_r = (trees.part(t.mean, "gradient") for t in (forget, retain))
        g = combiners.gram(g_u, g_r)
        step = self.first * g.forget
        if self.rule != "flexible":
            step = torch.full_like(step, self.learning_rate)
        first_length = torch.where(begun, server.first_length, step)
        direction = combiners.combine(self.pair(g, missing, rise), g_u, g_r)
        direction = trees.add_scaled(direction, self.momentum, server.direction)
        length = self.next_length(server, g, begun, kept, first_length)
        opposite = ((1.0 + g.cosine) / 2.0).sqrt() <= self.stationary
        calm = torch.where(kept & begun & opposite, server.calm + 1, server.calm * (~kept))
        stop = self.verdict(forget.mean, rise, kept, calm, length / first_length.clamp(min=1e-30))
        after = ServerState(
            round=server.round + 1,
            theta=server.theta,
            kept=trees.where(kept, server.theta, server.kept),
            direction=trees.where(kept, direction, server.direction),
            length=length,
            first_length=first_length,
            first_gap=first_gap,
            calm=calm,
            stop=stop,
        )
        tried = trees.add_scaled(after.kept, -length.to(torch.float32), after.direction)
        usable = (stop == RUNNING) & trees.all_finite(tried)
        after = after._replace(theta=trees.where(usable, tried, after.kept))
        enough = retain.weight >= self.quorum * retain.population
        go_on = enough & (forget.weight > 0) & (server.stop == RUNNING)
        info = {
            "forget_loss": loss_u,
            "forget_accuracy": forget.mean["accuracy"],
            "forget_confidence": forget.mean["confidence"],
            "membership_auc": forget.mean["membership_auc"],
            "retain_loss": retain.mean["loss"],
            "retain_rise": rise,
            "cosine": g.cosine,
            "length": length,
            "kept": kept.double(),
            "paused": (~go_on).double(),
        }
        return trees.where(go_on, after, server), info

    def pair(self, g: combiners.Gram, missing: Tensor, rise: Tensor) -> combiners.Pair:
        """Return the coefficients at L = 1; ``missing`` is e_u, the rise of F_r spends δ."""
        one = torch.ones_like(g.forget)
        if self.rule != "flexible":
            return combiners.RULES[self.rule](g)
        spent = rise.clamp(min=0.0) / self.budget + 1e-3
        wanted = missing / spent if self.ratio == "conflict" else self.ratio * one
        ratio = combiners.flexible_ratio(g, wanted)
        # Once the target is met, the steps are for the retained loss alone.
        return combiners.flexible(g, torch.where(missing > 0, ratio, 0.0), one)

    def gap(self, forget: Tree) -> Tensor:
        """Return how far the rows to forget are from the target, 0 or less when it is met; or 1."""
        if self.target is not None:
            return (forget["confidence"] - self.target).double()
        if self.neutral is not None:
            told_apart = (forget["membership_auc"] - self.neutral).double()
            better = (forget["accuracy"] - forget["held_out_accuracy"]).double()
            return torch.minimum(told_apart, better)
        if self.level is not None:
            return (self.level - forget["cross_entropy"]).double()
        return torch.ones_like(forget["loss"]).double()

    def next_length(
        self,
        server: ServerState,
        g: combiners.Gram,
        begun: Tensor,
        kept: Tensor,
        first_length: Tensor,
    ) -> Tensor:
        """Return L of the next step; after a step that was undone, half of it."""
        if self.length == "adaptive":
            grown = torch.where(begun, self.growth * server.length, first_length)
        elif self.rule != "flexible":
            grown = self.learning_rate * torch.ones_like(first_length)
        elif self.length == "safe":
            grown = combiners.safe_length(g)
        else:
            grown = g.forget.clamp(max=self.cap)
        return torch.where(kept, grown, 0.5 * server.length)

    def verdict(
        self, forget: Tree, rise: Tensor, kept: Tensor, calm: Tensor, shrunk: Tensor
    ) -> Tensor:
        """Return why to stop, or `RUNNING`."""
        met = (self.gap(forget) <= 0) & (rise <= self.settled * self.budget)
        stop = torch.where(~kept & (shrunk < 1e-3), BUDGET_BROKEN, RUNNING)
        stop = torch.where(calm >= self.patience, STATIONARY, stop)
        return torch.where(kept & met, TARGET_MET, stop)

    def finished(self, server: ServerState) -> Tensor:
        return server.stop != RUNNING

    def solution(self, problem: Problem, server: ServerState) -> Tree:
        return server.kept
