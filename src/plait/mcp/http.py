"""Messages over streamable HTTP: one POST each, answered as JSON or as a stream of events.

Each request of the newest revision stands alone, and a client cancels it by leaving.  The older
revisions have sessions: there a client that lost its connection asks for the rest of a stream
(`Last-Event-ID`).  The guard of `httpd` stands before this app; who gets here may use all of it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json
from plait.mcp.catalog import Catalog
from plait.mcp.protocol import (
    HANDSHAKES,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REVISION_KEY,
    STATELESS,
    TOO_MANY,
    UNSUPPORTED_REVISION,
    Id,
    Message,
    ProtocolError,
    make_error,
    make_notification,
    message_id,
    parse_message,
)
from plait.mcp.run_jobs import RunJobs
from plait.mcp.server import LEAVE_SECONDS, MOST_CALLS, Server, most_calls
from plait.mcp.stdio import MOST_WAITING

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PATH: Final = "/mcp"
MOST_SESSIONS: Final = 64
"""The session that was used longest ago ends for a new one."""
MOST_STREAMS: Final = 32
"""Streams of a session that are kept for a client that comes back."""
HEADER_MISMATCH: Final = -32020
JSON_SECONDS: Final = 5.0
"""An answer that takes longer comes as a stream of events."""
PING_SECONDS: Final = 15.0
"""After so much silence a stream sends a comment, so that nothing between takes it for dead."""
_NAMED: Final[Mapping[str, str]] = {
    # method: the parameter that the header Mcp-Name repeats
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_PARAMETER: Final = "x-mcp-header"
"""In the schema of a tool's parameter: `Mcp-Param-…`, the header that repeats the parameter."""
_STATUS: Final[Mapping[int, int]] = {
    # of an error in the newest revision; older ones answer 200
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    INVALID_REQUEST: 400,
    UNSUPPORTED_REVISION: 400,
    HEADER_MISMATCH: 400,
    TOO_MANY: 503,
    INTERNAL_ERROR: 500,
}
_MOST_DIGITS: Final = 18
_OPEN: Final = 0
"""Number of the stream that a client opens by GET."""


