"""Small problems and comparisons that several tests share."""

from typing import Any

import torch
from torch import Tensor

from fedsift import aggregation, models, outcomes, random, trees
from fedsift.algorithms import Algorithm, EFLoPS, FedAvg, FedHT, FedIterHT, Tuning
from fedsift.channels import Channel, Lossless, TopM
from fedsift.data import FederatedData
from fedsift.engines.base import Carried, Job, begin
from fedsift.engines.loop import Loop
from fedsift.engines.vectorized import Vectorized
from fedsift.problems import Problem, supervised

SIZES = (9, 1, 14, 2, 6)
KEPT = 3


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return random.normal(random.key(seed, "tests", str(shape)), shape, dtype)


def site_names(sizes: tuple[int, ...]) -> list[str]:
    return [f"hospital {chr(97 + c)}" for c, size in enumerate(sizes) for _ in range(size)]


def rows(
    outcome: str = "regression", sizes: tuple[int, ...] = SIZES, d: int = 12, seed: int = 0
) -> FederatedData:
    """Make sites of uneven size whose target follows the first three features."""
    n = sum(sizes)
    x = normal(n, d, seed=seed)
    score = 2.0 * x[:, 0] - 1.5 * x[:, 1] + x[:, 2] + 0.1 * normal(n, seed=seed + 1)
    y = score
    if outcome in {"poisson", "negative_binomial"}:
        y = (1.0 + 0.5 * score).clamp(0, 6).round()
    elif outcome == "survival":
        time, seen = (-score / 4).exp(), normal(n, seed=seed + 2) > -0.5
        return FederatedData.from_arrays(x, seen, time=time, sites=site_names(sizes))
    elif outcome == "multilabel":  # one of the second site's rows knows no label
        other = 1.5 * x[:, 1] + x[:, 2] + 0.1 * normal(n, seed=seed + 3)
        labels = torch.stack([score > 0, other > 0], 1).long()
        labels[sizes[0], :], labels[::4, 1] = -1, -1
        names = [[None if code < 0 else code for code in row] for row in labels.tolist()]
        return FederatedData.from_arrays(x, names, sites=site_names(sizes), target=["a", "b"])
    elif outcome != "regression":
        cuts = torch.tensor([0.0] if outcome == "binary" else [-1.0, 1.0])
        y = torch.bucketize(score, cuts)
    return FederatedData.from_arrays(x, y, sites=site_names(sizes), outcome=outcome)


def linear_problem(data: FederatedData, dtype: torch.dtype = torch.float32) -> Problem:
    outputs = len(data.classes) if data.outcome in {"multiclass", "multilabel"} else 1
    model = models.linear(data.n_features, outputs, dtype=dtype)
    return supervised(model, outcomes.OUTCOMES[data.outcome])


def every_algorithm(density: float, **knobs: Any) -> dict[str, Algorithm]:
    return {
        "eflops": EFLoPS(density=density, schedule="cubic", gate_rate=0.3, **knobs),
        "fedavg": FedAvg(density=density, **knobs),
        "fedht": FedHT(density=density, schedule="cubic", **knobs),
        "fediterht": FedIterHT(density=density, schedule="cubic", **knobs),
        "tuning": Tuning(**knobs),
    }


ALGORITHMS = tuple(every_algorithm(0.25))
CHANNELS: dict[str, Channel] = {
    "dense": Lossless(),
    "feedback": TopM(KEPT),
    "one index set": TopM(KEPT, one_index_set=True),
    "half precision": TopM(KEPT, one_index_set=True, half=True),
    "no feedback": TopM(KEPT, feedback=False),
}
ENGINES = {"loop": Loop, "vectorized": Vectorized}


def job(
    problem: Problem,
    data: FederatedData,
    algorithm: Algorithm,
    channel: Channel | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    aggregator: aggregation.Aggregator = aggregation.mean,
    **knobs: Any,
) -> Job:
    return Job(problem, data, algorithm, channel or Lossless(), aggregator, seeds=seeds, **knobs)


def proceed(
    job: Job, engine: Any, rounds: int, participation: float = 1.0, carried: Carried | None = None
) -> tuple[Carried, Tensor]:
    """Run the rounds of a job without evaluation; return what is carried and the bytes [3, S]."""
    carried = carried or begin(job)
    total = torch.zeros((3, len(job.seeds)), dtype=torch.int64)
    for number in range(rounds):
        participants = job.participants(number, participation)
        for exchange, asked in job.exchanges(carried, number, participants):
            carried, report = engine.exchange(job, carried, number, exchange, asked)
            total += torch.stack([report.bytes_up, report.bytes_down, report.bytes_regions])
    return carried, total


def largest_gap(a: Any, b: Any) -> float:
    """Return the largest difference between equally shaped structures."""
    gaps = [
        float((x.double() - y.double()).abs().max())
        for x, y in zip(trees.leaves(a), trees.leaves(b), strict=True)
        if x.numel()
    ]
    return max(gaps, default=0.0)


def relative_gap(a: Any, b: Any) -> float:
    """Return the same in units of each value, where that is above 1."""
    units = [x.double().abs().clamp(min=1.0) for x in trees.leaves(a)]
    pairs = zip(trees.leaves(a), trees.leaves(b), units, strict=True)
    scaled = [(x.double() / unit, y.double() / unit) for x, y, unit in pairs]
    return largest_gap(tuple(x for x, _ in scaled), tuple(y for _, y in scaled))


def bit_equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(trees.leaves(a), trees.leaves(b), strict=True))
