"""How messages reach an MCP server: over the pipes of a process that the guardian keeps, or over
HTTP.

The SDK speaks the protocol; what it is given here are the two streams of
messages.  A server that is a process belongs to the guardian like any other: its
group is its own, and it ends with all that it has started when the connection is
closed or Plait dies, however deaf it is.  Whatever a server sends, memory is bounded.

`trouble` says why a transport gave up, for whoever waits for an answer.

The SDK takes half a second to load, so this module is imported with the first connection.
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
from plait.adapters.process import guardian, jobs
from plait.core.errors import GuardianError, MachineError, ProcessError, RequestError
from plait.core.grace import grace_seconds
from plait.core.hints import Any, Final, Protocol, TypeAlias
from plait.core.machine import start_error
from plait.core.records import dataclass
from plait.tools.invocation import DEFAULT_MAX_OUTPUT, McpServer

MAX_MESSAGE: Final = DEFAULT_MAX_OUTPUT
"""Bytes of one message of a server."""
MAX_STDERR: Final = 64 << 10
"""Bytes of the end of what a server writes to stderr."""
EXIT_SECONDS: Final = 0.5
"""In which a server may end by itself, once its input is closed; then the guardian asks, and
forces.
"""
EOF_GRACE: Final = 2.0
"""Seconds that output which others hold open is read after the server has ended."""
CONNECT_SECONDS: Final = 30.0
LAST_READS: Final = 17
"""More than a pipe holds, at 64 KiB each."""
PIECE: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """Why a server is gone, in words that quote nobody."""

    why: str
    fix: str
    by_us: bool = False
    """We have ended it."""
    no_fault: GuardianError | MachineError | None = None
    """Not the server's: it ended with whatever the guardian ran, or there was no room for it."""


GiveUp: TypeAlias = Callable[[ConnectionFailure], None]


class Transport(Protocol):
    """The streams of messages to and from a server, and what is known of its end."""

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
    """A server that was started by its command; `on_end` is told that it will say no more."""

    def __init__(self, server: McpServer, on_end: Callable[[], None]) -> None:
        self.trouble: ConnectionFailure | None = None
        self._on_end = on_end
        self._program = server.command[0]
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._reading: asyncio.Task[None] | None = None
        self._job, self._stdin, self._stdout, stderr = _start_server(server)
        self._loop.add_reader(self._job.fileno(), self._hear)
        self._tail = _Tail(stderr)
        self._look()

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        self._reading = asyncio.create_task(self._read(to_session))
        if self._exited.done():
            self._read_no_longer_than_needed()
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
        """Close its input; if it does not end by that, the guardian ends it and all that it has
        started.
        """
        self._loop.add_reader(self._stdout, self._drop)  # who blocks on a full pipe cannot end
        try:
            os.close(self._stdin)
            ended = {self._exited, self._over}
            await asyncio.wait(ended, timeout=EXIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not self._over.done():
                self._job.end()
                await asyncio.wait({self._over}, timeout=grace_seconds() + guardian.GIVE_UP + 1)
        finally:
            # Nothing here waits: also when we are cancelled, the guardian hears that nobody wants
            # the server.
            self._hear_no_more()
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
                return  # the session has gone first
            finally:
                self._hear()  # before anybody learns that it said its last: why it did
                self._on_end()

    async def _write(self, from_session: Any, to_session: Any) -> None:
        try:
            async for message in from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await _write_all(self._stdin, text.encode() + b"\n")
        except OSError:  # it does not listen any more
            return
        finally:
            to_session.close()  # or requests that cannot be sent would be waited for

    def _drop(self) -> None:
        if not os.read(self._stdout, PIECE):
            self._loop.remove_reader(self._stdout)

    def _hear(self) -> None:
        if self._over.done():
            return  # the guardian has closed the channel: there is nothing more to hear
        try:
            reports = self._job.reports()
        except GuardianError as error:
            self.trouble = ConnectionFailure(error.what, error.fix or "", no_fault=error)
            self._hear_no_more()
            return
        for report in reports:
            if report.kind == guardian.EXITED:
                self._has_exited()
            elif report.kind == guardian.REFUSED:
                self.trouble = _not_started(self._program, report.number)
                self._hear_no_more()
            elif report.kind == guardian.OVER:
                self._hear_no_more()

    def _look(self) -> None:
        """A guardian that is stopped starts no server, and ends none."""
        if not self._over.done():
            self._job.check_guardian()
            self._loop.call_later(jobs.CHECK, self._look)

    def _has_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)
        self._read_no_longer_than_needed()

    def _read_no_longer_than_needed(self) -> None:
        if self._reading is not None:
            # What it has left running may hold its output open for ever.
            self._loop.call_later(EOF_GRACE, self._reading.cancel)

    def _hear_no_more(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
            self._loop.remove_reader(self._job.fileno())


def _start_server(server: McpServer) -> tuple[jobs.Job, int, int, int]:
    """The job, and our ends of its stdin, stdout and stderr."""
    opened: list[int] = []
    try:
        for _ in range(3):
            opened += os.pipe2(os.O_CLOEXEC)
        their_in, stdin, stdout, their_out, stderr, their_err = opened
        job = jobs.start(
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
        return ConnectionFailure(limit.what, limit.fix or "", no_fault=limit)
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
    """A message, or None for what is none: some servers print to stdout what belongs to stderr."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


class _TooLongError(Exception):
    """A line goes beyond the limit."""


class _Lines:
    """Cuts pieces into lines; keeps the beginning of one line, and no more of it than a message may
    have.
    """

    def __init__(self, most: int = MAX_MESSAGE) -> None:
        self._most = most
        self._begun = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that are complete with this piece."""
        first, *others = piece.split(b"\n")
        self._begin(first)
        ended: list[bytes] = []
        for other in others:
            ended.append(bytes(self._begun))
            self._begun.clear()
            self._begin(other)
        return ended

    def _begin(self, part: bytes) -> None:
        if len(self._begun) + len(part) > self._most:
            self._begun.clear()
            raise _TooLongError
        self._begun += part


class _Tail:
    """The end of what a server writes to stderr, however much that is."""

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
        """Read once; false if there is nothing to read."""
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
    # We wait before each read, also when there is more: who prints without end must not keep others
    # waiting.
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
    """A server at a url; `public_only`: the url comes from data, and may lead to no private
    address.
    """

    def __init__(self, server: McpServer, resolve: Resolve, *, public_only: bool) -> None:
        self.trouble: ConnectionFailure | None = None
        self._server = server
        self._resolve = resolve
        self._public_only = public_only

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        client = httpx2.AsyncClient(
            headers=[("accept-encoding", "identity"), *self._server.headers],
            # No limit for reading: answers are under the deadline of their call.
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
        """It lives on without us."""

    def _give_up(self, trouble: ConnectionFailure) -> None:
        self.trouble = trouble

    async def _address(self) -> str | None:
        """The address at which a host from data was judged; nobody asks the name server again after
        that.
        """
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
    # A look-up cannot be interrupted: it gets a thread of its own, for which nobody has to wait.
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
    """Sends to the address that was judged, if one was, and reads answers of bounded size."""

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
            # Unpacked it could be a thousand times as large before anybody counts.
            await response.aclose()
            why = "its answer is packed, which was not asked for"
            self._give_up(
                ConnectionFailure(why, "have the server obey Accept-Encoding: identity", by_us=True)
            )
            raise httpx2.ReadError("a packed answer")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _AtMost(response.stream, self._give_up)
        return response


class _AtMost(httpx2.AsyncByteStream):
    """An answer that is one message; the SDK itself bounds the events of a stream."""

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
