"""What the methods for variational inequalities share: an automatic step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsift.algorithms.base import Algorithm, Info, Upload
from fedsift.problems import Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree
from fedsift.vi.resolvent import lipschitz


class Site(NamedTuple):
    """ClientState of methods that keep nothing but L_c, 0 until it is known."""

    lipschitz: Tensor


@dataclass(frozen=True, kw_only=True)
class FieldMethod(Algorithm):
    """Base of methods whose step is a multiple of 1/L̄.

    L̄ = Σ p_c L_c ≥ Lip(F̄), with L_c measured by power iteration in one exchange of a number, at
    round 0 by the sites that take part in it; it is counted like any other exchange.

    Attributes:
        batch_size: rows of an evaluation; None for all rows of the site.
    """

    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse hyperparameters out of range."""
        for name in ("step", "gamma"):
            value = getattr(self, name, None)
            if value is not None and not value > 0:
                msg = f"{name} is {value}; give a positive number, or None for an automatic one"
                raise ValueError(msg)

    @property
    def reach(self) -> float:
        """The automatic step times L̄."""
        return 0.5

    def given(self) -> float | None:
        """Return the step that was given, None for an automatic one."""
        return None

    def exchanges_at(self, round_number: int, *, newcomers: bool = False) -> tuple[str, ...]:
        if round_number == 0 and self.given() is None:
            return ("lipschitz", *self.exchanges)
        return self.exchanges

    def measures(self, exchange: str) -> bool:
        return exchange == "lipschitz"

    def step_from(self, constant: Tensor) -> Tensor:
        """Return the step for L̄."""
        given = self.given()
        automatic = self.reach / constant.clamp(min=1e-12)
        return automatic if given is None else torch.full_like(automatic, given)

    def client_init(self, problem: Problem, shared: Tree) -> Any:
        return Site(torch.zeros((), dtype=torch.float64))

    def measure(
        self, problem: Problem, point: Tree, client: Any, data: SiteData, key: Tensor
    ) -> tuple[Upload, Any, Info]:
        """Answer the ``lipschitz`` exchange."""
        batch = data.batch(0, self.batch_size, key)
        value = lipschitz(problem.operators["loss"], point, batch, key)
        upload = {"loss": ({"lipschitz": value}, data.share)}
        return upload, client._replace(lipschitz=value), {}

    def step_of(self, server: Any) -> Tensor:
        """Return the step the server takes next."""
        return self.step_from(server.lipschitz)


@dataclass(frozen=True, kw_only=True)
class SteppedMethod(FieldMethod):
    """Base of those that call it a step.

    Attributes:
        step: η; None for `reach`/L̄.
    """

    step: float | None = None

    def given(self) -> float | None:
        return self.step
