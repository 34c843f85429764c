"""``fedsift tune``: a method's hyperparameters, chosen on rows held back at every site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedsift.cli.options import METHOD, Request, takes_request

if TYPE_CHECKING:
    from fedsift.tuning import Trial


@takes_request
def tune(
    request: Request,
    method: Annotated[
        str,
        typer.Option(
            "--method", help="The method to tune.", metavar="NAME", rich_help_panel=METHOD
        ),
    ] = "eflops",
    trials: Annotated[
        int,
        typer.Option(
            "--trials", help="Settings to try.", metavar="N", min=1, rich_help_panel=METHOD
        ),
    ] = 20,
) -> None:
    """Choose a method's own hyperparameters on rows held back at every site.

    Nothing is written. Test rows are not looked at; leave rows out that are to judge the result.

    [bold]Examples[/bold]

    fedsift tune berlin.csv paris.csv --target diagnosis --features 5 --trials 20

    fedsift tune --demo golub --method fediterht --seeds 4
    """
    import time

    from fedsift import tuning
    from fedsift.cli.output import notes, show_json

    began = time.monotonic()
    source = request.source()
    settings = request.settings(source, method)

    def show(number: int, trial: Trial) -> None:
        typer.echo(f"trial {number} of {trials}: loss {trial.loss:.4g}  {_set(trial)}", err=True)

    with notes(quiet=request.quiet):
        data = source.cases(settings)[-1].train
        found = tuning.tune(data, settings, trials=trials, progress=None if request.quiet else show)
    if request.json:
        show_json(
            {
                "method": method,
                "best": found.best._asdict(),
                "default_loss": found.trials[0].loss,
                "trials": [trial._asdict() for trial in found.trials],
                "seconds": time.monotonic() - began,
            }
        )
        return
    print(
        f"On rows held back, {method} has a loss of {found.trials[0].loss:.4g} at its defaults and "
        f"of {found.best.loss:.4g} at the best of {trials} settings."
    )
    print(f"Use it with: {_set(found.best)}" if found.best.knobs else "Keep the defaults.")


def _set(trial: Trial) -> str:
    return " ".join(
        f"--set {k}={v:.3g}" if isinstance(v, float) else f"--set {k}={v}"
        for k, v in trial.knobs.items()
    )
