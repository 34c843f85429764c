"""Solving: verdicts, averages, comparisons, and the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import fedsift
from fedsift import trees, vi
from fedsift.algorithms import FedAvg, Lippax
from fedsift.checkpoints import CheckpointError
from fedsift.cli import main
from fedsift.comparing import compare_solvers, figures
from fedsift.privacy import Privacy
from fedsift.sets import Ball
from fedsift.solvers import SOLVERS, find_solver
from fedsift.solving import solve
from fedsift.training import Training, train
from fedsift.trees import Tree
from fedsift.vi import named


def flat(*diagonal: float, feasible=None, force: float = 1.0) -> vi.VIProblem:
    A = torch.diag(torch.tensor(diagonal)).double().expand(3, -1, -1).clone()
    b = force * torch.ones(3, len(diagonal)).double()
    return vi.affine(A, b, {"x": torch.ones(len(diagonal))}, feasible, name="flat")


def test_a_solution_is_found_and_described() -> None:
    problem = named.affine_monotone(n_sites=4)
    seen: list[dict] = []
    answer = fedsift.solve(problem, callback=seen.append)
    assert answer.status == "converged"
    assert answer.verdict.startswith("converged: residual")
    assert answer.residual <= 1e-3
    assert answer.exchanges == answer.exchanges_to_tolerance == len(seen) + 1
    assert answer.history[-1]["residual"] == answer.residual
    assert answer.step == pytest.approx(2.0 / answer.lipschitz)  # type: ignore[operator]
    start = vi.natural_residual(problem, problem.start)
    assert vi.natural_residual(problem, answer.params) <= 1e-3 * start
    assert answer.gap is not None
    assert answer.gap >= 0
    assert answer.bytes_up > 0


def test_late_iterates_weigh_most_in_the_average() -> None:
    """Σ t² x_t / Σ t² over the rounds."""
    problem = named.bilinear_ball(n_sites=3)
    last = [solve(problem, Lippax(gamma=0.5), max_exchanges=n).last for n in (1, 2, 3)]
    average = solve(problem, Lippax(gamma=0.5), max_exchanges=3).average
    expected = {k: (last[0][k] + 4 * last[1][k] + 9 * last[2][k]) / 14 for k in average}
    assert max(float((average[k] - expected[k]).abs().max()) for k in average) < 1e-12


def test_an_operator_that_is_not_monotone_is_told_apart_from_a_long_step() -> None:
    bent = solve(flat(-1.0, 0.5, force=2.0), "lippax", max_exchanges=80)
    assert bent.status == "diverging"
    assert "diverging: residual grew" in bent.verdict
    assert "operator not monotone: smallest sampled ⟨F(x)-F(y), x-y⟩ = -" in bent.verdict
    steep = solve(flat(1.0, 0.5), FedAvg(learning_rate=5.0, local_steps=1), max_exchanges=80)
    assert steep.status == "diverging"
    assert "the operator is monotone in all samples: give a smaller step" in steep.verdict


def test_numbers_that_overflow_end_in_a_verdict_not_in_nan() -> None:
    for method in (FedAvg(learning_rate=1e40, local_steps=10), find_solver("fedogda").build(1e300)):
        answer = solve(flat(1.0, 1e3), method, max_exchanges=30)
        assert answer.status == "diverging"
        assert "finite" in answer.verdict or "grew" in answer.verdict
        assert all(math.isfinite(r.get("residual", 0.0)) or r["residual"] == math.inf
                   for r in answer.history)  # fmt: skip


def test_a_problem_without_solution_is_called_unbounded() -> None:
    """F = 1 on the whole line: x runs to -∞ and the residual stays 1. In a ball it has one."""
    answer = solve(flat(0.0, 0.0), Lippax(gamma=1.0), max_exchanges=60)
    assert answer.status == "unbounded"
    assert "give a bounded set" in answer.verdict
    assert solve(flat(0.0, 0.0, feasible=Ball(2.0)), Lippax(gamma=1.0)).status == "converged"


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"tolerance": 0.0}, "tolerance is 0.0; give a number above 0 and below 1"),
        ({"max_exchanges": 1}, "max_exchanges is 1; the first round alone takes 2"),
        ({"look_every": 0}, "look_every is 0"),
        ({"participation": 1.5}, "participation is 1.5"),
        (
            {"method": "lippax_certified", "participation": 0.5},
            "needs every site in every exchange",
        ),
        (
            {"method": "lipax"},
            "no method 'lipax' for variational inequalities: did you mean 'lippax'",
        ),
    ],
)
def test_what_cannot_be_is_refused(knobs: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        solve(named.affine_monotone(n_sites=2), **{"method": "lippax", **knobs})


def test_noise_is_added_before_the_projection() -> None:
    """With noise of any size the iterates stay feasible."""
    problem = named.bilinear_ball(n_sites=3)
    privacy = Privacy(clip=1.0, noise=5.0, delta=1e-5)
    points: list[Tree] = []

    def watch(run: Training) -> bool:
        points.append(trees.unstack(run.params, 0))
        return False

    train(
        problem.problem, problem.data, Lippax(gamma=1.0), rounds=10, privacy=privacy, watch=watch,
        weights="uniform",
    )  # fmt: skip
    for x in points:
        assert all(float(torch.linalg.vector_norm(v)) <= 1 + 1e-9 for v in x.values())


def test_comparisons_hold_means_and_say_never() -> None:
    problems = [named.affine_monotone(n_sites=3, seed=s) for s in range(2)]
    found = figures(compare_solvers(problems, ["lippax", "fedavg"], max_exchanges=25))
    assert found["lippax"]["solved"] == 2
    assert found["lippax"]["exchanges_to_tolerance"] == pytest.approx(
        sum(found["lippax"]["exchanges_by_problem"]) / 2
    )
    assert found["fedavg"]["exchanges_to_tolerance"] is None
    assert found["lippax"]["certificate_max"] is None


def test_every_solver_can_be_named_and_steps_reach_it() -> None:
    for name, solver in SOLVERS.items():
        method = find_solver(name).build(
            0.25, inner_steps=9, batch_size=3 if "cert" not in name else None
        )
        chosen = [getattr(method, k, None) for k in ("gamma", "step", "learning_rate")]
        assert 0.25 in chosen, name
        assert solver.summary


# --- command line


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["solve", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_the_figures_of_every_method(capsys, tmp_path: Path) -> None:
    out = tmp_path / "page"
    code, text, _ = run(
        capsys, "affine", "--sites", "3", "--compare", "lippax,lippax_certified,fedavg",
        "--problem-seeds", "2", "--max-exchanges", "25", "--out", str(out), "--json",
    )  # fmt: skip
    assert code == 0
    methods = json.loads(text)["methods"]
    assert list(methods) == ["lippax", "lippax_certified", "fedavg"]
    wanted = {"exchanges_to_tolerance", "residual", "gap", "certificate_max", "seconds"}
    assert all(wanted <= set(m) for m in methods.values())
    assert methods["fedavg"]["exchanges_to_tolerance"] is None
    assert methods["lippax_certified"]["certificate_max"] <= 1e-12
    names = {"report.txt", "results.json", "history.jsonl"}
    assert {p.name for p in out.iterdir()} == names | {
        "residual_exchanges.png",
        "residual_bytes.png",
    }
    assert run(capsys, "affine", "--sites", "3", "--out", str(out))[0] == 2


def test_people_get_a_table_and_the_reason(capsys) -> None:
    code, text, _ = run(
        capsys,
        "affine",
        "--sites",
        "3",
        "--compare",
        "lippax,scaffold,fedavg",
        "--max-exchanges",
        "30",
    )
    assert code == 0
    assert "exchanges to a residual of 0.001 of the start" in text
    assert "never" in text
    assert "Fewest exchanges:" in text
    assert (
        run(capsys, "affine", "--method", "fedavg", "--max-exchanges", "9", "--require-converged")[
            0
        ]
        == 3
    )


def test_diagnosis_on_the_command_line(capsys) -> None:
    code, text, _ = run(capsys, "affine", "--sites", "3", "--diagnose")
    assert code == 0
    assert "Use scaffold: strongly monotone" in text
    found = json.loads(run(capsys, "affine", "--sites", "3", "--diagnose", "--json")[1])
    assert found["method"] == "scaffold"


def test_a_problem_of_ones_own(capsys, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedsift.vi.named import affine_monotone\n"
        "def make(): return affine_monotone(n_sites=2)\n"
        "def wrong(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert json.loads(run(capsys, "mine:make", "--json")[1])["methods"]["lippax"]["solved"] == 1
    assert "mine:wrong returns int" in run(capsys, "mine:wrong")[2]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["afine"], "no problem 'afine': did you mean 'affine'"),
        (["affine", "--method", "lipax"], "did you mean 'lippax'"),
        (["affine", "--compare", ","], "--compare names none"),
        (["affine", "--step", "-1"], "gamma is -1.0; give a positive number"),
        (["affine", "--inner-steps", "2"], "inner_steps is 2; give 5 or more"),
        (["affine", "--tolerance", "2"], "tolerance is 2.0"),
        (["affine", "--max-exchanges", "1"], "the first round alone takes 2"),
        (["affine", "--participation", "0"], "participation is 0.0"),
        (["affine", "--heterogeneity", "-1"], "--heterogeneity is -1.0; give 0 or more"),
        (["affine", "--engine", "warp"], "--engine is 'warp'"),
        (["shakespeare_roles", "--heterogeneity", "1"], "takes no heterogeneity"),
        (["lippax_certified"], "no problem 'lippax_certified'"),
        (["affine", "--method", "lippax_certified", "--participation", ".5"], "needs every site"),
        (
            ["affine", "--method", "lippax_certified", "--batch-size", "4"],
            "needs exact field values",
        ),
    ],
)
def test_wrong_requests_end_in_one_line(capsys, words: list[str], text: str) -> None:
    code, out, err = run(capsys, *words)
    assert code == 2
    assert not out
    assert text in err
    assert len(err.strip().splitlines()) == 1


class StoppedError(Exception):
    """Stands for a process that ends in the middle."""


def answer_of(path: Path | None, stop: int | None = None, **knobs) -> fedsift.solving.Equilibrium:
    def end(record) -> None:
        if record["round"] == stop:
            raise StoppedError

    problem = named.bilinear_ball(n_sites=4)
    return solve(problem, "lippax", participation=0.5, checkpoint=path, callback=end, **knobs)


def test_a_solve_that_was_stopped_ends_equal(tmp_path: Path, monkeypatch) -> None:
    """State, averages, verdict and history; and a finished one makes no round more."""
    monkeypatch.setattr("fedsift.solving.EVERY", 0.0)
    whole, path = answer_of(None), tmp_path / "state.safetensors"
    for stop in (3, 8):
        with pytest.raises(StoppedError):
            answer_of(path, stop)
    for _ in range(2):
        again = answer_of(path)
        for name, value in vars(whole).items():
            if name in {"params", "last", "average"}:
                assert all(torch.equal(v, getattr(again, name)[k]) for k, v in value.items())
            elif name not in {"seconds", "history"}:
                assert getattr(again, name) == value, name
        timeless = [[{**r, "seconds": 0} for r in a.history] for a in (whole, again)]
        assert timeless[0] == timeless[1]
    with pytest.raises(CheckpointError, match="of another problem"):
        answer_of(path, tolerance=1e-2)


def test_the_same_command_goes_on_with_a_solve(tmp_path: Path, monkeypatch, capsys) -> None:
    command = ["solve", "bilinear_ball", "--sites", "4", "--compare", "lippax,fedprox"]
    out = tmp_path / "page"
    command += ["--max-exchanges", "20", "--quiet", "--out", str(out)]
    calls = []

    def interrupted(*arguments, **options):
        calls.append(options["checkpoint"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return solve(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("fedsift.comparing.solve", interrupted)
        assert main(command) == 130
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["lippax-0.safetensors"]
    assert main(["resume", str(out)]) == 2
    assert "is of fedsift solve; give its command again" in capsys.readouterr().err
    changed = (out / "checkpoints" / "lippax-0.safetensors").stat().st_mtime_ns
    assert calls[0].stat().st_mtime_ns == changed
    assert main(command) == 0
    assert not (out / "checkpoints").exists()
    assert (out / "results.json").exists()
    assert main(command) == 2
    assert "is not empty" in capsys.readouterr().err
