"""The result of a recorded run, as the process that ran it returned it."""

from __future__ import annotations

from plait.adapters.store.open_run import OpenRun
from plait.adapters.store.rows import RUN_ENDED, RUN_STARTED
from plait.app.result import FlowResult
from plait.engine.events import RunEnded
from plait.engine.outcome import Failure


def recorded_result(opened: OpenRun) -> FlowResult:
    """Read the end of the last attempt of a run that no process works on."""
    reader = opened.journal.reader
    started, ended = reader.newest(RUN_STARTED), reader.newest(RUN_ENDED)
    if ended is not None and (started is None or ended[0] > started[0]):
        event = next(opened.journal.events(ended[0] - 1)).event
        if isinstance(event, RunEnded):
            refused = event.failure is not None and event.failure.kind == "trust"
            return FlowResult(
                opened.id, event.status, event.failure, event.value, event.facts, refused
            )
    what = f"the process of this run died; plait resume {opened.id} continues it"
    counts = reader.item_counts()
    return FlowResult(opened.id, "interrupted", Failure(what, "stopped"), counts=counts)
