"""The hands of a run: the primitives, as steps know them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence

from plait.engine.run import Stop
from plait.errors import LimitError, ProcessError
from plait.hints import TYPE_CHECKING, Final
from plait.primitives.process import MAX_OVERFLOW, Finished, run_shell
from plait.values import Json

if TYPE_CHECKING:
    from plait.steps.call import Toolbox, ToolResult
    from plait.steps.hands import Provider
    from plait.template.shell import BoundScript
    from plait.tools.invocation import Invocation, RequestCall, Returned
    from plait.tools.trust import Ask as AskTrust

STOP_GRACE: Final = 5.0
"""Seconds that running processes get when a run is to stop."""
PIECE: Final = 1 << 20


class RealHands:
    def __init__(
        self,
        project: str,
        folder: str,
        stop: Stop,
        *,
        env: Mapping[str, str],
        ask: AskTrust | None = None,
        keeps_overflow: bool = True,
    ) -> None:
        self._project = project
        self._folder = folder
        self._stop = stop
        self._env = env
        self._ask = ask
        self._keeps_overflow = keeps_overflow
        self._lock = threading.Lock()
        self._tools: Toolbox | None = None
        self._here = threading.local()

    def shell(
        self,
        bound: BoundScript,
        *,
        shell: str,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        timeout: float | None,
        stop: Stop,
    ) -> Finished:
        finished = run_shell(
            bound,
            shell=shell,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout=timeout,
            # What is beyond the limit goes to a file as it is, so not where secrets would have to be masked.
            overflow=self._keeps_overflow,
            cancel=stop,
            grace=STOP_GRACE,
        )
        return self._kept(finished) if finished.truncated else finished

    def _kept(self, finished: Finished) -> Finished:
        """With what was too long for memory in the folder of the run."""
        from plait.records import replace

        return replace(
            finished,
            stdout_file=self._moved(finished.stdout_file),
            stderr_file=self._moved(finished.stderr_file),
        )

    def _moved(self, path: str | None) -> str | None:
        import shutil

        if path is None:
            return None

        folder = os.path.join(self._folder, "output")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        place = os.path.join(folder, os.path.basename(path))
        shutil.move(path, place)
        return place

    def lines(
        self,
        bound: BoundScript,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        stop: Stop,
    ) -> Iterator[bytes]:
        finished = run_shell(
            bound,
            shell="sh",
            cwd=cwd,
            env=env,
            timeout=timeout,
            overflow=True,
            cancel=stop,
            grace=STOP_GRACE,
        )
        try:
            if finished.exit_code != 0:
                said = finished.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
                raise ProcessError(
                    f"the command that gives the items ended with exit code {finished.exit_code}"
                    + (": " + "\n".join(said) if said else ""),
                    fix="run it by hand and look at what it prints",
                    code="command-failed",
                )
            yield from _pieces(finished)
        finally:
            for path in filter(None, (finished.stdout_file, finished.stderr_file)):
                os.unlink(path)

    def call(self, tool_id: str, params: Mapping[str, Json], *, timeout: float | None) -> ToolResult:
        from plait.steps.call import call_tool

        self._here.timeout = timeout
        return call_tool(self._toolbox(), tool_id, params)

    def _toolbox(self) -> Toolbox:
        """The tools of the project, in the environment of the flow; one for all calls of a run."""
        from plait.app import toolbox
        from plait.records import replace

        with self._lock:
            if self._tools is None:
                tools = toolbox(self._project, ask=self._ask)
                host = {**tools.host, **self._env}
                self._tools = replace(tools, host=host, perform=self._carried_out)
            return self._tools

    def _carried_out(self, invocation: Invocation) -> Returned:
        from plait.app import perform_until
        from plait.records import replace

        timeout = self._here.timeout
        if timeout is not None:
            own = invocation.limits.timeout
            limit = timeout if own is None else min(own, timeout)
            invocation = replace(invocation, limits=replace(invocation.limits, timeout=limit))
        return perform_until(invocation, self._stop)

    def request(self, call: RequestCall) -> Returned:
        from plait.primitives.request import send

        return send(call)

    def git(self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b"") -> bytes:
        from plait.primitives.process import run

        around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        finished = run(["git", *args], cwd=cwd, env={**around, **env}, stdin=stdin, timeout=GIT_TIMEOUT)
        if finished.truncated:
            raise LimitError(
                f"'git {args[0]}' printed too much", fix="use a smaller repository", code="git-output"
            )
        if finished.exit_code != 0:
            raise ProcessError(
                f"'git {args[0] if args else ''}' ended with exit code {finished.exit_code}",
                fix="run it by hand and look at what it says",
                code="git",
            )
        return finished.stdout

    def provider(self, name: str | None) -> Provider | None:  # noqa: ARG002 - there are none yet
        return None

    def read(self, path: str, *, directory: str) -> bytes:
        from plait.primitives.files import read_file

        return read_file(self._project, path, directory=directory)

    def write(self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool) -> str:
        from plait.primitives.files import write_file

        return write_file(self._project, path, data, directory=directory, mode=mode, create_dirs=create_dirs)

    def copy(self, source: str, path: str, *, directory: str) -> str:
        from mmap import ACCESS_READ, mmap

        from plait.primitives.files import write_file

        with open(source, "rb") as file:
            if os.fstat(file.fileno()).st_size >= MAX_OVERFLOW:
                raise LimitError(
                    f"it printed more than {MAX_OVERFLOW:,} bytes, which are not kept",
                    fix="let the command itself write the file",
                    code="file-too-large",
                )
            data = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        return write_file(self._project, path, data, directory=directory, create_dirs=True)

    def is_inside(self, directory: str) -> bool:
        top = os.path.realpath(self._project)
        return os.path.commonpath([top, os.path.realpath(directory)]) == top


GIT_TIMEOUT: Final = 120.0


def _pieces(finished: Finished) -> Iterator[bytes]:
    if finished.stdout_file is None:
        yield finished.stdout
        return
    with open(finished.stdout_file, "rb") as file:
        while piece := file.read(PIECE):
            yield piece
