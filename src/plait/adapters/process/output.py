"""Capture the output of a process on one stream.

The beginning stays in memory. The rest is dropped, or goes to a file together with the beginning,
so memory does not grow with output. If the file is incomplete, `lost` says why.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from plait.core.hints import IO, Final, Literal, TypeAlias

MAX_OVERFLOW: Final = 1024 * 1024 * 1024
"""The limit for each stream in its file, in bytes."""
MOST_FILES: Final = 20
"""The number of such files in one folder; the oldest are removed first."""
FILE_AGE: Final = 7 * 24 * 3600
"""Seconds after which such a file is removed when another one is created."""

Stream: TypeAlias = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]


class StreamCapture:
    """One stream: its beginning in memory, and the whole stream in a file if it is long."""

    __slots__ = (
        "file", "folder", "kept", "lost", "max_output", "most_in_file", "name", "on_output", "room_in_file",
        "truncated", "wants_file",
    )  # fmt: skip

    def __init__(
        self,
        name: Stream,
        max_output: int,
        *,
        overflow: bool | str,
        on_output: OnOutput | None,
        most_in_file: int = MAX_OVERFLOW,
    ) -> None:
        """`overflow`: whether to keep output beyond the limit in a file, or the folder for it."""
        self.name = name
        self.on_output = on_output
        self.max_output = max_output
        self.kept = bytearray()
        self.truncated = False
        self.file: IO[bytes] | None = None
        self.folder = overflow if isinstance(overflow, str) else None
        self.wants_file = bool(overflow)
        self.room_in_file = self.most_in_file = most_in_file
        self.lost = ""
        """Why the file is incomplete; empty if it is not."""

    def add(self, data: bytes) -> None:
        if self.on_output is not None:
            self.on_output(self.name, data)
        room = self.max_output - len(self.kept)
        if len(data) > room:
            self.truncated = True
            self.put_into_file(data)
        if room > 0:
            self.kept += data[:room]

    def put_into_file(self, data: bytes) -> None:
        if self.lost or not self.wants_file:
            return
        try:
            self._write(data)
        except OSError as error:  # the disk is full: the beginning stays, the rest is dropped
            self._lose(error)

    def _write(self, data: bytes) -> None:
        if self.file is None:
            import tempfile  # rarely needed, and slow to import

            if self.folder is not None:
                _make_room(self.folder)
            self.file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed with the stream
                prefix=f"plait-{self.name}-", dir=self.folder, delete=False
            )
            self.file.write(self.kept)
            self.room_in_file -= len(self.kept)
        self.file.write(data[: self.room_in_file])
        if len(data) > self.room_in_file:
            self.lost = f"no more than {self.most_in_file:,} bytes are kept"
        self.room_in_file -= len(data)

    def _lose(self, error: OSError) -> None:
        self.lost = self.lost or not_written(error)

    def discard(self) -> None:
        """Drop everything, also later output."""
        self.on_output = None
        self.wants_file = False
        self.max_output = 0
        if (path := self.close()) is not None:
            os.unlink(path)

    def close(self) -> str | None:
        """Return the path of the file, if there is one. `lost` is final only after this."""
        if self.file is None:
            return None
        try:
            self.file.close()
        except OSError as error:  # buffered data did not fit
            self._lose(error)
        return self.file.name


def not_written(error: OSError) -> str:
    """Why output could not be written to a file."""
    return f"it could not be written: {error.strerror or error}"


def _make_room(folder: str) -> None:
    """Create the folder for long output; remove files that are old or too many."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with os.scandir(folder) as entries:
        files = sorted(
            (entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in entries
        )
    oldest = time.time() - FILE_AGE
    for number, (modified, path) in enumerate(reversed(files), start=1):
        if number >= MOST_FILES or modified < oldest:
            with contextlib.suppress(OSError):  # another process was first
                os.unlink(path)
