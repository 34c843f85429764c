"""Effects of features with robust intervals, from sums over sites of rows that did not choose them.

An unpenalised model of the features, the covariates and an intercept is fitted by Newton steps.
For each step a site tells the sums over its rows of the loss, its gradient g and its curvature H;
at the end those of the products of its scores, too. The covariance of the estimates is the sandwich

    H⁻¹ (Σ s sᵀ) H⁻¹

with s the score of a row, those of one id added up. It holds where the model is wrong, as that of
some chosen features is: what is estimated is the best model of these features.

* Losses of single rows: the score of a row is divided by 1 less its leverage, as if the model had
  not seen the row: HC3 for squared errors (MacKinnon & White, J. Econometrics 29, 1985), else its
  analogue (Mancl & DeRouen, Biometrics 57, 2001).
* Cox: the score of a row is the derivative of the gradient in its weight, times the weight (Lin &
  Wei, J. Am. Stat. Assoc. 84, 1989). Risk sets are those of a site; there is no intercept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedsift.data import FederatedData, RemoteData, split
from fedsift.data.errors import counted
from fedsift.outcomes import ByRow, Outcome, make_outcome

__all__ = [
    "Estimates",
    "NotEstimableError",
    "check_half",
    "estimate",
    "halves",
    "score_sums",
    "site_scores",
]

MOST_STEPS = 30
SMALL = 1e-6  # a Newton step, in standard units: the error after it is of the order of its square
SINGULAR = 1e-10  # an eigenvalue of a curvature of unit diagonal that counts as 0
UNKNOWN = 1e30  # the slope of a row that alone decides an effect: what sites tell is finite

Sums = dict[str, Tensor]


class NotEstimableError(ValueError):
    """The rows do not determine the effects; the text says why, and what helps."""


class Estimates(NamedTuple):
    """Effects [p, K] of p columns on K outputs, their covariance, and the degrees of freedom.

    ``covariance``: [pK, pK] in the order of the flat effects; ``freedom``: ids less parameters.
    """

    effects: Tensor
    covariance: Tensor
    freedom: int

    @property
    def errors(self) -> Tensor:
        """The standard errors, [p, K]."""
        return self.covariance.diagonal().sqrt().reshape(self.effects.shape)


def halves(data: FederatedData, seed: int) -> tuple[FederatedData, FederatedData]:
    """Return the half of the rows that chooses features, and the half that gives intervals.

    By site, class and id (`data.split`); which row is in which half is decided by its id and the
    seed alone, before anything is fitted.

    Raises:
        DataError: no class has two ids.
    """
    return split(data, seed, 0.5)


def check_half(data: FederatedData, seed: int, kept: int) -> None:
    """Refuse data whose inference half is too small for the effects of ``kept`` features.

    Raises:
        ValueError: the text names the number, and what helps.
        DataError: the rows cannot be halved.
    """
    if isinstance(data, RemoteData) and data.n_sites < 2:
        msg = (
            f"intervals='split' takes sums over sites, and there is one ('{data.sites[0]}'): they"
            " would be its own; let two sites take part at least, or leave intervals out"
        )
        raise ValueError(msg)
    _, half = halves(data, seed)
    parameters = kept + data.n_features - data.n_candidates + (data.outcome != "survival")
    parameters *= max(1, len(data.classes) - 1)
    rows = f"the half of the rows for intervals has {counted(half.n_samples, 'row')}"
    more = "add rows, or leave intervals out"
    if half.n_samples <= parameters:
        msg = f"{rows}, and {kept} features make {parameters} parameters; ask for fewer, or {more}"
        raise ValueError(msg)
    kinds = torch.bincount(half.strata, minlength=half.n_strata)
    if data.outcome == "survival" and not kinds[1]:
        msg = f"{rows} and no event of '{data.target}'; {more}"
        raise ValueError(msg)
    absent = [name for name, count in zip(data.classes, kinds.tolist(), strict=False) if not count]
    if absent:
        msg = f"{rows} and none of the class '{absent[0]}'; {more}"
        raise ValueError(msg)


def estimate(rows: FederatedData, constants: Mapping[str, float] | None = None) -> Estimates:
    """Return the effects of all columns of rows, the intercept last but for survival.

    Of K classes the effects are on the logits of the last K - 1 against the first.

    Args:
        rows: in standard units, of the chosen features and the covariates alone.
        constants: what the outcome takes from training rows (`Outcome.constants`).

    Raises:
        NotEstimableError: rows are too few, columns are constant or collinear, the classes are
            separated, or a row alone decides an effect.
    """
    constants = constants or {}
    columns = rows.n_features + (rows.outcome != "survival")
    start = torch.zeros(columns, max(1, len(rows.classes) - 1), dtype=torch.float64)
    if rows.n_samples <= start.numel():
        msg = (
            f"the inference half has {counted(rows.n_samples, 'row')} for {start.numel()}"
            " parameters; add rows, or ask for fewer features"
        )
        raise NotEstimableError(msg)
    params, inverse = _newton(rows, constants, start)
    last = score_sums(rows, constants, params, inverse)
    covariance = inverse @ last["products"] @ inverse
    known = torch.isfinite(covariance).all() and (covariance.diagonal() > 0).all()
    if not known or last["products"].abs().max() >= UNKNOWN:
        msg = (
            "a row of the inference half alone decides an effect, so that its error is not known;"
            " add rows, or ask for fewer features"
        )
        raise NotEstimableError(msg)
    return Estimates(params, covariance, int(last["ids"]) - params.numel())


def _newton(
    rows: FederatedData, constants: Mapping[str, float], params: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the minimiser of the loss, and the inverse of its curvature there."""
    now = score_sums(rows, constants, params)
    for _ in range(MOST_STEPS):
        inverse = _inverse(now["curvature"], rows.features)
        step = (inverse @ now["gradient"].flatten()).reshape(params.shape)
        length, share = float(step.abs().max()), 1.0
        after = score_sums(rows, constants, params - step)
        while not after["loss"] <= now["loss"] * (1.0 + 1e-12) + 1e-12 and share > SMALL:
            share *= 0.5
            after = score_sums(rows, constants, params - share * step)
        params, now = params - share * step, after
        if length < SMALL:
            return params, _inverse(now["curvature"], rows.features)
    msg = (
        "the chosen features separate the inference half (or nearly so), and no finite effect fits"
        " best; add rows, or ask for fewer features"
    )
    raise NotEstimableError(msg)


