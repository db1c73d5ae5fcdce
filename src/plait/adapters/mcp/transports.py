"""Transports to an MCP server: over the pipes of a process, or over HTTP.

The SDK speaks the protocol; a transport gives it two streams of messages. The guardian starts a
server process like any other: it ends, with all that it started, when the connection is closed or
Plait dies. Memory is bounded, whatever a server sends.

`trouble` says why a transport gave up.

The SDK takes half a second to import, so this module is imported with the first connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import Thread

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from plait.adapters.http.connect import Resolve, not_public
from plait.adapters.http.wire import Target
from plait.adapters.process import guardian_client, guardian_process
from plait.adapters.process import guardian_protocol as guardian
from plait.core.errors import GuardianError, MachineError, ProcessError, RequestError
from plait.core.grace import grace_seconds
from plait.core.hints import Any, Final, Protocol, TypeAlias
from plait.core.os_errors import start_error
from plait.core.records import dataclass
from plait.tools.invocation import DEFAULT_MAX_OUTPUT, McpServer

MAX_MESSAGE: Final = DEFAULT_MAX_OUTPUT
"""Bytes of one message of a server."""
MAX_STDERR: Final = 64 << 10
"""Bytes that are kept of the end of a server's stderr."""
EXIT_SECONDS: Final = 0.5
"""Seconds in which a server may end by itself after its input is closed; then it is ended."""
EOF_GRACE: Final = 2.0
"""Seconds to read output that other processes keep open after the exit."""
CONNECT_SECONDS: Final = 30.0
LAST_READS: Final = 17
"""Reads of 64 KiB; more than a pipe holds."""
PIECE: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """Why a server is gone, without quoting it."""

    why: str
    fix: str
    by_us: bool = False
    """Plait has ended it."""
    error: GuardianError | MachineError | None = None
    """The real cause, if it is not the server's fault."""


GiveUp: TypeAlias = Callable[[ConnectionFailure], None]


class Transport(Protocol):
    """The messages to and from a server, and why it ended."""

    @property
    def trouble(self) -> ConnectionFailure | None: ...

    def streams(self) -> AbstractAsyncContextManager[Any]: ...

    def last_words(self) -> str: ...

    async def end(self) -> None: ...


def too_long(what: str) -> ConnectionFailure:
    return ConnectionFailure(
        f"{what} of more than {MAX_MESSAGE:,} bytes ({MAX_MESSAGE >> 20} MiB)",
        "have the server send less at once: a page of the results, or the name of a file",
        by_us=True,
    )


# ── a process ────────────────────────────────────────────────────────────


