"""A run whose names are safe to look at, whatever its files called them."""

from __future__ import annotations

from dataclasses import replace

from fedsift.data.covariates import Covariate
from fedsift.runs import Run
from fedsift.visible import all_visible, visible


def readable(run: Run) -> Run:
    """Return a run for people: control characters in its names are spelled out."""
    return replace(
        run,
        facts=all_visible(run.facts),
        features=tuple(
            replace(f, name=visible(f.name), description=visible(f.description))
            for f in run.features
        ),
        standardiser=replace(
            run.standardiser,
            features=tuple(visible(name) for name in run.standardiser.features),
            covariates=tuple(
                Covariate(visible(one.name), tuple(visible(level) for level in one.levels))
                for one in run.standardiser.covariates
            ),
        ),
    )
