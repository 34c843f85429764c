"""Methods for variational inequalities on the Flower engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift import vi
from fedsift.algorithms import Algorithm, Lippax
from fedsift.problems import Batch
from fedsift.sets import Ball, Product, Simplex
from fedsift.solvers import SOLVERS
from fedsift.training import train
from fedsift.trees import Tree
from tests.flower.fake import FakeGrid, connected, nodes_of
from tests.flower.test_engine import assert_same
from tests.laws import rows


def worst_half(params: Tree, batch: Batch) -> torch.Tensor:
    """Squared errors of rows whose first feature is positive, and of the others, by weights q."""
    errors = (batch.x.double() @ params["w"] - batch.y.double()) ** 2
    share = (batch.weight / batch.weight.sum()).double()
    groups = torch.stack([errors * (batch.x[:, 0] > 0), errors * (batch.x[:, 0] <= 0)])
    return params["q"] @ (groups @ share)


@pytest.mark.parametrize("name", [*SOLVERS, "partial"])
def test_solvers_are_the_simulators(name: str, tmp_path: Path) -> None:
    """A saddle over hospitals' rows; exchanges of numbers and of fields, one or two a round."""
    data = rows("regression", sizes=(9, 5, 14, 6), d=4)
    start = {"w": torch.zeros(4).double(), "q": torch.full((2,), 0.5).double()}
    sets = Product({"w": Ball(5.0), "q": Simplex()})
    saddle = vi.saddle(worst_half, data, start, ("q",), sets)
    problem = replace(saddle.problem, recipe={"name": "worst half"})
    nodes = nodes_of(data, tmp_path, per_node=2, problems=lambda _: problem)
    remote = connected(data, FakeGrid(nodes))
    partial = name == "partial"
    algorithm: Algorithm = Lippax() if partial else SOLVERS[name].build()
    share = 0.5 if partial else 1.0
    knobs: Any = {"rounds": 4, "participation": share, "seeds": (0, 1)}
    far = train(problem, remote, algorithm, **knobs)
    near = train(problem, data, algorithm, compile=False, **knobs)
    assert_same(far, near)
