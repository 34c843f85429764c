"""Right-censored times: Cox' partial likelihood at a site, its measure and its baseline hazard.

A target is one number: the time of an event as t, the time at which a row was lost from sight
without one as -t. Rows of weight 0 are in no risk set. Sums are taken in double precision.

Source: D. R. Cox, J. R. Stat. Soc. B 34 (1972); ties: B. Efron, J. Am. Stat. Assoc. 72 (1977).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsift.outcomes.base import Sums, power_of_two

PAIRS = 1 << 18  # pairs of rows that are compared at a time


class Ranked(NamedTuple):
    """Rows by falling time, [n] each: the risk set of a row is all up to ``last``.

    ``order``: the rows; ``first``, ``last``: places of the first and last row of the same time;
    ``event`` 0 or 1; ``weight``; ``ahead``: the share l/d of the d events of the same time that
    come before, of an event; ``mean``: the mean weight of those d.
    """

    order: Tensor
    first: Tensor
    last: Tensor
    event: Tensor
    weight: Tensor
    ahead: Tensor
    mean: Tensor

    def tied(self, values: Tensor) -> Tensor:
        """Return the sum of values over the rows of the same time, for each row."""
        total = values.cumsum(0)
        return total[self.last] - total[self.first] + values[self.first]

    def since(self, values: Tensor) -> Tensor:
        """Return the sum of values over the rows of the same time or an earlier one."""
        total = values.cumsum(0)
        return total[-1] - total[self.first] + values[self.first]


def ranked(y: Tensor, weight: Tensor) -> Ranked:
    """Return rows in the order of their times, [n] each."""
    weight = weight.double()
    time = torch.where(weight > 0, y.abs().double(), -1.0)
    earlier, order = torch.sort(-time, stable=True)
    weight = weight[order]
    event = ((y[order] > 0) & (weight > 0)).to(weight.dtype)
    first = torch.searchsorted(earlier, earlier)
    last = torch.searchsorted(earlier, earlier, right=True) - 1
    rows = Ranked(order, first, last, event, weight, event, event)
    count = rows.tied(event).clamp(min=1.0)
    before = event.cumsum(0) - event
    ahead = event * (before - before[first]) / count
    return rows._replace(ahead=ahead, mean=rows.tied(event * weight) / count)


def risk_sums(rows: Ranked, log_risk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (w exp(η - c), Efron's sum over the risk set, c), rows ranked, c the largest η."""
    largest = torch.where(rows.weight > 0, log_risk, -torch.inf).amax()
    largest = torch.where(torch.isfinite(largest), largest, 0.0)
    risk = rows.weight * (log_risk - largest).clamp(max=0.0).exp()
    at_risk = risk.cumsum(0)[rows.last] - rows.ahead * rows.tied(rows.event * risk)
    return risk, at_risk.clamp(min=1e-300), largest


@dataclass(frozen=True)
class Cox:
    """The time to an event: the output is the logarithm of the relative risk.

    -log of the partial likelihood of a site over the weight of its rows, so that the mean over
    sites is that of a model stratified by site. Of d events at one time the l-th sees the risk set
    less l/d of those d (Efron); weights as in R's survival.
    """

    name: str = "survival"
    measure: str = "concordance"
    null_loss: float = 1.0

    @property
    def decomposable(self) -> bool:
        return False

    @property
    def takes(self) -> bool:
        return True

    def mean_loss(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        rows = ranked(y, weight)
        log_risk = output.squeeze(-1).double()[rows.order]
        _, at_risk, largest = risk_sums(rows, log_risk)
        terms = rows.mean * (at_risk.log() + largest) - rows.weight * log_risk
        loss = (rows.event * terms).sum() / rows.weight.sum().clamp(min=1e-12)
        return loss.to(output.dtype)

    def mean_slope(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        rows = ranked(y, weight)
        log_risk = output.squeeze(-1).double()[rows.order]
        risk, at_risk, _ = risk_sums(rows, log_risk)
        drawn = rows.event * rows.mean / at_risk
        expected = rows.since(drawn) - rows.event * rows.tied(rows.ahead * drawn)
        slope = risk * expected - rows.event * rows.weight
        slope = slope / rows.weight.sum().clamp(min=1e-12)
        return slope[rows.order.argsort()].unsqueeze(-1).to(output.dtype)

    def sums(self, output: Tensor, y: Tensor, weight: Tensor) -> Sums:
        loss = self.mean_loss(output, y, weight).double() * weight.double().sum()
        return {
            "loss": (loss, weight.double().sum()),
            "concordance": concordance(output.squeeze(-1), y, weight),
        }

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        return means

    def constants(self, means: Mapping[str, float], unit: float) -> dict[str, float]:  # noqa: ARG002
        """Return the loss without any feature, which depends on how many rows are at risk."""
        return {"null_loss": power_of_two(means["loss"])}

    def predict(self, output: Tensor) -> Tensor:
        """Return the risk relative to the mean row of the fit, [n]."""
        return output.squeeze(-1).exp()


def concordance(log_risk: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of the pairs of rows that are ranked rightly, and of all pairs.

    A pair counts where the time of one row is known to be shorter: it has an event, and the other a
    longer time or the same without one. It is right where the shorter time has the larger risk,
    half right where risks are equal (Harrell, 1982).
    """
    time, event, share = y.abs(), y > 0, weight.double()
    right, total = torch.zeros_like(share.sum()), torch.zeros_like(share.sum())
    for some in torch.arange(len(y)).split(max(1, PAIRS // len(y))):
        rows = slice(int(some[0]), int(some[-1]) + 1)
        mine, my_risk = time[rows].unsqueeze(1), log_risk[rows].unsqueeze(1)
        known = event[rows].unsqueeze(1) & ((mine < time) | ((mine == time) & ~event))
        pairs = known * share[rows].unsqueeze(1) * share
        won = 0.5 * ((my_risk > log_risk).double() + (my_risk >= log_risk).double())
        right, total = right + (pairs * won).sum(), total + pairs.sum()
    return right, total


def cumulative_hazard(output: Tensor, y: Tensor, weight: Tensor, times: Tensor) -> Tensor:
    """Return the cumulative baseline hazard of a site at some times [T] (Breslow).

    Σ over events i up to a time of wᵢ / Σ over rows j at risk at tᵢ of wⱼ exp(ηⱼ).
    """
    rows = ranked(y, weight)
    log_risk = output.squeeze(-1).double()[rows.order]
    risk, _, largest = risk_sums(rows, log_risk)
    at_risk = risk.cumsum(0)[rows.last].clamp(min=1e-300) * largest.exp()
    jumps = rows.event * rows.weight / at_risk
    reached = y.abs().double()[rows.order] <= times.double().unsqueeze(1)
    return (reached * jumps).sum(1)
