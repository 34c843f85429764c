"""An analysis plan: what a study will do, in a file that is agreed on before it is done.

It holds the settings, what the method's own numbers come to, and the data dictionary of the sites'
files. Its fingerprint, a SHA-256 of its content, tells whether it is still the plan that was agreed
on; comments and layout do not count.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsift import toml
from fedsift._version import __version__
from fedsift.data import Dictionary, FederatedData, read_as
from fedsift.methods import find_method
from fedsift.run_folder import RunError
from fedsift.sealed import fingerprint, write_atomic
from fedsift.settings import Settings, refused
from fedsift.studies import check_request, search_algorithm

__all__ = ["AnalysisPlan", "check_free", "make_plan", "read_plan", "renew_plan", "write_plan"]

FORMAT = 1

HEADER = """\
# An analysis plan of fedsift: what a study of several sites will do, agreed on before it is done.
#
# Each site checks it against its own file, and signs it off:
#     fedsift check-site {file} SITE.csv --sign 'NAME'
# The study then does what it says, and nothing else:
#     fedsift fit --plan {file} SITE.csv ... --signed FOLDER
# It may be edited. A new fingerprint is due then, and what was signed before counts no more:
#     fedsift plan --renew {file}
"""
ABOUT = {
    "settings": "What is done. Each is the option of that name: fedsift fit --help",
    "algorithm": "What the method's own numbers come to; fedsift writes them from the settings.",
    "data": "What the file of a site holds. Columns that are not named here are not read.",
}


class AnalysisPlan(BaseModel):
    """What a study will do.

    Attributes:
        title: for people.
        fedsift: the release that wrote it.
        settings: of the study.
        algorithm: hyperparameters of the search as the release has them, its defaults among them.
        data: columns of the sites' files.
        fingerprint: SHA-256 (hex) of all the above.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = ""
    fedsift: str = __version__
    settings: Settings
    algorithm: dict[str, bool | int | float | str] = Field(default_factory=dict)
    data: Dictionary
    fingerprint: str = ""

    def read(self, files: str | Path | Sequence[str | Path]) -> FederatedData:
        """Return the rows of site files, read as the plan says.

        Raises:
            DataError: they are not what the plan asks for.
        """
        data = read_as(files, self.data)
        self.data.check_filled(data)
        return data

    def check(self, data: FederatedData) -> None:
        """Refuse rows that the plan is not of, and a release that would do something else.

        Raises:
            ValueError: the text names the first difference.
        """
        self.data.check(data)
        now = _algorithm(self.settings, self.data)
        for name, value in self.algorithm.items():
            if now.get(name) != value:
                msg = (
                    f"the plan has {name} {value} for {self.settings.method}, this release"
                    f" {now.get(name)}: use fedsift {self.fedsift}, or renew the plan"
                    " (fedsift plan --renew) and have it signed anew"
                )
                raise ValueError(msg)

    @property
    def facts(self) -> dict[str, Any]:
        """What a run keeps of the plan that it followed."""
        return {"title": self.title, "fingerprint": self.fingerprint}


def make_plan(
    data: FederatedData, settings: Settings, *, title: str = "", **columns: Any
) -> AnalysisPlan:
    """Return the plan of a study of data like these.

    Args:
        data: rows of some sites, as `read_sites` reads them; nothing is kept but names.
        settings: of the study.
        title: for people.
        columns: what else a site's file holds, as for `Dictionary.of`.

    Raises:
        ValueError: the settings cannot be met with such data.
    """
    unseen = {"validation": "splits", "participation": 1.0, "intervals": None}  # others may come
    check_request(settings.model_copy(update=unseen), [settings.method], data)
    dictionary = Dictionary.of(data, **columns)
    algorithm = _algorithm(settings, dictionary)
    return _with_fingerprint(
        AnalysisPlan(title=title, settings=settings, algorithm=algorithm, data=dictionary)
    )


