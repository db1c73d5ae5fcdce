"""What a run has come to: the fold of its events, and the one source of what is shown.

Views ask `Progress` and decide nothing themselves.  It looks at paths, counts and
outcomes: a step with one name in its path is a part of the flow, one below a step that
said how many it has is an item.  Of kinds it knows those that are counted in another way:
a part which looks for its items first (what finds them is nobody's step), and agents, graphs and
ensembles, of which nobody knows before how many steps they take: their last ones are kept.
It is pure, since `now` comes from whoever asks, and bounded: what runs is kept, and of what has
ended a mark of one byte each, the last failures, the last notes and the last rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from plait.core.hints import Final
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.events import (
    EarlierUsage,
    Event,
    EventRecord,
    ItemsCounted,
    ItemsReplayed,
    ModelText,
    RunEnded,
    RunStarted,
    Status,
    StepFinished,
    StepInvalidated,
    StepRenamed,
    StepRetrying,
    StepStarted,
)
from plait.engine.events import (
    Note as Noted,
)
from plait.engine.journal import StepRecord
from plait.engine.limits import UsageTally
from plait.engine.outcome import IN_VAIN, TOO_MANY, Failed, Failure, Skipped, Succeeded
from plait.engine.paths import is_at_or_below
from plait.engine.replay import ITEMS_STEP
from plait.views.news import (
    ItemEnded,
    News,
    PartBegan,
    PartCounted,
    PartEnded,
    Retrying,
    RowEnded,
    RunBegan,
    RunOver,
    StepBegan,
    StepEnded,
)
from plait.views.parts import (
    CALL,
    HOOK,
    LISTED,
    MOST_KEPT,
    MOST_SAID,
    SNAPSHOT,
    TURN,
    FailedStep,
    Note,
    Part,
    Row,
    RunningStep,
    StepGroup,
    outcome_state,
)

LAST_LINES: Final = 5
LINE_LENGTH: Final = 400
PLAIT_FAILURE_KINDS: Final = frozenset(
    {"refused", "timeout", "network", "capture", "incomplete", "stopped", "empty", TOO_MANY}
)
"""Kinds of failures whose message is written by Plait, and not by a program."""


def describe_failure(failure: Failure) -> tuple[str, tuple[str, ...]]:
    """How something failed, in a word or two, and the lines that say why."""
    how = failure.kind
    own, handler = _split(failure.message)
    if failure.kind == "exit" and failure.exit_code is not None:
        how = f"exit {failure.exit_code}"
        own = own.removeprefix(f"exit code {failure.exit_code}").removeprefix(": ")
    said = _last_words(failure.output) if failure.kind == "timeout" else ()
    return how, (*_message_lines(own, failure.kind), *said, *_message_lines(handler, failure.kind))


def _last_words(output: Json) -> list[str]:
    """What a command printed last before its time was up: that tells where it hung."""
    if not isinstance(output, Mapping):
        return []
    said = (output.get(name) for name in ("stderr", "output"))
    text = next((one for one in said if isinstance(one, str) and one.strip()), "")
    return _message_lines(text[-LINE_LENGTH * LAST_LINES :], "exit")


def _split(message: str) -> tuple[str, str]:
    """What is said of a step, and of its handler, if that failed, too."""
    before, mark, _ = message.partition(IN_VAIN)
    own = before.rpartition("\n")[0] if mark else message
    return own, message[len(own) :]


def _message_lines(message: str, kind: str) -> list[str]:
    lines = [line.rstrip()[:LINE_LENGTH] for line in message.splitlines() if line.strip()]
    return lines[:LAST_LINES] if kind in PLAIT_FAILURE_KINDS else lines[-LAST_LINES:]


def failure_line(failure: Failure) -> str:
    """An error of ours says first what is wrong, then where and what to do; a program says it
    last.
    """
    lines = describe_failure(replace(failure, message=_split(failure.message)[0]))[1]
    words = [line for line in lines if not line.startswith("fix: ")]
    if not words:
        return ""
    # What ends with what to do is said by us, or by a program that says things as we do.
    return words[0] if failure.kind in PLAIT_FAILURE_KINDS or len(words) < len(lines) else words[-1]


class Progress:
    """The state of a run after the events that were added, in their order."""

    def __init__(self) -> None:
        self.run = self.flow = self.file = self.project = ""
        self.status: Status = "running"
        self.lives = 0
        self.started: float | None = None
        """When the run began, for the first time …"""
        self.since: float | None = None
        """… and when its present life did."""
        self.ended: float | None = None
        self.last_at = 0.0
        """When the last event happened."""
        self.failure: Failure | None = None
        self.value: Json = None
        self.facts: Mapping[str, Json] = {}
        self.parts: dict[str, Part] = {}
        self.failures: deque[FailedStep] = deque(maxlen=MOST_KEPT)
        self.failure_count = 0
        self.notes: deque[Note] = deque(maxlen=MOST_KEPT)
        self.note_count = self.warning_count = 0
        self.retries = 0
        self.asked = UsageTally()
        """Of all agents of the run."""
        self._running: dict[str, RunningStep] = {}
        self._fans: dict[str, StepGroup] = {}
        """Of steps inside parts, as long as they run."""

    def add(self, stamped: EventRecord) -> Sequence[News]:
        """Take one event in; what there is to say about it."""
        at = self.last_at = stamped.at
        self._count_used(stamped.event)
        match stamped.event:
            case StepStarted() as event:
                return self._begin(event, at)
            case StepFinished() as event:
                return self._finish(event, at)
            case StepRenamed(path, title):
                self._entitle(path, title)
            case ModelText(path, text):
                if (speaking := self._running.get(path)) is not None:
                    speaking.said = (speaking.said + text)[-MOST_SAID:]
            case ItemsCounted(path, total):
                return self._count(path, total, at)
            case ItemsReplayed(path, done):
                part = self.parts.get(path)
                fan = self._fans.get(path) if part is None else part.group
                if fan is not None:
                    fan.remember(done)
            case StepRetrying() as event:
                return self._retry(event, at)
            case StepInvalidated() as event:
                self._forget(event)
            case Noted(path, message, warning):
                about = self._running.get(path) if path not in self.parts else None
                note = Note(path, message, "" if about is None else about.title, warning)
                self.notes.append(note)
                self.note_count += not warning
                self.warning_count += warning
                return (note,)
            case RunStarted() as event:
                return self._open(event, at)
            case RunEnded() as event:
                return self._close(event, at)
        return ()

    # ── questions ────────────────────────────────────────────────────────

    @property
    def maps(self) -> list[Part]:
        return [part for part in self.parts.values() if part.group.is_fan]

    @property
    def items(self) -> tuple[int, int] | None:
        """Items that have ended, and all; None if the flow has none that it knows of."""
        fans = [part.group for part in self.maps]
        return (
            (sum(fan.outcome_count for fan in fans), sum(fan.total or 0 for fan in fans))
            if fans
            else None
        )

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of the parts without items that have ended, and all."""
        parts = [part for part in self.parts.values() if not part.has_no_items_yet]
        groups = [part.group for part in parts if not part.group.is_fan]
        ended = sum(group.outcome_count for group in groups)
        return ended, max(ended, sum(group.total or 0 for group in groups))

    def running(self, part: Part) -> list[RunningStep]:
        """What runs directly below a part, the oldest first."""
        top = self._running.get(part.name)
        return list(top.inner.values()) if top is not None else []

    @property
    def running_count(self) -> int:
        return sum(len(self._running[name].inner) for name in self.parts if name in self._running)

    def fan_in(self, step: RunningStep) -> StepGroup | None:
        """The items that a running step goes through, if it does."""
        while step.inner:
            if (group := self._fans.get(step.path)) is not None:
                return group
            step = next(reversed(step.inner.values()))
        return self._fans.get(step.path)

    def time(self, now: float) -> float:
        """How long the present life of the run takes until now, or took."""
        until = now if self.ended is None else self.ended
        return 0.0 if self.since is None else max(0.0, until - self.since)

    # ── the run ──────────────────────────────────────────────────────────

    def _open(self, event: RunStarted, at: float) -> Sequence[News]:
        self.run, self.flow, self.file, self.project = (
            event.run,
            event.flow,
            event.file,
            event.project,
        )
        self.lives += 1
        self.started = at if self.started is None else self.started
        self.since, self.ended, self.failure, self.status = at, None, None, "running"
        self._running.clear()
        self._fans.clear()
        known = self.parts
        self.parts = {name: known.get(name) or Part(name, steps) for name, steps in event.phases}
        self.parts |= {name: part for name, part in known.items() if name not in self.parts}
        for part in self.parts.values():
            if part.state in ("running", "failed"):
                part.take_up()
        return (RunBegan(event.resumed),)

    def _close(self, event: RunEnded, at: float) -> Sequence[News]:
        self.status, self.failure, self.value, self.facts = (
            event.status,
            event.failure,
            event.value,
            event.facts,
        )
        self.ended = at
        for part in self.maps:
            part.cut_short = len(self.running(part))
        self._running.clear()
        self._fans.clear()
        return (RunOver(event.status),)

    # ── steps ────────────────────────────────────────────────────────────

    def _begin(self, event: StepStarted, at: float) -> Sequence[News]:
        path = event.path
        step = self._running.get(path)
        if step is not None and event.attempt > 1:
            step.attempt, step.again_at = event.attempt, None
            return ()
        if event.kind == SNAPSHOT:
            return ()
        step = self._running[path] = RunningStep(path, event.kind, event.title, at, event.attempt)
        parent = _parent(path)
        if not parent:
            part = self._part(path)
            part.begin(event, at)
            return (PartBegan(part),)
        above = self._running.get(parent)
        if above is not None:
            above.inner[path] = step
        part_above = self.parts.get(parent)
        if part_above is None or event.kind == HOOK:
            return ()
        group = part_above.group
        group.begin(event)
        if group.is_fan and self.lives > 1:
            self._unlist(path)
        if group.is_open and not group.is_fan:
            return (StepBegan(part_above, step),)
        return ()

    def _finish(self, event: StepFinished, at: float) -> Sequence[News]:
        path = event.path
        parent = _parent(path)
        step = self._running.get(path)
        self._drop(path, parent)
        if self.lives > 1 and not isinstance(event.outcome, Failed):
            self._unlist(path)  # it had failed in an earlier life
        if event.kind == ITEMS_STEP and not event.replayed:
            self._choose(parent)
        if event.kind == SNAPSHOT:
            return ()
        if not parent:
            part = self._part(path)
            part.end(event)
            reported = _is_own(event) or part.has_no_items_yet
            return (*self._add_failure(event, at, reported=reported), PartEnded(part))
        part_above = self.parts.get(parent)
        if part_above is None:
            fan = self._fans.get(parent)
            if fan is None:
                return self._agent_rows(event) if event.kind in (TURN, CALL) else ()
            fan.finish(event, at)
            self._unlist_inside(event)
            return self._add_failure(event, at, reported=True)
        if event.kind == HOOK:
            return ()
        group = part_above.group
        group.finish(event, at)
        self._unlist_inside(event)
        failed = self._add_failure(event, at, reported=group.is_open)
        if not group.is_open:
            return ()
        if group.is_fan:
            return (*failed, ItemEnded(part_above))
        if part_above.kind in LISTED:
            row = make_row(event, None if step is None else step.asked)
            part_above.rows.append(row)
            return (*failed, RowEnded(part_above, "", row))
        ended = StepEnded(part_above, event.title, event.outcome, event.duration, event.replayed)
        return (*failed, ended)

    def _choose(self, fan: str) -> None:
        """Items are chosen: what became of those of an older choice counts no more."""
        for failed in [
            one for one in self.failures if one.path != fan and is_at_or_below(one.path, fan)
        ]:
            self._unlist(failed.path)
        if (group := self._group(fan)) is not None:
            group.forget_all()
            group.total = None

    def _agent_rows(self, event: StepFinished) -> Sequence[News]:
        """A turn or call of an agent somewhere inside a part; those of items are too many to be
        told.
        """
        above = _parent(event.path)
        part = self.parts.get(above.partition("/")[0])
        if part is None or part.group.is_fan or self._is_in_fan(above):
            return ()
        agent = self._running.get(above)
        if agent is None and event.replayed:
            return ()  # it is inside of something that is remembered as a whole
        return (RowEnded(part, "" if agent is None else agent.title, make_row(event)),)

    def _is_in_fan(self, path: str) -> bool:
        while path:
            if path in self._fans:
                return True
            path = _parent(path)
        return False

    def _count_used(self, event: Event) -> None:
        """A model has answered: that counts for every agent around it."""
        match event:
            case StepFinished(path=path, used=used) | StepRetrying(path=path, used=used):
                if used is None or "turns" not in used:
                    return
                if (part := self.parts.get(path.partition("/")[0])) is not None:
                    part.asked.count(event)
                while path := _parent(path):
                    if (step := self._running.get(path)) is None:
                        continue
                    if step.attempt > 1 and isinstance(event, StepFinished) and event.replayed:
                        break  # at an earlier attempt it was counted, here and around
                    step.asked.add(used)
            case EarlierUsage(parts=parts):
                for name, part in self.parts.items():
                    part.asked.count(EarlierUsage({name: parts.get(name, {})}))
            case _:
                return
        self.asked.count(event)

    def _add_failure(
        self, event: StepFinished, at: float, *, reported: bool
    ) -> tuple[FailedStep, ...]:
        if not reported or not isinstance(event.outcome, Failed):
            return ()
        how, lines = describe_failure(event.outcome.failure)
        failed = FailedStep(
            event.path,
            event.kind,
            event.title,
            how,
            lines,
            at,
            event.order,
            event.replayed,
            failure_line(event.outcome.failure),
        )
        self._unlist(event.path)
        self.failures.append(failed)
        self.failure_count += 1
        return (failed,)

    def _unlist_inside(self, event: StepFinished) -> None:
        """It fails because of one inside it, of which it tells: that one need not be listed,
        too.
        """
        if not isinstance(event.outcome, Failed):
            return
        origin = event.outcome.failure.path
        for failed in [one for one in self.failures if is_at_or_below(one.path, event.path)]:
            if is_at_or_below(failed.path, origin) or is_at_or_below(origin, failed.path):
                self._unlist(failed.path)

    def _count(self, path: str, total: int, at: float) -> Sequence[News]:
        part = self.parts.get(path)
        if part is None:
            self._fans.setdefault(path, StepGroup(path)).count(total, at)
            return ()
        part.group.count(total, at)
        return (PartCounted(part),)

    def _retry(self, event: StepRetrying, at: float) -> Sequence[News]:
        self.retries += 1
        step = self._running.get(event.path)
        if step is None:
            return ()
        step.again_at, step.of = at + event.delay, event.of
        return (
            Retrying(
                step.title, event.attempt, event.of, describe_failure(event.failure)[0], event.delay
            ),
        )

    def _entitle(self, path: str, title: str) -> None:
        step, above = self._running.get(path), self._running.get(_parent(path))
        if step is None:
            return
        if above is not None and above.title == step.title:  # a step and its action
            above.title = title
        step.title = title

    def _forget(self, event: StepInvalidated) -> None:
        path = event.path
        own = next((failed for failed in self.failures if failed.path == path), None)
        if event.below:
            for failed in [one for one in self.failures if is_at_or_below(one.path, path)]:
                self._unlist(failed.path)
        self._unlist(path)
        part = self.parts.get(path)
        if part is not None:
            part.forget(below=event.below)
            self._forget_behind(path)
        elif (group := self._group(_parent(path))) is not None:
            group.forget(path, None if own is None else own.order)

    def _forget_behind(self, path: str) -> None:
        """What follows a part that is done again will be done again, too."""
        names = list(self.parts)
        for name in names[names.index(path) + 1 :]:
            self.parts[name].forget(below=True)
            for failed in [one for one in self.failures if is_at_or_below(one.path, name)]:
                self._unlist(failed.path)

    # ── the parts of those above ─────────────────────────────────────────

    def _part(self, name: str) -> Part:
        if name not in self.parts:
            self.parts[name] = Part(name)
        return self.parts[name]

    def _group(self, path: str) -> StepGroup | None:
        part = self.parts.get(path)
        return part.group if part is not None else self._fans.get(path)

    def _unlist(self, path: str) -> None:
        for failed in self.failures:
            if failed.path == path:
                self.failures.remove(failed)
                self.failure_count -= 1
                return

    def _drop(self, path: str, parent: str) -> None:
        """It has ended, and all that is inside it."""
        step = self._running.pop(path, None)
        self._fans.pop(path, None)
        if step is None:
            return
        above = self._running.get(parent)
        if above is not None:
            above.inner.pop(path, None)
        for inner in list(step.inner):
            self._drop(inner, path)


