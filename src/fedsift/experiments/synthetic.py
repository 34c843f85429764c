"""Synthetic regression: who finds the true features, from how many samples, for how many bytes.

The set-up of E-FLoPS (arXiv 2607.00275): d = 1000 features, m = 50 of them with weights ±1,
Σ_ij = .2^|i-j|, SNR 20, test R² and support recovery against N/d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedsift.experiments.base import Cell, Experiment, Outcome
from fedsift.experiments.synthetic_cells import budget, curve, federated, pooled, tuned
from fedsift.experiments.synthetic_page import charts, page
from fedsift.experiments.synthetic_rows import paired_rows, sweep_rows


class Contender(NamedTuple):
    """A method with its messages and knobs, and the name under which tables show it."""

    method: str
    messages: str = "dense"
    knobs: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.method + ("-cubic" if self.knobs.get("schedule") == "cubic" else "")


CUBIC = {"schedule": "cubic"}
SWEEP = (
    Contender("eflops"),
    Contender("eflops", "feedback"),
    Contender("fediterht", knobs=CUBIC),
    Contender("flops"),
    Contender("fedht", knobs=CUBIC),
    Contender("fediterht"),
    Contender("fedht"),
    Contender("fedavg"),
    Contender("eflops", "paper"),
    Contender("central"),
)
SOLVERS = ("abess", "lasso")
BUDGET = (
    Contender("eflops", "feedback"),
    Contender("eflops", "one-index", {"local_steps": 4}),
    Contender("eflops", "compact", {"local_steps": 4}),
    Contender("eflops", "few", {"local_steps": 4}),
    Contender("eflops", "paper"),
    Contender("eflops"),
    Contender("fediterht"),
    Contender("fediterht", knobs=CUBIC),
    Contender("fedht", knobs=CUBIC),
    Contender("fedavg"),
)
UNTUNED: dict[str, dict[str, Any]] = {
    "affine shift": {"shift": "affine"},
    "correlation .5": {"correlation": 0.5},
    "SNR 5": {"snr": 5.0},
    "d=2000, m=20": {"n_features": 2000, "n_informative": 20},
    "logistic": {"binary": True},
}
TUNED = (Contender("eflops"), Contender("fedht"), Contender("fediterht"), Contender("fedavg"))
STEPPED = (Contender("eflops"), Contender("fediterht"), Contender("fedavg"))


@dataclass(frozen=True)
class Design:
    """How large the experiment is.

    ``data`` and ``seeds``: of the sweep; the ensembles at ``close`` sample sizes are of ``seeds``
    run seeds, elsewhere of ``few``. ``centre``: the sample size of all that is not the sweep.
    """

    samples: tuple[int, ...] = (100, 150, 200, 250, 300, 400, 500, 700, 1000)
    close: tuple[int, ...] = (250, 300, 200, 150, 400)
    centre: int = 300
    data: int = 10
    seeds: int = 8
    few: int = 2
    aside: int = 5
    rounds: int | None = None
    factors: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    networks: tuple[tuple[int, float], ...] = ((5, 0.6), (20, 0.25))
    trials: int = 12
    steps: tuple[float, ...] = (0.125, 0.5, 1.0, 2.0, 4.0)
    setting: Mapping[str, Any] = field(default_factory=dict)


QUICK = Design(
    samples=(60, 100, 200),
    close=(60, 100),
    centre=100,
    data=3,
    seeds=2,
    aside=2,
    rounds=100,
    factors=(0.5, 1.0),
    networks=((5, 0.6),),
    trials=3,
    steps=(0.5, 2.0),
    setting={"n_features": 200, "n_informative": 10, "n_test": 500},
)


class Synthetic(Experiment):
    """The synthetic experiment."""

    name = "synthetic"
    summary = "sparse regression whose answer is known"
    curved = (*SWEEP[:3], SWEEP[5], SWEEP[7])

    def design(self, *, quick: bool) -> Design:
        """Return how large it is."""
        return QUICK if quick else Design()

    def cells(self, *, quick: bool) -> list[Cell]:
        """Return the cells, those that matter most first."""
        design = self.design(quick=quick)
        order = (*design.close, *(n for n in design.samples if n not in design.close))
        cells = [_solved(design, n, s) for n in design.close for s in SOLVERS]
        cells += [_swept(design, n, c) for n in design.close for c in SWEEP[:4]]
        for n in order:
            cells += [_swept(design, n, c) for c in SWEEP]
            cells += [_solved(design, n, s) for s in SOLVERS]
        cells += list(_untuned(design, quick=quick))
        cells += list(_budgets(design))
        cells += [_tuned(design, c) for c in TUNED]
        cells += [_curved(design, c) for c in self.curved]
        cells += [_stepped(design, c, factor) for c in STEPPED for factor in design.steps]
        return list({cell.name: cell for cell in cells}.values())

    def outcome(self, found: Mapping[str, dict[str, Any]], *, quick: bool) -> Outcome:
        """Return the tables, pictures and the page."""
        design = self.design(quick=quick)
        rows = sweep_rows(found)
        results = {"rows": rows, "paired": paired_rows(found)}
        return Outcome(
            results,
            page(found, results, design, done=len(found), of=len(self.cells(quick=quick))),
            charts(found, rows, design),
        )


def _swept(design: Design, samples: int, contender: Contender) -> Cell:
    seeds = design.seeds if samples in design.close else design.few
    arguments = {
        "method": contender.method,
        "messages": contender.messages,
        "samples": samples,
        "data_seeds": list(range(design.data)),
        "seeds": seeds,
        "setting": dict(design.setting),
        "rounds": design.rounds,
        "knobs": dict(contender.knobs),
    }
    name = f"sweep · N={samples} · {contender.name} · {contender.messages}"
    return Cell(name, federated, arguments, design.data * (10 + seeds) * (1 + samples / 1000))


def _solved(design: Design, samples: int, solver: str) -> Cell:
    arguments = {
        "solver": solver,
        "samples": samples,
        "data_seeds": list(range(design.data)),
        "setting": dict(design.setting),
    }
    return Cell(f"sweep · N={samples} · {solver} · rows", pooled, arguments, design.data)


def _untuned(design: Design, *, quick: bool) -> list[Cell]:
    cells = []
    for title, changed in UNTUNED.items():
        if quick and "n_features" in changed:
            continue
        common = {
            "samples": design.centre,
            "data_seeds": list(range(design.data)),
            "setting": {**design.setting, **changed},
        }
        for contender in SWEEP[:3]:
            arguments = common | {
                "method": contender.method,
                "messages": contender.messages,
                "seeds": design.seeds,
                "rounds": design.rounds,
                "knobs": dict(contender.knobs),
            }
            name = f"untuned · {title} · {contender.name} · {contender.messages}"
            cells.append(Cell(name, federated, arguments, design.data * 20.0))
        if "binary" not in changed:
            for solver in SOLVERS:
                name = f"untuned · {title} · {solver} · rows"
                cells.append(Cell(name, pooled, common | {"solver": solver}, design.data))
    return cells


def _budgets(design: Design) -> list[Cell]:
    cells = []
    for sites, participation in design.networks:
        for contender in BUDGET:
            for factor in design.factors:
                arguments = {
                    "method": contender.method,
                    "messages": contender.messages,
                    "factor": factor,
                    "data_seeds": list(range(design.aside)),
                    "seeds": design.few,
                    "samples": design.centre,
                    "sites": sites,
                    "participation": participation,
                    "reference": design.rounds or 300,
                    "knobs": dict(contender.knobs),
                    "setting": dict(design.setting),
                }
                where = f"{sites} sites {participation:.0%}"
                name = f"bytes · {where} · x{factor} · {contender.name} · {contender.messages}"
                cells.append(Cell(name, budget, arguments, design.aside * 10.0 * factor))
    return cells


def _tuned(design: Design, contender: Contender) -> Cell:
    arguments = {
        "method": contender.method,
        "messages": contender.messages,
        "samples": design.centre,
        "data_seeds": list(range(design.data)),
        "seeds": design.seeds,
        "trials": design.trials,
        "setting": dict(design.setting),
        "rounds": design.rounds,
    }
    name = f"tuned · {contender.name} · {contender.messages}"
    return Cell(name, tuned, arguments, design.data * 20.0 + 10.0 * design.trials)


def _curved(design: Design, contender: Contender) -> Cell:
    arguments = {
        "method": contender.method,
        "messages": contender.messages,
        "samples": design.centre,
        "data_seed": 0,
        "seeds": design.few,
        "setting": dict(design.setting),
        "schedule": contender.knobs.get("schedule"),
        "rounds": design.rounds,
    }
    return Cell(f"curve · {contender.name} · {contender.messages}", curve, arguments, 30.0)


def _stepped(design: Design, contender: Contender, factor: float) -> Cell:
    arguments = {
        "method": contender.method,
        "messages": contender.messages,
        "samples": design.centre,
        "data_seeds": list(range(design.aside)),
        "seeds": design.few,
        "setting": dict(design.setting),
        "rounds": design.rounds,
        "knobs": {"safety": 0.5 * factor, **contender.knobs},
    }
    name = f"steps · x{factor} · {contender.name} · {contender.messages}"
    return Cell(name, federated, arguments, design.aside * 10.0)


EXPERIMENT = Synthetic()
