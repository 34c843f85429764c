"""Methods for variational inequalities, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from fedsift.algorithms import (
    FPPM,
    Algorithm,
    FedAvg,
    FederatedExtragradient,
    FedGDAGT,
    FedOGDA,
    FedProx,
    Lippax,
    LippaxLiteral,
    LocalExtraSGD,
    LocalProximalExtraStep,
    Scaffold,
)


@dataclass(frozen=True)
class Solver:
    """A method by name.

    Attributes:
        algorithm: the class.
        summary: one line for people.
        options: its fixed hyperparameters.
    """

    algorithm: Callable[..., Algorithm]
    summary: str
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, step: float | None = None, **knobs: Any) -> Algorithm:
        """Return the algorithm; knobs that it does not have are left out, None is its default."""
        own = {f.name for f in fields(self.algorithm)}  # type: ignore[arg-type]
        named = {"gamma", "learning_rate", "step"} & own
        given = {**knobs, **dict.fromkeys(named, step)}
        chosen = {k: v for k, v in given.items() if v is not None and k in own}
        return self.algorithm(**{**self.options, **chosen})


SOLVERS: dict[str, Solver] = {
    "lippax": Solver(Lippax, "corrected local proximal points, one exchange a round"),
    "lippax_certified": Solver(
        Lippax, "two exchanges, a step of its own choice, a bound on the gap", {"certified": True}
    ),
    "local_proximal": Solver(LocalProximalExtraStep, "the paper's local method, for sites alike"),
    "lippax_literal": Solver(LippaxLiteral, "a public account of it, word for word"),
    "lippax_single": Solver(LippaxLiteral, "the same with one state a site", {"single": True}),
    "scaffold": Solver(Scaffold, "local steps with control variates"),
    "fedprox": Solver(FedProx, "local steps that are pulled back"),
    "fppm": Solver(FPPM, "averaged forward steps, called proximal"),
    "fppm_implicit": Solver(FPPM, "averaged proximal points", {"implicit": True}),
    "local_extra_sgd": Solver(LocalExtraSGD, "averaged local extragradient"),
    "fedogda": Solver(FedOGDA, "optimistic steps on the mean field"),
    "federated_extragradient": Solver(
        FederatedExtragradient, "extragradient on the mean field, two exchanges"
    ),
    "fedgda_gt": Solver(FedGDAGT, "gradient tracking, two exchanges"),
    "fedavg": Solver(FedAvg, "averaged local steps", {"local_steps": 10}),
}


def find_solver(name: str) -> Solver:
    """Return a method by name.

    Raises:
        ValueError: there is none; the text names the nearest.
    """
    if name in SOLVERS:
        return SOLVERS[name]
    close = difflib.get_close_matches(name, SOLVERS, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(SOLVERS)}"
    msg = f"no method {name!r} for variational inequalities: {hint}"
    raise ValueError(msg)
