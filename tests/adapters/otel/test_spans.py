"""Spans and metrics of single events: what runs cannot show without an assertion about time."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from adapters.otel.collector import attributes
from plait.adapters.otel import names
from plait.adapters.otel.metrics import RunMetrics
from plait.adapters.otel.spans import RunSpans, Span
from plait.engine.events import (
    Event,
    EventRecord,
    RunStarted,
    StepFinished,
    StepRetrying,
    StepStarted,
)
from plait.engine.outcome import Failed, Failure, Succeeded

STARTED = RunStarted("7f3a", "flow", "flow.yaml", "/project")
RETRIED: list[tuple[float, Event]] = [
    (10.0, STARTED),
    (20.5, StepRetrying("0", 1, Failure("it failed", "exit", exit_code=7), 2.0)),
    (30.0, StepStarted("0", "shell", "step", 2)),  # recorded with the end
    (30.0, StepFinished("0", "shell", "step", "", Succeeded(1), 10.0)),
]


def points(metric: Metric) -> list[Any]:
    kind = metric.WhichOneof("data")
    return list(getattr(metric, kind).data_points) if kind else []


def spans_of(events: list[tuple[float, Event]]) -> list[Span]:
    spans = RunSpans(b"\x01" * 16)
    return [
        span
        for number, (at, event) in enumerate(events, 1)
        for span in spans.add(EventRecord(number, at, event))
    ]


def ended(path: str, kind: str, duration: float) -> StepFinished:
    return StepFinished(path, kind, "step", "", Succeeded(1), duration)


def test_an_attempt_starts_when_the_pause_before_it_ends() -> None:
    _, second, step = spans_of(RETRIED)
    assert (second.name, second.start, second.end) == ("attempt 2", 22.5, 30.0)
    assert (step.start, step.end) == (20.0, 30.0)


def test_an_attempt_that_is_followed_by_another_has_its_exit_code() -> None:
    first, *_ = spans_of(RETRIED)
    assert first.attributes == ((names.STEP_ATTEMPT, 1), (names.EXIT_CODE, 7))


def test_a_step_that_was_cut_off_starts_where_it_was_begun() -> None:
    """And not after the steps inside, which ended before."""
    looked = []

    def earlier(after: int, before: int) -> list[tuple[str, float, bool]]:
        looked.append((after, before))
        return [
            # path, when it started, is it the end?
            ("map", 14.0, False),  # recorded with the end of the first step inside
            ("map/item:a", 14.0, False),
            ("map/item:a/0", 12.0, True),
            ("map/item:a", 12.0, True),
            ("map/item:b", 15.0, False),
            ("map", 22.0, False),  # of a second run attempt that was killed, too
        ]

    spans = RunSpans(b"\x01" * 16, earlier=earlier)
    for number, at in ((1, 10.0), (7, 20.0), (9, 30.0)):
        spans.add(EventRecord(number, at, STARTED))
    found = [
        *spans.add_brief(10, 32.0, "map/item:b/0", "shell", "step", 1.0),
        *spans.add_brief(11, 32.0, "map/item:b", "item", "b", 1.0),
        *spans.add_brief(12, 34.0, "map/item:c", "item", "c", 1.0),
        *spans.add(EventRecord(13, 35.0, ended("map", "map", 5.0))),
    ]
    assert [(one.path, one.start, one.end) for one in found] == [
        ("map/item:b/0", 31.0, 32.0),
        ("map/item:b", 15.0, 32.0),
        ("map/item:c", 33.0, 34.0),
        ("map", 12.0, 35.0),
    ]
    assert looked == [(1, 9)]


BRIEF = [
    # path, kind
    ("setup", "phase"), ("setup/0", "shell"), ("setup/say", "shell"), ("map/item:a", "item"),
    ("0", "prompt"), ("ask", "prompt"), ("ask/agent/turn:1.call:1/0", "shell"), ("0/run", "attempt"),
]  # fmt: skip


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("path", "kind"), BRIEF)
def test_a_brief_end_says_the_same_as_the_event(path: str, kind: str, attempts: int) -> None:
    brief, whole = RunSpans(b"\x01" * 16), RunSpans(b"\x01" * 16)
    for number in range(attempts):
        brief.add(EventRecord(number, 10.0, STARTED))
        whole.add(EventRecord(number, 10.0, STARTED))
    for _ in range(2):
        assert brief.add_brief(5, 20.0, path, kind, "step", 1.0) == whole.add(
            EventRecord(5, 20.0, ended(path, kind, 1.0))
        )


def test_the_last_attempt_is_no_step_for_metrics() -> None:
    failed = StepFinished("0", "shell", "step", "", Failed(Failure("it failed", "exit")), 10.0)
    metrics = RunMetrics((), started=10.0)
    for span in spans_of([*RETRIED[:3], (30.0, failed)]):
        metrics.add(span)
    kinds = {
        one.name: [attributes(point).get(names.STEP_KIND) for point in points(one)]
        for one in metrics.take(40.0, ())
    }
    assert kinds == {
        names.RETRIES: [None],
        names.STEP_DURATION: ["shell"],
        names.FAILURES: ["shell"],
    }


def test_an_attempt_beside_a_handler_is_a_step() -> None:
    metrics = RunMetrics((), started=10.0)
    end = StepFinished("0/run", "attempt", "step", "", Succeeded(1), 1.0)
    for span in spans_of([RETRIED[0], (20.0, end)]):
        metrics.add(span)
    (only,) = metrics.take(40.0, ())
    assert only.name == names.STEP_DURATION
