"""Starts processes; nothing else in Plait does.

A child gets a session of its own, exactly the environment and descriptors it
is given, and is watched by one loop that feeds it, reads it and keeps the time,
so that neither side can block the other.  Output beyond a limit is read and
dropped: the child goes on, memory does not grow.  When time is up, or the user
interrupts, the whole group is ended: asked first, then forced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from plait.errors import ProcessError
from plait.template.shell import BoundScript

MAX_OUTPUT: Final = 16 * 1024 * 1024
GRACE: Final = 2.0
"""Seconds between asking a group to end and forcing it."""
LINGER: Final = 0.2
"""Seconds of silence after which output that a left-over child holds open is no longer awaited."""
MAX_ARGUMENT: Final = 100 * 1024
"""Bytes of a script on the command line; Linux ends at 128 KiB."""

Environment = Mapping[str, str]
Files = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended, and what it printed."""

    exit_code: int
    """128 + signal if a signal ended it, as a shell would say."""
    signal: int | None
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    duration: float
    truncated: bool
    """Some output was dropped because it went beyond the limit."""


def run(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Environment | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    files: Files = (),
    max_output: int = MAX_OUTPUT,
) -> Finished:
    """Run a program to its end.

    `env` is the whole environment; None: our own.  Each of `files` is a name of
    an environment variable and a content: the child finds the path of an open
    file with that content there.  A program that cannot be started or takes
    too long is a `ProcessError`; one that fails is not.
    """
    with contextlib.ExitStack() as opened:
        environment = dict(os.environ if env is None else env)
        descriptors = [opened.enter_context(_file_with(content)).fileno() for _, content in files]
        for (name, _), descriptor in zip(files, descriptors, strict=True):
            environment[name] = f"/dev/fd/{descriptor}"
        started = time.monotonic()
        process = _start(argv, cwd, environment, descriptors, has_input=stdin is not None)
        with _Watch(process, stdin or b"", max_output) as watch:
            _see_through(watch, argv[0], timeout)
            return watch.finished(time.monotonic() - started)


def run_shell(
    bound: BoundScript,
    *,
    shell: str = "sh",
    cwd: str | os.PathLike[str] | None = None,
    env: Environment | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    max_output: int = MAX_OUTPUT,
) -> Finished:
    """Run a bound script in `sh`, `dash` or `bash`."""
    environment = {**_without_start_files(os.environ if env is None else env), **bound.env}
    options = ["--norc", "--noprofile"] if os.path.basename(shell) == "bash" else []
    script, files = bound.script, bound.files
    if len(_bytes(script)) > MAX_ARGUMENT:
        files = (*files, ("PLAIT_SCRIPT", _bytes(f"unset PLAIT_SCRIPT; {script}")))
        script = '. "$PLAIT_SCRIPT"'
    return run(
        # `--`, or a script that starts with a dash would be taken for options.
        [shell, *options, "-c", "--", script],
        cwd=cwd,
        env=environment,
        stdin=stdin,
        timeout=timeout,
        files=files,
        max_output=max_output,
    )


def _without_start_files(env: Environment) -> dict[str, str]:
    """The environment without what a shell would run, define or switch on before the script."""
    dropped = ("ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PS4")
    return {k: v for k, v in env.items() if k not in dropped and not k.startswith("BASH_FUNC_")}


# ── starting ────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _file_with(content: bytes) -> Iterator[IO[bytes]]:
    """An open file that no directory lists, so that nothing is left of it afterwards."""
    with os.fdopen(os.memfd_create("plait"), "w+b") as file:
        file.write(content)
        file.flush()
        yield file


def _start(
    argv: Sequence[str],
    cwd: str | os.PathLike[str] | None,
    env: Environment,
    descriptors: Sequence[int],
    *,
    has_input: bool,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [_bytes(word) for word in argv],
            cwd=cwd,
            env={_bytes(name): _bytes(value) for name, value in env.items()},
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,
            bufsize=0,
        )
    except ValueError:
        raise ProcessError(
            f"'{argv[0]}' cannot be started: an argument or variable holds NUL, or a variable's name '='",
            fix="pass such data through a file or standard input",
            code="not-started",
        ) from None
    except OSError as error:
        raise _not_started(argv[0], cwd, env, error) from None


def _bytes(text: str) -> bytes:
    # Not the locale's encoding: bytes that are not UTF-8 came in as surrogates and go out as they were.
    return text.encode("utf-8", "surrogateescape")


