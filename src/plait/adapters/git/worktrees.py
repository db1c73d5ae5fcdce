"""The worktrees of one run: add, inspect, commit, merge, remove.

Every ref, folder and commit on a command line of git is made here: refs and folders of letters,
digits and `-`, commits as object ids. Text of items never gets there.

Only the repository's own list says what is a worktree. A `.git` that an item writes into its folder
is not followed.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from plait.adapters.git.checkout import Checkout
from plait.adapters.git.copies import copy_inputs, folder_digest, is_unchanged
from plait.adapters.git.git import Answer, Git, GitLocation, StartGit, git_error, names
from plait.adapters.git.removal import nested_repositories, remove_tree
from plait.core.digests import sha256_hex
from plait.core.errors import InputError, ProcessError
from plait.core.hints import Final
from plait.core.records import replace
from plait.core.values import Json
from plait.program.worktrees.ports import (
    Conflict,
    Leftover,
    RepositoryState,
    Worktree,
    WorktreeStatus,
)

BRANCHES: Final = "refs/heads/"
SLUG_LENGTH: Final = 40
MOST_TRIES: Final = 100
TOGETHER: Final = 32
ASIDE: Final = ".gone"
"""Suffix of a folder that is being removed; its name begins with a dot."""
COPYING: Final = ".making"
"""Suffix of a folder of copies until `publish`: no step has run in it."""
MAKING: Final = "initializing"
"""The text in the lock of an incomplete worktree."""
EVERYTHING: Final = (
    "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=all",
    # Not the content of submodules: git would run there, with their configuration.
    "--ignore-submodules=dirty",
)  # fmt: skip
"""Options that list all files, whatever the configuration leaves out."""
MOST_FAILURES: Final = 2
"""How often git may fail to make a worktree: it reads all others, which may appear and disappear
meanwhile.
"""


class GitWorktrees:
    """Implements the port `Workspaces` for one run."""

    def __init__(self, start: StartGit, project: str, folder: str, run: str) -> None:
        self._start = start
        self._project = project
        self._own = os.path.join(os.path.abspath(folder), "repository")
        self._folder = os.path.join(os.path.abspath(folder), "worktrees")
        self._run = run
        self._git = Git(start, project)
        self._root = self._common = self._prefix = ""
        self._indexes: dict[str, object] = {}
        """By path: the stamp of a worktree's index after it was made."""
        self._gone: dict[str, str] = {}
        """Branches of removed worktrees with their commits: one call of git deletes several."""
        self._lock = Lock()

    # ── the repository ───────────────────────────────────────────────────

    def inspect(self, base: str, *, needs_branch: bool) -> RepositoryState:
        inside = self._git.try_run("rev-parse", "--is-inside-work-tree")
        if inside.exit_code != 0 and b"not a git repository" not in inside.stderr:
            raise git_error("rev-parse", inside)
        if inside.exit_code != 0:
            raise self._worktree_error(
                "the project is not in a git repository", "git init, and a first commit"
            )
        if inside.stdout.strip() != b"true":
            raise self._worktree_error(
                "the repository has no working tree: it is bare", "work in a clone of it"
            )
        repository = self._inspect_repository(base)
        if not repository.commit:
            if base == "HEAD":
                raise self._worktree_error(
                    "the repository has no commit yet", "make a first commit"
                )
            raise self._worktree_error(
                f"there is no commit '{base}' in the repository", "name another base"
            )
        if needs_branch and not repository.branch:
            raise self._worktree_error(
                "no branch is checked out (detached HEAD), so there is nothing to merge into",
                "git switch BRANCH; or write isolation: {kind: worktree, merge: none}",
            )
        if (
            self._git.run_checked("show-ref", "--verify", "--quiet", f"{BRANCHES}plait").exit_code
            == 0
        ):
            raise self._worktree_error(
                "a branch is called 'plait', and git has no room for branches 'plait/…' beside it",
                "git branch -m plait NEW-NAME",
            )
        self.open(repository)
        return repository

    def _inspect_repository(self, base: str) -> RepositoryState:
        command = ("rev-parse", "--path-format=absolute")
        root, common = (
            self._git.line(*command, option) for option in ("--show-toplevel", "--git-common-dir")
        )
        prefix = os.path.relpath(os.path.realpath(self._project), os.path.realpath(root))
        commit = self._git.line_if_any("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
        return RepositoryState(root, common, prefix, commit, self.project_branch())

    def open(self, repository: RepositoryState) -> None:
        self._root = repository.root
        self._common = repository.common
        self._prefix = repository.prefix
        self._git = Git(self._start, repository.root, repository.common, self._own)

    def project_branch(self) -> str:
        return Git(self._start, self._project).line_if_any("symbolic-ref", "--quiet", "HEAD")

    def is_open(self) -> bool:
        """Open the repository of the project; False if there is none."""
        if (
            not self._common
            and self._git.line_if_any("rev-parse", "--is-inside-work-tree") == "true"
        ):
            self.open(self._inspect_repository("HEAD"))
        return bool(self._common)

    def _worktree_error(self, what: str, fix: str) -> InputError:
        return InputError(
            f"items cannot have worktrees here: {what}", self._project, fix, code="no-worktrees"
        )

    # ── worktrees ────────────────────────────────────────────────────────

    def add(self, order: int, title: str, key: str, commit: str) -> Worktree:
        self._make_folder()
        for number in range(1, MOST_TRIES):
            name = place_name(self._run, order, title, key, number)
            path, branch = os.path.join(self._folder, name), f"plait/{self._run}/{name}"
            if os.path.lexists(path):
                continue
            new = (
                "--quiet",
                "--no-checkout",
                "--lock",
                "--reason",
                MAKING,
                "-b",
                branch,
                path,
                commit,
            )
            made = self._git.try_run("worktree", "add", *new)
            if made.exit_code == 0:
                made = self._check_out_files(path)
            if made.exit_code == 0:
                return self._make_worktree(path, branch, commit)
            if b"already exists" not in made.stderr:
                self.remove(Worktree(path, path, branch, commit), merged=None)
                self._delete(branch, commit)
                if number > MOST_FAILURES:
                    raise self._git.failure("worktree add", made, commit, self._folder)
        raise InputError(
            f"this item has {MOST_TRIES - 1} worktrees or branches, and cannot have more",
            self._folder,
            "plait worktrees --clean",
            code="no-worktrees",
        )

    def _check_out_files(self, path: str) -> Answer:
        """Write the files of a new worktree; until they are complete, its lock says `MAKING`."""
        administration = self._inside(path).administration
        filled = self._git.try_run(
            "reset", "--hard", "--quiet", inside=GitLocation(administration, path)
        )
        if filled.exit_code == 0:
            self._indexes[path] = _stamp(os.path.join(administration, "index"))
            os.unlink(os.path.join(administration, "locked"))
        return filled

    def _make_worktree(self, path: str, branch: str, commit: str) -> Worktree:
        directory = os.path.normpath(os.path.join(path, self._prefix))
        os.makedirs(directory, exist_ok=True)  # the project is not committed yet
        return Worktree(path, directory, branch, commit)

    def _make_folder(self) -> None:
        """Make the folder for worktrees; InputError if it is a link."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if os.path.islink(self._folder):
            raise _is_link(self._folder)

    def remove_gather(self, branch: str) -> str:
        """Remove the gather worktree, because its branch moves on without it.

        Uncommitted changes go to a new branch, whose name is returned.
        """
        path = self._gather_path
        if not os.path.isdir(path):
            return ""
        worktree = Worktree(path, path, branch, "")
        if not self.is_unfinished(path):
            worktree = self._put_aside(worktree)
        remains = self.remove(worktree, merged=None)
        if remains is not None:
            raise InputError(
                remains.message, path, "put that right, then plait retry", code="no-worktrees"
            )
        return "" if worktree.branch == branch else worktree.branch

    def _put_aside(self, worktree: Worktree) -> Worktree:
        """Commit all changes to a new branch, which is not a branch of the items.

        If Plait was killed in the middle, the worktree is already on the new branch.
        """
        self.break_locks(worktree)
        self.require_intact(worktree)
        inside = self._inside(worktree.path)
        ref = (
            self._git.run_checked("symbolic-ref", "--quiet", "HEAD", inside=inside)
            .stdout.decode()
            .strip()
        )
        is_aside = ref.startswith(f"{BRANCHES}{worktree.branch}-left-")
        if is_aside:
            worktree = replace(worktree, branch=ref.removeprefix(BRANCHES))
        status = self.status(worktree)
        if status.unmerged or status.repositories or not status.on_branch:
            raise InputError(
                "in the worktree of reduce and merge is something that no branch can keep",
                worktree.path,
                "finish there what was begun, commit it or take it away; then plait retry",
                code="no-worktrees",
            )
        if not status.files:
            return worktree
        if not is_aside:
            names = (f"{worktree.branch}-left-{number}" for number in itertools.count(1))
            side = next(name for name in names if not self.tip(BRANCHES + name))
            self.move(BRANCHES + side, status.head, "")
            self._git.run("symbolic-ref", "HEAD", BRANCHES + side, inside=inside)
            worktree = replace(worktree, branch=side)
        self.commit(worktree, status.files, "merged: what was left behind\n")
        return worktree

    @property
    def _gather_path(self) -> str:
        return os.path.join(self._folder, "merged")

    def gather(self, branch: str) -> Worktree:
        """Return the gather worktree of an existing branch."""
        path = self._gather_path
        if os.path.lexists(path) and self.is_unfinished(path):
            self.remove(self.worktree_at(path), merged=None)
        if not os.path.lexists(path):
            self._make_folder()
            new = ("--quiet", "--no-checkout", "--lock", "--reason", MAKING, path, branch)
            self._git.run("worktree", "add", *new)
            filled = self._check_out_files(path)
            if filled.exit_code != 0:
                raise self._git.failure("reset", filled, branch)
        return self._make_worktree(path, branch, self.tip(BRANCHES + branch))

    def is_there(self, worktree: Worktree) -> bool:
        for path in (self._folder, worktree.path):
            if os.path.islink(path):
                raise _is_link(path)
        return os.path.isdir(worktree.directory) and (
            not worktree.branch or _is_whole(worktree.path)
        )

    def require_intact(self, worktree: Worktree) -> None:
        if not _is_whole(worktree.path):
            raise InputError(
                "nothing is committed from a folder of an item, since its .git is gone, and other "
                "files may "
                "be, too: take what you need from it, and remove it",
                worktree.path,
                code="no-worktrees",
            )

    def is_worktree(self, path: str) -> bool:
        return self._administration(path) is not None

    def is_unfinished(self, path: str) -> bool:
        """Was git killed while it made this worktree? Then no step has run in it."""
        administration = self._administration(path)
        if administration is None:
            try:
                return not os.listdir(path)
            except OSError:
                return False
        return _read_line(os.path.join(administration, "locked")).startswith(MAKING)

    def break_locks(self, worktree: Worktree | None = None) -> None:
        """Remove locks of git processes that died: those of the run's branches, or of a
        worktree.
        """
        branches = os.path.join(self._common, BRANCHES, "plait", self._run)
        folder = branches if worktree is None else self._administration(worktree.path) or ""
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.endswith(".lock"):
                os.unlink(os.path.join(folder, name))

    def status(self, worktree: Worktree) -> WorktreeStatus:
        inside = self._inside(worktree.path)
        if _stamp(os.path.join(inside.administration, "index")) != self._indexes.get(worktree.path):
            # A step may have written the index, with flags that hide changed files from git.
            self._git.try_run("update-index", "-q", "--really-refresh", inside=inside)
        listed = self._git.run("status", *EVERYTHING, inside=inside)
        head = branch = ""
        files: list[str] = []
        unmerged = False
        for line in names(listed):
            text = os.fsdecode(line)
            match text[:2]:
                case "# ":
                    _, field, value = text.split(" ", 2)
                    head = value if field == "branch.oid" else head
                    branch = value if field == "branch.head" else branch
                case "? ":
                    files.append(text[2:])
                case "1 ":
                    files.append(text.split(" ", 8)[8])
                case "u ":
                    files.append(text.split(" ", 10)[10])
                    unmerged = True
        repositories = tuple(name for name in files if name.endswith("/"))
        committable = tuple(name for name in files if not name.endswith("/"))
        return WorktreeStatus(head, branch == worktree.branch, committable, unmerged, repositories)

    def commit(self, worktree: Worktree, files: Sequence[str], message: str) -> str:
        inside = self._inside(worktree.path)
        # Sorted: git needs a file that became a folder before the files in it.
        listed = b"".join(os.fsencode(name) + b"\0" for name in sorted(files))
        staging = ("--add", "--remove", "--replace", "-z", "--stdin")
        self._git.run("update-index", *staging, inside=inside, stdin=listed)
        # It may be empty: a step staged a change and then reverted the file.
        options = (
            "--allow-empty",
            "--no-verify",
            "--no-gpg-sign",
            "--cleanup=verbatim",
            "--file=-",
        )
        self._git.run(
            "commit",
            "--quiet",
            *options,
            inside=inside,
            stdin=message.encode(),
            env=self._git.who(),
        )
        return self._git.line("rev-parse", "HEAD", inside=inside)

    def _inside(self, path: str) -> GitLocation:
        administration = self._administration(path)
        if administration is None:
            raise InputError(
                "the folder of an item is no longer a worktree of the repository",
                path,
                "git worktree repair FOLDER, if you have moved it; else take what you need from "
                "it, "
                "remove it, and plait retry RUN ITEM",
                code="no-worktrees",
            )
        return GitLocation(administration, path, sees_all=True)

    def _administration(self, path: str) -> str | None:
        """Return the folder of a worktree in the repository's own list; None if it is not
        listed.
        """
        top, own = os.path.join(self._common, "worktrees"), os.path.basename(path)
        if not self._common or not os.path.isdir(top):
            return None
        found = (os.path.join(top, name) for name in (own, *os.listdir(top)))
        return next((one for one in found if _worktree_path(one) == os.path.realpath(path)), None)

    def point(self, worktree: Worktree, head: str) -> bool:
        """Move the branch to the worktree's HEAD; False if commits would then be on no branch."""
        ref = BRANCHES + worktree.branch
        tip = self.tip(ref)
        return tip == head or (self.is_ancestor(tip, head) and self.move(ref, head, tip))

    def remove(self, worktree: Worktree, *, merged: str | None) -> Leftover | None:
        """Remove a worktree, and its branch if `merged` has all its commits.

        Returns what stays, and why.
        """
        if not os.path.isdir(worktree.path):
            return None
        administration = self._administration(worktree.path)
        if administration is not None:
            stays = self._find_unsaved(GitLocation(administration, worktree.path, sees_all=True))
            if stays is not None:
                return stays
        # Rename first: after a kill, half of a worktree would look like work of the item. For the
        # same reason, a folder that cannot be removed is not renamed back.
        aside = self._free_aside(worktree.path)
        try:
            os.rename(worktree.path, aside)
        except OSError as error:
            return Leftover(worktree.path, "cannot-move", error.strerror or str(error))
        why = remove_tree(aside)
        if administration is not None:
            self._remove_administration(administration)
        if merged is not None:
            with self._lock:
                self._gone[worktree.branch] = merged
                many = len(self._gone) >= TOGETHER
            if many:
                self.settle()
        return None if why is None else Leftover(aside, "aside", why)

    def _free_aside(self, path: str) -> str:
        aside = os.path.join(self._folder, f".{os.path.basename(path)}{ASIDE}")
        taken = itertools.takewhile(
            os.path.lexists, (aside, *(f"{aside}-{n}" for n in range(2, MOST_TRIES)))
        )
        number = sum(1 for _ in taken)
        return f"{aside}-{number + 1}" if number else aside

    def settle(self) -> None:
        """Delete the branches of removed worktrees, unless they have moved."""
        with self._lock:
            gone, self._gone = self._gone, {}
        if not gone:
            return
        listed = "".join(f"delete {BRANCHES}{branch}\0{at}\0" for branch, at in gone.items())
        if self._git.try_run("update-ref", "--stdin", "-z", stdin=listed.encode()).exit_code != 0:
            for branch, at in gone.items():  # deleting all at once failed: delete them one by one
                self._delete(branch, at)

    def unread(self, worktree: Worktree) -> Leftover | None:
        """Return the unreadable part of a worktree, whose changes git cannot list; None if there
        is none.
        """
        needed = self._find_unsaved(self._inside(worktree.path))
        return needed if needed is not None and needed.cause == "closed" else None

    def _find_unsaved(self, inside: GitLocation) -> Leftover | None:
        """Return repositories or unreadable folders that git neither tracks nor ignores;
        None if there are none.
        """
        found = nested_repositories(os.fsencode(inside.path))
        if _has_modules(inside.administration) or os.path.isdir(os.path.join(inside.path, ".git")):
            return Leftover(inside.path, "repositories")
        counted = self._without_ignored(inside, [*found.repositories, *found.closed])
        for folder in counted:
            if folder in found.closed:
                return Leftover(os.fsdecode(folder), "closed", found.closed[folder])
        return Leftover(inside.path, "repositories") if counted else None

    def _without_ignored(self, inside: GitLocation, folders: list[bytes]) -> list[bytes]:
        if not folders:
            return []
        # check-ignore refuses literal pathspecs; a name that begins with './' is not a pattern.
        top, literal = os.fsencode(inside.path), {"GIT_LITERAL_PATHSPECS": "0"}
        by_name = {b"./" + os.path.relpath(one, top): one for one in folders}
        listed = b"".join(name + b"\0" for name in by_name)
        ignored = self._git.try_run(
            "check-ignore", "-z", "--stdin", inside=inside, stdin=listed, env=literal
        )
        return [one for name, one in by_name.items() if name not in set(names(ignored.stdout))]

    def _remove_administration(self, administration: str) -> None:
        """Remove the folder by renaming it first, because another git may read all worktrees."""
        aside = os.path.join(self._folder, f".{os.path.basename(administration)}")
        try:
            os.rename(administration, aside)
        except OSError:  # it is on another disk
            aside = administration
        remove_tree(aside)

    def prune(self) -> None:
        """Remove from git's list the worktrees of this run without a folder, and leftovers."""
        for path in self.asides():
            remove_tree(path)
        for administration, _ in self._stale():
            self._remove_administration(administration)

    def asides(self) -> list[str]:
        """Return folders that can be removed: of interrupted removals, and copies that were
        never published.
        """
        return [path for path in self._item_folders() if os.path.basename(path).startswith(".")]

    def missing_folders(self) -> list[str]:
        """The folders of this run that git lists, but that do not exist."""
        return sorted(path for _, path in self._stale())

    def _stale(self) -> list[tuple[str, str]]:
        top = os.path.join(self._common, "worktrees")
        entries = os.listdir(top) if self._common and os.path.isdir(top) else []
        listed = [
            (one, _worktree_path(one)) for one in (os.path.join(top, name) for name in entries)
        ]
        return [
            (administration, path)
            for administration, path in listed
            if os.path.dirname(path) == os.path.realpath(self._folder)
            and not os.path.lexists(path)
            and not _has_modules(administration)
        ]

    # ── copies ───────────────────────────────────────────────────────────

    def copy(self, order: int, title: str, key: str, inputs: Sequence[str]) -> Worktree:
        self._make_folder()
        for number in range(1, MOST_TRIES):
            path = os.path.join(self._folder, place_name(self._run, order, title, key, number))
            if not os.path.lexists(path):
                return self._copy_inputs(path, inputs)
        raise InputError(
            f"this item has {MOST_TRIES - 1} folders, and cannot have more",
            self._folder,
            "plait worktrees --clean",
            code="no-worktrees",
        )

    def _copy_inputs(self, path: str, inputs: Sequence[str]) -> Worktree:
        making = self._making(path)
        remove_tree(making)  # left by a killed run attempt
        try:
            os.mkdir(making, 0o700)
            copy_inputs(self._project, inputs, making)
            return Worktree(path, path, "", "", folder_digest(making))
        except BaseException as error:
            remove_tree(making)
            if isinstance(error, OSError):
                raise _folder_error(path, error) from error
            raise

    def publish(self, worktree: Worktree) -> None:
        """Keep a folder that is now recorded, before steps run in it; copies get their
        final name.
        """
        making = self._making(worktree.path)
        if worktree.branch or not os.path.isdir(making):
            return
        try:
            os.rename(making, worktree.path)
        except OSError as error:
            raise _folder_error(worktree.path, error) from error

    def _making(self, path: str) -> str:
        return os.path.join(self._folder, f".{os.path.basename(path)}{COPYING}")

    def is_unchanged(self, worktree: Worktree) -> bool:
        return is_unchanged(worktree.path, worktree.stamps)

    # ── refs and merges ──────────────────────────────────────────────────

    def tip(self, ref: str) -> str:
        return self._git.line_if_any("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")

    def move(self, ref: str, new: str, old: str) -> bool:
        """Compare and swap; False if the ref was not at `old`. An empty `old` means that
        the ref is new.
        """
        moved = self._git.try_run(
            "update-ref", "--create-reflog", "-m", "plait: merge", ref, new, old
        )
        if moved.exit_code == 0:
            return True
        if self.tip(ref) == old:
            raise git_error("update-ref", moved)
        return False

    def forget_branch(self, branch: str, at: str) -> bool:
        """Delete a branch; False if it is checked out."""
        if any(ref == BRANCHES + branch for ref, _ in self.list_checkouts()):
            return False
        self._delete(branch, at)
        return True

    def _delete(self, branch: str, at: str) -> None:
        if at:  # without it, git would delete the branch wherever it is
            self._git.try_run("update-ref", "-d", BRANCHES + branch, at)

    def forget_merged(self, into: str, spare: Collection[str]) -> None:
        self.settle()
        ours = f"{BRANCHES}plait/{self._run}/"
        listed = self._git.run(
            "for-each-ref", f"--merged={into}", "--format=%(objectname) %(refname)", ours
        )
        self.prune()
        needed = {*spare, *(ref.removeprefix(BRANCHES) for ref, _ in self.list_checkouts())}
        for line in os.fsdecode(listed).splitlines():
            at, _, ref = line.partition(" ")
            if not {ref.removeprefix(BRANCHES), ref.removeprefix(ours)} & needed:
                self._delete(ref.removeprefix(BRANCHES), at)

    def find_unmerged(self, into: str) -> list[str]:
        ours = f"{BRANCHES}plait/{self._run}/"
        format = "--format=%(refname:lstrip=2)%00%(worktreepath)%00"
        rows = names(self._git.run("for-each-ref", f"--no-merged={into}", format, ours))
        found = zip(rows[::2], rows[1::2], strict=True)
        return [os.fsdecode(branch.lstrip(b"\n")) for branch, path in found if not path]

    def undone(self, old: str, new: str, tip: str) -> list[str]:
        """Return the files that `new` changes and that have their `old` content again in `tip`."""
        changed, since = (
            names(self._git.run("diff-tree", "-r", "-z", "--no-renames", "--name-only", old, one))
            for one in (new, tip)
        )
        return sorted(os.fsdecode(name) for name in {*changed}.difference(since))

    def is_ancestor(self, one: str, other: str) -> bool:
        if not one or not other:
            return False
        return self._git.run_checked("merge-base", "--is-ancestor", one, other).exit_code == 0

    def merge(self, ours: str, theirs: str, message: str) -> str | Conflict:
        """Return the merge commit of two commits, or the files in conflict."""
        options = (
            "--write-tree",
            "-z",
            "--name-only",
            "--no-messages",
            "--allow-unrelated-histories",
        )
        merged = self._git.try_run(
            "merge-tree", *options, ours, theirs, inside=GitLocation("", self._root)
        )
        if merged.exit_code not in (0, 1) or not merged.stdout:
            if b"usage:" in merged.stderr:
                raise InputError(
                    "this git cannot merge without a working tree",
                    fix="it takes git 2.38 or newer; or write isolation: {kind: worktree, merge: none}",
                    code="git",
                )
            raise self._git.failure("merge-tree", merged)
        tree, *files = names(merged.stdout)
        if merged.exit_code == 1:
            return Conflict(tuple(_without_side(os.fsdecode(name), ours, theirs) for name in files))
        parents = ("-p", ours, "-p", theirs)
        return self._git.line(
            "commit-tree",
            "--no-gpg-sign",
            *parents,
            tree.decode(),
            stdin=message.encode(),
            who=True,
        )

    # ── the user's own working tree ──────────────────────────────────────

    @contextmanager
    def lock_tree(self, ref: str, *, mark: str) -> Iterator[Checkout | None]:
        """Lock the working tree in which a branch is checked out; None if there is none."""
        for found, path in [*self.list_checkouts()]:
            if found != ref:
                continue
            folder = self._administration(path) or self._common
            tree = Checkout(self._git, path, folder, os.path.join(self._folder, ".written"), mark)
            with tree.hold_lock():
                # The lock keeps HEAD unchanged, but it may have changed before.
                head = self._git.try_run(
                    "symbolic-ref", "--quiet", "HEAD", inside=GitLocation(folder, path)
                )
                if head.exit_code not in (0, 1):
                    raise git_error("symbolic-ref", head)
                yield tree if os.fsdecode(head.stdout).removesuffix("\n") == ref else None
            return
        yield None

    def list_checkouts(self) -> Iterator[tuple[str, str]]:
        """The branches that are checked out, with their working trees."""
        path = ""
        for line in names(self._git.run("worktree", "list", "--porcelain", "-z")):
            kind, _, value = os.fsdecode(line).partition(" ")
            if kind == "worktree":
                # With a separate git dir, git prints that folder instead.
                path = (
                    self._root
                    if os.path.realpath(value) == os.path.realpath(self._common)
                    else value
                )
            if kind == "branch" and os.path.lexists(os.path.join(path, ".git")):
                yield value, path

    # ── facts ────────────────────────────────────────────────────────────

    def facts(self, target: str, source: str) -> dict[str, Json]:
        """The commits that only `source` has, oldest first, and the files that they change."""
        commits = (
            self._git.run("rev-list", "--reverse", source, f"^{target}", "--").decode().split()
        )
        base = self._git.line_if_any("merge-base", target, source)
        listed = (
            self._git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", base, source)
            if base
            else b""
        )
        return {"commits": list(commits), "files": [os.fsdecode(name) for name in names(listed)]}

    def leftovers(self) -> list[str]:
        """The folders of items that exist."""
        return [path for path in self._item_folders() if not os.path.basename(path).startswith(".")]

    def _item_folders(self) -> list[str]:
        """All folders for items, without links."""
        if os.path.islink(self._folder) or not os.path.isdir(self._folder):
            return []
        found = (os.path.join(self._folder, name) for name in sorted(os.listdir(self._folder)))
        return [path for path in found if os.path.isdir(path) and not os.path.islink(path)]

    def worktree_at(self, path: str) -> Worktree:
        return Worktree(path, path, f"plait/{self._run}/{os.path.basename(path)}", "")


def place_name(run: str, order: int, title: str, key: str, number: int) -> str:
    """The name of an item's folder and branch: letters, digits and `-`."""
    slug = (
        re.sub(r"[^a-z0-9]+", "-", title.lower(), flags=re.ASCII)
        .strip("-")[:SLUG_LENGTH]
        .strip("-")
    )
    digest = sha256_hex(f"{run}\0{number}\0{key}".encode("utf-8", "surrogatepass"))[:8]
    return "-".join(part for part in (str(order), slug, digest) if part)


def _is_link(path: str) -> InputError:
    return InputError(
        "items do not work behind a link",
        path,
        "look at it, and remove it: it was made by something else than this run",
        code="no-worktrees",
    )


def _folder_error(path: str, error: OSError) -> ProcessError:
    return ProcessError(
        f"a folder for an item cannot be made: {error.strerror or error}",
        path,
        "put that right, then plait retry RUN --failed",
        code="no-worktrees",
    )


def _worktree_path(administration: str) -> str:
    """The folder of an entry in the repository's list of worktrees; empty without an entry."""
    gitdir = (
        "" if os.path.islink(administration) else _read_line(os.path.join(administration, "gitdir"))
    )
    return os.path.realpath(os.path.join(administration, os.path.dirname(gitdir))) if gitdir else ""


def _without_side(name: str, *sides: str) -> str:
    """Remove the commit that git appends to a file's name if the file is where a folder should
    be.
    """
    return re.sub(f"~({'|'.join(sides)})(_[0-9]+)?$", "", name)


def _is_whole(path: str) -> bool:
    """Does a worktree still have a `.git`? If not, its removal may have begun."""
    try:
        os.lstat(os.path.join(path, ".git"))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # reading it will fail and report the reason
    return True


def _stamp(path: str) -> object:
    """Return a stamp that changes with every new index."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _read_line(path: str) -> str:
    """Return the only line of a file; empty if there is no file."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(4096).removesuffix("\n")
    except OSError:
        return ""


def _has_modules(administration: str) -> bool:
    """Were submodules fetched into the worktree? Their commits may be nowhere else."""
    try:
        return bool(os.listdir(os.path.join(administration, "modules")))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # unknown: keep it
