"""The methods a user can name: an algorithm, its fixed options, and on what rows it runs."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedsift.algorithms import (
    Algorithm,
    EFLoPS,
    EFLoPSPaper,
    FedAvg,
    FedHT,
    FedIterHT,
    OneShot,
    SolvedAtSite,
)
from fedsift.channels import Channel, Lossless, TopM

Messages = Literal["auto", "dense", "feedback", "compact", "paper"]
Rows = Literal["federated", "pooled", "alone"]


def dense_formula(gates: int, kept: int) -> int:  # noqa: ARG001
    """4 |θ|: every weight."""
    return 4 * gates


def gated_formula(gates: int, kept: int) -> int:  # noqa: ARG001
    """8 ρ|θ|: weight and gate of what is kept."""
    return 8 * kept


def sparse_formula(gates: int, kept: int) -> int:  # noqa: ARG001
    """4 ρ|θ|: the weights that are kept."""
    return 4 * kept


def sums_formula(gates: int, kept: int) -> int:  # noqa: ARG001
    """2 (d+1)(d+4): the sums over pairs of features."""
    return 2 * (gates + 1) * (gates + 4)


@dataclass(frozen=True)
class Method:
    """A method by name.

    Attributes:
        algorithm: the class; its fields are the knobs.
        rows: ``federated``; ``pooled``: all rows as one site, which needs the data in one place;
            ``alone``: each site by itself.
        summary: one line for people.
        options: fixed hyperparameters.
        feedback: whether error feedback is the default channel.
        formula: bytes of an upload by the paper's count, from (gates G, kept m): no index, one way.
    """

    algorithm: type[Algorithm]
    rows: Rows
    summary: str
    options: dict[str, Any] = field(default_factory=dict)
    feedback: bool = False
    formula: Callable[[int, int], int] = dense_formula

    @property
    def once(self) -> bool:
        """Whether all is said in one exchange, so that seeds and participation change nothing."""
        return issubclass(self.algorithm, OneShot)

    def build(self, messages: Messages = "auto", **knobs: Any) -> Algorithm:
        """Return the algorithm with these hyperparameters; those it does not have are left out.

        None stands for the default.

        Raises:
            ValueError: the paper's messages are asked of a method that has no gates.
        """
        algorithm = self.algorithm
        if messages == "paper":
            if algorithm is not EFLoPS or self.rows != "federated":
                msg = "messages 'paper' are those of eflops and flops; use messages 'auto' here"
                raise ValueError(msg)
            algorithm = EFLoPSPaper
        own = {f.name for f in fields(algorithm)}
        given = {k: v for k, v in knobs.items() if v is not None and k in own}
        return algorithm(**{**given, **self.options})

    def channel(self, messages: Messages, kept: int) -> Channel:
        """Return what carries the messages when ``kept`` gates are wanted."""
        feedback = messages == "feedback" or (messages == "auto" and self.feedback)
        compact = messages == "compact"
        if self.rows != "federated" or not (feedback or compact):
            return Lossless()
        return TopM(kept, one_index_set=compact, half=compact)


METHODS: dict[str, Method] = {
    "eflops": Method(
        EFLoPS,
        "federated",
        "gates, density constraint and entropy",
        feedback=True,
        formula=gated_formula,
    ),
    "flops": Method(
        EFLoPS,
        "federated",
        "E-FLoPS without entropy",
        {"entropy": 0.0},
        feedback=True,
        formula=gated_formula,
    ),
    "fedavg": Method(FedAvg, "federated", "dense averaging, then the largest weights"),
    "fedht": Method(FedHT, "federated", "averaging with a hard threshold on the server"),
    "fediterht": Method(
        FedIterHT, "federated", "hard threshold after every local step", formula=sparse_formula
    ),
    "central": Method(EFLoPS, "pooled", "E-FLoPS on all rows in one place: the bound"),
    "local": Method(EFLoPS, "alone", "E-FLoPS at each site alone"),
    "oneshot": Method(
        OneShot,
        "federated",
        "sums over pairs of features, sent once, and a best-subset solver",
        {"rounds": 1},
        formula=sums_formula,
    ),
    "abess": Method(
        SolvedAtSite,
        "pooled",
        "a best-subset solver on all rows in one place",
        {"rounds": 1, "solver": "abess"},
    ),
    "lasso": Method(
        SolvedAtSite,
        "pooled",
        "a cross-validated lasso on all rows in one place, its largest weights",
        {"rounds": 1, "solver": "lasso"},
    ),
}


def find_method(name: str) -> Method:
    """Return a method by name.

    Raises:
        ValueError: there is none; the text names the nearest.
    """
    if name in METHODS:
        return METHODS[name]
    close = difflib.get_close_matches(name, METHODS, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(METHODS)}"
    msg = f"no method {name!r}: {hint}"
    raise ValueError(msg)
