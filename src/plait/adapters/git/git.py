"""Run git so that no program of a repository runs, and no environment variable changes what git
does.

Hooks, the file-system monitor, signing programs, transports and background work are switched off by
settings that override those of the repository. Commands that read, write or merge file contents use
a stand-in for the repository that has none of its programs (`clean_repository`), with a given
working tree and administration: a `.git` in that tree is not followed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from threading import Lock

from plait.core.errors import InputError, PlaitError, ProcessError
from plait.core.hints import Final, Protocol
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.program.clean_repository import (
    FILTER,
    LISTING,
    SAFE,
    SETTINGS,
    GitSetting,
    clean_repository_env,
    make_clean_repository,
    read_settings,
    settings_env,
)

WRITING: Final = (
    *SETTINGS,
    ("protocol.allow", "never"),
    ("submodule.recurse", "false"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("branch.autoSetupMerge", "false"),
    ("core.filesRefLockTimeout", "10000"),
    ("core.packedRefsTimeout", "10000"),
    ("merge.autoStash", "false"),
    ("user.useConfigOnly", "false"),
)
SEEING: Final = (
    *WRITING,
    # With these, git reads every file, also those that a flag in the index tells it to skip.
    ("core.sparseCheckout", "true"),
    ("sparse.expectFilesOutsideOfPatterns", "false"),
    # Ignore rules of the user or of this clone are not used; only `.gitignore` files are.
    ("core.excludesFile", "/dev/null"),
)
LACKING: Final = lazy_pattern(
    rb"unable to (read|parse)|could not (read|parse|fetch)|promisor|bad object|invalid object"
)
"""git's messages when an object is missing."""
PARTIAL: Final = lazy_pattern(r"remote\..*\.promisor|extensions\.partialclone", re.DOTALL)
FATAL: Final = 128
"""The largest exit code of git itself."""
IDENTITY: Final = {"NAME": "Plait", "EMAIL": "plait@localhost"}


class Answer(Protocol):
    """Exit code and output of git."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class StartGit(Protocol):
    """Runs git to its end; `env` has the only `GIT_…` variables of its environment."""

    def __call__(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer: ...


@dataclass(frozen=True, slots=True)
class GitLocation:
    """A working tree, and the folder with its HEAD and index."""

    administration: str
    """Empty if neither is needed."""
    path: str
    index: str = ""
    """Another index than that of the administration."""
    sees_all: bool = False
    """Also show files that git was told to skip or to ignore, except by a `.gitignore`."""


class Git:
    """The repository of a folder. Thread-safe."""

    def __init__(self, start: StartGit, folder: str, common: str = "", own: str = "") -> None:
        self._start = start
        self._folder = folder
        self._common = common
        self._own = own
        """Our stand-in for the repository; it is made on first use."""
        self._made: set[str] = set()
        self._lock = Lock()
        self._who: Mapping[str, str] | None = None

    def try_run(
        self,
        *args: str,
        inside: GitLocation | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Answer:
        """Run a git command and return its answer, also if it fails; commands that touch
        files run `inside` a tree.
        """
        if inside is None:
            full_env = {**SAFE, **settings_env(WRITING), **(env or {})}
            return self._start(args, cwd=self._folder, env=full_env, stdin=stdin)
        full_env = {**SAFE, **self._tree_env(inside), **(env or {})}
        return self._start(args, cwd=inside.path, env=full_env, stdin=stdin)

    def run_checked(self, *args: str, inside: GitLocation | None = None) -> Answer:
        """Like `try_run`, for commands that answer by exit code; ProcessError if git was killed."""
        answer = self.try_run(*args, inside=inside)
        if _is_killed(answer):
            raise git_error(args[0], answer)
        return answer

    def run(
        self,
        *args: str,
        inside: GitLocation | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the output of a git command; ProcessError with git's message if it fails."""
        answer = self.try_run(*args, inside=inside, stdin=stdin, env=env)
        if answer.exit_code != 0:
            raise self.failure(args[0], answer)
        return answer.stdout

    def failure(
        self, command: str, answer: Answer, commit: str = "COMMIT", folder: str = ""
    ) -> PlaitError:
        """Return the error for a failed command.

        `commit`: the commit whose files it needs. `folder`: where it writes, if not in the
        repository.
        """
        if LACKING.search(answer.stderr) and any(
            PARTIAL.fullmatch(one.name) for one in self._settings()
        ):
            return InputError(
                "items cannot have worktrees here: this is a partial clone, a file of the commit "
                "was never fetched, and Plait fetches nothing",
                self._folder,
                f"git checkout {commit} once, which fetches what it lacks, and git switch - to be "
                "back; then plait retry RUN --failed, or plait resume",
                code="no-worktrees",
            )
        return git_error(command, answer, folder or self._folder)

    def line(
        self, *args: str, inside: GitLocation | None = None, stdin: bytes = b"", who: bool = False
    ) -> str:
        env = self.who() if who else None
        return os.fsdecode(self.run(*args, inside=inside, stdin=stdin, env=env).removesuffix(b"\n"))

    def line_if_any(self, *args: str, inside: GitLocation | None = None) -> str:
        """The line that git prints; empty if it fails."""
        answer = self.run_checked(*args, inside=inside)
        return os.fsdecode(answer.stdout.removesuffix(b"\n")) if answer.exit_code == 0 else ""

    def who(self) -> Mapping[str, str]:
        """The committer: the user, or Plait if git has no identity of the user."""
        if self._who is None:
            has_identity = self.run_checked("var", "GIT_COMMITTER_IDENT").exit_code == 0
            roles = () if has_identity else ("AUTHOR", "COMMITTER")
            self._who = {
                f"GIT_{role}_{name}": value for role in roles for name, value in IDENTITY.items()
            }
        return self._who

    def has_own_filters(self) -> bool:
        """Does the repository itself define filters for its files?"""
        return any(FILTER.fullmatch(one.name) for one in self._settings() if one.is_of_repository)

    def _tree_env(self, inside: GitLocation) -> Mapping[str, str]:
        own = f"{self._own}-of-places" if inside.sees_all else self._own
        with self._lock:
            if own not in self._made:
                self._stand_in(own, excludes=not inside.sees_all)
                self._made.add(own)
        found = clean_repository_env(own, inside.administration or own, inside.path)
        index = {"GIT_INDEX_FILE": inside.index} if inside.index else {}
        return {**settings_env(SEEING if inside.sees_all else WRITING), **found, **index}

    def _stand_in(self, own: str, *, excludes: bool) -> None:
        settings = self._settings()
        try:
            make_clean_repository(
                own, self._common, settings, with_user_settings=False, excludes=excludes
            )
        except OSError as error:
            raise ProcessError(
                f"what git works with here cannot be written: {error.strerror or error}",
                own,
                "put that right, then try again",
                code="git",
            ) from error

    def _settings(self) -> list[GitSetting]:
        return read_settings(self.run(*LISTING))


