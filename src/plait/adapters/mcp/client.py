"""Call tools of MCP servers. Connections are kept for a run; only approved tools are called.

The official SDK is asynchronous, so it runs in one thread with an event loop; all other code calls
a function and waits. The SDK takes half a second to import: that happens with the first call.

Before each call, the server is asked for the tool, and the call goes to that same server. The first
use of a tool needs an approval. A tool that has changed since is refused until it is approved again
(see `approvals`).

If a server cannot be reached, dies or takes too long, the result is a failure with the last lines
of its stderr, and the next call connects again. A call is never sent twice.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from types import TracebackType
from urllib.parse import urlsplit

from plait import __version__
from plait.adapters.http.connect import Resolve, look_up
from plait.adapters.mcp.approvals import (
    ApprovalFile,
    Approvals,
    Approve,
    McpToolInfo,
    not_approved,
    printable,
)
from plait.core.errors import (
    GuardianError,
    InputError,
    MachineError,
    PlaitError,
    ProcessError,
    RequestError,
    closest_name,
    format_names,
)
from plait.core.extras import install_extra
from plait.core.hints import TYPE_CHECKING, Any, Final, TypeVar, cast
from plait.core.os_errors import machine_error
from plait.core.records import dataclass
from plait.core.values import Json, json_value
from plait.tools.invocation import McpCall, McpServer, PrimitiveResult

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ContentBlock, RequestParamsMeta, Tool

    from plait.adapters.mcp.transports import Transport

__all__ = [
    "ApprovalFile",
    "Approvals",
    "McpClients",
    "McpServerError",
    "McpToolInfo",
    "call_mcp",
    "require_approved",
    "run_to_end",
]

MAX_PAGES: Final = 100
CLOSE_SECONDS: Final = 12.0
"""Longer than the guardian needs to end a process."""

T = TypeVar("T")


def call_mcp(call: McpCall, *, clients: McpClients | None = None) -> PrimitiveResult:
    return (clients or _standard_clients()).call(call)


def require_approved(call: McpCall, *, clients: McpClients | None = None) -> McpToolInfo:
    """A tool as its server describes it now; TrustError if it is not approved."""
    return (clients or _standard_clients()).require_approved(call)


def run_to_end(awaitable: Awaitable[T]) -> T:
    """Await something from synchronous code."""

    async def wait() -> T:
        return await awaitable

    return asyncio.run(wait())


class McpServerError(ProcessError):
    """A server could not be reached, or gave no response. `lost`: the connection is gone."""

    def __init__(
        self, what: str, fix: str | None = None, *, stderr: str = "", lost: bool = False
    ) -> None:
        super().__init__(what, "config.server", fix or _FIX, code="mcp-server")
        self.stderr = stderr
        """The end of the server's stderr."""
        self.lost = lost


_FIX: Final = "start the server by hand and look at what it says"


# ── for synchronous callers ──────────────────────────────────────────────


class McpClients:
    """Connections to MCP servers, one per definition of a server. Safe for threads."""

    def __init__(
        self, approvals: Approvals, *, approve: Approve | None = None, resolve: Resolve = look_up
    ) -> None:
        self._approvals = approvals
        self._approve = approve
        self._resolve = resolve
        self._asking = threading.Lock()
        self._portal: _Portal | None = None
        self._starting = threading.Lock()

    def call(self, call: McpCall) -> PrimitiveResult:
        """The tool's result. TrustError if the tool is not approved."""
        started = time.monotonic()
        try:
            found = self._find(call)
            elapsed = time.monotonic() - started
            self._require_approval(found.tool_info(call.server))
            left = max(call.limits.timeout - elapsed, 0.001)
            response = self._run(
                lambda connections: connections.call_tool(found.connection, call, left)
            )
        except McpServerError as failure:
            return PrimitiveResult(
                False,
                None,
                failure.what,
                stderr=failure.stderr,
                duration=time.monotonic() - started,
            )
        duration = time.monotonic() - started
        data = (
            response.structured_content
            if response.structured_content is not None
            else _content(response.content)
        )
        error = None
        if response.is_error:
            error = _text(response.content) or "the tool reports that it failed"
        return PrimitiveResult(not response.is_error, data, error, duration=duration)

    def tool_info(self, call: McpCall) -> McpToolInfo:
        """The tool as its server describes it now, approved or not."""
        return self._find(call).tool_info(call.server)

    def list_tools(self, server: McpServer, seconds: float) -> list[McpToolInfo]:
        """Every tool as its server describes it now, approved or not."""
        _require_valid_server(server)
        found = self._run(lambda connections: connections.list_tools(server, seconds))
        return [one.tool_info(server) for one in found]

    def require_approved(self, call: McpCall) -> McpToolInfo:
        """`tool_info` of an approved tool; TrustError if it is not approved as it is now."""
        offered = self.tool_info(call)
        self._require_approval(offered)
        return offered

    def approve(self, offered: McpToolInfo) -> None:
        """Record the approval of a tool as it is described in `offered`."""
        self._approvals.put(offered.key, offered.digest)

    def close(self) -> None:
        """End every server and the thread; a later call starts them again."""
        with self._starting:
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def __enter__(self) -> McpClients:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _find(self, call: McpCall) -> _Found:
        _require_valid_server(call.server)
        _require_encodable_params(call)
        return self._run(lambda connections: connections.find_tool(call))

    def _require_approval(self, offered: McpToolInfo) -> None:
        with self._asking:  # one question at a time; another thread may just have asked it
            approved = self._approvals.get(offered.key)
            if approved == offered.digest:
                return
            if approved is None and self._approve is not None and self._approve(offered):
                self._approvals.put(offered.key, offered.digest)
                return
        raise not_approved(offered, changed=approved is not None)

    def _run(self, work: Callable[[_Connections], Coroutine[Any, Any, T]]) -> T:
        with self._starting:
            if self._portal is None:
                self._portal = _Portal(self._resolve)
            portal = self._portal
        return portal.run(work)


