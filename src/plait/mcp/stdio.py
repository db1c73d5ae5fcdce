"""Messages over standard input and output: one line of JSON each.

Whatever a tool of this process prints goes to standard error, and no process that it starts reads
the messages of the client.  Writing never blocks a run: one thread writes, and what the client may
miss is dropped while it reads too slowly.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import Condition, Thread

from plait.core.hints import Final
from plait.core.values import Json
from plait.mcp.protocol import INVALID_REQUEST, Id, ProtocolError

MAX_MESSAGE: Final = 16 << 20
"""Bytes of one message of a client."""
MOST_WAITING: Final = 200
"""Messages that wait for the client; then those that it may miss are dropped."""
_PIECE: Final = 1 << 16


def take_streams() -> tuple[int, int]:
    """Descriptors of the client; standard input and output lead elsewhere from now on."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        os.dup2(null, 1)
    os.close(null)
    return incoming, outgoing


def read_lines(descriptor: int) -> Iterator[bytes | ProtocolError]:
    """Yield each line that is not blank, until the client leaves; an error for one too long."""
    kept = bytearray()
    is_too_long = False
    while piece := os.read(descriptor, _PIECE):
        *lines, rest = piece.split(b"\n")
        for line in lines:
            kept += line
            if is_too_long:
                is_too_long = False
            elif len(kept) > MAX_MESSAGE:
                yield _too_long()
            elif kept.strip():
                yield bytes(kept)
            kept.clear()
        if not is_too_long:
            kept += rest
            if len(kept) > MAX_MESSAGE:
                is_too_long = True
                kept.clear()
                yield _too_long()


def _too_long() -> ProtocolError:
    what = f"a message may have at most {MAX_MESSAGE >> 20} MiB"
    return ProtocolError(INVALID_REQUEST, what)


class Outbox:
    """Writes messages in their order, in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._changed = Condition()
        self._is_closed = False
        self._thread = Thread(target=self._serve, name="plait-mcp-outbox", daemon=True)
        self._thread.start()

    def send(
        self,
        message: Mapping[str, Json],
        *,
        may_miss: bool = False,
        about: Id | None = None,  # noqa: ARG002 - all messages go through one stream
    ) -> None:
        with self._changed:
            if may_miss and len(self._waiting) >= MOST_WAITING:
                return
            # Half a character, as of a file that is not UTF-8, would make the line unreadable.
            line = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
            self._waiting.append(line.encode("utf-8", "replace") + b"\n")
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Write what waits, as far as that is possible within the time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                data = self._waiting.popleft()
            with suppress(OSError):  # the client is gone; the end of its input says so, too
                view = memoryview(data)
                while view:
                    view = view[os.write(self._descriptor, view) :]
