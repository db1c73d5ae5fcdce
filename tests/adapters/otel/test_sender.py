"""A request to a collector has one limit of time, whatever the collector sends."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.http.test_client import CERTIFICATE, KEY
from plait.adapters.otel.sender import NotTaken, Sender
from plait.adapters.otel.settings import Endpoint

Answer = Callable[[socket.socket], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    one, _ = listening.accept()
                except OSError:
                    return
                with one:
                    try:
                        while not one.recv(4096).endswith(b"message"):
                            pass
                        answer(one)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def wait_for_more(one: socket.socket) -> None:
    while True:
        one.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        threading.Event().wait(0.01)


def byte_by_byte(one: socket.socket) -> None:
    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n")
    while True:
        one.sendall(b"x")
        threading.Event().wait(0.01)


def nothing(one: socket.socket) -> None:
    while one.recv(4096):
        pass


WRONG: list[tuple[Answer, str]] = [
    (nothing,                                                    "it did not answer in time"),
    (wait_for_more,                                              "it did not answer in time"),
    (lambda one: one.sendall(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"),                      "it answered 503"),
    (lambda one: one.sendall(b"HTTP/1.1 307 No\r\nLocation: http://a\r\nContent-Length: 0\r\n\r\n"), "it answered 307"),
    (lambda one: one.sendall(b"\0\xff\n"),                       "the exchange failed (BadStatusLine)"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "why"), WRONG)
def test_what_a_collector_does_wrong_is_named(answer: Answer, why: str) -> None:
    with server(answer) as url, pytest.raises(NotTaken) as caught:
        Sender(Endpoint(url, timeout=0.3)).send(b"message", 30.0)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    "answer",
    [byte_by_byte, lambda one: one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")],
    ids=["never complete", "closed"],
)
def test_an_answer_that_is_cut_off_counts_by_its_status(answer: Answer) -> None:
    with server(answer) as url:
        assert set(Sender(Endpoint(url, timeout=0.3)).send(b"message", 30.0)) == {ord("x")}


def test_the_next_message_goes_over_a_new_connection_after_an_answer_that_was_cut_off() -> None:
    with server(lambda one: one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")) as url:
        sender = Sender(Endpoint(url, timeout=5.0))
        assert [sender.send(b"message", 30.0) for _ in range(2)] == [b"x", b"x"]


# ── TLS ──────────────────────────────────────────────────────────────────

FILES = [
    # name and text of the file                       what cannot be read
    ("certificate",        "missing.pem", "the file in OTEL_EXPORTER_OTLP_CERTIFICATE cannot be read: no such file or directory"),
    ("certificate",        "text.pem",    "the file in OTEL_EXPORTER_OTLP_CERTIFICATE cannot be read: it holds no certificate"),
    ("client_certificate", "missing.pem", "the file in OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE or …_CLIENT_KEY cannot be read: no such file or directory"),
    ("client_certificate", "text.pem",    "the file in OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE or …_CLIENT_KEY cannot be read: it holds no certificate with its key"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "name", "why"), FILES)
def test_a_certificate_that_cannot_be_read_is_named(
    tmp_path: Path, field: str, name: str, why: str
) -> None:
    (tmp_path / "text.pem").write_text("text", "ascii")
    endpoint = Endpoint("https://127.0.0.1:1/v1/traces", **{field: str(tmp_path / name)})  # type: ignore[arg-type]
    with pytest.raises(NotTaken) as caught:
        Sender(endpoint).send(b"message", 30.0)
    assert str(caught.value) == why


def test_a_collector_with_an_untrusted_certificate_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text(KEY + CERTIFICATE, "ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    got = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            one, _ = listening.accept()
            with one:
                try:
                    got.append(context.wrap_socket(one, server_side=True).recv(4096))
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/v1/traces"
        with pytest.raises(NotTaken) as caught:
            Sender(Endpoint(url)).send(b"message", 30.0)
        thread.join()
    assert str(caught.value) == "its certificate is not trusted: self-signed certificate"
    assert got == []