def disk_space_note(folder: str, stderr: str) -> str:
    """The free space, if git could not write because the disk is full; otherwise empty."""
    if not _NOT_WRITTEN.search(stderr):
        return ""
    free = shutil.disk_usage(folder).free
    return (
        ""
        if free > LITTLE_ROOM
        else f" (the disk of {folder} is full: {free // 1024:,} KiB are free)"
    )


LITTLE_ROOM: Final = 16 << 20
"""The limit in bytes. It is not 0: git may have needed more than is left."""
_NOT_WRITTEN: Final = lazy_pattern(
    r"unable to (write|create|append)|cannot (update|lock) ref|No space left|Disk quota"
    r"|File too large"
    r"|[Cc]ould not (write|reset index)|failed to write"
)


def git_error(command: str, answer: Answer, folder: str = "") -> PlaitError:
    lines = stderr_lines(answer, most=5)
    if any("safe.directory" in line for line in lines):
        return InputError(
            "git does not touch this repository: it belongs to another user",
            fix="if you trust it: git config --global --add safe.directory FOLDER",
            code="repository",
        )
    how = "was killed" if _is_killed(answer) else f"ended with exit code {answer.exit_code}"
    room = disk_space_note(folder, "\n".join(lines)) if folder else ""
    first = "make room there" if room else "put right what git says"
    return ProcessError(
        f"'git {command}' {how}" + (": " + "\n".join(lines) if lines else "") + room,
        fix=f"{first}, then plait resume, or plait retry RUN ITEM for an item that failed",
        code="git",
    )


def _is_killed(answer: Answer) -> bool:
    """Did a signal end git?"""
    return answer.exit_code < 0 or answer.exit_code > FATAL


def stderr_lines(answer: Answer, *, most: int) -> list[str]:
    """The last lines of stderr without hints, which concern commands that the user did not type."""
    lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
    return [line for line in lines if not line.startswith("hint:")][-most:]


def names(data: bytes) -> list[bytes]:
    """The entries of a list that git printed with `-z`."""
    return data.split(b"\0")[:-1]