def _standard_clients() -> McpClients:
    """The connections of this process, with the approvals of the current user."""
    user = os.environ.get("USER_SPACE") or os.path.expanduser("~")
    with _STANDARD_LOCK:
        if user not in _STANDARD:
            _STANDARD[user] = McpClients(
                ApprovalFile(os.path.join(user, ".ai", "trust", "mcp.json"))
            )
            atexit.register(_STANDARD[user].close)
        return _STANDARD[user]


_STANDARD: dict[str, McpClients] = {}
_STANDARD_LOCK = threading.Lock()


def _require_valid_server(server: McpServer) -> None:
    if bool(server.command) == bool(server.url):
        raise InputError(
            f"the MCP server '{server.name}' has neither a command nor a url, or both",
            fix="set config.server {command, args} or {url}",
            code="bad-config",
        )
    if server.url and urlsplit(server.url).scheme not in ("http", "https"):
        raise InputError(
            f"the url of the MCP server '{server.name}' is not http or https",
            fix="set config.server.url to https://…",
            code="bad-config",
        )


def _require_encodable_params(call: McpCall) -> None:
    try:
        json.dumps(dict(call.params), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"a parameter for '{call.tool}' holds half of a surrogate pair, which no message can "
            "carry",
            fix="pass whole characters",
            code="no-bytes",
        ) from None


# ── results ──────────────────────────────────────────────────────────────


def _content(blocks: list[ContentBlock]) -> Json:
    """Text, parsed if it is a JSON map or list; if a block is not text, a list of all blocks."""
    text = _text(blocks)
    if text is None:
        return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
    if re.match(r"\s*[\[{]", text):
        try:
            return json_value(text)
        except (ValueError, RecursionError):
            return text
    return text


def _text(blocks: list[ContentBlock]) -> str | None:
    texts = [block.text for block in blocks if block.type == "text"]
    return "\n".join(texts) if len(texts) == len(blocks) else None


# ── the thread of the event loop ─────────────────────────────────────────


