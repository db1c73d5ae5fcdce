"""The thread that reads the journal of a run and sends it to a collector.

The journal is the queue.  Nothing waits in memory but one batch, the run never waits for the
collector, and what was not taken is still there: for the next try, for the resumed run, for
`plait export otel RUN --rest`.  `otel.json` in the folder of the run has the number of the last
event whose spans the collector took, so a resumed run sends the rest.  A batch is sent twice only
if Plait is killed before it notes the answer.
A run that is not sampled has the number up to which its events count there, under another name.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from plait.adapters.otel import names
from plait.adapters.otel.metrics import RunMetrics
from plait.adapters.otel.sender import NotTaken, Refused, Sender
from plait.adapters.otel.settings import Settings, Signal
from plait.adapters.otel.spans import WITH_VALUE, Log, RunSpans
from plait.adapters.otel.wire import Encoder
from plait.adapters.store.blobs import Blobs
from plait.adapters.store.reader import Reader
from plait.adapters.store.rows import BriefEnd
from plait.core.errors import JournalError
from plait.core.hints import Final, Protocol
from plait.core.records import dataclass
from plait.engine.events import EventRecord, RunEnded, RunStarted, StepFinished, StepStarted
from plait.engine.journal import Journal
from plait.engine.trace import RemoteParent

STATE_FILE: Final = "otel.json"
SENT: Final = "sent"
"""In it, the number of the last event whose spans the collector took."""
SEEN: Final = "seen"
"""The same of a run whose spans are not sent: up to there its logs were."""
MAX_MESSAGE: Final = 200
"""Characters of what a collector says."""
MOST_LOGS: Final = 4096
"""Log records that wait for a collector; older ones are dropped."""
MOST_BYTES: Final = 4 << 20
"""Of one request."""
LONGEST_PAUSE: Final = 30.0


class EventSource(Protocol):
    """The recorded events of a run."""

    def events(self, after: int) -> Iterator[EventRecord | BriefEnd]: ...

    def run_events(self, until: int) -> Iterable[EventRecord]:
        """Starts and ends of the run, up to an event."""

    def starts_and_ends(self, after: int, before: int) -> Iterable[tuple[str, float, bool]]: ...

    def close(self) -> None: ...


class JournalFile:
    """The journal in the folder of a run, read beside the engine that writes it."""

    def __init__(self, folder: str, *, content: bool) -> None:
        blobs = Blobs(os.path.join(folder, "blobs"))
        self._reader = Reader(os.path.join(folder, "journal.db"), blobs)
        self._content = content

    def events(self, after: int) -> Iterator[EventRecord | BriefEnd]:
        if self._content:
            return self._reader.events(after)
        return self._reader.brief_events(after, WITH_VALUE)

    def run_events(self, until: int) -> Iterable[EventRecord]:
        return self._reader.run_events(until)

    def starts_and_ends(self, after: int, before: int) -> Iterable[tuple[str, float, bool]]:
        return self._reader.starts_and_ends(after, before)

    def close(self) -> None:
        self._reader.close()


class JournalInMemory:
    """The same of a run that is not kept."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def events(self, after: int) -> Iterator[EventRecord]:
        return self._journal.events(after)

    def run_events(self, until: int) -> Iterable[EventRecord]:
        return [
            one
            for one in self._journal.events()
            if one.number <= until and isinstance(one.event, RunStarted | RunEnded)
        ]

    def starts_and_ends(self, after: int, before: int) -> Iterable[tuple[str, float, bool]]:
        for one in self._journal.events(after):
            if one.number < before:
                match one.event:
                    case StepStarted(path=path):
                        yield path, one.at, False
                    case StepFinished(path=path, duration=duration):
                        yield path, one.at - duration, True

    def close(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Which trace a run is."""

    key: bytes
    trace_id: str
    is_sampled: bool
    parent: RemoteParent | None = None
    tracestate: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the spans of a run."""

    sent: int
    """Spans that the collector took."""
    rejected: int
    """Spans that it refused; they are not sent again."""
    has_all_spans: bool
    why: str = ""
    """Why something was not taken, and where."""
    refusal: str = ""
    """Why spans were rejected, if the collector says it."""


class Exporter:
    """Sends one run; `open_source` opens the journal for one look.

    `first`: the first event of this run attempt; metrics count from there.
    """

    def __init__(
        self,
        settings: Settings,
        trace: Trace,
        open_source: Callable[[], EventSource],
        *,
        run: str,
        flow: str,
        folder: str = "",
        after: int = 0,
        first: int = 0,
        with_metrics: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._trace, self._open = settings, trace, open_source
        self._folder, self._done, self._first = folder, after, first
        self._clock = clock
        self._encoder = Encoder(
            trace.trace_id,
            settings.resource,
            is_sampled=trace.is_sampled,
            tracestate=trace.tracestate,
        )
        self._senders = {signal: Sender(one) for signal, one in settings.endpoints.items()}
        self._traces = "traces" in self._senders and trace.is_sampled
        self._about = ((names.RUN_ID, run), (names.RUN_FLOW, flow))
        flow_only = ((names.RUN_FLOW, flow),)
        self._metrics = (
            RunMetrics(flow_only, started=time.time(), delta=settings.delta)
            if with_metrics and "metrics" in self._senders
            else None
        )
        self._spans: RunSpans | None = None
        self._source: EventSource | None = None
        self._logs: list[Log] = []
        self._batch: list[bytes] = []
        self._batch_end = after
        """The event up to which the spans in `_batch` go."""
        self._sent = self._rejected = 0
        self._why: dict[Signal, str] = {}
        self._refusal = ""
        self._pause = 0.0
        self._not_before = 0.0
        self._metrics_due = clock() + settings.metric_interval
        self._wake, self._closing = threading.Event(), threading.Event()
        self._deadline = float("inf")
        self._thread: threading.Thread | None = None

    # ── the thread ───────────────────────────────────────────────────────

    def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="plait-otel", daemon=True)
        self._thread.start()

    def finish(self, seconds: float, should_leave: Callable[[], bool] = lambda: False) -> Delivery:
        """Send what is left, for at most so many seconds; the thread may still be in a request."""
        self._deadline = self._clock() + seconds
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            while self._thread.is_alive() and self._clock() < self._deadline:
                self._thread.join(0.05)
                if should_leave():
                    self._deadline = self._clock()
                    break
            if self._thread.is_alive():
                self._why.setdefault("traces", "it did not answer in time")
        return self.delivery()

    def run_to_end(self) -> Delivery:
        """Send everything now, in this thread; each request has the time of its endpoint."""
        self._look(is_last=True)
        return self.delivery()

    def delivery(self) -> Delivery:
        why = next((f"{self._place(signal)}{why}" for signal, why in self._why.items()), "")
        has_all_spans = "traces" not in self._why
        return Delivery(self._sent, self._rejected, has_all_spans, why, self._refusal)

    def _place(self, signal: Signal) -> str:
        endpoint = self._settings.endpoints.get(signal)
        return "" if endpoint is None else f"{endpoint.shown}: "

    def _serve(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(self._settings.schedule)
            is_last = self._closing.is_set()
            try:
                self._look(is_last=is_last)
            except JournalError as error:
                self._why["traces"] = error.what
            except Exception as error:  # an observer that breaks must not break the run
                self._why["traces"] = f"Plait could not make the message ({type(error).__name__})"
                return

    def _look(self, *, is_last: bool) -> None:
        """Send what is new in the journal; it is open only while it is read."""
        if not is_last and self._clock() < self._not_before:
            return
        try:
            self._send_new()
        finally:
            self._close_source()
        if self._metrics is not None and (is_last or self._clock() >= self._metrics_due):
            self._send_metrics(self._metrics)

    # ── spans ────────────────────────────────────────────────────────────

    def _send_new(self) -> None:
        if not self._flush():
            return
        spans, encode = self._run_spans(), self._encoder.span
        add, add_brief, batch, metrics = spans.add, spans.add_brief, self._batch, self._metrics
        after, first, has_traces = self._batch_end, self._first, self._traces
        most, is_more = self._settings.batch, True
        while is_more:
            count = size = 0
            for record in islice(self._open_source().events(after), most):
                count += 1
                if isinstance(record, tuple):
                    number = record[0]
                    found = add_brief(*record)
                else:
                    number = record.number
                    found = add(record)
                for span in found:
                    if has_traces:
                        encoded = encode(span)
                        batch.append(encoded)
                        size += len(encoded)
                    if metrics is not None and number >= first:
                        metrics.add(span)
                after = self._batch_end = number
                if size > MOST_BYTES:
                    break
            is_more = count == most or size > MOST_BYTES
            self._logs = [*self._logs, *spans.logs][-MOST_LOGS:]
            spans.logs.clear()
            self._close_source()  # a request may take long, and an open journal cannot be cut
            if not self._flush():
                return

    def _run_spans(self) -> RunSpans:
        if self._spans is None:
            parent = self._trace.parent
            self._spans = RunSpans(
                self._trace.key,
                b"" if parent is None else bytes.fromhex(parent.span_id),
                content=self._settings.content,
                with_ids=self._traces,
                earlier=lambda after, before: self._open_source().starts_and_ends(after, before),
            )
            for record in self._open_source().run_events(self._done):
                self._spans.add(record)
            self._spans.logs.clear()
        return self._spans

    def _open_source(self) -> EventSource:
        if self._source is None:
            self._source = self._open()
        return self._source

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _flush(self) -> bool:
        """Send the batch and the logs; can more be sent?"""
        if self._batch:
            try:
                answer = self._send("traces", self._encoder.traces(self._batch))
            except Refused as error:
                rejected, self._refusal = len(self._batch), str(error)
            else:
                if answer is None:
                    return False
                rejected, says = _read_answer(answer)
                self._refusal = says or self._refusal
            self._sent += len(self._batch) - rejected
            self._rejected += rejected
            self._batch.clear()
        if self._batch_end > self._done:
            self._done = self._batch_end
            self._keep_state()
        if self._logs and "logs" in self._senders:
            if self._send_once("logs", self._encoder.logs(self._logs, self._about)):
                self._logs.clear()
        elif self._logs:
            self._logs.clear()
        return True

    def _send_metrics(self, metrics: RunMetrics) -> None:
        now = time.time()
        waiting = {} if self._spans is None else self._spans.waiting
        found = metrics.take(now, waiting.items())
        if found and self._send_once("metrics", self._encoder.metrics(found)):
            metrics.forget(now)
        self._metrics_due = self._clock() + self._settings.metric_interval

    def _send_once(self, signal: Signal, message: bytes) -> bool:
        """Is the message over, because it was taken or refused?"""
        try:
            return self._send(signal, message) is not None
        except Refused:
            return True

    def _send(self, signal: Signal, message: bytes) -> bytes | None:
        """Return the answer; None: it was not taken, and can be sent again.  Raises Refused."""
        left = self._deadline - self._clock()
        if left <= 0:
            self._why.setdefault(signal, "it did not answer in time")
            return None
        try:
            answer = self._senders[signal].send(message, left)
        except Refused:
            raise
        except NotTaken as error:
            self._why[signal] = str(error)
            self._pause = min(LONGEST_PAUSE, max(1.0, 2 * self._pause))
            self._not_before = self._clock() + self._pause
            return None
        self._why.pop(signal, None)
        self._pause = self._not_before = 0.0
        return answer

    def _keep_state(self) -> None:
        if self._folder:
            write_state(self._folder, self._done, SENT if self._traces else SEEN)


def _read_answer(answer: bytes) -> tuple[int, str]:
    """Return how many spans the collector says that it refused, and what it says about them."""
    if not answer:
        return 0, ""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceResponse,
    )

    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except Exception:  # the error of protobuf, which is none of the usual ones
        return 0, ""  # an answer of another form, as `OK`
    message = partial.error_message if partial.rejected_spans else ""
    plain = "".join(one if one.isprintable() else "?" for one in message[:MAX_MESSAGE])
    return int(partial.rejected_spans), f"it says: {plain}" if plain else ""


def read_state(folder: str, name: str = SENT) -> int:
    """Return the number of the last event whose spans were taken; 0: none were."""
    number = _state(folder).get(name)
    return number if isinstance(number, int) and number > 0 else 0


def _state(folder: str) -> dict[str, object]:
    try:
        with open(os.path.join(folder, STATE_FILE), encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(folder: str, number: int, name: str = SENT) -> None:
    path = os.path.join(folder, STATE_FILE)
    try:
        state = {**_state(folder), name: number}
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(f"{path}.new", path)
    except OSError:
        return  # the next attempt of the run sends something twice; the run matters more
