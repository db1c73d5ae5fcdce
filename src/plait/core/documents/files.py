"""Read a file as text, or raise an error that says how to fix it.

Reading always ends: a pipe is refused, and at most `limit` bytes are read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from plait.core.documents.limits import one_printable_line, printable_name, require_size
from plait.core.errors import DocumentError, InputError, closest_name
from plait.core.os_errors import raise_machine_limit
from plait.core.source import Source, Span

_unsaved: Mapping[str, str] = {}


@contextmanager
def with_unsaved(texts: Mapping[str, str]) -> Iterator[None]:
    """Read the texts that an editor shows instead of the files at these real paths."""
    global _unsaved
    before, _unsaved = _unsaved, texts
    try:
        yield
    finally:
        _unsaved = before


def unsaved_text(path: str) -> str | None:
    """The text that an editor shows for a file; None if the file itself must be read."""
    return _unsaved.get(os.path.realpath(path)) if _unsaved else None


def read_text(path: str | os.PathLike[str], limit: int) -> str:
    """The text of the file at `path`, of at most `limit` bytes."""
    name = os.fspath(path)
    if (shown := unsaved_text(name)) is not None:
        require_size(len(shown), limit, name, unit="bytes")
        return shown
    try:
        with _open_descriptor(name) as descriptor:
            status = os.fstat(descriptor)
            _require_regular_file(name, status.st_mode)
            require_size(status.st_size, limit, name, unit="bytes")
            with open(descriptor, "rb", closefd=False) as file:
                # One byte more than allowed, for a file that grows or lies about its size.
                data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise_machine_limit(error)
        raise _unreadable(name, error) from None
    require_size(len(data), limit, name, unit="bytes")
    return decode_text(data, name)


def decode_text(data: bytes, name: str, *, drawn: bool = False) -> str:
    """Decode bytes; an error shows the line only if `drawn`, since data may be secret."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if (problem := _text_problem(data)) is not None:
            what, fix = problem
            raise DocumentError(what, name, fix, code="not-utf-8") from None
        before = len(data[: error.start].decode("utf-8"))
        where = Span(Source(name, data.decode("utf-8", "replace")), before, before + 1)
        what = f"byte {error.start:,} of this file is not UTF-8"
        fix = "save the file as UTF-8"
        raise DocumentError(what, where if drawn else str(where), fix, code="not-utf-8") from None


def _text_problem(data: bytes) -> tuple[str, str] | None:
    """Say what bytes that are not UTF-8 probably are, and what to do; None: text in an older
    encoding.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "this file is UTF-16, not UTF-8", "save the file as UTF-8"
    if b"\0" in data:
        return "this is a binary file, not text", "name a text file"
    return None


@contextmanager
def _open_descriptor(name: str) -> Iterator[int]:
    # Not blocking: a pipe without a writer must be refused, not waited for.
    descriptor = os.open(
        name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _require_regular_file(name: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise InputError(
            "this is a directory, not a file", name, "name a file inside it", code="not-a-file"
        )
    if not stat.S_ISREG(mode):
        fix = "write its content to a file first"
        raise InputError("this is a pipe or device, not a file", name, fix, code="not-a-file")


def _unreadable(name: str, error: OSError | ValueError) -> InputError:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return InputError("there is no such file", name, _file_fix(name), code="no-file")
        case PermissionError():
            fix = "allow reading it, or run as a user who may"
            return InputError("this file may not be read", name, fix, code="no-permission")
        case OSError(strerror=reason):
            return InputError(
                f"this file cannot be read: {reason}", name, "check the path", code="no-file"
            )
        case _:
            return InputError(
                "this is not a path",
                printable_name(name),
                "remove the NUL character",
                code="no-file",
            )


def _file_fix(name: str) -> str:
    try:
        beside = os.listdir(os.path.dirname(name) or ".")
    except OSError:
        return "check the path: its directory does not exist"
    # The same ending makes two names similar: compare only what is before it.
    stem, ending = os.path.splitext(os.path.basename(name))
    stems = {os.path.splitext(one)[0]: one for one in beside}
    stems |= {os.path.splitext(one)[0]: one for one in beside if one.endswith(ending)}
    close = stems.get(closest_name(stem, stems) or "")
    return (
        f"did you mean '{os.path.join(os.path.dirname(name), one_printable_line(close))}'?"
        if close
        else "check the path"
    )
