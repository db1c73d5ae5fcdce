"""The runs of a project: which there are, and how one is made, opened, found and removed.

Each run has a folder of its own below `.ai/state/runs/`, with its journal, its
lock, and what is too large for the journal.  What is damaged or removed is one
run's.  An index beside them says which there are and in which order they were
made, so that nothing becomes slower with their number; see `index`.

An id is random, so that its first four characters nearly always name one run;
when a run began is in its journal.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import islice

from plait.adapters.store.faults import map_storage_errors, not_begun, to_journal_error
from plait.adapters.store.files import make_own_folder
from plait.adapters.store.index import (
    IN_MEMORY,
    LAST_TIME,
    DamagedIndex,
    Entry,
    Index,
    Place,
    dump_summary,
    files_stamp,
    is_useless,
    load_summary,
    remove_index,
    run_names,
)
from plait.adapters.store.journal import SqliteJournal
from plait.adapters.store.lock import RunLock, is_held
from plait.adapters.store.logs import Logs
from plait.adapters.store.ownership import (
    Owner,
    Sealing,
    Unsealed,
    foreign_run,
    never_begun,
    require_plain_folders,
    without_seal,
)
from plait.adapters.store.rows import RUN_ENDED, RUN_STARTED, to_json
from plait.adapters.store.run_info import About, read_about, record_loss_error, write_about
from plait.adapters.store.schema import unmade
from plait.adapters.store.shapes import (
    MISREAD,
    damage_error,
    decode_json,
    is_counts,
    is_facts,
    require_shape,
)
from plait.core.errors import InputError, JournalError, TrustError, closest_name, format_names
from plait.core.hints import Final, Literal, TypeAlias, TypeGuard, TypeVar
from plait.core.private_files import sync_folder
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.events import Status

LAST: Final = "last"
_LETTERS: Final = "abcdefghjkmnpqrstvwxyz"
_SIGNS: Final = "0123456789" + _LETTERS
"""Without those that are taken for others."""
_ID_LENGTH: Final = 8
MOST_REMOVED: Final = 50
"""Runs that are removed at a time."""
NEAR: Final = 1000
"""Of so many of the newest runs a name may be meant that is written wrongly."""
MOST_RUNS: Final = 1 << 50
"""A number above it is taken for it, so that none that a clone brings along leaves no room for
ours.
"""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What `plait runs` says of a run."""

    id: str
    flow: str
    file: str
    status: Status | Literal["unreadable"]
    start_time: float
    end_time: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of its items: done, failed, skipped."""
    problem: str = ""
    """Why its journal cannot be read, if it cannot: then `started` is when its folder last changed.
    """
    foreign: bool = False
    """It is not this user's own: it is shown, and neither worked on nor removed."""


Summaries: TypeAlias = list[RunSummary]
_DEPTH: Final = 4
"""Of the folder of a run below that of its project: `.ai/state/runs/ID`."""


class OpenRun:
    """A run whose journal is open: to work on it alone, or to look at it."""

    def __init__(
        self,
        id: str,
        folder: str,
        journal: SqliteJournal,
        lock: RunLock | None,
        seals: Sealing,
        then: Callable[[RunSummary | None], object] | None = None,
    ) -> None:
        """`then` hears how the run stands when it is closed, if it was worked on."""
        self.id = id
        self.folder = folder
        self.journal = journal
        self.logs = Logs(os.path.join(folder, "logs"))
        self._lock = lock
        self._then = then
        self._owner = Owner(seals, id, folder)

    @property
    def project(self) -> str:
        """Where the project is now; it may have been moved or copied since the run was made."""
        return self.folder.rsplit(os.sep, _DEPTH)[0]

    @property
    def facts(self) -> dict[str, Json]:
        """What was said of the run when it was made."""
        return without_seal(self._facts_with_seal)

    @property
    def _facts_with_seal(self) -> dict[str, Json]:
        reader = self.journal.reader
        said = reader.about("facts")
        if said is None and reader.about("created") is None:
            return {}  # Plait was ended while it made it
        try:
            facts: dict[str, Json] = require_shape(decode_json(said), is_facts)  # type: ignore[arg-type]
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
        """Why nobody will know that this user made the run; empty if that is known."""
        return self._owner.why_unsealed

    def require_own(self) -> None:
        """TrustError unless this user made the run here: what others wrote decides nothing."""
        facts = self._facts_with_seal
        if not facts:
            raise never_begun(self.id)
        if not self._owner.is_own(facts):
            raise foreign_run(self.id, self.project)

    def update_facts(self, **facts: Json) -> None:
        """Say something else of the run from now on."""
        said = self._owner.add_seal({**self.facts, **facts})
        self.journal.active_writer.say("facts", to_json(said))

    def close(self) -> None:
        summary: RunSummary | None = None
        try:
            if self._lock is not None:
                self._keep_counts()
                with suppress(JournalError):
                    summary = _make_summary(self, is_running=False)
        finally:
            self.journal.close()
            if self._lock is not None:
                self._lock.release()
        if self._then is not None:
            self._then(summary)

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_counts(self) -> None:
        """A list of many runs need not count the items of each; without it, it does."""
        with suppress(JournalError):
            reader = self.journal.reader
            last = reader.last()
            self.journal.active_writer.say("counts", to_json([last, reader.item_counts()]))


