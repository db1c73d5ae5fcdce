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
from plait.engine.journal import Recorded
from plait.engine.limits import Tally
from plait.engine.outcome import Done, Failed
from plait.views.format import Line, clean, clock, counted, money, short
from plait.views.parts import AGENT, CALL, ENSEMBLE, HOOK, TURN, Row
from plait.views.progress import row_of, told
from plait.views.terminal import aligned
from plait.views.text import asked_line, row_state

INDENT: Final = " " * 6
SIGNS: Final = {"done": ("✓", ""), "failed": ("✗", "red"), "skipped": ("–", "dim")}
NOTHING: Final = "—"
Cells: TypeAlias = tuple[str, ...]


def lines(kind: str, steps: Sequence[Recorded], asked: Tally) -> Iterator[Line]:
    """The steps directly below a part of that kind; and what all lives of the run asked in it."""
    steps = [step for step in steps if _kind_of(step) != HOOK]
    if kind == AGENT:
        yield from _turns(steps, asked)
    elif kind == ENSEMBLE:
        yield from _tasks(steps)
    else:
        yield from (line for step in steps for line in _visit(step))


def _kind_of(step: Recorded) -> str:
    name = step.path.rpartition("/")[2]
    if name.startswith("turn:"):
        return CALL if ".call:" in name else TURN
    return HOOK if name.startswith("hook:") else ""


def _table(rows: Sequence[tuple[Cells, str]]) -> Iterator[Line]:
    for line, (_, colour) in zip(aligned([cells for cells, _ in rows], None), rows, strict=True):
        yield f"{INDENT}{line}".rstrip(), colour


# ── an agent ─────────────────────────────────────────────────────────────

TURN_HEAD: Final = ("TURN", "IN", "OUT", "COST", "TIME")


def _turns(steps: Sequence[Recorded], asked: Tally) -> Iterator[Line]:
    if not steps:
        return
    rows = [_turn(step) if _kind_of(step) == TURN else _call(step) for step in steps]
    head, *table = _table([(TURN_HEAD, "dim"), *rows])
    yield head
    for step, row in zip(steps, table, strict=True):
        yield row
        yield from _why(step)
    calls = sum(_kind_of(step) != TURN for step in steps)
    called = f", {counted(calls, 'call')}" if calls else ""
    yield f"{INDENT}{asked_line(asked)}{called}", "bold"


def _turn(step: Recorded) -> tuple[Cells, str]:
    row = row_of(step, kind=TURN)
    usage = _map(_value(step).get("usage"))
    failed = f"   {row_state(row)}" if row.state != "done" else ""
    cells = (f"{clean(row.title)}{failed}", *_tokens(usage), _cost(usage), clock(step.duration))
    return cells, SIGNS[row.state][1]


def _call(step: Recorded) -> tuple[Cells, str]:
    row = row_of(step, kind=CALL)
    sign, colour = SIGNS[row.state]
    failed = f"   {row_state(row)}" if row.state != "done" else ""
    return (f"  {sign} {clean(row.title)}{failed}", "", "", "", clock(step.duration)), colour


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


def _visit(step: Recorded) -> Iterator[Line]:
    row = row_of(step)
    sign, colour = SIGNS[row.state]
    leads = f" → {clean(row.to)}" if row.to else ""
    failed = f"   {row_state(row)}" if row.state != "done" else ""
    yield f"{INDENT}{sign} {clean(row.title)}{leads}{failed}   {clock(step.duration)}", colour
    yield from _why(step)


def _why(step: Recorded) -> Iterator[Line]:
    if isinstance(step.outcome, Failed):
        for line in told(step.outcome.failure)[1]:
            yield f"{INDENT}    {clean(line, None)}", ""


# ── an ensemble ──────────────────────────────────────────────────────────

TASK_HEAD: Final = ("TASK", "STATE", "BY", "TURNS", "TOKENS", "COST", "TIME")


def _tasks(steps: Sequence[Recorded]) -> Iterator[Line]:
    rows: list[tuple[Cells, str]] = [(TASK_HEAD, "dim")]
    for step in steps:
        row, value = row_of(step), _value(step)
        inner = value.get("tasks")
        rows.append((_task(row, value, f"{SIGNS[row.state][0]} {clean(row.title)}"), SIGNS[row.state][1]))
        if isinstance(inner, Mapping):  # of a loop, a map or a manager
            rows += [_inner_task(name, _map(one)) for name, one in inner.items()]
    if len(rows) > 1:
        yield from _table(rows)
    for step in steps:
        yield from _why(step)


def _task(row: Row, value: Mapping[str, Json], title: str) -> Cells:
    usage = _map(value.get("usage"))
    rounds = value.get("iterations")
    state = row_state(row) + (f", {counted(rounds, 'round')}" if isinstance(rounds, int) else "")
    return (title, state, *_spent(value, usage), clock(row.duration))


def _inner_task(name: str, value: Mapping[str, Json]) -> tuple[Cells, str]:
    usage, took = _map(value.get("usage")), value.get("duration")
    spent = clock(took) if isinstance(took, int | float) else NOTHING
    return (f"    {clean(name)}", "", *_spent(value, usage), spent), ""


def _spent(value: Mapping[str, Json], usage: Mapping[str, Json]) -> Cells:
    """Who did it, and what it took: of a task that asked no model, nothing."""
    agent, turns = value.get("agent"), value.get("turns", usage.get("calls") or None)
    tokens = [count for name in ("input", "output") if isinstance(count := usage.get(name), int)]
    return (
        clean(agent) if isinstance(agent, str) and agent else NOTHING,
        str(turns) if isinstance(turns, int) else NOTHING,
        f"{_about(usage)}{short(sum(tokens))}" if usage.get("calls") else NOTHING,
        _cost(usage) if usage.get("calls") else NOTHING,
    )


def _value(step: Recorded) -> Mapping[str, Json]:
    """What it gave; of one that failed, what there was."""
    match step.outcome:
        case Done(value):
            return _map(value)
        case Failed(failure):
            return _map(failure.output)
    return {}


def _map(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
