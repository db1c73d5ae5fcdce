"""Send OTLP messages to a collector: one request at a time, each with a limit of time.

A request is never repeated here, follows no redirect and uses no proxy; whoever calls decides what
happens with what was not taken.
"""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from plait.adapters.otel.settings import Endpoint
from plait.core.hints import Final

MOST_ANSWER: Final = 64 * 1024
REFUSALS: Final = frozenset({400, 413, 422})
"""Statuses that speak of the message.  Others speak of the collector or its settings, which may change."""


class NotTaken(Exception):
    """The collector did not take a message; the text says why, and holds no secret."""


class Refused(NotTaken):
    """The collector will not take this message later either: it is wrong or too large for it."""


class Sender:
    """Sends to one endpoint, over one connection where the collector keeps it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._url = urlsplit(endpoint.url)
        self._connection: http.client.HTTPConnection | None = None

    def send(self, message: bytes, timeout: float) -> bytes:
        """Return the collector's answer; NotTaken or Refused if there is none, or not a status of 2xx."""
        seconds = max(0.05, min(timeout, self._endpoint.timeout))
        headers = {
            "user-agent": "plait",
            **dict(self._endpoint.headers),
            "content-type": "application/x-protobuf",
        }
        if self._endpoint.gzip:
            import gzip

            message = gzip.compress(message, 1)
            headers["content-encoding"] = "gzip"
        path = self._url.path or "/"
        target = f"{path}?{self._url.query}" if self._url.query else path
        reused = self._connection is not None
        try:
            try:
                return self._exchange(target, message, headers, seconds)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # The collector had closed an idle connection: it did not see this request.
                if not reused:
                    raise
                self.close()
                return self._exchange(target, message, headers, seconds)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise NotTaken(_reason(error)) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(
        self, target: str, message: bytes, headers: dict[str, str], seconds: float
    ) -> bytes:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect(seconds)
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(seconds)
        with _TimeLimit(connection.sock, seconds):
            connection.request("POST", target, message, headers)
            answer = connection.getresponse()
            body = answer.read(MOST_ANSWER)
        if answer.will_close or not answer.isclosed():
            self.close()
        if not 200 <= answer.status < 300:
            kind = Refused if answer.status in REFUSALS else NotTaken
            raise kind(f"it answered {answer.status}")
        return body

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=seconds)
        import ssl

        endpoint = self._endpoint
        try:
            tls = ssl.create_default_context(cafile=endpoint.certificate or None)
        except OSError as error:
            raise _unreadable("CERTIFICATE", error, "it holds no certificate") from None
        if endpoint.client_certificate:
            try:
                tls.load_cert_chain(endpoint.client_certificate, endpoint.client_key or None)
            except OSError as error:
                files = "CLIENT_CERTIFICATE or …_CLIENT_KEY"
                why = "it holds no certificate with its key"
                raise _unreadable(files, error, why) from None
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=tls)


class _TimeLimit:
    """Ends an exchange that takes longer; TimeoutError.

    The time limit of a socket is for one read, and a server may send a byte every second.
    """

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._timer.cancel()
        if error is not None and self._is_over:
            raise TimeoutError from None

    def _end(self) -> None:
        self._is_over = True
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


def _unreadable(files: str, error: OSError, otherwise: str) -> NotTaken:
    # An error of OpenSSL is one of the system, too, but its text is for the authors of OpenSSL.
    is_plain = type(error).__module__ == "builtins" and error.strerror
    why = str(error.strerror).lower() if is_plain else otherwise
    return NotTaken(f"the file in OTEL_EXPORTER_OTLP_{files} cannot be read: {why}")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if untrusted := getattr(error, "verify_message", ""):  # of ssl, which may not be loaded
        return f"its certificate is not trusted: {untrusted}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"the exchange failed ({type(error).__name__})"
