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
from fedsift.algorithms.base import Info, Totals, Upload
from fedsift.algorithms.budget import RUNNING, Budgeted, Steps, no_steps
from fedsift.data.federated import FORGET, HELD_OUT, RETAIN
from fedsift.forgetting import forget_figures
from fedsift.problems import Batch, Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree


class SiteState(NamedTuple):
    """What a site keeps: F_r when it was asked first, and whether it was."""

    first_retain: Tensor
    asked: Tensor


class ServerState(NamedTuple):
    """``theta``: the tried parameters; ``kept``: the accepted ones; ``direction``: from there."""

    round: Tensor
    theta: Tree
    kept: Tree
    direction: Tree
    steps: Steps


@dataclass(frozen=True, kw_only=True)
class FUMEGS(Budgeted):
    """Forget some rows and keep what was learned of the others.

    With n_u, n_r the norms of the two gradients, c their cosine and s = max(0, -c):

        d = L (a g_u/n_u + b g_r/n_r)/2,  a = 2ρ/(1+ρ),  b = 2/(1+ρ),  ρ = 1
        w ← w - d;  one exchange later: F_r(w) ≤ F_r(start) + δ ?  L ← 1.5 L  :  undo, L ← L/2

    or, on request, ρ = clip(e_u/e_r, s, 1/s), with e_u the share of the way to the target that is
    left and e_r the share of δ that is spent; ρ = 0 once the target is met, until F_r is back.
    Begin it with `start`; the data say by their roles which rows are to be forgotten. How long a
    step is, and when to stop, is said by the attributes of `Budgeted`.

    Attributes:
        rule: ``flexible``, or a rule of `combiners` that weighs by the gradients' norms.
        ratio: ρ, or ``conflict`` for the rule above; the smaller, the gentler.
        local_steps: gradient steps a site takes on each loss; it sends their mean gradient.
        learning_rate: of those steps, and the length of a rule's step.
        momentum: share of the last direction that is kept; directions add up.
        quorum: share of the retained weight below which an exchange changes nothing.
    """

    diverged: ClassVar[float] = torch.inf  # the rows to forget are meant to be lost

    rounds: int = 40
    rule: Literal["flexible", "mgda", "imtl_g", "pcgrad", "orthogonal", "sum"] = "flexible"
    ratio: float | Literal["conflict"] = 1.0
    local_steps: int = 5
    learning_rate: float = 0.1
    momentum: float = 0.0
    quorum: float = 0.5

    def server_init(self, problem: Problem, key: Tensor) -> ServerState:
        return self.start(problem.init(key))

    def start(self, params: Tree) -> ServerState:
        """Return the state before round 0, at the parameters of the model that is to forget."""
        still = trees.zeros_like(params)
        return ServerState(torch.zeros((), dtype=torch.int64), params, params, still, no_steps())

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
        """Judge the step that was tried, and try one from the last that was kept."""
        forget, retain = totals["forget"], totals["retain"]
        g_u, g_r = (trees.part(t.mean, "gradient") for t in (forget, retain))
        g, rise = combiners.gram(g_u, g_r), retain.mean["rise"].double()
        steps, kept = self.judge(server.steps, server.round > 0, g, forget.mean, rise)
        pair = self.pair(g, self.missing(steps, forget.mean), rise)
        direction = trees.add_scaled(
            combiners.combine(pair, g_u, g_r), self.momentum, server.direction
        )
        start = trees.where(kept, server.theta, server.kept)
        direction = trees.where(kept, direction, server.direction)
        tried = trees.add_scaled(start, -steps.length.to(torch.float32), direction)
        usable = (steps.stop == RUNNING) & trees.all_finite(tried)
        theta = trees.where(usable, tried, start)
        after = ServerState(server.round + 1, theta, start, direction, steps)
        enough = retain.weight >= self.quorum * retain.population
        go_on = enough & (forget.weight > 0) & (server.steps.stop == RUNNING)
        info = {
            "forget_loss": forget.mean["loss"].double(),
            "forget_accuracy": forget.mean["accuracy"],
            "forget_confidence": forget.mean["confidence"],
            "membership_auc": forget.mean["membership_auc"],
            "retain_loss": retain.mean["loss"],
            "retain_rise": rise,
            "cosine": g.cosine,
            "length": steps.length,
            "kept": kept.double(),
            "paused": (~go_on).double(),
        }
        return trees.where(go_on, after, server), info

    def lengths(self, g: combiners.Gram) -> tuple[Tensor, Tensor]:
        """Return the first length and the fixed one; a rule's direction has a length of its own."""
        rate = torch.full_like(g.forget, self.learning_rate)
        return super().lengths(g) if self.rule == "flexible" else (rate, rate)

    def pair(self, g: combiners.Gram, missing: Tensor, rise: Tensor) -> combiners.Pair:
        """Return the coefficients at L = 1; ``missing`` is e_u, the rise of F_r spends δ."""
        if self.rule != "flexible":
            return combiners.RULES[self.rule](g)
        one = torch.ones_like(g.forget)
        spent = rise.clamp(min=0.0) / self.budget + 1e-3
        wanted = missing / spent if self.ratio == "conflict" else self.ratio * one
        ratio = combiners.flexible_ratio(g, wanted)
        # Once the target is met, the steps are for the retained loss alone.
        return combiners.flexible(g, torch.where(missing > 0, ratio, 0.0), one)

    def finished(self, server: ServerState) -> Tensor:
        return server.steps.stop != RUNNING

    def solution(self, problem: Problem, server: ServerState) -> Tree:
        return server.kept
