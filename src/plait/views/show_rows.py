"""What `plait show` says of the steps of an agent, a graph or an ensemble: their turns, way, tasks.

    agent      turns with what they took, and below each the tools that it called
    graph      visits, each with the node to which it led
    ensemble   tasks: who did them, and what that took

Of what has ended a journal keeps no kinds: a turn, a call and a hook are known by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.core.hints import Final, TypeAlias
from plait.core.values import Json
from plait.engine.journal import StepRecord
from plait.engine.limits import UsageTally
from plait.engine.outcome import Failed, Succeeded
from plait.views.format import Line, clock, money, one_line, pluralize, short
from plait.views.parts import AGENT, CALL, ENSEMBLE, HOOK, TURN, Row
from plait.views.progress import describe_failure, make_row
from plait.views.terminal import format_table
from plait.views.text import row_state, usage_line

INDENT: Final = " " * 6
SIGNS: Final = {"done": ("✓", ""), "failed": ("✗", "red"), "skipped": ("–", "dim")}
NOTHING: Final = "—"
Cells: TypeAlias = tuple[str, ...]


def lines(kind: str, steps: Sequence[StepRecord], asked: UsageTally) -> Iterator[Line]:
    """The steps directly below a part of that kind; and what all lives of the run asked in it."""
    steps = [step for step in steps if _row_kind(step) != HOOK]
    if kind == AGENT:
        yield from _turns(steps, asked)
    elif kind == ENSEMBLE:
        yield from _tasks(steps)
    else:
        yield from (line for step in steps for line in _visit(step))


def _row_kind(step: StepRecord) -> str:
    name = step.path.rpartition("/")[2]
    if name.startswith("turn:"):
        return CALL if ".call:" in name else TURN
    return HOOK if name.startswith("hook:") else ""


def _table(rows: Sequence[tuple[Cells, str]]) -> Iterator[Line]:
    for line, (_, colour) in zip(
        format_table([cells for cells, _ in rows], None), rows, strict=True
    ):
        yield f"{INDENT}{line}".rstrip(), colour


# ── an agent ─────────────────────────────────────────────────────────────

TURN_HEAD: Final = ("TURN", "IN", "OUT", "COST", "TIME")


def _turns(steps: Sequence[StepRecord], asked: UsageTally) -> Iterator[Line]:
    if not steps:
        return
    rows = [_turn(step) if _row_kind(step) == TURN else _call(step) for step in steps]
    head, *table = _table([(TURN_HEAD, "dim"), *rows])
    yield head
    for step, row in zip(steps, table, strict=True):
        yield row
        yield from _why(step)
    calls = sum(_row_kind(step) != TURN for step in steps)
    called = f", {pluralize(calls, 'call')}" if calls else ""
    yield f"{INDENT}{usage_line(asked)}{called}", "bold"


def _turn(step: StepRecord) -> tuple[Cells, str]:
    row = make_row(step, kind=TURN)
    usage = _map(_value(step).get("usage"))
    failed = f"   {row_state(row)}" if row.state != "done" else ""
    cells = (f"{one_line(row.title)}{failed}", *_tokens(usage), _cost(usage), clock(step.duration))
    return cells, SIGNS[row.state][1]


def _call(step: StepRecord) -> tuple[Cells, str]:
    row = make_row(step, kind=CALL)
    sign, colour = SIGNS[row.state]
    failed = f"   {row_state(row)}" if row.state != "done" else ""
    return (f"  {sign} {one_line(row.title)}{failed}", "", "", "", clock(step.duration)), colour


def _tokens(usage: Mapping[str, Json]) -> tuple[str, str]:
    counts, about = (usage.get("input"), usage.get("output")), _about(usage)
    first, second = (f"{about}{short(one)}" if isinstance(one, int) else NOTHING for one in counts)
    return first, second


def _about(usage: Mapping[str, Json]) -> str:
    """In front of tokens that nobody counted."""
    return "~" if usage.get("estimated") else ""


def _cost(usage: Mapping[str, Json]) -> str:
    cost = usage.get("cost")
    return money(cost) if isinstance(cost, int | float) else NOTHING


# ── a graph ──────────────────────────────────────────────────────────────


def _visit(step: StepRecord) -> Iterator[Line]:
    row = make_row(step)
    sign, colour = SIGNS[row.state]
    leads = f" → {one_line(row.to)}" if row.to else ""
    failed = f"   {row_state(row)}" if row.state != "done" else ""
    yield f"{INDENT}{sign} {one_line(row.title)}{leads}{failed}   {clock(step.duration)}", colour
    yield from _why(step)


def _why(step: StepRecord) -> Iterator[Line]:
    if isinstance(step.outcome, Failed):
        for line in describe_failure(step.outcome.failure)[1]:
            yield f"{INDENT}    {one_line(line, None)}", ""


# ── an ensemble ──────────────────────────────────────────────────────────

TASK_HEAD: Final = ("TASK", "STATE", "BY", "TURNS", "TOKENS", "COST", "TIME")


def _tasks(steps: Sequence[StepRecord]) -> Iterator[Line]:
    rows: list[tuple[Cells, str]] = [(TASK_HEAD, "dim")]
    for step in steps:
        row, value = make_row(step), _value(step)
        inner = value.get("tasks")
        rows.append(
            (_task(row, value, f"{SIGNS[row.state][0]} {one_line(row.title)}"), SIGNS[row.state][1])
        )
        if isinstance(inner, Mapping):  # of a loop, a map or a manager
            rows += [_inner_task(name, _map(one)) for name, one in inner.items()]
    if len(rows) > 1:
        yield from _table(rows)
    for step in steps:
        yield from _why(step)


def _task(row: Row, value: Mapping[str, Json], title: str) -> Cells:
    usage = _map(value.get("usage"))
    rounds = value.get("iterations")
    state = row_state(row) + (f", {pluralize(rounds, 'round')}" if isinstance(rounds, int) else "")
    return (title, state, *_usage_cells(value, usage), clock(row.duration))


def _inner_task(name: str, value: Mapping[str, Json]) -> tuple[Cells, str]:
    usage, took = _map(value.get("usage")), value.get("duration")
    spent = clock(took) if isinstance(took, int | float) else NOTHING
    return (f"    {one_line(name)}", "", *_usage_cells(value, usage), spent), ""


def _usage_cells(value: Mapping[str, Json], usage: Mapping[str, Json]) -> Cells:
    """Who did it, and what it took: of a task that asked no model, nothing."""
    agent, turns = value.get("agent"), value.get("turns", usage.get("calls") or None)
    tokens = [count for name in ("input", "output") if isinstance(count := usage.get(name), int)]
    return (
        one_line(agent) if isinstance(agent, str) and agent else NOTHING,
        str(turns) if isinstance(turns, int) else NOTHING,
        f"{_about(usage)}{short(sum(tokens))}" if usage.get("calls") else NOTHING,
        _cost(usage) if usage.get("calls") else NOTHING,
    )


def _value(step: StepRecord) -> Mapping[str, Json]:
    """What it gave; of one that failed, what there was."""
    match step.outcome:
        case Succeeded(value):
            return _map(value)
        case Failed(failure):
            return _map(failure.output)
    return {}


def _map(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
