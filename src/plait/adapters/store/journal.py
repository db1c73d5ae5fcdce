"""The journal of a run in a SQLite file: implements `plait.engine.journal`.

After `append` the system has the records, so the death of this process cannot undo them. After
`sync` the disk has them. Any number of processes may read while one engine writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from plait.adapters.store.blobs import Blobs
from plait.adapters.store.reader import Reader
from plait.adapters.store.writer import Writer
from plait.core.errors import InternalError
from plait.engine.events import Event, EventRecord, Usage
from plait.engine.journal import StepRecord


class SqliteJournal:
    """Safe for threads."""

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
        self.active_writer.append(*events)

    def sync(self) -> None:
        self.active_writer.sync()

    def prepare(self, fingerprints: Iterable[str]) -> None:
        self.active_writer.add_strings(fingerprints)

    def step(self, path: str) -> StepRecord | None:
        self._require_healthy()
        return self.reader.step(path)

    def steps_in(self, path: str, name_prefix: str = "") -> Iterator[StepRecord]:
        self._require_healthy()
        return self.reader.steps_in(path, name_prefix)

    def failures_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]:
        self._require_healthy()
        return self.reader.failures_in(path, after=after)

    def failure_titles(self, path: str, *, after: int = 0) -> Iterator[tuple[str, str]]:
        self._require_healthy()
        return self.reader.failure_titles(path, after=after)

    def usage_before(self, before: int) -> Iterator[tuple[str, Usage]]:
        self._require_healthy()
        return self.reader.usage_before(before)

    def completed_items(
        self, path: str, fingerprints: Collection[str] | None, *, after: int = 0
    ) -> bytes:
        self._require_healthy()
        return self.reader.completed_items(path, fingerprints, after=after)

    def was_ever_started(self, path: str) -> bool:
        self._require_healthy()
        return self.reader.was_ever_started(path)

    def started_in(self, path: str, name_prefix: str = "") -> Iterator[str]:
        self._require_healthy()
        return self.reader.started_in(path, name_prefix)

    def last_result(self, path: str) -> StepRecord | None:
        self._require_healthy()
        return self.reader.last_result(path)

    def is_unfinished(self, path: str) -> bool:
        self._require_healthy()
        return self.reader.is_unfinished(path)

    def find_unfinished(self) -> Iterator[str]:
        self._require_healthy()
        return self.reader.find_unfinished()

    def is_fresh(self) -> bool:
        return self._fresh

    def last(self) -> int:
        self._require_healthy()
        return self.reader.last()

    def events(self, after: int = 0) -> Iterator[EventRecord]:
        self._require_healthy()
        return self.reader.events(after)

    def put_blob(self, data: bytes) -> str:
        return self.active_writer.put_blob(data)

    def get_blob(self, name: str) -> bytes:
        self._require_healthy()
        return self._blobs.get_blob(name)

    def close(self) -> None:
        # The reader first: the last close empties the write-ahead log, which only a writer can.
        self.reader.close()
        if self._writer is not None:
            self._writer.close()

    @property
    def active_writer(self) -> Writer:
        if self._writer is None:
            raise InternalError(
                "a journal that was opened for reading was asked to write", code="journal"
            )
        return self._writer

    def _require_healthy(self) -> None:
        if self._writer is not None:
            self._writer.require_healthy()
