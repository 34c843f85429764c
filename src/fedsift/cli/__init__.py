"""The command line: ``fedsift fit``, ``compare``, ``predict``, ``report``, ``resume``, ``export``.

Exit codes: 0 done; 2 bad usage or input; 3 finished, but a required target was not met; 1 anything
else; 130 stopped by the user.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedsift.cli.failures import INTERRUPTED, report
from fedsift.cli.interrupts import stopping_at_once

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None:
        with stopping_at_once():
            return main(sys.argv[1:])
    from fedsift.cli.commands import app
    from fedsift.cli.quick import asked

    given, debug = [a for a in arguments if a != "--debug"], "--debug" in arguments
    try:
        code = asked(app, given)(args=given, prog_name="fedsift", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  every failure ends in one line
        return report(error, debug=debug)
    if code == INTERRUPTED:  # typer's exit for an interrupt that nothing here caught
        return report(KeyboardInterrupt(), debug=debug)
    return int(code or 0)
