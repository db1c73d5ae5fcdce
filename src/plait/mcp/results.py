"""Results of calls, runs and tasks in the shapes of the protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping

from plait.core.errors import shorten
from plait.core.hints import Final
from plait.core.values import Json, text
from plait.mcp.protocol import Request
from plait.mcp.run_jobs import RunState, progress_text

MOST_MESSAGE: Final = 200
"""Characters of what a task says of its run; the output has no bound."""
POLL_MS: Final = 1000
"""How often a client should ask for a task."""


def success(data: Json) -> dict[str, Json]:
    return {**_content(text(data), data), "isError": False}


def failure(message: str, data: Json = None) -> dict[str, Json]:
    return {**_content(message, data), "isError": True}


def run_result(state: RunState) -> dict[str, Json]:
    return {**_content("\n".join(state.lines()), state.record()), "isError": state.has_failed}


def _content(shown: str, data: Json) -> dict[str, Json]:
    content: dict[str, Json] = {"content": [{"type": "text", "text": shown}]}
    return {**content, "structuredContent": data} if isinstance(data, dict) else content


# ── tasks ────────────────────────────────────────────────────────────────


def task_record(request: Request, state: RunState, status: str) -> dict[str, Json]:
    """A run as a task of the revision.  It is kept as long as the run is."""
    progress = state.progress
    created = progress.started or progress.last_at
    times = ("ttlMs", "pollIntervalMs") if request.is_stateless else ("ttl", "pollInterval")
    return {
        "taskId": state.run,
        "status": status,
        "statusMessage": _status_message(state, status),
        "createdAt": _moment(created),
        "lastUpdatedAt": _moment(max(created, progress.last_at)),
        times[0]: None,
        times[1]: POLL_MS,
    }


def create_task_result(request: Request, state: RunState) -> dict[str, Json]:
    """Says that a call has become a task."""
    record = task_record(request, state, "working")
    if request.is_stateless:
        return {"resultType": "task", **record}
    shown = f"run {state.run} of {state.flow} has started; its task tells how it stands"
    return {"task": record, "_meta": {"io.modelcontextprotocol/model-immediate-response": shown}}


def about_task(task: str) -> Mapping[str, Json]:
    """`_meta` of a message that belongs to a task of revision 2025-11-25."""
    return {"io.modelcontextprotocol/related-task": {"taskId": task}}


def _status_message(state: RunState, status: str) -> str:
    match status:
        case "working":
            return f"{progress_text(state.progress)} of {state.flow} ended"
        case "input_required":
            return f"run {state.run} of {state.flow} waits for an answer"
        case "cancelled":
            return f"run {state.run} was stopped; plait_run_resume continues it"
    return shorten(next(state.lines()), MOST_MESSAGE)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
