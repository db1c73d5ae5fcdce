"""Run programs to their end, each on the thread that asks for it.

If the items of a map can share a thread, `dispatcher` starts and watches their processes instead.
Servers of MCP are started in `adapters/mcp/transports.py`.

The guardian, a process of its own, starts each of them in a new process group, with exactly the
environment and descriptors that it is given (see `guardian`; `guardian_client` is our side of it).
One loop (`watch`) writes its input, reads its output and watches the time, so neither side can
block the other. Memory does not grow with output: output beyond a limit goes to a file or is
dropped, and the process continues. On timeout, cancel, interrupt or Plait's death, the process and
all that it started end: first asked, then killed, daemons too. (Without /proc: its process group.)

A process that a finished program left in the background runs until Plait ends. If it keeps the
program's output open, it is ended at once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from plait.adapters.process.guardian_orders import encode_text
from plait.adapters.process.guardian_process import end_all, warm_up
from plait.adapters.process.output import MAX_OVERFLOW, OnOutput
from plait.adapters.process.process_spec import (
    Cancel,
    Environment,
    Files,
    ProcessOptions,
    ProcessResult,
    ProcessSpec,
    Why,
    stop_error,
)
from plait.adapters.process.start import ProcessDescriptors, start_program, wait_for_end
from plait.adapters.process.watch import OwnWatch
from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.core.records import dataclass
from plait.core.values import UNDEFINED, Json, json_value
from plait.engine.coroutines import Order
from plait.tools.invocation import CallLimits, PrimitiveResult, ProcessCall

if TYPE_CHECKING:
    import signal

    from plait.template.shell.binding import BoundScript
else:
    import _signal as signal  # the module `signal` makes enums, which is slow

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
"""Characters of a tool's log, which is its output before the result."""
MAX_ARGUMENT: Final = 100 * 1024
"""Bytes of a script on the command line; Linux allows 128 KiB."""
ERROR_LINES: Final = 12
"""Lines of stderr in the error of a tool."""


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
    options = ProcessOptions(max_output, overflow, on_output, cancel, timeout, grace)
    program = ProcessSpec(argv, cwd, os.environ if env is None else env, stdin or b"", files)
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
    options = ProcessOptions(max_output, overflow, on_output, cancel, timeout, grace, passthrough)
    program = _shell_program(bound, shell, cwd, env, stdin or b"")
    with _ignore_interrupts() if passthrough else contextlib.nullcontext():
        return ProgramOrder(program, options).wait()


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C and Ctrl-\\ while the child runs: the child gets them too and decides."""
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
    """Is our process group in the foreground of a terminal, whose keys send it signals?"""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _cancel_around() -> Cancel | None:
    """The cancel signal of the tool, a function, that calls us."""
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
    options = ProcessOptions(MAX_OUTPUT, overflow, on_output, cancel, timeout)
    return ProgramOrder(_shell_program(bound, shell, cwd, env, stdin, more_env), options)


def _shell_program(
    bound: BoundScript,
    shell: str,
    cwd: str | os.PathLike[str] | None,
    env: Environment | None,
    stdin: bytes,
    more_env: Environment | None = None,
) -> ProcessSpec:
    environment = _without_start_files(os.environ if env is None else env)
    own = {**more_env, **bound.env} if more_env else bound.env
    flags = ["--norc", "--noprofile"] if shell.rpartition("/")[2] == "bash" else []
    script, files = bound.script, bound.files
    if len(encode_text(script)) > MAX_ARGUMENT:
        files = (*files, ("PLAIT_SCRIPT", encode_text(f"unset PLAIT_SCRIPT; {script}")))
        script = '. "$PLAIT_SCRIPT"'
    # `--`: a script that starts with a dash is not an option.
    return ProcessSpec([shell, *flags, "-c", "--", script], cwd, environment, stdin, files, own)


def call_process(call: ProcessCall, *, cancel: Cancel | None = None) -> PrimitiveResult:
    """Run a tool: exit code 0 is success, and its output is the data, parsed if it is JSON.

    Output beyond the limit is an error: half of a result would look like a whole one.
    """
    return order_call(call, cancel=cancel).wait()


def order_call(
    call: ProcessCall, *, cancel: Cancel | None, on_output: OnOutput | None = None
) -> CallOrder:
    """Return the order for such a call, for a step that awaits it."""
    limits = call.limits
    overflow = limits.overflow or False
    options = ProcessOptions(limits.max_output, overflow, on_output, cancel, limits.timeout)
    return CallOrder(ProcessSpec(call.argv, call.cwd, call.env, call.stdin), options, call)


def _without_start_files(env: Environment) -> Environment:
    """The environment without variables that make a shell run or define things at its start."""
    if _START_FILES.isdisjoint(env) and "BASH_FUNC_" not in "\0".join(env):
        return env  # true for nearly all environments
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
        ended = stop_error(call.argv[0], why, limits.timeout)
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
    """Return the JSON value or the text that a tool printed, and its log.

    If the last line is an object with `success`, it is the result, and the lines before it are
    the log. Any other last line is text like the rest: a tool may print a file of JSON lines.
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
class ProcessOrder(Order):
    """A process that is awaited: by this thread, or by a dispatcher together with many others."""

    program: ProcessSpec
    options: ProcessOptions

    def make_value(self, why: Why, finished: ProcessResult) -> Any:
        """Return what the step gets, or raise the error that replaces it."""
        raise NotImplementedError  # each kind of process implements it


@dataclass(frozen=True, slots=True)
class ProgramOrder(ProcessOrder):
    """A program whose end is the result."""

    def wait(self) -> ProcessResult:
        return self.make_value(*_run(self.program, self.options))

    def make_value(self, why: Why, finished: ProcessResult) -> ProcessResult:
        """Return how the program ended; raise a ProcessError if it was ended."""
        if why == "ended":
            return finished
        error = stop_error(self.program.name, why, self.options.timeout)
        if why == "timeout":
            error.ended = finished  # only the output shows where it hung
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


def _run(program: ProcessSpec, options: ProcessOptions) -> tuple[Why, ProcessResult]:
    started = time.monotonic()
    while True:
        ends = ProcessDescriptors()
        try:
            watch = OwnWatch(start_program(program, ends, options), ends, program, options)
            why = watch.run_to_end()
            if watch.refused is None:
                return why, watch.make_result(time.monotonic() - started)
        finally:
            ends.close()
        # Without room for its pipes, the guardian refuses it; the end of another process makes
        # room.
        if not (watch.was_full and wait_for_end(program, options.cancel)):
            raise watch.not_started()
