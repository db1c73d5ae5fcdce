"""What stands before an app: Host, Origin, who it is, how much, how long, and safe headers.

A request reaches the app only if all of these hold, in this order:

1. It names this server (`Host`), so that no other name can be bound to it (DNS rebinding).
2. Its target and headers are small and plain.
3. No other site sent it (`Origin`, `Sec-Fetch-Site`); another site may only lead a person here.
4. It brings a cookie or bearer token of this start.

The body that the app reads is bounded in size and time.  Each response gets the headers of
`SAFE_HEADERS`, whatever the app says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode

from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.core.records import dataclass
from plait.httpd.access import Access
from plait.httpd.listen import Listen

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFE_HEADERS: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode("ascii")),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer: with that a form of our own page is sent with `Origin: null`.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_OURS: Final = frozenset(name for name, _ in SAFE_HEADERS)
_NOT_FOR_OTHERS: Final = (b"access-control-", b"server", b"set-cookie2")
"""Headers that an app cannot set: nothing here is for another site."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "DELETE"})
_HARMLESS: Final = frozenset({"GET", "HEAD"})
LOGIN: Final = "/login"
_TOKEN: Final = "token"
_MOST_TARGET: Final = 8 << 10
_MOST_PASSWORD: Final = 4 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server.  Sizes are bytes, times are seconds."""

    body: int = 1 << 20
    body_seconds: float = 30.0
    """In which the whole body must arrive."""
    headers: int = 16 << 10
    header_fields: int = 100
    header_seconds: float = 10.0
    """In which a request must begin and its headers arrive."""
    idle_seconds: int = 15
    """Between two requests of one connection."""
    write_seconds: float = 30.0
    """In which a client must read what is sent."""
    connections: int = 256
    streams: int = 64
    """Responses that are event streams, which stay open."""


class Refusal(Exception):
    """An answer instead of the app's."""

    def __init__(self, status: int, what: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(what)
        self.status = status
        self.what = what
        self.headers = headers


class Guard:
    """An ASGI app around another one."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        listen: Listen,
        *,
        port: int,
        limits: Limits | None = None,
        public: Iterable[str] = (),
        stylesheet: str | None = None,
        way_in: str | None = None,
        report_bug: Callable[[Exception], object],
    ) -> None:
        """`public`: paths that need no cookie, as a stylesheet; `stylesheet`: of the login page.

        `way_in`: what a client has to do that nobody knows; None: what a browser has to do.
        """
        self._app = app
        self._access = access
        self._listen = listen
        self._port = port
        self._limits = limits or Limits()
        self._public = frozenset(public)
        self._stylesheet = stylesheet
        self._way_in = way_in or _way_in_for_browsers(access)
        self._report_bug = report_bug
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        exchange = _Exchange(self._limits, receive, send)
        try:
            request = _Request(scope)
            self._require_safe(request)
            answer = await self._let_in(request, exchange)
            if answer is not None:
                await exchange.answer(answer)
                return
            await self._run(scope, exchange)
        except Refusal as refusal:
            await exchange.answer(self._page(refusal, scope))

    async def _run(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, self._counting(exchange))
        except Exception as error:
            if exchange.refusal is None and not exchange.is_gone:
                self._report_bug(error)
                exchange.refusal = Refusal(500, "this is a bug of Plait; the server says where")
            if exchange.has_started:
                raise  # the connection is closed
        finally:
            self._streams -= exchange.is_stream
        if exchange.refusal is not None and not exchange.has_started:
            raise exchange.refusal

    def _counting(self, exchange: _Exchange) -> Send:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_event_stream(message):
                if self._streams >= self._limits.streams:
                    exchange.refusal = _too_many_streams()
                    raise exchange.refusal
                exchange.is_stream = True
                self._streams += 1
            await exchange.send(message)

        return send

    # ── what a request must look like ────────────────────────────────────

    def _require_safe(self, request: _Request) -> None:
        self._require_host(request)
        _require_plain(request, self._limits)
        self._require_own_site(request)

    def _require_host(self, request: _Request) -> None:
        hosts = request.all(b"host")
        allowed = self._hosts(request)
        if len(hosts) != 1 or hosts[0].lower() not in allowed:
            raise Refusal(421, "this server is not the host that the request names")
        request.origin = f"{self._listen.scheme}://{hosts[0].lower()}"

    def _hosts(self, request: _Request) -> set[str]:
        """Every `Host` by which this connection may be meant."""
        names = {_url_host(self._listen.host), *self._listen.names}
        local = (request.scope.get("server") or ("",))[0]
        with suppress(ValueError):  # not an address: a test without a network
            names.add(_url_host(str(ip_address(local))))  # of a server at all addresses
        if self._listen.is_loopback:
            names |= {"localhost", "127.0.0.1", "[::1]"}
        hosts = {f"{name}:{self._port}" for name in names}
        if self._port == (443 if self._listen.tls else 80):
            hosts |= names
        return hosts

    def _require_own_site(self, request: _Request) -> None:
        origins, sites = request.all(b"origin"), request.all(b"sec-fetch-site")
        if any(origin.lower() != request.origin for origin in origins):
            raise Refusal(403, "another site sent this request")
        if all(site in ("same-origin", "none") for site in sites):
            return
        leads_here = (
            request.method in _HARMLESS
            and request.all(b"sec-fetch-mode") == ["navigate"]
            and request.all(b"sec-fetch-dest") == ["document"]
        )
        if not leads_here:
            raise Refusal(403, "another site sent this request")

    # ── who it is ────────────────────────────────────────────────────────

    async def _let_in(self, request: _Request, exchange: _Exchange) -> _Answer | None:
        """An answer if the request ends here; None: the app answers."""
        if request.path in self._public and request.method in _HARMLESS:
            return None
        if self._access.has_password:
            if request.path == LOGIN and request.method == "POST":
                return await self._check_password(request, exchange)
        elif request.method == "GET" and (token := request.query_value(_TOKEN)) is not None:
            return self._exchange_token(request, token)
        self._require_known(request)
        return None

    def _exchange_token(self, request: _Request, token: str) -> _Answer:
        if request.all(b"sec-purpose") or request.all(b"purpose"):
            raise Refusal(403, "a link is not for fetching ahead")
        back = request.target_without(_TOKEN)
        if self._access.use_link_token(token):
            return self._welcome(back)
        if self._access.knows_cookie(request.all(b"cookie")):
            return _Answer(303, b"", [(b"location", back)])
        raise Refusal(401, "this link was used already, or is of an earlier start")

    async def _check_password(self, request: _Request, exchange: _Exchange) -> _Answer:
        address = request.client
        if not request.all(b"origin"):
            raise Refusal(403, "the login form of this server sends an Origin")
        fields = dict(parse_qsl((await exchange.read(_MOST_PASSWORD)).decode("utf-8", "replace")))
        self._require_guess(address)  # not before: bodies of many requests may wait
        if not self._access.knows_bearer(fields.get("password", "")):
            self._access.note_wrong(address)
            raise Refusal(401, "the password is wrong")
        return self._welcome(b"/")

    def _require_known(self, request: _Request) -> None:
        bearers = [one for one in request.all(b"authorization") if one[:7].lower() == "bearer "]
        if bearers:
            self._require_guess(request.client)
            if len(bearers) == 1 and self._access.knows_bearer(bearers[0][7:].strip()):
                return
            if self._access.has_password:
                self._access.note_wrong(request.client)
            raise Refusal(401, "the bearer token is wrong", (b"www-authenticate", b"Bearer"))
        if not self._access.knows_cookie(request.all(b"cookie")):
            raise Refusal(401, self._way_in, (b"www-authenticate", b"Bearer"))
        # A browser adds a cookie by itself, so a cookie alone does not say who asks for a change.
        if request.method not in _HARMLESS and not request.all(b"origin"):
            raise Refusal(
                403, "a request that changes something needs an Origin, or a bearer token"
            )

    def _require_guess(self, address: str) -> None:
        if self._access.has_password and not self._access.may_guess(address):
            raise Refusal(429, "too many wrong passwords: wait a minute", (b"retry-after", b"60"))

    def _welcome(self, location: bytes) -> _Answer:
        secure = "; Secure" if self._listen.tls else ""
        cookie = f"{self._access.cookie}={self._access.make_cookie()}"
        kept = f"{cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"
        return _Answer(303, b"", [(b"location", location), (b"set-cookie", kept.encode("ascii"))])

    # ── pages of the guard itself ────────────────────────────────────────

    def _page(self, refusal: Refusal, scope: Scope) -> _Answer:
        """A page for a person, a line for a program."""
        headers = [*refusal.headers, (b"connection", b"close")]
        wanted = b"".join(value for name, value in scope["headers"] if name == b"accept")
        if b"text/html" not in wanted:
            kind = (b"content-type", b"text/plain; charset=utf-8")
            return _Answer(refusal.status, f"{refusal.what}\n".encode(), [kind, *headers])
        form = '<p><a href="/">Try again</a></p>' if refusal.status == 401 else ""
        if self._access.has_password and refusal.status in (401, 429):
            form = (
                f'<form method="post" action="{LOGIN}"><label for="password">Password</label> '
                '<input id="password" name="password" type="password" '
                'autocomplete="current-password" required autofocus> '
                "<button>Log in</button></form>"
            )
        sheet = ""
        if self._stylesheet:
            sheet = f'<link rel="stylesheet" href="{escape(self._stylesheet)}">'
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Plait</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{sheet}</head>'
            f"<body><main><h1>Plait</h1><p>{escape(refusal.what)}</p>{form}</main></body></html>"
        )
        kind = (b"content-type", b"text/html; charset=utf-8")
        return _Answer(refusal.status, page.encode(), [kind, *headers])


def _way_in_for_browsers(access: Access) -> str:
    if access.has_password:
        return "this server needs its password"
    return "open the link that the server printed; Enter in its terminal prints a new one"


def _too_many_streams() -> Refusal:
    return Refusal(503, "too many pages follow runs: close some", (b"retry-after", b"5"))


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"the body has more than {most} bytes")


def _require_plain(request: _Request, limits: Limits) -> None:
    headers = request.scope["headers"]
    size = sum(len(name) + len(value) for name, value in headers)
    if size > limits.headers or len(headers) > limits.header_fields:
        raise Refusal(431, "the headers are too large")
    if any(
        not length.isdigit() or int(length) > limits.body
        for length in request.all(b"content-length")
    ):
        raise _too_large(limits.body)
    if request.method not in _METHODS:
        raise Refusal(405, "this method is not used here", (b"allow", b"GET, HEAD, POST, DELETE"))
    raw = request.raw_path
    if len(raw) + len(request.query) > _MOST_TARGET:
        raise Refusal(414, "the address is too long")
    is_plain = raw.startswith(b"/") and not raw.startswith(b"//") and "\\" not in request.path
    if not is_plain or not request.path.isprintable() or ".." in request.path.split("/"):
        raise Refusal(400, "the address is not a plain path")


def _is_event_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Request:
    """What the guard reads of a request."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path") or self.path.encode("utf-8")
        self.query: bytes = scope["query_string"]
        self.client: str = (scope.get("client") or ("",))[0]
        self.origin = ""
        """Of this server, as the request names it."""

    def all(self, name: bytes) -> list[str]:
        headers: Sequence[tuple[bytes, bytes]] = self.scope["headers"]
        return [value.decode("latin-1").strip() for key, value in headers if key == name]

    def query_value(self, name: str) -> str | None:
        return dict(self._pairs()).get(name)

    def target_without(self, name: str) -> bytes:
        rest = urlencode([(key, value) for key, value in self._pairs() if key != name])
        return self.raw_path + (b"?" + rest.encode("ascii") if rest else b"")

    def _pairs(self) -> list[tuple[str, str]]:
        return parse_qsl(self.query.decode("latin-1"), keep_blank_values=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: Sequence[tuple[bytes, bytes]]


class _Exchange:
    """One request and its response, within the limits."""

    def __init__(self, limits: Limits, receive: Receive, send: Send) -> None:
        self._limits = limits
        self._receive = receive
        self._send = send
        self._left = limits.body
        self._has_body = True
        """Is there more of the body?"""
        self._until: float | None = None
        self.refusal: Refusal | None = None
        """Why the app is no longer heard."""
        self.has_started = False
        self.is_stream = False
        self.is_gone = False
        """Has the client left?"""

    async def receive(self) -> Message:
        if not self._has_body:
            return self._note(await self._receive())
        loop = asyncio.get_running_loop()
        if self._until is None:
            self._until = loop.time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = self._note(await self._receive())
        except TimeoutError:
            return self._refuse(Refusal(408, "the body did not arrive in time"))
        self._left -= len(message.get("body", b""))
        self._has_body = bool(message.get("more_body"))
        if self._left < 0:
            return self._refuse(_too_large(self._limits.body))
        return message

    def _note(self, message: Message) -> Message:
        self.is_gone = self.is_gone or message["type"] == "http.disconnect"
        return message

    def _refuse(self, refusal: Refusal) -> Message:
        self.refusal = refusal
        self._has_body = False
        return {"type": "http.disconnect"}

    async def read(self, most: int) -> bytes:
        """The whole body."""
        body = b""
        while self._has_body:
            message = await self.receive()
            if self.refusal is not None:
                raise self.refusal
            body += message.get("body", b"")
            if len(body) > most:
                raise _too_large(most)
        return body

    async def send(self, message: Message) -> None:
        if self.refusal is not None and not self.has_started:
            return  # the app speaks of a request that it could not read
        if message["type"] == "http.response.start":
            self.has_started = True
            message = {**message, "headers": _safe(message.get("headers", ()))}
        await self._send(message)

    async def answer(self, answer: _Answer) -> None:
        """Send a whole response, unless one has begun."""
        if self.has_started:
            return
        self.has_started = True
        length = (b"content-length", str(len(answer.body)).encode("ascii"))
        start: Mapping[str, Any] = {
            "type": "http.response.start",
            "status": answer.status,
            "headers": _safe([*answer.headers, length]),
        }
        await self._send(dict(start))
        await self._send({"type": "http.response.body", "body": answer.body})


def _safe(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    kept = [
        (name, value)
        for name, value in headers
        if name.lower() not in _OURS and not name.lower().startswith(_NOT_FOR_OTHERS)
    ]
    return [*kept, *SAFE_HEADERS]
