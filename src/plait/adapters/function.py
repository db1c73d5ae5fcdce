"""Call a Python function of a verified file, in this process.

The verified bytes are the ones that are compiled. Each call runs them in a new module, so that no
call sees the leftovers of another. Text that the tool prints goes to the log of its call, even if
other threads print at the same time. An exception is a failed result; so are `sys.exit`,
`os._exit`, and a standard stream of Plait that the tool replaced or closed, which is restored.

Environment, working directory and modules are shared with Plait. These are not captured: text that
does not go through `sys.stdout` (child processes, C libraries), text of threads that the tool
starts, processes that it leaves behind, and a crash of the interpreter. Python cannot end a thread:
after the timeout we stop waiting, and the call continues until it returns. A tool that needs more
isolation is a script (python/script).

Every call runs in a worker thread, so that Ctrl-C reaches us and not the tool. Workers are kept: on
a busy machine a new thread costs 206 µs, a waiting one 19 µs.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import ModuleType, TracebackType

from plait.adapters.tool_folder import compile_code, sibling_imports
from plait.core.errors import GuardianError, InputError, MachineError, PlaitError, ValueRefusedError
from plait.core.hints import TYPE_CHECKING, Any, Final, NoReturn, TextIO, cast
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, deep_copy
from plait.tools.invocation import FunctionCall, PrimitiveResult

if TYPE_CHECKING:
    from plait.adapters.process.process_spec import Cancel

MAX_IDLE: Final = 4
IDLE_SECONDS: Final = 2.0
MAX_FRAMES: Final = 3


def call_function(call: FunctionCall, *, cancel: Cancel | None = None) -> PrimitiveResult:
    """Run the function until it returns, or until its timeout.

    `cancel` ends the processes for which it waits, not the function itself.
    """
    started = time.monotonic()
    log = _Log(call.limits.max_output)
    streams = _STREAMS
    job = _Job(lambda: _outcome(call, log, streams, cancel))
    streams.enter(log)
    try:
        with _IDLE_LOCK:
            worker = _IDLE.pop() if _IDLE else None
        (worker or _Worker()).inbox.put(job)
    except BaseException:  # no thread can be started
        streams.leave(log)
        raise
    if not job.wait(call.limits.timeout):
        streams.abandon(log)
        outcome = _Outcome(error=_too_long(call), metadata={"timed_out": True})
    elif job.interrupted is not None:
        raise job.interrupted
    else:
        outcome = cast(_Outcome, job.result)
        if outcome.cut_short is not None:
            raise outcome.cut_short
    return PrimitiveResult(
        success=outcome.error is None,
        data=outcome.data,
        error=outcome.error,
        stderr=log.text(),
        duration=time.monotonic() - started,
        metadata=outcome.metadata,
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    data: Json = None
    error: str | None = None
    metadata: dict[str, Json] = field(default_factory=dict)
    cut_short: PlaitError | None = None
    """An error of Plait or of the machine: the call has no outcome."""


def _too_long(call: FunctionCall) -> str:
    return (
        f"{os.path.basename(call.path)} did not return within {call.limits.timeout:g} seconds; "
        "it is no longer waited for (raise config.timeout, or use core/runtimes/python/script)"
    )


# ── in the worker ────────────────────────────────────────────────────────


def _outcome(call: FunctionCall, log: _Log, streams: _Streams, cancel: Cancel | None) -> _Outcome:
    _current.log = log
    try:
        outcome = _call_outcome(call) if cancel is None else _cancellable_outcome(call, cancel)
    finally:
        taken = streams.leave(log)
        _current.log = None
    if taken:
        what = " and ".join(taken)
        return _Outcome(
            error=f"while the function ran, {what} of Plait itself was replaced or closed"
        )
    return outcome


def _cancellable_outcome(call: FunctionCall, cancel: Cancel) -> _Outcome:
    from plait.adapters.process.thread_cancel import cancelled_by

    with cancelled_by(cancel):
        outcome = _call_outcome(call)
    if outcome.error is not None and cancel.is_set():
        return replace(outcome, metadata={**outcome.metadata, "cancelled": True})
    return outcome


def _call_outcome(call: FunctionCall) -> _Outcome:
    try:
        return _make_outcome(_result(call))
    except KeyboardInterrupt:
        raise
    except (GuardianError, MachineError) as error:
        return _Outcome(cut_short=error)
    except PlaitError as error:
        return _Outcome(error=str(error))
    except BaseException as error:  # it ends the tool, not Plait
        return _Outcome(
            error=_error_text(error, [call.path, *(it.path for it in call.files_beside.values())])
        )


def _result(call: FunctionCall) -> Json:
    # A module for one call; it is in `sys.modules` for dataclasses and pickle.
    module = ModuleType(f"plait_tool_{call.digest[:12]}_{next(_CALLS)}")
    module.__file__ = call.file or call.path
    sys.modules[module.__name__] = module
    with sibling_imports(call, module):
        exec(compile_code(call.path, call.code), module.__dict__)
        function = getattr(module, call.function, None)
        if not callable(function):
            raise InputError(
                f"the file defines no function '{call.function}'",
                call.path,
                f"define {call.function}(params, project_path), or name another in config.function",
                code="no-function",
            )
        result = function(_copy_value(dict(call.params)), call.project_path)
        if not hasattr(result, "__await__"):
            return result
        from plait.adapters.mcp.client import run_to_end  # the only module with asyncio

        return run_to_end(result)


def _make_outcome(result: Json) -> _Outcome:
    """Return the result as plain data, without objects of the tool; `success: false` is a
    failure.
    """
    try:
        data = deep_copy(result)
    except ValueRefusedError as error:
        return _Outcome(error=f"the function returned something that is not JSON: {error.what}")
    if isinstance(data, dict) and data.get("success") is False:
        error_text = data.get("error")
        if not isinstance(error_text, str) or not error_text:
            error_text = "the tool reports that it failed"
        return _Outcome(data, error_text)
    return _Outcome(data)


def _copy_value(value: Json) -> Json:
    """Copy a value, because a tool may change its parameters."""
    if isinstance(value, dict):
        return {key: _copy_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_value(item) for item in value]
    return value


_CALLS = itertools.count(1)


def _error_text(error: BaseException, own: Collection[str]) -> str:
    """The error's type and message, and the last places through which it came."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # `__str__` is also code of the tool
        text = ""
    if isinstance(error, SystemExit):
        name, text = getattr(error, "called", "sys.exit"), "" if error.code is None else text
    places = _places(error.__traceback__, own)
    if isinstance(error, SyntaxError) and error.filename in own:
        places = [f"{error.filename}:{error.lineno}"]
        text = error.msg
    return "\n".join([f"{name}: {text}" if text else name, *(f"  at {place}" for place in places)])


