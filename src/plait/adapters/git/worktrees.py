"""The worktrees of one run: made, looked at, committed, merged, removed.

Whatever names a ref, a folder or a commit on the command line of git was made here: refs and
folders of letters, digits and `-`, commits as object ids.  What items hold never gets there.

A place is a worktree because the repository's own list says so; what an item makes of the `.git` in
its place leads nobody anywhere.
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
"""How the name of a place ends that is being removed; it begins with a dot."""
COPYING: Final = ".making"
"""How the name of a folder of copies ends until it is handed over: no step was ever in it."""
MAKING: Final = "initializing"
"""What git writes into the lock of a worktree that it is about to make."""
EVERYTHING: Final = (
    "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=all",
    # Not what is in a submodule: for that git would run in there, by its configuration.
    "--ignore-submodules=dirty",
)  # fmt: skip
"""All that a worktree holds, whatever the configuration leaves out."""
MOST_FAILURES: Final = 2
"""How often git may fail to make a worktree: it looks at all others, which come and go meanwhile.
"""


class GitWorktrees:
    """Those of one run; implements `steps.hands.Workspaces`."""

    def __init__(self, start: StartGit, project: str, folder: str, run: str) -> None:
        self._start = start
        self._project = project
        self._own = os.path.join(os.path.abspath(folder), "repository")
        self._folder = os.path.join(os.path.abspath(folder), "worktrees")
        self._run = run
        self._git = Git(start, project)
        self._root = self._common = self._prefix = ""
        self._indexes: dict[str, object] = {}
        """By path: the index of a place, as it was when we had made it."""
        self._gone: dict[str, str] = {}
        """Branches whose places are gone, with where they were: they go together, by one call of
        git.
        """
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
        site = self._site(base)
        if not site.commit:
            if base == "HEAD":
                raise self._worktree_error(
                    "the repository has no commit yet", "make a first commit"
                )
            raise self._worktree_error(
                f"there is no commit '{base}' in the repository", "name another base"
            )
        if needs_branch and not site.branch:
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
        self.open(site)
        return site

    def _site(self, base: str) -> RepositoryState:
        asked = ("rev-parse", "--path-format=absolute")
        root, common = (
            self._git.line(*asked, what) for what in ("--show-toplevel", "--git-common-dir")
        )
        prefix = os.path.relpath(os.path.realpath(self._project), os.path.realpath(root))
        commit = self._git.line_if_any("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
        return RepositoryState(root, common, prefix, commit, self.project_branch())

    def open(self, site: RepositoryState) -> None:
        self._root = site.root
        self._common = site.common
        self._prefix = site.prefix
        self._git = Git(self._start, site.root, site.common, self._own)

    def project_branch(self) -> str:
        return Git(self._start, self._project).line_if_any("symbolic-ref", "--quiet", "HEAD")

    def is_open(self) -> bool:
        """Look at the repository around the project; False if there is none."""
        if (
            not self._common
            and self._git.line_if_any("rev-parse", "--is-inside-work-tree") == "true"
        ):
            self.open(self._site("HEAD"))
        return bool(self._common)

    def _worktree_error(self, what: str, fix: str) -> InputError:
        return InputError(
            f"items cannot have worktrees here: {what}", self._project, fix, code="no-worktrees"
        )

    # ── places ───────────────────────────────────────────────────────────

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
                return self._spot(path, branch, commit)
            if b"already exists" not in made.stderr:
                self.remove(Worktree(path, path, branch, commit), merged=None)
                self._delete(branch, commit)
                if number > MOST_FAILURES:
                    raise self._git.failure("worktree add", made, commit, self._folder)
        raise InputError(
            "this item has too many worktrees",
            self._folder,
            "plait worktrees --clean",
            code="no-worktrees",
        )

    def _check_out_files(self, path: str) -> Answer:
        """Bring the files to a new worktree; until that is done it is marked as one that is being
        made.
        """
        administration = self._inside(path).administration
        filled = self._git.try_run(
            "reset", "--hard", "--quiet", inside=GitLocation(administration, path)
        )
        if filled.exit_code == 0:
            self._indexes[path] = _stamp(os.path.join(administration, "index"))
            os.unlink(os.path.join(administration, "locked"))
        return filled

    def _spot(self, path: str, branch: str, commit: str) -> Worktree:
        directory = os.path.normpath(os.path.join(path, self._prefix))
        os.makedirs(directory, exist_ok=True)  # a project that is not committed yet
        return Worktree(path, directory, branch, commit)

    def _make_folder(self) -> None:
        """For the places of items: here, and not where a link leads."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if os.path.islink(self._folder):
            raise _is_link(self._folder)

    def remove_gather(self, branch: str) -> str:
        """Remove the worktree that `gather` has made, since its branch moves on without it.

        What nobody has committed there goes to a branch of its own, whose name is given back.
        """
        path = self._gather_path
        if not os.path.isdir(path):
            return ""
        spot = Worktree(path, path, branch, "")
        if not self.is_unfinished(path):
            spot = self._put_aside(spot)
        remains = self.remove(spot, merged=None)
        if remains is not None:
            raise InputError(
                remains.message, path, "put that right, then plait retry", code="no-worktrees"
            )
        return "" if spot.branch == branch else spot.branch

    def _put_aside(self, spot: Worktree) -> Worktree:
        """The same with all committed; if there is something, on a branch of its own, not that of
        the items.

        After a kill in the middle the worktree is on that branch already.
        """
        self.break_locks(spot)
        self.require_intact(spot)
        inside = self._inside(spot.path)
        on = (
            self._git.run_checked("symbolic-ref", "--quiet", "HEAD", inside=inside)
            .stdout.decode()
            .strip()
        )
        is_aside = on.startswith(f"{BRANCHES}{spot.branch}-left-")
        if is_aside:
            spot = replace(spot, branch=on.removeprefix(BRANCHES))
        look = self.look(spot)
        if look.unmerged or look.repositories or not look.on_branch:
            raise InputError(
                "in the worktree of reduce and merge is something that no branch can keep",
                spot.path,
                "finish there what was begun, commit it or take it away; then plait retry",
                code="no-worktrees",
            )
        if not look.files:
            return spot
        if not is_aside:
            names = (f"{spot.branch}-left-{number}" for number in itertools.count(1))
            side = next(name for name in names if not self.tip(BRANCHES + name))
            self.move(BRANCHES + side, look.head, "")
            self._git.run("symbolic-ref", "HEAD", BRANCHES + side, inside=inside)
            spot = replace(spot, branch=side)
        self.commit(spot, look.files, "merged: what was left behind\n")
        return spot

    @property
    def _gather_path(self) -> str:
        return os.path.join(self._folder, "merged")

    def gather(self, branch: str) -> Worktree:
        """A worktree of a branch that is there already."""
        path = self._gather_path
        if os.path.lexists(path) and self.is_unfinished(path):
            self.remove(self.spot_at(path), merged=None)
        if not os.path.lexists(path):
            self._make_folder()
            new = ("--quiet", "--no-checkout", "--lock", "--reason", MAKING, path, branch)
            self._git.run("worktree", "add", *new)
            filled = self._check_out_files(path)
            if filled.exit_code != 0:
                raise self._git.failure("reset", filled, branch)
        return self._spot(path, branch, self.tip(BRANCHES + branch))

    def is_there(self, spot: Worktree) -> bool:
        for path in (self._folder, spot.path):
            if os.path.islink(path):
                raise _is_link(path)
        return os.path.isdir(spot.directory) and (not spot.branch or _is_whole(spot.path))

    def require_intact(self, spot: Worktree) -> None:
        if not _is_whole(spot.path):
            raise InputError(
                "nothing is committed from a folder of an item, since its .git is gone, and other "
                "files may "
                "be, too: take what you need from it, and remove it",
                spot.path,
                code="no-worktrees",
            )

    def is_worktree(self, path: str) -> bool:
        return self._administration(path) is not None

    def is_unfinished(self, path: str) -> bool:
        """Was git killed while it made this worktree?  Then no step has ever seen it."""
        administration = self._administration(path)
        if administration is None:
            return _is_empty(path)
        return _read_line(os.path.join(administration, "locked")).startswith(MAKING)

    def break_locks(self, spot: Worktree | None = None) -> None:
        """Locks of git processes that died with an earlier life: of the run's branches, or of a
        place.
        """
        branches = os.path.join(self._common, BRANCHES, "plait", self._run)
        folder = branches if spot is None else self._administration(spot.path) or ""
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.endswith(".lock"):
                os.unlink(os.path.join(folder, name))

    def look(self, spot: Worktree) -> WorktreeStatus:
        inside = self._inside(spot.path)
        if _stamp(os.path.join(inside.administration, "index")) != self._indexes.get(spot.path):
            # Somebody else wrote the index, perhaps with files in it that git is told to take for
            # unchanged.
            self._git.try_run("update-index", "-q", "--really-refresh", inside=inside)
        listed = self._git.run("status", *EVERYTHING, inside=inside)
        head = branch = ""
        files: list[str] = []
        unmerged = False
        for line in names(listed):
            text = os.fsdecode(line)
            match text[:2]:
                case "# ":
                    _, about, value = text.split(" ", 2)
                    head = value if about == "branch.oid" else head
                    branch = value if about == "branch.head" else branch
                case "? ":
                    files.append(text[2:])
                case "1 ":
                    files.append(text.split(" ", 8)[8])
                case "u ":
                    files.append(text.split(" ", 10)[10])
                    unmerged = True
        repositories = tuple(name for name in files if name.endswith("/"))
        committable = tuple(name for name in files if not name.endswith("/"))
        return WorktreeStatus(head, branch == spot.branch, committable, unmerged, repositories)

    def commit(self, spot: Worktree, files: Sequence[str], message: str) -> str:
        inside = self._inside(spot.path)
        # Sorted, a file that has become a folder comes before what is in it, as git can take it.
        listed = b"".join(os.fsencode(name) + b"\0" for name in sorted(files))
        staging = ("--add", "--remove", "--replace", "-z", "--stdin")
        self._git.run("update-index", *staging, inside=inside, stdin=listed)
        # It may be empty: what was staged was taken back in the file.
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
                "the folder of an item is no worktree of the repository any more",
                path,
                "git worktree repair FOLDER, if you have moved it; else take what you need from "
                "it, "
                "remove it, and plait retry RUN ITEM",
                code="no-worktrees",
            )
        return GitLocation(administration, path, sees_all=True)

    def _administration(self, path: str) -> str | None:
        """Where the repository keeps what it knows about a worktree: by its own list of them."""
        top, own = os.path.join(self._common, "worktrees"), os.path.basename(path)
        if not self._common or not os.path.isdir(top):
            return None
        found = (os.path.join(top, name) for name in (own, *os.listdir(top)))
        return next((one for one in found if _worktree_path(one) == os.path.realpath(path)), None)

    def point(self, spot: Worktree, head: str) -> bool:
        """Let a branch name what its worktree has, unless that would leave commits without a
        name.
        """
        ref = BRANCHES + spot.branch
        tip = self.tip(ref)
        return tip == head or (self.is_ancestor(tip, head) and self.move(ref, head, tip))

    def remove(self, spot: Worktree, *, merged: str | None) -> Leftover | None:
        """Remove a worktree, and its branch if that adds nothing to what was merged; what stays of
        it.
        """
        if not os.path.isdir(spot.path):
            return None
        administration = self._administration(spot.path)
        if administration is not None:
            stays = self._find_unsaved(GitLocation(administration, spot.path, sees_all=True))
            if stays is not None:
                return stays
        # At once: half of it, after a kill, would look like an item that has removed the other
        # half.  For
        # the same reason what cannot be removed never comes back.
        aside = self._free_aside(spot.path)
        try:
            os.rename(spot.path, aside)
        except OSError as error:
            return Leftover(spot.path, "cannot-move", error.strerror or str(error))
        why = remove_tree(aside)
        if administration is not None:
            self._remove_administration(administration)
        if merged is not None:
            self._let_go(spot.branch, merged)
        return None if why is None else Leftover(aside, "aside", why)

    def _free_aside(self, path: str) -> str:
        aside = os.path.join(self._folder, f".{os.path.basename(path)}{ASIDE}")
        taken = itertools.takewhile(
            os.path.lexists, (aside, *(f"{aside}-{n}" for n in range(2, MOST_TRIES)))
        )
        number = sum(1 for _ in taken)
        return f"{aside}-{number + 1}" if number else aside

    def _let_go(self, branch: str, at: str) -> None:
        with self._lock:
            self._gone[branch] = at
            many = len(self._gone) >= TOGETHER
        if many:
            self.settle()

    def settle(self) -> None:
        """Remove the branches of places that are gone, each if it is still where it was."""
        with self._lock:
            gone, self._gone = self._gone, {}
        if not gone:
            return
        listed = "".join(f"delete {BRANCHES}{branch}\0{at}\0" for branch, at in gone.items())
        if self._git.try_run("update-ref", "--stdin", "-z", stdin=listed.encode()).exit_code != 0:
            for branch, at in gone.items():  # all or none it was; now those that can be
                self._delete(branch, at)

    def unread(self, spot: Worktree) -> Leftover | None:
        """Why a worktree stays of which git can say nothing: a part of it cannot be read."""
        needed = self._find_unsaved(self._inside(spot.path))
        return needed if needed is not None and needed.cause == "closed" else None

    def _find_unsaved(self, inside: GitLocation) -> Leftover | None:
        """Does a place hold what git neither knows nor ignores?  It may be nowhere else."""
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
        # What begins with './' is no pattern; git takes these names literally, but not if it is
        # told to.
        top, literal = os.fsencode(inside.path), {"GIT_LITERAL_PATHSPECS": "0"}
        by_name = {b"./" + os.path.relpath(one, top): one for one in folders}
        listed = b"".join(name + b"\0" for name in by_name)
        ignored = self._git.try_run(
            "check-ignore", "-z", "--stdin", inside=inside, stdin=listed, env=literal
        )
        return [one for name, one in by_name.items() if name not in set(names(ignored.stdout))]

    def _remove_administration(self, administration: str) -> None:
        """At once, since another git may be looking at all worktrees of the repository."""
        aside = os.path.join(self._folder, f".{os.path.basename(administration)}")
        try:
            os.rename(administration, aside)
        except OSError:  # another disk
            aside = administration
        remove_tree(aside)

    def prune(self) -> None:
        """Let git forget worktrees of this run whose folders are gone; and the rest of those
        folders.
        """
        for path in self.asides():
            remove_tree(path)
        for administration, _ in self._stale():
            self._remove_administration(administration)

    def asides(self) -> list[str]:
        """What nobody needs: all that it held is elsewhere.

        Of removals, what a crash or a permission kept; and copies that were never handed over.
        """
        return [path for path in self._item_folders() if os.path.basename(path).startswith(".")]

    def missing_folders(self) -> list[str]:
        """The folders of this run that git lists and that are not there."""
        return sorted(path for _, path in self._stale())

    def _stale(self) -> list[tuple[str, str]]:
        top = os.path.join(self._common, "worktrees")
        known = os.listdir(top) if self._common and os.path.isdir(top) else []
        listed = [(one, _worktree_path(one)) for one in (os.path.join(top, name) for name in known)]
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
            "this item has too many folders",
            self._folder,
            "plait worktrees --clean",
            code="no-worktrees",
        )

    def _copy_inputs(self, path: str, inputs: Sequence[str]) -> Worktree:
        making = self._making(path)
        remove_tree(making)  # of a life that ended meanwhile
        try:
            os.mkdir(making, 0o700)
            copy_inputs(self._project, inputs, making)
            return Worktree(path, path, "", "", folder_digest(making))
        except BaseException as error:
            remove_tree(making)
            if isinstance(error, OSError):
                raise _unmade(path, error) from error
            raise

    def publish(self, spot: Worktree) -> None:
        """From now on steps work there; a folder of copies gets its own name only when that is
        recorded.
        """
        making = self._making(spot.path)
        if spot.branch or not os.path.isdir(making):
            return
        try:
            os.rename(making, spot.path)
        except OSError as error:
            raise _unmade(spot.path, error) from error

    def _making(self, path: str) -> str:
        return os.path.join(self._folder, f".{os.path.basename(path)}{COPYING}")

    def is_unchanged(self, spot: Worktree) -> bool:
        return is_unchanged(spot.path, spot.stamps)

    # ── refs and merges ──────────────────────────────────────────────────

    def tip(self, ref: str) -> str:
        return self._git.line_if_any("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")

    def move(self, ref: str, new: str, old: str) -> bool:
        """Compare and swap; False if the ref was somewhere else; without `old` it has to be new."""
        moved = self._git.try_run(
            "update-ref", "--create-reflog", "-m", "plait: merge", ref, new, old
        )
        if moved.exit_code == 0:
            return True
        if self.tip(ref) == old:
            raise git_error("update-ref", moved)
        return False

    def forget_branch(self, branch: str, at: str) -> bool:
        """Remove a branch, if it is there; False if somebody has checked it out."""
        if any(ref == BRANCHES + branch for ref, _ in self.list_checkouts()):
            return False
        self._delete(branch, at)
        return True

    def _delete(self, branch: str, at: str) -> None:
        if at:  # else git would remove it wherever it is
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
        told = "--format=%(refname:lstrip=2)%00%(worktreepath)%00"
        rows = names(self._git.run("for-each-ref", f"--no-merged={into}", told, ours))
        found = zip(rows[::2], rows[1::2], strict=True)
        return [os.fsdecode(branch.lstrip(b"\n")) for branch, place in found if not place]

    def undone(self, old: str, new: str, tip: str) -> list[str]:
        """The files that one commit changes, and that are at a later one as they were before it."""
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
        """The commit in which two come together, or the files on which they do not agree."""
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
        """The working tree that has a branch checked out, if there is one; it is locked
        meanwhile.
        """
        for found, path in [*self.list_checkouts()]:
            if found != ref:
                continue
            folder = self._administration(path) or self._common
            tree = Checkout(self._git, path, folder, os.path.join(self._folder, ".written"), mark)
            with tree.hold_lock():
                # Nobody can leave the branch any more; but perhaps somebody just has.
                head = self._git.try_run(
                    "symbolic-ref", "--quiet", "HEAD", inside=GitLocation(folder, path)
                )
                if head.exit_code not in (0, 1):
                    raise git_error("symbolic-ref", head)
                yield tree if os.fsdecode(head.stdout).removesuffix("\n") == ref else None
            return
        yield None

    def list_checkouts(self) -> Iterator[tuple[str, str]]:
        """The branches that are checked out, with the working trees in which they are."""
        path = ""
        for line in names(self._git.run("worktree", "list", "--porcelain", "-z")):
            kind, _, value = os.fsdecode(line).partition(" ")
            if kind == "worktree":
                # Of a repository that is kept elsewhere git names that other folder.
                path = (
                    self._root
                    if os.path.realpath(value) == os.path.realpath(self._common)
                    else value
                )
            if kind == "branch" and os.path.lexists(os.path.join(path, ".git")):
                yield value, path

    # ── what happened ────────────────────────────────────────────────────

    def facts(self, target: str, source: str) -> dict[str, Json]:
        """The commits that one ref has and another has not, oldest first; the files that they
        change.
        """
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
        """The folders that are there."""
        return [path for path in self._item_folders() if not os.path.basename(path).startswith(".")]

    def _item_folders(self) -> list[str]:
        """The folders of items; a link is none, wherever it leads."""
        if os.path.islink(self._folder) or not os.path.isdir(self._folder):
            return []
        found = (os.path.join(self._folder, name) for name in sorted(os.listdir(self._folder)))
        return [path for path in found if os.path.isdir(path) and not os.path.islink(path)]

    def spot_at(self, path: str) -> Worktree:
        return Worktree(path, path, f"plait/{self._run}/{os.path.basename(path)}", "")


