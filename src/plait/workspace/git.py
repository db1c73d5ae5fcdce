"""git, started so that nothing runs which a repository names, and nothing around it decides what it does.

Hooks, the file-system monitor, signing programs, transports and background work are switched off by
settings that win over those of the repository.  Filters and merge drivers have no such switch: each
one that the repository's own files define gets a command that does nothing; those of the user's own
configuration stay.  The files that define them are looked at again whenever they have changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock

from plait.errors import InputError, PlaitError, ProcessError
from plait.hints import Final, Protocol
from plait.steps.changes import FILTER_KEYS, SAFE, SETTINGS, settings_env

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
OWN_SCOPES: Final = frozenset({b"system", b"global"})
DRIVER: Final = ".driver"
IN_VAIN: Final = "exit 1"
"""A merge driver that always says: conflict.  An empty one would silently take one side."""
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
    """Starts git in an environment without any `GIT_…` variable but these, and waits for its end."""

    def __call__(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer: ...


class Git:
    """The repository around a folder.  Safe to share between threads."""

    def __init__(self, start: StartGit, folder: str, common: str = "") -> None:
        self._start = start
        self._folder = folder
        self._configs = (
            [os.path.join(common, name) for name in ("config", "config.worktree")] if common else []
        )
        self._seen: object = None
        self._env: Mapping[str, str] = {}
        self._lock = Lock()
        self._who: Mapping[str, str] | None = None

    def asked(
        self, *args: str, at: str | None = None, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> Answer:
        """How a git command ended, whatever that means."""
        around = {**SAFE, **self._settings(), **(env or {})}
        return self._start(args, cwd=at or self._folder, env=around, stdin=stdin)

    def run(
        self, *args: str, at: str | None = None, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> bytes:
        """What a git command prints; a ProcessError with git's own words if it fails."""
        answer = self.asked(*args, at=at, stdin=stdin, env=env)
        if answer.exit_code != 0:
            raise failed(args[0], answer)
        return answer.stdout

    def line(self, *args: str, at: str | None = None, stdin: bytes = b"", who: bool = False) -> str:
        env = self.who() if who else None
        return os.fsdecode(self.run(*args, at=at, stdin=stdin, env=env).removesuffix(b"\n"))

    def line_if_any(self, *args: str, at: str | None = None) -> str:
        """What git prints, or nothing if there is no such thing."""
        answer = self.asked(*args, at=at)
        return os.fsdecode(answer.stdout.removesuffix(b"\n")) if answer.exit_code == 0 else ""

    def who(self) -> Mapping[str, str]:
        """Who makes commits: the user, or, where git does not know the user, Plait."""
        if self._who is None:
            known = self.asked("var", "GIT_COMMITTER_IDENT").exit_code == 0
            roles = () if known else ("AUTHOR", "COMMITTER")
            self._who = {f"GIT_{role}_{name}": value for role in roles for name, value in NOBODY.items()}
        return self._who

    def has_own_filters(self) -> bool:
        """Does the repository itself define what changes files on their way from and to a working tree?"""
        self._settings()
        return any(name.startswith("filter.") for name in self._env.values())

    def _settings(self) -> Mapping[str, str]:
        with self._lock:
            seen = [_stamp(path) for path in self._configs]
            if not self._env or seen != self._seen:
                self._env = settings_env(WRITING)
                listed = self._start(
                    ("config", "--includes", "--show-scope", "--list", "--name-only", "-z"),
                    cwd=self._folder,
                    env={**SAFE, **self._env},
                )
                self._env = settings_env([*WRITING, *_switched_off(listed.stdout)])
                self._seen = seen
            return self._env


def failed(command: str, answer: Answer) -> PlaitError:
    said = answer.stderr.decode("utf-8", "replace").strip().splitlines()[-5:]
    if any("safe.directory" in line for line in said):
        return InputError(
            "git does not touch this repository: it belongs to somebody else",
            fix="if you trust it: git config --global --add safe.directory FOLDER",
            code="repository",
        )
    return ProcessError(
        f"'git {command}' ended with exit code {answer.exit_code}" + (": " + "\n".join(said) if said else ""),
        fix="put right what git says, then plait resume, or plait retry for an item that failed",
        code="git",
    )


def names(data: bytes) -> list[bytes]:
    """What git lists with `-z`."""
    return data.split(b"\0")[:-1]


def _switched_off(listed: bytes) -> Iterator[tuple[str, str]]:
    parts = names(listed)
    for scope, key in zip(parts[::2], parts[1::2], strict=False):
        name = os.fsdecode(key)
        if scope in OWN_SCOPES:
            continue
        if name.startswith("filter.") and name.endswith(FILTER_KEYS):
            yield name, "false" if name.endswith(".required") else ""
        if name.startswith("merge.") and name.endswith(DRIVER):
            yield name, IN_VAIN


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
