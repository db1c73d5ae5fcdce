"""What steps need of the world outside: processes, tools, requests, models, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Protocol
from plait.engine.working_run import working

if TYPE_CHECKING:
    from plait.agents.messages import Provider, ToolOffer
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


class Subflow(Protocol):
    """A flow that is called like a tool: its steps are performed where the call stands."""

    @property
    def name(self) -> str: ...

    def run(self, ctx: StepContext) -> Json:
        """`{output, …}`; raises StepError when it fails."""


class Hands(Protocol):
    """The ways in which a step touches the world."""

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

    def call(
        self, tool_id: str, params: Mapping[str, Json], *, timeout: float | None
    ) -> ToolResult: ...

    def program(self, tool_id: str, params: Mapping[str, Json]) -> Subflow | None:
        """The flow that a tool is, with its parameters checked; None if it is no flow.

        Its file was judged as every tool is, before anything in it was looked at.
        """

    def require_valid_call(self, tool_id: str, params: Mapping[str, Json]) -> None:
        """Raises what is wrong with a call, as far as that is known before it; nothing is
        called.
        """

    def code(self, tool_id: str) -> CodeParams:
        """Which parameters of a tool are read as code; none of one that cannot be found."""

    def is_once(self, tool_id: str) -> bool:
        """Does the header of a tool say that it is rather asked about than called twice?"""

    def digest(self, tool_id: str) -> str | None:
        """One digest for all files of a tool's chain; None if they do not decide what it does."""

    def recall(self, key: str) -> Json:
        """What was kept in this project under a key; None if nothing was, or it had to make
        room.
        """

    def keep(self, key: str, value: Json) -> None: ...

    def offers(self, patterns: Sequence[str], *, ask_servers: bool = True) -> tuple[ToolOffer, ...]:
        """The tools whose ids match a pattern, and that may run, as a model sees them, by id.

        A pattern without `*` names a tool that has to be there; a TrustError if one may not run.
        Without `ask_servers` nothing is started: of a tool of an MCP server its file alone is
        known.
        """

    def request(self, call: RequestCall) -> PrimitiveResult: ...

    def read(self, path: str, *, directory: str) -> bytes:
        """A file below the project; an InputError if there is none."""

    def is_inside(self, directory: str) -> bool:
        """Is a folder the project, or below it, wherever links lead?"""

    def write(
        self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool
    ) -> str:
        """Put a whole file in place, below the project, at once or not at all; its full path."""

    def copy(self, source: str, path: str, *, directory: str) -> str:
        """Put a copy of a long output in place, as `write` does; a LimitError if there is not all
        of it.
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

    def provider(self, name: str | None) -> Provider | None:
        """The provider of that name, or the one that is used if nothing is said; None if there is
        none.
        """

    def at(self, directory: str, env: Mapping[str, str]) -> Hands:
        """The same hands for a step in a folder and an environment of its own: its tools are there,
        too.
        """


def tools(ctx: StepContext) -> Hands:
    """The hands of a step, where it is and with what it was given."""
    return working(ctx.run).hands.at(ctx.directory, ctx.env)
