"""The runs of a project: create, open, find, list and remove them.

Each run has a folder in `.ai/state/runs/`, with its journal, its lock and its blobs. So damage to
one run stays in that run. An index beside them lists the runs in the order in which they were made
(see `index`), so that no command becomes slower with their number.

Ids are random, so four characters nearly always identify one run.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress

from plait.adapters.store.faults import map_storage_errors, not_begun, to_journal_error
from plait.adapters.store.files import list_folder, make_own_folder, remove_folder
from plait.adapters.store.index import (
    IN_MEMORY,
    DamagedIndex,
    Entry,
    Index,
    RunPosition,
    dump_summary,
    files_stamp,
    is_useless,
    load_summary,
    remove_index,
    run_names,
)
from plait.adapters.store.journal import SqliteJournal
from plait.adapters.store.lock import RunLock, is_held, read_holder
from plait.adapters.store.open_run import (
    ENDED,
    OpenRun,
    RunSummary,
    creation_time,
    is_time,
    make_summary,
    summary_fields,
    summary_from_fields,
)
from plait.adapters.store.ownership import Sealing, Unsealed, require_plain_folders
from plait.adapters.store.rows import to_json
from plait.adapters.store.run_info import (
    RunInfo,
    read_run_info,
    record_loss_error,
    write_run_info,
)
from plait.adapters.store.schema import empty_journal
from plait.adapters.store.shapes import damage_error
from plait.core.errors import InputError, JournalError, closest_name, format_names
from plait.core.hints import Final, TypeAlias, TypeVar
from plait.core.private_files import sync_folder
from plait.core.values import Json

LAST: Final = "last"
UNFINISHED: Final = ("interrupted", "failed", "unreadable")
"""The statuses of runs to resume. A running one is left to the process that works on it."""
_LETTERS: Final = "abcdefghjkmnpqrstvwxyz"
_CHARACTERS: Final = "0123456789" + _LETTERS
"""The characters of ids, without those that look like others."""
_ID_LENGTH: Final = 8
NEAR: Final = 1000
"""The number of newest runs with which a misspelt id is compared."""
MOST_RUNS: Final = 1 << 50
"""The limit for the number of a run: a larger one counts as this, so that a clone cannot use up all
numbers.
"""
_T = TypeVar("_T")
Summaries: TypeAlias = list[RunSummary]


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
        self.folder = os.path.join(self._state, "runs")
        """The folder that contains the folder of each run."""
        self._random = random
        self.now = now

    # ── making and opening ───────────────────────────────────────────────

    def create(self, facts: Mapping[str, Json]) -> OpenRun:
        """Create a run with an empty journal, and return it open for writing."""
        to_json(dict(facts))  # fails for values that cannot be written, before anything is made
        with not_begun():
            self._make_folders()
            made: list[tuple[str, int]] = []
            created = self.now()

            def make(number: int) -> str:
                if not made:  # only once, even if the index must be made again
                    made.append((self._new_folder(), number))
                return made[0][0]

            self.query_index(lambda index: index.add(make, created))
            run, number = made[0]
            try:
                return self._make_run(run, os.path.join(self.folder, run), facts, (number, created))
            except BaseException:
                remove_folder(os.path.join(self.folder, run))
                raise

    def _make_run(
        self, run: str, folder: str, facts: Mapping[str, Json], position: RunPosition
    ) -> OpenRun:
        opened = self._open_for_writing(run, folder, create=True)
        writer = opened.journal.active_writer
        try:
            number, created = position
            opened.update_facts(**facts)
            writer.set_property("number", number)
            # Written last: a run with this property is complete.
            writer.set_property("created", created)
            opened.journal.sync()
            info = RunInfo(number, created)
            write_run_info(folder, info)
            writer.keep_tail(info)
            with map_storage_errors(folder):
                sync_folder(self.folder)
        except BaseException:
            opened.close()
            raise
        return opened

    def open(self, run: str, *, write: bool) -> OpenRun:
        """Open a run by its whole id; for writing only if no other engine has it open."""
        folder = os.path.join(self.folder, run)
        if not _is_name(run) or not os.path.isdir(folder):
            raise self._unknown_run(run)
        require_plain_folders(self._root, folder)
        with _expecting_complete(folder):
            opened = (
                self._open_for_writing(run, folder)
                if write
                else self._open_for_reading(run, folder)
            )
        try:
            creation_time(opened)
            _ = opened.facts
        except BaseException:
            opened.close()
            raise
        if write:
            self.query_index(lambda index: index.note(run, "", ended=False))
        return opened

    def open_own(self, run: str, *, write: bool) -> OpenRun:
        """Open a run that this user made here. TrustError for any other, before a write."""
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
        """Open a run for reading; `whole`: also check that the last records are unchanged."""
        info = read_run_info(folder)  # read before the journal, which may grow
        opened = OpenRun(run, folder, SqliteJournal(folder, write=False), None, self._seals)
        try:
            opened.journal.reader.require_records(info, whole=whole)
        except BaseException:
            opened.close()
            raise
        return opened

    def _open_for_writing(self, run: str, folder: str, *, create: bool = False) -> OpenRun:
        lock = RunLock.take(os.path.join(folder, "lock"), run, now=self.now())
        try:
            info = None if create else read_run_info(folder)
            if info is not None:
                # Checked before anything is written: a backup may still repair it.
                self._open_for_reading(run, folder).close()
            journal = SqliteJournal(folder, write=True, create=create, now=self.now)
            if info is not None:
                journal.active_writer.keep_tail(info)
        except BaseException:
            lock.release()
            raise
        return OpenRun(
            run, folder, journal, lock, self._seals, lambda summary: self._store(run, summary)
        )

    def _make_folders(self) -> None:
        require_plain_folders(self._root, self.folder)
        make_own_folder(self._state)
        ignore = os.path.join(self._state, ".gitignore")
        with (
            map_storage_errors(ignore),
            suppress(FileExistsError),
            open(ignore, "x", encoding="ascii") as file,
        ):
            file.write("*\n")
        make_own_folder(self.folder)

    def _new_folder(self) -> str:
        while True:
            # An id begins with a letter, so that no program reads it as a number.
            first, *others = self._random(_ID_LENGTH)
            run = _LETTERS[first % len(_LETTERS)]
            run += "".join(_CHARACTERS[n % len(_CHARACTERS)] for n in others)
            with map_storage_errors(self.folder), suppress(FileExistsError):
                os.mkdir(os.path.join(self.folder, run), 0o700)
                return run

    # ── finding ──────────────────────────────────────────────────────────

    def find(self, prefix: str | None = None) -> str:
        """Return the id that begins with `prefix`; for None and `last`, the newest run."""
        if prefix in (None, "", LAST):
            found = self.list(1)
            if not found:
                raise InputError(
                    "there is no run yet", fix="plait run FILE makes one", code="unknown-run"
                )
            # The user's own runs come first, whatever a clone contains.
            candidates = self.list() if found[0].foreign else found
            return next((one.id for one in candidates if not one.foreign), found[0].id)
        assert prefix is not None
        if not prefix.isascii():  # no id is like that, and SQLite accepts no halves of characters
            raise self._unknown_run(prefix)
        if self.query_index(lambda index: index.knows(prefix)):
            return prefix
        named = self.query_index(lambda index: index.begin_with(prefix, NEAR))
        if len(named) > 1:
            raise InputError(
                f"several runs begin with '{prefix}': {format_names(sorted(named))}",
                fix="write one more character",
                code="unknown-run",
            )
        if not named:
            raise self._unknown_run(prefix)
        return named[0]

    def find_unfinished(self) -> str | None:
        """Return the newest unfinished run of this user; None if all have finished.

        If no run was made by this user, it is the newest one, which `open_own` refuses.
        """
        entries = self.query_index(lambda index: index.newest(None))
        has_own = False
        for entry in entries:
            summary = self.current_summary(entry)
            if summary is None or summary.foreign:
                continue
            if summary.status in UNFINISHED:
                return summary.id
            has_own = True
        return None if has_own else self.find()

    def list(self, most: int | None = None) -> Summaries:
        """Return the newest runs first, with unreadable ones, without incomplete ones."""
        found: Summaries = []
        step = None if most is None else max(2 * most, 10)
        entries = self.query_index(lambda index: index.newest(step))
        for entry in entries:
            if most is not None and len(found) >= most:
                return found
            if (summary := self.current_summary(entry)) is not None:
                found.append(summary)
        if step is not None and len(entries) == step and most is not None and len(found) < most:
            return self.list()[:most]  # many are incomplete
        return found

    def is_running(self, run: str) -> bool:
        """Does an engine have the run open now?"""
        return is_held(os.path.join(self.folder, run, "lock"))

    def holder(self, run: str) -> int | None:
        """Return the process that works on the run now; None if none does."""
        return read_holder(os.path.join(self.folder, run, "lock"))

    def newest(self, most: int) -> Iterator[tuple[str, RunSummary | None]]:
        """Yield the ids of the newest runs, with a summary unless the run is running."""
        for entry in self.query_index(lambda index: index.newest(most)):
            if self.is_running(entry.id):
                yield entry.id, None
            elif (summary := self.current_summary(entry)) is not None:
                yield entry.id, summary

    def running(self) -> set[str]:
        """Return the runs that engines have open now."""
        with map_storage_errors(self.folder):
            return {run for run in run_names(self.folder) if self.is_running(run)}

    def _unknown_run(self, run: str) -> InputError:
        ids = [entry.id for entry in self.query_index(lambda index: index.newest(NEAR))]
        close = closest_name(run, [one for one in ids if one != run])
        fix = f"did you mean '{close}'? " if close else ""
        return InputError(
            f"there is no run '{run}'",
            fix=f"{fix}plait runs lists those that there are",
            code="unknown-run",
        )

    # ── summaries ────────────────────────────────────────────────────────

    def current_summary(self, entry: Entry) -> RunSummary | None:
        """Return a summary, from the index if the files of the run have not changed, else
        from its journal.
        """
        folder = os.path.join(self.folder, entry.id)
        if not is_held(os.path.join(folder, "lock")):
            fields = load_summary(entry.summary, folder)
            if (stored := summary_from_fields(entry.id, fields, self._seals.viewer)) is not None:
                return stored
        stamp, _ = files_stamp(folder)
        at = time.time_ns()
        summary = self.summary(entry.id)
        is_settled = summary is None or summary.status not in ("running", "unreadable")
        if is_settled and files_stamp(folder)[0] == stamp and os.path.isdir(folder):
            self._store_summary(entry.id, summary, stamp, at)
        return summary

    def summary(self, run: str) -> RunSummary | None:
        """Return a summary from the journal; None if the run is incomplete."""
        folder = os.path.join(self.folder, run)
        is_running = is_held(os.path.join(folder, "lock"))
        if not _was_begun(folder):
            return None
        try:
            with (
                _expecting_complete(folder),
                self._open_for_reading(run, folder, whole=not is_running) as opened,
            ):
                return make_summary(opened, is_running=is_running)
        except JournalError as error:
            if error.code == "empty-journal":
                return None
            if error.code == "open-files":  # not a problem of this run
                raise
            return RunSummary(
                run, "", "", "unreadable", self._folder_mtime(run), problem=error.what
            )

    def _store(self, run: str, summary: RunSummary | None) -> None:
        stamp, _ = files_stamp(os.path.join(self.folder, run))
        self._store_summary(run, summary, stamp, time.time_ns())

    def _store_summary(self, run: str, summary: RunSummary | None, stamp: str, at: int) -> None:
        # An incomplete run counts as ended too: it may be removed when it is old.
        ended = summary is None or summary.status in ENDED
        text = (
            ""
            if summary is None
            else dump_summary(stamp, at, summary_fields(summary, self._seals.viewer))
        )
        self.query_index(lambda index: index.note(run, text, ended=ended))

    # ── the index ────────────────────────────────────────────────────────

    @property
    def index_file(self) -> str:
        """The path of the index. Its name has the inode of the folder, so an index from a
        clone is never opened.
        """
        return os.path.join(self._state, f"runs-{os.stat(self._state).st_ino}.db")

    def query_index(self, query: Callable[[Index], _T]) -> _T:
        """Query the index; a useless one is made again, in memory if it cannot be written."""
        require_plain_folders(self._root, self.folder)
        if not os.path.isdir(self._state):
            return self._query_index_at(IN_MEMORY, query)
        path = self.index_file
        for _ in range(2):
            try:
                return self._query_index_at(path, query)
            except (sqlite3.Error, DamagedIndex) as error:
                if is_useless(error):
                    remove_index(path)
        return self._query_index_at(IN_MEMORY, query)

    def _query_index_at(self, path: str, query: Callable[[Index], _T]) -> _T:
        try:
            with closing(Index(path, self.folder, self._read_position)) as index:
                return query(index)
        except OSError as error:
            raise to_journal_error(error, self.folder) from error

    def _read_position(self, run: str) -> RunPosition:
        """Read the position of a run from `run.json`; without one, from the journal."""
        folder = os.path.join(self.folder, run)
        info = read_run_info(folder)
        number: object = 0
        created: object = None
        if info is not None:
            number, created = info.number, info.created
        else:
            with suppress(JournalError), self._open_for_reading(run, folder) as opened:
                number, created = (
                    opened.journal.reader.get_property(name) for name in ("number", "created")
                )
        number = min(number, MOST_RUNS) if isinstance(number, int) and number > 0 else 0
        return number, created if is_time(created) else self._folder_mtime(run)

    def _folder_mtime(self, run: str) -> float:
        try:
            return os.stat(os.path.join(self.folder, run)).st_mtime
        except OSError:
            return self.now()

    # ── removing ─────────────────────────────────────────────────────────

    def remove_old(self, keep: int, days: float) -> tuple[str, ...]:
        """Remove runs that have ended and are older than the newest `keep` by this number
        of days.
        """
        from plait.adapters.store.removal import remove_old_runs

        return remove_old_runs(self, self._root, keep, days)


def _is_name(run: str) -> bool:
    return bool(run) and not run.startswith(".") and os.sep not in run and "\0" not in run


@contextmanager
def _expecting_complete(folder: str) -> Iterator[None]:
    """Distinguish an empty journal of a run that was never complete from one that lost its
    records.
    """
    try:
        yield
    except JournalError as error:
        path, info = os.path.join(folder, "journal.db"), read_run_info(folder)
        is_gone = error.code == "cannot-open" and not os.path.lexists(path)
        if is_gone and not _has_more(folder):
            raise empty_journal(path) from error
        if (error.code != "empty-journal" and not is_gone) or not _has_more(folder):
            raise
        if info is not None and info.records:
            raise record_loss_error(info.records, info.records, path) from error
        raise damage_error(path) from error


_INCOMPLETE: Final = frozenset(
    {"journal.db", "journal.db-wal", "journal.db-shm", "journal.db-journal", "lock", "reserve"}
)
"""The files that a run may have before it is complete."""


def _was_begun(folder: str) -> bool:
    """Was the run begun? False: there is nothing to read, and the run was never complete."""
    try:
        if os.stat(os.path.join(folder, "journal.db")).st_size > 0:
            return True
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return True
    return _has_more(folder)


def _has_more(folder: str) -> bool:
    return any(name not in _INCOMPLETE for name in list_folder(folder))
