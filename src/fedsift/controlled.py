"""How many features a fit may choose, by how many of them may be false: the rules of `fedsift.fit`.

The set is whatever a threshold lets in, with all that are tied there, and never the first m of a
ranking. It may be empty, with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedsift.data.errors import counted
from fedsift.selection import inclusion_probability
from fedsift.stability import Assumption, bound, threshold

__all__ = ["Choice", "DecoyRule", "by_decoys", "by_halves", "false_shares", "importance"]

DecoyRule = Literal["knockoff+", "minimum"]


class Choice(NamedTuple):
    """The 0/1 mask [d] of the chosen features, and what is known of the choice, as JSON values.

    ``facts`` has ``rule``, ``threshold``, ``chosen`` and ``reason``: why none is chosen, else None.
    """

    support: Tensor
    facts: dict[str, Any]


def importance(weights: Tensor, places: Tensor) -> Tensor:
    """Return W [d]: by how much each feature weighs more than its decoy, float64.

    Of weights [L, K, 2d] the mean over L lanes of the length over K outputs, 0 where a lane did not
    choose the column: its inclusion probability times its mean size where it was chosen. Swapping
    a feature with its decoy changes the sign of its W and nothing else.

    Args:
        weights: of features and decoys, exactly 0 where not chosen.
        places: columns of features and of decoys, [2, d]; `decoys.places`.
    """
    size: Tensor = torch.linalg.vector_norm(weights.double(), dim=1).mean(0)
    return size[places[0]] - size[places[1]]


def false_shares(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the thresholds t of W [d], rising, and the estimated share of false ones among W ≥ t.

        (1 + #{j: W_j ≤ -t}) / max(1, #{j: W_j ≥ t})

    Of features that do not matter as many are above t as below -t.

    Source: Barber & Candès, "Controlling the false discovery rate via knockoffs", Annals of
    Statistics 43 (2015), equation 1.9.
    """
    steps = w[w != 0].abs().unique()
    against = (w <= -steps.unsqueeze(1)).sum(1)
    found = (w >= steps.unsqueeze(1)).sum(1)
    return steps, (1 + against) / found.clamp(min=1)


def by_decoys(w: Tensor, level: float, rule: DecoyRule) -> Choice:
    """Choose features by their W [d].

    * ``knockoff+``: W at or above the smallest t whose estimate is at most ``level``. The expected
      share of false features is then at most ``level`` if the decoys are what they should be
      (Barber & Candès, 2015, theorem 2).
    * ``minimum``: the t with the smallest estimate, and the largest set of those, if that estimate
      is at most ``level``: fewer features, and an estimate that is too low, for it is the least of
      many (the rule of Stabl: Hédou et al., Nature Biotechnology 42, 2024).
    """
    steps, shares = false_shares(w)
    allowed = (shares <= level).nonzero().squeeze(1)
    facts: dict[str, Any] = {"rule": rule, "level": level, "estimated_fdp": None}
    if not len(allowed):
        reason = _why_empty(w, level, steps, shares)
        facts |= {"threshold": None, "chosen": 0, "reason": reason}
        return Choice(torch.zeros(len(w)), facts)
    place = int(allowed[0])
    if rule == "minimum":
        place = int((shares == shares.min()).nonzero()[0])
    support = (w >= steps[place]).float()
    facts |= {"threshold": float(steps[place]), "estimated_fdp": float(shares[place])}
    facts |= {"chosen": int(support.sum()), "reason": None}
    return Choice(support, facts)


def _why_empty(w: Tensor, level: float, steps: Tensor, shares: Tensor) -> str:
    if not (w > 0).any():
        return "no feature weighs more than its decoy"
    best = int((shares == shares.min()).nonzero()[0])
    found = counted(int((w >= steps[best]).sum()), "feature")
    least = math.ceil(1.0 / level - 1e-9)
    return (
        f"of no set of features is the estimated share of false ones at most {level:g}; it is"
        f" least, {float(shares[best]):.2f}, for {found} (at {level:g} a set has {least} features"
        " or more)"
    )


def by_halves(
    masks: Tensor, kept: int, expected: float, assume: Assumption, names: Sequence[str]
) -> Choice:
    """Choose the features that at least a share τ of the halves chose; see `fedsift.stability`.

    Args:
        masks: 0/1, [2B, d]: the choice of each half.
        kept: q, features a half may choose.
        expected: number of false features that is allowed, of which τ follows.
        assume: the assumption of `stability.bound`.
        names: of the features.

    Raises:
        ValueError: no τ keeps the number; the text says what to change.
    """
    pairs, features = len(masks) // 2, masks.shape[1]
    tau = least_threshold(expected, kept, features, pairs, assume)
    often = inclusion_probability(masks)
    support = (often >= tau - 1e-9).float()
    most = int(often.argmax())
    reason = (
        f"no feature was chosen by a share of {tau:g} of {2 * pairs} half-samples; most often,"
        f" {float(often[most]):.2f}, by them was {names[most]}"
    )
    facts = {
        "rule": "complementary pairs",
        "level": expected,
        "expected_false": bound(kept, features, tau, pairs, assume),
        "assumption": assume,
        "pairs": pairs,
        "chosen_by_a_half": kept,
        "threshold": tau,
        "chosen": int(support.sum()),
        "reason": None if support.any() else reason,
    }
    return Choice(support, facts)


def least_threshold(
    expected: float, kept: int, features: int, pairs: int, assume: Assumption
) -> float:
    """Return τ of `by_halves`.

    Raises:
        ValueError: there is none.
    """
    tau = threshold(expected, kept, features, pairs, assume)
    if tau is None:
        least = bound(kept, features, 1.0, pairs, assume)
        msg = (
            f"pfer={expected:g} cannot be kept where a half-sample chooses {kept} of {features}"
            f" features: the bound is {least:.2g} at best; lower features, or leave it out"
        )
        raise ValueError(msg)
    return tau