class _Portal:
    """A thread with an event loop, in which synchronous code runs coroutines."""

    def __init__(self, resolve: Resolve) -> None:
        self._loop = asyncio.new_event_loop()
        self._connections = _Connections(resolve)
        self._closed = False
        self._submitting = threading.Lock()
        # A daemon: otherwise Python would wait for it before `atexit` closes it.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="plait-mcp", daemon=True
        )
        self._thread.start()

    def run(
        self, work: Callable[[_Connections], Coroutine[Any, Any, T]], *, last: bool = False
    ) -> T:
        with self._submitting:  # after the last coroutine the loop runs no other
            if self._closed:
                raise _shutdown_error()
            self._closed = last
            future = asyncio.run_coroutine_threadsafe(work(self._connections), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise _shutdown_error() from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        self.run(lambda connections: connections.close(), last=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _shutdown_error() -> McpServerError:
    return McpServerError("the connections to MCP servers were closed", "call again", lost=True)


@dataclass(frozen=True, slots=True)
class _Found:
    """A tool, and the server that described it."""

    connection: _Connection
    tool: Tool

    def tool_info(self, server: McpServer) -> McpToolInfo:
        return McpToolInfo(
            server.name,
            self.tool.name,
            tool_declaration(self.tool),
            server.command or (server.url,),
        )


_UNUSED: Final = frozenset({"icons", "meta"})
"""Declared fields that Plait does not read, so an approval need not cover them."""


def tool_declaration(tool: Tool) -> dict[str, Json]:
    """What an approval covers. Plait must not read anything else of a `Tool`."""
    return tool.model_dump(by_alias=True, exclude=set(_UNUSED), exclude_none=True)


class _Connections:
    """Used only in the thread of the event loop, so it needs no lock."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._open: dict[object, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def find_tool(self, call: McpCall) -> _Found:
        """The tool as its server lists it. An idle connection that died is made again."""
        with _deadline(call.server, "list its tools") as limit:
            async with asyncio.timeout(call.limits.timeout) as limit.timeout:
                was_open = _identity(call.server) in self._open
                try:
                    return await self._list_tool(call, limit)
                except McpServerError as failure:
                    if not failure.lost or not was_open:
                        raise
                return await self._list_tool(call, limit)

    async def _list_tool(self, call: McpCall, limit: _Deadline) -> _Found:
        connection = limit.connection = self._connection(call.server)
        await connection.wait_until_ready()
        return _Found(connection, await connection.ask(lambda client: _tool_named(client, call)))

    async def list_tools(self, server: McpServer, seconds: float) -> list[_Found]:
        with _deadline(server, "list its tools", seconds) as limit:
            async with asyncio.timeout(seconds) as limit.timeout:
                connection = limit.connection = self._connection(server)
                await connection.wait_until_ready()
                tools = await connection.ask(lambda client: _all_tools(client, server))
                return [_Found(connection, tool) for tool in tools]

    async def call_tool(
        self, connection: _Connection, call: McpCall, seconds: float
    ) -> CallToolResult:
        """Call the tool on the server that described it."""
        with _deadline(
            call.server, f"answer a call of '{call.tool}'", call.limits.timeout
        ) as limit:
            limit.connection = connection
            async with asyncio.timeout(seconds) as limit.timeout:
                return await connection.ask(
                    lambda client: client.call_tool(
                        call.tool,
                        dict(call.params),
                        meta=cast("RequestParamsMeta", dict(call.meta)) if call.meta else None,
                    )
                )

    async def close(self) -> None:
        for connection in self._open.values():
            connection.end()
        self._open.clear()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _connection(self, server: McpServer) -> _Connection:
        key = _identity(server)
        connection = self._open.get(key)
        if connection is None or not connection.alive:
            connection = self._open[key] = _Connection(server, self._resolve)
            self._tasks.add(connection.task)
            connection.task.add_done_callback(self._discard_task)
        return connection

    def _discard_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # callers get it; so asyncio does not print it


class _Connection:
    """A server and its task: the task that enters the SDK's context has to leave it."""

    client: Client

    def __init__(self, server: McpServer, resolve: Resolve) -> None:
        self.server = server
        self._resolve = resolve
        self._transport: Transport | None = None
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = 0
        self._given_up = False
        self.task = asyncio.create_task(self._serve())

    @property
    def alive(self) -> bool:
        return not self.task.done() and not self._stop.is_set()

    def end(self) -> None:
        self._stop.set()
        # Only once: a second cancel would interrupt the shutdown of the server.
        if not self._ready.done() and not self._given_up:
            self._given_up = True
            self.task.cancel()

    def last_words(self) -> str:
        return self._transport.last_words() if self._transport else ""

    async def wait_until_ready(self) -> None:
        self._waiting += 1
        try:
            await asyncio.wait({self.task, self._ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._ready.done():
                self.end()  # no caller waits for this slow server any more
        if not self._ready.done():
            raise self._connection_error("could not be connected")

    async def ask(self, request: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """The response to a request; an error as soon as the server is gone."""
        if not self.alive:
            raise self._connection_error("ended before it was asked")
        asking = asyncio.create_task(request(self.client))
        try:
            await asyncio.wait({asking, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
        if not asking.done() or asking.cancelled():
            raise self._connection_error("ended before it answered")
        error = asking.exception()
        if error is None:
            return asking.result()
        raise self._explain_error(error)

    def _explain_error(self, error: BaseException) -> PlaitError:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        name = self.server.name
        if isinstance(error, InputError):
            return error
        if not self.alive or (self._transport and self._transport.trouble):
            return self._connection_error("ended before it answered")
        if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
            return McpServerError(f"the MCP server '{name}' refused: {printable(error.message)}")
        if isinstance(error, RuntimeError | ValueError):
            # The response broke the protocol or its schema. The text may quote values.
            return McpServerError(f"the MCP server '{name}' gave an answer that cannot be used")
        return self._connection_error("ended before it answered")

    def _connection_error(self, what: str) -> PlaitError:
        self.end()
        error = _cause(self.task)
        if isinstance(error, InputError | RequestError | GuardianError | MachineError):
            return error
        if error is not None and (limit := machine_error(error)) is not None:
            return limit
        name, stderr = self.server.name, self.last_words()
        if self._transport and (trouble := self._transport.trouble):
            if trouble.error is not None:
                return trouble.error
            what = "was ended" if trouble.by_us else what
            return McpServerError(
                f"the MCP server '{name}' {what}: {trouble.why}",
                trouble.fix,
                stderr=stderr,
                lost=True,
            )
        why, fix = _reason(error)
        return McpServerError(f"the MCP server '{name}' {what}{why}", fix, stderr=stderr, lost=True)

    async def _serve(self) -> None:
        from mcp import Client
        from mcp.types import Implementation

        from plait.adapters.mcp.transports import Http, Stdio

        # Its warnings would go to our stderr; the important ones also come as failures.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        info = Implementation(name="plait", version=__version__)
        if self.server.url:
            transport: Transport = Http(
                self.server, self._resolve, public_only=self.server.url_from_data
            )
        else:
            transport = Stdio(self.server, on_end=self._stop.set)
        self._transport = transport
        try:
            # No cache: an approval is compared with the current declaration.
            async with Client(transport.streams(), cache=None, client_info=info) as self.client:
                self._ready.set_result(None)
                await self._stop.wait()
        finally:
            await transport.end()


def _cause(task: asyncio.Task[None]) -> BaseException | None:
    """The error that ended a connection, if one did."""
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException | None) -> tuple[str, str | None]:
    """Why a connection ended, without quoting the server, and what to do."""
    match error:
        case None:
            return "", None
        case PlaitError():
            return f": {error.what}", error.fix
        case ModuleNotFoundError():
            return ": a package that speaks MCP is missing", install_extra("mcp")
        case OSError(errno=int(number)):
            return f": {os.strerror(number)}", None
    why = {
        "ConnectError": ": nothing answers at its address",
        "MCPError": ": it closed the connection",
        "RemoteProtocolError": ": it broke the connection off",
        "ReadError": ": it broke the connection off",
    }.get(type(error).__name__, f": {type(error).__name__}")
    return why, None


class _Deadline:
    timeout: asyncio.Timeout | None = None
    connection: _Connection | None = None


@contextmanager
def _deadline(server: McpServer, what: str, seconds: float | None = None) -> Iterator[_Deadline]:
    limit = _Deadline()
    try:
        yield limit
    except TimeoutError:
        if limit.timeout is None or not limit.timeout.expired():
            raise
        within = f" within {seconds:g} seconds" if seconds else " in time"
        raise McpServerError(
            f"the MCP server '{server.name}' did not {what}{within}",
            "give it more time (config.timeout), or start it by hand and look at what it waits for",
            stderr=limit.connection.last_words() if limit.connection else "",
        ) from None


async def _tool_named(client: Client, call: McpCall) -> Tool:
    names: list[str] = []
    async for page in _tool_pages(client):
        found = [tool for tool in page if tool.name == call.tool]
        if len(found) > 1:
            raise _duplicate_error(call.server, call.tool)
        if found:
            return found[0]
        names += [printable(tool.name) for tool in page]
    guess = closest_name(call.tool, names)
    raise InputError(
        f"the MCP server '{call.server.name}' has no tool '{call.tool}'",
        fix=f"did you mean '{guess}'?"
        if guess
        else f"it has {format_names(sorted(names)) or 'none'}",
        code="unknown-mcp-tool",
    )


async def _all_tools(client: Client, server: McpServer) -> list[Tool]:
    found: dict[str, Tool] = {}
    async for page in _tool_pages(client):
        for tool in page:
            if tool.name in found:
                raise _duplicate_error(server, printable(tool.name))
            found[tool.name] = tool
    return list(found.values())


async def _tool_pages(client: Client) -> AsyncIterator[list[Tool]]:
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        yield page.tools
        cursor = page.next_cursor
        if cursor is None:
            return


def _duplicate_error(server: McpServer, tool: str) -> InputError:
    # The SDK would call the last one, and the user would approve the first.
    return InputError(
        f"the MCP server '{server.name}' declares the tool '{tool}' more than once",
        fix="have the server declare each tool once",
        code="unknown-mcp-tool",
    )


def _identity(server: McpServer) -> object:
    env = tuple(sorted(server.env.items()))
    # A url from data must not reuse a connection to a private address.
    return (
        server.name,
        server.command,
        env,
        server.cwd,
        server.url,
        server.headers,
        server.url_from_data,
    )
