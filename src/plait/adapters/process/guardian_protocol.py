"""The protocol between Plait and the guardian: numbers, types and forms of messages.

The guardian imports this module alone, without Plait; `guardian.c` has the same constants.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = 3
"""The version of the protocol; the first argument of a guardian."""
REQUEST_FD: Final = 3
FIRST_FILE: Final = 64
"""The child's descriptor of its first file; far from 3, which scripts and make often use."""
MAX_DESCRIPTORS: Final = 253
"""The limit of Linux for one message."""
GIVE_UP: Final = 5.0
"""Seconds after the first kill. A process that is still there cannot be killed: it belongs to
another user, or hangs.
"""

HEAD: Final = struct.Struct("=cBBxIIIIIi")
"""JOB, flags, number of descriptors, id; the sizes of argv, env, more env and directory, in which
each text ends with NUL; process group (0: a new one).
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
