"""A run as JSON: one object per event and line, and a last one with the result."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Lock

from plait.core.hints import TYPE_CHECKING, TextIO
from plait.core.values import Json
from plait.engine.events import (
    EVENTS_VERSION,
    EarlierUsage,
    Event,
    EventRecord,
    ItemsCounted,
    ItemsReplayed,
    ModelText,
    Note,
    RunEnded,
    RunStarted,
    StepFinished,
    StepInvalidated,
    StepOutput,
    StepRenamed,
    StepRetrying,
    StepStarted,
)
from plait.engine.limits import UsageSum
from plait.engine.outcome import to_record
from plait.views.format import json_line

if TYPE_CHECKING:
    from plait.views.summary import Result


class JsonView:
    """Prints events.  `schema/event_tables.py` describes every line: change both together."""

    def __init__(self, stream: TextIO, earlier: UsageSum | None = None) -> None:
        """`earlier`: the usage of events that are not shown."""
        self._stream = stream
        self._lock = Lock()
        self._usage = UsageSum() if earlier is None else earlier

    def __enter__(self) -> JsonView:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def watch(self, record: EventRecord) -> None:
        if isinstance(record.event, StepOutput):
            return  # the end of the step has the whole output
        self._usage.count(record.event)
        self._write(
            {"number": record.number, "at": round(record.at, 6), **event_json(record.event)}
        )

    def stopping(self, *, at_once: bool) -> None:
        self._write({"event": "stopping", "at_once": at_once})

    def pause(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, result: Result) -> None:
        usage: dict[str, Json] = {"usage": self._usage.record()} if self._usage.turns else {}
        self._write({"event": "result", **result_json(result), **usage})

    def _write(self, record: Mapping[str, Json]) -> None:
        with self._lock:
            print(json_line(record), file=self._stream, flush=True)


def event_json(event: Event) -> dict[str, Json]:
    """The name of an event and its fields."""
    match event:
        case RunStarted():
            return {
                "event": "run_started",
                "version": EVENTS_VERSION,
                **_fields(event, "run", "flow", "file", "project", "resumed"),
                "phases": [{"name": name, "steps": steps} for name, steps in event.phases],
            }
        case StepStarted():
            return {
                "event": "step_started",
                **_fields(event, "path", "kind", "title", "attempt", "order"),
            }
        case StepRetrying():
            return {
                "event": "step_retrying",
                **_fields(event, "path", "attempt", "of", "delay"),
                "failure": event.failure.record(),
                **_usage(event),
            }
        case StepFinished():
            return {
                "event": "step_finished",
                **_fields(event, "path", "kind", "title", "order", "duration", "replayed"),
                **_usage(event),
                **to_record(event.outcome),
            }
        case ModelText():
            return {"event": "model_text", **_fields(event, "path", "text")}
        case StepOutput():
            return {"event": "step_output", **_fields(event, "path", "stream", "text")}
        case StepRenamed():
            return {"event": "step_renamed", **_fields(event, "path", "title")}
        case ItemsCounted():
            return {"event": "items_counted", **_fields(event, "path", "total")}
        case ItemsReplayed():
            return {"event": "items_replayed", "path": event.path, "count": event.done.count(1)}
        case EarlierUsage():
            return {
                "event": "earlier_usage",
                "parts": {name: dict(usage) for name, usage in event.parts.items()},
            }
        case StepInvalidated():
            return {"event": "step_invalidated", **_fields(event, "path", "why", "below")}
        case Note():
            return {
                "event": "note",
                "level": "warning" if event.warning else "note",
                **_fields(event, "path", "message"),
            }
        case RunEnded():
            return {
                "event": "run_ended",
                **_fields(event, "status", "facts"),
                "failure": event.failure and event.failure.record(),
            }


def _usage(event: StepFinished | StepRetrying) -> dict[str, Json]:
    return {} if event.used is None else {"usage": dict(event.used)}


def _fields(event: Event, *names: str) -> dict[str, Json]:
    return {name: getattr(event, name) for name in names}


def result_json(result: Result) -> dict[str, Json]:
    return {
        "run": result.run,
        "status": result.status,
        "exit_code": result.exit_code,
        "counts": dict(result.counts),
        "failure": result.failure and result.failure.record(),
        "value": result.value,
    }
