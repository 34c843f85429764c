"""``fedsift inspect``: what site files hold, before anything is fitted."""

from __future__ import annotations

from functools import partial

from fedsift.cli.failures import UsageError
from fedsift.cli.options import Request, takes_request

OPTIONS = (
    "files", "target", "id_column", "site_column", "weight_column", "outcome", "drop", "covariates",
    "separator", "features", "min_cell", "json",
)  # fmt: skip


@partial(takes_request, only=OPTIONS)
def inspect(request: Request) -> None:
    """Say what site files hold and whether a fit makes sense; no patient's values are shown.

    [bold]Examples[/bold]

    fedsift inspect berlin.csv paris.csv rome.csv

    fedsift inspect berlin.csv paris.csv rome.csv --target diagnosis --features 5

    fedsift inspect berlin.csv paris.csv --target response --covariates age,sex

    fedsift inspect all.h5ad --target response --site-column hospital --json
    """
    from fedsift.cli.output import show, show_json
    from fedsift.inspection import inspect_files
    from fedsift.reporting.inspection import inspection_report, next_command

    if not request.files:
        raise UsageError("name your site files, or their folder: fedsift inspect a.csv b.csv")
    facts = inspect_files(
        request.files,
        target=request.target,
        site_column=request.site_column,
        id_column=request.id_column,
        weight_column=request.weight_column,
        drop=request.drop or [],
        covariates=request.covariate_names,
        outcome=request.outcome or "auto",
        separator=request.separator,
        features=request.features,
        min_cell=request.min_cell or 0,
    )
    following = next_command(facts, request.files, request.said(OPTIONS), request.drop or [])
    if request.json:
        show_json(facts | {"next": following})
    else:
        show(inspection_report(facts, following))
