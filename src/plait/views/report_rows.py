"""The rows that `plait show` prints for the steps of an agent, a graph or an ensemble.

    agent      turns with their usage, and below each the tools that it called
    graph      visits, each with the node that follows
    ensemble   tasks, with their agents and their usage

A journal keeps no kinds of steps that have ended: a turn, a call and a hook are known by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.core.hints import Final, TypeAlias
from plait.core.values import Json
from plait.engine.journal import StepRecord
from plait.engine.limits import UsageSum
from plait.engine.outcome import Failed, Succeeded
from plait.engine.paths import is_call_name, is_hook_name, is_turn_name, last_name
from plait.views.format import (
    Line,
    clock,
    describe_failure,
    money,
    one_line,
    short,
    sign,
    state_colour,
)
from plait.views.lines import row_state, usage_line
from plait.views.parts import AGENT, CALL, ENSEMBLE, HOOK, TURN, Row
from plait.views.progress import make_row
from plait.views.terminal import format_table, pluralize

INDENT: Final = " " * 6
NOTHING: Final = "—"
Cells: TypeAlias = tuple[str, ...]


def row_lines(kind: str, steps: Sequence[StepRecord], usage: UsageSum) -> Iterator[Line]:
    """The steps directly below a part of this kind; `usage` is that of all run attempts."""
    steps = [step for step in steps if _row_kind(step) != HOOK]
    if kind == AGENT:
        yield from _turns(steps, usage)
    elif kind == ENSEMBLE:
        yield from _tasks(steps)
    else:
        yield from (line for step in steps for line in _visit(step))


def _row_kind(step: StepRecord) -> str:
    name = last_name(step.path)
    if is_turn_name(name):
        return TURN
    if is_call_name(name):
        return CALL
    return HOOK if is_hook_name(name) else ""


def _table(rows: Sequence[tuple[Cells, str]]) -> Iterator[Line]:
    table = format_table([cells for cells, _ in rows], None)
    for line, (_, colour) in zip(table, rows, strict=True):
        yield f"{INDENT}{line}".rstrip(), colour


def _row_colour(row: Row) -> str:
    return "" if row.state == "done" else state_colour(row.state)


def _row_problem(row: Row) -> str:
    return "" if row.state == "done" else f"   {row_state(row)}"


# ── an agent ─────────────────────────────────────────────────────────────

TURN_HEAD: Final = ("TURN", "IN", "OUT", "COST", "TIME")


def _turns(steps: Sequence[StepRecord], usage: UsageSum) -> Iterator[Line]:
    if not steps:
        return
    rows = [_turn(step) if _row_kind(step) == TURN else _call(step) for step in steps]
    head, *table = _table([(TURN_HEAD, "dim"), *rows])
    yield head
    for step, row in zip(steps, table, strict=True):
        yield row
        yield from _failure_lines(step)
    calls = sum(_row_kind(step) != TURN for step in steps)
    called = f", {pluralize(calls, 'call')}" if calls else ""
    yield f"{INDENT}{usage_line(usage)}{called}", "bold"


def _turn(step: StepRecord) -> tuple[Cells, str]:
    row = make_row(step, kind=TURN)
    usage = _mapping(_value(step).get("usage"))
    title = f"{one_line(row.title)}{_row_problem(row)}"
    counts, about = (usage.get("input"), usage.get("output")), _about(usage)
    first, second = (f"{about}{short(one)}" if isinstance(one, int) else NOTHING for one in counts)
    return (title, first, second, _cost(usage), clock(step.duration)), _row_colour(row)


def _call(step: StepRecord) -> tuple[Cells, str]:
    row = make_row(step, kind=CALL)
    title = f"  {sign(row.state)} {one_line(row.title)}{_row_problem(row)}"
    return (title, "", "", "", clock(step.duration)), _row_colour(row)


def _about(usage: Mapping[str, Json]) -> str:
    """The mark of estimated tokens."""
    return "~" if usage.get("estimated") else ""


def _cost(usage: Mapping[str, Json]) -> str:
    cost = usage.get("cost")
    return money(cost) if isinstance(cost, int | float) else NOTHING


# ── a graph ──────────────────────────────────────────────────────────────


def _visit(step: StepRecord) -> Iterator[Line]:
    row = make_row(step)
    following = f" → {one_line(row.next_node)}" if row.next_node else ""
    title = f"{sign(row.state)} {one_line(row.title)}{following}{_row_problem(row)}"
    yield f"{INDENT}{title}   {clock(step.duration)}", _row_colour(row)
    yield from _failure_lines(step)


def _failure_lines(step: StepRecord) -> Iterator[Line]:
    if isinstance(step.outcome, Failed):
        for line in describe_failure(step.outcome.failure)[1]:
            yield f"{INDENT}    {one_line(line, None)}", ""


# ── an ensemble ──────────────────────────────────────────────────────────

TASK_HEAD: Final = ("TASK", "STATE", "BY", "TURNS", "TOKENS", "COST", "TIME")


def _tasks(steps: Sequence[StepRecord]) -> Iterator[Line]:
    rows: list[tuple[Cells, str]] = [(TASK_HEAD, "dim")]
    for step in steps:
        row, value = make_row(step), _value(step)
        usage = _mapping(value.get("usage"))
        rounds = value.get("iterations")
        state = row_state(row) + (
            f", {pluralize(rounds, 'round')}" if isinstance(rounds, int) else ""
        )
        title = f"{sign(row.state)} {one_line(row.title)}"
        cells = (title, state, *_usage_cells(value, usage), clock(row.duration))
        rows.append((cells, _row_colour(row)))
        inner = value.get("tasks")
        if isinstance(inner, Mapping):  # of a loop, a map or a manager
            rows += [_inner_task(name, _mapping(one)) for name, one in inner.items()]
    if len(rows) > 1:
        yield from _table(rows)
    for step in steps:
        yield from _failure_lines(step)


def _inner_task(name: str, value: Mapping[str, Json]) -> tuple[Cells, str]:
    usage, duration = _mapping(value.get("usage")), value.get("duration")
    time = clock(duration) if isinstance(duration, int | float) else NOTHING
    return (f"    {one_line(name)}", "", *_usage_cells(value, usage), time), ""


def _usage_cells(value: Mapping[str, Json], usage: Mapping[str, Json]) -> Cells:
    """The agent of a task and its usage; empty for a task that used no model."""
    agent, turns = value.get("agent"), value.get("turns", usage.get("calls") or None)
    tokens = [count for name in ("input", "output") if isinstance(count := usage.get(name), int)]
    return (
        one_line(agent) if isinstance(agent, str) and agent else NOTHING,
        str(turns) if isinstance(turns, int) else NOTHING,
        f"{_about(usage)}{short(sum(tokens))}" if usage.get("calls") else NOTHING,
        _cost(usage) if usage.get("calls") else NOTHING,
    )


def _value(step: StepRecord) -> Mapping[str, Json]:
    """The value of a step, or the partial output of one that failed."""
    match step.outcome:
        case Succeeded(value):
            return _mapping(value)
        case Failed(failure):
            return _mapping(failure.output)
    return {}


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
