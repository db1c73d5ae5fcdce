"""Follow the journal of a run that another process executes, until the run ends."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator

from plait.core.hints import Final, Protocol, TextIO
from plait.engine.events import EventRecord

LOOK_PAUSE: Final = 0.1
"""Seconds between two looks at a run that another process executes."""


class EventSource(Protocol):
    def events(self, after: int = 0) -> Iterator[EventRecord]: ...


def follow_journal(
    journal: EventSource,
    after: int = 0,
    *,
    is_running: Callable[[], bool],
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[Iterator[EventRecord]]:
    """Yield the new events of each look.  The last look is after the end of the run."""

    def new_events() -> Iterator[EventRecord]:
        nonlocal after
        for record in journal.events(after):
            after = record.number
            yield record

    while True:
        goes_on = is_running()  # asked first: the last events are read after the end
        yield new_events()
        if not goes_on:
            return
        pause(LOOK_PAUSE)


def pause_while_read(stream: TextIO, seconds: float) -> None:
    """Wait; raise BrokenPipeError at once if nobody reads the stream any more."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # not a real file
        time.sleep(seconds)
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always reported
    if any(found & select.POLLERR for _, found in poll.poll(seconds * 1000)):
        raise BrokenPipeError
