"""Start programs through the guardian.

A `Job` is one process and all that it starts. It has a channel to the guardian: closing the job, or
the death of Plait, ends it. A channel serves another job if the one before ended by itself. The
jobs of a `JobGroup` share one channel.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence

from plait.adapters.process import guardian_protocol as wire
from plait.adapters.process.guardian_orders import NO_VARIABLES, encode_order, with_id
from plait.adapters.process.guardian_process import (
    GUARDIAN_GONE,
    NO_SIGNAL,
    Channel,
    JobReport,
    get_guardian,
    lost_guardian,
    no_room,
    refused_channel,
    replace_guardian,
    send_with,
)
from plait.core.errors import ProcessError
from plait.core.grace import grace_seconds
from plait.core.hints import Final, TypeAlias

FIRST_FILE: Final = wire.FIRST_FILE
"""The child's descriptor of the first of its `files`."""
Stdio: TypeAlias = tuple[int | None, int, int]
"""A child's standard streams; None: nothing to read."""


class Job:
    """A process and its channel, which is readable when reports have arrived."""

    __slots__ = ("_channel", "_exited", "_id", "_is_reusable")

    def __init__(self, channel: Channel) -> None:
        # None after `close`, since another job may get it then
        self._channel: Channel | None = channel
        self._id = channel.last_id
        self._exited = False
        self._is_reusable = channel.is_shared

    def fileno(self) -> int:
        assert self._channel is not None
        return self._channel.socket.fileno()

    def reports(self) -> list[JobReport]:
        """Return the reports that have arrived; raise a GuardianError if the guardian died."""
        assert self._channel is not None
        reports = self._channel.receive()
        if reports is None:
            return [refused_channel(self._id)]
        reports = [report for report in reports if report.id == self._id]
        for report in reports:
            if report.kind in (wire.EXITED, wire.CLOSED):
                self._exited = not report.open_streams
        return reports

    def end(self, grace: float | None = None) -> None:
        """Ask every process of the job to end, and kill it after the grace; OVER is reported."""
        self._command(wire.END, 0, grace_seconds() if grace is None else grace)

    def signal(self, number: int) -> None:
        """Send a signal to the group of the process."""
        self._command(wire.SIGNAL, number, 0.0)

    def check_guardian(self) -> None:
        """Continue the guardian if it was stopped, and report that."""
        assert self._channel is not None
        self._channel.guardian.check()

    def close(self) -> None:
        """End the job if it still runs."""
        channel, self._channel = self._channel, None
        if channel is not None and self._exited and self._is_reusable:
            channel.give_back()
        elif channel is not None:
            channel.close()

    def _command(self, kind: bytes, number: int, grace: float) -> None:
        assert self._channel is not None
        self._is_reusable = False
        with contextlib.suppress(OSError):  # the guardian died: `reports` raises that error
            self._channel.send_all(wire.COMMAND.pack(kind, self._id, number, grace))


def start(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    more_env: Mapping[str, str] = NO_VARIABLES,
    stdio: Stdio | None = None,
    stdin: int | None = None,
    files: Sequence[int] = (),
    in_our_group: bool = False,
    spares: int = 0,
) -> Job:
    """Start a program. If it cannot be started, the report REFUSED follows.

    Its environment is `env` with `more_env`; an unchanged `env` costs less. Without `stdio` its
    output is captured: reports bring it, and its input is `stdin`, or nothing. The child gets
    only these descriptors. `in_our_group`: it shares our process group, so that a terminal
    treats both alike. `spares`: refuse to start it if fewer descriptors would be left.
    """
    captured = stdio is None
    given = [fd for fd in (stdio or (stdin,)) if fd is not None]
    flags = wire.NO_INPUT if len(given) < (1 if captured else 3) else 0
    order = encode_order(
        argv,
        env,
        more_env,
        flags | (wire.CAPTURE if captured else 0),
        os.getpgrp() if in_our_group else 0,
        1 + len(given) + len(files),
    )
    directory = open_directory(cwd, argv[0])
    descriptors = [directory, *given, *files]
    try:
        if spares and directory >= _CHECKED_FROM:
            _require_spare_descriptors(argv[0], max(descriptors), spares)
        for _ in range(2):
            guardian = get_guardian(in_our_session=in_our_group)
            try:
                return Job(guardian.send(order, descriptors, shared=captured))
            except OSError as error:
                if error.errno not in GUARDIAN_GONE:
                    raise no_room(argv[0], error) from None
                if not guardian.has_ended():  # the guardian had no descriptor for the channel
                    raise no_room(argv[0], OSError(errno.EMFILE, "")) from None
                replace_guardian(guardian)
    finally:
        os.close(directory)
    raise lost_guardian()


