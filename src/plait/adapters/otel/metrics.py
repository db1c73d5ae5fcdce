"""Metrics of one run attempt: durations, failures, retries, waiting items, tokens, cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from plait.adapters.otel import names
from plait.adapters.otel.spans import ATTEMPT, NANO, RUN, TURN, Attributes, Span
from plait.adapters.otel.wire import pairs
from plait.core.hints import Final

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
MODEL_SECONDS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
TOKEN_COUNTS: Final = tuple(4**power for power in range(14))
"""The boundaries that the GenAI conventions advise."""


class Histogram:
    __slots__ = ("bounds", "buckets", "count", "least", "most", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.count, self.sum = 0, 0.0
        self.least, self.most = float("inf"), float("-inf")

    def add(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value


_UNITS: Final = {
    # name: unit, what it is
    names.RUN_DURATION: ("s", "duration of a run"),
    names.STEP_DURATION: ("s", "duration of a step"),
    names.MODEL_DURATION: ("s", "duration of a model turn"),
    names.TOKENS: ("{token}", "tokens of a model turn"),
    names.FAILURES: ("{step}", "steps and tool calls that failed"),
    names.RETRIES: ("{attempt}", "attempts that failed and were followed by another"),
    names.COST_SUM: ("USD", "cost of model turns"),
    names.QUEUE: ("{item}", "items of maps that have not ended"),
}


class RunMetrics:
    """Counts spans; `started` is when this run attempt started."""

    def __init__(self, flow: Attributes, *, started: float, delta: bool = False) -> None:
        self._flow = flow
        self._since = started
        self._delta = delta
        self._histograms: dict[tuple[str, Attributes], Histogram] = {}
        self._sums: dict[tuple[str, Attributes], float] = {}
        self._steps: dict[tuple[str, str], Histogram] = {}
        """The histograms of steps by kind and status, which are needed for every span."""

    def add(self, span: Span) -> None:
        kind = span.kind
        if kind == ATTEMPT and _is_numbered(span):  # its step counts when it ends
            if span.status == "retried":
                self._count(names.RETRIES, 1, ())
            return
        if kind == RUN:
            self._record(names.RUN_DURATION, SECONDS, span, ((names.RUN_STATUS, span.status),))
            return
        known = self._steps.get((kind, span.status))
        if known is None:
            about = ((names.STEP_KIND, kind), (names.STEP_STATUS, span.status))
            known = Histogram(SECONDS)
            self._steps[kind, span.status] = known
            self._histograms[names.STEP_DURATION, about] = known
        known.add(span.end - span.start)
        if span.error:
            about = ((names.STEP_KIND, kind), (names.ERROR_TYPE, span.error))
            self._count(names.FAILURES, 1, about)
        if kind == TURN:
            self._add_turn(span)

    def _add_turn(self, span: Span) -> None:
        facts = dict(span.attributes)
        shared = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL)
        about: Attributes = tuple((name, facts[name]) for name in shared if name in facts)
        failed = ((names.ERROR_TYPE, span.error),) if span.error else ()
        self._record(names.MODEL_DURATION, MODEL_SECONDS, span, (*about, *failed))
        for name, type in ((names.INPUT_TOKENS, "input"), (names.OUTPUT_TOKENS, "output")):
            if isinstance(tokens := facts.get(name), int | float):
                key = names.TOKENS, (*about, (names.TOKEN_TYPE, type))
                self._histograms.setdefault(key, Histogram(TOKEN_COUNTS)).add(tokens)
        if isinstance(cost := facts.get(names.COST), int | float):
            self._count(names.COST_SUM, cost, about)

    def _record(self, name: str, bounds: tuple[float, ...], span: Span, about: Attributes) -> None:
        found = self._histograms.setdefault((name, about), Histogram(bounds))
        found.add(span.end - span.start)

    def _count(self, name: str, amount: float, about: Attributes) -> None:
        self._sums[name, about] = self._sums.get((name, about), 0) + amount

    def take(self, now: float, waiting: Iterable[tuple[str, int]]) -> list[Metric]:
        """Return all metrics; `waiting`: by path of a map its items that have not ended."""
        found: dict[str, Metric] = {}
        for (name, about), histogram in self._histograms.items():
            metric = self._metric(found, name)
            metric.histogram.aggregation_temporality = self._temporality
            metric.histogram.data_points.append(self._histogram(histogram, about, now))
        for (name, about), amount in self._sums.items():
            metric = self._metric(found, name)
            metric.sum.aggregation_temporality = self._temporality
            metric.sum.is_monotonic = True
            metric.sum.data_points.append(self._number(amount, about, now))
        for path, count in waiting:
            point = self._number(count, ((names.STEP_PATH, path),), now)
            self._metric(found, names.QUEUE).gauge.data_points.append(point)
        return list(found.values())

    def forget(self, now: float) -> None:
        """Begin anew after a delivery, if the collector wants what happened since the last one."""
        if self._delta:
            self._since = now
            for kept in (self._histograms, self._sums, self._steps):
                kept.clear()

    @property
    def _temporality(self) -> AggregationTemporality.ValueType:
        return (
            AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
            if self._delta
            else AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        )

    def _metric(self, found: dict[str, Metric], name: str) -> Metric:
        if name not in found:
            unit, what = _UNITS[name]
            found[name] = Metric(name=name, unit=unit, description=what)
        return found[name]

    def _histogram(self, one: Histogram, about: Attributes, now: float) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=pairs((*self._flow, *about)),
            start_time_unix_nano=int(self._since * NANO),
            time_unix_nano=int(now * NANO),
            count=one.count,
            sum=one.sum,
            bucket_counts=one.buckets,
            explicit_bounds=one.bounds,
            min=one.least,
            max=one.most,
        )

    def _number(self, amount: float, about: Attributes, now: float) -> NumberDataPoint:
        point = NumberDataPoint(
            attributes=pairs((*self._flow, *about)),
            start_time_unix_nano=int(self._since * NANO),
            time_unix_nano=int(now * NANO),
        )
        if isinstance(amount, int):
            point.as_int = amount
        else:
            point.as_double = amount
        return point


def _is_numbered(span: Span) -> bool:
    """Is it one of several attempts?  The attempt beside a handler is a step."""
    return any(name == names.STEP_ATTEMPT for name, _ in span.attributes)