class McpApp:
    """An ASGI app."""

    def __init__(
        self, catalog: Catalog, *, answer_within: float, report_bug: Callable[[Exception], object]
    ) -> None:
        self._catalog = catalog
        self._answer_within = answer_within
        self._report_bug = report_bug
        self._runs = RunJobs(catalog, report_bug)
        self._sessions: dict[str, _Session] = {}
        """By id, the one that was used last at the end."""
        self._single: set[Server] = set()
        """Of requests of the newest revision that are being performed."""

    def close(self) -> None:
        """Stop everything that runs, so that it can be resumed."""
        for server in [*self._single, *(session.server for session in self._sessions.values())]:
            server.end()
        self._runs.end(LEAVE_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        request = HttpRequest(scope, receive)
        try:
            response = await self._answer(request)
        except _Refused as refused:
            response = _json(make_error(refused.id, refused.error), refused.status)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: HttpRequest) -> Response:
        if request.url.path != PATH:
            raise _Refused(404, INVALID_REQUEST, f"the endpoint is {PATH}")
        match request.method:
            case "POST":
                return await self._post(request)
            case "GET":
                return self._listen(request)
            case "DELETE":
                return await self._delete(request)
        raise _Refused(405, INVALID_REQUEST, "use POST, GET or DELETE")

    # ── messages of a client ─────────────────────────────────────────────

    async def _post(self, request: HttpRequest) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _Refused(415, INVALID_REQUEST, "a message is application/json")
        if not _accepts(request, "application/json"):
            raise _Refused(406, INVALID_REQUEST, "accept application/json and text/event-stream")
        body = await request.body()
        try:
            message = parse_message(body)
        except ProtocolError as error:
            raise _Refused(400, error.code, error.what) from None
        if _is_stateless(request, message):
            return await self._post_single(request, message, body)
        return await self._post_in_session(request, message, body)

    async def _post_single(self, request: HttpRequest, message: Message, body: bytes) -> Response:
        if "id" not in message or "method" not in message:
            return Response(status_code=202)  # this revision knows no such message
        _require_headers(request, message)
        if message["method"] == "tools/call":
            schema = await asyncio.to_thread(self._find_schema, message["params"].get("name"))
            _require_parameter_headers(request, message, schema)
        id = message_id(message)
        if len(self._single) >= most_calls(message["method"], message.get("params")):
            what = f"{MOST_CALLS} requests are being performed: wait for one"
            raise _Refused(503, TOO_MANY, what, id)
        stream = _Stream(1)
        server = self._make_server(_SingleOutgoing(stream))
        self._single.add(server)
        server.receive(body)

        def leave() -> None:
            self._single.discard(server)
            if not stream.is_over:
                params: dict[str, Json] = {"requestId": id, "reason": "the client has left"}
                gone = make_notification("notifications/cancelled", params)
                server.receive(json.dumps(gone).encode())

        return _Reply(request, stream, leave=leave, has_status=True)

    def _find_schema(self, tool: Json) -> Json:
        """Of the parameters of a tool; None: it is not offered, as the server will say."""
        exposed = self._catalog.get(tool) if isinstance(tool, str) else None
        return exposed and exposed.offer.schema

    async def _post_in_session(
        self, request: HttpRequest, message: Message, body: bytes
    ) -> Response:
        is_first = message.get("method") == "initialize"
        if is_first and "mcp-session-id" not in request.headers:
            session = self._make_session()
        else:
            session = self._session(request)
        if "id" not in message or "method" not in message:
            session.server.receive(body)
            if message.get("method") == "notifications/cancelled":
                session.outgoing.end_cancelled(message.get("params"))
            return Response(status_code=202)
        id = message_id(message)
        if id is None:
            what = "a request has an 'id' (text or a whole number) and a 'method' (text)"
            raise _Refused(400, INVALID_REQUEST, what)
        stream = session.outgoing.open(id)
        if stream is None:
            what = "another request with this id is being performed"
            raise _Refused(400, INVALID_REQUEST, what, id)
        session.server.receive(body)
        return _Reply(request, stream, headers={"mcp-session-id": session.id}, has_ids=True)

    def _make_server(self, outgoing: _SingleOutgoing | _SessionOutgoing) -> Server:
        return Server(
            self._catalog,
            outgoing,
            answer_within=self._answer_within,
            report_bug=self._report_bug,
            runs=self._runs,
        )

    # ── sessions ─────────────────────────────────────────────────────────

    def _make_session(self) -> _Session:
        if len(self._sessions) >= MOST_SESSIONS:
            idle = [one for one in self._sessions.values() if not one.outgoing.is_busy]
            if not idle:
                raise _Refused(503, TOO_MANY, f"{MOST_SESSIONS} sessions are busy: end one")
            del self._sessions[idle[0].id]
        outgoing = _SessionOutgoing()
        session = _Session(secrets.token_urlsafe(24), outgoing, self._make_server(outgoing))
        self._sessions[session.id] = session
        return session

    def _session(self, request: HttpRequest) -> _Session:
        id = request.headers.get("mcp-session-id")
        if id is None:
            what = "send initialize first, and then its Mcp-Session-Id with each message"
            raise _Refused(400, INVALID_REQUEST, what)
        session = self._sessions.pop(id, None)
        if session is None:
            raise _Refused(404, INVALID_REQUEST, "this session has ended: send initialize again")
        self._sessions[id] = session
        revision = request.headers.get("mcp-protocol-version", HANDSHAKES[0])
        if revision not in HANDSHAKES:
            known = ", ".join(HANDSHAKES)
            raise _Refused(400, INVALID_REQUEST, f"MCP-Protocol-Version of a session: {known}")
        return session

    def _listen(self, request: HttpRequest) -> Response:
        """The stream that belongs to no request, or the rest of one that broke."""
        if not _accepts(request, "text/event-stream"):
            raise _Refused(406, INVALID_REQUEST, "accept text/event-stream")
        if "mcp-session-id" not in request.headers:
            raise _Refused(405, INVALID_REQUEST, "only a session has a stream to listen to")
        session = self._session(request)
        headers = {"mcp-session-id": session.id}
        last = request.headers.get("last-event-id")
        if last is None:
            stream, after = session.outgoing.general(), 0
        else:
            number, _, seen = last.partition("-")
            found = session.outgoing.get(number)
            if found is None or not _is_number(seen):
                raise _Refused(404, INVALID_REQUEST, "there is nothing left of this stream")
            stream, after = found, int(seen)
        return _Reply(request, stream, headers=headers, has_ids=True, after=after, at_once=True)

    async def _delete(self, request: HttpRequest) -> Response:
        session = self._session(request)
        del self._sessions[session.id]
        await asyncio.to_thread(session.server.end)
        return Response(status_code=200)


# ── what goes to a client ────────────────────────────────────────────────