class Stdio:
    """A server process. `on_end` is called after its last message."""

    def __init__(self, server: McpServer, on_end: Callable[[], None]) -> None:
        self.trouble: ConnectionFailure | None = None
        self._on_end = on_end
        self._program = server.command[0]
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._reading: asyncio.Task[None] | None = None
        self._job, self._stdin, self._stdout, stderr = _start_server(server)
        self._loop.add_reader(self._job.fileno(), self._receive_reports)
        self._tail = _Tail(stderr)
        self._check_guardian()

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        self._reading = asyncio.create_task(self._read(to_session))
        if self._exited.done():
            self._stop_reading_soon()
        writing = asyncio.create_task(self._write(from_session, to_session))
        try:
            yield incoming, outgoing
        finally:
            self._reading.cancel()
            writing.cancel()
            await asyncio.gather(self._reading, writing, return_exceptions=True)
            for stream in (to_session, incoming, outgoing, from_session):
                stream.close()

    def last_words(self) -> str:
        return self._tail.text()

    async def end(self) -> None:
        """Close its input; if that does not end it, the guardian ends it and its children."""
        self._loop.add_reader(self._stdout, self._drop)  # a process that blocks cannot end
        try:
            os.close(self._stdin)
            ended = {self._exited, self._over}
            await asyncio.wait(ended, timeout=EXIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not self._over.done():
                self._job.end()
                await asyncio.wait({self._over}, timeout=grace_seconds() + guardian.GIVE_UP + 1)
        finally:
            # Nothing here waits, so that it also happens when we are cancelled.
            self._stop_reports()
            self._job.close()
            self._tail.close()
            self._loop.remove_reader(self._stdout)
            os.close(self._stdout)

    async def _read(self, to_session: Any) -> None:
        lines = _Lines()
        with to_session:
            try:
                while piece := await _read_piece(self._stdout):
                    for line in lines.feed(piece):
                        if (message := _message(line)) is not None:
                            await to_session.send(message)
            except _TooLongError:
                self.trouble = too_long("it sent a message")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the session ended first
            finally:
                self._receive_reports()  # sets `trouble` before `on_end` is called
                self._on_end()

    async def _write(self, from_session: Any, to_session: Any) -> None:
        try:
            async for message in from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await _write_all(self._stdin, text.encode() + b"\n")
        except OSError:  # the server has closed its input
            return
        finally:
            to_session.close()  # so that no caller waits for requests that were not sent

    def _drop(self) -> None:
        if not os.read(self._stdout, PIECE):
            self._loop.remove_reader(self._stdout)

    def _receive_reports(self) -> None:
        if self._over.done():
            return  # the guardian has closed the channel
        try:
            reports = self._job.reports()
        except GuardianError as error:
            self.trouble = ConnectionFailure(error.what, error.fix or "", error=error)
            self._stop_reports()
            return
        for report in reports:
            if report.kind == guardian.EXITED:
                if not self._exited.done():
                    self._exited.set_result(None)
                self._stop_reading_soon()
            elif report.kind == guardian.REFUSED:
                self.trouble = _not_started(self._program, report.number)
                self._stop_reports()
            elif report.kind == guardian.OVER:
                self._stop_reports()

    def _check_guardian(self) -> None:
        """A stopped guardian starts no server and ends none."""
        if not self._over.done():
            self._job.check_guardian()
            self._loop.call_later(guardian_process.CHECK, self._check_guardian)

    def _stop_reading_soon(self) -> None:
        if self._reading is not None:
            # A process that it left running may keep its output open for ever.
            self._loop.call_later(EOF_GRACE, self._reading.cancel)

    def _stop_reports(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
            self._loop.remove_reader(self._job.fileno())


def _start_server(server: McpServer) -> tuple[guardian_client.Job, int, int, int]:
    """The job, and our ends of its stdin, stdout and stderr."""
    opened: list[int] = []
    try:
        for _ in range(3):
            opened += os.pipe2(os.O_CLOEXEC)
        their_in, stdin, stdout, their_out, stderr, their_err = opened
        job = guardian_client.start(
            server.command,
            cwd=server.cwd or None,
            env=server.env,
            stdio=(their_in, their_out, their_err),
        )
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    for fd in (their_in, their_out, their_err):
        os.close(fd)
    for fd in (stdin, stdout, stderr):
        os.set_blocking(fd, False)
    return job, stdin, stdout, stderr


def _not_started(program: str, number: int) -> ConnectionFailure:
    if (limit := start_error(program, number)) is not None:
        return ConnectionFailure(limit.what, limit.fix or "", error=limit)
    if number in (errno.ENOENT, errno.ENOTDIR):
        return ConnectionFailure(
            "there is no such program or folder", "install it, or correct config.server.command"
        )
    if number == errno.EACCES:
        return ConnectionFailure("its program may not be executed", "allow that: chmod +x")
    return ConnectionFailure(
        f"its program cannot be started: {os.strerror(number)}",
        "start it by hand and look at what it says",
    )


def _message(line: bytes) -> SessionMessage | None:
    """A message; None for other lines: some servers print logs to stdout."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


class _TooLongError(Exception):
    """A line is longer than the limit."""


class _Lines:
    """Cuts pieces into lines of limited length."""

    def __init__(self, most: int = MAX_MESSAGE) -> None:
        self._most = most
        self._line = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that are complete with this piece."""
        first, *others = piece.split(b"\n")
        self._begin(first)
        lines: list[bytes] = []
        for other in others:
            lines.append(bytes(self._line))
            self._line.clear()
            self._begin(other)
        return lines

    def _begin(self, part: bytes) -> None:
        if len(self._line) + len(part) > self._most:
            self._line.clear()
            raise _TooLongError
        self._line += part


class _Tail:
    """The end of a server's stderr."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._take)

    def text(self) -> str:
        for _ in range(LAST_READS):
            if not self._take():
                break
        return self._kept.decode("utf-8", "replace")

    def close(self) -> None:
        self.text()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _take(self) -> bool:
        """Read once; False if there is nothing to read."""
        if self._fd < 0:
            return False
        try:
            piece = os.read(self._fd, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._fd)
        self._kept += piece
        del self._kept[:-MAX_STDERR]
        return bool(piece)


async def _read_piece(fd: int) -> bytes:
    # Wait before each read: a server that prints without end must not block the others.
    await _ready(
        asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader, fd
    )
    return os.read(fd, PIECE)


async def _write_all(fd: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            await _ready(loop.add_writer, loop.remove_writer, fd)


async def _ready(watch: Callable[..., object], unwatch: Callable[[int], object], fd: int) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watch(fd, _settle, ready)
    try:
        await ready
    finally:
        unwatch(fd)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ── HTTP ─────────────────────────────────────────────────────────────────


class Http:
    """A server at a url. `public_only`: the url comes from data, so private addresses are refused."""

    def __init__(self, server: McpServer, resolve: Resolve, *, public_only: bool) -> None:
        self.trouble: ConnectionFailure | None = None
        self._server = server
        self._resolve = resolve
        self._public_only = public_only

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        client = httpx2.AsyncClient(
            headers=[("accept-encoding", "identity"), *self._server.headers],
            # No read timeout: each call has a deadline.
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            transport=_Guarded(await self._address(), self._give_up),
            trust_env=False,
        )
        url, most = self._server.url, MAX_MESSAGE
        async with (
            client,
            streamable_http_client(url, http_client=client, max_sse_event_size=most) as streams,
        ):
            yield streams

    def last_words(self) -> str:
        return ""

    async def end(self) -> None:
        """The server goes on without us."""

    def _give_up(self, trouble: ConnectionFailure) -> None:
        self.trouble = trouble

    async def _address(self) -> str | None:
        """A checked address of a host from data: there is no second look-up after the check."""
        if not self._public_only:
            return None
        addresses = await _resolve_host(self._resolve, Target.parse(self._server.url).host)
        kinds = dict.fromkeys(kind for address in addresses if (kind := not_public(address)))
        if kinds:
            raise RequestError(
                f"the MCP server '{self._server.name}' has a {' and a '.join(kinds)} address, "
                "where a url that comes from data may not lead",
                "config.server.url",
                "write scheme and host in the tool's own file if this place is meant",
                code="address-refused",
            )
        return addresses[0]


async def _resolve_host(resolve: Resolve, host: str) -> list[str]:
    # A look-up cannot be interrupted, so it runs in a thread that we need not wait for.
    found: Future[list[str]] = Future()
    Thread(target=_look_up, args=(found, resolve, host), name="plait-look-up", daemon=True).start()
    try:
        addresses = await asyncio.wrap_future(found)
    except (OSError, UnicodeError):
        addresses = []
    if not addresses:
        fix = "check the spelling of the host in config.server.url, the network and its name server"
        raise ProcessError("its host name has no address", fix=fix)
    return addresses


def _look_up(found: Future[list[str]], resolve: Resolve, host: str) -> None:
    if not found.set_running_or_notify_cancel():
        return
    try:
        found.set_result(list(resolve(host)))
    except (OSError, UnicodeError) as error:
        found.set_exception(error)


class _Guarded(httpx2.AsyncHTTPTransport):
    """Sends to a checked address, if there is one, and limits the size of responses."""

    def __init__(self, address: str | None, give_up: GiveUp) -> None:
        super().__init__(trust_env=False)
        self._address = address
        self._give_up = give_up

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._address is not None:
            # Host header and certificate stay those of the name.
            request.extensions = {**request.extensions, "sni_hostname": request.url.host}
            request.url = request.url.copy_with(host=self._address)
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            # Decompressed it could be a thousand times as large before it is counted.
            await response.aclose()
            why = "its answer is packed, which was not asked for"
            self._give_up(
                ConnectionFailure(why, "have the server obey Accept-Encoding: identity", by_us=True)
            )
            raise httpx2.ReadError("a packed answer")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _Limited(response.stream, self._give_up)
        return response


class _Limited(httpx2.AsyncByteStream):
    """A response with one message. The SDK itself limits the events of a stream."""

    def __init__(self, stream: Any, give_up: GiveUp) -> None:
        self._stream = stream
        self._give_up = give_up

    async def __aiter__(self) -> AsyncIterator[bytes]:
        room = MAX_MESSAGE
        async for piece in self._stream:
            room -= len(piece)
            if room < 0:
                self._give_up(too_long("it sent an answer"))
                raise httpx2.ReadError("an answer beyond the limit")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