def _inverse(curvature: Tensor, names: Sequence[str]) -> Tensor:
    """Return the inverse of a curvature whose columns are determined.

    Raises:
        NotEstimableError: they are not.
    """
    diagonal = curvature.diagonal()
    outputs = len(diagonal) // max(1, len(names))
    if not torch.isfinite(curvature).all() or not (diagonal > 0).all():
        place = int((~(diagonal > 0)).nonzero()[0]) // max(1, outputs) if len(diagonal) else 0
        name = names[place] if place < len(names) else "the intercept"
        msg = f"'{name}' does not vary in the inference half; add rows, or ask for fewer features"
        raise NotEstimableError(msg)
    unit = diagonal.rsqrt()
    scaled = unit.unsqueeze(1) * curvature * unit
    if float(torch.linalg.eigvalsh(scaled)[0]) < SINGULAR:
        msg = (
            "the chosen features are collinear in the inference half, or separate it; add rows, or"
            " ask for fewer features"
        )
        raise NotEstimableError(msg)
    inverse: Tensor = unit.unsqueeze(1) * torch.linalg.inv(scaled) * unit
    return inverse


def score_sums(
    rows: FederatedData,
    constants: Mapping[str, float],
    params: Tensor,
    inverse: Tensor | None = None,
) -> Sums:
    """Return the sums over all sites of what `site_scores` says of each."""
    if isinstance(rows, RemoteData):
        tensors = {"params": params} | ({} if inverse is None else {"inverse": inverse})
        answers = rows.way.ask("scores", rows, {"constants": dict(constants)}, tensors)
        each = [answers[site] for site in rows.sites]
    else:
        each = [site_scores(rows.site(site), constants, params, inverse) for site in rows.sites]
    return {name: torch.stack([said[name] for said in each]).sum(0) for name in each[0]}


