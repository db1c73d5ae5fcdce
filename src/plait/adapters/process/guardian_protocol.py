"""What Plait and the guardian say to each other: numbers, types and forms of messages.

The guardian imports this module alone, without Plait; `guardian.c` has the same.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = 3
"""Of this protocol; the first argument of a guardian."""
REQUEST_FD: Final = 3
FIRST_FILE: Final = 64
"""The child's descriptor of its first file; far from 3, which scripts and make often use."""
MAX_DESCRIPTORS: Final = 253
"""Linux passes no more in one message."""
GIVE_UP: Final = 5.0
"""Seconds after the first kill. A process that is left cannot be killed: another user's, or stuck."""

HEAD: Final = struct.Struct("=cBBxIIIIIi")
"""JOB, flags, number of descriptors, id; bytes of argv, env, more env and directory, each text with
NUL at its end; process group (0: a new one).
"""
COMMAND: Final = struct.Struct("=cxxxIid")
"""Type, id, signal, seconds of grace."""
REPORT: Final = struct.Struct("=cBxxIiiqddII")
"""Type, open streams, id, errno or wait status, pid, peak memory in KiB, seconds of user and of
system time, bytes of output and of error output that follow.
"""

CHANNEL, END_ALL = b"L", b"A"  # requests
READY: Final = b"R"
JOB, END, SIGNAL = b"J", b"E", b"S"  # on a channel
NO_INPUT: Final = 1
"""Flag: standard input is /dev/null, and no descriptor comes for it."""
CAPTURE: Final = 2
"""Flag: the guardian reads the output, and no descriptors come for it."""
REFUSED, OUTPUT, CLOSED, EXITED, OVER = b"F", b"P", b"C", b"X", b"O"  # reports
NO_DIRECTORY: Final = 4
"""In place of the open streams of REFUSED: the directory is the reason."""
PIECE: Final = 65536
"""Bytes of output in one report."""
