"""Methods and runs with privacy that several tests share."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms import (
    Algorithm,
    EFLoPS,
    FedAvg,
    FederatedExtragradient,
    FedHT,
    FedProx,
    Lippax,
    Scaffold,
    Tuning,
)
from fedsift.channels import Lossless, TopM
from fedsift.data import FederatedData
from fedsift.engines.base import begin, site_data, state_template, work
from fedsift.privacy import Privacy
from fedsift.training import Training, train
from tests.laws import KEPT, job, linear_problem, rows

DELTA = 1e-5
SITE = Privacy(clip=0.7, noise=0.4, delta=DELTA)
SAMPLE = replace(SITE, level="sample")
STEP: dict[str, Any] = {"learning_rate": 0.05, "local_steps": 1}
METHODS: dict[str, Algorithm] = {
    "fedavg": FedAvg(density=0.25, learning_rate=0.05, local_steps=3),
    "fedht": FedHT(density=0.25, **STEP),
    "fedprox": FedProx(learning_rate=0.05),
    "tuning": Tuning(**STEP),
    "eflops": EFLoPS(density=0.25, **STEP),
    "extragradient": FederatedExtragradient(step=0.05),
    "scaffold": Scaffold(step=0.05, local_steps=2),
    "lippax": Lippax(gamma=0.1, inner_steps=5),
}

PAIRED = [
    (name, channel)
    for name, method in METHODS.items()
    for channel in (Lossless(), TopM(KEPT))
    if channel.lossless or not method.tracks_uploads
]


def lane(seed: int = 0) -> Tensor:
    return random.key("lane", seed)


def fitted(algorithm: Algorithm, privacy: Privacy, **knobs: Any) -> Training:
    data = rows("binary")
    usual: dict[str, Any] = {"rounds": 4, "weights": "uniform", "compile": False}
    return train(linear_problem(data), data, algorithm, privacy=privacy, **{**usual, **knobs})


def told(privacy: Privacy, data: FederatedData, method: Algorithm, c: int, **knobs: Any) -> Any:
    """Return what a site sends in its first round."""
    asked = job(linear_problem(data), data, method, privacy=privacy, **knobs)
    shared = trees.unstack(begin(asked).broadcast.replica, 0)
    tables = [table[asked.rows_of(c)] for table in asked.tables]
    rows_of_site = site_data(tables, asked.shares[c], lane())
    state = state_template(asked, shared)
    return work(asked, method.exchanges_at(0)[-1], shared, state, rows_of_site, lane(c))
