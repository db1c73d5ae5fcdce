"""Change tracking with git: `step.files_added`, `workflow.commits`, `git.branch` and so on.

A snapshot is the last commit and a tree of all files that are not ignored. The difference of two
snapshots is what changed in between, committed or not. The tree is built with our own index, object
store and configuration, so the repository is only read. No program that its configuration names is
run: no hook, file-system monitor, filter, external diff or transport.

Paths are relative to the project, or to its place in the worktree of an item. Outside a repository
there are no changes and no branch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from threading import Lock

from plait.core.digests import sha256_hex
from plait.core.errors import ProcessError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.safe_files import find_git_root, project_in_worktree
from plait.core.values import NOT_KNOWN, Json
from plait.engine.outcome import Failure, StepError, require_success
from plait.engine.paths import BASELINE
from plait.engine.perform import StepContext
from plait.engine.step import FunctionAction, LeafStep, Step
from plait.engine.unknown_results import is_unknown_result
from plait.program.clean_repository import (
    LISTING,
    SAFE,
    SETTINGS,
    clean_repository_env,
    make_clean_repository,
    read_settings,
    settings_env,
)
from plait.program.ports import Processes, Tracking

if TYPE_CHECKING:
    from plait.scope import Scope


CHANGES: Final = (
    "files", "files_added", "files_modified", "files_deleted", "files_changed",
    "commits", "commit_count", "insertions", "deletions",
)  # fmt: skip
"""The change fields of `step` and `workflow`."""


MERGED: Final = (
    "worktree", "source_branch", "target_branch", "session_id", "commits",
    "commit_count", "commit_ids", "modified_files", "file_count", "file_list",
)  # fmt: skip
"""The fields of `merge`."""


# ── variables of a flow ──────────────────────────────────────────────────


class SharedTracker:
    """The change tracker of a run. All steps share it."""

    def __init__(self) -> None:
        self.tracker: ChangeTracker | None = None


def begin_tracking(ctx: StepContext, wanted: frozenset[str]) -> None:
    """Start tracking; `wanted`: those of `step`, `workflow`, `git` that the flow uses."""
    run = ctx.run
    if not wanted:
        return
    tracking = run.shared(Tracking)
    if run.is_dry_run:
        tracking.unknown = wanted
        return
    tracking.is_on = True
    shared = run.shared(SharedTracker)
    shared.tracker = ChangeTracker(
        run.services.get(Processes), os.path.join(run.folder, "changes"), ctx.directory, wanted
    )
    if "workflow" in wanted:
        shared.tracker.base = Snapshot.of(require_success(ctx.perform(_baseline_step())))


def names_of_step(ctx: StepContext) -> dict[str, dict[str, Json]]:
    """The variables of a starting step: changes of the previous step and of the run, and the
    repository.
    """
    tracker = ctx.run.shared(SharedTracker).tracker
    known, mask = ctx.scope.names, ctx.run.secrets.mask
    if tracker is None:
        return _unknown_names(_fields(known.get("workflow")))
    # Nothing has changed before the first step.
    before = {**changes_record([], (0, 0), []), **_fields(known.get("step"))}
    names: dict[str, dict[str, Json]] = {"step": {name: before[name] for name in CHANGES}}
    if tracker.merges and "merge" in known:
        names["merge"] = names_of_merge(ctx)
    if "workflow" in tracker.wanted:
        changed = mask_value(tracker.since(tracker.base, ctx.directory), mask)
        names["workflow"] = _fields(known.get("workflow")) | changed
    if "git" in tracker.wanted:
        names["git"] = tracker.repository(ctx.directory)
    return names


def scope_outside_steps(ctx: StepContext) -> Scope:
    """The scope for templates outside steps: with the variables of the run and the repository."""
    tracking = ctx.run.shared(Tracking)
    if not tracking.is_on and not tracking.unknown:
        return ctx.scope
    names = names_of_step(ctx)
    return ctx.scope.frame(
        "run", step={name: names[name] for name in ("workflow", "git") if name in names}
    )


def _unknown_names(workflow: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    """The variables in a dry run: all unknown."""
    changes = dict.fromkeys(CHANGES, NOT_KNOWN)
    repository = dict.fromkeys(("branch", "commit", "root"), NOT_KNOWN)
    return {"step": changes, "workflow": {**workflow, **changes}, "git": repository}


def track_changes(ctx: StepContext, execute: Callable[[], dict[str, Json]]) -> dict[str, Json]:
    """Run an action and add its changes to the result, also if it fails."""
    tracker = ctx.run.shared(SharedTracker).tracker
    if tracker is None or "step" not in tracker.wanted:
        return execute()
    before = tracker.snapshot(ctx.directory)
    try:
        value = execute()
    except StepError as error:
        changed = mask_value(tracker.since(before, ctx.directory), ctx.run.secrets.mask)
        raise StepError(
            replace(error.failure, output={**error.failure.as_result(), "changes": changed})
        ) from None
    return {
        **value,
        "changes": mask_value(tracker.since(before, ctx.directory), ctx.run.secrets.mask),
    }


def merge_names_at_start(ctx: StepContext) -> dict[str, Json]:
    """`merge.*` at the start of the merge phase. From now on each step updates it."""
    tracker = ctx.run.shared(SharedTracker).tracker
    if tracker is not None:
        tracker.merges = True
    return names_of_merge(ctx)


def names_of_merge(ctx: StepContext) -> dict[str, Json]:
    """`merge.*`: the changes of the run and their target branch."""
    run = ctx.run
    from plait.program.worktrees.gather import GatherState
    from plait.program.worktrees.ports import Worktrees

    gathered = run.shared(GatherState).worktree
    if gathered is not None:
        return _merge_record(ctx, gathered.names(run.services.get(Worktrees)))
    tracker = run.shared(SharedTracker).tracker
    if tracker is None:
        return dict.fromkeys(MERGED, NOT_KNOWN) if run.is_dry_run else {}
    changed = tracker.since(tracker.base, ctx.directory)
    place = tracker.repository(ctx.directory)
    return _merge_record(
        ctx,
        {
            "worktree": place.get("root") or ctx.directory,
            **(
                {"source_branch": place["branch"], "target_branch": place["branch"]}
                if place
                else {}
            ),
            "commits": changed["commits"],
            "files": changed["files_changed"],
        },
    )


def _merge_record(ctx: StepContext, known: Mapping[str, Json]) -> dict[str, Json]:
    commits, files = _texts(known["commits"]), _texts(known["files"])
    facts: Json = {
        # Outside a repository the branches are undefined, so a default applies.
        **{
            name: known[name]
            for name in ("worktree", "source_branch", "target_branch")
            if name in known
        },
        "session_id": ctx.run.id,
        "commits": list(commits),
        "commit_count": len(commits),
        "commit_ids": ", ".join(commits),
        "modified_files": list(files),
        "file_count": len(files),
        "file_list": ", ".join(files),
    }
    return _fields(mask_value(facts, ctx.run.secrets.mask))


def _texts(value: Json) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _fields(value: Json) -> dict[str, Json]:
    return dict(value) if isinstance(value, Mapping) else {}


def _baseline_step() -> Step:
    """The step that records the first snapshot of a run, for resumed runs too."""

    def snapshot(ctx: StepContext) -> Json:
        tracker = ctx.run.shared(SharedTracker).tracker
        assert tracker is not None
        found = tracker.snapshot(ctx.directory)
        return None if found is None else found.record()

    return LeafStep(
        BASELINE, "snapshot", "what the repository holds", BASELINE, FunctionAction(snapshot)
    )


# ── snapshots ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Snapshot:
    head: str
    """The last commit; empty if there is none yet."""
    tree: str

    def record(self) -> dict[str, Json]:
        return {"head": self.head, "tree": self.tree}

    @classmethod
    def of(cls, record: Json) -> Snapshot | None:
        return cls(**record) if isinstance(record, dict) else None


class ChangeTracker:
    """Takes and compares snapshots. Thread-safe."""

    def __init__(
        self, processes: Processes, folder: str, project: str, wanted: frozenset[str]
    ) -> None:
        self.wanted = wanted
        self.base: Snapshot | None = None
        self.merges = False
        """Whether the merge phase has started."""
        self._processes = processes
        self._folder = folder
        self._project = project
        self._repositories: dict[tuple[str, int], _Repository] = {}
        self._lock = Lock()

    def snapshot(self, directory: str) -> Snapshot | None:
        """Return a snapshot; None outside any repository."""
        with self._lock:
            found = self._repository(directory)
            return None if found is None else found.snapshot()

    def since(self, before: Snapshot | None, directory: str) -> dict[str, Json]:
        """The changes since a snapshot."""
        with self._lock:
            found = self._repository(directory)
            if found is None or before is None:
                return changes_record([], (0, 0), [])
            return found.between(before, found.snapshot())

    def repository(self, directory: str) -> dict[str, Json]:
        """The fields of `git`."""
        with self._lock:
            found = self._repository(directory)
            if found is None:
                return {}  # undefined, so a default applies
            return {"branch": found.branch(), "commit": found.head(), "root": found.root}

    def _repository(self, directory: str) -> _Repository | None:
        root = find_git_root(directory)
        if root is None:
            return None
        # With the inode: the folder may have become another repository.
        key = root, os.lstat(os.path.join(root, ".git")).st_ino
        if key not in self._repositories:
            self._repositories[key] = self._open_repository(root)
        return self._repositories[key]

    def _open_repository(self, root: str) -> _Repository:
        place = project_in_worktree(root, self._project)
        return _Repository(
            self._processes, root, place if os.path.isdir(place) else root, self._folder
        )


class _Repository:
    """A worktree that git reads with our own index and object store."""

    def __init__(self, processes: Processes, root: str, place: str, folder: str) -> None:
        self.root = root
        self._processes = processes
        self._place = place
        self._env = settings_env(SETTINGS)
        name = sha256_hex(os.fsencode(root))[:16]
        self._index = os.path.join(folder, f"index-{name}")
        self._cone = self._line(
            "rev-parse", "--path-format=absolute", "--git-path", "info/sparse-checkout"
        )
        self._own = {
            **self._env,
            **self._clean_env(folder, os.path.join(folder, f"repository-{name}")),
        }

    def snapshot(self) -> Snapshot:
        head = self.head()
        if not os.path.exists(self._index) and head:
            # Files that are ignored but tracked are listed in the commit only.
            self._git("read-tree", head, own=True)
        listed = self._git("ls-files", "-z", "--cached", "--others", "--exclude-standard", own=True)
        # A name that ends in '/' is a nested repository. git needs this order: a file that became a
        # folder comes before its content.
        names = sorted(
            name for name in set(_split(listed)) - self._sparse_files() if not name.endswith(b"/")
        )
        lines = b"".join(name + b"\0" for name in names)
        self._git(
            "update-index", "--add", "--remove", "--replace", "-z", "--stdin", own=True, stdin=lines
        )
        return Snapshot(head, self._line("write-tree", own=True))

    def _sparse_files(self) -> set[bytes]:
        """Files that a sparse checkout leaves out of the worktree: they are not deleted."""
        if not os.path.exists(self._cone):
            return set()
        tagged = _split(self._git("ls-files", "-z", "-t", "--cached"))
        absent = (line[2:] for line in tagged if line.startswith(b"S "))
        place = os.fsencode(self._place)
        return {name for name in absent if not os.path.lexists(os.path.join(place, name))}

    def between(self, before: Snapshot, after: Snapshot) -> dict[str, Json]:
        commits = self._commits(before.head, after.head)
        if before.tree == after.tree:
            return changes_record([], (0, 0), commits)
        files = _split(self._diff("--name-status", before, after))
        return changes_record(
            [(status.decode("ascii"), os.fsdecode(name)) for status, name in _pairs(files)],
            _lines_changed(_split(self._diff("--numstat", before, after))),
            commits,
        )

    def head(self) -> str:
        return self._line_if_any("rev-parse", "--verify", "--quiet", "HEAD^{commit}")

    def branch(self) -> str:
        return self._line_if_any("symbolic-ref", "--quiet", "--short", "HEAD")

    def _commits(self, before: str, after: str) -> list[str]:
        """The new commits, oldest first."""
        if not after or before == after:
            return []
        known = [f"^{before}"] if before else []
        return self._git("rev-list", "--reverse", after, *known, "--").decode("ascii").split()

    def _diff(self, what: str, before: Snapshot, after: Snapshot) -> bytes:
        options = ("-r", "-z", "--relative", "--no-renames", "--no-ext-diff", "--no-textconv")
        return self._git("diff-tree", *options, what, before.tree, after.tree, own=True)

    def _clean_env(self, folder: str, own: str) -> dict[str, str]:
        """Environment variables: git reads this repository, but writes to our folder and uses our
        configuration.
        """
        objects = os.path.join(os.path.abspath(folder), "objects")
        os.makedirs(objects, mode=0o700, exist_ok=True)
        common = self._line("rev-parse", "--path-format=absolute", "--git-common-dir")
        make_clean_repository(
            own, common, read_settings(self._git(*LISTING)), with_user_settings=True
        )
        return {
            **clean_repository_env(os.path.abspath(own), os.path.abspath(own), self.root),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_INDEX_FILE": os.path.abspath(self._index),
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quote_path(os.path.join(common, "objects")),
        }

    def _line_if_any(self, *args: str) -> str:
        """The output of git; empty if the object does not exist."""
        try:
            return self._line(*args)
        except ProcessError as error:
            if error.code == "no-program":
                raise
            return ""

    def _line(self, *args: str, own: bool = False) -> str:
        return os.fsdecode(self._git(*args, own=own).removesuffix(b"\n"))

    def _git(self, *args: str, own: bool = False, stdin: bytes = b"") -> bytes:
        env = self._own if own else self._env
        return self._processes.git(args, cwd=self._place, env={**SAFE, **env}, stdin=stdin)


def _quote_path(path: str) -> str:
    """Quote a path for a list separated by ':'."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _split(data: bytes) -> list[bytes]:
    return data.split(b"\0")[:-1]


