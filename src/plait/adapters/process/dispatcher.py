"""Perform the items of a map on one thread, which waits for the processes of all of them.

Each item is a coroutine that awaits processes. The dispatcher works in rounds: it takes items while
there is room, commits what the items recorded, starts the processes that they wait for, and
continues the items whose process has ended. All reports that arrive together are one round and one
transaction, unless there is a processor for each item.

No process starts before everything that happened before it is recorded. So after a crash at most
`parallel` items are repeated, however many share a transaction.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Coroutine, Iterator

from plait.adapters.process.guardian_client import ChannelFull, JobGroup
from plait.adapters.process.guardian_process import NoDescriptors
from plait.adapters.process.process import ProcessOrder
from plait.adapters.process.process_spec import CANCEL_PAUSE
from plait.adapters.process.start import (
    ProcessDescriptors,
    open_descriptors,
    raise_descriptor_limit,
)
from plait.adapters.process.watch import Watch
from plait.core.errors import GuardianError
from plait.core.hints import TYPE_CHECKING, Any
from plait.engine.outcome import Interrupted

if TYPE_CHECKING:
    from plait.adapters.process.guardian_process import JobReport
    from plait.engine.backend import Finished, MapRun, WorkItem
    from plait.engine.coroutines import Order
    from plait.engine.outcome import Outcome


class _Item:
    """An item that runs, and the process that it waits for."""

    __slots__ = ("coroutine", "job_id", "order", "started", "watch", "work")

    def __init__(self, work: WorkItem, coroutine: Coroutine[Order, Any, Outcome]) -> None:
        self.work = work
        self.coroutine = coroutine
        self.order: Order | None = None
        self.watch: Watch | None = None
        self.started = 0.0
        self.job_id = 0


class Dispatcher:
    def __init__(
        self, items: Iterator[WorkItem], map_run: MapRun, finished: Finished, parallel: int
    ) -> None:
        self._items = items
        self._map_run = map_run
        self._finished = finished
        self._parallel = parallel
        self._together = 1 if parallel <= (os.cpu_count() or 1) else parallel
        """The number of ended items that are handled in one round. With a processor for
        each item, an ended item is followed at once: otherwise its processor waits while
        this thread handles the others.
        """
        self._jobs = JobGroup()
        self._poll = select.poll()
        self._polled = -1
        """The descriptor of the channel that is polled."""
        self._wanted = select.POLLIN
        """The events for which it is polled."""
        self._running: dict[int, _Item] = {}
        """The running items, by the id of their job."""
        self._by_input: dict[int, _Item] = {}
        """The items by the descriptor of the pipe to their input."""
        self._waiting: list[_Item] = []
        """Items whose next process has not started yet."""
        self._ended: list[tuple[WorkItem, Outcome]] = []
        """Outcomes that are not committed yet."""
        self._is_full = False
        """There were no descriptors for a process, so it waits until another one has ended."""
        self._next_check = 0.0
        self._directory: tuple[str | os.PathLike[str] | None, str] = "/", "/"
        """The last directory, as given and as an absolute path."""
        self._error: BaseException | None = None

    def run(self) -> None:
        """Perform all items; raise the first error after all running ones have ended."""
        try:
            while True:
                is_more = self._refill()
                if self._running:
                    self._serve()
                elif not (is_more or self._waiting or self._ended):
                    break
        except BaseException:
            self._end_running()
            raise
        finally:
            self._jobs.close()
        if self._error is not None:
            raise self._error

    def _refill(self) -> bool:
        """Record what has happened, and start what may follow; False if there are no more items."""
        is_more = self._take_items()
        self._commit()
        self._start_processes()
        return is_more

    def _take_items(self) -> bool:
        """Begin items while there is room; False if there are no more."""
        while len(self._running) + len(self._waiting) + len(self._ended) < self._parallel:
            if self._error is not None:
                return False
            try:
                work = next(self._items, None)
            except BaseException as error:
                self._keep_error(error)
                return False
            if work is None:
                return False
            self._advance(_Item(work, self._map_run.perform_async(work)))
        return True

    def _advance(
        self, item: _Item, value: object = None, error: BaseException | None = None
    ) -> None:
        """Continue an item with the result or the error of its order, up to its next order."""
        coroutine = item.coroutine
        try:
            order = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            self._ended.append((item.work, end.value))
        except BaseException as raised:
            self._keep_error(raised)
        else:
            item.order, item.started = order, time.monotonic()
            self._waiting.append(item)

    def _commit(self) -> None:
        """Record what has happened, then count it; only then may something new start."""
        ended, self._ended = self._ended, []
        try:
            self._map_run.commit()
            for work, outcome in ended:
                self._finished(work, outcome)
        except BaseException as error:
            self._keep_error(error)
            for item in self._waiting:
                item.coroutine.close()
            self._waiting = []

    def _keep_error(self, error: BaseException) -> None:
        """Keep the first error until all running items have ended; an interrupt ends them
        at once.
        """
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        self._error = self._error or error

    # ── processes ────────────────────────────────────────────────────────

    def _start_processes(self) -> None:
        if not self._waiting or (self._running and (self._is_full or self._jobs.is_full)):
            return
        waiting, self._waiting = self._waiting, []
        for number, item in enumerate(waiting):
            if not isinstance(item.order, ProcessOrder):
                self._wait_alone(item)
                continue
            try:
                cancel = item.order.options.cancel
                if cancel is not None and cancel.is_set():
                    self._advance(item, error=Interrupted())
                else:
                    self._start(item, item.order)
            except ChannelFull:
                if self._running:
                    self._waiting += waiting[number:]
                    break
                self._wait_alone(item)
            except NoDescriptors:
                if not raise_descriptor_limit() and not self._running:
                    self._wait_alone(item)
                    continue
                self._is_full = True
                self._waiting.append(item)
            except Exception as error:
                self._advance(item, error=error)
        if not self._jobs.is_full:
            self._jobs.flush()

    def _wait_alone(self, item: _Item) -> None:
        """Perform an order like a step with its own thread, and continue the item."""
        assert item.order is not None
        try:
            result = item.order.wait()
        except BaseException as error:
            self._advance(item, error=error)
        else:
            self._advance(item, result)

    def _start(self, item: _Item, order: ProcessOrder) -> None:
        self._poll_channel()  # the number of a closed channel is given to the next descriptor
        program, options = order.program, order.options
        ends, theirs = ProcessDescriptors(), list[int]()
        try:
            _, stdin, files = open_descriptors(program, ends, theirs, options)
            ends.job = job = self._jobs.start(
                program.argv,
                cwd=self._absolute(program.cwd),
                env=program.env,
                more_env=program.more_env,
                stdin=stdin,
                files=files,
            )
            ends.count()
            item.watch = Watch(job, ends, program, options, self._poll)
        except BaseException:
            ends.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        item.job_id = job.id
        self._running[job.id] = item
        if ends.stdin >= 0:
            self._by_input[ends.stdin] = item

    def _absolute(self, directory: str | os.PathLike[str] | None) -> str:
        """Return a directory as an absolute path: the guardian has another working directory."""
        if directory != self._directory[0]:
            self._directory = directory, os.path.abspath(directory or ".")
        return self._directory[1]

    def _serve(self) -> None:
        """Wait for reports, and continue the items whose process has ended."""
        done = 0
        for item in self._receive():
            watch = item.watch
            assert watch is not None
            try:
                watch.check()
            except GuardianError as error:
                self._release(item)
                self._advance(item, error=error)
            else:
                if watch.is_done:
                    self._settle(item, watch)
                    done += 1
                    if done % self._together == 0:
                        self._refill()
                elif watch.is_cancelled:
                    self._next_check = 0.0

    def _receive(self) -> list[_Item]:
        """Wait for reports; return the items to look at."""
        self._poll_channel()
        found = self._poll.poll(CANCEL_PAUSE * 1000)
        if not found:
            self._jobs.check_guardian()
        touched: dict[int, _Item] = {}
        for fd, events in found:
            if fd != self._polled:
                self._send_input(fd)
                continue
            if events & select.POLLOUT:
                self._jobs.flush()
            if events == select.POLLOUT:
                continue
            for report in self._reports():
                item = self._running.get(report.id)
                if item is None:
                    continue  # an interrupt arrived while it started
                assert item.watch is not None
                item.watch.receive(report)
                touched[report.id] = item
        now = time.monotonic()
        if now < self._next_check:
            return list(touched.values())
        self._next_check = now + CANCEL_PAUSE
        return list(self._running.values())

    def _poll_channel(self) -> None:
        channel = self._jobs.fileno()
        wanted = select.POLLIN | (select.POLLOUT if self._jobs.is_full else 0)
        if (channel, wanted) != (self._polled, self._wanted):
            if self._polled >= 0 and channel != self._polled:
                self._poll.unregister(self._polled)
            if channel >= 0:
                self._poll.register(channel, wanted)
            self._polled, self._wanted = channel, wanted

    def _reports(self) -> list[JobReport]:
        try:
            return self._jobs.reports()
        except GuardianError as error:
            for item in self._running.values():
                assert item.watch is not None
                item.watch.lost = error
            self._next_check = 0.0
            self._jobs.close()
            return []

    def _send_input(self, fd: int) -> None:
        item = self._by_input[fd]
        assert item.watch is not None
        item.watch.send()
        if item.watch.ends.stdin < 0:
            del self._by_input[fd]

    def _settle(self, item: _Item, watch: Watch) -> None:
        """Continue an item after its process has ended or could not be started."""
        assert isinstance(item.order, ProcessOrder)
        assert watch.why is not None
        self._release(item)
        if watch.was_full and self._running:
            self._is_full = True
            self._waiting.append(item)
        elif watch.was_full:
            self._wait_alone(item)  # other threads may hold the descriptors
        else:
            try:
                if watch.refused is not None:
                    raise watch.not_started()
                finished = watch.make_result(time.monotonic() - item.started)
                result = item.order.make_value(watch.why, finished)
            except Exception as error:
                self._advance(item, error=error)
            else:
                self._advance(item, result)

    def _release(self, item: _Item) -> None:
        """Close the descriptors of an item's process."""
        del self._running[item.job_id]
        watch, item.watch = item.watch, None
        assert watch is not None
        self._is_full = False
        if watch.ends.stdin >= 0:
            del self._by_input[watch.ends.stdin]
            self._poll.unregister(watch.ends.stdin)
        watch.ends.close()

    def _end_running(self) -> None:
        """End all processes after an interrupt; nothing else would end them."""
        for item in self._running.values():
            assert item.watch is not None
            item.watch.abandon()
        while self._running:
            for item in self._receive():
                assert item.watch is not None
                item.watch.check()
                if item.watch.is_done:
                    self._release(item)
                    item.coroutine.close()
        for item in self._waiting:
            item.coroutine.close()
