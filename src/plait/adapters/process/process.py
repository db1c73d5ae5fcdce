"""Run programs to their end, each on the thread that asks for it.

If the items of a map can share a thread, `dispatcher` starts and watches their processes instead.
Servers of MCP are started in `adapters/mcp/transports.py`.

The guardian, a process of its own, starts each of them in a new process group, with exactly the
environment and descriptors that it is given (see `guardian`; `guardian_client` is our side of it). One loop
writes its input, reads its output and watches the time, so neither side can block the other. Memory
does not grow with output: output beyond a limit goes to a file or is dropped, and the process goes
on. On timeout, cancel, interrupt or Plait's death, the process and all that it started end: first
asked, then killed, daemons too. (Without /proc: its process group.)

A process that a finished program left in the background runs until Plait ends. If it keeps the
program's output open, it is ended at once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import sys
import time
from _thread import LockType, allocate_lock
from collections.abc import Iterator, Mapping, Sequence

from plait.adapters.process import guardian_client
from plait.adapters.process import guardian_protocol as guardian
from plait.adapters.process.guardian_client import (
    FIRST_FILE,
    GroupJob,
    Job,
    JobReport,
    Stdio,
    encode_text,
    end_all,
    warm_up,
)
from plait.adapters.process.output import MAX_OVERFLOW, OnOutput, StreamCapture
from plait.core.errors import GuardianError, PlaitError, ProcessError
from plait.core.grace import grace_seconds
from plait.core.hints import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from plait.core.os_errors import start_error
from plait.core.records import dataclass, field
from plait.core.values import UNDEFINED, Json, json_value
from plait.engine.coroutines import Order
from plait.tools.invocation import CallLimits, PrimitiveResult, ProcessCall

if TYPE_CHECKING:
    import signal

    from plait.template.shell.binding import BoundScript
else:
    import _signal as signal  # `signal` makes enums, which is slow

__all__ = [
    "MAX_OUTPUT",
    "MAX_OVERFLOW",
    "ProcessResult",
    "call_process",
    "end_all",
    "run",
    "run_shell",
    "warm_up",
]

MAX_OUTPUT: Final = 16 * 1024 * 1024
"""Bytes of each stream that are kept in memory."""
MAX_LOG: Final = 16384
"""Characters of a tool's log: what it prints before its result."""
EOF_GRACE: Final = 2.0
"""Seconds to wait for the end of output that other processes keep open after the exit."""
MAX_ARGUMENT: Final = 100 * 1024
"""Bytes of a script on the command line; Linux allows 128 KiB."""
MOST_STARTING: Final = 8
"""Threads that start a process at the same time."""
SPARE_DESCRIPTORS: Final = 64
"""Descriptors that processes leave to the journal, files and servers."""
CANCEL_PAUSE: Final = 0.05
"""Seconds between two checks whether the call is cancelled."""
ERROR_LINES: Final = 12
"""Lines of stderr in the error of a tool."""

Environment = Mapping[str, str]
Files = Sequence[tuple[str, bytes]]
Why: TypeAlias = Literal["ended", "timeout", "cancelled"]


