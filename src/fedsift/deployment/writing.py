"""The Flower app of a plan, as a folder that ``flwr run`` starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedsift import toml
from fedsift._version import __version__
from fedsift.deployment.plan import Plan
from fedsift.run_folder import RunError
from fedsift.sealed import write_atomic

PACKAGE = "fedsift_app"
FILES = (
    "pyproject.toml",
    "README.md",
    f"{PACKAGE}/__init__.py",
    f"{PACKAGE}/server_app.py",
    f"{PACKAGE}/client_app.py",
)

SERVER = '''"""The server's part: a SuperLink runs it."""

from fedsift.deployment.serving import serve
from fedsift.engines.flower.apps import server_app

app = server_app(serve)
'''

CLIENT = '''"""The sites' part: a SuperNode runs it for every message."""

from fedsift.deployment.at_site import node
from fedsift.engines.flower.apps import client_app

app = client_app(node)
'''


def write_app(folder: Path, plan: Plan, *, overwrite: bool = False) -> list[Path]:
    """Write the app of a plan; return its files.

    Raises:
        RunError: a file is there already.
    """
    contents = {
        "pyproject.toml": _pyproject(plan),
        "README.md": readme(plan),
        f"{PACKAGE}/__init__.py": '"""A fedsift deployment."""\n',
        f"{PACKAGE}/server_app.py": SERVER,
        f"{PACKAGE}/client_app.py": CLIENT,
    }
    paths = [folder / name for name in contents]
    there = next((path for path in paths if path.exists()), None)
    if there is not None and not overwrite:
        msg = f"{there} exists already; name another folder, or add --overwrite"
        raise RunError(msg)
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomic(path, content.encode())
    return paths


def read_plan(folder: Path) -> Plan:
    """Return the plan of an app.

    Raises:
        RunError: the folder holds none.
    """
    path = folder / "pyproject.toml"
    try:
        config = tomllib.loads(path.read_text())["tool"]["flwr"]["app"]["config"]
    except (OSError, KeyError, ValueError) as error:
        msg = (
            f"{path} is not the app of a deployment; write one: fedsift deploy {folder} --site ..."
        )
        raise RunError(msg) from error
    return Plan.from_config(config)


def _pyproject(plan: Plan) -> str:
    config = "\n".join(toml.entries(plan.to_config()))
    return f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedsift-app"
version = "1.0.0"
description = "A fedsift deployment"
license = "Apache-2.0"
dependencies = ["fedsift[flower]=={__version__}"]

[tool.hatch.build.targets.wheel]
packages = ["{PACKAGE}"]

[tool.flwr.app]
publisher = "fedsift"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server_app:app"
clientapp = "{PACKAGE}.client_app:app"

# The plan. `flwr run --run-config 'NAME=VALUE'` changes a value for one run.
[tool.flwr.app.config]
{config}
"""


def _own(plan: Plan) -> str:
    """Return what sites do with intercepts of their own."""
    if plan.settings.site_intercepts is None:
        return ""
    first = plan.sites[0]
    return f"""
Each site keeps its own intercept in `{first}.fedsift/RUN-own.json`, beside its file, and no message
has it. With a copy of the run's folder a site predicts its rows by

    fedsift predict RUN_FOLDER NEW.csv --site {first}.fedsift/RUN-own.json
"""


def readme(plan: Plan) -> str:
    """Return the commands of a deployment, in order."""
    sites = "\n".join(f"* `{site}`" for site in plan.sites)
    first = plan.sites[0]
    return f"""# A fedsift deployment

{plan.settings.method} looks for the features that predict `{plan.target}`. The sites:

{sites}

Every machine needs Python 3.11 or newer and the same release of fedsift:

    pip install 'fedsift[flower]=={__version__}'

and, in every terminal below:

    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1

SERVER stands for the server's name or address. The values of the plan are in `pyproject.toml`.

## Once: certificates and keys

On the server, in this folder:

    fedsift deploy . --keys SERVER

writes `keys/ca.pem`, `keys/server.pem`, `keys/server.key` and, for each site, `keys/SITE.key` and
`keys/SITE.pub`. Bring each site its own `SITE.key` and `ca.pem`, and nothing else, by a way that
you trust; then remove the sites' `.key` files from the server. A site may make its own key instead,
and send the `.pub` alone:

    ssh-keygen -t ecdsa -b 384 -N '' -f {first}.key

## 1. On the server

    flower-superlink --host 0.0.0.0 --port 8000 --enable-supernode-auth \\
        --ssl-ca-certfile keys/ca.pem --ssl-certfile keys/server.pem \\
        --ssl-keyfile keys/server.key --disable-runtime-dependency-installation

In a second terminal, tell Flower where it is and which sites may come:

    export FLWR_HOME=$PWD/.flwr && mkdir -p $FLWR_HOME
    printf '%s\\n' '[superlink.here]' 'address = "SERVER:8000"' \\
        "root-certificates = \\"$PWD/keys/ca.pem\\"" > $FLWR_HOME/config.toml
    for key in keys/*.pub; do flwr supernode register $key here; done

## 2. At each site, {first} for example

    flower-supernode --superlink SERVER:8000 --root-certificates ca.pem \\
        --auth-supernode-private-key {first}.key \\
        --node-config "site='{first}' data='/path/to/{first}.csv'"

The file holds the column `{plan.target}`, and the same other columns in the same order at every
site. What the site keeps of a run lies beside the file, in `{first}.fedsift` (`state='/folder'` in
the node configuration puts it elsewhere). Several files at one machine: `data='/a.csv;/b.csv'`,
each a site named after its file.

## 3. On the server, in this folder

    flwr run . here --stream

The run begins when all sites are there. Its result is in `{plan.out}`, under the folder in which
`flower-superlink` was started:

    fedsift report {plan.out}
{_own(plan)}
If the server or `flwr run` was stopped, do step 1 and `flwr run . here --stream` again: the run
goes on with the last finished round. A site that was stopped is started again with its command; so
are SuperNodes that ended because the server was gone.

## Trying it on one machine

    fedsift deploy --loopback {len(plan.sites)} FILE... --target {plan.target} --features M

starts all of it on this machine with the files of the sites.
"""
