"""Serve an app on uvicorn, behind the guard.

    server = HttpServer(app, listen, report_bug=report)     # binds the port, or says why not
    server.run(lambda: print(server.make_link()))           # until Ctrl-C or `stop`

Nothing is logged: requests may hold what only their sender may know.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

from plait.core.errors import InputError, MachineError
from plait.core.extras import install_extra
from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.httpd.access import Access
from plait.httpd.guard import Guard, Limits
from plait.httpd.listen import Listen

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

_BACKLOG: Final = 1024
_END_SECONDS: Final = 1
"""How long open responses, as event streams, may go on after the server is stopped."""


def require_web() -> None:
    """InputError unless the packages of the extra `web` are installed."""
    try:
        import starlette  # noqa: F401 - only to see whether it is installed
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise InputError(
            f"an HTTP server needs a package that is not installed: {missing.name}",
            fix=install_extra("web"),
            code="no-package",
        ) from None


class HttpServer:
    """Serves one app at one address."""

    def __init__(
        self,
        app: ASGIApp,
        listen: Listen,
        *,
        limits: Limits | None = None,
        public: Iterable[str] = (),
        stylesheet: str | None = None,
        way_in: str | None = None,
        report_bug: Callable[[Exception], object],
    ) -> None:
        """Bind the port.  `public`, `stylesheet` and `way_in`: see `Guard`."""
        require_web()
        self._listen = listen
        self._limits = limits or Limits()
        self._report_bug = report_bug
        if listen.tls:
            _require_certificate(listen)
        self._socket = _bind(listen.host, listen.port)
        self.port: int = self._socket.getsockname()[1]
        prefix = "__Host-" if listen.tls else ""
        # Cookies do not know ports: two servers need two names.
        self._access = Access(password=listen.password, cookie=f"{prefix}plait-{self.port}")
        self._guard = Guard(
            app,
            self._access,
            listen,
            port=self.port,
            limits=self._limits,
            public=public,
            stylesheet=stylesheet,
            way_in=way_in,
            report_bug=report_bug,
        )
        self._server: uvicorn.Server | None = None
        self._is_stopped = False

    @property
    def url(self) -> str:
        """Where the server is, without a secret."""
        host = self._listen.names[0] if self._listen.names else self._listen.host
        shown = f"[{host}]" if ":" in host else host
        return f"{self._listen.scheme}://{shown}:{self.port}"

    @property
    def token(self) -> str | None:
        """The bearer token for programs; None: it is the password."""
        return self._access.token

    def make_link(self, path: str = "/") -> str:
        """An address for a browser; it works once, unless the server has a password."""
        if self._access.has_password:
            return f"{self.url}{path}"
        mark = "&" if "?" in path else "?"
        return f"{self.url}{path}{mark}{urlencode({'token': self._access.make_link_token()})}"

    def run(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Serve until Ctrl-C, SIGTERM or `stop`."""
        server = self._server = _make_server(self, on_ready)
        server.should_exit = self._is_stopped
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.get_loop().set_exception_handler(self._note_problem)
                runner.run(server.serve(sockets=[self._socket]))
        finally:
            self._socket.close()

    def stop(self) -> None:
        """From any thread."""
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True

    def _note_problem(self, _loop: object, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        # Connections that break, and handshakes that fail, are not ours.
        if isinstance(problem, Exception) and not isinstance(problem, OSError):
            self._report_bug(problem)


def _make_server(server: HttpServer, on_ready: Callable[[], object]) -> uvicorn.Server:
    import uvicorn

    from plait.httpd.connections import make_protocol

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_ready()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """As uvicorn's, but a signal that ended the server is not raised again."""
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            signals = (signal.SIGINT, signal.SIGTERM)
            before = [(one, signal.signal(one, self.handle_exit)) for one in signals]
            try:
                yield
            finally:
                for one, handler in before:
                    signal.signal(one, handler)

    listen, limits = server._listen, server._limits
    tls = listen.tls
    return Server(
        uvicorn.Config(
            server._guard,
            http=make_protocol(limits),
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,  # nothing that a client says about addresses is believed
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=_END_SECONDS,
            h11_max_incomplete_event_size=limits.headers,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
    )


class _Loop(asyncio.SelectorEventLoop):
    """Gives a TLS handshake the time that headers have, not a minute."""

    async def create_server(self, *args: Any, **how: Any) -> asyncio.Server:
        if how.get("ssl") is not None:
            how["ssl_handshake_timeout"] = Limits().header_seconds
        return await super().create_server(*args, **how)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
        bound.set_inheritable(False)
    except OSError as error:
        bound.close()
        raise _bind_error(host, port, error) from None
    return bound


def _bind_error(host: str, port: int, error: OSError) -> MachineError:
    where = f"port {port} of {host}"
    match error.errno:
        case errno.EADDRINUSE:
            what, fix = (
                f"{where} is taken",
                "end the program that has it, or give another port (0: any)",
            )
        case errno.EACCES | errno.EPERM:
            what, fix = f"you may not listen at {where}", "give a port above 1023"
        case errno.EADDRNOTAVAIL:
            what, fix = (
                f"this machine does not have the address {host}",
                "ip address lists those it has",
            )
        case _:
            what = f"{where} cannot be used: {error.strerror or error}"
            fix = "give another address or port"
    return MachineError(what, fix=fix, code="port-taken")


def _require_certificate(listen: Listen) -> None:
    assert listen.tls is not None
    certificate, key = listen.tls.certificate, listen.tls.key
    for path in (certificate, key):
        with contextlib.ExitStack() as opened:
            try:
                opened.enter_context(open(path, "rb"))
            except OSError as error:
                what = f"cannot be read: {error.strerror or error}"
                raise InputError(
                    what, path, "check --tls-cert and --tls-key", code="bad-tls"
                ) from None
    try:
        # An empty passphrase, so that nobody is asked for one.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, "")
    except (ssl.SSLError, ValueError) as error:
        what = (
            f"it and {key} are not a certificate and its key without passphrase ({_reason(error)})"
        )
        raise InputError(what, certificate, "give both in PEM form", code="bad-tls") from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or type(error).__name__
