"""Everything that a run has recorded of one step: attempts, output, values, an agent's turns, tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, zip_longest

from plait.core.hints import Final
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.events import EventRecord, StepFinished, StepStarted
from plait.engine.limits import UsageSum
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.engine.paths import SETUP, is_at_or_below, parent_path, paths_around, split_call
from plait.template.compiled import FACTS
from plait.views.log import OF_AGENTS, EntryReader, LogEntry
from plait.views.parts import CALL, ENSEMBLE, TURN, State, outcome_state
from plait.views.run_tree import NodeState, StepNode, StepTree

MOST_ENTRIES: Final = 100
"""Outputs of steps inside one that are shown with it."""
FIELDS_OF_PROCESS: Final = frozenset(
    {
        "output",
        "stderr",
        "exit_code",
        "duration",
        "attempt",
        "cpu_seconds",
        "peak_rss_kib",
        "changes",
    }
)
CHANGES: Final = {"files_added": "added", "files_modified": "modified", "files_deleted": "deleted"}
"""What git says of a file, by the field of the record that lists it."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call that a model requested."""

    path: str
    tool: str
    arguments: Json
    state: NodeState
    result: Json = None
    duration: float | None = None


@dataclass(frozen=True, slots=True)
class ModelTurnFacts:
    path: str
    number: int
    state: NodeState
    system: str = ""
    user: str = ""
    text: str = ""
    model: str = ""
    ending: str = ""
    usage: Mapping[str, Json] = field(default_factory=dict)
    duration: float | None = None
    failure: Failure | None = None
    calls: Sequence[ToolUse] = ()
    limits: Mapping[str, Json] = field(default_factory=dict)
    """Of the session, if it is the first turn."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The turns of one agent session."""

    path: str
    title: str
    turns: Sequence[ModelTurnFacts]
    usage: UsageSum = field(default_factory=UsageSum)
    limits: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A task of an ensemble and its output."""

    path: str
    title: str
    state: State
    agent: str
    model: str
    usage: Mapping[str, Json]
    output: Json
    duration: float | None
    failure: Failure | None = None


@dataclass(slots=True, eq=False)
class StepDetail:
    path: str
    node: StepNode
    above: Sequence[tuple[str, str]]
    """Path and title of the steps around it, the outermost first."""
    outcome: Outcome | None = None
    entries: Sequence[LogEntry] = ()
    """What it, and the steps inside it, have printed."""
    sessions: Sequence[SessionFacts] = ()
    tasks: Sequence[TaskFacts] = ()
    captures: Mapping[str, Json] = field(default_factory=dict)
    """Values that the setup and the lists of steps around it have captured."""

    @property
    def value(self) -> Json:
        """What it returned, if that is more than the output of a process."""
        match self.outcome:
            case Succeeded(value):
                found = value
            case Failed(Failure(output=value)):
                found = value
            case _:
                return None
        if isinstance(found, dict) and "exit_code" in found:
            found = {name: one for name, one in found.items() if name not in FIELDS_OF_PROCESS}
        return found or None

    @property
    def exit_code(self) -> int | None:
        match self.outcome:
            case Succeeded({"exit_code": int(code)}) | Failed(Failure(exit_code=int(code))):
                return code
        return None

    @property
    def process(self) -> Mapping[str, Json]:
        """The record of its process, with what it used; empty if it had none."""
        match self.outcome:
            case Succeeded({"exit_code": _} as value) | Failed(
                Failure(output={"exit_code": _} as value)
            ):
                return _mapping(value)
        return {}

    @property
    def files(self) -> Sequence[tuple[str, str]]:
        """What became of a file, and its path, for each that the step has changed."""
        changes, written = _mapping(self.process.get("changes")), self.process.get("output")
        found = [
            (what, str(path))
            for name, what in CHANGES.items()
            if isinstance(paths := changes.get(name), list)
            for path in paths
        ]
        if self.node.kind == "write_file" and isinstance(written, str):
            found.append(("written", written))
        return found

    @property
    def commits(self) -> Sequence[str]:
        """The ids of the commits that the step has made."""
        ids = _mapping(self.process.get("changes")).get("commits")
        return [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []

    @property
    def failure(self) -> Failure | None:
        return self.outcome.failure if isinstance(self.outcome, Failed) else None


def read_step(
    events: Iterable[EventRecord],
    path: str,
    run_attempts: Sequence[Sequence[float]] = (),
    *,
    is_running: bool = True,
) -> StepDetail | None:
    """The step at a path from the events of it, of those around it and inside it.

    `run_attempts`: start and last event of each attempt of the run, which these events do not tell.
    """
    records = list(events)
    tree, titles = StepTree(path, run_attempts), dict[str, str]()
    reader, printed = EntryReader(), list[LogEntry]()
    for record, following in zip_longest(records, records[1:]):
        tree.add(record)
        entry = reader.read(record.event, following.event if following is not None else None)
        if entry is not None and is_at_or_below(entry.path, path):
            printed.append(_with_attempt(entry, tree))
        match record.event:
            case StepStarted(path=where, title=title) | StepFinished(path=where, title=title):
                titles[where] = title
    if not is_running:
        tree.cut_short()
    node = tree.get(path)
    if node is None:
        return None
    detail = StepDetail(path, node, [(one, titles.get(one, one)) for one in paths_around(path)])
    ends = _last_ends(records)
    if (end := ends.get(path)) is not None and node.state in ("done", "failed", "skipped"):
        detail.outcome = end.outcome
    unfinished: NodeState = "running" if is_running else "interrupted"
    detail.sessions = list(_sessions(records, ends, titles, path, unfinished))
    has_turns = bool(detail.sessions)
    entries = (one for one in printed if not (has_turns and one.kind in OF_AGENTS))
    detail.entries = list(islice(entries, MOST_ENTRIES))
    for where in (SETUP, *paths_around(path)):
        detail.captures = {**detail.captures, **_captures(ends.get(where))}
    if node.kind == ENSEMBLE:
        detail.tasks = [_task(end) for where, end in ends.items() if parent_path(where) == path]
    return detail


def _with_attempt(entry: LogEntry, tree: StepTree) -> LogEntry:
    """With the number that its attempt has in the tree, which counts those of all run attempts."""
    node = tree.get(entry.path)
    number = len(node.attempts) if node is not None else 0
    return replace(entry, attempt=number) if number else entry


def _last_ends(records: Iterable[EventRecord]) -> dict[str, StepFinished]:
    found: dict[str, StepFinished] = {}
    for record in records:
        if isinstance(record.event, StepFinished):
            found.pop(record.event.path, None)
            found[record.event.path] = record.event
    return found


def _captures(end: StepFinished | None) -> Mapping[str, Json]:
    captured = {} if end is None else _mapping(_value(end.outcome)[0].get("captures"))
    return {name: value for name, value in captured.items() if not name.endswith(FACTS)}


# ── an agent ─────────────────────────────────────────────────────────────


def _sessions(
    records: Iterable[EventRecord],
    ends: Mapping[str, StepFinished],
    titles: Mapping[str, str],
    top: str,
    unfinished: NodeState,
) -> Iterable[SessionFacts]:
    started = {
        record.event.path: record.event
        for record in records
        if isinstance(record.event, StepStarted) and record.event.kind in OF_AGENTS
    }
    steps: dict[str, StepFinished | StepStarted] = {**started, **ends}
    used = {path: end.used or {} for path, end in ends.items()}
    turns: dict[str, list[ModelTurnFacts]] = {}
    calls: dict[str, list[ToolUse]] = {}
    for path, step in steps.items():
        if step.kind == CALL and (turn := split_call(path)[0]):
            calls.setdefault(turn, []).append(_tool_use(step, steps.get(turn), unfinished))
    for path, step in steps.items():
        if step.kind == TURN and is_at_or_below(path, top):
            session = parent_path(path)
            known = turns.setdefault(session, [])
            known.append(_turn(step, len(known) + 1, calls.get(path, ()), unfinished))
    for session, found in turns.items():
        usage = UsageSum()
        for one in found:
            usage.add(used.get(one.path, {}))
        yield SessionFacts(session, titles.get(session, session), found, usage, found[0].limits)


def _turn(
    step: StepFinished | StepStarted,
    number: int,
    calls: Sequence[ToolUse],
    unfinished: NodeState,
) -> ModelTurnFacts:
    if isinstance(step, StepStarted):
        return ModelTurnFacts(step.path, number, unfinished, calls=calls)
    value, failure = _value(step.outcome)
    asked = _mapping(value.get("asked"))
    return ModelTurnFacts(
        step.path,
        number,
        outcome_state(step.outcome),
        _text(asked.get("system")),
        _text(asked.get("user")),
        _text(value.get("text")),
        _text(value.get("model")),
        _text(value.get("ending")),
        _mapping(value.get("usage")),
        step.duration,
        failure,
        sorted(calls, key=lambda one: split_call(one.path)[1]),
        _mapping(value.get("limits")),
    )


def _tool_use(
    step: StepFinished | StepStarted,
    turn: StepFinished | StepStarted | None,
    unfinished: NodeState,
) -> ToolUse:
    number = split_call(step.path)[1]
    uses: Json = []
    if isinstance(turn, StepFinished):
        uses = _value(turn.outcome)[0].get("uses")
    use = uses[number - 1] if isinstance(uses, list) and 0 < number <= len(uses) else {}
    arguments = _mapping(use).get("arguments")
    name = _text(_mapping(use).get("name")) or step.title
    if isinstance(step, StepStarted):
        return ToolUse(step.path, name, arguments, unfinished)
    value, failure = _value(step.outcome)
    state = "failed" if value.get("failed") is True else outcome_state(step.outcome)
    result = value.get("output") if failure is None else failure.message
    return ToolUse(
        step.path, _text(value.get("tool")) or name, arguments, state, result, step.duration
    )


# ── an ensemble ──────────────────────────────────────────────────────────


def _task(end: StepFinished) -> TaskFacts:
    value, failure = _value(end.outcome)
    inner = value.get("tasks")
    output = value.get("data") if value.get("data") is not None else value.get("raw")
    if output is None and isinstance(inner, Mapping):
        output = {
            name: _mapping(one).get("data") or _mapping(one).get("raw")
            for name, one in inner.items()
        }
    return TaskFacts(
        end.path,
        end.title,
        outcome_state(end.outcome),
        _text(value.get("agent")),
        _text(value.get("model")),
        _mapping(value.get("usage")),
        output,
        end.duration,
        failure,
    )


def _value(outcome: Outcome) -> tuple[Mapping[str, Json], Failure | None]:
    match outcome:
        case Succeeded(value):
            return _mapping(value), None
        case Failed(failure):
            return _mapping(failure.output), failure
    return {}, None


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