def write_plan(plan: AnalysisPlan, path: Path, *, overwrite: bool = False) -> None:
    """Write a plan as a TOML file that people can read and edit.

    Raises:
        RunError: there is a file already.
    """
    check_free(path, overwrite=overwrite)
    content = _content(plan)
    tables = {name: content.pop(name) for name in ABOUT}
    first = {"fingerprint": plan.fingerprint, **content}
    parts = [HEADER.format(file=path.name), *toml.entries(first)]
    for name, table in tables.items():
        parts += ["", f"# {ABOUT[name]}", f"[{name}]", *toml.entries(table)]
    write_atomic(path, ("\n".join(parts) + "\n").encode())


def check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that is there already, and is not to be replaced.

    Raises:
        RunError: it is.
    """
    if path.exists() and not overwrite:
        raise RunError(f"{path} exists already; choose another with --out, or add --overwrite")


def read_plan(path: str | Path) -> AnalysisPlan:
    """Return the plan of a file.

    Raises:
        RunError: there is none, it cannot be read, or it was changed and has its old fingerprint.
    """
    path = Path(path)
    plan, stored = _read(path)
    if plan.fingerprint != stored:
        raise RunError(
            f"{path} was changed since it was written (its fingerprint is another); restore it, or"
            f" take the changes: fedsift plan --renew {path}"
        )
    return plan


def renew_plan(path: Path) -> AnalysisPlan:
    """Give a plan that was edited its new fingerprint, and write it anew.

    Raises:
        RunError: there is none, or it cannot be read.
        ValueError: the method does not take the settings.
    """
    plan, _ = _read(path)
    now = {"algorithm": _algorithm(plan.settings, plan.data), "fedsift": __version__}
    plan = _with_fingerprint(plan.model_copy(update=now))
    write_plan(plan, path, overwrite=True)
    return plan


def _read(path: Path) -> tuple[AnalysisPlan, str]:
    """Return a plan with the fingerprint of its content, and the one that stands in the file."""
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        msg = f"{path}: {error.strerror}; write a plan: fedsift plan SITE.csv --out {path.name}"
        raise RunError(msg) from error
    except ValueError as error:
        raise RunError(f"{path} is no TOML file that can be read: {error}; mend it") from error
    if content.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {content.get('format')}, this release reads {FORMAT}; is it an"
            " analysis plan (fedsift plan) of another release?"
        )
    stored = str(content.pop("fingerprint", ""))
    given = {name: value for name, value in content.items() if name != "format"}
    try:
        settings = Settings(**given.pop("settings", {}))
    except ValidationError as error:
        raise RunError(f"{path}, [settings]: {refused(error)}") from error
    try:
        plan = AnalysisPlan(**given, settings=settings, fingerprint=fingerprint(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        why = str(first["msg"]).removeprefix("Value error, ")
        raise RunError(f"{path}, {place}: {why}") from error
    return plan, stored


def _content(plan: AnalysisPlan) -> dict[str, Any]:
    """Return what the file of a plan holds but for the fingerprint: nothing that is empty."""
    idle = {"fdr": ("fdr_rule", "decoys"), "pfer": ("pairs", "assume")}
    unused = {n for asked, of in idle.items() if getattr(plan.settings, asked) is None for n in of}
    values = plan.model_dump(
        mode="json", exclude_none=True, exclude={"fingerprint": True, "settings": unused}
    )
    for table in ABOUT:
        values[table] = {k: v for k, v in values[table].items() if v not in ([], {})}
    return {"format": FORMAT, **values}


def _with_fingerprint(plan: AnalysisPlan) -> AnalysisPlan:
    return plan.model_copy(update={"fingerprint": fingerprint(_content(plan))})


def _algorithm(settings: Settings, data: Dictionary) -> dict[str, bool | int | float | str]:
    """Return the hyperparameters of the search that are known before the rows are."""
    columns = settings.columns * len(data.features)
    density = settings.kept(columns) / columns
    algorithm = search_algorithm(settings, find_method(settings.method), density)
    found: dict[str, Any] = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    return {
        name: value
        for name, value in found.items()
        if name not in {"density", "gate"} and isinstance(value, bool | int | float | str)
    }
