"""A working tree of the user's, brought from one commit to another; local changes stay, or nothing happens.

git does the same when it fast-forwards.  Here it works on a copy of the index, while `index.lock` is
held by a file that says whose it is: so a run that was killed in the middle knows its own lock, and
the files that it had put in place or only begun to write, and goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plait.errors import InputError
from plait.steps.hands import InTheWay
from plait.workspace.git import Answer, Git, names


class Checkout:
    def __init__(self, git: Git, path: str, own_index: str, mark: str) -> None:
        self.path = path
        self._git = git
        self._own = own_index
        self._mark = mark.encode()
        folder = git.line("rev-parse", "--path-format=absolute", "--git-dir", at=path)
        self._index = os.path.join(folder, "index")
        self._lock = self._index + ".lock"

    def expect_fits(self, old: str, new: str) -> None:
        """Raises InTheWay if the tree could not go from one commit to the other."""
        if self._git.has_own_filters():
            raise InTheWay("the repository defines filters for its files, which Plait does not run")
        with self._locked():
            self._prepare(old, new, heals=False)
            self._read_tree("-n", old, new)

    def update(self, old: str, new: str, *, again: bool) -> None:
        """Go from one commit to another; `again`: that was perhaps begun before."""
        with self._locked():
            self._prepare(old, new, heals=again)
            self._read_tree(old, new)
            _copy_with_time(self._own, self._lock)
            os.rename(self._lock, self._index)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._take_lock()
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                os.unlink(self._lock)
            with suppress(FileNotFoundError):
                os.unlink(self._own)

    def _take_lock(self) -> None:
        with suppress(FileNotFoundError), open(self._lock, "rb") as file:
            if file.read(200) == self._mark:
                os.unlink(self._lock)  # our own, of an earlier life: only one engine works on a run
        try:
            handle = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise InputError(
                "another git works in your working tree",
                self._lock,
                "wait for it, or remove this file if nothing works there any more; then plait resume",
                code="git-lock",
            ) from None
        with open(handle, "wb") as file:
            file.write(self._mark)

    def _prepare(self, old: str, new: str, *, heals: bool) -> None:
        os.makedirs(os.path.dirname(self._own), exist_ok=True)
        for path in (self._own, self._own + ".lock"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        if os.path.exists(self._index):
            _copy_with_time(self._index, self._own)
        self._asked("update-index", "-q", "--refresh")
        if heals:
            self._heal(old, new)

    def _heal(self, old: str, new: str) -> None:
        """Files that an update which was cut short had written, or begun to write, count as written."""
        dirty = {*names(self._run("diff-files", "-z", "--name-only"))}
        rows = names(self._run("diff-tree", "-r", "-z", "--no-renames", "--raw", old, new))
        entries, whole = b"", b""
        for about, name in zip(rows[::2], rows[1::2], strict=True):
            _, mode, _, blob, status = about.removeprefix(b":").split(b" ")
            if status == b"D" and not os.path.lexists(os.path.join(os.fsencode(self.path), name)):
                entries += b"0 " + b"0" * 40 + b"\t" + name + b"\0"
            elif (name in dirty or status == b"A") and self._is_begun(name, blob.decode(), status):
                entries += mode + b" " + blob + b"\t" + name + b"\0"
                whole += name + b"\0"
        if entries:
            self._run("update-index", "-z", "--index-info", stdin=entries)
        if whole:
            self._run("checkout-index", "-f", "-q", "-u", "-z", "--stdin", stdin=whole)

    def _is_begun(self, name: bytes, blob: str, status: bytes) -> bool:
        """Is a file all, a part, or nothing of what it shall be?  Then writing it loses nobody's change."""
        path = os.path.join(os.fsencode(self.path), name)
        if not os.path.lexists(path):
            return status != b"A"  # git removes a file before it writes it anew
        if os.path.islink(path) or not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return self._run("cat-file", "blob", blob).startswith(file.read())

    def _read_tree(self, *args: str) -> None:
        answer = self._asked("read-tree", "-m", "-u", *args)
        if answer.exit_code != 0:
            said = answer.stderr.decode("utf-8", "replace").strip().splitlines()
            raise InTheWay("\n".join(said[-10:]))

    def _asked(self, *args: str) -> Answer:
        return self._git.asked(*args, at=self.path, env={"GIT_INDEX_FILE": self._own})

    def _run(self, *args: str, stdin: bytes = b"") -> bytes:
        return self._git.run(*args, at=self.path, stdin=stdin, env={"GIT_INDEX_FILE": self._own})


def _copy_with_time(source: str, target: str) -> None:
    """By the time of an index git knows which files may have changed since without looking it."""
    shutil.copyfile(source, target)
    about = os.stat(source)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
