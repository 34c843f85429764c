"""Channels: what travels between server and sites.

An algorithm hands over whole trees. A channel decides which part of an upload is sent and keeps the
rest as that site's residual, and which part of the server's state is published. The parts that may
be cut are ``theta/...`` (gated leaves) and ``phi``; scalars and ungated leaves are always sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsift import messages, trees
from fedsift.privacy import Protection
from fedsift.problems import Problem
from fedsift.sparsity import top_mask
from fedsift.trees import Tree


class Broadcast(NamedTuple):
    """What the server has published: the replica every site works from once it has caught up.

    ``changed_at``: for every number of the replica, the exchange in which it last changed. A site
    that was last served in exchange t needs the numbers with ``changed_at > t``.
    """

    replica: Tree
    changed_at: Tree


class Channel(Protocol):
    """What is sent of an upload, and what is published of the server's state."""

    @property
    def lossless(self) -> bool:
        """Whether all of an upload arrives."""

    def init(self, problem: Problem, upload: Tree) -> Any:
        """Return a site's channel state before its first upload, zeros."""

    def send(
        self, problem: Problem, state: Any, upload: Tree, protect: Protection | None = None
    ) -> tuple[Tree, Any]:
        """Return what is sent of an upload and the site's next channel state.

        ``protect`` is applied to all that would be sent, before any of it is chosen: which numbers
        are large says something of the rows as well.
        """

    def publish(self, problem: Problem, replica: Tree, shared: Tree) -> Tree:
        """Return the next replica, as near to ``shared`` as one message brings it."""


@dataclass(frozen=True)
class Lossless:
    """Everything is sent, each part in its smallest form."""

    lossless: bool = True

    def init(self, problem: Problem, upload: Tree) -> tuple[()]:  # noqa: ARG002
        return ()

    def send(
        self,
        problem: Problem,  # noqa: ARG002
        state: tuple[()],
        upload: Tree,
        protect: Protection | None = None,
    ) -> tuple[Tree, tuple[()]]:
        return (upload if protect is None else protect(upload)[1]), state

    def publish(self, problem: Problem, replica: Tree, shared: Tree) -> Tree:  # noqa: ARG002
        return shared


@dataclass(frozen=True)
class TopM:
    """The numbers of the m gates with the largest change; the rest is lost, or kept with feedback.

    With error feedback (Seide et al., 2014; Stich et al., 2018) a site sends the largest entries of
    change + residual and carries the rest to its next upload, so nothing is lost, only late.

    Attributes:
        kept: m.
        feedback: keep what was not sent.
        one_index_set: choose the same gates for weights and gate parameters, which saves their
            second index list, by the larger of the two scaled changes.
        half: round what is sent to half precision, two bytes a number; with feedback, what the
            rounding took is carried over with the rest.
    """

    kept: int
    feedback: bool = True
    one_index_set: bool = False
    half: bool = False
    lossless: bool = False

    def init(self, problem: Problem, upload: Tree) -> Tree:
        return trees.zeros_like(self._cut(problem, upload)) if self.feedback else {}

    def send(
        self, problem: Problem, state: Tree, upload: Tree, protect: Protection | None = None
    ) -> tuple[Tree, Tree]:
        wanted = self._cut(problem, upload)
        if self.feedback and wanted:
            wanted = trees.add(wanted, state)
        whole = {**upload, **wanted}
        clean, noisy = (whole, whole) if protect is None else protect(whole)
        clean = self._cut(problem, clean)
        masks = self._masks(problem, self._cut(problem, noisy))
        sent = {**noisy, **self._chosen(problem, self._cut(problem, noisy), masks)}
        if not (self.feedback and wanted):
            return sent, state
        # What the clip cut off is lost, and the noise is never taken back: both would pile up.
        return sent, trees.subtract(clean, self._chosen(problem, clean, masks))

    def publish(self, problem: Problem, replica: Tree, shared: Tree) -> Tree:
        gap = self._cut(problem, trees.subtract(shared, replica))
        moved = self._picked(problem, gap, self._masks(problem, gap))
        told = trees.add(self._cut(problem, replica), moved)
        if self.half:
            told = {k: torch.where(moved[k] != 0, messages.to_half(v), v) for k, v in told.items()}
        return {**shared, **told}

    def _cut(self, problem: Problem, tree: Tree) -> Tree:
        """Return the parts that may be cut."""
        gated = {f"theta/{leaf}" for leaf in problem.gates.views}
        return {k: v for k, v in tree.items() if k in gated or k == "phi"}

    def _masks(self, problem: Problem, wanted: Tree) -> list[Tensor]:
        """Return the masks [G] of what is chosen: of weights, then of gate parameters."""
        scores = []
        weights = trees.part(wanted, "theta")
        if weights:
            scores.append(problem.gates.magnitude(weights))
        if "phi" in wanted:
            scores.append(wanted["phi"].abs())
        if self.one_index_set and len(scores) == 2:
            scaled = [s / s.square().mean().sqrt().clamp(min=1e-30) for s in scores]
            return [top_mask(torch.maximum(*scaled), self.kept)] * 2
        return [top_mask(score, self.kept) for score in scores]

    def _chosen(self, problem: Problem, wanted: Tree, masks: list[Tensor]) -> Tree:
        """Return the parts as they are sent, with zeros for what is not chosen."""
        picked = self._picked(problem, wanted, masks)
        return {k: messages.to_half(v) for k, v in picked.items()} if self.half else picked

    def _picked(self, problem: Problem, wanted: Tree, masks: list[Tensor]) -> Tree:
        """Return the parts with zeros for what is not chosen."""
        weights = trees.part(wanted, "theta")
        chosen: Tree = {}
        if weights:
            chosen = trees.join(theta=problem.gates.multiply(weights, masks[0]))
        if "phi" in wanted:
            chosen["phi"] = wanted["phi"] * masks[-1]
        return chosen


def start_broadcast(shared: Tree, *, known: bool) -> Broadcast:
    """Return the broadcast before the first exchange.

    ``known``: sites have the start already, since they can draw it from the key.
    """
    changed = -1 if known else 0
    return Broadcast(
        shared, {k: torch.full(v.shape, changed, dtype=torch.int32) for k, v in shared.items()}
    )


def advance(
    channel: Channel, problem: Problem, broadcast: Broadcast, shared: Tree, tick: Tensor
) -> Broadcast:
    """Publish ``shared`` in exchange ``tick``."""
    replica = channel.publish(problem, broadcast.replica, shared)
    changed_at = {
        k: torch.where(value != broadcast.replica[k], tick.to(torch.int32), broadcast.changed_at[k])
        for k, value in replica.items()
    }
    return Broadcast(replica, changed_at)


def missed(broadcast: Broadcast, seen: Tensor) -> Tree:
    """Return masks of what a site last served in exchange ``seen`` does not have."""
    return {k: changed > seen for k, changed in broadcast.changed_at.items()}


def download_size(broadcast: Broadcast, seen: Tensor) -> Tensor:
    """Return the bytes that bring a site up to date: an update, or the whole if smaller."""
    update = messages.size(broadcast.replica, missed(broadcast, seen))
    return torch.minimum(update, messages.size(broadcast.replica))


def download_message(broadcast: Broadcast, seen: Tensor) -> bytes:
    """Return the message whose length is `download_size`."""
    update = messages.encode(broadcast.replica, missed(broadcast, seen))
    whole = messages.encode(broadcast.replica)
    return min(update, whole, key=len)
