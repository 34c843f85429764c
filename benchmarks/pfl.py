"""Rounds of pfl (pfl-research) against fedsift's, the same job, in turns in one process.

FedAvg on a 784-128-10 network: 100 sites of 640 rows, every site in every round, 20 local steps in
batches of 32, in torch. pfl: `SimulatedBackend`, `FederatedAveraging`, `PyTorchModel`, rows as
tensors in memory, users drawn by "minimize_reuse" so that a cohort of 100 is every site once, plain
SGD at users and server; a user walks through its rows in their order, where fedsift draws every
batch. fedsift: `train` with its defaults for a run of 300 rounds. One process of one thread each;
neither evaluates; a round of pfl goes from one call of its callback to the next. Rounds take turns;
the first of either is a warm-up (it holds fedsift's compile). `speedup` is the median seconds of
pfl's rounds over fedsift's; `products_ms` is the time of the bare matrix products of a round by
`torch.mm`, which both need.

Needs pfl. Run: `python benchmarks/pfl.py [--quick] [--repeats 5] [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if __name__ == "__main__":
    # From the root of the repository: in this folder, `import pfl` would find this file.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import _floors as floors
from benchmarks._common import Results, Target, interleaved, require, run_script, versions
from benchmarks._jobs import NetworkJob, SteppedRun, image_rows
from benchmarks._plots import bars
from fedsift.models import mlp

REQUIREMENT = "pfl==0.6.0"


class Network(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.body = mlp(layers)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        output: Tensor = self.body(x)
        return output

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        value: Tensor = self.criterion(self(x), y)
        return value

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return the loss; pfl evaluates in its first round only, the warm-up."""
        weighted = require("pfl.metrics", REQUIREMENT).Weighted
        return {"loss": weighted(self.loss(x, y).item() * len(x), len(x))}


def measure_network(job: NetworkJob, run: SteppedRun, repeats: int) -> Results:
    """Simulate in pfl, with rounds of fedsift between its rounds."""
    algorithm, simulate, callback, federated, sampling, hyperparam, pytorch, base = (
        require(f"pfl.{name}", REQUIREMENT)
        for name in (
            "algorithm.federated_averaging",
            "aggregate.simulate",
            "callback.base",
            "data.federated_dataset",
            "data.sampling",
            "hyperparam.base",
            "model.pytorch",
            "algorithm.base",
        )
    )
    theirs: list[float] = []
    ours: list[float] = []
    bare: list[float] = []
    products = floors.network_products(job.layers, job.batch, job.sites * job.local_steps)
    left = time.perf_counter()
    base_class: Any = callback.TrainingProcessCallback

    class Between(base_class):  # type: ignore[misc]
        """Times pfl's round and lets fedsift do one."""

        def after_central_iteration(
            self,
            aggregate_metrics: Any,  # noqa: ARG002
            model: Any,  # noqa: ARG002
            *,
            central_iteration: int,
        ) -> tuple[bool, Any]:
            nonlocal left
            if central_iteration:
                theirs.append(time.perf_counter() - left)
            ours.append(run.round())
            bare.append(interleaved({"products": products}, 1, 0)["products"])
            left = time.perf_counter()
            return False, metrics.Metrics()

    metrics = require("pfl.metrics", REQUIREMENT)
    sites = {
        site: tuple(torch.from_numpy(values) for values in image_rows(site, job.rows))
        for site in range(job.sites)
    }
    sampler = sampling.get_user_sampler("minimize_reuse", list(sites))
    data = federated.FederatedDataset.from_slices(sites, sampler)
    network = Network(job.layers)
    model = pytorch.PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    algorithm.FederatedAveraging().run(
        algorithm_params=base.NNAlgorithmParams(
            central_num_iterations=1 + repeats,
            evaluation_frequency=10 * (1 + repeats),
            train_cohort_size=job.sites,
            val_cohort_size=0,
        ),
        backend=simulate.SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=hyperparam.NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=job.local_steps,
            local_learning_rate=job.learning_rate,
            local_batch_size=job.batch,
        ),
        callbacks=[Between()],
        send_metrics_to_platform=False,
    )
    run.stop()
    assert len(theirs) == repeats
    theirs_seconds, our_seconds = statistics.median(theirs), statistics.median(ours[1:])
    return {
        "model": "fedavg",
        "sites": job.sites,
        "pfl_ms": 1e3 * theirs_seconds,
        "fedsift_ms": 1e3 * our_seconds,
        "products_ms": 1e3 * statistics.median(bare[1:]),
        "fedsift_first_round_seconds": run.first_round,
        "speedup": theirs_seconds / our_seconds,
    }


def measure(arguments: argparse.Namespace) -> Results:
    """Return the figures."""
    require("pfl.model.pytorch", REQUIREMENT)
    job = NetworkJob(sites=10, rows=64, local_steps=2) if arguments.quick else NetworkJob()
    case = measure_network(job, job.start(), arguments.repeats)
    target = Target(f"fedavg, {job.sites} sites", 2.0, at_most=False).judge(case["speedup"])
    return {
        "versions": versions("pfl"),
        "settings": {
            "layers": list(job.layers),
            "rows": job.rows,
            "batch": job.batch,
            "local_steps": job.local_steps,
            "pfl": {"framework": "torch", "processes": 1, "torch_compile": False},
        },
        "targets": [] if arguments.quick else [target],
        "cases": [case],
    }


def plot(results: Results, path: Path) -> None:
    """Draw the speedups."""
    values = {f"{c['model']}, {c['sites']} sites": c["speedup"] for c in results["cases"]}
    bars(path, "fedsift against pfl", "times as fast", values, (1.0,))


if __name__ == "__main__":
    run_script(__doc__, measure, plot)
