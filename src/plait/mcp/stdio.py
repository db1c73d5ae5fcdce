"""Messages over standard input and output: one line of JSON each.

Whatever a tool of this process prints goes to standard error, and no process that it starts reads
the messages of the client.

Handing a message to another thread takes as long as a quick tool.  So the thread that has read a
request performs it, while another one reads on, and writes the answer itself.  Writing never blocks
a run: what would have to wait for the client is left to a thread, and what the client may miss is
dropped while it reads too slowly.  While too much waits for it, none of its requests is read.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from json import JSONEncoder
from threading import Condition, Event, Lock, Thread

from plait.core.hints import Final
from plait.core.values import Json
from plait.mcp.protocol import INVALID_REQUEST, Id, ProtocolError

MAX_MESSAGE: Final = 16 << 20
"""Bytes of one message of a client."""
MOST_WAITING: Final = 200
"""Messages that wait for the client; then those that it may miss are dropped."""
MOST_UNREAD: Final = 32 << 20
"""Bytes that wait for the client; then its requests wait, too."""
_PIECE: Final = 1 << 16
_AT_ONCE: Final = 4096
"""Bytes that a pipe or socket takes without waiting if it takes any: PIPE_BUF of Linux."""
_MOST_FREE: Final = 4
"""Threads that wait for requests."""
_ENCODE: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


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


def read_lines(
    descriptor: int, wait_for_room: Callable[[], object] = bool
) -> Iterator[bytes | ProtocolError]:
    """Yield each line that is not blank, until the client leaves; an error for one too long.

    `wait_for_room` is called before each read.
    """
    kept = bytearray()
    is_too_long = False
    while piece := _read(descriptor, wait_for_room):
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


def _read(descriptor: int, wait_for_room: Callable[[], object]) -> bytes:
    wait_for_room()
    return os.read(descriptor, _PIECE)


def _too_long() -> ProtocolError:
    what = f"a message may have at most {MAX_MESSAGE >> 20} MiB"
    return ProtocolError(INVALID_REQUEST, what)


class Readers:
    """Threads that read requests in turn, one at a time; each performs what it has read."""

    def __init__(
        self,
        lines: Iterator[bytes | ProtocolError],
        take: Callable[[bytes | ProtocolError], Callable[[], object] | None],
    ) -> None:
        """`take` gets the lines in their order; what it returns is performed beside others."""
        self._lines = lines
        self._take = take
        self._reading = Lock()
        self._free = 0
        """Threads that read or wait for their turn."""
        self._lock = Lock()
        self._is_over = Event()
        self._error: BaseException | None = None

    def serve(self) -> None:
        """Until the client leaves.  Signals reach the calling thread, which only waits."""
        self._add()
        self._is_over.wait()
        if self._error is not None:
            raise self._error

    def _add(self) -> None:
        with self._lock:
            self._free += 1
        Thread(target=self._work, name="plait-mcp-reader", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._reading:
                work = self._next()
            if work is None:
                return
            with self._lock:
                self._free -= 1
                is_alone = self._free == 0
            if is_alone:
                self._add()
            work()
            with self._lock:
                if self._free >= _MOST_FREE:
                    return
                self._free += 1

    def _next(self) -> Callable[[], object] | None:
        """What the next request asks for; None: there is none any more."""
        try:
            for line in self._lines:
                if (work := self._take(line)) is not None:
                    return work
        except BaseException as error:
            self._error = error
        self._is_over.set()
        return None


class Outbox:
    """Writes messages in their order, at once where that does not block, else in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        """The first one may be being written."""
        self._unread = 0
        """Bytes of all that waits."""
        self._changed = Condition()
        self._is_closed = False
        self._thread: Thread | None = None

    def send(
        self,
        message: Mapping[str, Json],
        *,
        may_miss: bool = False,
        about: Id | None = None,  # noqa: ARG002 - all messages go through one stream
    ) -> None:
        # Half a character, as of a file that is not UTF-8, would make the line unreadable.
        data = _ENCODE(message).encode("utf-8", "replace") + b"\n"
        with self._changed:
            if not self._waiting and len(data) <= _AT_ONCE and self._room.poll(0):
                self._write(data)
                return
            if may_miss and len(self._waiting) >= MOST_WAITING:
                return
            self._waiting.append(data)
            self._unread += len(data)
            if self._thread is None:
                self._thread = Thread(target=self._serve, name="plait-mcp-outbox", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait until the client has read most of what it was sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread <= MOST_UNREAD or self._is_closed)

    def close(self, seconds: float) -> None:
        """Write what waits, as far as that is possible within the time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                data = self._waiting[0]
            self._write(data)
            with self._changed:
                self._waiting.popleft()  # only now may another thread write
                self._unread -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # the client is gone; the end of its input says so, too
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
