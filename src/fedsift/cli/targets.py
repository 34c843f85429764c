"""Targets of ``--require``: what a run must reach, else exit code 3."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedsift.cli.failures import UsageError

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


class Target(NamedTuple):
    """``key`` (a result, or method.result in a comparison) compared with a number."""

    key: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.bound:g}"


def parse(texts: Sequence[str], known: Sequence[str]) -> list[Target]:
    """Read targets; refuse a wrong form, and results that the run will not have."""
    from fedsift.data.errors import nearest

    targets = []
    for text in texts:
        match = _FORM.fullmatch(text)
        if match is None:
            raise UsageError(f"--require {text!r} is not understood; write 'test_accuracy>=.9'")
        key = match[1]
        if key not in known:
            raise UsageError(
                f"--require {text!r}: this run gives no {key!r}; {nearest(key, known)}"
            )
        targets.append(Target(key, match[2], float(match[3])))
    return targets


def known_results(
    outcome: str,
    *,
    tested: bool,
    synthetic: bool,
    private: bool = False,
    methods: Sequence[str] = (),
) -> list[str]:
    """Return the results that can be required, ``method.result`` for a comparison."""
    from fedsift.outcomes import make_outcome

    measure = make_outcome(outcome).measure
    names = [f"test_{measure}", f"single_seed_{measure}"] if tested else []
    if tested and outcome == "multilabel":
        names += ["test_cross_entropy", "test_hamming_loss", "test_subset_accuracy"]
    names += ["support_recovery", "ensemble_support_recovery"] if synthetic else []
    names += ["epsilon", "delta"] if private else []
    names += ["bytes_up", "bytes_down", "bytes_dense", "bytes_per_seed", "seconds"]
    return [f"{method}.{name}" for method in methods for name in names] or names


def missed(targets: Sequence[Target], results: Mapping[str, Any]) -> list[str]:
    """Return a line for each target that was not met."""
    lines = []
    for target in targets:
        value: Any = results
        for part in target.key.split("."):
            value = value[part]
        number = float(value["mean"] if isinstance(value, Mapping) else value)
        if not _COMPARE[target.sign](number, target.bound):
            lines.append(f"not met: {target}, it is {number:.4g}")
    return lines
