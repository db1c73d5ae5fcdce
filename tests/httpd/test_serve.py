"""A real server on loopback: how it starts and ends, and what it does with odd connections."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from httpd.ask import PASSWORD, connect, read_all, request, serving
from plait.core.errors import InputError, PlaitError
from plait.core.extras import install_extra
from plait.httpd.guard import Limits
from plait.httpd.listen import Listen, Tls
from plait.httpd.serve import HttpServer, require_web


def status(data: bytes) -> int:
    return int(data.split(b" ", 2)[1])


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return read_all(connection)


CLOSE = "Connection: close"


def test_a_request_is_answered_without_naming_the_server() -> None:
    with serving() as server, connect(server) as connection:
        answer = exchange(connection, request(server, CLOSE))
    assert status(answer) == 200
    assert b"\r\nserver:" not in answer.lower()


def test_a_taken_port_says_what_to_do() -> None:
    with serving() as server, pytest.raises(PlaitError) as caught:
        HttpServer(None, Listen(port=server.port), report_bug=print)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"port {server.port} of 127.0.0.1 is taken\n"
        "fix: end the program that has it, or give another port (0: any)"
    )


def test_an_address_of_another_machine_says_what_to_do() -> None:
    with pytest.raises(PlaitError) as caught:
        HttpServer(None, Listen("192.0.2.1", password=PASSWORD), report_bug=print)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "this machine does not have the address 192.0.2.1\nfix: ip address lists those it has"
    )


def test_a_link_names_the_server_and_works_once() -> None:
    with serving() as server:
        link = server.make_link("/runs/7?a=b")
        assert link.startswith(f"http://127.0.0.1:{server.port}/runs/7?a=b&token=")
        target = link.removeprefix(f"http://127.0.0.1:{server.port}")
        statuses = []
        for _ in range(2):
            with connect(server) as connection:
                lines = [f"GET {target} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", CLOSE, "", ""]
                statuses.append(status(exchange(connection, "\r\n".join(lines).encode())))
    assert statuses == [303, 401]


SLOW = Limits(header_seconds=0.2, write_seconds=0.2, body_seconds=0.2, idle_seconds=1)
UNFINISHED = [
    b"",
    b"GET / HT",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
]


@pytest.mark.parametrize("data", UNFINISHED)
def test_a_request_that_does_not_arrive_is_ended(data: bytes) -> None:
    with serving(limits=SLOW) as server, connect(server) as connection:
        assert exchange(connection, data) == b""


def test_a_second_request_that_does_not_arrive_is_ended() -> None:
    with serving(limits=SLOW) as server, connect(server) as connection:
        answer = exchange(connection, request(server) + b"GET / HT")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_body_that_does_not_arrive_is_ended() -> None:
    with serving(limits=SLOW) as server, connect(server) as connection:
        data = request(server, "Content-Length: 10", first="POST / HTTP/1.1") + b"12345"
        assert status(exchange(connection, data)) == 408


def test_a_client_that_does_not_read_is_ended() -> None:
    from threading import Event

    over = Event()

    async def endless(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            for _ in range(10_000):
                await send(
                    {"type": "http.response.body", "body": b"x" * 100_000, "more_body": True}
                )
        finally:
            over.set()

    with serving(endless, limits=SLOW) as server, connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request(server))
        assert over.wait(30)


def test_idle_connections_do_not_block_others() -> None:
    with serving(limits=Limits(connections=8)) as server, ExitStack() as opened:
        idle = [opened.enter_context(connect(server)) for _ in range(40)]
        with connect(server) as connection:
            assert status(exchange(connection, request(server, CLOSE))) == 200
        assert read_all(idle[0]) == b""  # the oldest had to go


def test_more_requests_than_places_are_refused() -> None:
    with serving(limits=Limits(connections=4)) as server, ExitStack() as opened:
        busy = [opened.enter_context(connect(server)) for _ in range(4)]
        for connection in busy:  # a body is missing, so each is being answered
            data = request(
                server, "Content-Length: 1", "Expect: 100-continue", CLOSE, first="POST / HTTP/1.1"
            )
            connection.sendall(data)
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        with connect(server) as connection:
            assert read_all(connection).endswith(b"\r\n\r\ntoo many open connections\n")
        busy[0].sendall(b"x")
        assert status(read_all(busy[0])) == 200
        with connect(server) as connection:
            assert status(exchange(connection, request(server, CLOSE))) == 200


ODD = [
    b"\x16\x03\x01\x02\x00\x01\x00",                                        # TLS to a plain port
    b"\x00" * 100,
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    b"GET /\r\nX: HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000,
    b"GET /" + b"a" * 100_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("data", ODD)
def test_an_odd_request_is_refused(data: bytes) -> None:
    with serving(limits=SLOW) as server, connect(server) as connection:
        answer = exchange(connection, data)
        assert answer == b"" or status(answer) >= 400
        with connect(server) as another:
            assert status(exchange(another, request(server, CLOSE))) == 200


# ── TLS ──────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A certificate for 127.0.0.1."""
    from datetime import datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "plait")])
    now = datetime.now()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(secret)
    return Tls(str(folder / "cert.pem"), str(folder / "key.pem"))


def test_tls(tls: Tls) -> None:
    context = ssl.create_default_context(cafile=tls.certificate)
    with serving(listen=Listen(tls=tls)) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        with context.wrap_socket(connect(server), server_hostname="127.0.0.1") as connection:
            assert status(exchange(connection, request(server, CLOSE))) == 200
        with connect(server) as connection:
            assert exchange(connection, request(server, CLOSE)) == b""


def test_wrong_certificates_say_what_to_do(tls: Tls, tmp_path: Path) -> None:
    def message(given: Tls) -> str:
        with pytest.raises(PlaitError) as caught:
            HttpServer(None, Listen(tls=given), report_bug=print)  # type: ignore[arg-type]
        return str(caught.value)

    missing = str(tmp_path / "none.pem")
    assert message(Tls(missing, tls.key)) == (
        f"{missing}: cannot be read: No such file or directory\nfix: check --tls-cert and --tls-key"
    )
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    assert message(Tls(str(empty), tls.key)).startswith(
        f"{empty}: it and {tls.key} are not a certificate and its key without passphrase"
    )


# ── the end ──────────────────────────────────────────────────────────────

SERVER = """
import asyncio
from plait.httpd.listen import Listen
from plait.httpd.serve import HttpServer

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"data: 1\\n\\n", "more_body": True})
    await asyncio.Event().wait()

server = HttpServer(app, Listen(), report_bug=print)
server.run(lambda: print(server.port, server.token, flush=True))
print("the end")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_even_with_an_open_stream(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port, token = process.stdout.readline().split()
        with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as connection:
            lines = (
                f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
            )
            connection.sendall(lines.encode())
            data = b""
            while b"data: 1" not in data:
                data += connection.recv(1000)
            process.send_signal(number)
            out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (out, errors, process.returncode) == ("the end\n", "", 0)


def test_a_server_without_its_packages_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(InputError) as refused:
        require_web()
    assert refused.value.what.startswith("an HTTP server needs a package that is not installed")
    assert (refused.value.fix, refused.value.code) == (install_extra("web"), "no-package")
