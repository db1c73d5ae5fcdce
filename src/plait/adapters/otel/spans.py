"""From the events of a run to its spans and log records: the one function for both.

A step is a span when its end is recorded; `at` minus its duration is its start.  A step that was
retried has a span for each attempt inside.  The run is the span around all, sent when the run has
ended.  Only recorded events count, so what a resumed run replays is not sent again.

Its memory has a bound: it keeps what runs, and in a resumed run eight bytes for each step that had
ended before.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from plait.adapters.otel import names
from plait.core.hints import Final, TypeAlias
from plait.core.values import Json, json_text
from plait.engine.events import (
    EventRecord,
    ItemsCounted,
    Note,
    RunEnded,
    RunStarted,
    StepFinished,
    StepRetrying,
    StepStarted,
)
from plait.engine.kinds import STEP_KINDS, failure_kinds
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded
from plait.engine.paths import (
    belongs_to_call,
    last_name,
    parent_path,
    paths_around,
    split_call,
    split_name,
    unnumbered_name,
)
from plait.engine.step import retry_mark
from plait.engine.trace import RunAttempts, leg_mark, repeat_mark, span_id

Value: TypeAlias = "str | int | float | bool | tuple[str, ...]"
Attributes: TypeAlias = "tuple[tuple[str, Value], ...]"

NANO: Final = 1_000_000_000
TURN, CALL, AGENT = "turn", "call", "agent"
WITH_VALUE: Final = frozenset({TURN, CALL, AGENT, "http"})
"""Kinds whose value says something for a span, even without content."""
MOST_CONTENT: Final = 64 * 1024
"""Characters of one attribute with content."""
INFO, WARN, ERROR = 9, 13, 17
"""Severities of OTLP."""
_WITHOUT_QUOTES: Final = frozenset(failure_kinds("by_plait")) - frozenset(failure_kinds("quotes"))
MOST_IDS: Final = 1000
RUN: Final = "run"
"""The kind of the span of the run itself."""
ATTEMPT: Final = "attempt"
_MODEL_KINDS: Final = frozenset(
    {CALL, ATTEMPT, *(name for name, kind in STEP_KINDS.items() if kind.asks_model)}
)
"""Kinds whose title may hold what a model was told."""

_NO_VALUE: Final = Succeeded()


class Span(NamedTuple):
    id: bytes
    parent: bytes
    """Empty: it is a root."""
    name: str
    kind: str
    """The kind of step; `run`, or `attempt` for one of several attempts."""
    path: str
    title: str
    status: str
    start: float
    end: float
    error: str = ""
    """The kind of failure."""
    message: str = ""
    attributes: Attributes = ()
    is_client: bool = False
    """It waits for a server."""


class Log(NamedTuple):
    at: float
    severity: int
    text: str
    span: bytes
    path: str


class _Turn(NamedTuple):
    path: str
    requests: tuple[Mapping[str, Json], ...]
    """Its tool requests."""
    provider: Attributes


class RunSpans:
    """Folds events, in the order of the journal, to spans."""

    def __init__(
        self,
        key: bytes,
        parent: bytes = b"",
        *,
        content: bool = False,
        with_ids: bool = True,
        earlier: Callable[[int, int], Iterable[tuple[str, float, bool]]] = lambda *_: (),
    ) -> None:
        """`parent`: the span around the run.  `with_ids`: spans are sent, not only counted.
        `earlier`: starts and ends of steps after one event and before another, see
        `Reader.starts_and_ends`.
        """
        self.attempts = RunAttempts()
        self.logs: list[Log] = []
        """New log records; the caller takes them."""
        self.waiting: dict[str, int] = {}
        """By path of a map: items that have not ended."""
        self._key, self._outside, self._content = key, parent, content
        self._earlier = earlier
        self._mark = ""
        self._leg_began = self._began = 0
        """The numbers of the events with which this leg and this run attempt started."""
        self._started_at = 0.0
        self._run: RunStarted | None = None
        self._retried: dict[str, int] = {}
        """By path of a running step: its attempt, from 2."""
        self._starts: dict[str, float] = {}
        """By path: when the present attempt of a running step started, if that is known."""
        self._ended: array[int] | None = None
        self._cut_off: dict[str, float] = {}
        """By path: when a step started that an earlier run attempt of this leg did not end."""
        self._with_ids = with_ids
        self._names: dict[tuple[str, str], str] = {}
        """Cache: names by the kind and the last name of a step."""
        self._ids: dict[str, bytes] = {}
        """Cache: ids by path; that of a step around is needed for each step inside."""
        self._turns: dict[str, _Turn] = {}
        """By path of a step that asks a model: its last turn."""

    def add(self, record: EventRecord) -> list[Span]:
        """Take one event in; return the spans that it completes."""
        event = record.event
        match event:
            case StepFinished():
                return self._end_step(event, record.at)
            case StepStarted(path=path):
                if path not in self._retried:  # a short attempt is recorded when it has ended
                    self._starts[path] = record.at
            case StepRetrying():
                return [self._end_attempt(event, record.at)]
            case ItemsCounted(path, total):
                self.waiting[path] = total
            case Note(path, message, warning):
                if warning or self._content:  # a note may quote what a program printed
                    self._log(record.at, WARN if warning else INFO, message, path)
            case RunStarted():
                self._start_run(event, record)
            case RunEnded():
                return self._end_run(event, record.at)
        return []

    # ── the run ──────────────────────────────────────────────────────────

    def _start_run(self, event: RunStarted, record: EventRecord) -> None:
        self.attempts = self.attempts.after(event)
        self._began, self._run = record.number, event
        self._mark = leg_mark(self.attempts.leg)
        if self.attempts.number == 1:
            self._leg_began, self._started_at = record.number, record.at
        self._ended = None
        self._cut_off.clear()
        self._ids.clear()
        self._retried.clear()
        self._starts.clear()
        self._turns.clear()
        self.waiting.clear()
        how = "resumed" if event.resumed else "started"
        self._log(record.at, INFO, f"run {event.run} {how}", "")

    def _end_run(self, event: RunEnded, at: float) -> list[Span]:
        self.attempts = self.attempts.after(event)
        self.waiting.clear()
        run = self._run
        severity = {"done": INFO, "interrupted": WARN}.get(event.status, ERROR)
        self._log(at, severity, f"run {event.status}", "")
        if run is None or not self.attempts.has_ended:
            return []  # a resumed run goes on with the same span
        error, message = ("", "") if event.failure is None else self._error(event.failure, "")
        attributes: list[tuple[str, Value]] = [
            (names.RUN_ID, run.run),
            (names.RUN_FLOW, run.flow),
            (names.RUN_FILE, run.file),
            (names.RUN_ATTEMPTS, self.attempts.number),
            (names.RUN_STATUS, event.status),
        ]
        for name, count in event.facts.items():
            if type(count) is int:
                attributes.append((names.ITEMS + name, count))
        parent = span_id(self._key, "") if self.attempts.leg else self._outside
        return [
            Span(
                span_id(self._key, "", self._mark), parent, f"run {run.flow}", RUN, "", run.flow,
                event.status, self._started_at, at, error, message, tuple(attributes),
            )
        ]  # fmt: skip

    # ── steps ────────────────────────────────────────────────────────────

    def add_brief(
        self, _number: int, at: float, path: str, kind: str, title: str, duration: float
    ) -> list[Span]:
        """Take in a `BriefEnd`.  Nearly all spans of a large map come from one."""
        if (
            kind in _MODEL_KINDS
            or self._retried
            or self.attempts.number > 1
            or belongs_to_call(path)
        ):
            return self._end_step(StepFinished(path, kind, title, "", _NO_VALUE, duration), at)
        above, _, last = path.rpartition("/")
        if kind == "item":
            name = kind
            if above in self.waiting:
                self.waiting[above] -= 1
        else:
            name = self._names.get((kind, last)) or self._add_name(kind, last)
        self._starts.pop(path, None)
        id, parent = (self._id(path), self._id(above)) if self._with_ids else (b"", b"")
        return [Span(id, parent, name, kind, path, title, "done", at - duration, at)]

    def _add_name(self, kind: str, last: str) -> str:
        if len(self._names) >= MOST_IDS:
            self._names.clear()
        name = self._names[kind, last] = _plain_name(kind, last)
        return name

    def _end_step(self, event: StepFinished, at: float) -> list[Span]:
        path, kind, outcome = event.path, event.kind, event.outcome
        above = parent_path(path)
        if above in self.waiting and kind == "item":
            self.waiting[above] -= 1
        attempt = self._retried.pop(path, 0)
        turn = self._turns.pop(path, None) if self._turns else None
        started = self._starts.pop(path, at)
        status, error, message, attributes = self._outcome(outcome, path)
        title = event.title
        if not self._content and (kind in _MODEL_KINDS or belongs_to_call(path)):
            title = _plain_title(event)
        name, is_client = _plain_name(kind, path), kind == "http"
        if error:
            self._log(at, ERROR, f"{title}: {message or error}", path)
        if kind in WITH_VALUE:
            more, name, is_client = self._describe(event, name, turn)
            attributes += more
            error = error or _call_error(event)
        if self._content and isinstance(outcome, Succeeded) and kind not in (TURN, CALL):
            attributes += _output(outcome.value)
        id, start = self._id(path), at - event.duration
        if self.attempts.number > 1:
            self._look_back()
            start = min(start, self._cut_off.pop(path, start))
        span = Span(
            id, self._parent(above), name, kind, path, title, status,
            start, at, error, message, attributes, is_client,
        )  # fmt: skip
        if not attempt:
            return [span]
        last = span._replace(
            id=self._attempt_id(path, attempt), parent=span.id, name=f"{ATTEMPT} {attempt}",
            kind=ATTEMPT, start=max(started, span.start),
            attributes=((names.STEP_ATTEMPT, attempt), *attributes), is_client=False,
        )  # fmt: skip
        return [last, span]

    def _end_attempt(self, event: StepRetrying, at: float) -> Span:
        """Return the span of an attempt that failed and is followed by another."""
        path, failure = event.path, event.failure
        error, message = self._error(failure, path)
        step = self._id(path)
        output = failure.output if isinstance(failure.output, Mapping) else {}
        took = output.get("duration")
        start = self._starts.get(path, at)
        if isinstance(took, int | float):
            start = min(start, at - took)
        self._log(at, WARN, f"attempt {event.attempt} failed: {message or error}", path)
        span = Span(
            self._attempt_id(path, event.attempt), step, f"{ATTEMPT} {event.attempt}",
            ATTEMPT, path, "", "retried", start, at, error, message,
            ((names.STEP_ATTEMPT, event.attempt), *_exit_code(failure)),
        )  # fmt: skip
        self._retried[path] = event.attempt + 1
        self._starts[path] = at + event.delay
        return span

    def _outcome(self, outcome: Outcome, path: str) -> tuple[str, str, str, Attributes]:
        match outcome:
            case Succeeded():
                return "done", "", "", ()
            case Skipped(why):  # the reason may be the message of a failure, or of a hook
                reason = ((names.STEP_SKIPPED, why),) if self._content else ()
                return "skipped", "", "", reason
            case Failed(failure):
                error, message = self._error(failure, path)
                return "failed", error, message, _exit_code(failure)

    def _error(self, failure: Failure, path: str) -> tuple[str, str]:
        """Return the kind of a failure, and its message if that holds no content.

        Of the steps inside a tool call, any message may name an argument.
        """
        place = failure.path or path
        if self._content or (failure.kind in _WITHOUT_QUOTES and not belongs_to_call(place)):
            return failure.kind, failure.message[:MOST_CONTENT]
        return failure.kind, "" if failure.exit_code is None else f"exit code {failure.exit_code}"

    def _describe(
        self, event: StepFinished, name: str, turn: _Turn | None
    ) -> tuple[Attributes, str, bool]:
        """Return attributes by the conventions, the name, and whether a server is waited for."""
        outcome = event.outcome
        value = outcome.value if isinstance(outcome, Succeeded) else None
        if isinstance(outcome, Failed):
            value = outcome.failure.output
        record: Mapping[str, Json] = value if isinstance(value, Mapping) else {}
        match event.kind:
            case "turn":
                return self._describe_turn(event.path, record)
            case "call":
                return self._describe_call(event, record)
            case "agent":
                provider = () if turn is None else turn.provider
                # The title of a step without a name is its prompt, which is no name of an agent.
                agent = "" if last_name(event.path).isdigit() else event.title
                about = ((names.AGENT_NAME, agent),) if agent else ()
                return (
                    ((names.OPERATION, names.INVOKE_AGENT), *provider, *about, *_usage(record)),
                    f"{names.INVOKE_AGENT} {agent}".strip(),
                    False,
                )
        status = record.get("status")
        code = ((names.HTTP_STATUS, status),) if isinstance(status, int) else ()
        return code, name, True

    def _describe_turn(self, path: str, record: Mapping[str, Json]) -> tuple[Attributes, str, bool]:
        model, uses = str(record.get("model") or ""), record.get("uses")
        requests = (
            [use for use in uses if isinstance(use, Mapping)] if isinstance(uses, list) else []
        )
        named = record.get("provider")
        provider = ((names.PROVIDER, str(named)),) if named else ()
        self._turns[parent_path(path)] = _Turn(path, tuple(requests), provider)
        found: list[tuple[str, Value]] = [
            (names.OPERATION, names.CHAT), *provider, *_usage(record)
        ]  # fmt: skip
        if record.get("ending"):
            found.append((names.FINISH_REASONS, (_finish_reason(record),)))
        if self._content:
            found += _messages(record, requests)
        return tuple(found), f"{names.CHAT} {model}".strip(), True

    def _describe_call(
        self, event: StepFinished, record: Mapping[str, Json]
    ) -> tuple[Attributes, str, bool]:
        turn, number = split_call(event.path)
        last = self._turns.get(parent_path(event.path))
        uses = last.requests if last is not None and last.path == turn else ()
        use = uses[number - 1] if 0 < number <= len(uses) else {}
        tool = str(record.get("tool") or use.get("name") or "")
        found: list[tuple[str, Value]] = [
            (names.OPERATION, names.EXECUTE_TOOL),
            (names.TOOL_NAME, tool),
        ]
        if use.get("id"):
            found.append((names.TOOL_CALL_ID, str(use["id"])))
        if self._content:
            found.append((names.TOOL_ARGUMENTS, _content(use.get("arguments"))))
            found.append((names.TOOL_RESULT, _content(record.get("output"))))
        return tuple(found), f"{names.EXECUTE_TOOL} {tool}".strip(), False

    def _log(self, at: float, severity: int, text: str, path: str) -> None:
        self.logs.append(Log(at, severity, text, self._id(path), path))

    # ── ids ──────────────────────────────────────────────────────────────

    def _id(self, path: str) -> bytes:
        if path and (self.attempts.number > 1 or self._retried):
            return self._mark_id(path, "")
        known = self._ids.get(path)
        if known is None:
            if len(self._ids) >= MOST_IDS:
                self._ids.clear()
            known = self._ids[path] = span_id(self._key, path, self._mark)
        return known

    def _parent(self, path: str) -> bytes:
        """Return the span of the step around a step: of its present attempt, if it was retried."""
        attempt = self._retried.get(path) if self._retried else None
        return self._id(path) if attempt is None else self._attempt_id(path, attempt)

    def _attempt_id(self, path: str, attempt: int) -> bytes:
        return self._mark_id(path, retry_mark(path, attempt))

    def _mark_id(self, path: str, own: str) -> bytes:
        # As `RunTrace.traceparent`, which tells processes the same ids.
        retried = self._retried
        retries = own
        if retried:
            above = [around for around in paths_around(path) if around in retried]
            retries = "".join(retry_mark(around, retried[around]) for around in above) + own
        mark = self._mark
        if self.attempts.number > 1 and (retries or self._has_ended(path)):
            mark += repeat_mark(self.attempts.number)
        return span_id(self._key, path, mark + retries)

    def _has_ended(self, path: str) -> bool:
        """Had a step ended in this leg, before this run attempt?"""
        wanted = int.from_bytes(span_id(self._key, path), "big")
        ended = self._look_back()
        at = bisect_left(ended, wanted)
        return at < len(ended) and ended[at] == wanted

    def _look_back(self) -> array[int]:
        """Find which steps the earlier run attempts of this leg have ended, and which they began."""
        if self._ended is not None:
            return self._ended
        ids, began = array("Q"), self._cut_off
        for path, start, has_ended in self._earlier(self._leg_began, self._began):
            if has_ended:
                ids.append(int.from_bytes(span_id(self._key, path), "big"))
                began.pop(path, None)
            else:
                began.setdefault(path, start)
            # A start may be recorded together with the end of the first step inside.
            above = parent_path(path)
            while start < began.get(above, 0.0):
                began[above] = start
                above = parent_path(above)
        self._ended = array("Q", sorted(ids))
        return self._ended


def _call_error(event: StepFinished) -> str:
    """Return why a call failed: its step is done, since the agent goes on."""
    value = event.outcome.value if isinstance(event.outcome, Succeeded) else None
    if event.kind != CALL or not isinstance(value, Mapping) or not value.get("failed"):
        return ""
    return str(value.get("kind") or "failed")


def _exit_code(failure: Failure) -> Attributes:
    code = failure.exit_code
    return ((names.EXIT_CODE, code),) if failure.kind == "exit" and code else ()


def _plain_title(event: StepFinished) -> str:
    """Return a title without what was said to a model or by it, also as an argument of a call."""
    if event.kind == CALL:
        return event.title.partition(" ")[0]  # the arguments follow the tool
    if event.kind == "item":
        return event.kind
    # A step without a name has its prompt as title, and so has its first attempt beside a handler.
    path = parent_path(event.path) if event.kind == ATTEMPT else event.path
    return event.kind if last_name(path).isdigit() else event.title


def _plain_name(kind: str, path: str) -> str:
    """Return a name that many steps share: the kind, and the name that the author gave."""
    name = last_name(path)
    if kind == "item" or name.isdigit() or name == kind:
        return kind
    return f"{kind} {unnumbered_name(split_name(name)[1] or name)}"


def _usage(record: Mapping[str, Json]) -> Attributes:
    found: list[tuple[str, Value]] = []
    if model := record.get("model"):
        found += [(names.REQUEST_MODEL, str(model)), (names.RESPONSE_MODEL, str(model))]
    usage = record.get("usage")
    if isinstance(usage, Mapping):
        for name, field in (
            (names.INPUT_TOKENS, "input"),
            (names.OUTPUT_TOKENS, "output"),
            (names.CACHED_TOKENS, "cached"),
            (names.COST, "cost"),
        ):
            if isinstance(number := usage.get(field), int | float) and (
                number or field in ("input", "output")
            ):
                found.append((name, number))
    return tuple(found)


def _finish_reason(record: Mapping[str, Json]) -> str:
    ending = str(record.get("ending") or "end")
    return names.FINISHES.get(ending, ending)


def _messages(record: Mapping[str, Json], requests: Iterable[Mapping[str, Json]]) -> Attributes:
    """Return what was said to a model and by it, in the form of the conventions."""
    asked = record.get("asked")
    prompts: Mapping[str, Json] = asked if isinstance(asked, Mapping) else {}
    found: list[tuple[str, Value]] = []
    if system := prompts.get("system"):
        found.append((names.SYSTEM_INSTRUCTIONS, json_text([_text_part(system)])))
    if user := prompts.get("user"):
        message: Json = {"role": "user", "parts": [_text_part(user)]}
        found.append((names.INPUT_MESSAGES, json_text([message])))
    text = record.get("text", record.get("output"))
    parts: list[Json] = [_text_part(text)] if text else []
    for one in requests:
        arguments = one.get("arguments")
        whole = json_text(arguments)
        parts.append({
            "type": "tool_call", "id": one.get("id"), "name": one.get("name"),
            "arguments": arguments if len(whole) <= MOST_CONTENT else whole[:MOST_CONTENT],
        })  # fmt: skip
    answer: Json = {"role": "assistant", "parts": parts, "finish_reason": _finish_reason(record)}
    return (*found, (names.OUTPUT_MESSAGES, json_text([answer])))


def _text_part(text: Json) -> Json:
    return {"type": "text", "content": _content(text)}


def _output(value: Json) -> Attributes:
    output = value.get("output") if isinstance(value, Mapping) else None
    return () if output in (None, "") else ((names.OUTPUT, _content(output)),)


def _content(value: Json) -> str:
    text = value if isinstance(value, str) else json_text(value)
    return text[:MOST_CONTENT]
