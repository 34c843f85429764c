"""From an exception to one clear line and an exit code."""

from __future__ import annotations

import re
import shlex
import sys
import traceback

from fedsift.flags import flag
from fedsift.visible import visible

DONE, FAILED, USAGE, NOT_MET, INTERRUPTED = 0, 1, 2, 3, 130
ACCELERATORS = ("--device", "--gpu", "--cuda")  # options that people look for


class UsageError(ValueError):
    """The command line asks for something that cannot be; the text says what to do."""


class StoppedError(Exception):
    """The user stopped the work; the text says how to go on."""


def report(error: BaseException, *, debug: bool = False) -> int:
    """Print an exception as one line on stderr; return the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    code, line = explain(error)
    if line:
        print(line if code == INTERRUPTED else f"fedsift: {line}", file=sys.stderr)
    return code


def explain(error: BaseException) -> tuple[int, str]:  # noqa: PLR0911  a line a kind
    """Return the exit code of an exception and its line."""
    if isinstance(error, StoppedError):
        return INTERRUPTED, str(error)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return INTERRUPTED, "stopped"
    message = getattr(error, "format_message", None)  # typer's usage errors, whose class has moved
    if message is not None:
        # Where click suggests a command, typer does so once more.
        text = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", message())
        if (option := getattr(error, "option_name", None)) in ACCELERATORS:
            text = f"{option}: fedsift computes on processors alone; leave it out"
        return USAGE, _one_line(f"{text} (see {_command(error)} --help)") if text else ""
    from pydantic import ValidationError

    from fedsift.callbacks import CallbackError
    from fedsift.checkpoints import CheckpointError
    from fedsift.deployment.processes import ProcessError
    from fedsift.recovery import TrainingError
    from fedsift.run_folder import RunError
    from fedsift.settings import refused

    if isinstance(error, ValidationError):
        return USAGE, _one_line(as_options(refused(error, flag)))
    if isinstance(error, RunError | CheckpointError):
        return USAGE, _one_line(str(error))
    if isinstance(error, ValueError) and _raised_here(error):
        return USAGE, _one_line(as_options(str(error)))
    if isinstance(error, CallbackError | TrainingError | ProcessError):
        return FAILED, _one_line(as_options(str(error)))
    if isinstance(error, OSError) and error.filename is not None:
        return USAGE, _one_line(f"{error.filename}: {error.strerror}")
    text = f"unexpected {type(error).__name__}: {error}"
    return FAILED, f"{_one_line(text)} (add --debug for the traceback, and please report it)"


def as_options(text: str) -> str:
    """Return a message about Python arguments in the words of the command line."""
    text = text.replace("features_in_common=True (--features-in-common)", "--features-in-common")
    text = re.sub(
        r"drop=\[('[^']*'|\"[^\"]*\")\]", lambda m: f"--drop {shlex.quote(m[1][1:-1])}", text
    )
    text = re.sub(
        r"(leave the column out with --drop (\S+))$",
        r"\1, or say what it is: --target \2, --id \2, --site-column \2",
        text,
    )
    names = "impute|outcome|messages|separator|standardise|weights"
    text = re.sub(
        rf"\b({names})=('[^']*'|\"[^\"]*\")", lambda m: f"--{m[1]} {shlex.quote(m[2][1:-1])}", text
    )
    text = re.sub(r"\b(features|density|splits)=([\d.]+)", r"--\1 \2", text)
    text = re.sub(r"\blocal_steps=(\d+)", r"--local-steps \1", text)
    text = re.sub(r"\bsite_(intercepts|ridge)(?:='(\w+)')?", _site_option, text)
    return re.sub(r"\blearning_rate\b", "--learning-rate", text)


def _site_option(found: re.Match[str]) -> str:
    name, value = found.groups()
    return f"--site-{name}" + (f" {value}" if value else "")


def _raised_here(error: BaseException) -> bool:
    """Tell a check of ours from a mistake of ours that surfaces in a library."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not frames or str(frames[-1].f_globals.get("__name__", "")).split(".")[0] == "fedsift"


def _command(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return str(getattr(context, "command_path", "fedsift"))


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
