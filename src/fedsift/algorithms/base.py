"""The contract of an algorithm: six pure functions over trees of tensors.

The engine calls them for one server and one site at a time, or batched over sites and seeds; an
algorithm cannot tell, and must not branch on the value of a tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsift import trees
from fedsift.problems import Problem, curvature
from fedsift.sites import SiteData
from fedsift.trees import Tree

Upload: TypeAlias = dict[str, tuple[Tree, Tensor]]
Info: TypeAlias = dict[str, Tensor]


class Total(NamedTuple):
    """What the server learns of one group of uploads.

    ``mean``: weighted mean over the participants; ``weight``: their weight; ``population``: the
    weight of all sites of the group, taking part or not.
    """

    mean: Tree
    weight: Tensor
    population: Tensor


Totals: TypeAlias = dict[str, Total]

REMEMBERED = "its sites remember what they uploaded, and the server must hold the sum"


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """A federated algorithm; its fields are its hyperparameters.

    States are NamedTuples of tensors. `Upload` is {group: (tree, weight)}; scalars travel in the
    tree. Class attributes: ``exchanges``, the message exchanges of a round in order;
    ``tracks_uploads``, True when a site's state must equal what the server received of it, so that
    only lossless channels will do; ``only_mean``, why no other aggregation than the mean will do;
    ``keeps_own``, True when sites can have values of their own (`Problem.private`).
    """

    exchanges: ClassVar[tuple[str, ...]] = ("round",)
    tracks_uploads: ClassVar[bool] = False
    only_mean: ClassVar[str | None] = None
    keeps_own: ClassVar[bool] = False
    diverged: ClassVar[float] = 100.0

    rounds: int = 300

    def exchanges_at(self, round_number: int, *, newcomers: bool = False) -> tuple[str, ...]:
        """Return the exchanges of this round; ``newcomers``: a participant was never asked before.

        In round 0 all participants are.
        """
        return self.exchanges

    def measures(self, exchange: str) -> bool:
        """Return whether this exchange measures something, now and then, instead of training."""
        return False

    def refuse(self, problem: Problem) -> None:
        """Refuse a problem that the algorithm is not for, before anything is done.

        Raises:
            ValueError: the text says why, and what to use.
        """
        if problem.private and not self.keeps_own:
            msg = (
                f"{type(self).__name__} gives sites no values of their own"
                f" ({', '.join(problem.private)}); use eflops, flops, fedavg, fedht or fediterht"
                " with dense messages or error feedback, or leave them out"
            )
            raise ValueError(msg)
        size = getattr(self, "batch_size", None)
        if size is not None and not problem.decomposable:
            msg = (
                f"batch_size is {size}, but the loss of {problem.outcome} compares all rows of a"
                " site; leave it out"
            )
            raise ValueError(msg)

    @abstractmethod
    def server_init(self, problem: Problem, key: Tensor) -> Any:
        """Return the ServerState before round 0."""

    @abstractmethod
    def download(self, problem: Problem, server: Any, exchange: str) -> Tree:
        """Return what every site receives."""

    @abstractmethod
    def client_init(self, problem: Problem, shared: Tree) -> Any:
        """Return the ClientState of a site that was never asked: zeros, no data."""

    @abstractmethod
    def client_round(
        self,
        problem: Problem,
        shared: Tree,
        client: Any,
        data: SiteData,
        key: Tensor,
        exchange: str,
    ) -> tuple[Upload, Any, Info]:
        """Return a site's upload, its next ClientState and diagnostics."""

    @abstractmethod
    def server_round(
        self, problem: Problem, server: Any, totals: Totals, exchange: str
    ) -> tuple[Any, Info]:
        """Return the next ServerState and diagnostics."""

    @abstractmethod
    def solution(self, problem: Problem, server: Any) -> Tree:
        """Return the parameters: deterministic, and exactly sparse where the method says so."""

    def sent(self, client: Any, upload: Upload, exchange: str) -> Any:
        """Return the ClientState once the site knows what was sent of its upload."""
        return client

    def clear_parts(self) -> frozenset[str]:
        """Return the parts of an upload that are the same whatever rows a site has.

        Privacy sends them as they are.
        """
        return frozenset()

    def refuse_privacy(self, level: str) -> str | None:
        """Return why privacy at this level (``site``, ``sample``) would not work; None: it does."""
        return None

    def finished(self, server: Any) -> Tensor:
        """Return whether runs may end before their last round, for a state [S, ...] of all seeds.

        Boolean, [S], or a scalar that holds for all.
        """
        return torch.zeros((), dtype=torch.bool)

    def back_off(self, server: Any) -> Any:
        """Return the state with a smaller step, for a run that diverged; None if there is none."""
        return None


class Own(NamedTuple):
    """A site's own values of the private leaves, and whether it has trained them: 0 or 1."""

    values: Tree
    trained: Tensor


