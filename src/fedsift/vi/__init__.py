"""Federated variational inequalities: problems, how far a point is from solving one, diagnosis."""

from __future__ import annotations

from fedsift.vi import catalogue, games, named, tasks
from fedsift.vi.diagnosis import Diagnosis, diagnose, monotonicity
from fedsift.vi.gaps import dual_gap, mean_field, nash_gap, natural_residual
from fedsift.vi.problem import (
    VIProblem,
    affine,
    from_loss,
    from_operators,
    game,
    lagrangian,
    model_loss,
    saddle,
    site_rows,
)

__all__ = [
    "Diagnosis",
    "VIProblem",
    "affine",
    "catalogue",
    "diagnose",
    "dual_gap",
    "from_loss",
    "from_operators",
    "game",
    "games",
    "lagrangian",
    "mean_field",
    "model_loss",
    "monotonicity",
    "named",
    "nash_gap",
    "natural_residual",
    "saddle",
    "site_rows",
    "tasks",
]
