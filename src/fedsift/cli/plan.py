"""``fedsift plan`` and ``fedsift check-site``: an analysis plan, and whether a site fits it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.failures import NOT_MET, UsageError
from fedsift.cli.options import METHOD, OUTPUT, PLAN, USUAL, Request, takes_request

if TYPE_CHECKING:
    from fedsift.data import FederatedData
    from fedsift.plans import AnalysisPlan
    from fedsift.settings import Settings
    from fedsift.sources import Source

NOT_PLANNED = (
    "demo", "sites", "partition", "alpha", "shift", "samples", "features_total", "informative",
    "data_seeds", "data", "out", "dry_run", "require",
)  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """A plan that a fit is to follow: its file, the method if one was named, and the sign-offs."""

    path: Path
    method: str | None = None
    signed: list[Path] = field(default_factory=list)

    @cached_property
    def plan(self) -> AnalysisPlan:
        """The plan, read once."""
        from fedsift.plans import read_plan

        return read_plan(self.path)

    def request(self, request: Request) -> tuple[Source, Settings]:
        """Return what is done, and with which files."""
        return request.of_plan(self.plan, self.path, self.method), self.plan.settings

    def check(self, data: FederatedData) -> dict[str, Any]:
        """Refuse rows that do not fit and sites that did not sign; return what a run keeps."""
        self.plan.check(data)
        return self.facts(dict(zip(data.sites, data.sizes, strict=True)))

    def facts(self, sites: Mapping[str, int | None]) -> dict[str, Any]:
        """Return what a run keeps of the plan; sites, with their rows, must have signed."""
        from fedsift.sign_offs import check_signed

        return self.plan.facts | {"signed": check_signed(self.plan, sites, self.signed)}


def planned(path: Path | None, method: str | None, signed: list[Path] | None) -> Planned | None:
    """Return the plan of a command's options, None without one.

    Raises:
        UsageError: sign-offs are given, and no plan.
    """
    if path is not None:
        return Planned(path, method, signed or [])
    if signed:
        raise UsageError("--signed goes with --plan only; leave it out")
    return None


@partial(takes_request, without=NOT_PLANNED)
def plan(
    request: Request,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="eflops, flops, fedavg, fedht, fediterht, oneshot, central, abess, lasso.",
            metavar="NAME",
            rich_help_panel=METHOD,
        ),
    ] = USUAL,
    title: Annotated[
        str, typer.Option("--title", help="Of the study.", metavar="TEXT", rich_help_panel=PLAN)
    ] = "",
    min_rows: Annotated[
        int,
        typer.Option(
            "--min-rows",
            help="Rows that a site has at least.",
            metavar="N",
            min=1,
            rich_help_panel=PLAN,
        ),
    ] = 5,
    renew: Annotated[
        Path | None,
        typer.Option(
            "--renew",
            help="Give a plan that was edited its new fingerprint, instead.",
            metavar="FILE",
            rich_help_panel=PLAN,
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="File to write.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = Path("plan.toml"),
) -> None:
    """Write an analysis plan: what a study will do, for the sites to check and sign before it.

    The files, of one site or several, tell the columns; no value of a row is kept.

    [bold]Examples[/bold]

    fedsift plan berlin.csv --target diagnosis --id patient --features 5 --out plan.toml

    fedsift plan --renew plan.toml
    """
    from fedsift.cli.output import notes, show_json
    from fedsift.plans import check_free, make_plan, renew_plan, write_plan

    if renew is not None:
        if request.files:
            raise UsageError("--renew takes a plan that is there; give no site files with it")
        out, made = renew, renew_plan(renew)
    else:
        check_free(out, overwrite=request.overwrite)
        source = request.source()
        settings = request.settings(source, method)
        with notes(quiet=request.quiet):
            data = source.cases(settings.model_copy(update={"splits": 0}))[-1].train
        made = make_plan(
            data,
            settings,
            title=title,
            id_column=source.id_column,
            site_column=source.site_column,
            weight_column=source.weight_column,
            time_column=source.time_column,
            drop=source.drop,
            separator=source.separator,
            min_rows=min_rows,
        )
        write_plan(made, out, overwrite=request.overwrite)
    following = shlex.join(["fedsift", "check-site", str(out), "SITE.csv", "--sign", "NAME"])
    if request.json:
        show_json({"plan": str(out), "fingerprint": made.fingerprint, "next": following})
        return
    print(f"The plan is in {out}; its fingerprint is {made.fingerprint}.")
    print(f"Read it, give it to the sites, and at each:\n  {following}")


def check_site(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="The analysis plan.", show_default=False)
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The site's file.", show_default=False)
    ],
    *,
    site: Annotated[
        str | None,
        typer.Option(
            "--site",
            help="Name of the site; that of its file, less the ending, by default.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    sign: Annotated[
        str | None,
        typer.Option(
            "--sign",
            help="If it fits, write PLAN.SITE.signed.json with this name beside the plan.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    tell_rows: Annotated[
        bool, typer.Option("--tell-rows", help="Sign how many rows there are, too.")
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            help="Ed25519 key (PEM) of the record's signature.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the record.",
            metavar="DIR",
            show_default="that of the plan",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier record.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a site's file is what an analysis plan asks for, and sign the plan.

    The exit code is 3 if it does not fit. The record holds names and counts, no values of rows.

    [bold]Examples[/bold]

    fedsift check-site plan.toml berlin.csv

    fedsift check-site plan.toml berlin.csv --sign 'A. Meyer, data steward'
    """
    from fedsift.cli.output import show, show_json
    from fedsift.inspection import check_file
    from fedsift.plans import read_plan
    from fedsift.reporting.planned import site_check
    from fedsift.sign_offs import sign_off

    unsigned = {"--tell-rows": tell_rows, "--key": key, "--out": out, "--overwrite": overwrite}
    for option, given in unsigned.items():
        if given and sign is None:
            raise UsageError(f"{option} goes with --sign NAME only; leave it out")
    agreed = read_plan(plan)
    found = check_file(file, agreed.data, site)
    record = None
    if sign is not None and found["fits"]:
        record = sign_off(
            agreed,
            found,
            sign,
            out or plan.parent,
            plan.stem,
            tell_rows=tell_rows,
            key_file=key,
            overwrite=overwrite,
        )
    facts = found | {"plan": agreed.fingerprint, "record": None if record is None else str(record)}
    if json:
        show_json(facts)
    else:
        show(site_check(facts, plan.name, agreed.title, sign))
    if not found["fits"]:
        raise typer.Exit(NOT_MET)