class SiteStep(NamedTuple):
    """ClientState of methods with local steps: the site's curvature, 0 until measured.

    ``own``: () where the problem has no private leaves.
    """

    curvature: Tensor
    own: Own | tuple[()] = ()


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Algorithm):
    """Base of methods that take local gradient steps.

    A site with values of its own (`Problem.private`) takes its steps from them, tells the changes
    as of any other leaf, and goes on from where it ended, while the server's values follow the mean
    of the changes: with equal steps they are the mean of the sites' own.

    Attributes:
        learning_rate: η; None for η_c = κ / max(L_c, L̄), with L_c the largest curvature of the
            site's own loss (power iteration) and L̄ its weighted mean over the participants,
            measured in an exchange of one number at rounds 0, 10, 20, 40, 80, ... and in rounds in
            which a site takes part for the first time.
        safety: κ.
        local_steps: steps a site takes in a round.
        batch_size: rows of a step; None for all rows of the site.
    """

    learning_rate: float | None = None
    safety: float = 0.5
    local_steps: int = 2
    batch_size: int | None = None

    FIRST_REFRESH: ClassVar[int] = 10

    def __post_init__(self) -> None:
        """Refuse hyperparameters out of range."""
        density = getattr(self, "density", 1.0)
        if not 0.0 < density <= 1.0:
            msg = f"density is {density}; give the share of parameters to keep, above 0 and up to 1"
            raise ValueError(msg)
        if self.local_steps < 1 or self.rounds < 1:
            msg = f"rounds is {self.rounds}, local_steps {self.local_steps}; give 1 or more"
            raise ValueError(msg)

    def exchanges_at(self, round_number: int, *, newcomers: bool = False) -> tuple[str, ...]:
        periods = round_number // self.FIRST_REFRESH
        due = round_number % self.FIRST_REFRESH == 0 and periods & (periods - 1) == 0
        measured = self.learning_rate is None and (due or newcomers)
        return ("curvature", "round") if measured else ("round",)

    def measures(self, exchange: str) -> bool:
        return exchange == "curvature"

    def client_init(self, problem: Problem, shared: Tree) -> SiteStep:
        if not problem.private:
            return SiteStep(torch.zeros(()))
        theta = trees.part(shared, "theta")
        values = {leaf: torch.zeros_like(theta[leaf]) for leaf in problem.private}
        return SiteStep(torch.zeros(()), Own(values, torch.zeros(())))

    def at_site(self, theta: Tree, client: SiteStep) -> Tree:
        """Return the server's parameters with the values of its own that a site has trained."""
        if not client.own:
            return theta
        values, trained = client.own
        shared = {leaf: theta[leaf] for leaf in values}
        return {**theta, **trees.where(trained > 0, values, shared)}

    def keep_own(
        self,
        problem: Problem,
        client: SiteStep,
        shared: Tree,
        theta: Tree,
        step: Tensor,
        data: SiteData,
    ) -> SiteStep:
        """Return the state with the private leaves where H local steps of a site have ended.

        The penalty λ/2n ‖a - b‖² of a site of n rows is met by a proximal step to the shared values
        b: a ← b + (a - b) / (1 + H η_c λ/n). At rest F_c(a) = -λ/n (a - b).
        """
        if not client.own:
            return client
        rows = data.weight.sum().clamp(min=1e-30)
        values = {}
        for leaf, ridge in problem.private.items():
            apart = theta[leaf] - shared[leaf]
            values[leaf] = shared[leaf] + apart / (1.0 + self.local_steps * step * ridge / rows)
        return client._replace(own=Own(values, torch.ones_like(client.own.trained)))

    def step_size(self, shared: Tree, client: SiteStep) -> Tensor:
        """Return η_c. The floor L̄ keeps a site with a flat loss (one class) from large steps."""
        if self.learning_rate is not None:
            return self.learning_rate * shared["step_scale"]
        bound = torch.maximum(client.curvature, shared["curvature"]).clamp(min=1e-12)
        return self.safety * shared["step_scale"] / bound

    def measure_curvature(
        self,
        problem: Problem,
        params: Tree,
        client: SiteStep,
        data: SiteData,
        key: Tensor,
        scaling: Tree | None = None,
    ) -> tuple[Upload, SiteStep, Info]:
        """Answer the ``curvature`` exchange; from one to the next L_c at most halves."""
        batch = data.batch(0, self.batch_size, key)
        measured = curvature(problem.operators["loss"], params, batch, key, scaling)
        measured = measured.to(client.curvature.dtype)
        value = torch.maximum(measured, 0.5 * client.curvature)
        state = client._replace(curvature=value)
        return {"loss": ({"curvature": value}, data.share)}, state, {}

    def back_off(self, server: Any) -> Any:
        return server._replace(step_scale=0.25 * server.step_scale)
