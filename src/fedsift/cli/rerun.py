"""``fedsift rerun``: a finished run once more, and whether it ends the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.failures import DONE, NOT_MET
from fedsift.cli.interrupts import stopping_in_order

if TYPE_CHECKING:
    from fedsift.runs import Run

CLOSE = 1e-5  # what a network computed with other threads or another chunk size may differ by


def rerun(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the new run.", metavar="DIR", show_default="RUN-again"
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write over a run in that folder.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
) -> None:
    """Fit again from what a run's folder says, and compare model, features and scores.

    The exit code is 3 if they are not the same.

    [bold]Example[/bold]

    fedsift rerun runs/golub-1
    """
    from fedsift.cli.forecast import work
    from fedsift.cli.output import bar, notes, plan, show_json
    from fedsift.locks import claim
    from fedsift.private_fits import refuse
    from fedsift.run_folder import RunError
    from fedsift.runs import load_run
    from fedsift.sources import Source
    from fedsift.workflows import VERSIONS, run_fit

    earlier = load_run(run)
    refuse(earlier.facts.get("privacy"), "run again")
    if earlier.facts["source"] is None or earlier.facts["plan"].get("engine") == "flower":
        where = "at its sites" if earlier.facts["source"] else "in Python, with its data"
        msg = f"{run} cannot be run again from its folder; it was started elsewhere: run it {where}"
        raise RunError(msg)
    source, settings = Source(**earlier.facts["source"]), earlier.settings
    path = out or run.with_name(f"{run.name}-again")
    with notes(quiet=quiet):
        cases = source.cases(settings)
        if cases[-1].train.fingerprint() != earlier.facts["data"]["fingerprint"]:
            msg = f"the data of {run} have changed since; restore them, or start a new fit"
            raise RunError(msg)
        stages = plan(work("fit", [settings.method], cases, settings), settings)
        with (
            stopping_in_order(),
            claim(path, overwrite=overwrite, inputs=source.files),
            bar(stages, quiet=quiet) as shown,
        ):
            run_fit(
                cases,
                settings,
                beside=tuple(earlier.facts["beside"]),
                analysis_plan=earlier.facts.get("analysis_plan"),
                source=source.model_dump(mode="json"),
                path=path,
                callbacks=[] if shown is None else [shown],
            )
    found = differences(earlier, load_run(path)) | {
        "versions": {
            name: [earlier.facts["versions"].get(name), now]
            for name, now in VERSIONS.items()
            if earlier.facts["versions"].get(name) != now
        },
        "run": str(path),
    }
    if json:
        show_json(found)
    else:
        print(_text(found, run, path))
    raise typer.Exit(DONE if found["same"] else NOT_MET)


def differences(one: Run, other: Run) -> dict[str, Any]:
    """Return in what two runs differ: model, features, scores."""
    gap = max(float((v - other.params[k]).abs().max()) for k, v in one.params.items())
    features = [f.name for f in one.features] == [f.name for f in other.features]
    scores = [
        name
        for name, value in one.results.items()
        if name not in {"seconds", "run", "beside"} and _unlike(value, other.results[name])
    ]
    return {
        "same": gap <= CLOSE and features and not scores,
        "max_abs_difference": gap,
        "same_features": features,
        "other_results": scores,
    }


def _unlike(one: Any, other: Any) -> bool:
    """Tell whether two JSON values differ by more than rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(_unlike(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) != len(other) or any(_unlike(a, b) for a, b in pairs)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) > CLOSE * max(1.0, abs(one))
    return bool(one != other)


def _text(found: dict[str, Any], run: Path, path: Path) -> str:
    said = [f"{name} {had}, now {now}" for name, (had, now) in found["versions"].items()]
    versions = f" (it was made by {'; '.join(said)})" if said else ""
    gap = found["max_abs_difference"]
    if found["same"]:
        exact = "to the last bit" if gap == 0 else f"to {gap:.1e}"
        return f"{path} is the same as {run} {exact}: model, features, scores{versions}"
    parts = [f"the model by up to {gap:.2g}"] if gap > CLOSE else []
    parts += [] if found["same_features"] else ["the features"]
    parts += found["other_results"]
    return f"{path} differs from {run}: {', '.join(parts)}{versions}"
