"""A working tree of the user's, brought from one commit to another; local changes stay, or nothing
happens.

git does the same when it fast-forwards, but takes files that it ignores for worthless; here they
stay, too. `index.lock` is held from before the branch moves until the tree has gone along, so
nobody commits in between. It is a file that says whose it is, from its first moment to its last: a
run that was killed in the middle knows its own lock, and the files that it had put in place or only
begun to write, and goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from plait.adapters.git.git import Answer, Git, GitLocation, disk_space_note, names, stderr_lines
from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.program.worktrees.merge import format_files
from plait.program.worktrees.ports import CheckoutFailed, LocalChangesConflict

PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Change:
    """What becomes of one file."""

    mode: bytes
    blob: bytes
    status: bytes
    name: bytes

    @property
    def entry(self) -> bytes:
        """As `update-index --index-info` reads it; without a mode the file is not there."""
        return (
            (b"0" if self.status == b"D" else self.mode)
            + b" "
            + self.blob
            + b"\t"
            + self.name
            + b"\0"
        )


class Checkout:
    def __init__(self, git: Git, path: str, administration: str, scratch: str, mark: str) -> None:
        self.path = path
        self._git = git
        self._mark = f"plait {mark}\n".encode()
        self._scratch = scratch
        self._index = os.path.join(administration, "index")
        self._lock = f"{self._index}.lock"
        self._own = f"{self._index}.plait-{mark}"
        """Our copy of the index.  It is beside the index, whose place it takes in the end."""
        self._inside = GitLocation(administration, path, self._own)
        self._is_behind = False
        """The branch has moved, and the tree could not go along: a commit there would undo that."""

    # ── the lock ─────────────────────────────────────────────────────────

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Nobody else changes the tree's index meanwhile."""
        self._release()  # of an earlier life: only one engine works on a run
        self._take_lock()
        try:
            yield
        finally:
            if not self._is_behind:
                self._release()
            self._drop_own()

    def _release(self) -> None:
        """Give up a lock that is ours."""
        with suppress(FileNotFoundError), open(self._lock, "rb") as file:
            if file.read(200) == self._mark:
                os.unlink(self._lock)

    def _take_lock(self) -> None:
        marked = f"{self._own}.mark"
        with open(marked, "wb") as file:
            file.write(self._mark)
        try:
            _link(marked, self._lock)
        except FileExistsError:
            raise InputError(
                "another git works in your working tree",
                self._lock,
                "wait for it, or remove this file if nothing works there any more; then plait "
                "resume",
                code="git-lock",
            ) from None
        finally:
            os.unlink(marked)

    def _drop_own(self) -> None:
        for path in (self._own, f"{self._own}.lock"):
            with suppress(FileNotFoundError):
                os.unlink(path)

    # ── going along ──────────────────────────────────────────────────────

    def require_can_update(self, old: str, new: str) -> None:
        """Raises InTheWay if the tree could not go from one commit to the other."""
        if self._git.has_own_filters():
            raise LocalChangesConflict(
                "the repository defines filters for its files, which Plait does not run"
            )
        self._copy_index()
        self._require_free_paths(self._changes(old, new))
        self._read_tree("-n", old, new)

    def update(self, old: str, new: str, *, again: bool) -> None:
        """Go from one commit to another; `again`: that was perhaps begun before.

        Where it fails the lock stays, until `plait resume`, but for files of the user, who has to
        move them.
        """
        self._is_behind = True
        try:
            self._update_tree(old, new, again=again)
        except CheckoutFailed:
            raise
        except LocalChangesConflict:
            self._is_behind = False
            raise
        self._is_behind = False

    def _update_tree(self, old: str, new: str, *, again: bool) -> None:
        self._copy_index()
        changes = self._changes(old, new)
        if again:
            self._heal(changes)
        self._require_free_paths(changes)
        self._read_tree(old, new)
        os.rename(self._own, self._index)

    def _copy_index(self) -> None:
        self._drop_own()
        if os.path.exists(self._index):
            _copy_with_time(self._index, self._own)
        self._try_run("update-index", "-q", "--refresh")

    def _changes(self, old: str, new: str) -> list[_Change]:
        rows = names(self._run("diff-tree", "-r", "-z", "--no-renames", "--raw", old, new))
        found = []
        for about, name in zip(rows[::2], rows[1::2], strict=True):
            _, mode, _, blob, status = about.removeprefix(b":").split(b" ")
            found.append(_Change(mode, blob, status, name))
        return found

    def _read_tree(self, *args: str) -> None:
        answer = self._try_run("read-tree", "-m", "-u", *args)
        if answer.exit_code != 0:
            said = "\n".join(stderr_lines(answer, most=10))
            room = disk_space_note(self.path, said)
            raise (
                CheckoutFailed(f"{said}{room}")
                if room or "unable to write" in said
                else LocalChangesConflict(said)
            )

    # ── files of the user that git does not know ─────────────────────────

    def _require_free_paths(self, changes: Sequence[_Change]) -> None:
        """git would write over files that it ignores, and remove whole folders of them."""
        known = self._entries().keys()
        found = {
            one
            for change in changes
            if change.status == b"A"
            for one in self._strays(change.name, known)
        }
        if found:
            shown = format_files(sorted(os.fsdecode(name) for name in found))
            raise LocalChangesConflict(
                f"files of yours that are in no commit are in its way: {shown}\n"
                "move them elsewhere first: git merge overwrites files that a .gitignore names, "
                "unasked"
            )

    def _strays(self, name: bytes, known: Collection[bytes]) -> Iterator[bytes]:
        """What is where a new file shall be, and is in no commit and no index."""
        parts = name.split(b"/")
        for end in range(1, len(parts)):
            above = b"/".join(parts[:end])
            if os.path.islink(self._full(above)) or os.path.isfile(self._full(above)):
                if above not in known:
                    yield above
                return
        if os.path.isdir(self._full(name)) and not os.path.islink(self._full(name)):
            yield from (one for one in self._files_in(name) if one not in known)
        elif os.path.lexists(self._full(name)) and name not in known:
            yield name

    def _files_in(self, folder: bytes) -> Iterator[bytes]:
        for top, folders, files in os.walk(self._full(folder)):
            links = [one for one in folders if os.path.islink(os.path.join(top, one))]
            for one in (*files, *links):
                yield os.path.relpath(os.path.join(top, one), os.fsencode(self.path))

    def _full(self, name: bytes) -> bytes:
        return os.path.join(os.fsencode(self.path), name)

    def _entries(self) -> Mapping[bytes, bytes]:
        """The files in our index, with what they hold."""
        rows = (line.partition(b"\t") for line in names(self._run("ls-files", "-s", "-z")))
        return {name: about.split(b" ")[1] for about, _, name in rows}

    # ── what was cut short ───────────────────────────────────────────────

    def _heal(self, changes: Sequence[_Change]) -> None:
        """Files that an update which was cut short had written, or begun to write, count as
        written.
        """
        known = self._entries()
        if all(
            known.get(one.name) == (None if one.status == b"D" else one.blob) for one in changes
        ):
            # the index went along, so the tree had: whatever differs now is the user's doing
            return
        dirty = {*names(self._run("diff-files", "-z", "--name-only", "--ignore-submodules=dirty"))}
        gone = [
            one
            for one in changes
            if one.status == b"D" and not os.path.lexists(self._full(one.name))
        ]
        maybe = [
            one
            for one in changes
            if one.status == b"A" or (one.status != b"D" and one.name in dirty)
        ]
        begun = self._partial_changes(maybe)
        if gone or begun:
            entries = b"".join(one.entry for one in (*gone, *begun))
            self._run("update-index", "-z", "--index-info", stdin=entries)
        if begun:
            self._run("checkout-index", "-f", "-q", "-u", "-z", "--stdin", stdin=_join_names(begun))

    def _partial_changes(self, changes: Sequence[_Change]) -> list[_Change]:
        """Those of which the tree has all, a part, or nothing: then writing them loses nobody's
        change.
        """
        # git removes a file before it writes it anew.
        missing = [
            one
            for one in changes
            if one.status != b"A" and not os.path.lexists(self._full(one.name))
        ]
        there = [
            one
            for one in changes
            if os.path.isfile(self._full(one.name)) and not os.path.islink(self._full(one.name))
        ]
        if not there:
            return missing
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.makedirs(self._scratch, mode=0o700)
        try:
            self._write_aside(there)
            aside = os.fsencode(self._scratch)
            return [
                *missing,
                *(one for one in there if self._is_part(one.name, os.path.join(aside, b"tree"))),
            ]
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _write_aside(self, changes: Sequence[_Change]) -> None:
        """Write files as they shall be, to compare with."""
        aside = GitLocation(
            self._inside.administration, self.path, os.path.join(self._scratch, "index")
        )
        self._git.run(
            "update-index",
            "-z",
            "--index-info",
            inside=aside,
            stdin=b"".join(one.entry for one in changes),
        )
        prefix = os.path.join(self._scratch, "tree", "")
        self._git.run(
            "checkout-index",
            "-q",
            "-z",
            "--stdin",
            f"--prefix={prefix}",
            inside=aside,
            stdin=_join_names(changes),
        )

    def _is_part(self, name: bytes, whole: bytes) -> bool:
        with (
            open(self._full(name), "rb") as part,
            open(os.path.join(whole, name), "rb") as all_of_it,
        ):
            while piece := part.read(PIECE):
                if all_of_it.read(len(piece)) != piece:
                    return False
        return True

    def _try_run(self, *args: str) -> Answer:
        return self._git.try_run(*args, inside=self._inside)

    def _run(self, *args: str, stdin: bytes = b"") -> bytes:
        return self._git.run(*args, inside=self._inside, stdin=stdin)


def _join_names(changes: Sequence[_Change]) -> bytes:
    return b"".join(one.name + b"\0" for one in changes)


def _link(source: str, target: str) -> None:
    """Let a file be there with its content, or not at all; FileExistsError if another one is
    there.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(source, "rb") as content, open(handle, "wb") as file:
            file.write(content.read())


def _copy_with_time(source: str, target: str) -> None:
    """By the time of an index git knows which files may have changed since without looking it."""
    shutil.copyfile(source, target)
    about = os.stat(source)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
