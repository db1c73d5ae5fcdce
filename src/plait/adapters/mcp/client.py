"""Call tools of MCP servers: connections are kept for a run, and only approved tools are called.

The official SDK speaks the protocol.  It is asynchronous, so it lives in one
thread of its own with an event loop; everybody else calls a function and waits.
Importing it takes half a second: that happens with the first call.

Before each call the server is asked for the tool, and the call goes to the very
server that was asked.  The first use of a tool needs an approval; a tool that is
no longer what was approved is refused until it is approved again (see `mcp_pins`).

A server that cannot be reached, dies or takes too long is a failed result with
the last lines it wrote to stderr, and the next call connects anew.  A call is
never sent twice.
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
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from types import TracebackType
from urllib.parse import urlsplit

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
from plait.core.hints import TYPE_CHECKING, Any, Final, TypeVar
from plait.core.machine import machine_error
from plait.core.records import dataclass
from plait.core.values import Json, json_value
from plait.tools.invocation import McpCall, McpServer, PrimitiveResult

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ContentBlock, Tool

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
"""Longer than the guardian tries to end a process."""

T = TypeVar("T")


def call_mcp(call: McpCall, *, clients: McpClients | None = None) -> PrimitiveResult:
    """Call a tool over the connections of this process."""
    return (clients or _standard_clients()).call(call)


def require_approved(call: McpCall, *, clients: McpClients | None = None) -> McpToolInfo:
    """A tool as its server describes it, over the connection by which it will be called."""
    return (clients or _standard_clients()).require_approved(call)


def run_to_end(awaitable: Awaitable[T]) -> T:
    """The result of something asynchronous, for synchronous callers."""

    async def wait() -> T:
        return await awaitable

    return asyncio.run(wait())


class McpServerError(ProcessError):
    """A server could not be asked, or gave no answer; `lost` when the connection is gone."""

    def __init__(
        self, what: str, fix: str | None = None, *, stderr: str = "", lost: bool = False
    ) -> None:
        super().__init__(what, "config.server", fix or _LOOK, code="mcp-server")
        self.stderr = stderr
        """The end of what the server wrote there."""
        self.lost = lost


_LOOK: Final = "start the server by hand and look at what it says"


# ── the face for everybody else ──────────────────────────────────────────


class McpClients:
    """Connections to MCP servers, one per definition of a server.  Threads may share it."""

    def __init__(
        self, pins: Approvals, *, approve: Approve | None = None, resolve: Resolve = look_up
    ) -> None:
        self._pins = pins
        self._approve = approve
        self._resolve = resolve
        self._asking = threading.Lock()
        self._portal: _Portal | None = None
        self._starting = threading.Lock()

    def call(self, call: McpCall) -> PrimitiveResult:
        """What the tool answers.  A tool that nobody approved is a `TrustError`."""
        started = time.monotonic()
        try:
            found = self._find(call)
            spent = time.monotonic() - started
            self._require_approval(found.tool_info(call.server))
            left = max(call.limits.timeout - spent, 0.001)
            answer = self._run(
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
        return _make_result(answer, time.monotonic() - started)

    def tool_info(self, call: McpCall) -> McpToolInfo:
        """The tool as its server describes it now, approved or not."""
        return self._find(call).tool_info(call.server)

    def require_approved(self, call: McpCall) -> McpToolInfo:
        """The same of one that may be called; TrustError if nobody approved it as it is now."""
        offered = self.tool_info(call)
        self._require_approval(offered)
        return offered

    def approve(self, offered: McpToolInfo) -> None:
        """Record a tool as it was looked at: the answer to a refusal."""
        self._pins.put(offered.key, offered.digest)

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
        with self._asking:  # one question at a time, and none that another thread has just answered
            known = self._pins.get(offered.key)
            if known == offered.digest:
                return
            if known is None and self._approve is not None and self._approve(offered):
                self._pins.put(offered.key, offered.digest)
                return
        raise not_approved(offered, changed=known is not None)

    def _run(self, work: Callable[[_Connections], Coroutine[Any, Any, T]]) -> T:
        with self._starting:
            if self._portal is None:
                self._portal = _Portal(self._resolve)
            portal = self._portal
        return portal.run(work)


def _standard_clients() -> McpClients:
    """The connections of this process, with the approvals of whoever is its user now."""
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


# ── what came back ───────────────────────────────────────────────────────


def _make_result(answer: CallToolResult, duration: float) -> PrimitiveResult:
    data = (
        answer.structured_content
        if answer.structured_content is not None
        else _content(answer.content)
    )
    error = None
    if answer.is_error:
        error = _text(answer.content) or "the tool reports that it failed"
    return PrimitiveResult(not answer.is_error, data, error, duration=duration)


def _content(blocks: list[ContentBlock]) -> Json:
    """Text as JSON if it is a whole map or list, else as it is; what is not only text block by
    block.
    """
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


# ── in the portal's thread ───────────────────────────────────────────────


class _Portal:
    """A thread with an event loop: synchronous code hands in work and waits for it."""

    def __init__(self, resolve: Resolve) -> None:
        self._loop = asyncio.new_event_loop()
        self._connections = _Connections(resolve)
        self._closed = False
        self._handing_in = threading.Lock()
        # A daemon, or Python would wait for it before it runs what closes it.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="plait-mcp", daemon=True
        )
        self._thread.start()

    def run(
        self, work: Callable[[_Connections], Coroutine[Any, Any, T]], *, last: bool = False
    ) -> T:
        with (
            self._handing_in
        ):  # nothing is handed in after the last, or it would be waited for in vain
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
"""Declared fields that nothing here reads, so that nobody has to look at them."""


def tool_declaration(tool: Tool) -> dict[str, Json]:
    """What a server declares of a tool.  Nothing else of a `Tool` may be read: this is what gets
    approved.
    """
    return tool.model_dump(by_alias=True, exclude=set(_UNUSED), exclude_none=True)


class _Connections:
    """Used in the portal's thread alone, so that nothing here needs a lock."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._open: dict[object, _Connection] = {}
        self._keepers: set[asyncio.Task[None]] = set()

    async def find_tool(self, call: McpCall) -> _Found:
        """The tool as its server lists it; a connection that died while nobody used it is made
        anew.
        """
        with _deadline(call.server, "list its tools") as limit:
            async with asyncio.timeout(call.limits.timeout) as limit.timeout:
                known = self._open.get(_identity(call.server))
                try:
                    return await self._list_tool(call, limit)
                except McpServerError as failure:
                    if not failure.lost or known is None:
                        raise
                return await self._list_tool(call, limit)

    async def _list_tool(self, call: McpCall, limit: _Deadline) -> _Found:
        connection = limit.connection = self._connection(call.server)
        await connection.wait_until_ready()
        return _Found(connection, await connection.ask(lambda client: _tool_named(client, call)))

    async def call_tool(
        self, connection: _Connection, call: McpCall, seconds: float
    ) -> CallToolResult:
        """Ask the server whose tool was looked at, and no other."""
        with _deadline(
            call.server, f"answer a call of '{call.tool}'", call.limits.timeout
        ) as limit:
            limit.connection = connection
            async with asyncio.timeout(seconds) as limit.timeout:
                return await connection.ask(
                    lambda client: client.call_tool(call.tool, dict(call.params))
                )

    async def close(self) -> None:
        for connection in self._open.values():
            connection.end()
        self._open.clear()
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=CLOSE_SECONDS)
            for keeper in late:
                keeper.cancel()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _connection(self, server: McpServer) -> _Connection:
        key = _identity(server)
        connection = self._open.get(key)
        if connection is None or not connection.alive:
            connection = self._open[key] = _Connection(server, self._resolve)
            self._keepers.add(connection.keeper)
            connection.keeper.add_done_callback(self._discard_keeper)
        return connection

    def _discard_keeper(self, keeper: asyncio.Task[None]) -> None:
        self._keepers.discard(keeper)
        if not keeper.cancelled():
            keeper.exception()  # told to whoever asked; asyncio need not print it


