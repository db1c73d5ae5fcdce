"""A run whose journal is open, and its summary for `plait runs`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from plait.adapters.store.index import LAST_TIME
from plait.adapters.store.journal import SqliteJournal
from plait.adapters.store.lock import RunLock
from plait.adapters.store.ownership import (
    Owner,
    Sealing,
    foreign_run,
    never_begun,
    without_seal,
)
from plait.adapters.store.rows import RUN_ENDED, RUN_STARTED, to_json
from plait.adapters.store.shapes import (
    MISREAD,
    damage_error,
    decode_json,
    is_counts,
    is_facts,
    require_shape,
)
from plait.core.errors import JournalError, TrustError
from plait.core.hints import Final, Literal, TypeGuard
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.events import Event, Status

ENDED: Final = ("done", "failed")
"""The statuses of a run that needs no resume."""
_DEPTH: Final = 4
"""The number of folders of a run below its project: `.ai/state/runs/ID`."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The properties of a run that `plait runs` shows."""

    id: str
    flow: str
    file: str
    status: Status | Literal["unreadable"]
    start_time: float
    """The start of the run; for an unreadable one, when its folder last changed."""
    end_time: float | None = None
    duration: float = 0.0
    """The seconds of all run attempts, up to the last record."""
    last_at: float | None = None
    """The time of its last record."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of its items by status: done, failed, skipped."""
    problem: str = ""
    """Why its journal is unreadable."""
    foreign: bool = False
    """Another user or machine made it, so it is shown, but not resumed or removed."""


class OpenRun:
    """A run whose journal is open, for writing or reading. A writer holds the run's lock."""

    def __init__(
        self,
        id: str,
        folder: str,
        journal: SqliteJournal,
        lock: RunLock | None,
        seals: Sealing,
        on_close: Callable[[RunSummary | None], object] | None = None,
    ) -> None:
        """`on_close` gets the summary of a run that was open for writing."""
        self.id = id
        self.folder = folder
        self.journal = journal
        self._lock = lock
        self._on_close = on_close
        self._owner = Owner(seals, id, folder)

    @property
    def project(self) -> str:
        """The present folder of the project, which may have been moved or copied."""
        return self.folder.rsplit(os.sep, _DEPTH)[0]

    @property
    def facts(self) -> dict[str, Json]:
        """The data that a resume needs: flow, file, options and so on."""
        return without_seal(self._facts_with_seal)

    @property
    def _facts_with_seal(self) -> dict[str, Json]:
        reader = self.journal.reader
        text = reader.get_property("facts")
        if text is None and reader.get_property("created") is None:
            return {}  # Plait was killed while it made the run
        try:
            facts: dict[str, Json] = require_shape(decode_json(text), is_facts)  # type: ignore[arg-type]
        except MISREAD as error:
            raise damage_error(reader.path) from error
        return facts

    @property
    def is_own(self) -> bool:
        """Did this user make the run, in this very folder?"""
        with suppress(TrustError):
            return self._owner.is_own(self._facts_with_seal)
        return False

    @property
    def why_unsealed(self) -> str:
        """Why the run could not be sealed; empty if it has a seal."""
        return self._owner.why_unsealed

    def require_own(self) -> None:
        """Raise TrustError unless this user made the run here."""
        facts = self._facts_with_seal
        if not facts:
            raise never_begun(self.id)
        if not self._owner.is_own(facts):
            raise foreign_run(self.id, self.project)

    def update_facts(self, *events: Event, **facts: Json) -> None:
        """Replace some facts and seal all of them; append events in the same transaction."""
        text = to_json(self._owner.add_seal({**self.facts, **facts}))
        self.journal.active_writer.set_property("facts", text, *events)

    def close(self) -> None:
        summary: RunSummary | None = None
        try:
            if self._lock is not None:
                # So `plait runs` need not count the items of every run.
                with suppress(JournalError):
                    reader = self.journal.reader
                    text = to_json([reader.last(), reader.item_counts()])
                    self.journal.active_writer.set_property("counts", text)
                with suppress(JournalError):
                    summary = make_summary(self, is_running=False)
        finally:
            self.journal.close()
            if self._lock is not None:
                self._lock.release()
        if self._on_close is not None:
            self._on_close(summary)

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_summary(opened: OpenRun, *, is_running: bool) -> RunSummary | None:
    """Return the summary of an open run; None if Plait was killed while it made the run."""
    created = creation_time(opened)
    if created is None:
        return None
    facts = opened.facts
    status, ended = _last_status(opened, is_running=is_running)
    reader = opened.journal.reader
    seconds, last_at = reader.work_time()
    if status == "interrupted" and ended is None and last_at is not None:
        printed_at = max(last_at, reader.last_output_at() or last_at)
        seconds, last_at = round(seconds + printed_at - last_at, 6), printed_at
    return RunSummary(
        opened.id,
        str(facts.get("flow", "")),
        str(facts.get("file", "")),
        status,
        created,
        ended,
        seconds,
        last_at,
        _counts(opened),
        foreign=not opened.is_own,
    )


def creation_time(opened: OpenRun) -> float | None:
    """Return when the run was made; None if Plait was killed while it made the run."""
    reader = opened.journal.reader
    created = reader.get_property("created")
    if created is None:
        return None
    if not is_time(created):
        raise damage_error(reader.path)
    return created


def is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, float) and abs(value) < LAST_TIME


def _is_end(value: object) -> TypeGuard[float | None]:
    return value is None or is_time(value)


def _last_status(opened: OpenRun, *, is_running: bool) -> tuple[Status, float | None]:
    """Return the status of the last run attempt, and when it ended."""
    reader = opened.journal.reader
    started, ended = reader.newest(RUN_STARTED), reader.newest(RUN_ENDED)
    if ended is not None and (started is None or ended[0] > started[0]):
        match ended[2]:
            case "done" | "failed" | "interrupted" as status:
                return status, ended[1]
    return ("running" if is_running else "interrupted"), None


def _counts(opened: OpenRun) -> dict[str, int]:
    reader = opened.journal.reader
    with suppress(*MISREAD):
        last, counts = decode_json(reader.get_property("counts"))  # type: ignore[arg-type]
        if last == reader.last() and is_counts(counts):
            return dict(counts)
    return reader.item_counts()


# ── in the index ─────────────────────────────────────────────────────────


def summary_fields(summary: RunSummary, viewer: str) -> list[Json]:
    """Return the fields of a summary; `viewer`: whose seals decided whether the run is foreign."""
    return [
        viewer,
        summary.flow,
        summary.file,
        summary.status,
        summary.start_time,
        summary.end_time,
        summary.duration,
        summary.last_at,
        dict(summary.counts),
        summary.foreign,
    ]


def summary_from_fields(run: str, fields: object, viewer: str) -> RunSummary | None:
    """Return a summary from its fields; None if they are not valid, or if another viewer stored
    them.
    """
    match fields:
        case [
            str(seen_by),
            str(flow),
            str(file),
            ("done" | "failed" | "interrupted") as status,
            float(started),
            ended,
            float(duration),
            last_at,
            counts,
            bool(foreign),
        ] if seen_by == viewer:
            are_times = is_time(started) and is_time(duration)
            if are_times and _is_end(ended) and _is_end(last_at) and is_counts(counts):
                return RunSummary(
                    run,
                    flow,
                    file,
                    status,
                    started,
                    ended,
                    duration,
                    last_at,
                    counts,  # type: ignore[arg-type]
                    foreign=foreign,
                )
    return None
