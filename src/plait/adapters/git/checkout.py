"""Move a working tree of the user from one commit to another, and never overwrite local changes.

git's fast-forward treats ignored files as worthless; here they stay too. `index.lock` is taken
before the branch moves and released after the tree has followed, so no commit can come in between.
The lock file says which run made it. So a run that was killed in the middle recognises its lock,
and the files that it had written or half written, and continues.
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
    """The change of one file between two commits."""

    mode: bytes
    blob: bytes
    status: bytes
    name: bytes

    @property
    def entry(self) -> bytes:
        """A line for `update-index --index-info`; mode 0 removes the file."""
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
        """Our copy of the index; at the end it replaces the index."""
        self._inside = GitLocation(administration, path, self._own)
        self._is_behind = False
        """The branch has moved but the tree has not: a commit there would undo the merge."""

    # ── the lock ─────────────────────────────────────────────────────────

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Inside this context, no other process changes the index of the tree."""
        self._release()  # left by an earlier run attempt: only one engine can hold the run
        self._take_lock()
        try:
            yield
        finally:
            if not self._is_behind:
                self._release()
            self._drop_own()

    def _release(self) -> None:
        """Remove the lock if it is ours."""
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
                "another git process holds the lock of your working tree",
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

    # ── updating ─────────────────────────────────────────────────────────

    def require_can_update(self, old: str, new: str) -> None:
        """Raise LocalChangesConflict if the tree cannot go from one commit to the other."""
        if self._git.has_own_filters():
            raise LocalChangesConflict(
                "the repository defines filters for its files, which Plait does not run"
            )
        self._copy_index()
        self._require_free_paths(self._changes(old, new))
        self._read_tree("-n", old, new)

    def update(self, old: str, new: str, *, again: bool) -> None:
        """Go from one commit to another; `again`: an earlier attempt may have begun this.

        After a failure the lock stays until `plait resume`, except after a
        LocalChangesConflict: then the user must move files.
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
            # With its times: git compares files with the time of the index to find changes.
            shutil.copyfile(self._index, self._own)
            status = os.stat(self._index)
            os.utime(self._own, ns=(status.st_atime_ns, status.st_mtime_ns))
        self._try_run("update-index", "-q", "--refresh")

    def _changes(self, old: str, new: str) -> list[_Change]:
        rows = names(self._run("diff-tree", "-r", "-z", "--no-renames", "--raw", old, new))
        found = []
        for fields, name in zip(rows[::2], rows[1::2], strict=True):
            _, mode, _, blob, status = fields.removeprefix(b":").split(b" ")
            found.append(_Change(mode, blob, status, name))
        return found

    def _read_tree(self, *args: str) -> None:
        answer = self._try_run("read-tree", "-m", "-u", *args)
        if answer.exit_code != 0:
            stderr = "\n".join(stderr_lines(answer, most=10))
            room = disk_space_note(self.path, stderr)
            raise (
                CheckoutFailed(f"{stderr}{room}")
                if room or "unable to write" in stderr
                else LocalChangesConflict(stderr)
            )

    # ── files of the user that git does not track ────────────────────────

    def _require_free_paths(self, changes: Sequence[_Change]) -> None:
        """Raise LocalChangesConflict for ignored files: git would overwrite them, or whole
        folders.
        """
        tracked = self._entries().keys()
        found = {
            one
            for change in changes
            if change.status == b"A"
            for one in self._strays(change.name, tracked)
        }
        if found:
            shown = format_files(sorted(os.fsdecode(name) for name in found))
            raise LocalChangesConflict(
                f"files of yours that are in no commit are in its way: {shown}\n"
                "move them elsewhere first: git merge overwrites files that a .gitignore names, "
                "unasked"
            )

    def _strays(self, name: bytes, tracked: Collection[bytes]) -> Iterator[bytes]:
        """Yield untracked files at the path of a new file."""
        parts = name.split(b"/")
        for end in range(1, len(parts)):
            above = b"/".join(parts[:end])
            if os.path.islink(self._full(above)) or os.path.isfile(self._full(above)):
                if above not in tracked:
                    yield above
                return
        if os.path.isdir(self._full(name)) and not os.path.islink(self._full(name)):
            yield from (one for one in self._files_in(name) if one not in tracked)
        elif os.path.lexists(self._full(name)) and name not in tracked:
            yield name

    def _files_in(self, folder: bytes) -> Iterator[bytes]:
        for top, folders, files in os.walk(self._full(folder)):
            links = [one for one in folders if os.path.islink(os.path.join(top, one))]
            for one in (*files, *links):
                yield os.path.relpath(os.path.join(top, one), os.fsencode(self.path))

    def _full(self, name: bytes) -> bytes:
        return os.path.join(os.fsencode(self.path), name)

    def _entries(self) -> Mapping[bytes, bytes]:
        """The files in our index, with their blobs."""
        rows = (line.partition(b"\t") for line in names(self._run("ls-files", "-s", "-z")))
        return {name: fields.split(b" ")[1] for fields, _, name in rows}

    # ── after a kill ─────────────────────────────────────────────────────

    def _heal(self, changes: Sequence[_Change]) -> None:
        """Finish files that a killed update had written or half written."""
        entries = self._entries()
        if all(
            entries.get(one.name) == (None if one.status == b"D" else one.blob) for one in changes
        ):
            # The index is written last, so the tree was complete: the differences come from the
            # user.
            return
        dirty = {*names(self._run("diff-files", "-z", "--name-only", "--ignore-submodules=dirty"))}
        gone = [
            one
            for one in changes
            if one.status == b"D" and not os.path.lexists(self._full(one.name))
        ]
        candidates = [
            one
            for one in changes
            if one.status == b"A" or (one.status != b"D" and one.name in dirty)
        ]
        partial = self._partial_changes(candidates)
        if gone or partial:
            lines = b"".join(one.entry for one in (*gone, *partial))
            self._run("update-index", "-z", "--index-info", stdin=lines)
        if partial:
            self._run(
                "checkout-index", "-f", "-q", "-u", "-z", "--stdin", stdin=_join_names(partial)
            )

    def _partial_changes(self, changes: Sequence[_Change]) -> list[_Change]:
        """Return the files that are missing or hold only a prefix of the new content: they
        are safe to write.
        """
        # git removes a file before it writes it again.
        missing = [
            one
            for one in changes
            if one.status != b"A" and not os.path.lexists(self._full(one.name))
        ]
        existing = [
            one
            for one in changes
            if os.path.isfile(self._full(one.name)) and not os.path.islink(self._full(one.name))
        ]
        if not existing:
            return missing
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.makedirs(self._scratch, mode=0o700)
        try:
            self._write_scratch(existing)
            scratch = os.fsencode(self._scratch)
            return [
                *missing,
                *(
                    one
                    for one in existing
                    if self._is_part(one.name, os.path.join(scratch, b"tree"))
                ),
            ]
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _write_scratch(self, changes: Sequence[_Change]) -> None:
        """Write the new files into the scratch folder, to compare with."""
        scratch = GitLocation(
            self._inside.administration, self.path, os.path.join(self._scratch, "index")
        )
        self._git.run(
            "update-index",
            "-z",
            "--index-info",
            inside=scratch,
            stdin=b"".join(one.entry for one in changes),
        )
        prefix = os.path.join(self._scratch, "tree", "")
        self._git.run(
            "checkout-index",
            "-q",
            "-z",
            "--stdin",
            f"--prefix={prefix}",
            inside=scratch,
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
    """Create a file with its content in one step; FileExistsError if it exists."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(source, "rb") as content, open(handle, "wb") as file:
            file.write(content.read())
