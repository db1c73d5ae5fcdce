"""Call tools of MCP servers: connections are kept for a run, and only approved tools are called.

The official SDK speaks the protocol.  It is asynchronous, so it lives in one
thread of its own with an event loop; everybody else calls a function and waits.
Importing it takes half a second: that happens with the first call.

Before each call the server is asked for the tool.  Its name, description and
input schema have a digest; the first use of a tool needs an approval, which
records that digest, and a tool whose digest has changed is refused until it is
approved again: a description is text that a language model obeys.

A server that cannot be reached, dies or takes too long is a failed result with
the last lines it wrote to stderr, and the next call connects anew.  A call is
never sent twice.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from plait.errors import InputError, TrustError, listed, nearest
from plait.records import dataclass, field
from plait.tools.invocation import DEFAULT_MAX_OUTPUT, McpCall, McpServer, Returned
from plait.values import Json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ContentBlock, Tool

MAX_PAGES: Final = 100
MAX_STDERR: Final = 64 << 10
CONNECT_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 10.0
"""The SDK gives a server 2 s to end by itself, 2 s after TERM, and 2 s after KILL."""

T = TypeVar("T")


def call(call: McpCall, *, clients: McpClients | None = None) -> Returned:
    """Call a tool over the connections of this process."""
    return (clients or _standard_clients()).call(call)


def run_to_end(awaitable: Awaitable[T]) -> T:
    """The result of something asynchronous, for synchronous callers."""

    async def wait() -> T:
        return await awaitable

    return asyncio.run(wait())


# ── approvals ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as its server describes it now."""

    server: str
    tool: str
    description: str
    input_schema: Json = field(repr=False)

    @property
    def key(self) -> str:
        # Names may hold a slash; quoted, no two pairs of names have one key.
        return f"{quote(self.server, safe='')}/{quote(self.tool, safe='')}"

    @property
    def digest(self) -> str:
        """SHA-256 of name, description and input schema."""
        said = {"name": self.tool, "description": self.description, "input_schema": self.input_schema}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


Approve = Callable[[Offered], bool]
"""Asks somebody who may say yes; called in the thread of the caller, once per tool."""


