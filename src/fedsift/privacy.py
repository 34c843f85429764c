"""Differential privacy: what is clipped, the noise, and the ledger of what was released.

At level *site* what a site sends is clipped as a whole and given Gaussian noise before it leaves.
At level *sample* every call of the operator answers with the sum of clipped row gradients and
noise, and the algorithm sees nothing else of the rows. Two data sets are neighbours if one site's
rows (one row) are replaced by any others, so that the sensitivity is twice the clip. Releases
compose: n of them with noise σ are one with σ/√n, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedsift import noise, trees
from fedsift.algorithms.base import Algorithm
from fedsift.data import FederatedData
from fedsift.problems import Batch, Operator, Problem
from fedsift.sites import SiteData
from fedsift.trees import Tree

Level = Literal["site", "sample"]
Protection: TypeAlias = Callable[[Tree], tuple[Tree, Tree]]

SENSITIVITY = 2.0  # in clips: what was there, replaced by its opposite
_SLACK = 1.0 - 1e-12  # so that rounding cannot lift a clipped length above the clip


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What is promised, or how much noise there is.

    Attributes:
        clip: C, the longest contribution of a site (to a message) or of a row (to a sum of
            gradients), in the Euclidean norm.
        delta: δ of (ε, δ), well below one over the number of sites or rows.
        noise: σ; the standard deviation of every number of a release is σC.
        epsilon: ε of all that is planned, in place of ``noise``.
        level: what is protected, all of a ``site`` or one ``sample``.
    """

    clip: float
    delta: float
    noise: float | None = None
    epsilon: float | None = None
    level: Level = "site"

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and a release without noise."""
        wrong = {
            "give the noise or the epsilon of privacy, and not both": (self.noise is None)
            == (self.epsilon is None),
            f"privacy's noise is {self.noise}; give a positive number": self.noise is not None
            and not 0 < self.noise < torch.inf,
            f"epsilon is {self.epsilon}; give a positive number": self.epsilon is not None
            and not 0 < self.epsilon < torch.inf,
            f"privacy's clip is {self.clip}; give a positive number": not 0 < self.clip < torch.inf,
            f"privacy's delta is {self.delta}; give a number above 0 and below 1": not 0
            < self.delta
            < 1,
            f"privacy's level is {self.level!r}; give 'site' or 'sample'": self.level
            not in {"site", "sample"},
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(message)

    def planned(self, releases: int) -> Privacy:
        """Return the same with the noise that ``releases`` need."""
        if self.noise is not None:
            return self
        single = _accounting().get_sigma_gaussian(self.epsilon, self.delta)
        return replace(self, noise=SENSITIVITY * single * releases**0.5, epsilon=None)

    def spent(self, releases: int) -> float:
        """Return ε of this many releases."""
        if not releases:
            return 0.0
        assert self.noise is not None  # noqa: S101  planned before anything is released
        return gaussian_epsilon(SENSITIVITY * releases**0.5 / self.noise, self.delta)


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Return ε of Gaussian noise whose means are at most ``distance`` deviations apart.

    Source: Balle & Wang, 2018, theorem 8.
    """
    with np.errstate(all="ignore"):  # the search goes through numbers that are out of range
        return float(_accounting().get_epsilon_gaussian(1.0 / distance, delta))


def _accounting() -> Any:
    """Return the library that accounts.

    Raises:
        ValueError: it is not installed.
    """
    if find_spec("dp_accounting") is None:
        msg = "dp-accounting, privacy's accountant, is not installed; pip install 'fedsift[dp]'"
        raise ValueError(msg)
    import dp_accounting

    return dp_accounting


def clipped(tree: Tree, clip: float) -> Tensor:
    """Return all numbers of a tree as one vector, float64 [d], of length ``clip`` at most.

    A number that is not finite becomes 0: whether one is, would tell something too.
    """
    vector = trees.flatten(trees.map_tensors(Tensor.double, tree))
    vector = torch.where(torch.isfinite(vector), vector, 0.0)
    largest = vector.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
    direction = vector / largest
    most = _SLACK * clip / torch.linalg.vector_norm(direction)
    return torch.minimum(largest, most) * direction


