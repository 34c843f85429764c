"""What privacy costs: accuracy on rows held out, by ε. Prints the table of docs/privacy.md.

The held-out rows and their scores are no part of what is promised: they are looked at here because
both data sets are public.
"""

from __future__ import annotations

import sys
from typing import Any

from sklearn.datasets import load_digits

import fedsift
from fedsift.data import FederatedData, golub38, iid, split
from fedsift.findings import guessing
from fedsift.privacy import Level, Privacy

EPSILONS = (1.0, 3.0, 10.0, None)
SPLITS = 10
COMMON: dict[str, Any] = {
    "seeds": 1,
    "splits": 0,
    "rounds": 20,
    "tuning_rounds": 20,
    "local_steps": 1,
    "weights": "uniform",
    "messages": "dense",
    "beside": (),
}
DIGITS: dict[str, Any] = COMMON | {
    "method": "fedavg",
    "features": 32,
    "learning_rate": 2.0,
    "standardise": "none",
}
GENES: dict[str, Any] = COMMON | {
    "method": "eflops",
    "features": 3,
    "learning_rate": 0.1,
    "standardise": "row",
}


def digits(sites: int) -> FederatedData:
    """Return 1797 images of digits, 64 pixels from 0 to 1, spread over sites."""
    images, labels = load_digits(return_X_y=True)
    return iid(
        FederatedData.from_arrays(images / 16, labels, outcome="multiclass", target="digit"),
        sites,
        0,
    )


def accuracy(
    train: FederatedData, test: FederatedData, privacy: Privacy | None, knobs: Any
) -> float:
    """Return the share of test rows that a fit on the training rows predicts."""
    run = fedsift.fit(train, privacy=privacy, **knobs)
    truth = [test.classes[code] for code in test.y.tolist()]
    said = run.predict(test.x.numpy(), test.features)
    return float(sum(a == b for a, b in zip(said, truth, strict=True)) / test.n_samples)


def line(name: str, data: FederatedData, level: Level, knobs: dict[str, Any]) -> str:
    """Return a row of the table."""
    scores: dict[float | None, float] = dict.fromkeys(EPSILONS, 0.0)
    chance = 0.0
    for seed in range(SPLITS):
        train, test = split(data, seed)
        chance += guessing(train, test) / SPLITS
        for epsilon in EPSILONS:
            privacy = None
            if epsilon is not None:
                privacy = Privacy(clip=1.0, epsilon=epsilon, delta=1e-5, level=level)
            scores[epsilon] += accuracy(train, test, privacy, knobs) / SPLITS
    cells = " | ".join(f"{scores[epsilon]:.0%}" for epsilon in EPSILONS)
    return f"| {name} | {level} | {data.n_sites} | {cells} | {chance:.0%} |"


def main() -> None:
    """Print the table."""
    print("| data | protected | sites | ε = 1 | 3 | 10 | no privacy | guessing |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    genes, five, hundred = iid(golub38(), 5, 0), digits(5), digits(100)
    for arguments in (
        ("digits, 32 of 64 pixels", five, "sample", DIGITS),
        ("digits, 32 of 64 pixels", five, "site", DIGITS),
        ("digits, 32 of 64 pixels", hundred, "site", DIGITS),
        ("golub, 3 of 3051 genes", genes, "sample", GENES),
        ("golub, 3 of 3051 genes", genes, "site", GENES),
    ):
        print(line(*arguments))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