def _pairs(parts: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(parts[::2], parts[1::2], strict=True)


def _lines_changed(rows: Sequence[bytes]) -> tuple[int, int]:
    """Added and deleted lines; binary files are not counted."""
    counts = [row.split(b"\t", 2)[:2] for row in rows]
    added, deleted = (
        sum(int(row[column]) for row in counts if row[column] != b"-") for column in (0, 1)
    )
    return added, deleted


def changes_record(
    files: Sequence[tuple[str, str]], lines: tuple[int, int], commits: Sequence[str]
) -> dict[str, Json]:
    """The change fields of `step` and `workflow`; `files` are pairs of git status and name."""
    changed = [name for _, name in files]
    return {
        "files": changed,
        "files_added": [name for status, name in files if status == "A"],
        "files_modified": [name for status, name in files if status not in ("A", "D")],
        "files_deleted": [name for status, name in files if status == "D"],
        "files_changed": changed,
        "commits": list(commits),
        "commit_count": len(commits),
        "insertions": lines[0],
        "deletions": lines[1],
    }


@dataclass(frozen=True, slots=True)
class ChangeCheck:
    """`commit_required` and `outputs`: an action must commit; its new files become variables."""

    commit_required: bool = False
    id: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def captures(self) -> tuple[str, ...]:
        """The variables that it may set for later steps."""
        return (self.id,) if self.outputs else ()

    def apply(self, execute: Callable[[], dict[str, Json]], ctx: StepContext) -> dict[str, Json]:
        """Execute an action and check what it changed."""
        tracker = ctx.run.shared(SharedTracker).tracker
        before = None if tracker is None else tracker.snapshot(ctx.directory)
        value = execute()
        if is_unknown_result(value) and self.outputs:
            return {**value, "captures": {**(value.get("captures") or {}), self.id: NOT_KNOWN}}
        if tracker is None or is_unknown_result(value):
            return value
        changed = tracker.since(before, ctx.directory)
        if self.commit_required and not changed["commits"]:
            what = "the step made no commit, but commit_required is set"
            raise StepError(
                Failure(what, "incomplete", exit_code=1, output={**value, "exit_code": 1})
            )
        if not self.outputs:
            return value
        inner = value.get("captures")
        return {
            **value,
            "captures": {
                **(inner if isinstance(inner, dict) else {}),
                self.id: self._files(changed),
            },
        }

    def _files(self, changed: Mapping[str, Json]) -> dict[str, Json]:
        """For each output: its file, or a list if there are several."""
        deleted = set(changed["files_deleted"])
        files = [name for name in changed["files_changed"] if name not in deleted]
        found = {
            name: [
                file
                for file in files
                if fnmatchcase(file, pattern) or fnmatchcase(os.path.basename(file), pattern)
            ]
            for name, pattern in self.outputs.items()
        }
        return {name: files[0] if len(files) == 1 else files for name, files in found.items()}
