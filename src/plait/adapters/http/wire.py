"""The only module that knows httpx2: URLs, TLS, and bytes on the wire.

We use httpx2's URL, TLS settings and connection pool, not its client. So no cookies, proxies,
netrc, redirects or decompression happen unless we do them.

Sockets are ours. httpcore2 passes on what it gets as a timeout, so we give it the call's deadline,
and every read and write waits no longer than what is left.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address

import httpcore2
import httpx2

from plait.adapters.http.connect import Deadline, Dialler, timeout_error
from plait.core.errors import InternalError, RequestError
from plait.core.hints import Any, Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass

DEFAULT_PORTS: Final = {"http": 80, "https": 443}

# Seconds. Common servers close idle connections after five; if the server closes a connection while
# we use it, the call is lost.
IDLE_SECONDS: Final = 4.0
IDLE_CONNECTIONS: Final = 32

_AUTHORITY = lazy_pattern(r"[^/?#]*//([^/?#]*)")
_DOT_SEGMENT = lazy_pattern(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_LABEL = lazy_pattern(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Target:
    """The URL of a request: http or https, without user information."""

    url: httpx2.URL

    @classmethod
    def parse(cls, text: str) -> Target:
        if _DOT_SEGMENT.search(_path(text)):
            raise _bad_url(
                "its path holds '.' or '..', which lead to another path than the one written"
            )
        return cls._parse_url(text)

    def join(self, location: str) -> Target:
        """The target of a redirect; it may contain `..`, since the server wrote it."""
        try:
            return self._parse_url(str(self.url.join(location)))
        except (httpx2.InvalidURL, ValueError):
            raise _bad_url("it cannot be read") from None

    @classmethod
    def _parse_url(cls, text: str) -> Target:
        try:
            url = httpx2.URL(text)
        except (httpx2.InvalidURL, ValueError):
            raise _bad_url("it cannot be read") from None
        if url.scheme not in DEFAULT_PORTS:
            raise _bad_url("its scheme is not http or https")
        # Also check the text: a parser that reads the URL differently must not find another host.
        if url.userinfo or "\\" in text or "@" in _authority(text):
            raise _bad_url("it holds a user name or password", fix="send credentials in a header")
        if not _is_host(url.host):
            raise _bad_url("its host is not a name or address")
        if url.port is not None and not 0 < url.port < 65536:
            raise _bad_url("its port is not between 1 and 65535")
        return cls(url)

    @property
    def scheme(self) -> str:
        return self.url.scheme

    @property
    def host(self) -> str:
        return self.url.host

    @property
    def port(self) -> int:
        return self.url.port or DEFAULT_PORTS[self.url.scheme]

    @property
    def origin(self) -> tuple[str, str, int]:
        return (self.scheme, self.host, self.port)

    @property
    def authority(self) -> str:
        return self.url.netloc.decode("ascii")


def system_tls() -> ssl.SSLContext:
    """The certificates that this machine trusts; environment variables are ignored."""
    return httpx2.create_ssl_context(trust_env=False)


class Pool:
    """Open connections of one scheme and one address policy."""

    def __init__(self, dialler: Dialler, tls: ssl.SSLContext | None) -> None:
        self._pool = httpcore2.ConnectionPool(
            ssl_context=tls,
            # No limit: a slow server must not make other threads wait.
            max_connections=None,
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_Backend(dialler),
        )

    def open(
        self,
        method: str,
        target: Target,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
        deadline: Deadline,
    ) -> httpcore2.Response:
        """Send a request and read the head of the response."""
        request = httpcore2.Request(
            method,
            httpcore2.URL(
                scheme=target.scheme,
                host=target.url.raw_host,
                port=target.port,
                target=target.url.raw_path,
            ),
            headers=[(name.encode("ascii"), value.encode("utf-8")) for name, value in headers],
            content=body or b"",
            extensions={"timeout": dict.fromkeys(("connect", "read", "write"), deadline)},
        )
        with _errors_named():
            return self._pool.handle_request(request)

    def close(self) -> None:
        self._pool.close()


def response_body(response: httpcore2.Response) -> Iterator[bytes]:
    """The encoded body."""
    with _errors_named():
        yield from response.iter_stream()


def header_map(response: httpcore2.Response) -> dict[str, str]:
    """Headers by lower-case name; repeated ones are joined, as HTTP allows."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("ascii").lower(), _header_text(raw_value)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _header_text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


