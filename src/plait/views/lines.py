"""Lines about a run that several views show."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.grace import grace_seconds
from plait.engine.events import StepFinished
from plait.engine.kinds import step_kind
from plait.engine.limits import UsageSum
from plait.engine.outcome import Skipped
from plait.views.format import (
    clock,
    first_line,
    money,
    one_line,
    rough_clock,
    short,
    sign,
    speed,
)
from plait.views.parts import (
    AGENT,
    TURN,
    FailedStep,
    NoteRow,
    Part,
    Row,
    outcome_state,
)
from plait.views.progress import Progress
from plait.views.terminal import pluralize


def stopping_line(progress: Progress, *, at_once: bool) -> str:
    running = progress.running_count
    if at_once:
        return "stopping at once …"
    if not running:
        return "stopping …"
    kind = "item" if progress.maps else "step"
    gets = "gets" if running == 1 else "get"
    return (
        f"stopping: {pluralize(running, f'running {kind}')} {gets} {grace_seconds():g} s … (again: "
        "at once)"
    )


def failure_line(failed: FailedStep) -> str:
    why = f"  {one_line(failed.line, None)}" if failed.line else ""
    return f"{sign('failed')} {one_line(failed.title)}   {one_line(failed.cause)}{why}"


def note_line(note: NoteRow) -> str:
    about = f"{one_line(note.about)}: " if note.about else ""
    word = "warning" if note.warning else "note"
    return f"{word}: {about}{one_line(first_line(note.message), None)}"


# ── steps ────────────────────────────────────────────────────────────────


def outcome_words(event: StepFinished) -> str:
    """done, 2.0 s — or: skipped (why), 0.0 s."""
    skipped = event.outcome if isinstance(event.outcome, Skipped) else None
    why = "" if skipped is None else f" ({one_line(first_line(skipped.why))})"
    return f"{outcome_state(event.outcome)}{why}{_time(event.duration, replayed=event.replayed)}"


def row_line(row: Row) -> str:
    """turn 2: done, 4.0 s, 0.9k tokens, $0.02 — or: core/file/write …: refused, 0.0 s."""
    usage = f", {usage_words(row.usage, turns=row.kind != TURN)}" if row.usage is not None else ""
    following = f" → {one_line(row.next_node)}" if row.next_node else ""
    time = _time(row.duration, replayed=row.replayed)
    return f"{one_line(row.title)}: {row_state(row)}{time}{usage}{following}"


def row_state(row: Row) -> str:
    """done, failed (exit 2), refused, skipped (why)."""
    if row.state == "skipped":
        return f"skipped ({one_line(row.cause)})"
    if row.cause in ("", row.state):
        return row.state
    return "refused" if row.cause == "refused" else f"{row.state} ({one_line(row.cause)})"


def _time(duration: float, *, replayed: bool) -> str:
    return ", replayed" if replayed else f", {clock(duration)}"


# ── parts ────────────────────────────────────────────────────────────────


def part_figures(
    progress: Progress, part: Part, now: float, *, alive: bool = True
) -> Iterator[str]:
    """How many items of a part have ended; with `alive`, also the rate and the time left."""
    group = part.group
    yield f"{group.outcome_count}/{group.total if group.total is not None else '?'}"
    if alive and part.state == "running" and progress.ended is None:
        if (rate := group.rate(now)) is not None:
            yield speed(rate)
        if (left := group.time_left(now)) is not None and group.pending_count:
            yield f"~{rough_clock(left)}"
        yield f"{len(progress.running(part))} running"
    if group.failure_count:
        yield f"{group.failure_count} failed"


def part_summary(part: Part) -> str:
    """The state of a part that has ended, its counts and its duration."""
    group = part.group
    state = "finished" if part.shown_state == "partial" else part.shown_state
    time = _time(part.duration or 0.0, replayed=part.replayed)
    if part.has_no_items_yet:
        return f"{part.state}{time}"
    if part.kind == AGENT:
        return part.state + (f", {usage_line(part.usage)}" if part.usage.turns else "") + time
    kind = "item" if group.is_map else step_kind(part.kind).noun
    failed = f", {group.failure_count} failed" if group.failure_count else ""
    return f"{state}, {pluralize(group.total or group.outcome_count, kind)}{failed}{time}"


# ── models ───────────────────────────────────────────────────────────────


def usage_line(usage: UsageSum) -> str:
    """3 turns, 4.1k tokens, $0.02."""
    return usage_words(usage, turns=True)


def usage_words(usage: UsageSum, *, turns: bool) -> str:
    words = [pluralize(usage.turns, "turn")] if turns else []
    about = "about " if usage.estimated else ""
    words.append(f"{about}{short(usage.tokens)} tokens")
    if usage.cost:
        words.append(money(usage.cost))
    return ", ".join(words)
