"""A repository with a map whose items work in worktrees: real git, a journal in memory, steps of tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from plait.adapters.git import GitWorktrees
from plait.adapters.git.git import Answer, StartGit
from plait.core.errors import ProcessError
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.backend import WorkItem
from plait.engine.events import Note
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Outcome
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Policy, Step
from plait.program.action_step import ActionStep
from plait.program.map import ErrorPolicy, Map
from plait.program.worktrees.isolation import Isolation
from program.fake_git import git, new_repository
from program.fakes import Acting, new_run, performed, step, steps

WHO = {"GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    stdout: bytes
    stderr: bytes


def start_git(
    args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
) -> Answer:
    """Real git, as the app starts it."""
    around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=cwd,
            env={**around, **env},
            input=stdin,
            capture_output=True,
            timeout=60,
        )
    except OSError as error:
        raise ProcessError(f"git cannot be started: {error.strerror}", cwd) from error
    return Ended(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class Given:
    """Items that are simply there, known by themselves."""

    items: tuple[str, ...]
    name: str = "items"
    kind: str = "items"
    title: str = "items"
    fingerprint: str = "i"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    def run(self, ctx: StepContext) -> Json:  # noqa: ARG002
        return {"count": len(self.items)}

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:  # noqa: ARG002
        return (WorkItem(order, item, item) for order, item in enumerate(self.items))


Does = Callable[[Path, str], object]
"""What an item does, in its folder."""


def commits_a_file(folder: Path, item: str) -> None:
    (folder / f"{item}.txt").write_text(f"{item}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", item)


@dataclass(slots=True)
class Place:
    """A project in a repository, and the attempts of one run in it."""

    folder: Path
    items: tuple[str, ...] = ("a", "b", "c")
    does: Does = commits_a_file
    isolation: Isolation = field(default_factory=lambda: Isolation("worktree", fingerprint="w"))
    start: StartGit = start_git
    errors: ErrorPolicy = ErrorPolicy()
    parallel: int = 2
    prefix: str = "."
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    ran: list[str] = field(default_factory=list)
    first: Mapping[str, str] = field(default_factory=lambda: {"base": "base\n"})
    state: str = "run"
    """Where the run is, in the folder."""
    made_by: Sequence[str] = ()
    """Options of `git init`."""

    def __post_init__(self) -> None:
        if self.made_by:
            self.repository.mkdir(parents=True)
            git(self.repository, "init", "-q", "-b", "main", *self.made_by)
        new_repository(self.repository, **self.first)

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def project(self) -> Path:
        return self.repository / self.prefix

    @property
    def worktrees(self) -> Path:
        return self.folder / self.state / "worktrees"

    def run_attempt(self, *, retried: Sequence[str] = (), repeat: Sequence[str] = ()) -> Outcome:
        """Perform the map, with what the journal knows of it."""
        run = new_run(
            journal=self.journal,
            folder=str(self.folder / self.state),
            retried=retried,
            repeat=repeat,
            workspaces=GitWorktrees(
                self.start, str(self.project), str(self.folder / self.state), "r1"
            ),
        )
        self.project.mkdir(parents=True, exist_ok=True)
        try:
            return performed(self.map_step, run, directory=str(self.project))
        finally:
            self.journal.reopen()

    @property
    def map_step(self) -> Map:
        return Map(
            "map",
            Given(self.items),
            steps(self._step("work", self.does)),
            "f",
            parallel=self.parallel,
            isolation=self.isolation,
            errors=self.errors,
        )

    def _step(self, name: str, does: Does) -> ActionStep:
        def answer(ctx: StepContext) -> Json:
            item = str(ctx.scope.lookup("item"))
            self.ran.append(item)
            does(Path(ctx.directory), item)
            return ctx.directory

        return step(name, Acting(answer))

    # ── what came of it ──────────────────────────────────────────────────

    def merged(self, branch: str = "main") -> list[str]:
        """The messages of all commits but merges and the first, in the order in which they were merged."""
        log = git(self.repository, "log", "--first-parent", "--reverse", "--format=%H %P", branch)
        found: list[str] = []
        for line in log.splitlines()[1:]:
            new, first, *others = line.split()
            came = git(
                self.repository, "log", "--no-merges", "--reverse", "--format=%s", new, f"^{first}"
            )
            found += came.splitlines()
            assert others, "every item is merged by a merge of its own"
        return found

    def branches(self) -> list[str]:
        return git(self.repository, "branch", "--format=%(refname:short)").splitlines()

    def left(self) -> list[str]:
        return sorted(os.listdir(self.worktrees)) if self.worktrees.exists() else []

    def status(self) -> str:
        return git(self.repository, "status", "--porcelain")

    def notes(self) -> list[str]:
        return [one.event.message for one in self.journal.events() if isinstance(one.event, Note)]

    def recorded(self, path: str) -> Json:
        known = self.journal.step(path)
        return None if known is None else getattr(known.outcome, "value", None)