class Pins(Protocol):
    """Which digest of `server/tool` was approved."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, digest: str) -> None: ...


class PinFile:
    """Approvals in a file of the user: written whole, by one process at a time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get(self, key: str) -> str | None:
        return self._read().get(key)

    def put(self, key: str, digest: str) -> None:
        with self._locked():
            self._write({**self._read(), key: digest})

    def remove(self, key: str) -> bool:
        """Take an approval back; False if there was none."""
        with self._locked():
            pins = self._read()
            known = pins.pop(key, None) is not None
            self._write(pins)
        return known

    def _read(self) -> dict[str, str]:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from None
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise self._unusable("can be written by others")
            try:
                pins = json.load(file)
            except ValueError:
                raise self._unusable("is damaged") from None
        if not isinstance(pins, dict) or not all(isinstance(digest, str) for digest in pins.values()):
            raise self._unusable("is damaged")
        return pins

    def _write(self, pins: dict[str, str]) -> None:
        folder = os.path.dirname(self.path)
        handle, temporary = tempfile.mkstemp(prefix=".mcp-", dir=folder)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(dict(sorted(pins.items())), file, indent=1)
                file.flush()
                os.fsync(handle)
            os.rename(temporary, self.path)
        except OSError:
            os.unlink(temporary)
            raise
        _sync_folder(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        # The lock is never removed: two processes could otherwise hold two locks of one name.
        handle = os.open(self.path + ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _unusable(self, why: str) -> TrustError:
        return TrustError(
            f"the approvals of MCP tools cannot be used: the file {why}",
            self.path,
            "repair it or its permissions (chmod 600), or remove it and approve again",
            code="bad-pins",
        )


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ── the face for everybody else ──────────────────────────────────────────


class McpClients:
    """Connections to MCP servers, one per definition of a server.  Threads may share it."""

    def __init__(self, pins: Pins, *, approve: Approve | None = None) -> None:
        self._pins = pins
        self._approve = approve
        self._asking = threading.Lock()
        self._portal: _Portal | None = None
        self._starting = threading.Lock()

    def call(self, call: McpCall) -> Returned:
        """What the tool answers.  A tool that nobody approved is a `TrustError`."""
        started = time.monotonic()
        try:
            offered = self.offered(call)
            spent = time.monotonic() - started
            self._expect_approved(offered)
            left = max(call.limits.timeout - spent, 0.001)
            answer = self._run(lambda connections: connections.call_tool(call, left))
        except _FailedError as failure:
            return Returned(
                False, None, failure.said, stderr=failure.stderr, duration=time.monotonic() - started
            )
        return _returned(answer, time.monotonic() - started)

    def offered(self, call: McpCall) -> Offered:
        """The tool as its server describes it now, approved or not."""
        _expect_server(call.server)
        tool = self._run(lambda connections: connections.find_tool(call))
        return Offered(call.server.name, tool.name, tool.description or "", tool.input_schema)

    def approve(self, call: McpCall) -> Offered:
        """Record the tool as it is now: the answer to a refusal."""
        offered = self.offered(call)
        self._pins.put(offered.key, offered.digest)
        return offered

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

    def _expect_approved(self, offered: Offered) -> None:
        with self._asking:  # one question at a time, and none that another thread has just answered
            known = self._pins.get(offered.key)
            if known == offered.digest:
                return
            if known is None and self._approve is not None and self._approve(offered):
                self._pins.put(offered.key, offered.digest)
                return
        raise _not_approved(offered, changed=known is not None)

    def _run(self, work: Callable[[_Connections], Coroutine[Any, Any, T]]) -> T:
        with self._starting:
            if self._portal is None:
                self._portal = _Portal()
            portal = self._portal
        return portal.run(work(portal.connections))


def _standard_clients() -> McpClients:
    global _STANDARD
    with _STANDARD_LOCK:
        if _STANDARD is None:
            user = os.environ.get("USER_SPACE") or os.path.expanduser("~")
            _STANDARD = McpClients(PinFile(os.path.join(user, ".ai", "trust", "mcp.json")))
            atexit.register(_STANDARD.close)
        return _STANDARD


_STANDARD: McpClients | None = None
_STANDARD_LOCK = threading.Lock()


def _not_approved(offered: Offered, *, changed: bool) -> TrustError:
    server, tool = _printable(offered.server), _printable(offered.tool)
    if changed:
        what = f"the tool '{tool}' of the MCP server '{server}' is not the one that was approved: "
        what += "its description or its parameters have changed"
    else:
        what = f"the tool '{tool}' of the MCP server '{server}' has not been approved"
    command = f"plait trust mcp {shlex.quote(server)} {shlex.quote(tool)}"
    return TrustError(
        what, fix=f"look at it and approve it: {command}", code="mcp-changed" if changed else "mcp-unapproved"
    )


def _expect_server(server: McpServer) -> None:
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


def _printable(text: str) -> str:
    """A server's own words, for a message: nothing that a terminal would obey, and not too many."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:200])
    return plain + "…" if len(text) > 200 else plain


# ── what came back ───────────────────────────────────────────────────────


def _returned(answer: CallToolResult, duration: float) -> Returned:
    data = answer.structured_content if answer.structured_content is not None else _content(answer.content)
    error = None
    if answer.is_error:
        error = _text(answer.content) or "the tool reports that it failed"
    return Returned(not answer.is_error, data, error, duration=duration)


def _content(blocks: list[ContentBlock]) -> Json:
    """Text as JSON if it is a whole map or list, else as it is; what is not only text block by block."""
    text = _text(blocks)
    if text is None:
        return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
    if re.match(r"\s*[\[{]", text):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _text(blocks: list[ContentBlock]) -> str | None:
    texts = [block.text for block in blocks if block.type == "text"]
    return "\n".join(texts) if len(texts) == len(blocks) else None


# ── in the portal's thread ───────────────────────────────────────────────


class _FailedError(Exception):
    """The server could not be asked; `lost` when the connection is gone."""

    def __init__(self, said: str, stderr: str = "", *, lost: bool = False) -> None:
        super().__init__(said)
        self.said = said
        self.stderr = stderr
        self.lost = lost


class _Portal:
    """A thread with an event loop: synchronous code hands in work and waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.connections = _Connections()
        # A daemon, or Python would wait for it before it runs what closes it.
        self._thread = threading.Thread(target=self._loop.run_forever, name="plait-mcp", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        self.run(self.connections.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Connections:
    """Used in the portal's thread alone, so that nothing here needs a lock."""

    def __init__(self) -> None:
        self._open: dict[object, _Connection] = {}
        self._keepers: set[asyncio.Task[None]] = set()

    async def find_tool(self, call: McpCall) -> Tool:
        """The tool as its server lists it; a connection that died while nobody used it is made anew."""
        with _deadline(call.server, "list its tools") as limit:
            async with asyncio.timeout(call.limits.timeout) as limit.timeout:
                known = self._open.get(_identity(call.server))
                try:
                    return await self._list_tool(call)
                except _FailedError as failure:
                    if not failure.lost or known is None:
                        raise
                return await self._list_tool(call)

    async def _list_tool(self, call: McpCall) -> Tool:
        connection = await self._connection(call.server)
        return await connection.ask(_tool_named(connection.client, call))

    async def call_tool(self, call: McpCall, seconds: float) -> CallToolResult:
        with _deadline(call.server, f"answer a call of '{call.tool}'", call.limits.timeout) as limit:
            async with asyncio.timeout(seconds) as limit.timeout:
                connection = await self._connection(call.server)
                limit.tail = connection.tail
                return await connection.ask(connection.client.call_tool(call.tool, dict(call.params)))

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

    async def _connection(self, server: McpServer) -> _Connection:
        key = _identity(server)
        connection = self._open.get(key)
        if connection is None or not connection.alive:
            connection = self._open[key] = _Connection(server)
            self._keepers.add(connection.keeper)
            connection.keeper.add_done_callback(self._gone)
        try:
            await connection.opened()
        except asyncio.CancelledError:
            # Nobody will wait for a server that needed more than a whole deadline to start.
            connection.end()
            raise
        return connection

    def _gone(self, keeper: asyncio.Task[None]) -> None:
        self._keepers.discard(keeper)
        if not keeper.cancelled():
            keeper.exception()  # told to whoever asked; asyncio need not print it


class _Connection:
    """A server and the task that keeps it: the SDK has to be left by the task that entered it."""

    client: Client

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.tail = _Tail()
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.keeper = asyncio.create_task(self._keep())

    @property
    def alive(self) -> bool:
        return not self.keeper.done() and not self._stop.is_set()

    def end(self) -> None:
        self._stop.set()
        if not self._ready.done():
            self.keeper.cancel()

    async def opened(self) -> None:
        await asyncio.wait({self.keeper, self._ready}, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise self._lost("could not be connected")

    async def ask(self, request: Coroutine[Any, Any, T]) -> T:
        """The answer to a request, or the news that there will be none."""
        asking = asyncio.create_task(request)
        try:
            await asyncio.wait({asking, self.keeper}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
        if not asking.done() or asking.cancelled():
            raise self._lost("ended before it answered")
        error = asking.exception()
        if error is None:
            return asking.result()
        raise self._explained(error)

    def _explained(self, error: BaseException) -> BaseException:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if isinstance(error, InputError):
            return error
        if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
            return _FailedError(f"the MCP server '{self.server.name}' refused: {_printable(error.message)}")
        if isinstance(error, RuntimeError | ValueError):
            # The answer broke the protocol or its own schema; the text may quote values.
            return _FailedError(f"the MCP server '{self.server.name}' gave an answer that cannot be used")
        return self._lost("ended before it answered")

    def _lost(self, what: str) -> _FailedError:
        self.end()
        return _FailedError(
            f"the MCP server '{self.server.name}' {what}{_reason(self.keeper)}", self.tail.text(), lost=True
        )

    async def _keep(self) -> None:
        from mcp import Client
        from mcp.types import Implementation

        # Its warnings would go to our stderr; what matters of them comes back as a failure.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        async with AsyncExitStack() as stack:
            transport = await _transport(self.server, self.tail, stack)
            info = Implementation(name="plait", version=_own_version())
            # No cache: an approval is compared with what the server says now.
            client = Client(transport, cache=None, client_info=info)
            self.client = await stack.enter_async_context(client)
            self.tail.only_theirs()
            self._ready.set_result(None)
            await self._stop.wait()


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("plait")
    except PackageNotFoundError:  # run from a folder that is not installed
        return "0"


def _reason(keeper: asyncio.Task[None]) -> str:
    """Why a connection ended, as far as that can be said without quoting anybody."""
    if not keeper.done() or keeper.cancelled():
        return ""
    error = keeper.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case FileNotFoundError():
            return ": there is no such program or folder"
        case PermissionError():
            return ": its program may not be executed"
        case None:
            return ""
    return {
        "ConnectError": ": nobody answers at its address",
        "MCPError": ": it closed the connection",
        "RemoteProtocolError": ": it broke the connection off",
        "ReadError": ": it broke the connection off",
    }.get(type(error).__name__, f": {type(error).__name__}")


class _Deadline:
    timeout: asyncio.Timeout | None = None
    tail: _Tail | None = None


@contextmanager
def _deadline(server: McpServer, what: str, seconds: float | None = None) -> Iterator[_Deadline]:
    limit = _Deadline()
    try:
        yield limit
    except TimeoutError:
        if limit.timeout is None or not limit.timeout.expired():
            raise
        within = f" within {seconds:g} seconds" if seconds else " in time"
        said = f"the MCP server '{server.name}' did not {what}{within}"
        raise _FailedError(said, limit.tail.text() if limit.tail else "") from None


async def _tool_named(client: Client, call: McpCall) -> Tool:
    names: list[str] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if tool.name == call.tool:
                return tool
            names.append(_printable(tool.name))
        cursor = page.next_cursor
        if cursor is None:
            break
    guess = nearest(call.tool, names)
    raise InputError(
        f"the MCP server '{call.server.name}' has no tool '{call.tool}'",
        fix=f"did you mean '{guess}'?" if guess else f"it has {listed(sorted(names)) or 'none'}",
        code="unknown-mcp-tool",
    )


def _identity(server: McpServer) -> object:
    env = tuple(sorted(server.env.items()))
    return (server.name, server.command, env, server.cwd, server.url, server.headers)


# ── transports ───────────────────────────────────────────────────────────


async def _transport(server: McpServer, tail: _Tail, stack: AsyncExitStack) -> Any:
    if server.url:
        return await _http(server, stack)
    return _stdio(server, tail, stack)


async def _http(server: McpServer, stack: AsyncExitStack) -> Any:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        headers=list(server.headers),
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),  # answers are under the deadline of their call
        trust_env=False,
    )
    await stack.enter_async_context(client)
    return streamable_http_client(server.url, http_client=client, max_sse_event_size=DEFAULT_MAX_OUTPUT)


def _stdio(server: McpServer, tail: _Tail, stack: AsyncExitStack) -> Any:
    from mcp import StdioServerParameters
    from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS, stdio_client

    command, *arguments = _exact_environment(server, DEFAULT_INHERITED_ENV_VARS)
    parameters = StdioServerParameters(
        command=command, args=arguments, env=dict(server.env), cwd=server.cwd or None
    )
    stack.callback(tail.close)
    return stdio_client(parameters, errlog=tail.open())


def _exact_environment(server: McpServer, added: list[str]) -> list[str]:
    """The command, freed of what the SDK adds to the environment it is given."""
    program, *arguments = server.command
    found = shutil.which(os.path.join(server.cwd, program) if "/" in program else program, path=_path(server))
    if found is None:
        raise FileNotFoundError
    extra = [name for name in added if name not in server.env and name in os.environ]
    env = shutil.which("env", path="/usr/bin:/bin")
    if not extra or env is None or "=" in found:  # `env` would take a name with '=' for a variable
        return [found, *arguments]
    return [env, *(word for name in extra for word in ("-u", name)), found, *arguments]


def _path(server: McpServer) -> str:
    return server.env.get("PATH", os.defpath)


class _Tail:
    """The end of what a server writes to stderr."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._read: int | None = None
        self._write: Any = None

    def open(self) -> Any:
        self._read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._write = open(write, "w")  # noqa: SIM115  # closed as soon as the server has its own
        asyncio.get_running_loop().add_reader(self._read, self._take)
        return self._write

    def only_theirs(self) -> None:
        """The server has started: our copy of its end would hide that it has closed it."""
        if self._write is not None:
            self._write.close()
            self._write = None

    def close(self) -> None:
        self.only_theirs()
        if self._read is not None:
            self._take()
        if self._read is not None:
            self._stop()

    def text(self) -> str:
        if self._read is not None:
            self._take()
        return self._kept.decode("utf-8", "replace")

    def _take(self) -> None:
        assert self._read is not None
        try:
            piece = os.read(self._read, MAX_STDERR)
        except BlockingIOError:
            return
        if not piece:
            self._stop()
        self._kept += piece
        del self._kept[:-MAX_STDERR]

    def _stop(self) -> None:
        assert self._read is not None
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        self._read = None