def place_name(run: str, order: int, title: str, key: str, number: int) -> str:
    """What the folder and the branch of an item are called: letters, digits and `-`, whatever it
    holds.
    """
    slug = (
        re.sub(r"[^a-z0-9]+", "-", title.lower(), flags=re.ASCII)
        .strip("-")[:SLUG_LENGTH]
        .strip("-")
    )
    told = sha256_hex(f"{run}\0{number}\0{key}".encode("utf-8", "surrogatepass"))[:8]
    return "-".join(part for part in (str(order), slug, told) if part)


def _is_link(path: str) -> InputError:
    return InputError(
        "items do not work behind a link",
        path,
        "look at it, and remove it: it was made by something else than this run",
        code="no-worktrees",
    )


def _unmade(path: str, error: OSError) -> ProcessError:
    return ProcessError(
        f"a folder for an item cannot be made: {error.strerror or error}",
        path,
        "put that right, then plait retry RUN --failed",
        code="no-worktrees",
    )


def _worktree_path(administration: str) -> str:
    """The folder that an entry in the repository's list of worktrees is about; empty if there is no
    entry.
    """
    said = (
        "" if os.path.islink(administration) else _read_line(os.path.join(administration, "gitdir"))
    )
    return os.path.realpath(os.path.join(administration, os.path.dirname(said))) if said else ""


def _without_side(name: str, *sides: str) -> str:
    """git gives a file that should be where a folder is another name, with the commit it comes
    from.
    """
    return re.sub(f"~({'|'.join(sides)})(_[0-9]+)?$", "", name)


def _is_whole(path: str) -> bool:
    """Has a worktree still its `.git`, whatever that is?  Else somebody may have begun to remove
    it.
    """
    try:
        os.lstat(os.path.join(path, ".git"))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # whoever looks at it will be told why that cannot be
    return True


def _is_empty(path: str) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False  # who knows


def _stamp(path: str) -> object:
    """What changes with every new index."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _read_line(path: str) -> str:
    """The only line of a file; nothing if there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(4096).removesuffix("\n")
    except OSError:
        return ""


def _has_modules(administration: str) -> bool:
    """Submodules were fetched into the worktree: their commits may be nowhere else."""
    try:
        return bool(os.listdir(os.path.join(administration, "modules")))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # who knows
