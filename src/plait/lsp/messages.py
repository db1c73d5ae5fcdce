"""Frames of the language server protocol: a header with a length, and JSON.

A damaged frame costs that frame only: reading goes on at the next header.
"""

from __future__ import annotations

import json
import os
import re
import select
from collections.abc import Iterator

from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json

if TYPE_CHECKING:
    from typing import BinaryIO

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
UNKNOWN_METHOD: Final = -32601
INTERNAL_ERROR: Final = -32603
NOT_INITIALIZED: Final = -32002
MAX_FRAME: Final = 64 << 20
MAX_LINE: Final = 8192


class BadFrame:
    """A frame that is not a JSON object."""


class Input:
    """The bytes of a descriptor; it can say whether some are there already."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.buffer = bytearray()

    def is_waiting(self) -> bool:
        return bool(self.buffer or select.select([self.descriptor], [], [], 0)[0])

    def read(self, length: int) -> bytes:
        """That many bytes; fewer at the end of the stream."""
        while len(self.buffer) < length and self._read_more():
            pass
        return self._take(length)

    def readline(self) -> bytes:
        """A line, or a piece of one that is too long; nothing at the end of the stream."""
        while (end := self.buffer.find(b"\n")) < 0 and len(self.buffer) < MAX_LINE:
            if not self._read_more():
                return self._take(len(self.buffer))
        return self._take(end + 1 if end >= 0 else MAX_LINE)

    def _read_more(self) -> bool:
        data = os.read(self.descriptor, 1 << 16)
        self.buffer += data
        return bool(data)

    def _take(self, length: int) -> bytes:
        taken = bytes(self.buffer[:length])
        del self.buffer[:length]
        return taken


def read_messages(stream: Input) -> Iterator[dict[str, Json] | BadFrame]:
    """Every message until the stream ends."""
    while (length := _read_header(stream)) is not None:
        if length > MAX_FRAME:
            _skip(stream, length)
            yield BadFrame()
            continue
        data = stream.read(length)
        if len(data) < length:
            return
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        yield message if isinstance(message, dict) else BadFrame()


def _read_header(stream: Input) -> int | None:
    """The length of the next frame; None at the end of the stream.  Other lines are skipped."""
    length: int | None = None
    while line := stream.readline():
        text = line.strip()
        if found := re.fullmatch(rb"(?i)content-length:\s*([0-9]{1,15})", text):
            length = int(found[1])
        elif not text and length is not None:
            return length
    return None


def _skip(stream: Input, length: int) -> None:
    while length > 0 and (data := stream.read(min(length, 1 << 20))):
        length -= len(data)


def write_message(stream: BinaryIO, message: dict[str, Json]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode("ascii")
    stream.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    stream.flush()
