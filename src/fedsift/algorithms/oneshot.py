"""One exchange: sites send sums, or solve by themselves, and a solver picks the features.

For squared errors the sums Σx, Σy, Σxxᵀ and Σxy say all that the rows say, so the answer on the
server equals that on pooled rows. Solver: abess (Zhu et al., PNAS 117, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsift.algorithms.base import Algorithm, Info, Totals, Upload
from fedsift.problems import Problem
from fedsift.regression import Moments, best_subset, check_abess, lasso
from fedsift.sites import SiteData
from fedsift.sparsity import kept_count
from fedsift.trees import Tree

LIMIT = 100e6  # bytes of a site's message; 7,000 features


class Answer(NamedTuple):
    """What the server carries: the number of rounds done, and its model."""

    round: Tensor
    theta: Tree


@dataclass(frozen=True, kw_only=True)
class OneShot(Algorithm):
    """Sites send their sums once; the server runs a best-subset solver on them.

    Covariates stay in: features are chosen by what they add to them.

    A site uploads the means over its rows of x, y, xy and the upper half of xxᵀ: (d+1)(d+4)/2
    numbers, whatever its rows. Their weighted mean is that of all rows. The intercept follows by
    centring; the solver sees pseudo-rows from the eigendecomposition of the centred matrix.

    Privacy: the sums are not noised, and a site with fewer rows than features gives its rows away
    up to a rotation; one row is given away as it is.

    Attributes:
        density: ρ; m = ⌊ρG⌋ features are kept.
    """

    only_mean: ClassVar[str | None] = (
        "its uploads are sums over rows, which hold together as a whole"
    )

    density: float
    rounds: int = 1

    def refuse(self, problem: Problem) -> None:
        """Refuse what is no linear regression, too large to send, or has no solver installed."""
        super().refuse(problem)
        check_abess()
        _refuse_other_outcomes(problem, "oneshot")
        d = problem.gates.size
        if (size := 2 * (d + 1) * (d + 4)) > LIMIT:
            msg = (
                f"oneshot would send {size / 1e6:,.0f} MB from each site, the sums over all pairs "
                f"of {d:,} features (at most {LIMIT / 1e6:.0f} MB); choose fewer columns first, or "
                "use eflops"
            )
            raise ValueError(msg)

    def server_init(self, problem: Problem, key: Tensor) -> Answer:
        self.refuse(problem)
        return Answer(torch.zeros((), dtype=torch.int64), problem.init(key))

    def download(self, problem: Problem, server: Answer, exchange: str) -> Tree:
        return {"round": server.round}

    def client_init(self, problem: Problem, shared: Tree) -> tuple[()]:
        return ()

    def refuse_privacy(self, level: str) -> str | None:
        return "its sums over pairs of features are no gradients, and no clip is right for all"

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Any,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Any, Info]:
        share = (data.weight / data.weight.sum()).double()
        x, y = data.x.double(), data.y.double()
        upper = torch.triu_indices(x.shape[1], x.shape[1])
        gram = (x.T * share) @ x
        sums = {"y": share @ y, "x": share @ x, "xy": x.T @ (share * y)}
        sums["xx"] = gram[upper[0], upper[1]]
        sums["rows"] = data.weight.sum() / data.share
        return {"loss": ({k: v.float() for k, v in sums.items()}, data.share)}, client, {}

    def server_round(
        self, problem: Problem, server: Answer, totals: Totals, exchange: str
    ) -> tuple[Answer, Info]:
        mean, weight, _ = totals["loss"]
        flat = torch.cat([(mean["rows"] * weight)[None], mean["y"][None], mean["x"], mean["xy"]])
        kept = max(1, kept_count(self.density, problem.gates.size))
        found = solve_sums(torch.cat([flat, mean["xx"]]), kept, _covariates(server.theta))
        return Answer(server.round + 1, _as_params(server.theta, found)), {}

    def solution(self, problem: Problem, server: Answer) -> Tree:
        return server.theta


@dataclass(frozen=True, kw_only=True)
class SolvedAtSite(OneShot):
    """A site solves on its own rows and uploads the model: on pooled rows, the pooled answer.

    Attributes:
        solver: ``abess``, or ``lasso``: cross-validated, then the m largest weights.
    """

    solver: Literal["abess", "lasso"] = "lasso"

    def refuse(self, problem: Problem) -> None:
        """Refuse what is no linear regression, or has no solver installed."""
        super().refuse(problem)
        if self.solver == "abess":
            check_abess()
        _refuse_other_outcomes(problem, self.solver)
        if self.solver == "lasso" and _covariates(problem.init(torch.zeros((), dtype=torch.int64))):
            msg = "lasso weighs all columns alike and keeps no covariates in; use abess, or eflops"
            raise ValueError(msg)

    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Any,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Any, Info]:
        kept = max(1, kept_count(self.density, problem.gates.size))
        covariates = _covariates(problem.init(key))
        found = solve_rows(data.x, data.y, data.weight, kept, self.solver, covariates)
        return {"loss": ({"model": found}, data.share)}, client, {}

    def server_round(
        self, problem: Problem, server: Answer, totals: Totals, exchange: str
    ) -> tuple[Answer, Info]:
        params = _as_params(server.theta, totals["loss"].mean["model"])
        return Answer(server.round + 1, params), {}


def _refuse_other_outcomes(problem: Problem, name: str) -> None:
    if problem.outcome != "regression" or set(problem.gates.views) != {"weight"}:
        msg = (
            f"{name} is for a linear model of a measured target, whose sums say everything; this "
            f"target is {problem.outcome}: use eflops"
        )
        raise ValueError(msg)


def _covariates(params: Tree) -> int:
    """Return how many columns stay in."""
    return params["covariate"].shape[-1] if "covariate" in params else 0


def _as_params(like: Tree, found: Tensor) -> Tree:
    """Return the solver's [weights, intercept] as parameters; those of covariates are the last."""
    d, params = like["weight"].shape[-1], {"bias": found[-1:]}
    if "covariate" in like:
        params["covariate"] = found[d:-1].reshape(like["covariate"].shape)
    return {"weight": found[:d].reshape(like["weight"].shape), **params}


