"""The spool: the selected items of a run, written once and read by every run attempt.

A resumed run sees the same items with the same keys, knows their number, and runs no command again.
The spool is written atomically: to a temporary file that is synced and renamed.

A line holds one item: `["key",item]`. Secrets are masked, as everywhere on disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from plait.core.digests import sha256
from plait.core.errors import InputError
from plait.core.hints import IO, Final
from plait.core.os_errors import raise_machine_limit
from plait.core.private_files import sync_folder
from plait.core.records import dataclass
from plait.core.safe_files import open_at_once
from plait.core.values import Json, json_text
from plait.engine.journal import in_bitmap

BUFFER: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SpoolInfo:
    """The number of items and the digest of the file."""

    count: int
    digest: str


def write_spool(items: Iterable[tuple[str, Json]], file: str) -> SpoolInfo:
    """Write items with keys; if reading the items fails, no spool is left."""
    unfinished = f"{file}.{os.getpid()}.part"
    count, digest = 0, sha256()
    try:
        descriptor = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        with open(descriptor, "wb", buffering=BUFFER) as spool:
            for key, item in items:
                line = f"{json_text([key, item])}\n".encode("utf-8", "surrogatepass")
                digest.update(line)
                spool.write(line)
                count += 1
            spool.flush()
            os.fsync(descriptor)
        os.replace(unfinished, file)
    except BaseException:
        _remove(unfinished)
        raise
    sync_folder(os.path.dirname(file) or ".")
    return SpoolInfo(count, digest.hexdigest())


def read_spool(file: str, *, without: bytes = b"") -> Iterator[tuple[int, str, Json]]:
    """Yield index, key and item in order, except those with a 1 in `without`."""
    with _open_spool(file) as spool:
        for index, line in enumerate(_lines(spool, file)):
            if in_bitmap(without, index):
                continue
            try:
                key, item = json.loads(line.decode("utf-8", "surrogatepass"))
            except (ValueError, TypeError, RecursionError):
                raise _spool_error(f"{file}:{index + 1}") from None
            yield index, key, item


def inspect_spool(file: str) -> SpoolInfo:
    """Count and digest a spool, to compare them with what was written."""
    count, digest = 0, sha256()
    with _open_spool(file) as spool:
        while block := spool.read(BUFFER):
            count += block.count(b"\n")
            digest.update(block)
    return SpoolInfo(count, digest.hexdigest())


def require_spool(file: str, written: SpoolInfo) -> None:
    """Raise InputError unless the spool is the one that was written."""
    if inspect_spool(file) != written:
        raise _spool_error(file)


def _open_spool(file: str) -> IO[bytes]:
    try:
        return open(file, "rb", buffering=BUFFER, opener=open_at_once)
    except OSError as error:
        raise_machine_limit(error)
        what = f"the items of this run cannot be read: {error.strerror}"
        raise InputError(what, file, "start the run again", code="no-spool") from None


def _lines(spool: Iterable[bytes], file: str) -> Iterator[bytes]:
    for line in spool:
        if not line.endswith(b"\n"):
            raise _spool_error(file)
        yield line


def _spool_error(where: str) -> InputError:
    what = "the items of this run were changed or damaged since they were written"
    return InputError(what, where, "start the run again", code="spool-damaged")


def _remove(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)