class _Stream:
    """Messages about one request; threads write, the event loop reads."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = False
        self._kept: dict[int, Message] = {}
        """By number, in their order."""
        self._missable = deque[int]()
        """Numbers of those that a slow client may miss."""
        self._count = 0
        self._lock = Lock()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def put(self, message: Message, *, may_miss: bool) -> None:
        with self._lock:
            if self.is_over:
                return
            if may_miss and len(self._missable) >= MOST_WAITING:
                self._kept.pop(self._missable.popleft(), None)  # the newest says most
            self._count += 1
            self._kept[self._count] = message
            if may_miss:
                self._missable.append(self._count)
            if "method" not in message:
                self.is_over = True  # the response is the last message
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._changed.set)

    def after(self, seen: int) -> list[tuple[int, Message]]:
        with self._lock:
            return [one for one in self._kept.items() if one[0] > seen]

    async def wait(self, seen: int, seconds: float) -> list[tuple[int, Message]]:
        """What came after `seen`; empty: nothing for so long, or nothing more ever."""
        until = self._loop.time() + seconds
        while not (found := self.after(seen)) and not self.is_over:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                return []
        return found


class _SingleOutgoing:
    """To the client of one request."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def send(self, message: Message, *, may_miss: bool = False, about: Id | None = None) -> None:  # noqa: ARG002
        self._stream.put(message, may_miss=may_miss)

    def close(self, seconds: float) -> None:  # noqa: ARG002 - nothing is buffered here
        self._stream.end()


class _SessionOutgoing:
    """To the client of a session: each message through the stream of its request."""

    def __init__(self) -> None:
        self._streams: dict[int, _Stream] = {}
        self._open: dict[Id, _Stream] = {}
        """By request."""
        self._count = _OPEN
        self._lock = Lock()

    @property
    def is_busy(self) -> bool:
        with self._lock:
            return any(not stream.is_over for stream in self._open.values())

    def open(self, id: Id) -> _Stream | None:
        """The stream of a new request; None: there is one already."""
        with self._lock:
            known = self._open.get(id)
            if known is not None and not known.is_over:
                return None
            self._count += 1
            stream = self._open[id] = self._streams[self._count] = _Stream(self._count)
            over = [(id, one) for id, one in self._open.items() if one.is_over]
            for old, one in over[: max(0, len(self._open) - MOST_STREAMS)]:
                del self._open[old]
                self._streams.pop(one.number, None)
            return stream

    def end_cancelled(self, params: Json) -> None:
        """A cancelled request has no answer, but its stream has an end."""
        id = message_id({"id": params.get("requestId")}) if isinstance(params, dict) else None
        with self._lock:
            stream = self._open.get(id) if id is not None else None
        if stream is not None:
            gone = make_error(id, ProtocolError(INTERNAL_ERROR, "it was cancelled"))
            stream.put(gone, may_miss=False)

    def general(self) -> _Stream:
        """What belongs to no request; whoever listened before has left."""
        with self._lock:
            if (before := self._streams.get(_OPEN)) is not None:
                before.end()
            stream = self._streams[_OPEN] = _Stream(_OPEN)
            return stream

    def get(self, number: str) -> _Stream | None:
        with self._lock:
            return self._streams.get(int(number)) if _is_number(number) else None

    def send(self, message: Message, *, may_miss: bool = False, about: Id | None = None) -> None:
        with self._lock:
            known = self._open.get(about) if about is not None else None
            stream = known or self._streams.get(_OPEN)
        if stream is not None:
            stream.put(message, may_miss=may_miss)

    def close(self, seconds: float) -> None:  # noqa: ARG002 - nothing is buffered here
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.end()


class _Session:
    """A client that has sent `initialize`."""

    def __init__(self, id: str, outgoing: _SessionOutgoing, server: Server) -> None:
        self.id = id
        self.outgoing = outgoing
        self.server = server


