"""Parse server-sent events from pieces of bytes.

Lines end with LF, CR LF or CR. Several lines of `data` are joined. Comments and all other fields
are ignored. An event without an empty line at its end is incomplete and ignored. Every byte is
read once, and an event that is too long is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plait.agents.providers.wire_formats import UnreadableError
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern

MOST: Final = 8 << 20
"""Bytes of one event."""
_LINE_END = lazy_pattern(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


def events(pieces: Iterable[bytes], *, most: int = MOST) -> Iterator[str]:
    """The data of each event. Raises UnreadableError if one is longer than `most` bytes."""
    data: list[bytes] = []
    size = 0
    for line in _lines(pieces, most):
        size += len(line)
        if size > most:
            raise _too_long(most)
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            continue
        if data:
            yield b"\n".join(data).decode("utf-8", "replace")
        data, size = [], 0


def _lines(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    begun: list[bytes] = []
    size, first, after_cr = 0, True, False
    for piece in pieces:
        if not piece:
            continue
        # A LF that follows a CR belongs to it, also in the next piece.
        *ends, rest = _LINE_END.split(piece[1:] if after_cr and piece[:1] == b"\n" else piece)
        after_cr = piece.endswith(b"\r")
        for end in ends:
            line = b"".join([*begun, end])
            yield line.removeprefix(_BOM) if first else line
            begun, size, first = [], 0, False
        begun.append(rest)
        size += len(rest)
        if size > most:
            raise _too_long(most)


def _too_long(most: int) -> UnreadableError:
    return UnreadableError(f"events of at most {most:,} bytes")
