"""An invocation: all data that a primitive needs, without placeholders.

A dry run prints it, a primitive executes it. A caller's value is in it as a leaf (stdin, a
parameter, an argument) and is never read as a template.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import Final, Literal, TypeAlias, TypeVar
from plait.core.records import dataclass, field, replace
from plait.core.values import MASK, Json

DEFAULT_TIMEOUT = 300.0
DEFAULT_MAX_OUTPUT = 16 << 20


@dataclass(frozen=True, slots=True)
class CallLimits:
    timeout: float = DEFAULT_TIMEOUT
    max_output: int = DEFAULT_MAX_OUTPUT
    """Bytes of output; a call that prints more fails."""
    overflow: str = ""
    """The folder for a complete output beyond the limit; empty: it is dropped."""


@dataclass(frozen=True, slots=True)
class ProcessCall:
    """Start a program directly, without a shell."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes = b""
    limits: CallLimits = CallLimits()


@dataclass(frozen=True, slots=True)
class HttpRetry:
    """How often a request is repeated, and after which pauses."""

    attempts: int = 1
    backoff: Literal["fixed", "linear", "exponential"] = "exponential"
    initial_delay: float = 0.5
    max_delay: float = 30.0
    statuses: tuple[int, ...] = (408, 425, 429, 500, 502, 503, 504)
    any_method: bool = False
    """Also repeat a POST or PATCH, although the server may have acted on the first one."""


@dataclass(frozen=True, slots=True)
class RequestCall:
    """Send an HTTP request."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    limits: CallLimits = CallLimits(timeout=60.0)
    retry: HttpRetry = HttpRetry()
    max_redirects: int = 0
    url_from_data: bool = False
    """The host comes from a value, so private and local addresses are refused."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A verified file beside a tool."""

    path: str
    """The user's path of the file, which errors show."""
    file: str
    """Where the verified bytes can be read again."""
    code: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Call a Python function of a verified file, in this process."""

    path: str
    code: bytes
    digest: str
    function: str
    params: Mapping[str, Json]
    project_path: str | None
    limits: CallLimits = CallLimits()
    file: str = ""
    """Where the verified bytes of the tool can be read again, if not at its path."""
    files_beside: Mapping[str, Verified] = field(default_factory=dict, repr=False)
    """Python files that it may import, by their path relative to its folder."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """Where an MCP server is: a command that speaks over stdio, or a URL."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    url_from_data: bool = False
    """The host comes from a value, so private and local addresses are refused."""


@dataclass(frozen=True, slots=True)
class McpCall:
    server: McpServer
    tool: str
    params: Mapping[str, Json]
    limits: CallLimits = CallLimits(timeout=60.0)
    chosen_by: tuple[str, ...] = ()
    """The caller's parameters, given or not, that decide the server's command line or url."""
    meta: tuple[tuple[str, str], ...] = ()
    """Entries of `_meta`: the trace that the call belongs to."""


Invocation: TypeAlias = ProcessCall | RequestCall | FunctionCall | McpCall


_Call = TypeVar("_Call")


def with_trace(call: _Call, trace: tuple[tuple[str, str], ...]) -> _Call:
    """Return an invocation that passes on `traceparent` and `tracestate`.

    A process gets variables, a request gets headers, an MCP call gets `_meta`. A request whose
    host comes from a value gets none: a trace is only for servers that the author names. A
    header that the author wrote stays. A function runs inside Plait and gets nothing.
    """
    match call:
        case ProcessCall():
            own = {name.upper(): value for name, value in trace}
            changed: object = replace(call, env={**call.env, **own})
        case RequestCall() if not call.url_from_data:
            written = {name.lower() for name, _ in call.headers}
            more = tuple(pair for pair in trace if pair[0] not in written)
            changed = replace(call, headers=(*call.headers, *more))
        case McpCall() if not call.server.url_from_data:
            changed = replace(call, meta=trace)
        case _:
            return call
    return changed  # type: ignore[return-value]  # `replace` keeps the class


@dataclass(frozen=True, slots=True)
class PrimitiveResult:
    """The result of a primitive of any kind."""

    success: bool
    data: Json
    error: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    stderr: str = ""
    duration: float = 0.0
    overflow: str | None = None
    """The file that holds the whole output if it exceeds the limit."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    printed: str | None = field(default=None, repr=False)
    """The output of a process, character by character; `data` is its meaning."""


_SECRET_WORDS: Final = frozenset(
    {
        "apikey",
        "auth",
        "authorization",
        "cookie",
        "cookie2",
        "credential",
        "credentials",
        "key",
        "passwd",
    }
    | {"password", "secret", "session", "signature", "token"}
)


def display_header(name: str, value: str) -> str:
    """The value of a header for people; masked if its name looks like a credential."""
    words = name.lower().replace("_", "-").split("-")
    return value if _SECRET_WORDS.isdisjoint(words) else MASK
