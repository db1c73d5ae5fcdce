"""Whose a run is.  Only one that this user made in this very folder is worked on, or removed.

The facts of a run say which file it runs.  They bear a seal that only this user can make, over the
id of the run, the facts, and the numbers (inodes) of its folder and journal.  A clone, an archive
or a copy is another folder with another number, so a seal that travelled along with it does not
hold.  A project that is moved keeps its numbers, and its runs.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping

from plait.adapters.store.rows import to_json
from plait.core.errors import InputError, JournalError, TrustError
from plait.core.hints import Final, Protocol
from plait.core.values import Json

SEAL: Final = "seal"
"""Among the facts of a run."""
JOURNAL: Final = "journal.db"
_BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""The ends of the names of a journal's files."""


class Sealing(Protocol):
    """Who makes seals, and knows them again."""

    def make(self, text: str, /) -> str: ...
    def holds(self, text: str, seal: str, /) -> bool: ...


class Unsealed:
    """For a store that only one program ever sees: everything in it is its own."""

    def make(self, _text: str, /) -> str:
        return ""

    def holds(self, _text: str, _seal: str, /) -> bool:
        return True


class Owner:
    """Seals the facts of one run."""

    def __init__(self, seals: Sealing, run: str, folder: str) -> None:
        self._seals = seals
        self._run = run
        self._folder = folder
        self.why_unsealed = ""

    def add_seal(self, facts: Mapping[str, Json]) -> dict[str, Json]:
        """The facts with their seal; without one, if this user has no key and cannot have one."""
        plain = without_seal(facts)
        try:
            return {**plain, SEAL: self._seals.make(self._text(plain))}
        except TrustError as error:
            self.why_unsealed = f"{error.what}; {error.fix}" if error.fix else error.what
            return plain

    def is_own(self, facts: Mapping[str, Json]) -> bool:
        """Did this user write these facts, of this run, in this very folder?"""
        seal = facts.get(SEAL, "")
        try:
            return isinstance(seal, str) and self._seals.holds(
                self._text(without_seal(facts)), seal
            )
        except OSError:
            return False

    def _text(self, facts: Mapping[str, Json]) -> str:
        numbers = [_number(self._folder), _number(os.path.join(self._folder, JOURNAL))]
        return to_json(["plait run", 1, self._run, numbers, dict(facts)])


def without_seal(facts: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in facts.items() if name != SEAL}


def foreign_run(run: str, project: str) -> TrustError:
    """A run that is not this user's own is not worked on."""
    named = "" if project == os.getcwd() else f" --project {shlex.quote(project)}"
    return TrustError(
        f"run {run} did not begin here: it came with a clone, an archive or a copy, or is an older "
        "Plait's",
        fix=f"look at it: plait show {run}{named}; then take it over: plait trust run {run}{named}; "
        "or begin a new run: plait run FILE",
        code="foreign-run",
    )


def never_begun(run: str) -> InputError:
    """Nothing was ever said of the run, so there is nothing to go on with."""
    return InputError(
        f"run {run} was never begun: Plait was ended while it made it",
        fix="plait run FILE begins a new one",
        code="unknown-run",
    )


# ── links ────────────────────────────────────────────────────────────────


def require_plain_folders(root: str, folder: str) -> None:
    """None of the folders from below `root` down to this one is a link; those that are not there
    are none.
    """
    for path in _folders(root, folder):
        try:
            status = os.lstat(path)
        except OSError:
            return
        if stat.S_ISLNK(status.st_mode):
            raise JournalError(
                "this is a link, and the state of a project is not kept behind one",
                path,
                f"look at it, then remove it: rm {shlex.quote(path)}",
                code="unsafe-store",
            )


def require_plain_journal(path: str) -> None:
    """A journal and the files beside it are plain files: a link would lead to a file of somebody
    else.
    """
    for name in (path + end for end in _BESIDE):
        try:
            status = os.lstat(name)
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise JournalError(
                "the journal cannot be used: it is a link, or no plain file",
                name,
                "restore its folder from a backup, or remove it and run the flow again",
                code="damaged",
            )


def _folders(root: str, folder: str) -> Iterator[str]:
    path = root
    for part in os.path.relpath(folder, root).split(os.sep):
        path = os.path.join(path, part)
        yield path


def _number(path: str) -> int:
    return os.lstat(path).st_ino
