"""A process that continues when this one ends: a `plait` command that the web view starts.

The guardian ends its processes when Plait ends, so it cannot start these.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from plait.core.errors import ProcessError
from plait.core.os_errors import start_error


def start_detached(argv: Sequence[str], output: int, standard_input: int | None = None) -> int:
    """Start a process in a session of its own and return its id; it writes to `output`."""
    given = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        if standard_input is None
        else (os.POSIX_SPAWN_DUP2, standard_input, 0)
    )
    try:
        return os.posix_spawn(
            argv[0],
            list(argv),
            os.environ,
            file_actions=[
                given,
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
    except OSError as error:
        limit = start_error("the command", error.errno or 0)
        raise limit or ProcessError(
            f"the command did not start: {os.strerror(error.errno or 0)}",
            fix=f"check that '{argv[0]}' can be executed",
            code="guardian",
        ) from None
