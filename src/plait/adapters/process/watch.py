"""Serve a process until it ends: write its input, keep its output, end it in time."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time

from plait.adapters.process import guardian_client, guardian_process
from plait.adapters.process import guardian_protocol as guardian
from plait.adapters.process.guardian_client import GroupJob, Job
from plait.adapters.process.guardian_process import JobReport
from plait.adapters.process.output import StreamCapture
from plait.adapters.process.process_spec import (
    CANCEL_PAUSE,
    ProcessOptions,
    ProcessResult,
    ProcessSpec,
    Why,
    refusal_error,
)
from plait.adapters.process.start import ProcessDescriptors
from plait.core.errors import GuardianError, PlaitError
from plait.core.grace import grace_seconds
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # the module `signal` makes enums, which is slow

EOF_GRACE: Final = 2.0
"""Seconds to wait for the end of output that other processes keep open after the exit."""


class Watch:
    """Serves one process: writes its input, gets its output and its end from the guardian.

    Its caller uses `receive` for its reports, `send` when its input can be written, and `check`
    after both and regularly, until it `is_done`.
    """

    __slots__ = (
        "cancel", "deadline", "ends", "err", "exit", "is_cancelled", "is_done", "job", "lost",
        "no_directory", "open", "options", "out", "over", "poll", "program", "refused", "unsent", "why",
    )  # fmt: skip

    def __init__(
        self,
        job: Job | GroupJob,
        ends: ProcessDescriptors,
        program: ProcessSpec,
        options: ProcessOptions,
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
        """The process was refused because of its directory."""
        self.lost: GuardianError | None = None
        self.open = 0
        """Streams that other processes keep open after the exit."""
        self.over = False
        self.why: Why | None = None
        """Why it ended or is being ended; None while it runs."""
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
        """Decide, by the reports, the clock and the cancel signal, whether it is done or
        must be ended.

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
            # It may just have ended by itself: check its reports once more.
            self.is_cancelled = True
        elif self._is_late():
            self._stop("timeout" if self.exit is None else "ended")

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _stop(self, why: Why) -> None:
        """End all processes of the job; output is still read, so that none blocks on a full
        pipe.
        """
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
        return refusal_error(program, self.refused or 0)

    def abandon(self) -> None:
        """End the process, because its result is no longer needed."""
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
            self.unsent = self.unsent[:0]  # the process closed its input, which is allowed
        if not self.unsent:
            # not registered yet if everything was written at once
            with contextlib.suppress(KeyError):
                self.poll.unregister(self.ends.stdin)
            os.close(self.ends.stdin)
            self.ends.stdin = -1

    def make_result(self, duration: float) -> ProcessResult:
        out, err = self.out, self.err
        # No report: the process could not even be killed.
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


class OwnWatch(Watch):
    """Serves a process that this thread waits for."""

    __slots__ = ("_job",)

    def __init__(
        self, job: Job, ends: ProcessDescriptors, program: ProcessSpec, options: ProcessOptions
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
        seconds = (
            guardian_process.CHECK if seconds is None else min(seconds, guardian_process.CHECK)
        )
        # Rounded up: a wait that ends too early would lead to a busy loop.
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
