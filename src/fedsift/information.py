"""How many samples it takes to name the few features that matter: a bound for any method."""

from __future__ import annotations

import math
from collections.abc import Sequence


def nats_of_sets(kept: int, total: int) -> float:
    """Return ln C(d, m): what it takes to tell which m = ``kept`` of d = ``total`` it are."""
    return math.lgamma(total + 1) - math.lgamma(kept + 1) - math.lgamma(total - kept + 1)


def nats_of_measured(snr: float) -> float:
    """Return ½ ln(1 + SNR): the most that a sample of a measured target tells of the features.

    SNR = R² / (1 - R²), the variance that the features explain over the variance of the noise.
    """
    return math.log1p(snr) / 2


def nats_of_classes(counts: Sequence[int]) -> float:
    """Return the entropy -Σ p ln p of classes, the most a label tells; ln K if they balance."""
    total = sum(counts)
    return -sum(n / total * math.log(n / total) for n in counts if n)


def fewest_samples(kept: int, total: int, nats: float) -> int:
    """Return the samples below which no method names all m of d features, with one set in view.

    N = ln C(d, m) / I, with I nats a sample. For a measured target I = ½ ln(1 + SNR), and N is to
    leading order 2 m ln(d/m) / ln(1 + SNR): 98 for d = 1000, m = 50 and SNR = 20, where N itself is
    128.5. Some of the features can be found from fewer samples.

    Args:
        kept: m, from 1 to d.
        total: d.
        nats: I, positive (`nats_of_measured`, `nats_of_classes`).

    Sources: M. J. Wainwright, IEEE Trans. Inf. Theory 55:5728 (2009), by Fano's inequality; the
    leading order: G. Reeves, J. Xu & I. Zadik, COLT 2019, PMLR 99:2652.
    """
    return math.ceil(nats_of_sets(kept, total) / nats - 1e-9)


def most_features(samples: int, total: int, nats: float) -> int:
    """Return the largest m up to d/2 that `fewest_samples` allows from N = ``samples``, or 0."""
    kept = 0
    while kept < total // 2 and fewest_samples(kept + 1, total, nats) <= samples:
        kept += 1
    return kept
