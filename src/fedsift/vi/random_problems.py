"""Random monotone problems in bulk, to see whether a method ever fails to end."""

from __future__ import annotations

import torch

from fedsift import random
from fedsift.sets import Ball, Box, FeasibleSet, Simplex
from fedsift.vi.named import draw
from fedsift.vi.problem import VIProblem, affine

KINDS: dict[str, FeasibleSet] = {
    "ball": Ball(1.0),
    "small ball": Ball(0.1),
    "box": Box(-1.0, 1.0),
    "simplex": Simplex(),
}


def random_monotone(number: int, *, n_sites: int = 3, size: int = 5) -> VIProblem:
    """Return problem ``number``: affine and monotone, on one of four sets in turn.

    The mean's symmetric part is 0 (every third), strongly monotone (every third) or singular; the
    force puts the solution inside or on the boundary; sites need not be monotone themselves.
    """
    key = random.key("random_monotone", number)
    kind = list(KINDS)[number % len(KINDS)]
    modulus = (0.0, 0.2, 1e-3)[number % 3]
    root, turn = draw(key, "root", 2, size), draw(key, "turn", size, size)
    own = draw(key, "own", n_sites, size, size)
    own = 0.5 * own.sub(own.mean(0))
    force = 10.0 ** float(draw(key, "size", 1).clamp(-1.5, 1.5)) * draw(key, "force", size)
    eye = torch.eye(size, dtype=torch.float64)
    symmetric = 0.0 if number % 3 == 0 else root.T @ root / 4
    A = modulus * eye + symmetric + (turn - turn.T) / 2 + own
    b = force + draw(key, "forces", n_sites, size).sub(draw(key, "forces", n_sites, size).mean(0))
    start = {"x": draw(key, "start", size)}
    feasible = KINDS[kind]
    return affine(A, b, feasible.project(start), feasible, name=f"{kind} {number}")
