"""Stop a run that another process works on."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

from plait.core.errors import InputError


def stop_run(run: str | None, project: str | None) -> tuple[str, int]:
    """Ask the process that works on a run to stop it, as Ctrl-C does; return its id and that."""
    from plait.app.runs import find_run

    runs, name = find_run(run, project)
    pid = runs.holder(name)
    if pid is None:
        raise InputError(
            f"no process works on run {name}", fix=f"plait show {name}", code="not-running"
        )
    if _is_mcp_server(pid):
        raise InputError(
            f"run {name} belongs to a 'plait mcp' (process {pid}), which may have other runs",
            fix="let its client call plait_run_cancel, or end the server: its runs can be resumed",
            code="not-running",
        )
    try:
        os.kill(pid, signal.SIGTERM if is_signal_ignored(pid, signal.SIGINT) else signal.SIGINT)
    except ProcessLookupError:
        pass  # it has ended meanwhile
    except PermissionError:
        raise InputError(
            f"process {pid}, which works on run {name}, is that of another user",
            fix="stop it as that user",
            code="not-running",
        ) from None
    return name, pid


def is_signal_ignored(pid: int, number: int) -> bool:
    """Does a process ignore a signal?  One that a script has put into the background ignores SIGINT."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file)
        return bool(int(fields["SigIgn"], 16) >> (number - 1) & 1)
    except (OSError, ValueError, KeyError):
        return False  # it has ended meanwhile, or this is not Linux


def _is_mcp_server(pid: int) -> bool:
    """Does the process serve MCP clients?  A signal would end all their runs."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False  # it has ended meanwhile
    return any(
        word.endswith(b"plait") and following == b"mcp" for word, following in pairwise(words)
    )
