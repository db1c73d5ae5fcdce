"""What steps need of the world outside: processes, files, requests, tools, results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from plait.agents.ports import ToolCatalog
from plait.core.hints import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json
    from plait.engine.event_bus import StopSignal
    from plait.engine.perform import StepContext
    from plait.template.shell.binding import BoundScript
    from plait.tools.call import ToolResult
    from plait.tools.code_params import CodeParams
    from plait.tools.invocation import PrimitiveResult, RequestCall


class ProcessResult(Protocol):
    """How a process ended, and what it printed."""

    @property
    def exit_code(self) -> int: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def duration(self) -> float: ...
    @property
    def is_truncated(self) -> bool:
        """Some output is not in `stdout` or `stderr`."""

    @property
    def stdout_truncated(self) -> bool: ...
    @property
    def stdout_file(self) -> str | None:
        """What it printed, if it was too long and there is such a file."""

    @property
    def stderr_file(self) -> str | None: ...
    @property
    def stdout_lost(self) -> str:
        """Why the file has not all of it, or is missing; empty if it has, or nobody wanted one."""

    @property
    def stderr_lost(self) -> str: ...


NO_ROOM: Final = "the run keeps no more long outputs"

TIMEOUT_EXIT_CODE: Final = 124
"""The exit code of what had to be ended, as timeout(1) gives it."""
"""Why an output is lost, said once for the whole run."""


class Tracking:
    """Does a run watch what its steps change?  Shared by all of its steps."""

    def __init__(self) -> None:
        self.is_on = False
        self.unknown: frozenset[str] = frozenset()
        """In a dry run: the names of which only a run knows what has changed."""


class ItemCounts(dict[str, "Callable[[], dict[str, Json]]"]):
    """By the path of a map that runs: how its items have ended until now."""


class Subflow(Protocol):
    """A flow that is called like a tool: its steps are performed where the call stands."""

    @property
    def name(self) -> str: ...

    def run(self, ctx: StepContext) -> Json:
        """`{output, …}`; raises StepError when it fails."""


class Processes(Protocol):
    """Shell commands and git."""

    def shell(
        self,
        bound: BoundScript,
        *,
        shell: str,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        timeout: float | None,
        stop: StopSignal,
    ) -> ProcessResult:
        """Run a bound script to its end; a ProcessError if it took too long or the run is to
        stop.
        """

    def lines(
        self,
        bound: BoundScript,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        stop: StopSignal,
    ) -> Iterator[bytes]:
        """What a command prints, piece by piece; a ProcessError at the end if it fails."""

    def git(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> bytes:
        """What `git ARGS` prints; a ProcessError if it fails or is not there.

        `env` is added to an environment without any `GIT_…` variable.
        """


class FileReader(Protocol):
    """Looks at files below the project; a dry run may do so, too."""

    def read(self, path: str, *, directory: str) -> bytes:
        """A file below the project; an InputError if there is none."""

    def is_inside(self, directory: str) -> bool:
        """Is a folder the project, or below it, wherever links lead?"""


class Files(FileReader, Protocol):
    """Files below the project."""

    def write(
        self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool
    ) -> str:
        """Put a whole file in place, below the project, at once or not at all; its full path."""

    def copy(self, source: str, path: str, *, directory: str) -> str:
        """Put a copy of a long output in place, as `write` does; a LimitError if there is not all
        of it.
        """


class Http(Protocol):
    """Requests to servers."""

    def request(self, call: RequestCall) -> PrimitiveResult: ...


class Results(Protocol):
    """Results of tools that a project keeps beyond a run."""

    def recall(self, key: str) -> Json:
        """What was kept in this project under a key; None if nothing was, or it had to make
        room.
        """

    def keep(self, key: str, value: Json) -> None: ...


class ToolChecks(ToolCatalog, Protocol):
    """Looks at tools without calling them; a dry run may do so, too."""

    def code(self, tool_id: str) -> CodeParams:
        """Which parameters of a tool are read as code; none of one that cannot be found."""

    def require_valid_call(self, tool_id: str, params: Mapping[str, Json]) -> None:
        """Raises what is wrong with a call, as far as that is known before it; nothing is
        called.
        """

    def at(self, directory: str, env: Mapping[str, str]) -> ToolChecks:
        """The same tools for a step with a folder and an environment of its own."""


class Tools(ToolChecks, Protocol):
    """The tools that a flow may call."""

    def call(
        self, tool_id: str, params: Mapping[str, Json], *, timeout: float | None
    ) -> ToolResult: ...

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Subflow | None:
        """The flow that a tool is, with its parameters checked; None if it is no flow.

        Trust in its file is checked before anything in it is read.
        """

    def is_once(self, tool_id: str) -> bool:
        """Does the header of a tool say that it is rather asked about than called twice?"""

    def digest(self, tool_id: str) -> str | None:
        """One digest for all files of a tool's chain; None if they do not decide what it does."""

    def at(self, directory: str, env: Mapping[str, str]) -> Tools:
        """The same tools for a step with a folder and an environment of its own."""


def tools_at(ctx: StepContext) -> Tools:
    """The tools of a step, in its folder and with its environment."""
    return ctx.run.services.get(Tools).at(ctx.directory, ctx.env)
