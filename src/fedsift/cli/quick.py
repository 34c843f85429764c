"""A quick start: parameters are made for the command that is asked for alone."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence

import typer
from typer.models import CommandInfo


def asked(app: typer.Typer, arguments: Sequence[str]) -> typer.Typer:
    """Return an app whose commands have no parameters, but for those among the arguments.

    Their names and texts are there, which is all that the list of commands shows; the parameters of
    all would take a fifth of the time of ``fedsift --help``.
    """
    if "_FEDSIFT_COMPLETE" in os.environ:  # a shell asks what the words of its own line go on with
        return app
    quick = copy.copy(app)
    quick.registered_commands = [
        info if _name(info) in arguments else _bare(info) for info in app.registered_commands
    ]
    return quick


def _name(info: CommandInfo) -> str:
    assert info.callback is not None  # noqa: S101  every command of ours is a function
    return info.name or info.callback.__name__


def _bare(info: CommandInfo) -> CommandInfo:
    def command() -> None:
        """Stand for a command that is not called."""

    assert info.callback is not None  # noqa: S101  every command of ours is a function
    command.__name__, command.__doc__ = info.callback.__name__, info.callback.__doc__
    bare = copy.copy(info)
    bare.callback = command
    return bare
