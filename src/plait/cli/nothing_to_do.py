"""The output of `plait resume` and `plait retry` if there is nothing to do, which is not an error."""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING
from plait.views.format import json_line

if TYPE_CHECKING:
    import argparse


def report_nothing_to_do(message: str, options: argparse.Namespace, exit_code: int = 0) -> int:
    """Print the message, and return the exit code."""
    if options.json:
        print(json_line({"event": "nothing_to_do", "message": message}))
    elif not options.quiet:
        print(message)
    return exit_code
