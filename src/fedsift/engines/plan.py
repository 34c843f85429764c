"""What is decided about a run before its first round."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.func import vmap

from fedsift import trees
from fedsift.engines.base import Carried, Job, begin, state_template, work
from fedsift.engines.vectorized import Vectorized
from fedsift.problems import Batch

LARGE = 1 << 20  # numbers of all lanes from which parts may be faster
WORTH = 30  # rounds from which it is worth measuring
SMALLEST = 4  # sites of a chunk
GAIN = 0.95  # time of a smaller chunk over that of a larger one, to be worth it


class Plan(NamedTuple):
    """How a run is worked on: kept with it, so that it goes on in the same way.

    ``fused``: by `torch.compile`; ``chunk``: most sites at a time, None for all.
    """

    fused: bool = False
    chunk: int | None = None


def cannot_batch(job: Job, carried: Carried) -> str | None:
    """Return why `vmap` cannot take this model (or would take it one lane at a time), or None.

    Tried on a discarded copy of one site, twice side by side.

    Raises:
        ValueError: the model draws random numbers of its own, so that no run could be repeated.
    """
    replica = trees.unstack(carried.broadcast.replica, 0)
    twice = trees.stack([replica, replica])
    data = job.site(0, job.run_keys[0])
    state, exchange = state_template(job, replica), job.algorithm.exchanges_at(1)[-1]

    def lane(shared: Any) -> Any:
        return work(job, exchange, shared, state, data, job.run_keys[0]).sent

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        try:
            vmap(lane)(twice)
            batch = Batch(data.x, data.y, data.weight, job.run_keys[0])
            params = job.algorithm.solution(job.problem, trees.unstack(carried.server, 0))
            vmap(lambda p: job.problem.evaluate(p, batch))(trees.stack([params, params]))
        except (RuntimeError, UserWarning) as error:
            reason = str(error).split("\n", 1)[0]
            if "random" in reason:
                msg = (
                    "the model draws random numbers that no key decides (a functional dropout, or"
                    " the dropout of an attention layer); use torch.nn.Dropout layers, and"
                    " dropout=0 in attention"
                )
                raise ValueError(msg) from error
            return reason
    return None


def make_plan(
    job: Job, participants: Tensor, rounds: int, *, fuse: bool | Literal["auto"], repeats: int = 1
) -> Plan:
    """Return how a run of ``rounds`` will be worked on; ``repeats`` runs of its kind will follow.

    ``fuse``: whether to compile; "auto": where that pays by an estimate, which is the same in every
    process. The size of a chunk is measured on a discarded copy, once for a kind of run.
    """
    fused = compile_pays(job, participants, repeats * rounds) if fuse == "auto" else fuse
    return Plan(fused, best_chunk(job, participants, rounds))


def compile_pays(job: Job, participants: Tensor, rounds: int) -> bool:
    """Estimate whether fusing an exchange saves more than its compile costs.

    Fused, a round saves about 1.5 ms, .6 ms for every step (some hundred small operations
    under `vmap`) and 20 ns for every number of every lane in a step. A compile takes about 10 s to
    begin, 20 s for two steps of a linear model, more with more steps and leaves, and again for
    every size of a site's block; a tenth of that where an earlier process left it on disk.
    """
    numbers, leaves = _size(job)
    steps = getattr(job.algorithm, "local_steps", 1)
    shapes = len(job.block_rows.unique())
    lanes = int(participants.sum())
    saved = rounds * (1.5e-3 + steps * (0.6e-3 + 2e-8 * lanes * numbers))
    return saved > 10.0 + shapes * (10.0 + 5.0 * steps) * max(1.0, leaves / 4)


_CHUNKS: dict[tuple[Any, ...], int | None] = {}


def best_chunk(job: Job, participants: Tensor, rounds: int) -> int | None:
    """Return how many sites to work on at a time, by the time of an unfused round; None: all.

    Large models are faster in parts, whose numbers stay in the processor's cache. A quarter is
    tried as long as it is faster, and remembered for runs of the same shape.
    """
    numbers, _ = _size(job)
    sites = int(participants.any(0).sum())
    if int(participants.sum()) * numbers < LARGE or rounds < WORTH:
        return None
    shape = (type(job.algorithm), numbers, sites, len(job.seeds), int(job.block_rows.max()))
    if shape not in _CHUNKS:
        chunk, best = None, _seconds(job, participants, None)
        size = sites // 4
        while size >= SMALLEST:
            time_taken = _seconds(job, participants, size)
            if time_taken > GAIN * best:
                break
            chunk, best, size = size, time_taken, size // 4
        _CHUNKS[shape] = chunk
    return _CHUNKS[shape]


def _seconds(job: Job, participants: Tensor, chunk: int | None) -> float:
    """Return the time of a round of a discarded copy, after one that warms up."""
    job = replace(job, delivery=None)
    engine, carried = Vectorized(chunk=chunk), begin(job)
    exchange = job.algorithm.exchanges_at(0)[-1]
    for number in (0, 1):
        began = time.perf_counter()
        carried, _ = engine.exchange(job, carried, number, exchange, participants)
    return time.perf_counter() - began


def _size(job: Job) -> tuple[int, int]:
    """Return how many numbers and leaves a model has."""
    leaves = job.problem.init(job.run_keys[0])
    return sum(leaf.numel() for leaf in leaves.values()), len(leaves)
