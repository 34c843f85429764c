"""The sites' part of a deployment, as the written app calls it for every message.

Every message starts a process, so this imports no more than it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsift.data.covariates import Covariate
from fedsift.data.errors import DataError
from fedsift.data.paths import site_files, site_name
from fedsift.deployment.plan import Plan
from fedsift.engines.flower.limits import Limit
from fedsift.engines.flower.node import Node, Source
from fedsift.engines.flower.site import folder_beside
from fedsift.linear_problems import problem_of
from fedsift.privacy import Privacy


def node(here: Mapping[str, Any], config: Mapping[str, Any]) -> Node:
    """Return a SuperNode's part.

    ``here``: its node configuration: ``data``, the site's file, or several with ``;`` between (or
    their folder), each a site; ``site``, the name of the site of a single file, by default the
    file's, less the ending; ``state``, the folder of what the site keeps, by default beside its
    file; ``epsilon``, ``delta`` and ``privacy-level``: what it tells at most of its rows, in all
    runs together. Without them a plan's own privacy is kept to.

    Raises:
        DataError: the configuration names no file.
    """
    plan = Plan.from_config(config)
    named = [name.strip() for name in str(here.get("data", "")).split(";") if name.strip()]
    if not named:
        raise DataError("the node configuration names no file; add data='/path/to/site.csv'")
    files, sources = site_files(named), {}
    for path in files:
        name = str(here["site"]) if "site" in here and len(files) == 1 else site_name(path)
        folder = Path(str(here["state"])) / name if "state" in here else folder_beside(path)
        sources[name] = _source(plan, path, name, folder, limit_of(here, plan, folder))
    return Node(sources, problem_of)


def limit_of(here: Mapping[str, Any], plan: Plan, folder: Path) -> Limit | None:
    """Return what a site tells at most, by its own configuration or by the plan.

    Raises:
        DataError: the configuration is not complete, or out of range.
    """
    planned, file = plan.settings.privacy, folder / "privacy.jsonl"
    if not {"epsilon", "delta", "privacy-level"} & set(here):
        return None if planned is None else Limit(planned.level, file)
    try:
        wanted = Privacy(
            epsilon=float(here["epsilon"]),
            delta=float(here["delta"]),
            level=here.get("privacy-level", "site"),
            clip=1.0,
        )
    except (KeyError, ValueError) as error:
        msg = (
            f"the node configuration's privacy needs epsilon and delta, and a known level: {error}"
        )
        raise DataError(msg) from error
    sites = "site" in {wanted.level, None if planned is None else planned.level}
    return Limit("site" if sites else "sample", file, wanted.epsilon, wanted.delta)


def _source(plan: Plan, path: Path, name: str, folder: Path, limit: Limit | None) -> Source:
    file = plan.site_file(path, name)
    if limit is not None and limit.level == "site":
        file = replace(file, min_rows=1)  # that it has fewer rows would tell of them
    return Source(
        lambda _wanted: file.describe(),
        lambda agreed: file.read(
            agreed["outcome"],
            agreed["classes"],
            [Covariate.from_dict(stored) for stored in agreed["covariates"]],
        ),
        folder,
        limit,
    )
