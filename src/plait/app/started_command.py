"""Start `plait` commands that go on by themselves."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Thread

from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.values import Json, json_text

_LOOK_SECONDS: Final = 0.03
MOST_OUTPUT: Final = 64 * 1024
"""Characters that are kept of what a command printed."""


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
