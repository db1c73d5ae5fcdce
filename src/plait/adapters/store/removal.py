"""Remove old runs of a project."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice

from plait.adapters.store.files import list_folder, make_own_folder, remove_folder
from plait.adapters.store.index import Entry, Index
from plait.adapters.store.lock import RunLock
from plait.adapters.store.open_run import ENDED, RunSummary
from plait.adapters.store.ownership import require_plain_folders
from plait.core.errors import InputError, JournalError
from plait.core.hints import Final, Protocol, TypeVar

MOST_REMOVED: Final = 50
"""The number of runs that are removed at a time."""
DAY: Final = 86_400
_T = TypeVar("_T")


class RunStore(Protocol):
    """The parts of `Runs` that a removal needs."""

    folder: str
    now: Callable[[], float]

    def query_index(self, query: Callable[[Index], _T], /) -> _T: ...
    def current_summary(self, entry: Entry, /) -> RunSummary | None: ...
    def summary(self, run: str, /) -> RunSummary | None: ...


def remove_old_runs(runs: RunStore, root: str, keep: int, days: float) -> tuple[str, ...]:
    """Remove runs that have ended and are older than the newest `keep` by this number of days.

    Only the times of runs are compared, so a wrong clock now removes nothing. These stay: runs
    that have not ended, unreadable ones (a newer Plait or a backup may read them), those with
    leftovers in worktrees, and foreign ones, which do not count among the newest either.
    """
    trash = os.path.join(root, ".ai", "state", "removed")
    require_plain_folders(root, trash)
    _empty(trash)
    keep = max(keep, 1)
    newest, oldest = runs.query_index(
        lambda index: (index.newest(keep), index.oldest_ended(MOST_REMOVED))
    )
    if len(newest) < keep:
        return ()
    before = _limit(newest, days)
    if not any(entry.created < before for entry in oldest):
        return ()
    if any(_is_foreign(runs, entry) for entry in newest):
        own = (
            entry
            for entry in runs.query_index(lambda index: index.newest())
            if not _is_foreign(runs, entry)
        )
        newest = list(islice(own, keep))
        if len(newest) < keep:
            return ()
        before = _limit(newest, days)
    kept = {entry.id for entry in newest}
    removed: list[str] = []
    for entry in oldest:
        if entry.id in kept or entry.created >= before:
            break  # all later ones are newer
        if _may_be_removed(runs, entry, before) and _move_to_trash(runs, entry.id, trash):
            removed.append(entry.id)
    _empty(trash)
    return tuple(removed)


def _limit(newest: list[Entry], days: float) -> float:
    return min(entry.created for entry in newest) - days * DAY


def _is_foreign(runs: RunStore, entry: Entry) -> bool:
    summary = runs.current_summary(entry)
    return summary is not None and summary.foreign


def _may_be_removed(runs: RunStore, entry: Entry, before: float) -> bool:
    """May a run be removed? Its journal decides, because the index may be wrong."""
    summary = runs.summary(entry.id)
    if summary is None:
        return True
    if summary.status in ENDED and not summary.foreign:
        return summary.start_time < before
    # So it does not come before others the next time; an engine that opens it puts it back.
    runs.query_index(lambda index: index.note(entry.id, entry.summary, ended=False))
    return False


def _move_to_trash(runs: RunStore, run: str, trash: str) -> bool:
    folder = os.path.join(runs.folder, run)
    if any(list_folder(os.path.join(folder, "worktrees"))):
        return False
    try:
        lock = RunLock.take(os.path.join(folder, "lock"), run, now=runs.now())
    except (InputError, JournalError):
        return False

    def rename() -> bool:
        try:
            os.rename(folder, os.path.join(trash, run))
        except OSError:
            return not os.path.lexists(folder)
        return True

    try:
        make_own_folder(trash)
        # Rename first, so that no process ever sees half of a run.
        return runs.query_index(lambda index: index.remove(run, rename))
    finally:
        lock.release()


def _empty(trash: str) -> None:
    """Empty the trash, which also has leftovers of killed processes."""
    for name in list_folder(trash):
        remove_folder(os.path.join(trash, name))