def replay_events(events: Iterable[EventRecord]) -> Progress:
    """The state of a run after all these events."""
    progress = Progress()
    for stamped in events:
        progress.add(stamped)
    return progress


def make_row(
    event: StepFinished | StepRecord, asked: UsageTally | None = None, kind: str = ""
) -> Row:
    """What is told of a step when it has ended; `kind` of one that is read from a journal."""
    kind = event.kind if isinstance(event, StepFinished) else kind
    replayed = isinstance(event, StepFinished) and event.replayed
    plain = Row(kind, event.title, outcome_state(event.outcome), event.duration, replayed)
    if asked is not None and asked.turns:
        plain = replace(plain, asked=asked)
    match event.outcome:
        case Failed(failure):
            return replace(plain, how=describe_failure(failure)[0])
        case Skipped(why):
            return replace(plain, how=why.partition("\n")[0])
        case Succeeded({"failed": True, "kind": str(how)}) if kind == CALL:
            return replace(plain, state="failed", how=how)
        case Succeeded({"next": str(name)}):
            return replace(plain, to=name)
    if kind == TURN and event.used:
        tally = UsageTally()
        tally.add(event.used)
        return replace(plain, asked=tally)
    return plain


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _is_own(event: StepFinished) -> bool:
    """Did this part fail itself, and not one of its steps, of which was told already?"""
    if not isinstance(event.outcome, Failed):
        return False
    path = event.outcome.failure.path
    return path == event.path or not is_at_or_below(path, event.path)
