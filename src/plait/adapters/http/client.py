"""Send an HTTP request without trusting the URL, the name server, redirects or the response.

One deadline covers everything: look-up, connecting, sending, redirects, pauses between attempts,
and a response that drips. A URL that comes from data, as a value or as a redirect to another
origin, never leads to a private address. The caller's headers never reach another origin.

A complete response is a `PrimitiveResult`, whatever its status. Otherwise there is a
`RequestError`, whose `.code` says why:

    bad-url bad-method bad-header     refused before anything was sent
    address-refused redirect          refused on the way
    name-not-found unreachable tls    no connection: the server does not know of the call
    connection-lost                   broken off: the server may have acted
    deadline too-large encoding       the response took too long, is too big, cannot be decoded
"""

from __future__ import annotations

import atexit
import random
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from itertools import islice
from threading import Lock

from plait.adapters.http import response as responses
from plait.adapters.http.connect import Deadline, Dial, Dialler, Resolve, dial, look_up
from plait.core.backoff import backoff_delays
from plait.core.errors import Problem, RequestError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.tools.invocation import PrimitiveResult, RequestCall

if TYPE_CHECKING:  # `wire` loads httpx2, which takes longer than loading all of Plait
    from httpcore2 import Response

    from plait.adapters.http.wire import Pool, Target

USER_AGENT: Final = "plait"
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
# The server says that it has not acted on the request, so any method may be repeated.
NOT_ACTED_ON: Final = frozenset({408, 425, 429, 503})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
CROSSES_ORIGINS: Final = frozenset({"accept", "accept-language", "user-agent", "content-type"})
# Only the HTTP layer knows these: they say where the message ends, and to which host it goes.
FRAMING: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
    }
    | {"transfer-encoding", "upgrade"}
)