class JobGroup:
    """Many jobs on one channel, for a thread that serves them all.

    Orders are sent together by `flush`. Closing the group ends the jobs that still run.
    """

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._running: set[int] = set()
        self._unsent = bytearray()
        self._is_reusable = True
        self.is_full = False
        """The channel has no room: wait until it can be written, then call `flush`."""

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        more_env: Mapping[str, str] = NO_VARIABLES,
        stdin: int | None = None,
        files: Sequence[int] = (),
    ) -> GroupJob:
        """Start a program with captured output. If it cannot be started, REFUSED is reported.

        The descriptors may be closed afterwards. They need room in the channel at once, so
        ChannelFull is raised if there is none.
        """
        given = [*files] if stdin is None else [stdin, *files]
        flags = wire.CAPTURE | (wire.NO_INPUT if stdin is None else 0)
        order = encode_order(argv, env, more_env, flags, 0, len(given), cwd)
        channel = self._open_channel(argv[0])
        order = with_id(order, channel.last_id + 1)
        if given:
            self.flush()
            if self.is_full:
                raise ChannelFull
            try:
                sent = send_with(channel.socket, order, given)
            except BlockingIOError:
                self.is_full = True
                raise ChannelFull from None
            except OSError as error:
                lost = error.errno in GUARDIAN_GONE
                raise (lost_guardian() if lost else no_room(argv[0], error)) from None
            if sent < len(order):
                self._unsent += order[sent:]
        else:
            self._unsent += order
        channel.last_id += 1
        self._running.add(channel.last_id)
        return GroupJob(self, channel.last_id)

    def _open_channel(self, program: str) -> Channel:
        if (
            self._channel is not None
            and not self._running
            and self._channel.guardian.has_ended_now()
        ):
            replace_guardian(self._channel.guardian)
            self._drop_channel()
        if self._channel is not None:
            return self._channel
        for _ in range(2):
            guardian = get_guardian(in_our_session=False)
            try:
                self._channel = guardian.open_channel(shared=True)
            except OSError as error:
                if error.errno not in GUARDIAN_GONE:
                    raise no_room(program, error) from None
                replace_guardian(guardian)
            else:
                return self._channel
        raise lost_guardian()

    def flush(self) -> None:
        """Send as much as there is room for; `reports` raises the error if the guardian is
        lost.

        It never waits: a stopped guardian reads nothing, and only we can continue it.
        """
        self.is_full = False
        while self._unsent and self._channel is not None:
            try:
                del self._unsent[: self._channel.socket.send(self._unsent, NO_SIGNAL)]
            except BlockingIOError:
                self.is_full = True
                return
            except OSError:
                self._unsent.clear()

    def fileno(self) -> int:
        """Return the descriptor of the channel; a new job may change it; -1 if there is no
        channel.
        """
        return -1 if self._channel is None else self._channel.socket.fileno()

    def reports(self) -> list[JobReport]:
        """Return the reports about jobs that have arrived; raise a GuardianError if the
        guardian died.
        """
        if self._channel is None:
            return []
        reports = self._channel.receive()
        if reports is None:
            self._drop_channel()
            reports = [refused_channel(id_) for id_ in sorted(self._running)]
        return [report for report in reports if report.id in self._running]

    def check_guardian(self) -> None:
        """Continue the guardian if it was stopped, and report that."""
        if self._channel is not None:
            self._channel.guardian.check()

    def command(self, id_: int, kind: bytes, number: int, grace: float) -> None:
        self._is_reusable = False
        if self._channel is not None:
            self._unsent += wire.COMMAND.pack(kind, id_, number, grace)
            self.flush()

    def remove(self, id_: int) -> None:
        """Forget a job that has ended."""
        self._running.discard(id_)

    def _drop_channel(self) -> Channel | None:
        """Forget the channel, and the unsent data."""
        channel, self._channel = self._channel, None
        self._unsent.clear()
        self.is_full = False
        return channel

    def close(self) -> None:
        is_reusable = self._is_reusable and not self._running and not self._unsent
        channel = self._drop_channel()
        if channel is None:
            return
        if is_reusable:
            channel.give_back()
        else:
            channel.close()


class GroupJob:
    """A process of a group."""

    __slots__ = ("_group", "id")

    def __init__(self, group: JobGroup, id_: int) -> None:
        self._group = group
        self.id = id_

    def end(self, grace: float | None = None) -> None:
        """Ask every process of the job to end, and kill it after the grace; OVER is reported."""
        self._group.command(self.id, wire.END, 0, grace_seconds() if grace is None else grace)

    def close(self) -> None:
        self._group.remove(self.id)


class ChannelFull(Exception):
    """Raised if the guardian must read before the channel has room for an order."""


_CHECKED_FROM: Final = 100
"""The limit is not checked for descriptors below this number."""


def _require_spare_descriptors(program: str, newest: int, spares: int) -> None:
    """Raise an error if too few descriptors are left.

    New descriptors get the lowest free number, so the newest one shows how many are in use.
    """
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and newest + spares >= soft:
        raise no_room(program, OSError(errno.EMFILE, ""))


def open_directory(cwd: str | os.PathLike[str] | None, program: str) -> int:
    try:
        return os.open(
            cwd or ".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
        )
    except OSError as error:
        if error.errno not in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EACCES,
            errno.ELOOP,
            errno.ENAMETOOLONG,
        ):
            raise no_room(program, error) from None
        raise ProcessError(
            f"'{program}' cannot be started in '{os.fspath(cwd or '.')}': there is no such "
            "directory",
            fix="create the directory, or correct its name",
            code="no-directory",
        ) from None
