"""Long output of steps: a file for each step whose output is too long for its outcome, and for no
other.

Ten thousand items with a line each make no file at all: what is short lives in
the outcome already.  A file has a bound, and says so where it was cut.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from plait.adapters.store.faults import map_storage_errors
from plait.adapters.store.files import make_own_folder
from plait.core.digests import sha256_hex
from plait.core.hints import Final

SHORT: Final = 32 * 1024
"""Bytes up to which there is no file."""
LONGEST: Final = 64 * 1024 * 1024
TRUNCATED: Final = "\n… truncated\n".encode()


class Logs:
    """The folder of a run's long output."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, path: str, stream: str = "stdout", *, longest: int = LONGEST) -> Log:
        """Where to put the output of the step at this path, piece by piece."""
        return Log(os.path.join(self._folder, _file_name(path, stream)), longest)

    def files(self, path: str) -> list[str]:
        """What there is of the step at this path; empty if its output was short."""
        names = [_file_name(path, stream) for stream in ("stdout", "stderr")]
        files = [os.path.join(self._folder, name) for name in names]
        return [file for file in files if os.path.exists(file)]


class Log:
    """The output of one step as it comes."""

    def __init__(self, path: str, longest: int) -> None:
        self._path = path
        self._room = longest
        self._begun = bytearray()
        self._handle: int | None = None

    def add(self, data: bytes) -> None:
        if self._handle is not None:
            self._write(data)
        elif len(self._begun) + len(data) <= SHORT:
            self._begun += data
        else:
            self._open()
            self._write(bytes(self._begun) + data)
            self._begun.clear()

    def close(self) -> str | None:
        """The file, if there is one."""
        if self._handle is None:
            return None
        os.close(self._handle)
        self._handle = None
        return self._path

    def _open(self) -> None:
        make_own_folder(os.path.dirname(self._path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with map_storage_errors(self._path):
            self._handle = os.open(self._path, flags, 0o600)
            self._room -= os.fstat(self._handle).st_size  # of an earlier attempt

    def _write(self, data: bytes) -> None:
        assert self._handle is not None
        if self._room <= 0:
            return
        cut = data[: self._room]
        self._room -= len(data)
        # A full disk ends the run at its next record; a log is no reason to fail before.
        with suppress(OSError):
            os.write(self._handle, cut if self._room > 0 else cut + TRUNCATED)


def _file_name(path: str, stream: str) -> str:
    """One name for each path, safe as a file name, and readable where the path is."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", path)[-40:].strip("-.")
    digest = sha256_hex(path.encode("utf-8", "surrogatepass"))[:16]
    return f"{readable}-{digest}.{stream}"
