"""Server-sent events out of bytes, wherever the network cut them.

Lines end with LF, CR LF or CR; `data` of several lines is joined; comments and fields that
nobody asks for are passed over.  An event that no empty line ends was not sent whole, and is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the end may be half of a CR LF
_BOM = b"\xef\xbb\xbf"


def events(pieces: Iterable[bytes]) -> Iterator[str]:
    """The data of each event."""
    data: list[bytes] = []
    for line in _lines(pieces):
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
        elif data:
            yield b"\n".join(data).decode("utf-8", "replace")
            data = []


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest, first = b"", True
    for piece in pieces:
        *whole, rest = _LINE_END.split(rest + piece)
        for line in whole:
            yield line.removeprefix(_BOM) if first else line
            first = False
    if rest.endswith(b"\r"):
        yield rest[:-1].removeprefix(_BOM) if first else rest[:-1]