def site_scores(
    data: FederatedData,
    constants: Mapping[str, float],
    params: Tensor,
    inverse: Tensor | None = None,
) -> Sums:
    """Return what a site says of its rows at a point: float64 sums.

    Args:
        data: rows of one site.
        constants: of the outcome.
        params: effects [p, K].
        inverse: of the curvature at all sites, [pK, pK]; where it is given, the site tells the
            products of scores in the place of the rest.

    Returns:
        ``loss``, ``gradient`` [p, K] and ``curvature`` [pK, pK]; or ``products`` [pK, pK] of the
        scores, and how many ``ids`` they are of.
    """
    outcome = make_outcome(data.outcome, len(data.classes), constants)
    if isinstance(outcome, ByRow):
        return _by_row(outcome, data, params, inverse)
    return _together(outcome, data, params, inverse)


def _by_row(outcome: ByRow, data: FederatedData, params: Tensor, inverse: Tensor | None) -> Sums:
    x = torch.cat([data.x.double(), torch.ones(data.n_samples, 1, dtype=torch.float64)], 1)
    y = data.y if data.classes else data.y.double()
    weight, size = data.weight.double(), params.numel()
    several = len(data.classes) > 2

    def whole(output: Tensor) -> Tensor:
        """Return the outputs with that of the first class, which is 0 where there are several."""
        return torch.cat([torch.zeros_like(output[..., :1]), output], -1) if several else output

    with torch.enable_grad():
        output = (x @ params).requires_grad_()
        slopes = outcome.slope(whole(output), y)[:, -params.shape[1] :]
        rows = [torch.autograd.grad(s.sum(), output, retain_graph=True)[0] for s in slopes.T]
    output, slopes, curvatures = output.detach(), slopes.detach(), torch.stack(rows, 1)
    if inverse is None:
        bent = torch.einsum("n,np,nq,nkl->pkql", weight, x, x, curvatures)
        return {
            "loss": (weight * outcome.loss(whole(output), y)).sum(),
            "gradient": torch.einsum("n,np,nk->pk", weight, x, slopes),
            "curvature": bent.reshape(size, size),
        }
    spread = torch.einsum("np,pkql,nq->nkl", x, inverse.reshape(*params.shape, *params.shape), x)
    leverage = weight[:, None, None] * curvatures @ spread
    rest = torch.eye(params.shape[1], dtype=torch.float64) - leverage
    unseen = torch.linalg.solve_ex(rest, slopes.unsqueeze(-1)).result.squeeze(-1)
    decides = torch.linalg.det(rest).abs() < SINGULAR
    unseen = torch.where(decides.unsqueeze(1), UNKNOWN, unseen)
    scores = torch.einsum("n,np,nk->npk", weight, x, unseen).flatten(1)
    return _products(scores, data.rows)


def _together(
    outcome: Outcome, data: FederatedData, params: Tensor, inverse: Tensor | None
) -> Sums:
    x, y = data.x.double(), data.y.double()

    def loss(effects: Tensor, weight: Tensor) -> Tensor:
        return outcome.mean_loss(x @ effects, y, weight) * weight.sum()

    weight, size = data.weight.double(), params.numel()
    gradient = torch.func.grad(loss)
    if inverse is None:
        return {
            "loss": loss(params, weight),
            "gradient": gradient(params, weight),
            "curvature": torch.func.jacrev(gradient)(params, weight).reshape(size, size),
        }
    scores = torch.func.jacrev(gradient, argnums=1)(params, weight).reshape(size, -1) * weight
    return _products(scores.T, data.rows)


def _products(scores: Tensor, ids: Sequence[str]) -> Sums:
    """Return the products of the scores [n, P], those of one id added up first."""
    place = {name: number for number, name in enumerate(dict.fromkeys(ids))}
    of_id = torch.zeros(len(place), scores.shape[1], dtype=torch.float64)
    of_id.index_add_(0, torch.tensor([place[name] for name in ids]), scores)
    return {"products": of_id.T @ of_id, "ids": torch.tensor(float(len(place)))}
