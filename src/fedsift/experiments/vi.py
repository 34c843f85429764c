"""Federated variational inequalities: LIPPAX, its rivals, and a public account of it, measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from fedsift import trees
from fedsift.algorithms import EFLoPS, Lippax
from fedsift.data import DataError
from fedsift.data.synthetic import synthetic_regression
from fedsift.experiments import vi_account
from fedsift.experiments.base import Cell, Experiment, Outcome
from fedsift.experiments.tables import table_markdown
from fedsift.models import linear
from fedsift.outcomes import OUTCOMES
from fedsift.problems import supervised
from fedsift.reporting.charts import Chart, Series
from fedsift.selection import t_interval
from fedsift.solvers import find_solver
from fedsift.solving import solve
from fedsift.training import train
from fedsift.vi import sparse
from fedsift.vi.catalogue import make_problem

# row of the table → problem and knobs
PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bilinear, unlike by 0": ("bilinear_ball", {"heterogeneity": 0.0}),
    "bilinear, unlike by .3": ("bilinear_ball", {"heterogeneity": 0.3}),
    "bilinear, unlike by .6": ("bilinear_ball", {"heterogeneity": 0.6}),
    "affine": ("affine", {}),
    "robust least squares": ("robust_least_squares", {}),
    "minimisation": ("minimisation", {}),
    "matrix game": ("matrix_game", {}),
}
OURS = ("lippax", "lippax_certified")
RIVALS = (
    "scaffold",
    "federated_extragradient",
    "fedogda",
    "fedgda_gt",
    "local_extra_sgd",
    "fedavg",
    "fedprox",
    "fppm_implicit",
    "lippax_literal",
)
SCALES = (0.5, 1.0, 2.0)  # steps of a rival, in units of its own automatic one
FINER = {"federated_extragradient": (0.5, 1.0, 1.3, 1.7, 2.0)}  # the strongest one on saddles
LEARNERS = ("lippax", "scaffold", "fedprox", "fedavg", "fppm_implicit")
ACCOUNT = ("opposite_sites", "projections", "momentum", "units", "momentum_in_noise", "privacy")


def saddle_cell(row: str, method: str, seed: int, most: int, scale: float | None) -> dict[str, Any]:
    """Solve one problem by one method; ``scale``: its step over its automatic one."""
    name, knobs = PROBLEMS[row]
    problem = make_problem(name, seed=seed, **knobs)
    build, step = find_solver(method), None
    if scale is not None and hasattr(build.build(), "reach"):
        norms = torch.linalg.matrix_norm(problem.data.x[..., :-1], 2)
        step = scale * build.build().reach / float(norms.mean())  # type: ignore[attr-defined]
    elif scale is not None and scale != 1.0:
        return {"exchanges": None, "residual": None, "bytes": None, "curve": []}
    answer = solve(problem, build.build(step), max_exchanges=most)
    curve = [[r["exchanges"], r["residual"]] for r in answer.history if "residual" in r]
    return {
        "exchanges": answer.exchanges_to_tolerance,
        "residual": answer.residual,
        "bytes": answer.bytes_up + answer.bytes_down,
        "certificate": answer.certificate_max,
        "gap": answer.gap,
        "bound": answer.gap_bound,
        "curve": curve[:: max(1, len(curve) // 60)],
    }


def learning_cell(task: str, method: str, seed: int, most: int) -> dict[str, Any]:
    """Train a learning task; exchanges to a tenth of the starting residual, final accuracies."""
    problem = make_problem(task, seed=seed)
    answer = solve(
        problem, find_solver(method).build(), max_exchanges=most, tolerance=1e-9, look_every=2
    )
    there = [r["exchanges"] for r in answer.history if r.get("residual", 1.0) <= 0.1]
    return {
        "exchanges": there[0] if there else None,
        "residual": answer.residual,
        "accuracy": answer.measures["accuracy"],
        "worst": answer.measures["worst_accuracy"],
    }


def account_cell(claim: str) -> dict[str, Any]:
    """Check one claim of the account."""
    found: dict[str, Any] = getattr(vi_account, claim)()
    return found


def decay_cell(most: int) -> dict[str, Any]:
    """Check the factor .95."""
    return vi_account.decay(most=most)


def eflops_cell(method: str, rounds: int, seed: int) -> dict[str, Any]:
    """Solve E-FLoPS's Lagrangian by LIPPAX, or by its own descent and ascent; the same data."""
    made = synthetic_regression(
        n_samples=240, n_features=sparse.FEATURES, n_informative=sparse.INFORMATIVE,
        seed=seed, n_test=2, n_sites=5,
    )  # fmt: skip
    scaled = made.train.y / made.train.y.std()  # E-FLoPS counts in units of the target's variance
    truth = set(made.coefficients.nonzero().flatten().tolist())
    if method == "lippax":
        problem = sparse.eflops_lagrangian(n_sites=5, seed=seed)
        ours = Lippax(rounds=rounds, inner_steps=8)
        run = train(problem.problem, problem.data, ours, evaluate_every=1, compile=False)
        chosen = set(sparse.support(trees.unstack(run.params, 0)).tolist())
    else:
        density = sparse.INFORMATIVE / sparse.FEATURES
        model = supervised(linear(sparse.FEATURES), OUTCOMES["regression"])
        own = EFLoPS(density=density, rounds=rounds)
        run = train(
            model,
            replace(made.train, y=scaled),
            own,
            seeds=(seed,),
            evaluate_every=1,
            compile=False,
        )
        chosen = set(run.params["weight"][0, 0].nonzero().flatten().tolist())
    late = [r for r in run.history[-max(2, rounds // 3) :] if r.get("multiplier") is not None]
    multipliers = torch.tensor([r["multiplier"] for r in late])
    density = float(late[-1]["density"])
    return {
        "multiplier swing": float((multipliers.max() - multipliers.min()) / multipliers.mean()),
        "density": density,
        "density error": density - sparse.INFORMATIVE / sparse.FEATURES,
        "recovery": len(truth & chosen) / len(truth),
    }


class Equilibria(Experiment):
    """The page of ``fedsift reproduce vi``."""

    name: ClassVar[str] = "vi"
    summary: ClassVar[str] = "federated saddles and games: LIPPAX, its rivals, a public account"

    def cells(self, *, quick: bool) -> list[Cell]:
        """Return the cells."""
        seeds, most = (1, 120) if quick else (3, 600)
        rows = ["bilinear, unlike by .3", "minimisation"] if quick else list(PROBLEMS)
        rivals = ("scaffold", "federated_extragradient", "fedavg") if quick else RIVALS
        cells = []
        for row in rows:
            for method in (*OURS, *rivals):
                scales = (None,) if quick or method in OURS else FINER.get(method, SCALES)
                cells += [
                    Cell(f"{row} · {method} · {seed} · {scale}", saddle_cell,
                         {"row": row, "method": method, "seed": seed, "most": most, "scale": scale})
                    for seed in range(seeds) for scale in scales
                ]  # fmt: skip
        tasks = {"fair_logistic": 12 if quick else 200}
        if not quick and _has_text():
            tasks["shakespeare_roles"] = 60
        cells += [
            Cell(f"{task} · {method} · {seed}", learning_cell,
                 {"task": task, "method": method, "seed": seed, "most": count}, 4.0)
            for task, count in tasks.items()
            for method in (LEARNERS[:2] if quick else LEARNERS) for seed in range(seeds)
        ]  # fmt: skip
        cells += [Cell(f"account · {c}", account_cell, {"claim": c}, 0.5) for c in ACCOUNT]
        cells.append(Cell("account · decay", decay_cell, {"most": most}))
        rounds = 15 if quick else 150
        cells += [
            Cell(f"eflops · {m} · {seed}", eflops_cell,
                 {"method": m, "rounds": rounds, "seed": seed}, 4.0)
            for m in ("lippax", "own") for seed in range(seeds)
        ]  # fmt: skip
        return cells

    def outcome(self, found: Mapping[str, dict[str, Any]], *, quick: bool) -> Outcome:
        """Return the tables, the page and the picture."""
        saddles = _saddle_rows(found)
        learning = _learning_rows(found)
        account = {k.partition(" · ")[2]: v for k, v in found.items() if k.startswith("account")}
        eflops = _eflops_rows(found)
        note = "\nA small form: one problem of each kind, few exchanges.\n" if quick else ""
        page = "\n".join(
            [
                "# Federated variational inequalities\n" + note,
                "Exchanges to .001 of the starting residual; means over problems, – for never; a",
                "rival has the best of its steps. Generators as in docs/solve.md, 20 sites.\n",
                table_markdown(saddles),
                _winners(saddles),
                "\n## Learning tasks\n",
                "Exchanges to a tenth of the starting residual; final accuracies.\n",
                table_markdown(learning),
                "\n## E-FLoPS's Lagrangian\n",
                table_markdown(eflops),
                "\n## A public account of LIPPAX, claim by claim\n",
                _account_page(account),
            ]
        )
        charts = {"vi-residuals": _chart(found)}
        results = {"rows": saddles, "learning": learning, "account": account, "eflops": eflops}
        return Outcome(results, page, charts)


def _has_text() -> bool:
    try:
        make_problem("shakespeare_roles", n_sites=2)
    except DataError:
        return False
    return True


def _split(found: Mapping[str, dict[str, Any]], first: set[str]) -> dict[tuple[str, ...], Any]:
    parts = {tuple(name.split(" · ")): result for name, result in found.items()}
    return {key: result for key, result in parts.items() if key[0] in first}


def _saddle_rows(found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    cells = _split(found, set(PROBLEMS))
    rows: dict[str, dict[str, Any]] = {}
    for row, method in dict.fromkeys((key[0], key[1]) for key in cells):
        by_scale: dict[str, list[float]] = {}
        for key, result in cells.items():
            if key[:2] == (row, method):
                count = result["exchanges"]
                by_scale.setdefault(key[3], []).append(math.inf if count is None else count)
        best = min(sum(counts) / len(counts) for counts in by_scale.values())
        rows.setdefault(row, {"problem": row})[method] = best if math.isfinite(best) else None
    return list(rows.values())


def _winners(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        counts = {k: v for k, v in row.items() if k != "problem" and v is not None}
        if counts:
            best = min(counts, key=lambda name: float(counts[name]))
            lines.append(f"* {row['problem']}: {best} needs the fewest exchanges.")
    return "\n".join(lines)


def _learning_rows(found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    cells = _split(found, {"fair_logistic", "shakespeare_roles"})
    rows = []
    for task, method in dict.fromkeys((key[0], key[1]) for key in cells):
        group = [result for key, result in cells.items() if key[:2] == (task, method)]
        counts = [g["exchanges"] for g in group]
        rows.append(
            {
                "task": task,
                "method": method,
                "exchanges": None if None in counts else t_interval(counts).to_json(),
                "accuracy": t_interval([g["accuracy"] for g in group]).to_json(),
                "worst group": t_interval([g["worst"] for g in group]).to_json(),
            }
        )
    return rows


def _eflops_rows(found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    cells = _split(found, {"eflops"})
    rows = []
    for method in dict.fromkeys(key[1] for key in cells):
        group = [result for key, result in cells.items() if key[1] == method]
        names = [name for name in group[0] if name != "method"]
        means = {name: t_interval([g[name] for g in group]).to_json() for name in names}
        rows.append(
            {"solved by": {"own": "its own descent and ascent"}.get(method, method), **means}
        )
    return rows


def _account_page(found: Mapping[str, dict[str, Any]]) -> str:
    two, mean, beta = (found[k] for k in ("opposite_sites", "projections", "momentum"))
    fade, unit, noise = (found[k] for k in ("decay", "units", "momentum_in_noise"))
    private = found["privacy"]
    faded = "never" if fade["faded"] is None else f"after {fade['faded']}"
    return f"""\
* *Two sites F_1 = x, F_2 = -x have the solution (.3, .2).* Their mean field is {two["field"]:.0f}:
  every point solves it. FedAvg goes to the radius {two["radius"]:.4f}.
* *Projecting at the sites is enough.* For b_1 = (3, 0), b_2 = (-1, 0) on the disc the mean of
  projections rests {mean["0.01"]:.3f}, {mean["0.1"]:.3f}, {mean["1"]:.3f} from the solution for
  γ = .01, .1, 1; projecting after the mean, {mean["after, 0.01"]:.0e}.
* *Momentum up to .9 speeds it up.* On a rotation with γ = .1 the spectral radius is
  {beta["0"]:.4f}, {beta["0.3"]:.4f}, {beta["0.9"]:.3f} for β = 0, .3, .9: all diverge.
* *The states may be points.* Ten times the loss with a tenth of γ moves the end by
  {unit["points"]:.2g}; with field values by {unit["fields"]:.0e}.
* *Momentum falls with noise.* Its β_t rises with the spread of the iterates: it is
  {noise["calm"]:.1e} below its highest, .9, in calm fields and {noise["noisy"]:.1e} in noisy ones.
* *Absent states fade by .95.* Converges after {fade["kept"]} exchanges without, {faded} with it.
* *Projecting saves noise.* Last iterates are {private["projected"]:.2f} (projected) and
  {private["free"]:.2f} (not) from the solution at the same noise, but what the messages say, and ε
  with it, is the same: projection is post-processing.
* Two states sent at their own pace are 2.2 times the upload, not 1.08: a field and a fifth of one,
  beside the point.
* The strongest baseline of its table is F-PPM (85 and 152 rounds), so its gain is 26 % and 22 %,
  not 36 % and 33 %; final accuracies of 84.2 and 84.7 % cannot have reached 85 %.
"""


def _chart(found: Mapping[str, dict[str, Any]]) -> Chart:
    cells = _split(found, {"bilinear, unlike by .3"})
    series = {}
    for method in dict.fromkeys(key[1] for key in cells):
        own = [r for key, r in cells.items() if key[1] == method and key[2] == "0" and r["curve"]]
        best = min(own, key=lambda r: r["residual"] or math.inf, default=None)
        if best is not None:
            x, y = zip(*best["curve"], strict=True)
            series[method] = Series(x, [min(max(v, 1e-16), 1e3) for v in y])
    return Chart(
        title="Bilinear saddle, sites unlike by .3: the better of last iterate and average",
        x="exchanges",
        y="residual over that of the start",
        series=series,
        logarithmic="y",
        marks={"tolerance": 1e-3},
    )


EXPERIMENT = Equilibria()