@dataclass
class Guard:
    """What stands between a site's rows and its messages in one exchange.

    Attributes:
        privacy: with its noise.
        secret: of the noise, int32 [8].
        key: of the site's lane in the exchange.
        releases: how many there were; each has noise of its own.
    """

    privacy: Privacy
    secret: Tensor = field(repr=False)
    key: Tensor
    releases: int = 0

    def release(self, vector: Tensor) -> Tensor:
        """Return a vector, float64 [d], with noise, in single precision.

        So the last digits of double precision, which depend on what was added, are not sent.
        """
        assert self.privacy.noise is not None  # noqa: S101  planned before anything is released
        drawn = noise.normal(self.secret, self.key, self.releases, len(vector))
        self.releases += 1
        return (vector + self.privacy.noise * self.privacy.clip * drawn).float()

    def message(self, clear: frozenset[str]) -> Protection | None:
        """Return what protects a message: tree → (clipped, clipped and noised), but for ``clear``.

        None where it need not be, for it was made of rows that are protected.
        """
        if self.privacy.level != "site":
            return None

        def protect(tree: Tree) -> tuple[Tree, Tree]:
            told = {name: leaf for name, leaf in tree.items() if name not in clear}
            vector = clipped(told, self.privacy.clip)
            both = (vector, self.release(vector))
            clean, noisy = ({**tree, **trees.unflatten(v, told)} for v in both)
            return clean, noisy

        return protect

    def rows(self, problem: Problem, data: SiteData) -> tuple[Problem, SiteData]:
        """Return the problem and the rows as the algorithm sees them.

        At level ``sample`` the rows are blank, and the operators know the true ones.
        """
        if self.privacy.level != "sample":
            return problem, data
        blank = data._replace(x=torch.zeros_like(data.x), y=torch.zeros_like(data.y))
        operators = {name: self._operator(f, data) for name, f in problem.operators.items()}
        return replace(problem, operators=operators, objectives={}, row_loss=None), blank

    def _operator(self, operator: Operator, data: SiteData) -> Operator:
        """Return Σ clipped row gradients + noise, over the number of rows."""
        numbers = torch.arange(len(data.x), device=data.x.device)
        one = data.weight.new_ones(1)

        def private(params: Tree, batch: Batch) -> Tree:
            def row(x: Tensor, y: Tensor, number: Tensor) -> Tensor:
                alone = Batch(x.unsqueeze(0), y.unsqueeze(0), one, batch.key, number.unsqueeze(0))
                slope = operator(params, alone)
                return clipped({leaf: slope[leaf] for leaf in params}, self.privacy.clip)

            each = torch.func.vmap(row)(data.x, data.y, numbers)
            total = torch.where(data.weight > 0, 1.0, 0.0).double() @ each
            return trees.unflatten(self.release(total) / data.weight.sum(), params)

        return private


def check(
    privacy: Privacy, problem: Problem, data: FederatedData, algorithm: Algorithm, weights: str
) -> None:
    """Refuse what would tell of the rows beside what is accounted for.

    Raises:
        ValueError: the text says what it is, and what to do.
    """
    _accounting()
    name = type(algorithm).__name__
    steps = {f.name for f in fields(algorithm)} & {"learning_rate", "step", "gamma"}
    untold = algorithm.tracks_uploads and type(algorithm).sent is Algorithm.sent
    reason = algorithm.refuse_privacy(privacy.level)
    wrong = {
        "privacy and roles of rows do not go together: forgetting uses the rows without noise":
            data.role is not None,
        f"{name} measures its step on the rows, without noise; give {' or '.join(sorted(steps))}":
            any(map(algorithm.measures, algorithm.exchanges_at(0))),
        f"{name} has no privacy: {reason}": reason is not None,
        f"sites' own values ({', '.join(problem.private)}) follow their rows without noise, and all"
        " that is told follows them; leave them out": bool(problem.private),
    }  # fmt: skip
    if privacy.level == "site":
        wrong |= {
            f"weights is {weights!r}, which tells how many rows a site has; give weights='uniform'":
                weights != "uniform",
            f"{name} has no privacy of sites: they remember what they uploaded, not what was sent;"
            " define Algorithm.sent": untold,
        }  # fmt: skip
    else:
        size = getattr(algorithm, "batch_size", None)
        wrong |= {
            "sample weights would make rows count more than the account says; leave them out":
                bool((data.weight != 1).any()),
            f"batch_size is {size}; batches are drawn from a published seed, so they save no noise:"
            " leave it out": size is not None,
            "the rows of this problem do not add up, so none can be clipped alone; use"
            " level='site'": not problem.decomposable,
        }  # fmt: skip
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)
