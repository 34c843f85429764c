"""The local steps of E-FLoPS in JAX, jit and vmap, with the random numbers of fedsift.

`local_step.py` times it. Run alone, it prints JSON with the largest difference between two of its
steps and two of fedsift's, from the same start, rows and keys. Needs jax.

Run: `python benchmarks/jax_step.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

if __name__ == "__main__":
    # From the root of the repository: names in this folder would hide packages of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import _floors as floors
from benchmarks._common import Results, require, run_script, versions
from benchmarks._jobs import regression_sites
from benchmarks._plots import bars
from fedsift import random, trees
from fedsift.algorithms import EFLoPS
from fedsift.gates import PHI_MAX
from fedsift.linear_problems import linear_problem
from fedsift.sites import SiteData
from fedsift.trees import Tree

REQUIREMENT = "jax"
MIX = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))
GOLDEN = 0x9E3779B9

Step = Callable[..., Any]


def load() -> Any:
    """Import jax with one thread: it makes as many as it may use processors when it starts."""
    if not hasattr(os, "sched_setaffinity"):
        return require("jax", REQUIREMENT)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        jax = require("jax", REQUIREMENT)
        jax.numpy.zeros(1).block_until_ready()
    finally:
        os.sched_setaffinity(0, allowed)
    return jax


def make_steps(count: int, rates: floors.Rates) -> Step:
    """Return jit(vmap(``count`` local steps)).

    (θ̃ [lanes, d], bias [lanes], φ [lanes, d], λ [lanes], x [lanes, n, d], y [lanes, n],
    words [lanes, count, 2]: the halves of the steps' keys) → the next four.
    """
    jax = load()
    jnp = jax.numpy
    table, rise = (jnp.asarray(t.numpy()) for t in floors.entropy_slope_table(rates.prior))

    def mix(word: Any) -> Any:
        for shift, factor in MIX:
            word = word ^ (word >> shift)
            word = word if factor is None else word * jnp.uint32(factor)
        return word

    def uniform(key: Any, d: int) -> Any:
        index = jnp.arange(d, dtype=jnp.uint32)
        word = mix(mix(index + key[0]) ^ (index * jnp.uint32(GOLDEN) + key[1]))
        top = (word.astype(jnp.int32) >> 9).astype(jnp.float32)
        return top * 2.0**-23 + (0.5 + 2.0**-24)

    def step(state: Any, key: Any, x: Any, y: Any) -> tuple[Any, None]:
        theta, bias, phi, multiplier = state
        u = uniform(key, theta.shape[0])
        u = jnp.clip(u, 1e-6, 1 - 1e-6)
        s = jax.nn.sigmoid((jnp.log(u / (1 - u)) + phi) / floors.BETA)
        stretched = s * floors.SPAN + floors.GAMMA
        z = jnp.clip(stretched, 0.0, 1.0)
        slope = jnp.where(z == stretched, s * (1 - s) * (floors.SPAN / floors.BETA), 0.0)
        residual = 2.0 * (x @ (theta * z) + bias - y) / x.shape[0]
        field = x.T @ residual
        active = jax.nn.sigmoid(phi - floors.LOWER)
        place = (phi + PHI_MAX) * (floors.INTERVALS / (2 * PHI_MAX))
        index = jnp.clip(place.astype(jnp.int32), 0, floors.INTERVALS)
        entropy = table[index] + (place - index) * rise[index]
        pull = multiplier * active * (1 - active) + rates.temperature * entropy
        violation = active.sum() - rates.target
        raised = jnp.maximum(multiplier + rates.multiplier * violation, 0.0)
        moved = phi - rates.phi * (field * theta * slope + pull)
        return (
            theta - rates.theta * field * z,
            bias - rates.theta * residual.sum(),
            jnp.clip(moved, -PHI_MAX, PHI_MAX),
            jnp.where(violation <= 0, 0.0, raised),
        ), None

    def steps(theta: Any, bias: Any, phi: Any, multiplier: Any, x: Any, y: Any, keys: Any) -> Any:
        state = (theta, bias, phi, multiplier)
        for local in range(count):
            state, _ = step(state, keys[local], x, y)
        return state

    return jax.jit(jax.vmap(steps))  # type: ignore[no-any-return]


def arrays(state: Iterable[Tensor]) -> list[Any]:
    """Return tensors as jax arrays."""
    jax = load()
    return [jax.numpy.asarray(tensor.numpy()) for tensor in state]


def key_words(keys: Tensor, count: int) -> Tensor:
    """Return the halves of the keys of ``count`` steps of every lane, [lanes, count, 2] uint32."""
    steps = random.fold(keys.unsqueeze(1), torch.arange(count))
    halves = torch.stack([steps & 0xFFFFFFFF, (steps >> 32) & 0xFFFFFFFF], -1)
    return halves.to(torch.uint32)


def measure(arguments: argparse.Namespace) -> Results:
    """Return the largest differences after two steps."""
    del arguments
    lanes, rows, d, count = 3, 32, 50, 2
    data = regression_sites(lanes, rows, d)
    problem = linear_problem(data)
    algorithm = EFLoPS(density=0.1, learning_rate=0.01, batch_size=rows, local_steps=count)
    keys = random.fold(random.key("jax"), torch.arange(lanes))
    server = algorithm.server_init(problem, keys[0])
    shared = algorithm.download(problem, server, "round")
    x, y = data.x.reshape(lanes, rows, d), data.y.reshape(lanes, rows)

    def site(x: Tensor, y: Tensor, key: Tensor) -> Tree:
        weight = torch.ones(rows)
        rows_of_site = SiteData(x, y, weight, weight.sum(), key)
        step = algorithm.step_size(shared, algorithm.client_init(problem, shared))
        theta, phi, multiplier = algorithm.descend(
            problem, trees.part(shared, "theta"), shared["phi"], shared, rows_of_site, step, key
        )
        return {**theta, "phi": phi, "multiplier": multiplier}

    ours = torch.func.vmap(site)(x, y, keys)
    start = (torch.zeros(lanes, d), torch.zeros(lanes), server.phi.repeat(lanes, 1))
    theirs = make_steps(count, floors.rates_of(algorithm, problem))(
        *arrays((*start, torch.zeros(lanes), x, y, key_words(keys, count)))
    )
    expected = (ours["weight"].squeeze(1), ours["bias"].squeeze(1), ours["phi"], ours["multiplier"])
    names = ("theta", "bias", "phi", "multiplier")
    return {
        "versions": versions("jax", "jaxlib"),
        "largest_difference": {
            name: (mine - torch.from_numpy(np.array(other))).abs().max().item()
            for name, mine, other in zip(names, expected, theirs, strict=True)
        },
    }


def plot(results: Results, path: Path) -> None:
    """Draw the differences."""
    bars(path, "JAX against fedsift", "largest difference", results["largest_difference"])


if __name__ == "__main__":
    run_script(__doc__, measure, plot)