class Cancel(Protocol):
    """A `threading.Event` or the like: set, the call is cancelled.

    If it has `at_once`, and that becomes true, running processes get no more grace.
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
    """Seconds of computing, with those of the processes that it waited for."""
    stdout_file: str | None = None
    """The whole stream, if it was too long and `overflow` was set. The caller removes it."""
    stderr_file: str | None = None
    stdout_lost: str = ""
    """Why the file is missing or incomplete, if `overflow` was set."""
    stderr_lost: str = ""

    def remove_files(self) -> None:
        for path in filter(None, (self.stdout_file, self.stderr_file)):
            os.unlink(path)


def run(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Environment | None = None,
    stdin: bytes | None = b"",
    timeout: float | None = None,
    files: Files = (),
    max_output: int = MAX_OUTPUT,
    overflow: bool = False,
    on_output: OnOutput | None = None,
    cancel: Cancel | None = None,
    grace: float | None = None,
) -> ProcessResult:
    """Run a program to its end.

    `env` is the whole environment; None: our own. `files` are pairs of an environment variable and
    a content: the variable gets the path of an open file with it. `overflow`: output beyond
    `max_output` goes to a file instead of being dropped. `on_output` gets each piece of output as
    it arrives. A program that cannot be started, takes too long or is cancelled raises a
    `ProcessError`; one that fails does not. After a timeout, `.ended` of the error has the output.
    """
    cancel = _cancel_around() if cancel is None else cancel
    options = _Options(max_output, overflow, on_output, cancel, timeout, grace)
    program = _Program(argv, cwd, os.environ if env is None else env, stdin or b"", files)
    return ProgramOrder(program, options).wait()


def run_shell(
    bound: BoundScript,
    *,
    shell: str = "sh",
    cwd: str | os.PathLike[str] | None = None,
    env: Environment | None = None,
    stdin: bytes | None = b"",
    timeout: float | None = None,
    max_output: int = MAX_OUTPUT,
    overflow: bool = False,
    on_output: OnOutput | None = None,
    cancel: Cancel | None = None,
    grace: float | None = None,
    passthrough: bool = False,
) -> ProcessResult:
    """Run a bound script in `sh`, `dash` or `bash`.

    `passthrough`: it uses our standard streams and our process group, so that the keys of a
    terminal reach it. Then `stdin` and the options for output are ignored.
    """
    cancel = _cancel_around() if cancel is None else cancel
    options = _Options(max_output, overflow, on_output, cancel, timeout, grace, passthrough)
    program = _shell_program(bound, shell, cwd, env, stdin or b"")
    with _ignore_interrupts() if passthrough else contextlib.nullcontext():
        return ProgramOrder(program, options).wait()


def _cancel_around() -> Cancel | None:
    """What cancels the tool that is a function, and calls us."""
    from plait.adapters.process.thread_cancel import current_cancel

    return current_cancel()


def order_shell(
    bound: BoundScript,
    *,
    shell: str,
    cwd: str,
    env: Environment,
    more_env: Environment,
    stdin: bytes,
    timeout: float | None,
    overflow: bool,
    cancel: Cancel | None,
    on_output: OnOutput | None = None,
) -> ProgramOrder:
    """Return the order of a bound script, for a step that awaits it."""
    options = _Options(MAX_OUTPUT, overflow, on_output, cancel, timeout)
    return ProgramOrder(_shell_program(bound, shell, cwd, env, stdin, more_env), options)


def _shell_program(
    bound: BoundScript,
    shell: str,
    cwd: str | os.PathLike[str] | None,
    env: Environment | None,
    stdin: bytes,
    more_env: Environment | None = None,
) -> _Program:
    environment = _without_start_files(os.environ if env is None else env)
    own = {**more_env, **bound.env} if more_env else bound.env
    flags = ["--norc", "--noprofile"] if shell.rpartition("/")[2] == "bash" else []
    script, files = bound.script, bound.files
    if len(encode_text(script)) > MAX_ARGUMENT:
        files = (*files, ("PLAIT_SCRIPT", encode_text(f"unset PLAIT_SCRIPT; {script}")))
        script = '. "$PLAIT_SCRIPT"'
    # `--`: a script that starts with a dash is not an option.
    return _Program([shell, *flags, "-c", "--", script], cwd, environment, stdin, files, own)


def call_process(call: ProcessCall, *, cancel: Cancel | None = None) -> PrimitiveResult:
    """Run a tool: exit code 0 is success, and its output is the data, parsed if it is JSON.

    Output beyond the limit is an error: half of a result looks like a whole one.
    """
    return order_call(call, cancel=cancel).wait()


def order_call(
    call: ProcessCall, *, cancel: Cancel | None, on_output: OnOutput | None = None
) -> CallOrder:
    """Return the order of the same, for a step that awaits it."""
    limits = call.limits
    overflow = limits.overflow or False
    options = _Options(limits.max_output, overflow, on_output, cancel, limits.timeout)
    return CallOrder(_Program(call.argv, call.cwd, call.env, call.stdin), options, call)


def _without_start_files(env: Environment) -> Environment:
    """The environment without variables by which a shell runs or defines things at its start."""
    if _START_FILES.isdisjoint(env) and "BASH_FUNC_" not in "\0".join(env):
        return env  # nearly always
    return {
        k: v for k, v in env.items() if k not in _START_FILES and not k.startswith("BASH_FUNC_")
    }


_START_FILES = frozenset({"ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PS4"})


# ── the output of a tool ────────────────────────────────────────────────────


def _call_result(call: ProcessCall, why: Why, finished: ProcessResult) -> PrimitiveResult:
    limits = call.limits
    cut = finished.stdout_truncated
    data, log = (None, "") if cut else _data(finished.stdout)
    error = _overflow_message(finished, limits) if cut else _failure(finished, data)
    metadata: dict[str, Json] = {"peak_rss_kib": finished.peak_rss}
    if log:
        metadata["log"] = log
    if why != "ended":
        ended = _stop_error(call.argv[0], why, limits.timeout)
        error = f"{ended.what} ({ended.fix})" if ended.fix else ended.what
        metadata["timed_out" if why == "timeout" else "cancelled"] = True
    if finished.stdout_file and finished.stderr_file:
        metadata["stderr_overflow"] = finished.stderr_file
    return PrimitiveResult(
        success=error is None,
        data=data,
        error=error,
        exit_code=finished.exit_code,
        signal=None if finished.signal is None else _signal_name(finished.signal),
        stderr=finished.stderr.decode("utf-8", "replace"),
        duration=finished.duration,
        overflow=finished.stdout_file or finished.stderr_file,
        metadata=metadata,
        printed=None if cut else finished.stdout.decode("utf-8", "surrogateescape"),
    )


def _data(stdout: bytes) -> tuple[Json, str]:
    """The JSON value or the text that a tool printed, and its log.

    If the last line is an object with `success`, it is the result, and the lines before it are the
    log. Any other last line is text like the rest: a tool may print a file of JSON lines.
    """
    text = stdout.decode("utf-8", "replace")
    whole = _parse_json(text)
    if whole is not UNDEFINED:
        return whole, ""
    log, _, last = text.rstrip().rpartition("\n")
    result = _parse_json(last) if last.startswith("{") and '"success"' in last else UNDEFINED
    if isinstance(result, dict) and isinstance(result.get("success"), bool):
        return result, log[-MAX_LOG:]
    return text, ""


def _parse_json(text: str) -> Json:
    try:
        return json_value(text)
    except (ValueError, RecursionError):
        return UNDEFINED


def _failure(finished: ProcessResult, data: Json) -> str | None:
    """Why a tool failed, in its own words if it has any."""
    if isinstance(data, dict) and data.get("success") is False:
        error = data.get("error")
        if isinstance(error, str) and error:
            return error
        return _last_lines(finished.stderr) or "the tool reports that it failed"
    if finished.exit_code == 0:
        return None
    if finished.signal is not None:
        return _last_lines(finished.stderr) or f"ended by {_signal_name(finished.signal)}"
    return _last_lines(finished.stderr) or f"exit code {finished.exit_code}"


def _overflow_message(finished: ProcessResult, limits: CallLimits) -> str:
    kept = "what it printed was dropped"
    if (path := finished.stdout_file) is not None:
        lost = finished.stdout_lost
        kept = f"its beginning is in {path} ({lost})" if lost else f"all of it is in {path}"
    fix = "raise config.max_output, or let it print less"
    return f"it printed more than {limits.max_output:,} bytes; {kept} ({fix})"


def _last_lines(stderr: bytes) -> str:
    lines = stderr[-16384:].decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-ERROR_LINES:])


def _signal_name(number: int) -> str:
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


# ── one run ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Program:
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
        return self.argv[0] if self.argv else ""  # `guardian_client.start` refuses that

    @property
    def more_env(self) -> Environment:
        """Its own variables, with the paths of its files."""
        if not self.files:
            return self.own_env
        paths = {name: f"/dev/fd/{fd}" for fd, (name, _) in enumerate(self.files, FIRST_FILE)}
        return {**self.own_env, **paths}


@dataclass(frozen=True, slots=True)
class _Options:
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


@dataclass(frozen=True, slots=True)
class ProcessOrder(Order):
    """A process that somebody waits for: this thread, or a dispatcher with many others."""

    program: _Program
    options: _Options

    def make_value(self, why: Why, finished: ProcessResult) -> Any:
        """Return what the step gets, or raise why it does not get it."""
        raise NotImplementedError  # each kind of process has its own


@dataclass(frozen=True, slots=True)
class ProgramOrder(ProcessOrder):
    """A program whose end is the result."""

    def wait(self) -> ProcessResult:
        return self.make_value(*_run(self.program, self.options))

    def make_value(self, why: Why, finished: ProcessResult) -> ProcessResult:
        """Return how the program ended; raise a ProcessError if it was ended."""
        if why == "ended":
            return finished
        error = _stop_error(self.program.name, why, self.options.timeout)
        if why == "timeout":
            error.ended = finished  # only its output shows where it hung
        else:
            finished.remove_files()
        raise error


@dataclass(frozen=True, slots=True)
class CallOrder(ProcessOrder):
    """A tool that is a process; its result says whether and how it failed."""

    call: ProcessCall

    def wait(self) -> PrimitiveResult:
        return self.make_value(*_run(self.program, self.options))

    def make_value(self, why: Why, finished: ProcessResult) -> PrimitiveResult:
        return _call_result(self.call, why, finished)


def _run(program: _Program, options: _Options) -> tuple[Why, ProcessResult]:
    started = time.monotonic()
    while True:
        ends = ProcessDescriptors()
        try:
            watch = _OwnWatch(_start(program, ends, options), ends, program, options)
            why = watch.run_to_end()
            if watch.refused is None:
                return why, watch.make_result(time.monotonic() - started)
        finally:
            ends.close()
        # Without room for its pipes the guardian refuses it: the end of another one makes room.
        if not (watch.was_full and _wait_for_end(program, options.cancel)):
            raise watch.not_started()


def _stop_error(program: str, why: Why, timeout: float | None) -> ProcessError:
    if why == "cancelled":
        return ProcessError(f"'{program}' was ended: the call was cancelled", code="cancelled")
    return ProcessError(
        f"'{program}' was ended: it took longer than {timeout or 0:.3g} s",
        fix="give it more time, or find out what it waits for",
        code="timeout",
    )


def _not_started(started: _Program, number: int) -> PlaitError:
    program, cwd = started.name, started.cwd or "."
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
            fix=f"install it, or correct its name; looked in {started.env.get('PATH', os.defpath)}",
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


# ── starting ────────────────────────────────────────────────────────────────


def _start(program: _Program, ends: ProcessDescriptors, options: _Options) -> Job:
    """Start it; without free descriptors, wait until another process has ended."""
    sparing = True
    while True:
        theirs: list[int] = []
        try:
            # A few at a time: many threads that each have both ends of all pipes need too many
            # descriptors.
            with next(_STARTING):
                try:
                    stdio, stdin, files = open_descriptors(program, ends, theirs, options)
                    ends.job = guardian_client.start(
                        program.argv,
                        cwd=program.cwd,
                        env=program.env,
                        more_env=program.more_env,
                        stdio=stdio,
                        stdin=stdin,
                        files=files,
                        in_our_group=options.passthrough,
                        spares=SPARE_DESCRIPTORS if sparing else 0,
                    )
                finally:
                    for fd in theirs:
                        os.close(fd)
        except guardian_client.NoDescriptors:
            ends.close()
            if not raise_descriptor_limit():
                if not sparing:
                    raise
                sparing = _wait_for_end(program, options.cancel)
        else:
            ends.count()
            return ends.job


def _wait_for_end(program: _Program, cancel: Cancel | None) -> bool:
    """Wait until another process ends; False if none runs."""
    try:
        return _RUNNING.wait_for_end(cancel)
    except InterruptedError:
        raise _stop_error(program.name, "cancelled", None) from None


def raise_descriptor_limit() -> bool:
    """Raise our limit as far as the system allows; False if that is not further."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # the kernel allows fewer
        return False
    return True


