"""``fedsift solve``: federated variational inequalities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.failures import NOT_MET, UsageError

if TYPE_CHECKING:
    from fedsift.vi import VIProblem

PROBLEM, METHOD, RUN, OUTPUT = "Problem", "Method", "Run", "Output"


def _option(*names: str, group: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=group, **more)


def solve(
    problem: Annotated[
        str,
        typer.Argument(
            metavar="PROBLEM",
            help="affine, bilinear_ball, bilinear_ball_boundary, robust_least_squares, "
            "matrix_game, minimisation, fair_logistic, robust_logistic, digits_writers, "
            "shakespeare_roles, multi_objective, policy_game, eflops_lagrangian, or "
            "MODULE:FUNCTION.",
        ),
    ],
    *,
    heterogeneity: Annotated[
        float | None,
        _option("--heterogeneity", group=PROBLEM, text="How much sites differ.", metavar="X"),
    ] = None,
    sites: Annotated[
        int | None, _option("--sites", group=PROBLEM, text="Number of sites: 20.", min=1)
    ] = None,
    problem_seeds: Annotated[
        int, _option("--problem-seeds", group=PROBLEM, text="Problems to draw and solve.", min=1)
    ] = 1,
    method: Annotated[
        str, _option("--method", group=METHOD, text="See docs/solve.md.", metavar="NAME")
    ] = "lippax",
    compare: Annotated[
        str | None,
        _option(
            "--compare", group=METHOD, text="Methods with commas between, instead.", metavar="A,B"
        ),
    ] = None,
    step: Annotated[
        float | None,
        _option("--step", group=METHOD, text="γ or η; automatic by default.", metavar="X"),
    ] = None,
    inner_steps: Annotated[
        int | None, _option("--inner-steps", group=METHOD, text="Evaluations of a local solve: 20.")
    ] = None,
    batch_size: Annotated[
        int | None, _option("--batch-size", group=METHOD, text="Rows of an evaluation: all.", min=1)
    ] = None,
    tolerance: Annotated[
        float, _option("--tolerance", group=RUN, text="Wanted residual over that of the start.")
    ] = 1e-3,
    max_exchanges: Annotated[
        int, _option("--max-exchanges", group=RUN, text="Exchanges after which to stop.", min=1)
    ] = 600,
    participation: Annotated[
        float, _option("--participation", group=RUN, text="Share of the sites in a round.")
    ] = 1.0,
    engine: Annotated[
        str, _option("--engine", group=RUN, text="vectorized, or loop.", metavar="NAME")
    ] = "vectorized",
    seed: Annotated[int, _option("--seed", group=RUN, text="Of participants and batches.")] = 0,
    out: Annotated[
        Path | None,
        _option("--out", group=OUTPUT, text="Folder for table and pictures.", metavar="DIR"),
    ] = None,
    overwrite: Annotated[
        bool, _option("--overwrite", group=OUTPUT, text="Replace what is there.")
    ] = False,
    diagnose: Annotated[
        bool, _option("--diagnose", group=OUTPUT, text="Measure the problem, do not solve it.")
    ] = False,
    require: Annotated[
        bool,
        _option("--require-converged", group=OUTPUT, text="Fail (3) if the tolerance is missed."),
    ] = False,
    json: Annotated[bool, _option("--json", group=OUTPUT, text="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
) -> None:
    """Find the equilibrium of several sites' objectives: saddles, games, constraints.

    With --out, the same command goes on with work that was stopped.

    [bold]Examples[/bold]

    fedsift solve bilinear_ball --heterogeneity .3 --compare lippax,scaffold,fedavg --out page

    fedsift solve fair_logistic --method lippax_certified

    fedsift solve mymodule:make_problem --diagnose
    """
    from fedsift.cli.output import notes, show_json
    from fedsift.comparing import compare_solvers, figures
    from fedsift.solvers import find_solver
    from fedsift.vi.catalogue import make_problem

    names = _names(compare) if compare is not None else [method]
    for name in names:
        find_solver(name).build(step, inner_steps=inner_steps, batch_size=batch_size)
    if engine not in {"vectorized", "loop"}:
        raise UsageError(f"--engine is {engine!r}; give vectorized or loop")
    knobs = {"heterogeneity": heterogeneity, "n_sites": sites}
    if heterogeneity is not None and not heterogeneity >= 0:
        raise UsageError(f"--heterogeneity is {heterogeneity}; give 0 or more")
    problems = [make_problem(problem, seed=s, **knobs) for s in range(problem_seeds)]
    if diagnose:
        _diagnose(problems[0], json=json)
        return
    options = {
        "tolerance": tolerance,
        "max_exchanges": max_exchanges,
        "participation": participation,
        "engine": engine,
        "seed": seed,
    }
    with (
        notes(quiet=quiet),
        _folder(out, overwrite=overwrite) as checkpoints,
        _line(quiet=quiet) as note,
    ):
        answers = compare_solvers(
            problems, names, step=step, inner_steps=inner_steps, batch_size=batch_size, note=note,
            checkpoints=checkpoints, **options,
        )  # fmt: skip
        found = figures(answers)
        if out is not None:
            from fedsift.reporting.equilibria import write_equilibria

            write_equilibria(out, problem, answers, found, tolerance)
    facts = {"problem": problem, "problem_seeds": problem_seeds, **knobs, **options}
    if json:
        show_json(facts | {"methods": found})
    else:
        _show(problem, found, tolerance, problem_seeds, out)
    if require and any(f["solved"] < problem_seeds for f in found.values()):
        raise typer.Exit(NOT_MET)


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--compare names none; give some with commas between: lippax,scaffold")
    return names


@contextmanager
def _folder(out: Path | None, *, overwrite: bool) -> Iterator[Path | None]:
    """Hold the folder of the answers; yield that of the states, which a whole answer ends."""
    from fedsift.locks import locked
    from fedsift.run_folder import CHECKPOINTS, clear_states, content

    if out is None:
        yield None
        return
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is no folder; choose another")
    held = {file.name for file in content(out)} if out.exists() else set()
    if held - {CHECKPOINTS} and not overwrite:
        raise UsageError(f"{out} is not empty; choose another folder, or add --overwrite")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        if overwrite:
            clear_states(out, CHECKPOINTS)
        yield out / CHECKPOINTS
        clear_states(out, CHECKPOINTS)


def _diagnose(problem: VIProblem, *, json: bool) -> None:
    from dataclasses import asdict

    from fedsift.cli.output import show, show_json
    from fedsift.reporting.equilibria import diagnosis_text
    from fedsift.vi.diagnosis import diagnose

    found = diagnose(problem)
    if json:
        show_json({"problem": problem.name, **asdict(found)})
    else:
        show(diagnosis_text(problem.name, found))


def _show(
    problem: str, found: dict[str, Any], tolerance: float, seeds: int, out: Path | None
) -> None:
    from fedsift.cli.output import show
    from fedsift.reporting.equilibria import equilibria_table

    show(equilibria_table(problem, found, tolerance, seeds))
    if out is not None:
        print(f"\nThe table and the pictures are in {out}.")


@contextmanager
def _line(*, quiet: bool) -> Iterator[Callable[[str, int, dict[str, Any]], None] | None]:
    """Show the method at work, its round and residual on stderr, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield None
        return
    with console.status("starting") as status:

        def note(method: str, number: int, record: dict[str, Any]) -> None:
            residual = record.get("residual")
            text = "" if residual is None else f", residual {residual:.1e} of the start"
            status.update(f"{method}, problem {number + 1}: {record['exchanges']} exchanges{text}")

        yield note
