"""Handle Ctrl-C in a run: the first asks it to stop, the second ends processes, the third ends
Plait.

SIGTERM and SIGHUP do the same. After the first signal no step starts, and running processes get
SIGTERM and some seconds to end; work that they had not finished is not recorded. The exit code of a
stopped run is 128 plus the signal.
"""

from __future__ import annotations

import os
import signal
import sys
from _queue import SimpleQueue
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread

from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.engine.stop import StopSignal
    from plait.views.view import View

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOW_CURSOR: Final = b"\x1b[?25h"


@contextmanager
def stop_on_signal(stop: StopSignal, view: View) -> Iterator[list[int]]:
    """Inside this context, signals ask the run to stop; yield the list of received signals."""
    heard: list[int] = []
    if current_thread() is not main_thread():
        yield heard  # only the main thread gets signals
        return
    # A handler may interrupt code that holds the locks of `stop` and `view`: a thread calls them.
    noted: SimpleQueue[int | None] = SimpleQueue()

    def note(number: int, _frame: object) -> None:
        heard.append(number)
        if len(heard) > 2:
            _leave_at_once(number)
        noted.put(number)

    def serve() -> None:
        while (number := noted.get()) is not None:
            stop.ask(signal.Signals(number).name)
            view.stopping(at_once=stop.at_once)

    thread = Thread(target=serve, name="plait-signals", daemon=True)
    thread.start()
    before = {one: signal.getsignal(one) for one in SIGNALS}
    try:
        for one, handler in before.items():
            if handler is not signal.SIG_IGN:  # as under nohup, or in the background
                signal.signal(one, note)
        yield heard
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        noted.put(None)
        thread.join()


def _leave_at_once(number: int) -> None:
    """End Plait by the signal itself; the journal is complete after every event."""
    if sys.__stdout__ is not None and sys.__stdout__.isatty():
        os.write(sys.__stdout__.fileno(), SHOW_CURSOR)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
