"""The command that a run came from, put together from what its folder says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsift.data.errors import counted
from fedsift.flags import flag
from fedsift.settings import Settings
from fedsift.sources import Source

WITHOUT = ("test_fraction", "evaluate_every")  # settings that Python alone has


def fit_command(facts: Mapping[str, Any]) -> str | None:
    """Return the command line of a fit, with the names of its files but not their folders.

    None where there is none: data came from Python or from real machines, or a setting did.
    """
    if facts["source"] is None or facts["plan"].get("engine") == "flower":
        return None
    source, settings = Source(**facts["source"]), Settings(**facts["settings"])
    usual = Settings(**{"features": 1, **source.defaults}).model_dump()
    given = {k: v for k, v in settings.model_dump().items() if v is not None and v != usual[k]}
    given |= {k: v for k in ("features", "density") if (v := getattr(settings, k)) is not None}
    if any(name in given for name in WITHOUT):
        return None
    knobs, privacy = given.pop("knobs", {}), given.pop("privacy", None)
    given.pop("groups", None)
    words = ["fedsift", "fit", *(Path(file).name for file in source.files)]
    if source.plan is not None:
        return shlex.join([*words, "--plan", Path(source.plan).name])
    words += _words(
        source.model_dump(exclude_defaults=True, exclude={"files", "covariates", "groups"})
    )
    if source.covariates:
        words += ["--covariates", ",".join(source.covariates)]
    if source.groups is not None:
        words += ["--groups", Path(source.groups).name]
    words += _words(given)
    words += [word for k, v in knobs.items() for word in ("--set", f"{k}={_text(v)}")]
    words += _words(_of_privacy(privacy or {}))
    return shlex.join(words)


def changed_settings(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that are not the usual ones, as texts."""
    usual = Settings(features=1).model_dump()
    given = Settings(**facts["settings"]).model_dump()
    if given["groups"] is not None:
        given["groups"] = counted(len(given["groups"]), "group")
    return {
        name: _text(value)
        for name, value in given.items()
        if value is not None and (value != usual[name] or name in {"method", "seeds", "seed"})
    }


def _of_privacy(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of privacy; of ε and the noise that follows from it, ε alone."""
    named = {"epsilon": privacy.get("epsilon")}
    named |= {f"privacy_{k}": v for k, v in privacy.items() if k in {"clip", "delta", "level"}}
    if named["epsilon"] is None and privacy:
        named["privacy_noise"] = privacy["noise"]
    return {k: v for k, v in named.items() if v is not None}


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line."""
    words: list[str] = []
    for name, value in options.items():
        option = flag(name)
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple):
            words += [word for item in value for word in (option, _text(item))]
        elif value is not False:
            words += [option, _text(value)]
    return words


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={_text(v)}" for k, v in value.items() if v is not None) or "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"