_TOKEN = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_A_VALUE = lazy_pattern(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def send_request(call: RequestCall, *, client: Client | None = None) -> PrimitiveResult:
    return (client or _CLIENT).send(call)


def stream_request(
    call: RequestCall, *, client: Client | None = None
) -> AbstractContextManager[HttpResponse]:
    """A response as it arrives: `with stream_request(call) as response: for piece in response:`."""
    return (client or _CLIENT).stream(call)


class HttpResponse:
    """The head of a response. Iterating over it gives its decoded body in pieces, once."""

    def __init__(self, hop: RequestHop, response: Response, limit: int) -> None:
        from plait.adapters.http.wire import header_map

        self.status = response.status
        self.headers: Mapping[str, str] = header_map(response)
        self.url = str(hop.target.url)
        self.body = b""
        self.attempts = 1
        self._hop = hop
        self._response = response
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        from plait.adapters.http.wire import response_body

        with _errors_located(self._hop):
            encoded = response_body(self._response)
            pieces = responses.decode_body(encoded, self.headers.get("content-encoding", ""))
            yield from responses.limit_bytes(pieces, self._limit)

    def read(self) -> None:
        self.body = b"".join(self)

    def close(self) -> None:
        self._response.close()


@dataclass(frozen=True, slots=True)
class RequestHop:
    """One request of a call; each redirect makes another one."""

    method: str
    target: Target = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes | None = field(repr=False)
    public_only: bool

    @property
    def where(self) -> str:
        return f"{self.method} {self.target.authority}"


class Client:
    """Keeps connections between calls. Safe for threads.

    Clock, sleep, look-up and dialling are parameters for tests.
    """

    def __init__(
        self,
        *,
        resolve: Resolve = look_up,
        dial: Dial = dial,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._resolve = resolve
        self._dial = dial
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        self._tls = tls
        self._pools: dict[tuple[str, bool], Pool] = {}
        self._lock = Lock()

    def send(self, call: RequestCall) -> PrimitiveResult:
        started = self._clock()
        response = self._send_with_retries(call, self._send_and_read)
        return _make_result(call, response, duration=self._clock() - started)

    @contextmanager
    def stream(self, call: RequestCall) -> Iterator[HttpResponse]:
        response = self._send_with_retries(call, self._send)
        try:
            yield response
        finally:
            response.close()

    def close(self) -> None:
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()

    def _send_with_retries(
        self, call: RequestCall, send: Callable[[RequestCall, RequestHop, Deadline], HttpResponse]
    ) -> HttpResponse:
        """Send until the response need not be repeated, or no attempts or no time are left."""
        deadline = Deadline(self._clock() + call.limits.timeout, self._clock)
        first = _first_hop(call)
        retry = call.retry
        delays = islice(
            backoff_delays(retry.backoff, retry.initial_delay, retry.max_delay), retry.attempts - 1
        )
        attempt = 0
        while True:
            attempt += 1
            try:
                response = send(call, first, deadline)
                response.attempts = attempt
                if not _may_repeat_on(response.status, call):
                    return response
                asked = _retry_after(response.headers.get("retry-after", ""), self._now())
                pause = self._pause(delays, deadline, asked=asked)
                if pause is None:
                    return response
                response.close()
            except RequestError as error:
                pause = self._pause(delays, deadline)
                if pause is None or not _may_repeat_after(error, call):
                    raise _after_attempts(error, attempt) from None
            self._sleep(pause)

    def _pause(
        self, delays: Iterator[float], deadline: Deadline, *, asked: float = 0.0
    ) -> float | None:
        """Seconds before the next attempt; None if there is none. `asked`: the pause that
        the server wants.
        """
        delay = next(delays, None)
        if delay is None:
            return None
        pause = asked if asked > 0 else delay * (0.5 + self._jitter() / 2)
        return pause if pause < deadline.remaining else None

    def _send_and_read(
        self, call: RequestCall, first: RequestHop, deadline: Deadline
    ) -> HttpResponse:
        response = self._send(call, first, deadline)
        try:
            response.read()
        finally:
            response.close()
        return response

    def _send(self, call: RequestCall, first: RequestHop, deadline: Deadline) -> HttpResponse:
        """The head of the response, after all redirects that the call allows."""
        hop, followed = first, 0
        while True:
            with _errors_located(hop):
                response = HttpResponse(hop, self._exchange(hop, deadline), call.limits.max_output)
            if (
                not call.max_redirects
                or response.status not in REDIRECTS
                or "location" not in response.headers
            ):
                return response
            response.close()
            with _errors_located(hop):
                _require_redirects_left(followed, call.max_redirects)
                hop = _next_hop(hop, response.status, response.headers["location"])
            followed += 1

    def _exchange(self, hop: RequestHop, deadline: Deadline) -> Response:
        pool = self._pool(hop.target.scheme, public_only=hop.public_only)
        return pool.open(hop.method, hop.target, _headers_on_the_wire(hop), hop.body, deadline)

    def _pool(self, scheme: str, *, public_only: bool) -> Pool:
        from plait.adapters.http.wire import Pool, system_tls

        # One pool per policy: a URL from data must not use a connection to a private address again.
        with self._lock:
            if (scheme, public_only) not in self._pools:
                tls = (self._tls or system_tls()) if scheme == "https" else None
                dialler = Dialler(self._resolve, self._dial, public_only)
                self._pools[scheme, public_only] = Pool(dialler, tls)
            return self._pools[scheme, public_only]


def _first_hop(call: RequestCall) -> RequestHop:
    from plait.adapters.http.wire import Target

    method = call.method.upper()
    if not _TOKEN.fullmatch(method) or method == "CONNECT":
        raise RequestError(
            "the HTTP method cannot be used",
            fix="use GET, POST, PUT, PATCH, DELETE, HEAD or OPTIONS",
            code="bad-method",
        )
    try:
        target = Target.parse(call.url)
    except RequestError as error:
        raise _with_location(error, method) from None
    hop = RequestHop(method, target, call.headers, call.body, call.url_from_data)
    problems = [
        Problem(what, hop.where, fix, code="bad-header")
        for position, (name, value) in enumerate(hop.headers, 1)
        for what, fix in _header_problems(position, name, value)
    ]
    if problems:
        raise RequestError.together(problems)
    return hop


def _header_problems(position: int, name: str, value: str) -> Iterator[tuple[str, str]]:
    if not _TOKEN.fullmatch(name):
        yield (
            f"header {position} has a name that HTTP does not allow",
            "use letters, digits and '-'",
        )
    elif name.lower() in FRAMING:
        yield f"the header '{name}' is written by Plait itself", "remove it"
    elif _NOT_IN_A_VALUE.search(value):
        yield (
            f"the value of the header '{name}' holds a line break or control character",
            "remove that",
        )


def _headers_on_the_wire(hop: RequestHop) -> list[tuple[str, str]]:
    headers = [("host", hop.target.authority)]
    given = {name.lower() for name, _ in hop.headers}
    defaults = [("accept", "*/*"), ("accept-encoding", "gzip"), ("user-agent", USER_AGENT)]
    headers += [(name, value) for name, value in defaults if name not in given]
    headers += [(name, value.strip(" \t")) for name, value in hop.headers]
    if hop.body is not None or hop.method in ("POST", "PUT", "PATCH"):
        headers.append(("content-length", str(len(hop.body or b""))))
    return headers


def _require_redirects_left(followed: int, most: int) -> None:
    if followed >= most:
        raise RequestError(
            f"the server redirects more than {most} times",
            fix="give the URL at which the redirects end, or raise `max_redirects`",
            code="redirect",
        )


def _next_hop(hop: RequestHop, status: int, location: str) -> RequestHop:
    target = _redirect_target(hop, location)
    if (hop.target.scheme, target.scheme) == ("https", "http"):
        raise RequestError(
            "the server redirects from https to http, where anybody could read and change what is "
            "sent",
            fix="give the https URL at which the redirects end",
            code="redirect",
        )
    hop = _as_redirected(hop, status)
    if target.origin == hop.target.origin:
        return replace(hop, target=target)
    return replace(
        hop,
        target=target,
        headers=tuple(
            (name, value) for name, value in hop.headers if name.lower() in CROSSES_ORIGINS
        ),
        # The server chose this origin, not the author. Only https of the same host is an exception.
        public_only=hop.public_only or not _is_upgrade(hop.target, target),
    )


def _redirect_target(hop: RequestHop, location: str) -> Target:
    try:
        return hop.target.join(location)
    except RequestError as error:
        raise RequestError(
            f"the server redirects, and {error.what}",
            fix="give the URL at which the redirects should end",
            code="redirect",
        ) from None


def _as_redirected(hop: RequestHop, status: int) -> RequestHop:
    """The request after a redirect: some become a GET, without body and its headers."""
    becomes_get = status == 303 or (status in (301, 302) and hop.method == "POST")
    if not becomes_get or hop.method in ("GET", "HEAD"):
        return hop
    headers = tuple(
        (name, value) for name, value in hop.headers if not name.lower().startswith("content-")
    )
    return replace(hop, method="GET", body=None, headers=headers)


def _is_upgrade(old: Target, new: Target) -> bool:
    return (old.scheme, old.port) == ("http", 80) and new.origin == ("https", old.host, 443)


def _may_repeat_after(error: RequestError, call: RequestCall) -> bool:
    return error.code == "unreachable" or (error.code == "connection-lost" and _is_repeatable(call))


def _may_repeat_on(status: int, call: RequestCall) -> bool:
    return status in call.retry.statuses and (status in NOT_ACTED_ON or _is_repeatable(call))


def _is_repeatable(call: RequestCall) -> bool:
    return call.method.upper() in IDEMPOTENT or call.retry.any_method


def _retry_after(header: str, now: float) -> float:
    """The seconds that the server asks us to wait, as a number or a date; else 0."""
    if re.fullmatch(r"[0-9]{1,9}", header):
        return float(header)
    try:
        date = parsedate_to_datetime(header)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0


def _make_result(call: RequestCall, response: HttpResponse, *, duration: float) -> PrimitiveResult:
    content = responses.content(response.body, response.headers.get("content-type", ""))
    is_success = 200 <= response.status < 300
    metadata: dict[str, Json] = {
        "status": response.status,
        "headers": responses.display_headers(response.headers),
        "url": responses.display_url(response.url),
        "attempts": response.attempts,
        "base64": content.base64,
    }
    return PrimitiveResult(
        success=is_success and content.broken is None,
        data=content.data,
        error=content.broken if is_success else _status_error(call, response.status),
        duration=duration,
        metadata=metadata,
    )


def _status_error(call: RequestCall, status: int) -> str:
    # Not the server's phrase, which may contain anything.
    phrase = next((f" {known.phrase}" for known in HTTPStatus if known == status), "")
    off = (
        "; redirects are off for this call"
        if status in REDIRECTS and not call.max_redirects
        else ""
    )
    return f"the server answered {status}{phrase}{off}"


@contextmanager
def _errors_located(hop: RequestHop) -> Iterator[None]:
    """Add the request to an error."""
    try:
        yield
    except RequestError as error:
        raise _with_location(error, hop.where) from None


def _with_location(error: RequestError, where: str) -> RequestError:
    return RequestError(error.what, where, error.fix, code=error.code)


def _after_attempts(error: RequestError, attempts: int) -> RequestError:
    if attempts == 1:
        return error
    return RequestError(
        f"{error.what} ({attempts} attempts)", error.where, error.fix, code=error.code
    )


_CLIENT = Client()
atexit.register(_CLIENT.close)
