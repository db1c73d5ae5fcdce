"""Items in threads of this process; they wait outside the GIL for processes and servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from importlib import import_module

from plait.core.errors import InputError, closest_name, format_names
from plait.core.machine import machine_error
from plait.engine.backend import ADDRESS, BACKENDS, Backend, Finished, MapRun, Perform, WorkItem


class LocalBackend:
    """Each thread takes the next item when it has finished one: nothing waits in a queue."""

    def run(
        self,
        items: Iterator[WorkItem],
        perform: Perform,
        finished: Finished,
        *,
        parallel: int,
        fanned: MapRun | None = None,
    ) -> None:
        crew = _Crew(items, perform, finished)
        if parallel == 1:
            crew.work()
        else:
            threads = [
                threading.Thread(target=crew.work, name=f"plait-item-{number}", daemon=True)
                for number in range(parallel)
            ]
            started = _start(threads)
            if started < parallel and fanned is not None:
                fanned.turn.run.events.note(
                    fanned.turn.path,
                    f"the machine has room for {started} threads: so many items are done at a "
                    "time, "
                    f"not {parallel}",
                )
            if not started:
                crew.work()
            for thread in threads[:started]:
                thread.join()
        if crew.error is not None:
            raise crew.error


def _start(threads: list[threading.Thread]) -> int:
    """Start as many as there is room for; how many that were."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:
            if machine_error(error) is None:
                raise
            return number
    return len(threads)


class _Crew:
    def __init__(self, items: Iterator[WorkItem], perform: Perform, finished: Finished) -> None:
        self._items = items
        self._perform = perform
        self._finished = finished
        self._taking = threading.Lock()
        self._giving = threading.Lock()
        self.error: BaseException | None = None

    def work(self) -> None:
        try:
            while (item := self._next()) is not None:
                outcome = self._perform(item)
                with self._giving:
                    self._finished(item, outcome)
        except BaseException as error:  # raised again by the thread that waits for all
            self.error = self.error or error

    def _next(self) -> WorkItem | None:
        with self._taking:
            return next(self._items, None) if self.error is None else None


def backend(name: str, *, known: Mapping[str, str] = BACKENDS) -> Backend:
    """The backend of that name, at the address behind it; what it needs is loaded only then."""
    kind, at, address = name.partition(ADDRESS)
    if kind not in known:
        close = closest_name(kind, known)
        fix = f"did you mean '{close}'?" if close else f"there are: {format_names(known)}"
        raise InputError(f"there is no backend '{name}'", fix=fix, code="unknown-backend")
    module, _, attribute = known[kind].partition(":")
    make = getattr(import_module(module), attribute)
    if at and not (address and getattr(make, "takes_address", False)):
        fix = (
            f"write --backend {kind}"
            if address
            else f"write {kind}{ADDRESS}HOST:PORT, or {kind} alone"
        )
        raise InputError(
            f"the backend '{name}' has no such address", fix=fix, code="unknown-backend"
        )
    made: Backend = make(address) if at else make()
    return made