class _Reply(Response):
    """JSON if the response comes soon and alone, else a stream of events."""

    def __init__(
        self,
        request: HttpRequest,
        stream: _Stream,
        *,
        headers: Mapping[str, str] | None = None,
        has_ids: bool = False,
        has_status: bool = False,
        after: int = 0,
        at_once: bool = False,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """`has_ids`: events can be asked for again; `has_status`: errors have one of HTTP."""
        self._request = request
        self._stream = stream
        self._more_headers = dict(headers or {})
        self._has_ids = has_ids
        self._has_status = has_status
        self._seen = after
        self._at_once = at_once
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._choose()
            await response(scope, receive, send)
        finally:
            self._leave()

    async def _choose(self) -> Response:
        takes_events = _accepts(self._request, "text/event-stream")
        if not self._at_once:
            waiting = asyncio.ensure_future(self._first(takes_events))
            leaving = asyncio.ensure_future(_wait_for_disconnect(self._request))
            done, _ = await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if waiting not in done:
                waiting.cancel()
                return Response(status_code=499)  # nobody reads it
            if (message := waiting.result()) is not None:
                status = 200
                error = message.get("error")
                if self._has_status and isinstance(error, dict):
                    status = _STATUS.get(error["code"], 200)
                return _json(message, status, self._more_headers)
        headers = {"x-accel-buffering": "no", **self._more_headers}
        return StreamingResponse(self._events(), headers=headers, media_type="text/event-stream")

    async def _first(self, takes_events: bool) -> Message | None:
        """The response, if nothing else comes before it and it comes soon."""
        while True:
            found = await self._stream.wait(self._seen, JSON_SECONDS)
            if takes_events and (not found or "method" in found[0][1]):
                return None
            for number, message in found:
                self._seen = number
                if "method" not in message:
                    return message
            if self._stream.is_over and not self._stream.after(self._seen):
                return make_error(None, ProtocolError(INTERNAL_ERROR, "the session has ended"))

    async def _events(self) -> AsyncIterator[bytes]:
        if self._has_ids:
            # An id before anything else, so that the client can come back from here.
            yield f"id: {self._stream.number}-{self._seen}\ndata:\n\n".encode()
        while True:
            found = await self._stream.wait(self._seen, PING_SECONDS)
            for number, message in found:
                self._seen = number
                id = f"id: {self._stream.number}-{number}\n" if self._has_ids else ""
                yield id.encode() + b"event: message\ndata: " + _dump(message) + b"\n\n"
            if self._stream.is_over and not self._stream.after(self._seen):
                return
            if not found:
                yield b": still here\n\n"


async def _wait_for_disconnect(request: HttpRequest) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    for what in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{what}.complete"})


# ── headers ──────────────────────────────────────────────────────────────


class _Refused(Exception):
    """A message that is answered without a server."""

    def __init__(self, status: int, code: int, what: str, id: Id | None = None) -> None:
        super().__init__(what)
        self.status = status
        self.error = ProtocolError(code, what)
        self.id = id


def _is_stateless(request: HttpRequest, message: Message) -> bool:
    """Does the header or the message name a revision without sessions?"""
    if "mcp-session-id" in request.headers:
        return False
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    if isinstance(meta, dict) and REVISION_KEY in meta:
        return True
    if message.get("method") == "initialize":
        return False
    return request.headers.get("mcp-protocol-version", HANDSHAKES[0]) not in HANDSHAKES


def _require_headers(request: HttpRequest, message: Message) -> None:
    """The headers repeat what the message says, so that what is between can rely on them."""
    id, params = message_id(message), message.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    method = message["method"]
    expected: dict[str, Json] = {"MCP-Protocol-Version": meta.get(REVISION_KEY)}
    if expected["MCP-Protocol-Version"] is None:
        what = f"{method}: name the revision {STATELESS} in params._meta as {REVISION_KEY}"
        raise _Refused(400, INVALID_PARAMS, what, id)
    expected["Mcp-Method"] = method
    named = params.get(_NAMED.get(str(method), ""))
    if named is not None:
        expected["Mcp-Name"] = named
    for header, value in expected.items():
        _require_header(request, header, [value], id)


def _require_parameter_headers(request: HttpRequest, message: Message, schema: Json) -> None:
    """The same for parameters whose schema names a header."""
    arguments = message["params"].get("arguments")
    for token, value in _find_repeated(schema, arguments):
        is_scalar = isinstance(value, str | int | float)
        shown = json.dumps(value) if is_scalar and not isinstance(value, str) else value
        expected = [shown] if is_scalar else []
        _require_header(request, f"Mcp-Param-{token}", expected, message_id(message))


def _find_repeated(schema: Json, value: Json) -> Iterator[tuple[str, Json]]:
    """Yield each name of a header in the schema of an object, with the parameter that it repeats."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for name, one in properties.items() if isinstance(properties, Mapping) else ():
        part = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(one, Mapping) and isinstance(token := one.get(_PARAMETER), str):
            yield token, part
        yield from _find_repeated(one, part)


def _require_header(
    request: HttpRequest, header: str, expected: Sequence[Json], id: Id | None
) -> None:
    """HeaderMismatch unless the header is there once for each of the expected texts."""
    if [_header_text(one) for one in request.headers.getlist(header)] != expected:
        what = f"the header {header} does not say what the message says"
        raise _Refused(400, HEADER_MISMATCH, what, id)


def _header_text(value: str) -> str | None:
    """A header's value; text that no header can hold is written as =?base64?…?=."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode("utf-8")
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < _MOST_DIGITS


def _accepts(request: HttpRequest, kind: str) -> bool:
    given = ",".join(request.headers.getlist("accept")) or "*/*"
    kinds = {one.partition(";")[0].strip().lower() for one in given.split(",")}
    return bool(kinds & {kind, "*/*", f"{kind.partition('/')[0]}/*"})


def _json(message: Message, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_dump(message), status, dict(headers or {}), "application/json")


def _dump(message: Message) -> bytes:
    # Half a character, as of a file that is not UTF-8, would make the message unreadable.
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