class _Running:
    """Counts the running processes, and wakes threads that wait for an end."""

    __slots__ = ("count", "lock", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.lock = allocate_lock()
        self.waiting: list[LockType] = []

    def begin(self) -> None:
        with self.lock:
            self.count += 1

    def end(self) -> None:
        with self.lock:
            self.count -= 1
            if self.waiting:
                self.waiting.pop(0).release()

    def wait_for_end(self, cancel: Cancel | None) -> bool:
        """Wait until a process ends; False if none runs. InterruptedError if cancelled."""
        ended = allocate_lock()
        ended.acquire()
        with self.lock:
            if not self.count:
                return False
            self.waiting.append(ended)
        # Also polls: a thread that was woken and cancelled at once may have used up the wake-up.
        while not ended.acquire(timeout=CANCEL_PAUSE) and self.count:
            if cancel is not None and cancel.is_set():
                self._leave(ended)
                raise InterruptedError
        self._leave(ended)
        return True

    def _leave(self, ended: LockType) -> None:
        with self.lock, contextlib.suppress(ValueError):
            self.waiting.remove(ended)


_RUNNING: _Running
_STARTING: Iterator[LockType]


def _reset() -> None:
    """Also after a fork: the threads that have locks or processes are in the parent only."""
    global _RUNNING, _STARTING
    _RUNNING = _Running()
    _STARTING = itertools.cycle([allocate_lock() for _ in range(MOST_STARTING)])


_reset()
os.register_at_fork(after_in_child=_reset)


def open_descriptors(
    program: _Program, ends: ProcessDescriptors, theirs: list[int], options: _Options
) -> tuple[Stdio | None, int | None, list[int]]:
    """The child's standard streams or its input, and its files; `theirs` gets what has to be closed."""
    stdio, stdin = None, None
    try:
        if options.passthrough:
            stdio = _inherit_stdio(theirs)
        elif program.stdin:
            stdin, ends.stdin = os.pipe()
            theirs.append(stdin)
        return stdio, stdin, [_file_with(content, theirs) for _, content in program.files]
    except OSError as error:
        raise guardian_client.no_room(program.name, error) from None


class ProcessDescriptors:
    """Our ends of a process: the job, and the pipe to its input or -1."""

    __slots__ = ("_counts", "job", "stdin")

    def __init__(self) -> None:
        self.job: Job | GroupJob | None = None
        self._counts: _Running | None = None
        self.stdin = -1

    def count(self) -> None:
        """Count the process as running, until `close`."""
        self._counts = _RUNNING
        self._counts.begin()

    def close(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
        self.stdin = -1
        if self.job is not None:
            self.job.close()
        if self._counts is not None:
            self._counts.end()


def _inherit_stdio(theirs: list[int]) -> Stdio:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return _own_or_null(0, theirs), _own_or_null(1, theirs), _own_or_null(2, theirs)


def _own_or_null(fd: int, theirs: list[int]) -> int:
    try:
        os.fstat(fd)
    except OSError:  # we were started without it
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        theirs.append(fd)
    return fd


def _file_with(content: bytes, theirs: list[int]) -> int:
    """An open file without a name, so that nothing is left of it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("plait")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    theirs.append(fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    return fd


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ctrl-C and Ctrl-\\ reach the child, too: it decides, and we wait."""
    import threading

    in_foreground = threading.current_thread() is threading.main_thread() and _has_terminal()
    numbers = (signal.SIGINT, signal.SIGQUIT) if in_foreground else ()
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    """Whether our group is in the foreground of a terminal, whose keys send it signals."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


# ── watching ────────────────────────────────────────────────────────────────


class Watch:
    """One process: writes its input, gets its output and its end from the guardian.

    Whoever waits for it calls `receive` for its reports, `send` when its input can be written, and
    `check` after both and at times, until it `is_done`.
    """

    __slots__ = (
        "cancel", "deadline", "ends", "err", "exit", "is_cancelled", "is_done", "job", "lost",
        "no_directory", "open", "options", "out", "over", "poll", "program", "refused", "unsent", "why",
    )  # fmt: skip

    def __init__(
        self,
        job: Job | GroupJob,
        ends: ProcessDescriptors,
        program: _Program,
        options: _Options,
        poll: select.poll,
    ) -> None:
        self.job = job
        self.ends = ends
        self.program = program
        self.unsent = memoryview(program.stdin)
        self.options = options
        self.cancel = options.cancel
        self.exit: JobReport | None = None
        self.refused: int | None = None
        self.no_directory = False
        """It was refused because of its directory."""
        self.lost: GuardianError | None = None
        self.open = 0
        """Streams that other processes keep open after the exit."""
        self.over = False
        self.why: Why | None = None
        """Why it ended or is being ended; None: it runs."""
        self.is_done = False
        self.is_cancelled = False
        timeout = options.timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.poll = poll
        limit, overflow, on_output = options.max_output, options.overflow, options.on_output
        self.out = StreamCapture("stdout", limit, overflow=overflow, on_output=on_output)
        self.err = StreamCapture("stderr", limit, overflow=overflow, on_output=on_output)
        if ends.stdin >= 0:
            os.set_blocking(ends.stdin, False)
            self.send()
            if ends.stdin >= 0:
                poll.register(ends.stdin, select.POLLOUT)

    def check(self) -> None:
        """Decide by the reports, the clock and the cancel signal whether it is done or is to end.

        Raises a GuardianError if the guardian was lost.
        """
        if self.why is not None:  # it is being ended
            if self.over or self.lost or self.refused is not None or self._is_late():
                self.is_done = True
            elif self.cancel is not None and getattr(self.cancel, "at_once", False):
                self.job.end(0.0)
                self.cancel = None
        elif self.lost is not None:
            raise self.lost
        elif self.refused is not None or (self.exit is not None and not self.open):
            self.why = "ended"
            self.is_done = True
        elif self.is_cancelled:
            self._stop("cancelled" if self.exit is None else "ended")
        elif self.cancel is not None and self.cancel.is_set():
            # It may have ended by itself just now: look at its reports once more.
            self.is_cancelled = True
        elif self._is_late():
            self._stop("timeout" if self.exit is None else "ended")

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _stop(self, why: Why) -> None:
        """End all processes of the job; output is read on, so that none blocks on a full pipe."""
        self.why = why
        grace = grace_seconds() if self.options.grace is None else self.options.grace
        self.job.end(grace)
        self.deadline = time.monotonic() + grace + guardian.GIVE_UP + 1

    @property
    def was_full(self) -> bool:
        """Whether the guardian had no descriptors for it."""
        return self.refused in (errno.EMFILE, errno.ENFILE)

    def not_started(self) -> PlaitError:
        """Return why it could not be started."""
        program = self.program
        if self.no_directory:
            with contextlib.suppress(OSError):
                os.close(guardian_client.open_directory(program.cwd, program.name))
        return _not_started(program, self.refused or 0)

    def abandon(self) -> None:
        """End it: nobody wants its result any more."""
        self.out.discard()
        self.err.discard()
        if self.why is None:
            self._stop("cancelled")

    def receive(self, report: JobReport) -> None:
        if report.stdout:
            self.out.add(report.stdout)
        if report.stderr:
            self.err.add(report.stderr)
        if report.kind == guardian.EXITED:
            self.exit = report
            if report.open_streams and self.why is None:
                until_eof = time.monotonic() + EOF_GRACE
                self.deadline = (
                    until_eof if self.deadline is None else min(self.deadline, until_eof)
                )
        elif report.kind == guardian.REFUSED:
            self.refused = report.number
            self.no_directory = report.open_streams == guardian.NO_DIRECTORY
        elif report.kind == guardian.OVER:
            self.over = True
        if self.exit is not None:
            self.open = report.open_streams

    def send(self) -> None:
        try:
            self.unsent = self.unsent[os.write(self.ends.stdin, self.unsent[:1048576]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.unsent = self.unsent[:0]  # it closed its input, which it may
        if not self.unsent:
            with contextlib.suppress(KeyError):  # not registered yet, if all went at once
                self.poll.unregister(self.ends.stdin)
            os.close(self.ends.stdin)
            self.ends.stdin = -1

    def make_result(self, duration: float) -> ProcessResult:
        out, err = self.out, self.err
        # No report: it could not even be killed.
        end = self.exit
        code = os.waitstatus_to_exitcode(end.number if end else signal.SIGKILL)
        return ProcessResult(
            exit_code=128 - code if code < 0 else code,
            signal=-code if code < 0 else None,
            stdout=bytes(out.kept),
            stderr=bytes(err.kept),
            duration=duration,
            is_truncated=out.truncated or err.truncated,
            stdout_truncated=out.truncated,
            peak_rss=end.peak_rss if end else 0,
            cpu_time=end.user_time + end.system_time if end else 0.0,
            stdout_file=out.close(),
            stderr_file=err.close(),
            stdout_lost=out.lost,
            stderr_lost=err.lost,
        )


class _OwnWatch(Watch):
    """A process that this thread waits for."""

    __slots__ = ("_job",)

    def __init__(
        self, job: Job, ends: ProcessDescriptors, program: _Program, options: _Options
    ) -> None:
        super().__init__(job, ends, program, options, select.poll())
        self._job = job
        self.poll.register(job, select.POLLIN)

    def run_to_end(self) -> Why:
        """Serve the process until it ends, or end it."""
        try:
            self._serve_until_done()
        finally:  # also after an interrupt: nothing else would end it
            if self.why is None:
                self.abandon()
                self._serve_until_done()
        assert self.why is not None
        return self.why

    def _serve_until_done(self) -> None:
        self.check()
        while not self.is_done:
            if self.why is None and self.is_cancelled:
                self.serve(0.0)
            else:
                self.serve(None if self.deadline is None else self.deadline - time.monotonic())
            self.check()

    def serve(self, seconds: float | None) -> None:
        """Wait for the next event, and handle it."""
        if self.cancel is not None:
            seconds = CANCEL_PAUSE if seconds is None else min(seconds, CANCEL_PAUSE)
        seconds = guardian_client.CHECK if seconds is None else min(seconds, guardian_client.CHECK)
        # Rounded up: a wait that ends too early would be followed by a busy loop.
        found = self.poll.poll(max(0.0, seconds) * 1000 + 1)
        if not found:
            self._job.check_guardian()
        for fd, _ in found:
            if fd == self._job.fileno():
                self._receive_reports()
            else:
                self.send()

    def _receive_reports(self) -> None:
        try:
            reports = self._job.reports()
        except GuardianError as error:
            self.lost = error
            self.poll.unregister(self._job)
            return
        for report in reports:
            self.receive(report)
