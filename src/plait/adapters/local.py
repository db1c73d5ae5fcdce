"""The default backend: items run in this process.

Items that wait for nothing but processes share one thread, the dispatcher. Others run in threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from importlib import import_module

from plait.core.errors import InputError, closest_name, format_names
from plait.core.os_errors import machine_error
from plait.engine.backend import ADDRESS, BACKENDS, Backend, Finished, MapRun, Perform, WorkItem


class LocalBackend(Backend):
    """One thread for all items if they can share it; otherwise each takes the next item."""

    def run(
        self,
        items: Iterator[WorkItem],
        perform: Perform,
        finished: Finished,
        *,
        parallel: int,
        map_run: MapRun | None = None,
    ) -> None:
        if map_run is not None and map_run.shares_thread:
            from plait.adapters.process.dispatcher import Dispatcher

            Dispatcher(items, map_run, finished, parallel).run()
            return
        workers = _Threads(items, perform, finished)
        if parallel == 1:
            workers.work()
        else:
            threads = [
                threading.Thread(target=workers.work, name=f"plait-item-{number}", daemon=True)
                for number in range(parallel)
            ]
            started = _start(threads)
            if started < parallel and map_run is not None:
                map_run.ctx.run.events.note(
                    map_run.ctx.path,
                    f"the machine has room for {started} threads: so many items are done at a "
                    f"time, not {parallel}",
                )
            if not started:
                workers.work()
            for thread in threads[:started]:
                thread.join()
        if workers.error is not None:
            raise workers.error


def _start(threads: list[threading.Thread]) -> int:
    """Start as many threads as the machine has room for; return how many."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:
            if machine_error(error) is None:
                raise
            return number
    return len(threads)


class _Threads:
    def __init__(self, items: Iterator[WorkItem], perform: Perform, finished: Finished) -> None:
        self._items = items
        self._perform = perform
        self._finished = finished
        self._reading = threading.Lock()
        self._reporting = threading.Lock()
        self.error: BaseException | None = None

    def work(self) -> None:
        try:
            while (item := self._next()) is not None:
                outcome = self._perform(item)
                with self._reporting:
                    self._finished(item, outcome)
        except BaseException as error:  # raised again in `run`
            self.error = self.error or error

    def _next(self) -> WorkItem | None:
        with self._reading:
            return next(self._items, None) if self.error is None else None


def make_backend(name: str, *, known: Mapping[str, str] = BACKENDS) -> Backend:
    """Return the backend that `--backend` or a flow names: `local`, `dask`, `dask://HOST:PORT`."""
    kind, at, address = name.partition(ADDRESS)
    if kind not in known:
        close = closest_name(kind, known)
        fix = f"did you mean '{close}'?" if close else f"there are: {format_names(known)}"
        raise InputError(f"there is no backend '{name}'", fix=fix, code="unknown-backend")
    module, _, attribute = known[kind].partition(":")
    make: type[Backend] = getattr(import_module(module), attribute)
    if at and not (address and make.takes_address):
        what, fix = (
            (f"the backend '{kind}' takes no address", f"write --backend {kind}")
            if not make.takes_address
            else (
                f"the address is missing in the backend '{name}'",
                f"write {kind}{ADDRESS}HOST:PORT, or {kind} alone",
            )
        )
        raise InputError(what, fix=fix, code="unknown-backend")
    return make(address) if at else make()