def _not_started(
    program: str, cwd: str | os.PathLike[str] | None, env: Environment, error: OSError
) -> ProcessError:
    if cwd is not None and not Path(cwd).is_dir():
        return ProcessError(
            f"'{program}' cannot be started in '{os.fspath(cwd)}': there is no such directory",
            fix="create the directory, or correct its name",
            code="no-directory",
        )
    if error.errno == errno.E2BIG:
        return ProcessError(
            f"'{program}' cannot be started: its arguments and environment are too large for this system",
            fix="pass large data through a file or standard input",
            code="too-large",
        )
    if error.errno == errno.ENOENT and "/" not in program:
        return ProcessError(
            f"the program '{program}' was not found",
            fix=f"install it, or correct its name; looked in {env.get('PATH', os.defpath)}",
            code="no-program",
        )
    return ProcessError(
        f"the program '{program}' cannot be started: {os.strerror(error.errno or 0)}",
        fix=f"check that '{program}' exists and may be executed",
        code="no-program",
    )


# ── watching ────────────────────────────────────────────────────────────────


def _see_through(watch: _Watch, program: str, timeout: float | None) -> None:
    """Until it ends, or has to be ended."""
    ended = False
    try:
        ended = watch.until_end(timeout)
    finally:  # time is up, or the user interrupts us: nobody else would end the group
        if not ended:
            watch.end_group()
    if not ended:
        raise ProcessError(
            f"'{program}' was ended: it took longer than {timeout:g} s",
            fix="give it more time, or find out what it waits for",
            code="timeout",
        )


class _Watch:
    """Feeds a process, reads what it prints, and notices its end."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, max_output: int) -> None:
        self.process = process
        self.unsent = memoryview(stdin)
        self.max_output = max_output
        self.truncated = False
        self.printed: dict[int, bytearray] = {}
        self.ended_at: float | None = None
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> _Watch:
        # Readable once the process has ended; it stays a zombie, so its number stays its own.
        self.end = os.pidfd_open(self.process.pid)
        self.selector.register(self.end, selectors.EVENT_READ)
        for stream in (self.process.stdout, self.process.stderr):
            self.printed[self.register(stream, selectors.EVENT_READ)] = bytearray()
        if self.process.stdin is not None:
            self.register(self.process.stdin, selectors.EVENT_WRITE)
        return self

    def register(self, stream: IO[bytes] | None, event: int) -> int:
        assert stream is not None
        os.set_blocking(stream.fileno(), False)
        self.selector.register(stream.fileno(), event, stream)
        return stream.fileno()

    def __exit__(self, *_: object) -> None:
        self.selector.close()
        os.close(self.end)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.process.wait()

    def finished(self, duration: float) -> Finished:
        code = self.process.wait()
        out, err = map(bytes, self.printed.values())
        if code < 0:
            return Finished(128 - code, -code, out, err, duration, self.truncated)
        return Finished(code, None, out, err, duration, self.truncated)

    def until_end(self, timeout: float | None) -> bool:
        """Serve the process until it has ended and all is read; false if time is up before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.selector.get_map():
            now = time.monotonic()
            if self.ended_at is not None:
                # A child left behind may hold the output open, and even print; it is not waited for.
                if now > self.ended_at + GRACE:
                    break
                patience: float | None = LINGER
            else:
                if deadline is not None and now >= deadline:
                    return False
                patience = None if deadline is None else deadline - now
            ready = self.selector.select(patience)
            if not ready and self.ended_at is not None:
                break
            for key, _ in ready:
                self.serve(key)
        return True

    def serve(self, key: selectors.SelectorKey) -> None:
        if key.fd == self.end:
            self.selector.unregister(self.end)
            self.ended_at = time.monotonic()
        elif key.events & selectors.EVENT_WRITE:
            self.send(key)
        else:
            self.receive(key)

    def send(self, key: selectors.SelectorKey) -> None:
        try:
            self.unsent = self.unsent[os.write(key.fd, self.unsent[:65536]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.unsent = self.unsent[:0]  # it does not want more, which is its right
        if not self.unsent:
            self.close(key)

    def receive(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self.close(key)
            return
        kept = self.printed[key.fd]
        room = self.max_output - len(kept)
        self.truncated = self.truncated or len(data) > room
        kept += data[:room]

    def close(self, key: selectors.SelectorKey) -> None:
        self.selector.unregister(key.fd)
        key.data.close()

    def end_group(self) -> None:
        """Ask all of the group to end; after a while, force those that are left."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            # The process is not reaped yet, so the group's number cannot belong to others.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            self.until_end(GRACE)
