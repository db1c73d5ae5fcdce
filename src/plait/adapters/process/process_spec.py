"""The data of a program: what to run, how, and how it ended; and the errors if it did not run to
its end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

from plait.adapters.process.guardian_protocol import FIRST_FILE
from plait.adapters.process.output import OnOutput
from plait.core.errors import PlaitError, ProcessError
from plait.core.hints import Final, Literal, Protocol, TypeAlias
from plait.core.os_errors import start_error
from plait.core.records import dataclass, field

CANCEL_PAUSE: Final = 0.05
"""Seconds between two checks whether the call is cancelled."""

Environment = Mapping[str, str]
Files = Sequence[tuple[str, bytes]]
Why: TypeAlias = Literal["ended", "timeout", "cancelled"]


class Cancel(Protocol):
    """The signal that cancels a call, such as a `threading.Event` that is set.

    If it has `at_once` and that becomes true, running processes get no more grace.
    """

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended, and what it printed."""

    exit_code: int
    """128 + signal if a signal ended it, as in a shell."""
    signal: int | None
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    duration: float
    """Seconds, by a monotonic clock."""
    is_truncated: bool
    """Some output beyond the limit is not in `stdout` or `stderr`."""
    stdout_truncated: bool = False
    peak_rss: int = 0
    """KiB of the process, or of the largest that it waited for; at least the guardian's 10 MB."""
    cpu_time: float = 0.0
    """Seconds of computing, including the processes that it waited for."""
    stdout_file: str | None = None
    """The whole stream, if it was too long and `overflow` was set. The caller removes it."""
    stderr_file: str | None = None
    stdout_lost: str = ""
    """Why the file is missing or incomplete, if `overflow` was set."""
    stderr_lost: str = ""

    def remove_files(self) -> None:
        for path in filter(None, (self.stdout_file, self.stderr_file)):
            os.unlink(path)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run."""

    argv: Sequence[str]
    cwd: str | os.PathLike[str] | None
    env: Environment
    stdin: bytes = field(repr=False)
    files: Files = field(default=(), repr=False)
    own_env: Environment = field(default_factory=dict)
    """Variables besides `env`, which many programs share."""

    @property
    def name(self) -> str:
        return self.argv[0] if self.argv else ""  # `guardian_client.start` refuses an empty one

    @property
    def more_env(self) -> Environment:
        """Its own variables, with the paths of its files."""
        if not self.files:
            return self.own_env
        paths = {name: f"/dev/fd/{fd}" for fd, (name, _) in enumerate(self.files, FIRST_FILE)}
        return {**self.own_env, **paths}


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How to run it."""

    max_output: int
    overflow: bool | str
    """Whether to keep output beyond the limit in a file, or the folder for it."""
    on_output: OnOutput | None
    cancel: Cancel | None
    timeout: float | None
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL; None: the default."""
    passthrough: bool = False


def stop_error(program: str, why: Why, timeout: float | None) -> ProcessError:
    """The error for a program that was ended, with the reason."""
    if why == "cancelled":
        return ProcessError(f"'{program}' was ended: the call was cancelled", code="cancelled")
    return ProcessError(
        f"'{program}' was ended: it took longer than {timeout or 0:.3g} s",
        fix="give it more time, or find out what it waits for",
        code="timeout",
    )


def refusal_error(spec: ProcessSpec, number: int) -> PlaitError:
    """The error for a program that could not be started, by the errno."""
    program, cwd = spec.name, spec.cwd or "."
    if (limit := start_error(program, number)) is not None:
        return limit
    if number == errno.EACCES and not os.access(cwd, os.X_OK):
        return ProcessError(
            f"'{program}' cannot be started in '{os.fspath(cwd)}': {os.strerror(number)}",
            fix="allow yourself to enter the directory, or name another",
            code="no-directory",
        )
    if number == errno.E2BIG:
        return ProcessError(
            f"'{program}' cannot be started: its arguments and environment are too large for this "
            "system",
            fix="pass large data through a file or standard input",
            code="too-large",
        )
    if number == errno.ENOENT and "/" not in program:
        return ProcessError(
            f"the program '{program}' was not found",
            fix=f"install it, or correct its name; looked in {spec.env.get('PATH', os.defpath)}",
            code="no-program",
        )
    if number == errno.ENOENT and os.path.exists(os.path.join(cwd, program)):
        return ProcessError(
            f"the program '{program}' cannot be started: the interpreter in its first line was not "
            "found",
            fix="install the interpreter, or correct the line that begins with #!",
            code="no-program",
        )
    if number == errno.ENOEXEC:
        return ProcessError(
            f"the program '{program}' cannot be started: it is neither a program nor says what "
            "runs it",
            fix="let its first line name an interpreter, such as #!/bin/sh",
            code="no-program",
        )
    return ProcessError(
        f"the program '{program}' cannot be started: {os.strerror(number)}",
        fix=f"check that '{program}' exists and may be executed",
        code="no-program",
    )
