"""The result of a recorded run, as the process that ran it returned it."""

from __future__ import annotations

import os

from plait.adapters.store.journal import SqliteJournal
from plait.adapters.store.open_run import OpenRun
from plait.adapters.store.rows import RUN_ENDED, RUN_STARTED
from plait.app.result import FlowResult
from plait.core.errors import JournalError
from plait.core.values import Json
from plait.engine.events import RunEnded
from plait.engine.outcome import Failure, Succeeded
from plait.engine.paths import MAIN_ITEMS


def recorded_result(opened: OpenRun) -> FlowResult:
    """Read the end of the last attempt of a run that no process works on."""
    if not os.path.exists(opened.journal.reader.path):  # an open file can be read nevertheless
        raise JournalError(
            f"run {opened.id} was removed while it was read",
            fix="plait runs lists those that there are",
            code="unknown-run",
        )
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
    counts = _item_counts(opened.journal)
    return FlowResult(opened.id, "interrupted", Failure(what, "stopped"), counts=counts)


def _item_counts(journal: SqliteJournal) -> dict[str, Json]:
    """Count the items of the map as `MapProgress` does; empty: it has not found its items."""
    items = journal.reader.step(MAIN_ITEMS)
    match items and items.outcome:
        case Succeeded({"count": int(total)}):
            counts = journal.reader.item_counts()
            successful = counts.get("done", 0)
            return {
                "total": total,
                "successful": successful,
                "failed": counts.get("failed", 0),
                "skipped": counts.get("skipped", 0),
                "success_rate": round(100 * successful / total, 2) if total else 0,
            }
    return {}
