"""The worktrees of one run: made, looked at, committed, merged, removed.

Whatever names a ref, a folder or a commit on the command line of git was made here: refs and folders
of letters, digits and `-`, commits as object ids.  What items hold never gets there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Sequence

from plait.digests import sha256_hex
from plait.errors import InputError
from plait.hints import Final
from plait.steps.hands import Conflict, Look, Site, Spot
from plait.values import Json
from plait.workspace.checkout import Checkout
from plait.workspace.copies import copy_inputs, is_unchanged, stamps
from plait.workspace.git import Git, StartGit, failed, names

BRANCHES: Final = "refs/heads/"
NOWHERE: Final = "0" * 40
SLUG_LENGTH: Final = 40
MOST_TRIES: Final = 100
MOST_FAILURES: Final = 2
"""How often git may fail to make a worktree: it looks at all others, which come and go meanwhile."""


class Worktrees:
    """Those of one run; implements `steps.hands.Workspaces`."""

    def __init__(self, start: StartGit, project: str, folder: str, run: str) -> None:
        self._start = start
        self._project = project
        self._folder = os.path.join(os.path.abspath(folder), "worktrees")
        self._run = run
        self._git = Git(start, project)
        self._common = self._prefix = ""

    # ── the repository ───────────────────────────────────────────────────

    def survey(self, base: str, *, needs_branch: bool) -> Site:
        inside = self._git.asked("rev-parse", "--is-inside-work-tree")
        if inside.exit_code != 0 and b"not a git repository" not in inside.stderr:
            raise failed("rev-parse", inside)
        if inside.exit_code != 0:
            raise self._refused("the project is not in a git repository", "git init, and a first commit")
        if inside.stdout.strip() != b"true":
            raise self._refused("the repository has no working tree: it is bare", "work in a clone of it")
        site = self._site(base)
        if not site.commit:
            if base == "HEAD":
                raise self._refused("the repository has no commit yet", "make a first commit")
            raise self._refused(f"there is no commit '{base}' in the repository", "name another base")
        if needs_branch and not site.branch:
            raise self._refused(
                "no branch is checked out (detached HEAD), so there is nothing to merge into",
                "git switch BRANCH; or write isolation: {kind: worktree, merge: none}",
            )
        self.open(site)
        return site

    def _site(self, base: str) -> Site:
        asked = ("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir")
        root, common = self._git.line(*asked).split("\n")
        prefix = os.path.relpath(os.path.realpath(self._project), os.path.realpath(root))
        commit = self._git.line_if_any("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
        branch = self._git.line_if_any("symbolic-ref", "--quiet", "HEAD")
        return Site(root, common, prefix, commit, branch)

    def open(self, site: Site) -> None:
        self._common = site.common
        self._prefix = site.prefix
        self._git = Git(self._start, site.root, site.common)

    def _refused(self, what: str, fix: str) -> InputError:
        return InputError(
            f"items cannot have worktrees here: {what}", self._project, fix, code="no-worktrees"
        )

    # ── places ───────────────────────────────────────────────────────────

    def add(self, order: int, title: str, key: str, commit: str) -> Spot:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for number in range(1, MOST_TRIES):
            name = place_name(self._run, order, title, key, number)
            path, branch = os.path.join(self._folder, name), f"plait/{self._run}/{name}"
            if os.path.lexists(path):
                continue
            made = self._git.asked("worktree", "add", "--quiet", "-b", branch, path, commit)
            if made.exit_code == 0:
                return self._spot(path, branch, commit)
            if b"already exists" not in made.stderr:
                self.forget_branch(branch, commit)
                if number > MOST_FAILURES:
                    raise failed("worktree add", made)
        raise InputError(
            "this item has too many worktrees", self._folder, "plait worktrees --clean", code="no-worktrees"
        )

    def _spot(self, path: str, branch: str, commit: str) -> Spot:
        directory = os.path.normpath(os.path.join(path, self._prefix))
        os.makedirs(directory, exist_ok=True)  # a project that is not committed yet
        return Spot(path, directory, branch, commit)

    def gather(self, branch: str) -> Spot:
        """A worktree of a branch that is there already."""
        path = os.path.join(self._folder, "merged")
        if not os.path.lexists(path):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._git.run("worktree", "add", "--quiet", path, branch)
        return self._spot(path, branch, self.tip(BRANCHES + branch))

    def is_there(self, spot: Spot) -> bool:
        return os.path.isdir(spot.directory)

    def is_unfinished(self, path: str) -> bool:
        """Was git killed while it made this worktree?  Then no step has ever seen it."""
        administration = _administration(path)
        if administration is None:
            return not os.path.lexists(os.path.join(path, ".git"))
        return _said(os.path.join(administration, "locked")).startswith("initializing")

    def break_locks(self, spot: Spot | None = None) -> None:
        """Locks of git processes that died with an earlier life: of the run's branches, or of a place."""
        branches = os.path.join(self._common, BRANCHES, "plait", self._run)
        folder = branches if spot is None else _administration(spot.path) or ""
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.endswith(".lock"):
                os.unlink(os.path.join(folder, name))

    def look(self, spot: Spot) -> Look:
        listed = self._git.run("status", "--porcelain=v2", "--branch", "-z", "--no-renames", at=spot.path)
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
        return Look(head, branch == spot.branch, tuple(files), unmerged)

    def commit(self, spot: Spot, message: str) -> str:
        self._git.run("add", "--all", at=spot.path)
        options = ("--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "--file=-")
        self._git.run("commit", *options, at=spot.path, stdin=message.encode(), env=self._git.who())
        return self._git.line("rev-parse", "HEAD", at=spot.path)

    def point(self, spot: Spot, head: str) -> bool:
        """Let a branch name what its worktree has, unless that would leave commits without a name."""
        ref = BRANCHES + spot.branch
        tip = self.tip(ref)
        return tip == head or (self.is_ancestor(tip, head) and self.move(ref, head, tip))

    def remove(self, spot: Spot, *, merged: str | None) -> bool:
        """Remove a worktree, and its branch if that adds nothing to what was merged; False if it stays."""
        administration = _administration(spot.path)
        if administration is not None and _has_modules(administration):
            return False
        if not os.path.isdir(spot.path):
            return True
        shutil.rmtree(spot.path, ignore_errors=True)
        if os.path.lexists(spot.path):
            return False
        if administration is not None:
            self._remove_administration(administration)
        if merged is not None:
            self._git.asked("update-ref", "-d", BRANCHES + spot.branch, merged)
        return True

    def _remove_administration(self, administration: str) -> None:
        """At once, since another git may be looking at all worktrees of the repository."""
        aside = os.path.join(self._folder, f".{os.path.basename(administration)}")
        try:
            os.rename(administration, aside)
        except OSError:  # another disk
            aside = administration
        shutil.rmtree(aside, ignore_errors=True)

    def prune(self) -> None:
        """Let git forget worktrees of this run whose folders are gone."""
        top = os.path.join(self._common, "worktrees")
        for name in os.listdir(top) if os.path.isdir(top) else ():
            administration = os.path.join(top, name)
            path = os.path.dirname(_said(os.path.join(administration, "gitdir")))
            is_ours = os.path.dirname(path) == os.path.realpath(self._folder)
            if is_ours and not os.path.lexists(path) and not _has_modules(administration):
                self._remove_administration(administration)

    # ── copies ───────────────────────────────────────────────────────────

    def copy(self, order: int, title: str, key: str, inputs: Sequence[str]) -> Spot:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for number in range(1, MOST_TRIES):
            path = os.path.join(self._folder, place_name(self._run, order, title, key, number))
            if not os.path.lexists(path):
                os.mkdir(path, 0o700)
                copy_inputs(self._project, inputs, path)
                return Spot(path, path, "", "", stamps(path))
        raise InputError(
            "this item has too many folders", self._folder, "plait worktrees --clean", code="no-worktrees"
        )

    def is_unchanged(self, spot: Spot) -> bool:
        return is_unchanged(spot.path, spot.stamps)

    # ── refs and merges ──────────────────────────────────────────────────

    def tip(self, ref: str) -> str:
        return self._git.line_if_any("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")

    def move(self, ref: str, new: str, old: str) -> bool:
        """Compare and swap; False if the ref was somewhere else."""
        moved = self._git.asked(
            "update-ref", "--create-reflog", "-m", "plait: merge", ref, new, old or NOWHERE
        )
        if moved.exit_code == 0:
            return True
        if self.tip(ref) == old:
            raise failed("update-ref", moved)
        return False

    def forget_branch(self, branch: str, at: str) -> None:
        self._git.asked("update-ref", "-d", BRANCHES + branch, at)

    def forget_merged(self, into: str, spare: Collection[str]) -> None:
        ours = f"{BRANCHES}plait/{self._run}/"
        listed = self._git.run("for-each-ref", f"--merged={into}", "--format=%(objectname) %(refname)", ours)
        self.prune()
        for line in os.fsdecode(listed).splitlines():
            at, _, ref = line.partition(" ")
            if not {ref.removeprefix(BRANCHES), ref.removeprefix(ours)} & set(spare):
                self.forget_branch(ref.removeprefix(BRANCHES), at)

    def is_ancestor(self, one: str, other: str) -> bool:
        return bool(one) and self._git.asked("merge-base", "--is-ancestor", one, other).exit_code == 0

    def merge(self, ours: str, theirs: str, message: str) -> str | Conflict:
        """The commit in which two come together, or the files on which they do not agree."""
        options = ("--write-tree", "-z", "--name-only", "--no-messages", "--allow-unrelated-histories")
        merged = self._git.asked("merge-tree", *options, ours, theirs)
        if merged.exit_code not in (0, 1) or not merged.stdout:
            if b"usage:" in merged.stderr:
                raise InputError(
                    "this git cannot merge without a working tree",
                    fix="it takes git 2.38 or newer; or write isolation: {kind: worktree, merge: none}",
                    code="git",
                )
            raise failed("merge-tree", merged)
        tree, *files = names(merged.stdout)
        if merged.exit_code == 1:
            return Conflict(tuple(os.fsdecode(name) for name in files))
        parents = ("-p", ours, "-p", theirs)
        return self._git.line(
            "commit-tree", "--no-gpg-sign", *parents, tree.decode(), stdin=message.encode(), who=True
        )

    # ── the user's own working tree ──────────────────────────────────────

    def checkout_of(self, ref: str, *, mark: str) -> Checkout | None:
        """The working tree that has a branch checked out, if there is one."""
        path = ""
        for line in names(self._git.run("worktree", "list", "--porcelain", "-z")):
            if line.startswith(b"worktree "):
                path = os.fsdecode(line[len(b"worktree ") :])
            if line == b"branch " + ref.encode() and os.path.isdir(path):
                return Checkout(self._git, path, os.path.join(self._folder, "index"), f"plait {mark}\n")
        return None

    # ── what happened ────────────────────────────────────────────────────

    def facts(self, target: str, source: str) -> dict[str, Json]:
        """The commits that one ref has and another has not, oldest first; the files that they change."""
        commits = self._git.run("rev-list", "--reverse", source, f"^{target}", "--").decode().split()
        base = self._git.line_if_any("merge-base", target, source)
        listed = (
            self._git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", base, source)
            if base
            else b""
        )
        return {"commits": list(commits), "files": [os.fsdecode(name) for name in names(listed)]}

    def leftovers(self) -> list[str]:
        """The folders that are there."""
        if not os.path.isdir(self._folder):
            return []
        names = sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        found = (os.path.join(self._folder, name) for name in names)
        return [path for path in found if os.path.isdir(path)]

    def spot_at(self, path: str) -> Spot:
        return Spot(path, path, f"plait/{self._run}/{os.path.basename(path)}", "")


def place_name(run: str, order: int, title: str, key: str, number: int) -> str:
    """What the folder and the branch of an item are called: letters, digits and `-`, whatever it holds."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower(), flags=re.ASCII).strip("-")[:SLUG_LENGTH].strip("-")
    told = sha256_hex(f"{run}\0{number}\0{key}".encode("utf-8", "surrogatepass"))[:8]
    return "-".join(part for part in (str(order), slug, told) if part)


def _administration(path: str) -> str | None:
    """Where git keeps what it knows about a worktree; None if the two do not name each other."""
    said = _said(os.path.join(path, ".git")).removeprefix("gitdir: ")
    back = _said(os.path.join(said, "gitdir")) if said else ""
    if not back:
        return None
    is_ours = os.path.basename(os.path.dirname(said)) == "worktrees" and not os.path.islink(said)
    return (
        said if is_ours and os.path.realpath(back) == os.path.realpath(os.path.join(path, ".git")) else None
    )


def _said(path: str) -> str:
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
    except OSError:
        return False