class _Connection:
    """A server and the task that keeps it: the SDK has to be left by the task that entered it."""

    client: Client

    def __init__(self, server: McpServer, resolve: Resolve) -> None:
        self.server = server
        self._resolve = resolve
        self._transport: Transport | None = None
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = 0
        self._given_up = False
        self.keeper = asyncio.create_task(self._keep())

    @property
    def alive(self) -> bool:
        return not self.keeper.done() and not self._stop.is_set()

    def end(self) -> None:
        self._stop.set()
        # Once only: a second time, it is the end of the server that would be given up.
        if not self._ready.done() and not self._given_up:
            self._given_up = True
            self.keeper.cancel()

    def last_words(self) -> str:
        return self._transport.last_words() if self._transport else ""

    async def wait_until_ready(self) -> None:
        self._waiting += 1
        try:
            await asyncio.wait({self.keeper, self._ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._ready.done():
                self.end()  # nobody waits any longer for a server that needs so long to start
        if not self._ready.done():
            raise self._connection_error("could not be connected")

    async def ask(self, request: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """The answer to a request, or the news that there will be none."""
        if not self.alive:
            raise self._connection_error("ended before it was asked")
        asking = asyncio.create_task(request(self.client))
        try:
            await asyncio.wait({asking, self.keeper}, return_when=asyncio.FIRST_COMPLETED)
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
            # The answer broke the protocol or its own schema; the text may quote values.
            return McpServerError(f"the MCP server '{name}' gave an answer that cannot be used")
        return self._connection_error("ended before it answered")

    def _connection_error(self, what: str) -> PlaitError:
        self.end()
        error = _cause(self.keeper)
        if isinstance(error, InputError | RequestError | GuardianError | MachineError):
            return error
        if error is not None and (limit := machine_error(error)) is not None:
            return limit
        name, stderr = self.server.name, self.last_words()
        if self._transport and (trouble := self._transport.trouble):
            if trouble.no_fault is not None:
                return trouble.no_fault
            what = "was ended" if trouble.by_us else what
            return McpServerError(
                f"the MCP server '{name}' {what}: {trouble.why}",
                trouble.fix,
                stderr=stderr,
                lost=True,
            )
        why, fix = _reason(error)
        return McpServerError(f"the MCP server '{name}' {what}{why}", fix, stderr=stderr, lost=True)

    async def _keep(self) -> None:
        from mcp import Client
        from mcp.types import Implementation

        from plait.adapters.mcp.transports import Http, Stdio

        # Its warnings would go to our stderr; what matters of them comes back as a failure.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        info = Implementation(name="plait", version=_own_version())
        if self.server.url:
            transport: Transport = Http(
                self.server, self._resolve, public_only=self.server.url_from_data
            )
        else:
            transport = Stdio(self.server, on_end=self._stop.set)
        self._transport = transport
        try:
            # No cache: an approval is compared with what the server says now.
            async with Client(transport.streams(), cache=None, client_info=info) as self.client:
                self._ready.set_result(None)
                await self._stop.wait()
        finally:
            await transport.end()


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("plait")
    except PackageNotFoundError:  # run from a folder that is not installed
        return "0"


def _cause(keeper: asyncio.Task[None]) -> BaseException | None:
    """The error that ended a connection, if one did."""
    if not keeper.done() or keeper.cancelled():
        return None
    error = keeper.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException | None) -> tuple[str, str | None]:
    """Why a connection ended, as far as that can be said without quoting anybody; and what to
    do.
    """
    match error:
        case None:
            return "", None
        case PlaitError():
            return f": {error.what}", error.fix
        case ModuleNotFoundError():
            return ": a package that speaks MCP is missing", "pip install 'plait[mcp]'"
        case OSError(errno=int(number)):
            return f": {os.strerror(number)}", None
    why = {
        "ConnectError": ": nobody answers at its address",
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
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found = [tool for tool in page.tools if tool.name == call.tool]
        if len(found) > 1:
            # The SDK holds a call to the last one, and a person would look at the first.
            raise InputError(
                f"the MCP server '{call.server.name}' declares the tool '{call.tool}' more than "
                "once",
                fix="have the server declare each tool once",
                code="unknown-mcp-tool",
            )
        if found:
            return found[0]
        names += [printable(tool.name) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    guess = closest_name(call.tool, names)
    raise InputError(
        f"the MCP server '{call.server.name}' has no tool '{call.tool}'",
        fix=f"did you mean '{guess}'?"
        if guess
        else f"it has {format_names(sorted(names)) or 'none'}",
        code="unknown-mcp-tool",
    )


def _identity(server: McpServer) -> object:
    env = tuple(sorted(server.env.items()))
    # A connection that was made to a private address is no way for a url from data.
    return (
        server.name,
        server.command,
        env,
        server.cwd,
        server.url,
        server.headers,
        server.url_from_data,
    )
