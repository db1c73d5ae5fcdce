"""Connections of uvicorn with bounds that it does not have: how many, how slow.

When all places are taken, the oldest connection that asks for nothing has to go, so that idle
connections keep nobody out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from uvicorn.protocols.http.h11_impl import H11Protocol

from plait.core.hints import Any
from plait.httpd.guard import Limits

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\nretry-after: 5\r\ncontent-length: 26\r\n\r\ntoo many open connections\n"
)


def make_protocol(limits: Limits) -> type[H11Protocol]:
    """A class of connections that share these limits."""
    opened: dict[Connection, None] = {}

    class Connection(H11Protocol):
        """One connection."""

        _beginning: asyncio.TimerHandle | None = None
        """Ends a connection whose request does not arrive."""
        _writing: asyncio.TimerHandle | None = None
        """Ends a connection that does not read."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            opened[self] = None
            if len(opened) > limits.connections and not self._make_room():
                transport.write(_FULL)
                self._end()
                return
            self._expect_request()

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            for timer in (self._beginning, self._writing):
                if timer is not None:
                    timer.cancel()
            self._beginning = self._writing = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.is_busy:
                self._stop_expecting()
            elif self._beginning is None:
                self._expect_request()
            if self.transport.is_closing():
                self._end()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._end()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._writing is None:
                self._writing = self.loop.call_later(limits.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._writing is not None and not self.transport.is_closing():
                self._writing.cancel()
                self._writing = None

        @property
        def is_busy(self) -> bool:
            """Is a request being answered?"""
            return self.cycle is not None and not self.cycle.response_complete

        def _make_room(self) -> bool:
            for other in _idle(self):
                other._end()
                opened.pop(other, None)
                return True
            return False

        def _expect_request(self) -> None:
            self._beginning = self.loop.call_later(limits.header_seconds, self._end)

        def _stop_expecting(self) -> None:
            if self._beginning is not None:
                self._beginning.cancel()
                self._beginning = None

        def _end(self) -> None:
            """Close after what is written; at once if the client does not read that."""
            self.transport.close()
            if self._writing is None:
                self._writing = self.loop.call_later(limits.write_seconds, self.transport.abort)

    def _idle(new: Connection) -> Iterator[Connection]:
        return (one for one in opened if one is not new and not one.is_busy)

    return Connection
