"""The runs of a project: which there are, and how one is made, opened, found and removed.

Each run has a folder of its own below `.ai/state/runs/`, with its journal, its
lock, and what is too large for the journal.  Runs share no file, so they cannot
wait for each other, and what is damaged or removed is one run's.

An id is random, so that its first four characters nearly always name one run;
when a run began is in its journal.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from plait.engine.events import Status
from plait.errors import InputError, JournalError, listed, nearest
from plait.hints import Final, Literal, TypeAlias
from plait.records import dataclass, field
from plait.store.faults import explained, unbegun
from plait.store.files import make_own_folder, sync_folder
from plait.store.journal import SqliteJournal
from plait.store.lock import RunLock, is_held
from plait.store.logs import Logs
from plait.store.rows import RUN_ENDED, RUN_STARTED, to_json
from plait.store.schema import was_made
from plait.values import Json

LAST: Final = "last"
_LETTERS: Final = "abcdefghjkmnpqrstvwxyz"
_SIGNS: Final = "0123456789" + _LETTERS
"""Without those that are taken for others."""
_ID_LENGTH: Final = 8
_REMOVING: Final = ".removing-"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What `plait runs` says of a run."""

    id: str
    flow: str
    file: str
    status: Status | Literal["unreadable"]
    started: float
    ended: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of its items: done, failed, skipped."""
    problem: str = ""
    """Why its journal cannot be read, if it cannot: then `started` is when its folder last changed."""


Summaries: TypeAlias = list[RunSummary]
_DEPTH: Final = 4
"""Of the folder of a run below that of its project: `.ai/state/runs/ID`."""


class Opened:
    """A run whose journal is open: to work on it alone, or to look at it."""

    def __init__(self, id: str, folder: str, journal: SqliteJournal, lock: RunLock | None) -> None:
        self.id = id
        self.folder = folder
        self.journal = journal
        self.logs = Logs(os.path.join(folder, "logs"))
        self._lock = lock

    @property
    def project(self) -> str:
        """Where the project is now; it may have been moved or copied since the run was made."""
        return self.folder.rsplit(os.sep, _DEPTH)[0]

    @property
    def facts(self) -> dict[str, Json]:
        """What was said of the run when it was made."""
        facts = json.loads(str(self.journal.reader.about("facts") or "{}"))
        return facts if isinstance(facts, dict) else {}

    def amend(self, **facts: Json) -> None:
        """Say something else of the run from now on."""
        self.journal.presumed_writer.say("facts", to_json({**self.facts, **facts}))

    def close(self) -> None:
        try:
            if self._lock is not None:
                self._keep_counts()
        finally:
            self.journal.close()
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_counts(self) -> None:
        """A list of many runs need not count the items of each; without it, it does."""
        with suppress(JournalError):
            reader = self.journal.reader
            last = reader.last()
            self.journal.presumed_writer.say("counts", to_json([last, reader.item_counts()]))


class Runs:
    """All runs of the project at `root`."""

    def __init__(
        self,
        root: str,
        *,
        random: Callable[[int], bytes] = os.urandom,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state = os.path.join(os.path.abspath(root), ".ai", "state")
        self._folder = os.path.join(self._state, "runs")
        self._random = random
        self._now = now

    @property
    def folder(self) -> str:
        """In which each run has a folder of its own."""
        return self._folder

    # ── making and opening ───────────────────────────────────────────────

    def create(self, facts: Mapping[str, Json]) -> Opened:
        """A new run with an empty journal, ours alone."""
        said = to_json(dict(facts))
        self._make_folders()
        run = self._new_folder()
        try:
            return self._made(run, os.path.join(self._folder, run), said)
        except JournalError as error:
            self._remove_folder(run)
            raise unbegun(error) from error

    def _made(self, run: str, folder: str, said: str) -> Opened:
        opened = self._opened_to_write(run, folder, create=True)
        try:
            opened.journal.presumed_writer.say("facts", said)
            # Last, since a run with this counts as wholly made.
            opened.journal.presumed_writer.say("created", self._now())
            opened.journal.sync()
            with explained(folder):
                sync_folder(self._folder)
        except BaseException:
            opened.close()
            raise
        return opened

    def open(self, run: str, *, write: bool) -> Opened:
        """A run by its whole id; to write, only if no other engine works on it."""
        if run not in self._ids():
            raise self._unknown(run)
        folder = os.path.join(self._folder, run)
        if write:
            return self._opened_to_write(run, folder, create=False)
        return Opened(run, folder, SqliteJournal(folder, write=False), None)

    def _opened_to_write(self, run: str, folder: str, *, create: bool) -> Opened:
        lock = RunLock.take(os.path.join(folder, "lock"), run, now=self._now())
        try:
            journal = SqliteJournal(folder, write=True, create=create, now=self._now)
        except BaseException:
            lock.release()
            raise
        return Opened(run, folder, journal, lock)

    def _make_folders(self) -> None:
        make_own_folder(self._state)
        ignore = os.path.join(self._state, ".gitignore")
        with explained(ignore), suppress(FileExistsError), open(ignore, "x", encoding="ascii") as file:
            file.write("*\n")
        make_own_folder(self._folder)

    def _new_folder(self) -> str:
        while True:
            run = self._new_id()
            with explained(self._folder), suppress(FileExistsError):
                os.mkdir(os.path.join(self._folder, run), 0o700)
                return run

    def _new_id(self) -> str:
        """Begins with a letter, so that nothing takes it for a number."""
        first, *others = self._random(_ID_LENGTH)
        return _LETTERS[first % len(_LETTERS)] + "".join(_SIGNS[n % len(_SIGNS)] for n in others)

    # ── finding ──────────────────────────────────────────────────────────

    def find(self, prefix: str | None = None) -> str:
        """The id that begins so; the newest for None and `last`."""
        ids = self._ids()
        if prefix in (None, "", LAST):
            summaries = self.list()
            if not summaries:
                raise InputError("there is no run yet", fix="plait run FILE makes one", code="unknown-run")
            return summaries[0].id
        assert prefix is not None
        found = [run for run in ids if run == prefix] or [run for run in ids if run.startswith(prefix)]
        if len(found) > 1:
            raise InputError(
                f"several runs begin with '{prefix}': {listed(sorted(found))}",
                fix="write one more character",
                code="unknown-run",
            )
        if not found:
            raise self._unknown(prefix)
        return found[0]

    def list(self) -> Summaries:
        """Newest first, also those that cannot be read; what was never wholly made is left out."""
        found = [summary for run in self._ids() if (summary := self._summary(run)) is not None]
        return sorted(found, key=lambda summary: (summary.started, summary.id), reverse=True)

    def _ids(self) -> tuple[str, ...]:
        try:
            names = os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(name for name in names if not name.startswith("."))

    def _unknown(self, run: str) -> InputError:
        known = self._ids()
        meant = nearest(run, known)
        fix = f"did you mean '{meant}'? " if meant else ""
        return InputError(
            f"there is no run '{run}'", fix=f"{fix}plait runs lists those that there are", code="unknown-run"
        )

    def _summary(self, run: str) -> RunSummary | None:
        folder = os.path.join(self._folder, run)
        is_running = is_held(os.path.join(folder, "lock"))
        path = os.path.join(folder, "journal.db")
        if not _has_data(path):
            return None
        try:
            with Opened(run, folder, SqliteJournal(folder, write=False), None) as opened:
                return _summed_up(opened, is_running=is_running)
        except JournalError as error:
            if error.code == "old-journal" and not was_made(path):
                return None
            return RunSummary(run, "", "", "unreadable", self._changed(run), problem=error.what)

    # ── removing ─────────────────────────────────────────────────────────

    def remove_old(self, keep: int, days: float) -> tuple[str, ...]:
        """Remove what began more than so many days ago, but for the newest `keep`; which those were.

        A run that cannot be read stays: a newer version, or a backup, may make it readable.  So does one
        whose items left something in worktrees of their own.
        """
        before = self._now() - days * 86_400
        ids = self._ids()
        # Each start of a run asks for this, so no journal is opened that cannot matter.
        found = self.list() if len(ids) > max(keep, 0) else []
        newest_first = [summary for summary in found if not summary.problem]
        old = [summary.id for summary in newest_first[max(keep, 0) :] if summary.started < before]
        never_made = [run for run in ids if self._changed(run) < before and self._summary(run) is None]
        removed = tuple(run for run in [*old, *never_made] if self._is_removed(run))
        self._finish_removing()
        return removed

    def _changed(self, run: str) -> float:
        try:
            return os.stat(os.path.join(self._folder, run)).st_mtime
        except OSError:
            return self._now()

    def _is_removed(self, run: str) -> bool:
        folder = os.path.join(self._folder, run)
        if any(_listed(os.path.join(folder, "worktrees"))):
            return False
        try:
            lock = RunLock.take(os.path.join(folder, "lock"), run, now=self._now())
        except (InputError, JournalError):
            return False
        try:
            # In one step, so that nobody ever meets half of a run.
            with explained(folder):
                os.rename(folder, os.path.join(self._folder, f"{_REMOVING}{run}"))
        finally:
            lock.release()
        return True

    def _finish_removing(self) -> None:
        """Also what an earlier removal did not come to."""
        for name in _listed(self._folder):
            if name.startswith(_REMOVING):
                self._remove_folder(name)

    def _remove_folder(self, name: str) -> None:
        from shutil import rmtree

        rmtree(os.path.join(self._folder, name), ignore_errors=True)


def _has_data(journal: str) -> bool:
    """Was it ever begun?  What cannot be looked at may have been."""
    try:
        return os.stat(journal).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _listed(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from os.listdir(folder)


def _summed_up(opened: Opened, *, is_running: bool) -> RunSummary | None:
    reader = opened.journal.reader
    created = reader.about("created")
    if not isinstance(created, float):
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
    )


def _ending(opened: Opened, *, is_running: bool) -> tuple[Status, float | None]:
    """How its last life ended, and when; a life without an end is going on only if its engine lives."""
    reader = opened.journal.reader
    started, ended = reader.newest(RUN_STARTED), reader.newest(RUN_ENDED)
    if ended is not None and (started is None or ended[0] > started[0]):
        match ended[2]:
            case "done" | "failed" | "interrupted" as status:
                return status, ended[1]
    return ("running" if is_running else "interrupted"), None


def _counts(opened: Opened) -> dict[str, int]:
    reader = opened.journal.reader
    last, counts = json.loads(str(reader.about("counts") or "[-1, {}]"))
    return counts if last == reader.last() else reader.item_counts()
