"""Messages over standard input and output: a client that sends and does not read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from plait.mcp import stdio
from plait.mcp.stdio import Outbox, read_lines

LIMIT = 60.0


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    """What the client writes, what the server reads of it, and the same the other way."""
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    yield client_out, server_in, server_out, client_in
    for descriptor in (client_out, server_in, server_out, client_in):
        os.close(descriptor)


def test_requests_wait_while_the_client_does_not_read_its_answers(
    pipes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "MOST_UNREAD", 1 << 20)
    client_out, server_in, server_out, client_in = pipes
    outbox = Outbox(server_out)
    calls: list[str] = []

    def wait_for_room() -> None:
        calls.append("waits")
        outbox.wait_for_room()
        calls.append("has room")

    lines = read_lines(server_in, wait_for_room)
    os.write(client_out, b"1\n")
    assert next(lines) == b"1"
    answer = {"text": "x" * (1 << 18)}
    for _ in range(8):
        outbox.send(answer)
    os.write(client_out, b"2\n")
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(next(lines)))
    reader.start()
    size = 8 * ((1 << 18) + len('{"text":""}\n'))
    while size > 1 << 20:  # the server cannot have written more than the pipe holds beside this
        assert found == []
        size -= len(os.read(client_in, 1 << 16))
    while reader.is_alive():
        size -= len(os.read(client_in, 1 << 16)) if size else 0
        reader.join(0.01)
    assert found == [b"2"]
    assert calls == ["waits", "has room"] * 2
    drain = threading.Thread(target=_drain, args=(client_in, size))
    drain.start()
    outbox.close(LIMIT)
    drain.join(LIMIT)


def _drain(descriptor: int, size: int) -> None:
    while size:
        size -= len(os.read(descriptor, 1 << 16))
