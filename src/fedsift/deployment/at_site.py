"""The sites' part of a deployment, as the written app calls it for every message.

Every message starts a process, so this imports no more than it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsift.data.errors import DataError
from fedsift.deployment.plan import Plan
from fedsift.engines.flower.node import Node, Source
from fedsift.engines.flower.site import folder_beside
from fedsift.studies import problem_of


def node(here: Mapping[str, Any], config: Mapping[str, Any]) -> Node:
    """Return a SuperNode's part.

    ``here``: its node configuration: ``data``, the site's file, or several with ``;`` between, each
    a site; ``site``, the name of the site of a single file, by default the file's, less the ending;
    ``state``, the folder of what the site keeps, by default beside its file.

    Raises:
        DataError: the configuration names no file.
    """
    plan = Plan.from_config(config)
    files = [Path(name.strip()) for name in str(here.get("data", "")).split(";") if name.strip()]
    if not files:
        raise DataError("the node configuration names no file; add data='/path/to/site.csv'")
    sources = {}
    for path in files:
        name = str(here["site"]) if "site" in here and len(files) == 1 else path.stem
        folder = Path(str(here["state"])) / name if "state" in here else folder_beside(path)
        sources[name] = _source(plan, path, name, folder)
    return Node(sources, problem_of)


def _source(plan: Plan, path: Path, name: str, folder: Path) -> Source:
    file = plan.site_file(path, name)
    return Source(
        lambda _wanted: file.describe(),
        lambda agreed: file.read(agreed["outcome"], agreed["classes"]),
        folder,
    )
