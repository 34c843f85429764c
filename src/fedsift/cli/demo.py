"""``fedsift demo``: a demo's data as site files, to try with them what own files are for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.failures import UsageError
from fedsift.cli.options import Request, takes_request

OPTIONS = ("demo", "sites", "partition", "alpha", "shift", "data", "seed", "overwrite")


@partial(takes_request, only=OPTIONS)
def demo(
    request: Request,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder for the site files.", show_default=False),
    ],
) -> None:
    """Write a demo's data as CSV files, one a site, with the columns id and target.

    [bold]Examples[/bold]

    fedsift demo sites

    fedsift demo sites --demo golub --sites 3 --partition dirichlet_labels --alpha 1
    """
    from dataclasses import replace

    from fedsift.deployment.demo import write_sites
    from fedsift.run_folder import RunError
    from fedsift.settings import Settings

    if request.demo == "synthetic":
        raise UsageError("demo takes golub or golub72, whose patients have ids; synthetic has none")
    source = replace(request, demo=request.demo or "golub").source()
    if folder.exists() and any(folder.iterdir()) and not request.overwrite:
        raise RunError(f"{folder} is not empty; name another folder, or add --overwrite")
    settings = Settings(features=1, splits=0, seed=request.seed or 0)
    files = write_sites(source.cases(settings)[-1].train, folder)
    for file in files:
        print(file)