class Runs:
    """All runs of the project at `root`."""

    def __init__(
        self,
        root: str,
        *,
        seals: Sealing | None = None,
        random: Callable[[int], bytes] = os.urandom,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._root = os.path.abspath(root)
        self._seals = Unsealed() if seals is None else seals
        self._state = os.path.join(self._root, ".ai", "state")
        self._folder = os.path.join(self._state, "runs")
        self._removed = os.path.join(self._state, "removed")
        self._random = random
        self._now = now

    @property
    def folder(self) -> str:
        """In which each run has a folder of its own."""
        return self._folder

    @property
    def index_file(self) -> str:
        """The number of the folder is in its name: one that a clone brought along is never
        opened.
        """
        return os.path.join(self._state, f"runs-{os.stat(self._state).st_ino}.db")

    # ── making and opening ───────────────────────────────────────────────

    def create(self, facts: Mapping[str, Json]) -> OpenRun:
        """A new run with an empty journal, ours alone."""
        to_json(dict(facts))  # refuses what cannot be written, before anything is made
        with not_begun():
            self._make_folders()
            made: list[tuple[str, int]] = []
            created = self._now()

            def make(number: int) -> str:
                if not made:  # only once, also if the index has to be made again
                    made.append((self._new_folder(), number))
                return made[0][0]

            self._query_index(lambda index: index.add(make, created))
            run, number = made[0]
            try:
                return self._make_run(
                    run, os.path.join(self._folder, run), facts, (number, created)
                )
            except BaseException:
                self._remove_folder(os.path.join(self._folder, run))
                raise

    def _make_run(self, run: str, folder: str, facts: Mapping[str, Json], place: Place) -> OpenRun:
        opened = self._open_for_writing(run, folder, create=True)
        try:
            number, created = place
            opened.update_facts(**facts)
            opened.journal.active_writer.say("place", number)
            # Last, since a run with this counts as wholly made.
            opened.journal.active_writer.say("created", created)
            opened.journal.sync()
            about = About(number, created)
            write_about(folder, about)
            opened.journal.active_writer.keep_tail(about)
            with map_storage_errors(folder):
                sync_folder(self._folder)
        except BaseException:
            opened.close()
            raise
        return opened

    def open(self, run: str, *, write: bool) -> OpenRun:
        """A run by its whole id; to write, only if no other engine works on it."""
        folder = os.path.join(self._folder, run)
        if not _is_name(run) or not os.path.isdir(folder):
            raise self._unknown(run)
        require_plain_folders(self._root, folder)
        with _expecting_made(folder):
            opened = (
                self._open_for_writing(run, folder)
                if write
                else self._open_for_reading(run, folder)
            )
        try:
            _creation_time(opened)
            _ = opened.facts
        except BaseException:
            opened.close()
            raise
        if write:
            self._query_index(lambda index: index.note(run, "", ended=False))
        return opened

    def open_own(self, run: str, *, write: bool) -> OpenRun:
        """The same for a run that this user made here; TrustError for any other, which is not
        written to.
        """
        opened = self.open(run, write=False)
        try:
            opened.require_own()
        except BaseException:
            opened.close()
            raise
        if not write:
            return opened
        opened.close()
        return self.open(run, write=True)

    def _open_for_reading(self, run: str, folder: str, *, whole: bool = True) -> OpenRun:
        """A run with all the records that it is known to have had; `whole`: each of the last is
        looked at.
        """
        about = read_about(folder)  # before the journal, which may grow
        opened = OpenRun(run, folder, SqliteJournal(folder, write=False), None, self._seals)
        try:
            opened.journal.reader.require_records(about, whole=whole)
        except BaseException:
            opened.close()
            raise
        return opened

    def _open_for_writing(self, run: str, folder: str, *, create: bool = False) -> OpenRun:
        lock = RunLock.take(os.path.join(folder, "lock"), run, now=self._now())
        try:
            about = None if create else read_about(folder)
            if about is not None:
                # Before anything is written: a backup may still make it whole.
                self._open_for_reading(run, folder).close()
            journal = SqliteJournal(folder, write=True, create=create, now=self._now)
            if about is not None:
                journal.active_writer.keep_tail(about)
        except BaseException:
            lock.release()
            raise
        return OpenRun(
            run, folder, journal, lock, self._seals, lambda summary: self._keep(run, summary)
        )

    def _make_folders(self) -> None:
        require_plain_folders(self._root, self._folder)
        make_own_folder(self._state)
        ignore = os.path.join(self._state, ".gitignore")
        with (
            map_storage_errors(ignore),
            suppress(FileExistsError),
            open(ignore, "x", encoding="ascii") as file,
        ):
            file.write("*\n")
        make_own_folder(self._folder)

    def _new_folder(self) -> str:
        while True:
            run = self._new_id()
            with map_storage_errors(self._folder), suppress(FileExistsError):
                os.mkdir(os.path.join(self._folder, run), 0o700)
                return run

    def _new_id(self) -> str:
        """Begins with a letter, so that nothing takes it for a number."""
        first, *others = self._random(_ID_LENGTH)
        return _LETTERS[first % len(_LETTERS)] + "".join(_SIGNS[n % len(_SIGNS)] for n in others)

    # ── finding ──────────────────────────────────────────────────────────

    def find(self, prefix: str | None = None) -> str:
        """The id that begins so; the newest for None and `last`."""
        if prefix in (None, "", LAST):
            found = self.list(1)
            if not found:
                raise InputError(
                    "there is no run yet", fix="plait run FILE makes one", code="unknown-run"
                )
            # What a clone brought along does not push itself before the user's own runs.
            known = self.list() if found[0].foreign else found
            return next((one.id for one in known if not one.foreign), found[0].id)
        assert prefix is not None
        if self._query_index(lambda index: index.knows(prefix)):
            return prefix
        named = self._query_index(lambda index: index.begin_with(prefix, NEAR))
        if len(named) > 1:
            raise InputError(
                f"several runs begin with '{prefix}': {format_names(sorted(named))}",
                fix="write one more character",
                code="unknown-run",
            )
        if not named:
            raise self._unknown(prefix)
        return named[0]

    def list(self, most: int | None = None) -> Summaries:
        """The newest first, also those that cannot be read; what was never wholly made is left
        out.
        """
        found: Summaries = []
        step = None if most is None else max(2 * most, 10)
        entries = self._query_index(lambda index: index.newest(step))
        for entry in entries:
            if most is not None and len(found) >= most:
                return found
            if (summary := self._current(entry)) is not None:
                found.append(summary)
        if step is not None and len(entries) == step and most is not None and len(found) < most:
            return self.list()[:most]  # many were never made
        return found

    def _current(self, entry: Entry) -> RunSummary | None:
        """How a run stands, from the index if its files are as they were."""
        folder = os.path.join(self._folder, entry.id)
        if not is_held(os.path.join(folder, "lock")):
            said = load_summary(entry.read, folder)
            if (known := _summary_said(entry.id, said)) is not None:
                return known
        stamp, _ = files_stamp(folder)
        at = time.time_ns()
        summary = self._summary(entry.id)
        is_settled = summary is None or summary.status not in ("running", "unreadable")
        if is_settled and files_stamp(folder)[0] == stamp and os.path.isdir(folder):
            self._note(entry.id, summary, stamp, at)
        return summary

    def _keep(self, run: str, summary: RunSummary | None) -> None:
        """How a run stands that was just worked on."""
        stamp, _ = files_stamp(os.path.join(self._folder, run))
        self._note(run, summary, stamp, time.time_ns())

    def _note(self, run: str, summary: RunSummary | None, stamp: str, at: int) -> None:
        """What was never made has ended as well: it may be removed when it is old."""
        ended = summary is None or summary.status in ENDED
        read = "" if summary is None else dump_summary(stamp, at, _summary_fields(summary))
        self._query_index(lambda index: index.note(run, read, ended=ended))

    def _query_index(self, ask: Callable[[Index], _T]) -> _T:
        """Ask the index; one that is of no use is made again, in memory if it cannot be kept."""
        require_plain_folders(self._root, self._folder)
        if not os.path.isdir(self._state):
            return self._query_index_at(IN_MEMORY, ask)
        path = self.index_file
        for _ in range(2):
            try:
                return self._query_index_at(path, ask)
            except (sqlite3.Error, DamagedIndex) as error:
                if is_useless(error):
                    remove_index(path)
        return self._query_index_at(IN_MEMORY, ask)

    def _query_index_at(self, path: str, ask: Callable[[Index], _T]) -> _T:
        try:
            with closing(Index(path, self._folder, self._read_place)) as index:
                return ask(index)
        except OSError as error:
            raise to_journal_error(error, self._folder) from error

    def _read_place(self, run: str) -> Place:
        """Its number, and when it was made, as it says itself; of an older Plait they have no
        number.
        """
        folder = os.path.join(self._folder, run)
        about = read_about(folder)
        number: object = 0
        created: object = None
        if about is not None:
            number, created = about.place, about.created
        else:
            with suppress(JournalError), self._open_for_reading(run, folder) as opened:
                number, created = (
                    opened.journal.reader.about(name) for name in ("place", "created")
                )
        number = min(number, MOST_RUNS) if isinstance(number, int) and number > 0 else 0
        return number, created if _is_time(created) else self._folder_mtime(run)

    def is_running(self, run: str) -> bool:
        """Does an engine work on it just now?"""
        return is_held(os.path.join(self._folder, run, "lock"))

    def running(self) -> set[str]:
        """Those on which engines work just now."""
        with map_storage_errors(self._folder):
            return {run for run in run_names(self._folder) if self.is_running(run)}

    def _unknown(self, run: str) -> InputError:
        known = [entry.id for entry in self._query_index(lambda index: index.newest(NEAR))]
        meant = closest_name(run, [one for one in known if one != run])
        fix = f"did you mean '{meant}'? " if meant else ""
        return InputError(
            f"there is no run '{run}'",
            fix=f"{fix}plait runs lists those that there are",
            code="unknown-run",
        )

    def _summary(self, run: str) -> RunSummary | None:
        folder = os.path.join(self._folder, run)
        is_running = is_held(os.path.join(folder, "lock"))
        if not _was_begun(folder):
            return None
        try:
            with (
                _expecting_made(folder),
                self._open_for_reading(run, folder, whole=not is_running) as opened,
            ):
                return _make_summary(opened, is_running=is_running)
        except JournalError as error:
            if error.code == "unmade":
                return None
            if error.code == "open-files":  # which says nothing of this run
                raise
            return RunSummary(
                run, "", "", "unreadable", self._folder_mtime(run), problem=error.what
            )

    # ── removing ─────────────────────────────────────────────────────────

    def remove_old(self, keep: int, days: float) -> tuple[str, ...]:
        """Remove the oldest runs, if the newest `keep` all began so many days after them; which
        those were.

        No clock decides: one that is wrong says so of its own run alone.  What has not ended stays,
        and what cannot be read: a newer version, or a backup, may make it readable.  So does a run
        whose items left something in worktrees of their own, and a run that is not this user's:
        that has no say either.
        """
        # What lies behind a link is nobody's rest of a run.
        require_plain_folders(self._root, self._removed)
        self._finish_removing()
        keep = max(keep, 1)
        newest, oldest = self._query_index(
            lambda index: (index.newest(keep), index.oldest_ended(MOST_REMOVED))
        )
        if len(newest) < keep:
            return ()
        before = min(entry.created for entry in newest) - days * 86_400
        if not any(entry.created < before for entry in oldest):
            return ()
        if any(self._is_foreign(entry) for entry in newest):  # those decide about none of ours
            own = (
                one
                for one in self._query_index(lambda index: index.newest())
                if not self._is_foreign(one)
            )
            newest = list(islice(own, keep))
            if len(newest) < keep:
                return ()
            before = min(entry.created for entry in newest) - days * 86_400
        kept = {entry.id for entry in newest}
        removed: list[str] = []
        for entry in oldest:
            if entry.id in kept or entry.created >= before:
                break  # nothing that was made later is older
            if self._may_be_removed(entry, before) and self._is_removed(entry.id):
                removed.append(entry.id)
        self._finish_removing()
        return tuple(removed)

    def _may_be_removed(self, entry: Entry, before: float) -> bool:
        """What its journal says, and not the index."""
        summary = self._summary(entry.id)
        if summary is None:
            return True
        if summary.status in ENDED and not summary.foreign:
            return summary.start_time < before
        # So that it does not stand before others the next time; who works on it puts it back.
        self._query_index(lambda index: index.note(entry.id, entry.read, ended=False))
        return False

    def _is_foreign(self, entry: Entry) -> bool:
        summary = self._current(entry)
        return summary is not None and summary.foreign

    def _folder_mtime(self, run: str) -> float:
        try:
            return os.stat(os.path.join(self._folder, run)).st_mtime
        except OSError:
            return self._now()

    def _is_removed(self, run: str) -> bool:
        folder = os.path.join(self._folder, run)
        if any(_list_folder(os.path.join(folder, "worktrees"))):
            return False
        try:
            lock = RunLock.take(os.path.join(folder, "lock"), run, now=self._now())
        except (InputError, JournalError):
            return False
        try:
            make_own_folder(self._removed)
            # In one step, so that nobody ever meets half of a run.
            return self._query_index(lambda index: index.remove(run, lambda: self._is_aside(run)))
        finally:
            lock.release()

    def _is_aside(self, run: str) -> bool:
        try:
            os.rename(os.path.join(self._folder, run), os.path.join(self._removed, run))
        except OSError:
            return not os.path.lexists(os.path.join(self._folder, run))
        return True

    def _finish_removing(self) -> None:
        """Also what an earlier removal did not come to."""
        for name in _list_folder(self._removed):
            self._remove_folder(os.path.join(self._removed, name))

    def _remove_folder(self, path: str) -> None:
        from shutil import rmtree

        rmtree(path, ignore_errors=True)


ENDED: Final = ("done", "failed")


def _is_name(run: str) -> bool:
    return bool(run) and not run.startswith(".") and os.sep not in run and "\0" not in run


def _summary_fields(summary: RunSummary) -> list[Json]:
    counts = dict(summary.counts)
    return [
        summary.flow,
        summary.file,
        summary.status,
        summary.start_time,
        summary.end_time,
        counts,
        summary.foreign,
    ]


def _summary_said(run: str, said: object) -> RunSummary | None:
    """What the index says of a run, if that is something which was put there."""
    match said:
        case [
            str(flow),
            str(file),
            ("done" | "failed" | "interrupted") as status,
            float(started),
            ended,
            counts,
            bool(foreign),
        ]:
            if _is_time(started) and (ended is None or _is_time(ended)) and is_counts(counts):
                return RunSummary(run, flow, file, status, started, ended, counts, foreign=foreign)  # type: ignore[arg-type]
    return None


@contextmanager
def _expecting_made(folder: str) -> Iterator[None]:
    """A journal without tables is that of a run that was never made, unless more is there of it."""
    try:
        yield
    except JournalError as error:
        path, about = os.path.join(folder, "journal.db"), read_about(folder)
        is_gone = error.code == "cannot-open" and not os.path.lexists(path)
        if is_gone and not _has_more(folder):
            raise unmade(path) from error
        if (error.code != "unmade" and not is_gone) or not _has_more(folder):
            raise
        if about is not None and about.records:
            raise record_loss_error(about.records, about.records, path) from error
        raise damage_error(path) from error


_WHILE_MADE: Final = frozenset(
    {"journal.db", "journal.db-wal", "journal.db-shm", "journal.db-journal", "lock", "reserve"}
)
"""What may be in the folder of a run before it is wholly made."""


def _was_begun(folder: str) -> bool:
    """May there be something to read?  If its journal is empty or gone, it was never made, or is
    damaged.
    """
    try:
        if os.stat(os.path.join(folder, "journal.db")).st_size > 0:
            return True
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return True
    return _has_more(folder)


def _has_more(folder: str) -> bool:
    return any(name not in _WHILE_MADE for name in _list_folder(folder))


def _list_folder(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _make_summary(opened: OpenRun, *, is_running: bool) -> RunSummary | None:
    created = _creation_time(opened)
    if created is None:
        return None
    facts = opened.facts
    status, ended = _ending(opened, is_running=is_running)
    return RunSummary(
        opened.id,
        str(facts.get("flow", "")),
        str(facts.get("file", "")),
        status,
        created,
        ended,
        _counts(opened),
        foreign=not opened.is_own,
    )


def _creation_time(opened: OpenRun) -> float | None:
    """When it was wholly made; None if it was not."""
    reader = opened.journal.reader
    created = reader.about("created")
    if created is None:
        return None
    if not _is_time(created):
        raise damage_error(reader.path)
    return created


def _is_time(said: object) -> TypeGuard[float]:
    return isinstance(said, float) and abs(said) < LAST_TIME


def _ending(opened: OpenRun, *, is_running: bool) -> tuple[Status, float | None]:
    """How its last life ended, and when; a life without an end is going on only if its engine
    lives.
    """
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
        last, counts = decode_json(reader.about("counts"))  # type: ignore[arg-type]
        if last == reader.last() and is_counts(counts):
            return dict(counts)
    return reader.item_counts()
