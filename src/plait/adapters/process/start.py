"""Start a program through the guardian: make its descriptors, and wait until there are enough."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from _thread import LockType, allocate_lock
from collections.abc import Iterator

from plait.adapters.process import guardian_client, guardian_process
from plait.adapters.process.guardian_client import GroupJob, Job, Stdio
from plait.adapters.process.process_spec import (
    CANCEL_PAUSE,
    Cancel,
    ProcessOptions,
    ProcessSpec,
    stop_error,
)
from plait.core.hints import Final

MOST_STARTING: Final = 8
"""The number of threads that may start a process at the same time."""
SPARE_DESCRIPTORS: Final = 64
"""The number of descriptors that processes leave for the journal, files and servers."""


def start_program(program: ProcessSpec, ends: ProcessDescriptors, options: ProcessOptions) -> Job:
    """Start the program; without free descriptors, wait until another process has ended."""
    sparing = True
    while True:
        theirs: list[int] = []
        try:
            # Only a few at a time: many threads that each hold both ends of all pipes need too many
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
        except guardian_process.NoDescriptors:
            ends.close()
            if not raise_descriptor_limit():
                if not sparing:
                    raise
                sparing = wait_for_end(program, options.cancel)
        else:
            ends.count()
            return ends.job


def wait_for_end(program: ProcessSpec, cancel: Cancel | None) -> bool:
    """Wait until another process ends; False if none is running."""
    try:
        return _RUNNING.wait_for_end(cancel)
    except InterruptedError:
        raise stop_error(program.name, "cancelled", None) from None


def raise_descriptor_limit() -> bool:
    """Raise our limit as far as the system allows; False if it was already there."""
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
        """Wait until a process ends; False if none is running. InterruptedError if cancelled."""
        ended = allocate_lock()
        ended.acquire()
        with self.lock:
            if not self.count:
                return False
            self.waiting.append(ended)
        # Also check regularly: a thread that was woken and cancelled at the same time may have used
        # up the wake-up.
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
    """Reset the count, also after a fork: threads that hold locks or processes exist only in
    the parent.
    """
    global _RUNNING, _STARTING
    _RUNNING = _Running()
    _STARTING = itertools.cycle([allocate_lock() for _ in range(MOST_STARTING)])


_reset()
os.register_at_fork(after_in_child=_reset)


def open_descriptors(
    program: ProcessSpec, ends: ProcessDescriptors, theirs: list[int], options: ProcessOptions
) -> tuple[Stdio | None, int | None, list[int]]:
    """Open the child's standard streams or its input, and its files; `theirs` gets what must be
    closed.
    """
    stdio, stdin = None, None
    try:
        if options.passthrough:
            stdio = _inherit_stdio(theirs)
        elif program.stdin:
            stdin, ends.stdin = os.pipe()
            theirs.append(stdin)
        return stdio, stdin, [_file_with(content, theirs) for _, content in program.files]
    except OSError as error:
        raise guardian_process.no_room(program.name, error) from None


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
    except OSError:  # we were started without this stream
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        theirs.append(fd)
    return fd


def _file_with(content: bytes, theirs: list[int]) -> int:
    """Open a file without a name, so that nothing of it stays."""
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
