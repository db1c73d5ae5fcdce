"""The ports of steps: processes, files, requests, tools, stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from plait.agents.ports import ToolCatalog
from plait.core.hints import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json
    from plait.engine.perform import StepContext
    from plait.engine.step import Step
    from plait.engine.stop import StopSignal
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
    def cpu_time(self) -> float:
        """Seconds of computing."""

    @property
    def peak_rss(self) -> int:
        """KiB of memory."""

    @property
    def is_truncated(self) -> bool:
        """True if some output is not in `stdout` or `stderr`."""

    @property
    def stdout_truncated(self) -> bool: ...
    @property
    def stdout_file(self) -> str | None:
        """The file with the full output; None if the output was short or was not stored."""

    @property
    def stderr_file(self) -> str | None: ...
    @property
    def stdout_lost(self) -> str:
        """Why the file is incomplete or missing; empty if it is complete or was not needed."""

    @property
    def stderr_lost(self) -> str: ...


NO_ROOM: Final = "the run keeps no more long outputs"
"""Why an output is lost. Reported once per run."""

TIMEOUT_EXIT_CODE: Final = 124
"""The exit code of a process that timed out, as with timeout(1)."""


class Tracking:
    """Whether a run tracks the changes of its steps. All steps share it."""

    def __init__(self) -> None:
        self.is_on = False
        self.unknown: frozenset[str] = frozenset()
        """In a dry run: the variables whose changes only a run knows."""


class ItemCounts(dict[str, "Callable[[], dict[str, Json]]"]):
    """For each map that runs, by path: a function that returns its item counts so far."""


class Subflow(Protocol):
    """A flow that is called like a tool. Its steps are recorded below the call."""

    @property
    def name(self) -> str: ...

    @property
    def children(self) -> Sequence[Step]:
        """The steps that are known before it runs."""

    def run(self, ctx: StepContext) -> Json:
        """Return `{output, …}`; raises StepError if the flow fails."""


OnOutput = Callable[[str, bytes], None]
"""Gets the name of a stream, stdout or stderr, and a piece of it."""


class Processes(Protocol):
    """Shell commands and git."""

    async def shell(
        self,
        bound: BoundScript,
        *,
        shell: str,
        cwd: str,
        env: Mapping[str, str],
        more_env: Mapping[str, str],
        stdin: bytes,
        timeout: float | None,
        stop: StopSignal,
        on_output: OnOutput | None = None,
    ) -> ProcessResult:
        """Run a bound script to its end; `more_env` is added to `env`, which many steps share.

        `on_output` gets each piece of output as it comes.

        Raises ProcessError if it times out or the run stops.
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
        """Yield the output of a command in chunks; raises ProcessError at the end if it fails."""

    def git(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> bytes:
        """Return the output of `git ARGS`; raises ProcessError if git fails or is not installed.

        `env` is added to an environment without any `GIT_…` variable.
        """


class FileReader(Protocol):
    """Reads files below the project. A dry run may use it, too."""

    def read(self, path: str, *, directory: str) -> bytes:
        """Return the content; raises InputError if the file does not exist."""

    def is_inside(self, directory: str) -> bool:
        """Whether a folder is the project or below it. Links are resolved."""


class Files(FileReader, Protocol):
    """Files below the project."""

    def write(
        self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool
    ) -> str:
        """Write a whole file atomically and return its full path."""

    def copy(self, source: str, path: str, *, directory: str) -> str:
        """Write a copy of a long output like `write`; raises LimitError if the output is
        incomplete.
        """


class Http(Protocol):
    """Requests to servers."""

    def request(self, call: RequestCall) -> PrimitiveResult: ...


class Results(Protocol):
    """Results of tools that a project stores across runs."""

    def recall(self, key: str) -> Json:
        """Return the stored value; None if there is none or it was evicted."""

    def keep(self, key: str, value: Json) -> None: ...


class ToolChecks(ToolCatalog, Protocol):
    """Describes and checks tools without calling them. A dry run may use it, too."""

    def code(self, tool_id: str) -> CodeParams:
        """The parameters that the tool reads as code; empty if the tool is not found."""

    def require_valid_call(self, tool_id: str, params: Mapping[str, Json]) -> None:
        """Raise the problem of a call as far as it is known before the call. Calls nothing."""

    def at(self, directory: str, env: Mapping[str, str]) -> ToolChecks:
        """The same tools for a step with this folder and environment."""


class Tools(ToolChecks, Protocol):
    """The tools that a flow may call."""

    async def call(
        self,
        tool_id: str,
        params: Mapping[str, Json],
        *,
        timeout: float | None,
        on_output: OnOutput | None = None,
        trace: tuple[tuple[str, str], ...] = (),
    ) -> ToolResult:
        """Call a tool; `on_output` gets each piece that a process prints, unmasked.

        `trace`: the `traceparent` and `tracestate` that the call passes on.
        """

    def is_process(self, tool_id: str) -> bool:
        """Whether a call waits for nothing but a process; False if the tool is not found."""

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Subflow | None:
        """Return the flow behind a tool, with checked parameters; None if the tool is not a flow.

        Trust in the file is checked before the file is parsed.
        """

    def is_once(self, tool_id: str) -> bool:
        """Whether the header of the tool says that it runs at most once."""

    def digest(self, tool_id: str) -> str | None:
        """One digest for all files of the chain; None if the files do not determine the result."""

    def at(self, directory: str, env: Mapping[str, str]) -> Tools:
        """The same tools for a step with this folder and environment."""


def tools_at(ctx: StepContext) -> Tools:
    """The tools for the folder and environment of a step."""
    return ctx.run.services.get(Tools).at(ctx.directory, ctx.env)