def _places(traceback: TracebackType | None, paths: Collection[str]) -> list[str]:
    """The tool's last frames, and the frame that raised if it is outside the tool."""
    frames: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    own = [frame for frame in frames if frame[0] in paths][-MAX_FRAMES + 1 :]
    last = [frame for frame in frames[-1:] if frame[0] not in (*paths, __file__)]
    return [f"{file}:{line} in {name}" for file, line, name in (*own, *last)]


# ── workers ──────────────────────────────────────────────────────────────


class _Job:
    """Work for a worker thread."""

    __slots__ = ("_done", "_work", "interrupted", "result")

    def __init__(self, work: Callable[[], object]) -> None:
        self.result: object = None
        self.interrupted: KeyboardInterrupt | None = None
        self._work = work
        self._done = threading.Lock()
        self._done.acquire()

    def do(self) -> None:
        try:
            self.result = self._work()
        except KeyboardInterrupt as interrupt:
            self.interrupted = interrupt

    def finish(self) -> None:
        self._done.release()

    def wait(self, seconds: float) -> bool:
        return self._done.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class _Worker:
    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        # A daemon: a tool that never returns must not keep Plait from ending.
        threading.Thread(target=self._work, name="plait-function", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                job = self.inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with _IDLE_LOCK:
                    if self not in _IDLE:  # `_submit` has just chosen this worker
                        continue
                    _IDLE.remove(self)
                return
            job.do()
            # Before the caller wakes up, so that its next call finds this worker.
            with _IDLE_LOCK:
                stays = len(_IDLE) < MAX_IDLE
                if stays:
                    _IDLE.append(self)
            job.finish()
            del job
            if not stays:
                return


_IDLE: list[_Worker] = []
_IDLE_LOCK = threading.Lock()


def _reset() -> None:
    """Reset after a fork: threads exist only in the parent, and locks may be taken."""
    global _IDLE_LOCK, _STREAMS
    _IDLE.clear()
    _IDLE_LOCK = threading.Lock()
    _STREAMS = _Streams()
    _current.log = None
    os._exit = _EXIT


# ── output ───────────────────────────────────────────────────────────────


class _Log:
    """The output of one call, both streams in order, limited; it is made on first use."""

    __slots__ = ("_bytes", "_most", "_streams")

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes: _Bounded | None = None
        self._streams: dict[str, TextIO] | None = None

    def stream(self, name: str) -> TextIO:
        """The stream for `sys.stdin`, `sys.stdout` or `sys.stderr`."""
        if self._streams is None:
            self._bytes = _Bounded(self._most)
            both = io.TextIOWrapper(
                cast(Any, self._bytes),
                "utf-8",
                errors="backslashreplace",
                newline="",
                write_through=True,
            )
            self._streams = {"stdin": io.StringIO(), "stdout": both, "stderr": both}
        return self._streams[name]

    def text(self) -> str:
        if self._bytes is None:
            return ""
        kept = self._bytes.getvalue().decode("utf-8", "replace")
        return f"{kept}\n[{self._bytes.dropped:,} bytes more]" if self._bytes.dropped else kept


class _Bounded(io.BytesIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.dropped = 0
        self._left = most

    def write(self, data: Any) -> int:
        length = len(data)
        kept = data[: self._left]
        super().write(kept)
        self._left -= len(kept)
        self.dropped += length - len(kept)
        return length

    def close(self) -> None:
        """Do nothing: output before the tool closes its stdout must stay."""


_current = threading.local()


class _Routed:
    """A standard stream that leads to the log of the call during a call, and to `real`
    otherwise.
    """

    def __init__(self, real: TextIO, name: str) -> None:
        self.real = real
        self._name = name

    def _target(self) -> TextIO:
        log: _Log | None = getattr(_current, "log", None)
        return self.real if log is None else log.stream(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target(), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._target())

    def __next__(self) -> str:
        return next(self._target())

    def __enter__(self) -> TextIO:
        return self._target().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._target().__exit__(*error)


class _Exited(SystemExit):
    called = "os._exit"


def _exit_of_tool(status: int) -> NoReturn:
    """Replaces `os._exit` while tools run: a tool must not end Plait, perhaps with exit code 0."""
    if getattr(_current, "log", None) is None:
        _EXIT(status)
    raise _Exited(status)


_EXIT: Final = os._exit


class _Streams:
    """Installs the routed streams with the first call, and removes them with the last one."""

    def __init__(self) -> None:
        self._awaited: set[_Log] = set()
        self._abandoned: set[_Log] = set()
        self._placed: dict[str, list[_Routed]] = {"stdin": [], "stdout": [], "stderr": []}
        self._descriptors: dict[int, _Descriptor] = {}
        self._lock = threading.Lock()

    def enter(self, log: _Log) -> None:
        with self._lock:
            if not self._awaited:
                self._close_descriptors()
                self._descriptors = {fd: _Descriptor(fd) for fd in (0, 1, 2)}
                os._exit = _exit_of_tool
            self._awaited.add(log)
            for name, placed in self._placed.items():
                current = getattr(sys, name)
                # A test or a notebook may have replaced our stream.
                if current is not None and not isinstance(current, _Routed):
                    placed.append(_Routed(current, name))
                    setattr(sys, name, placed[-1])

    def abandon(self, log: _Log) -> None:
        """Record that the caller no longer waits: other code may then replace streams."""
        with self._lock:
            if log in self._awaited:  # otherwise it has just returned
                self._awaited.remove(log)
                self._abandoned.add(log)

    def leave(self, log: _Log) -> list[str]:
        """Restore what a tool took away, and return the names; not for an abandoned call."""
        with self._lock:
            taken = []
            if log in self._awaited:
                self._awaited.remove(log)
                taken = self._put_back()
            self._abandoned.discard(log)
            if not self._awaited and not self._abandoned:
                self._restore()
            return taken

    def _put_back(self) -> list[str]:
        taken = [f"descriptor {fd}" for fd, kept in self._descriptors.items() if kept.put_back(fd)]
        for name, placed in self._placed.items():
            current = getattr(sys, name)
            # While other calls run, one of them may use `redirect_stdout`.
            lost = placed and (current is None if self._awaited else current not in placed)
            if lost:
                setattr(sys, name, placed[-1])
                taken.append(f"sys.{name}")
        return taken

    def _restore(self) -> None:
        for name, placed in self._placed.items():
            for routed in reversed(placed):
                if getattr(sys, name) is routed:
                    setattr(sys, name, routed.real)
            placed.clear()
        self._close_descriptors()
        os._exit = _EXIT

    def _close_descriptors(self) -> None:
        for kept in self._descriptors.values():
            kept.close()
        self._descriptors = {}


class _Descriptor:
    """A copy of a standard descriptor, in case a tool closes it."""

    def __init__(self, fd: int) -> None:
        self._identity = _identity(fd)
        self._copy = -1 if self._identity is None else os.dup(fd)

    def put_back(self, fd: int) -> bool:
        if self._identity is None or _identity(fd) == self._identity:
            return False
        with contextlib.suppress(OSError):  # the copy was also closed
            os.dup2(self._copy, fd)
        return True

    def close(self) -> None:
        if self._copy >= 0:
            with contextlib.suppress(OSError):
                os.close(self._copy)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_STREAMS = _Streams()


os.register_at_fork(after_in_child=_reset)
