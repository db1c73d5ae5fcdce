"""Decide whether this user made a run, in this very folder. Other runs are not resumed or removed.

The facts of a run say which file it runs. They have a seal that only this user can make, over the
run's id, the facts, and the inodes of its folder and journal. A clone, an archive or a copy has
other inodes, so its seal does not hold. A moved project keeps its inodes, and its runs.
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
"""The name of the seal among the facts."""
JOURNAL: Final = "journal.db"
_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
"""Suffixes of a journal's files."""


class Sealing(Protocol):
    """Makes seals and verifies them."""

    @property
    def viewer(self) -> str: ...

    def make(self, text: str, /) -> str: ...
    def holds(self, text: str, seal: str, /) -> bool: ...


class Unsealed:
    """Seals nothing, for a store that only one program uses: every run in it is its own."""

    viewer = "all"

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
        """Return the facts with their seal; without one if this user cannot have a key."""
        plain = without_seal(facts)
        try:
            return {**plain, SEAL: self._seals.make(self._text(plain))}
        except TrustError as error:
            self.why_unsealed = f"{error.what}; {error.fix}" if error.fix else error.what
            return plain

    def is_own(self, facts: Mapping[str, Json]) -> bool:
        """Did this user write these facts, for this run, in this folder?"""
        seal = facts.get(SEAL, "")
        try:
            return isinstance(seal, str) and self._seals.holds(
                self._text(without_seal(facts)), seal
            )
        except OSError:
            return False

    def _text(self, facts: Mapping[str, Json]) -> str:
        inodes = [
            os.lstat(path).st_ino for path in (self._folder, os.path.join(self._folder, JOURNAL))
        ]
        return to_json(["plait run", 1, self._run, inodes, dict(facts)])


def without_seal(facts: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in facts.items() if name != SEAL}


def foreign_run(run: str, project: str) -> TrustError:
    named = "" if project == os.getcwd() else f" --project {shlex.quote(project)}"
    return TrustError(
        f"run {run} did not begin here: it came with a clone, an archive or a copy",
        fix=f"look at it: plait show {run}{named}; then take it over: plait trust run {run}{named}; "
        "or begin a new run: plait run FILE",
        code="foreign-run",
    )


def never_begun(run: str) -> InputError:
    return InputError(
        f"run {run} was never begun: Plait was killed while it made it",
        fix="plait run FILE begins a new one",
        code="unknown-run",
    )


# ── links ────────────────────────────────────────────────────────────────


def require_plain_folders(root: str, folder: str) -> None:
    """Raise JournalError if this folder, or a folder between `root` and it, is a link."""
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
    """Raise JournalError if a file of the journal is a link: it would lead to another file."""
    for name in (path + end for end in _SUFFIXES):
        try:
            status = os.lstat(name)
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise JournalError(
                "the journal cannot be used: it is a link, or not a plain file",
                name,
                "restore its folder from a backup, or remove it and run the flow again",
                code="damaged",
            )


def _folders(root: str, folder: str) -> Iterator[str]:
    path = root
    for part in os.path.relpath(folder, root).split(os.sep):
        path = os.path.join(path, part)
        yield path
