"""Start `plait` commands that go on by themselves, and stop a run that another process works on."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Thread

from plait.core.errors import InputError, PlaitError
from plait.core.hints import Final
from plait.core.values import Json, json_text

_LOOK_SECONDS: Final = 0.03
MOST_OUTPUT: Final = 64 * 1024
"""Characters that are kept of what a command printed."""


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


class StartedCommand:
    """A `plait` command that runs by itself."""

    def __init__(self, words: Sequence[str], inputs: Mapping[str, Json] | None = None) -> None:
        """`inputs`: given through standard input."""
        from tempfile import TemporaryFile

        from plait.adapters.process.detached import start_detached

        self.exit_code: int | None = None
        """None as long as it runs."""
        self._output = TemporaryFile()  # noqa: SIM115 - open until the command has ended
        given = None
        if inputs:
            given = TemporaryFile()  # noqa: SIM115 - the process has it open, too
            given.write(json_text(dict(inputs)).encode("utf-8", "surrogatepass"))
            given.flush()
            given.seek(0)
        argv = [*plait_command(), *words]
        self.pid = start_detached(
            argv, self._output.fileno(), None if given is None else given.fileno()
        )
        if given is not None:
            given.close()
        Thread(target=self._wait, name="plait-command", daemon=True).start()

    def _wait(self) -> None:
        try:
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            self.exit_code = 0

    def output(self) -> str:
        """What it has printed, its end."""
        size = os.fstat(self._output.fileno()).st_size
        data = os.pread(self._output.fileno(), MOST_OUTPUT, max(0, size - MOST_OUTPUT))
        return data.decode("utf-8", "replace")

    def wait_until(self, is_reached: Callable[[], bool], most: float) -> bool:
        """Wait until something holds, the command has ended, or the time is over."""
        until = time.monotonic() + most
        while time.monotonic() < until:
            if is_reached():
                return True
            if self.exit_code is not None:
                return is_reached()
            time.sleep(_LOOK_SECONDS)
        return False

    def find_run(self, project: str, most: float) -> str | None:
        """The run that it works on in a project; None if it has ended before there was one."""
        from plait.app.runs import flow_store

        store, found = flow_store(project), list[str]()

        def look() -> bool:
            mine = [run for run, _ in store.newest(20) if store.holder(run) == self.pid]
            found[:] = [run for run in mine if has_begun(run)]
            return bool(found)

        def has_begun(run: str) -> bool:
            """Its folder is there before the first record of its journal."""
            try:
                with store.open(run, write=False) as opened:
                    return next(iter(opened.journal.events()), None) is not None
            except PlaitError:
                return False

        self.wait_until(look, most)
        return found[0] if found else None


def plait_command() -> list[str]:
    """The words that start this Plait."""
    beside = os.path.join(os.path.dirname(sys.executable), "plait")
    if os.access(beside, os.X_OK):
        return [beside]
    return [sys.executable, "-m", "plait"]


def shown_command(words: Sequence[str]) -> str:
    return shlex.join(("plait", *words))
