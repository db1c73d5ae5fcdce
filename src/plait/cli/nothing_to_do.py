"""What `plait resume` and `plait retry` print if there is nothing to do.  That is not a mistake."""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING
from plait.views.format import json_line

if TYPE_CHECKING:
    import argparse


def report_nothing_to_do(message: str, options: argparse.Namespace, exit_code: int = 0) -> int:
    """Say so, and return the exit code."""
    if options.json:
        print(json_line({"event": "nothing_to_do", "message": message}))
    elif not options.quiet:
        print(message)
    return exit_code
