"""The Flower app of the benchmark: local steps of E-FLoPS in NumPy, of FedAvg in torch.

Ray's workers import this module. What is the same in every round (rows, table, network) is kept in
the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from benchmarks import _floors as floors
from benchmarks._jobs import image_rows, site_rows
from benchmarks._numpy_step import eflops_step
from fedsift.models import mlp

app = ClientApp()

site_rows_once = lru_cache(None)(site_rows)
image_rows_once = lru_cache(None)(image_rows)
network = lru_cache(None)(mlp)


def reply(message: Message, arrays: ArrayRecord, rows: int) -> Message:
    """Return a client's answer."""
    metrics = MetricRecord({"num-examples": rows})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.train("eflops")
def train_eflops(message: Message, context: Context) -> Message:
    """Take local steps from the server's (θ̃, bias, φ, λ) and send all of it back."""
    config: Any = message.content["config"]
    site, rows = int(context.node_config["partition-id"]), int(config["rows"])
    arrays: Any = message.content["arrays"]
    state = arrays.to_numpy_ndarrays()
    x, y = site_rows_once(site, rows, len(state[0]))
    rates = floors.Rates(*config["rates"])
    draw = np.random.default_rng((int(config["server-round"]), site))
    for _ in range(int(config["local-steps"])):
        chosen = draw.permutation(rows)[: int(config["batch"])]
        u = draw.random(len(state[0]), dtype=np.float32)
        state = eflops_step(state, x[chosen], y[chosen], u, rates)
    return reply(message, ArrayRecord(state), rows)


@app.train("fedavg")
def train_fedavg(message: Message, context: Context) -> Message:
    """Take a pass over the site's rows from the server's network and send it back."""
    config: Any = message.content["config"]
    site, rows, batch = (
        int(context.node_config["partition-id"]),
        int(config["rows"]),
        int(config["batch"]),
    )
    torch.set_num_threads(1)
    model = network(tuple(config["layers"]))
    arrays: Any = message.content["arrays"]
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = (torch.from_numpy(values) for values in image_rows_once(site, rows))
    optimiser = torch.optim.SGD(model.parameters(), lr=float(config["learning-rate"]))
    loss = nn.CrossEntropyLoss()
    for chosen in torch.randperm(rows)[: batch * int(config["local-steps"])].split(batch):
        optimiser.zero_grad()
        loss(model(x[chosen]), y[chosen]).backward()
        optimiser.step()
    return reply(message, ArrayRecord(model.state_dict()), rows)


class Complete(FedAvg):
    """Averages the answers of all sites, or fails; sends messages of one kind of training."""

    def __init__(self, kind: str, sites: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        self.kind, self.sites = kind, sites

    def _construct_messages(self, record: Any, node_ids: Any, message_type: str) -> Any:
        return super()._construct_messages(record, node_ids, f"{message_type}.{self.kind}")

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Average the answers."""
        replies = list(replies)
        failed = [answer.error.reason for answer in replies if answer.has_error()]
        assert not failed, failed[0]
        assert len(replies) == self.sites, f"{len(replies)} of {self.sites} sites answered"
        return super().aggregate_train(server_round, replies)


def simulate(
    kind: str,
    sites: int,
    arrays: Any,
    config: Mapping[str, Any],
    rounds: int,
    hook: Callable[[int, Any], None],
) -> None:
    """Run rounds in Flower's simulator; the server calls ``hook`` before and after each."""
    from flwr.simulation import run_simulation

    server = ServerApp()
    finished = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        result = Complete(kind, sites).start(
            grid,
            ArrayRecord(arrays),
            num_rounds=rounds,
            train_config=ConfigRecord(dict(config)),
            evaluate_fn=hook,
        )
        finished.append(result)

    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, app, sites, backend_config=backend)
    assert finished, "Flower's run did not finish"