# Solvers work on numpy arrays; as operators of torch they may stand in batched code, lane by lane.
@torch.library.custom_op("fedsift::solve_sums", mutates_args=())
def solve_sums(sums: Tensor, kept: int, covariates: int) -> Tensor:
    """Return [weights, intercept] from [rows, ȳ, x̄, xy, upper half of xxᵀ].

    The last ``covariates`` columns stay in.
    """
    numbers = sums.detach().double().numpy()
    d = int((8 * len(numbers) + 9) ** 0.5 / 2 - 2.5)  # of (d+1)(d+4)/2 numbers
    x, xy, upper = numbers[2 : 2 + d], numbers[2 + d : 2 + 2 * d], numbers[2 + 2 * d :]
    half = torch.zeros(d, d, dtype=torch.float64)
    half[tuple(torch.triu_indices(d, d))] = torch.from_numpy(upper)
    gram = (half + half.triu(1).T).numpy()
    weights, intercept = best_subset(
        Moments(x, float(numbers[1]), gram, xy), kept, float(numbers[0]), covariates
    )
    return torch.tensor([*weights, intercept], dtype=sums.dtype)


@torch.library.custom_op("fedsift::solve_rows", mutates_args=())
def solve_rows(
    x: Tensor, y: Tensor, weight: Tensor, kept: int, solver: str, covariates: int
) -> Tensor:
    """Return [weights, intercept] from rows; those of weight 0 are padding."""
    real = weight > 0
    rows = (t[real].double().numpy() for t in (x, y, weight))
    values, targets, weights = rows
    if solver == "abess":
        moments = Moments.of_rows(values, targets, weights)
        found = best_subset(moments, kept, len(targets), covariates)
    else:
        found = lasso(values, targets, kept, weights)
    return torch.tensor([*found[0], found[1]], dtype=x.dtype)


def _lane_by_lane(operator: Any) -> None:
    def batched(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        lanes = [
            operator(
                *(a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True))
            )
            for k in range(info.batch_size)
        ]
        return torch.stack(lanes), 0

    operator.register_vmap(batched)


_lane_by_lane(solve_sums)
_lane_by_lane(solve_rows)
