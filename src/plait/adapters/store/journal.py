"""The journal of one run in a SQLite file: what `plait.engine.journal` asks for, that outlives the process.

`append` returns when the system has the record, so that the death of this
process cannot undo it; `sync` when the disk has it.  Opened for reading it can
be asked the same questions, by any number of processes, while an engine writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

from plait.adapters.store.blobs import Blobs
from plait.adapters.store.reader import Reader
from plait.adapters.store.writer import Writer
from plait.core.errors import InternalError
from plait.engine.events import Event, EventRecord, Usage
from plait.engine.journal import StepRecord


class SqliteJournal:
    """Safe to use from many threads."""

    def __init__(
        self,
        folder: str,
        *,
        write: bool,
        create: bool = False,
        now: Callable[[], float] = time.time,
        sync_data: Callable[[int], None] = os.fdatasync,
    ) -> None:
        path = os.path.join(folder, "journal.db")
        self._blobs = Blobs(os.path.join(folder, "blobs"))
        self._writer: Writer | None = None
        if write:
            self._writer = Writer(path, self._blobs, create=create, now=now, sync_data=sync_data)
        self.reader = Reader(path, self._blobs)
        try:
            self._fresh = create or self.reader.last() == 0
        except BaseException:
            self.close()
            raise

    def append(self, *events: Event) -> None:
        self.presumed_writer.append(*events)

    def sync(self) -> None:
        self.presumed_writer.sync()

    def expect(self, fingerprints: Iterable[str]) -> None:
        self.presumed_writer.learn(fingerprints)

    def recorded(self, path: str) -> StepRecord | None:
        self._expect_sound()
        return self.reader.recorded(path)

    def recorded_in(self, path: str, begins: str = "") -> Iterator[StepRecord]:
        self._expect_sound()
        return self.reader.recorded_in(path, begins)

    def failed_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]:
        self._expect_sound()
        return self.reader.failed_in(path, after=after)

    def failed_titles(self, path: str, *, after: int = 0) -> Iterator[tuple[str, str]]:
        self._expect_sound()
        return self.reader.failed_titles(path, after=after)

    def used_up(self, before: int) -> Iterator[tuple[str, Usage]]:
        self._expect_sound()
        return self.reader.used_up(before)

    def done_in(self, path: str, fingerprint: str | None, *, after: int = 0) -> bytes:
        self._expect_sound()
        return self.reader.done_in(path, fingerprint, after=after)

    def has_begun(self, path: str) -> bool:
        self._expect_sound()
        return self.reader.has_begun(path)

    def begun_in(self, path: str, begins: str = "") -> Iterator[str]:
        self._expect_sound()
        return self.reader.begun_in(path, begins)

    def last_end(self, path: str) -> StepRecord | None:
        self._expect_sound()
        return self.reader.last_end(path)

    def was_started(self, path: str) -> bool:
        self._expect_sound()
        return self.reader.was_started(path)

    def unfinished(self) -> Iterator[str]:
        self._expect_sound()
        return self.reader.unfinished()

    def is_fresh(self) -> bool:
        return self._fresh

    def last(self) -> int:
        self._expect_sound()
        return self.reader.last()

    def events(self, after: int = 0) -> Iterator[EventRecord]:
        self._expect_sound()
        return self.reader.events(after)

    def keep(self, data: bytes) -> str:
        return self.presumed_writer.keep(data)

    def kept(self, name: str) -> bytes:
        self._expect_sound()
        return self._blobs.kept(name)

    def close(self) -> None:
        # The reader first: whoever closes last empties the write-ahead log, which only a writer can.
        self.reader.close()
        if self._writer is not None:
            self._writer.close()

    @property
    def presumed_writer(self) -> Writer:
        if self._writer is None:
            raise InternalError("a journal that was opened for reading was asked to write", code="journal")
        return self._writer

    def _expect_sound(self) -> None:
        if self._writer is not None:
            self._writer.expect_sound()