@contextmanager
def _errors_named() -> Iterator[None]:
    try:
        yield
    except httpcore2.RemoteProtocolError:
        raise _connection_error("the server broke off, or what it sent is not HTTP") from None
    except httpcore2.LocalProtocolError:
        raise InternalError("a request was built that HTTP does not allow") from None


def _connection_error(what: str) -> RequestError:
    return RequestError(
        what, fix="try again later, or see the log of the server", code="connection-lost"
    )


def _bad_url(why: str, *, fix: str = "give a URL like https://host/path") -> RequestError:
    return RequestError(f"the URL cannot be used: {why}", fix=fix, code="bad-url")


def _authority(text: str) -> str:
    found = _AUTHORITY.match(text)
    return found[1] if found else ""


def _path(text: str) -> str:
    found = _AUTHORITY.match(text)
    return re.split(r"[?#]", text[found.end() if found else 0 :], maxsplit=1)[0]


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            # An interface of this machine does not belong in a URL.
            return IPv6Address(host).scope_id is None
        except ValueError:
            return False
    return len(host) <= 253 and all(
        _LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")
    )


class _Backend(httpcore2.NetworkBackend):
    def __init__(self, dialler: Dialler) -> None:
        self._dialler = dialler

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Deadline | float | None = None,
        local_address: str | None = None,  # noqa: ARG002 - the signature is httpcore2's
        socket_options: object = None,  # noqa: ARG002
    ) -> _Stream:
        sock = self._dialler.connect(host, port, _deadline(timeout))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Stream(sock)


class _Stream(httpcore2.NetworkStream):
    """A socket whose operations wait no longer than the call's deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def read(self, max_bytes: int, timeout: Deadline | float | None = None) -> bytes:
        self._socket.settimeout(_deadline(timeout).require_time_left())
        try:
            return self._socket.recv(max_bytes)
        except TimeoutError:
            raise timeout_error() from None
        except OSError:
            raise _connection_error(
                "the connection broke off before the answer was complete"
            ) from None

    def write(self, buffer: bytes, timeout: Deadline | float | None = None) -> None:
        deadline = _deadline(timeout)
        rest = memoryview(buffer)
        while rest:
            self._socket.settimeout(deadline.require_time_left())
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                raise timeout_error() from None
            except OSError as error:
                # httpcore2 then reads: a server may refuse a long body early, and explain why.
                raise httpcore2.WriteError(str(error)) from None

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: Deadline | float | None = None,
    ) -> _Stream:
        try:
            self._socket.settimeout(_deadline(timeout).require_time_left())
            return _Stream(ssl_context.wrap_socket(self._socket, server_hostname=server_hostname))
        except BaseException as error:
            self._socket.close()
            raise _tls_error(error) from None

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "ssl_object":
                return self._socket if isinstance(self._socket, ssl.SSLSocket) else None
            case "is_readable":
                # Does an idle connection have data? That always means its end.
                if self._socket.fileno() < 0:
                    return True
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                return bool(poll.poll(0))
        return None


def _deadline(timeout: Deadline | float | None) -> Deadline:
    if not isinstance(timeout, Deadline):
        raise InternalError("a request was sent without a deadline")
    return timeout


def _tls_error(error: BaseException) -> BaseException:
    match error:
        case ssl.SSLCertVerificationError():
            return RequestError(
                f"the server's certificate is not trusted: {error.verify_message}",
                fix="check the host, or have this machine trust the certificate's issuer",
                code="tls",
            )
        case TimeoutError():
            return timeout_error()
        case ConnectionError():
            return RequestError(
                "the server closed the connection during the TLS handshake",
                fix="check that the server speaks TLS on this port",
                code="unreachable",
            )
        case OSError() | ValueError():
            return RequestError(
                "the TLS handshake failed",
                fix="check that the server speaks TLS on this port",
                code="tls",
            )
    return error
