"""git, started so that nothing runs which a repository names, and nothing around it decides what it
does.

Hooks, the file-system monitor, signing programs, transports and background work are switched off by
settings that win over those of the repository.  Whatever reads or writes the content of files, or
merges it, works by a stand-in that has none of the repository's programs (`clean_repository`), and
in a tree and an administration that are given: a `.git` in that tree leads it nowhere.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from threading import Lock

from plait.core.errors import InputError, PlaitError, ProcessError
from plait.core.hints import Final, Protocol
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
    # With these git looks at each file that is there, also where somebody told it to skip that one.
    ("core.sparseCheckout", "true"),
    ("sparse.expectFilesOutsideOfPatterns", "false"),
    # What the user or this clone alone ignores: only files that are called `.gitignore` leave
    # things out.
    ("core.excludesFile", "/dev/null"),
)
LACKING: Final = re.compile(
    rb"unable to (read|parse)|could not (read|parse|fetch)|promisor|bad object|invalid object"
)
"""What git says when an object is not there."""
PARTIAL: Final = re.compile(r"remote\..*\.promisor|extensions\.partialclone", re.DOTALL)
FATAL: Final = 128
"""What git ends with that gives up."""
NOBODY: Final = {"NAME": "Plait", "EMAIL": "plait@localhost"}


class Answer(Protocol):
    """How git ended, and what it printed."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class StartGit(Protocol):
    """Starts git in an environment without any `GIT_…` variable but these, and waits for its
    end.
    """

    def __call__(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer: ...


@dataclass(frozen=True, slots=True)
class GitLocation:
    """A working tree, and where the repository keeps what it knows about it: its HEAD and its
    index.
    """

    administration: str
    """Empty: nowhere, since neither is needed."""
    path: str
    index: str = ""
    """Another index."""
    sees_all: bool = False
    """Whatever git was told to skip or to ignore, but for what a `.gitignore` names."""


class Git:
    """The repository around a folder.  Safe to share between threads."""

    def __init__(self, start: StartGit, folder: str, common: str = "", own: str = "") -> None:
        self._start = start
        self._folder = folder
        self._common = common
        self._own = own
        """Our stand-in for the repository; it is made when it is needed."""
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
        """How a git command ended, whatever that means; commands that touch files go `inside` a
        tree.
        """
        if inside is None:
            around = {**SAFE, **settings_env(WRITING), **(env or {})}
            return self._start(args, cwd=self._folder, env=around, stdin=stdin)
        around = {**SAFE, **self._around(inside), **(env or {})}
        return self._start(args, cwd=inside.path, env=around, stdin=stdin)

    def run_checked(self, *args: str, inside: GitLocation | None = None) -> Answer:
        """The same where an exit code is an answer: a git that was killed has given none."""
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
        """What a git command prints; a ProcessError with git's own words if it fails."""
        answer = self.try_run(*args, inside=inside, stdin=stdin, env=env)
        if answer.exit_code != 0:
            raise self.failure(args[0], answer)
        return answer.stdout

    def failure(
        self, command: str, answer: Answer, commit: str = "COMMIT", folder: str = ""
    ) -> PlaitError:
        """What to raise for a command that has failed.

        `commit` is the one whose files it needs, if known; `folder` where it writes, if that is
        elsewhere.
        """
        if LACKING.search(answer.stderr) and self._is_partial():
            return InputError(
                "items cannot have worktrees here: this is a partial clone, a file of the commit "
                "was never "
                "fetched, and Plait fetches nothing",
                self._folder,
                f"git checkout {commit} once, which fetches what it lacks, and git switch - to be "
                "back; "
                "then plait retry RUN --failed, or plait resume",
                code="no-worktrees",
            )
        return git_error(command, answer, folder or self._folder)

    def line(
        self, *args: str, inside: GitLocation | None = None, stdin: bytes = b"", who: bool = False
    ) -> str:
        env = self.who() if who else None
        return os.fsdecode(self.run(*args, inside=inside, stdin=stdin, env=env).removesuffix(b"\n"))

    def line_if_any(self, *args: str, inside: GitLocation | None = None) -> str:
        """What git prints, or nothing if there is no such thing."""
        answer = self.run_checked(*args, inside=inside)
        return os.fsdecode(answer.stdout.removesuffix(b"\n")) if answer.exit_code == 0 else ""

    def who(self) -> Mapping[str, str]:
        """Who makes commits: the user, or, where git does not know the user, Plait."""
        if self._who is None:
            known = self.run_checked("var", "GIT_COMMITTER_IDENT").exit_code == 0
            roles = () if known else ("AUTHOR", "COMMITTER")
            self._who = {
                f"GIT_{role}_{name}": value for role in roles for name, value in NOBODY.items()
            }
        return self._who

    def has_own_filters(self) -> bool:
        """Does the repository itself define what changes files on their way from and to a working
        tree?
        """
        return any(FILTER.fullmatch(one.name) for one in self._settings() if one.is_of_repository)

    def _is_partial(self) -> bool:
        return any(PARTIAL.fullmatch(one.name) for one in self._settings())

    def _around(self, inside: GitLocation) -> Mapping[str, str]:
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
            make_clean_repository(own, self._common, settings, alone=False, excludes=excludes)
        except OSError as error:
            raise ProcessError(
                f"what git works with here cannot be written: {error.strerror or error}",
                own,
                "put that right, then try again",
                code="git",
            ) from error

    def _settings(self) -> list[GitSetting]:
        return read_settings(self.run(*LISTING))


def disk_space_note(folder: str, said: str) -> str:
    """How little room there is, if that is why git could not write; else nothing."""
    if not _NOT_WRITTEN.search(said):
        return ""
    free = shutil.disk_usage(folder).free
    return (
        ""
        if free > LITTLE_ROOM
        else f" (the disk of {folder} is full: {free // 1024:,} KiB are free)"
    )


LITTLE_ROOM: Final = 16 << 20
"""Bytes; what could not be written may be larger than what is left."""
_NOT_WRITTEN: Final = re.compile(
    r"unable to (write|create|append)|cannot (update|lock) ref|No space left|Disk quota|File too "
    r"large"
    r"|[Cc]ould not (write|reset index)|failed to write"
)


def git_error(command: str, answer: Answer, folder: str = "") -> PlaitError:
    said = stderr_lines(answer, most=5)
    if any("safe.directory" in line for line in said):
        return InputError(
            "git does not touch this repository: it belongs to somebody else",
            fix="if you trust it: git config --global --add safe.directory FOLDER",
            code="repository",
        )
    how = "was killed" if _is_killed(answer) else f"ended with exit code {answer.exit_code}"
    room = disk_space_note(folder, "\n".join(said)) if folder else ""
    first = "make room there" if room else "put right what git says"
    return ProcessError(
        f"'git {command}' {how}" + (": " + "\n".join(said) if said else "") + room,
        fix=f"{first}, then plait resume, or plait retry RUN ITEM for an item that failed",
        code="git",
    )


def _is_killed(answer: Answer) -> bool:
    """A signal has ended it; the largest code of its own is 128."""
    return answer.exit_code < 0 or answer.exit_code > FATAL


def stderr_lines(answer: Answer, *, most: int) -> list[str]:
    """The last lines that git said, but for its hints: those are about commands that nobody
    typed.
    """
    lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
    return [line for line in lines if not line.startswith("hint:")][-most:]


def names(data: bytes) -> list[bytes]:
    """What git lists with `-z`."""
    return data.split(b"\0")[:-1]
