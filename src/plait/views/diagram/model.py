"""Diagrams of flows: nodes in layers and edges between them.

    make_diagram   a file → nodes and edges: of a graph, the phases of a workflow, tasks
    layout         nodes in layers: as deep as the longest path from the start; few crossings
    svg, text      modules that draw a diagram

A diagram shows what authors wrote (names, conditions, ids of tools) and how often a run visited a
node; it has no values of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from plait.core.documents import nodes
from plait.core.errors import shorten
from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.values import json_text
from plait.engine.events import StepFinished
from plait.engine.outcome import Failed, Outcome, Succeeded
from plait.engine.paths import (
    MANAGER,
    TASKS,
    is_below,
    is_call_name,
    last_name,
    name_key,
    parent_path,
    split_name,
    split_path,
)
from plait.lang.languages import language_by_shape
from plait.program.graph.graph_step import node_name
from plait.schema import ACTION_FIELDS

if TYPE_CHECKING:
    from plait.engine.journal import Journal
    from plait.lang.directive.split import DirectiveParts

NodeShape: TypeAlias = Literal[
    "start", "tool", "shell", "gate", "return", "foreach", "phase", "step", "task", "end"
]
Style: TypeAlias = Literal["plain", "error"]
OTHERWISE: Final = "otherwise"
"""The label of an edge without a condition beside edges with one."""
AGAIN: Final = "again"
"""The label of the edge that closes a loop of tasks begins so."""
LABEL: Final = 34
"""Characters of a label; the tooltip has all of it."""


@dataclass(frozen=True, slots=True)
class DiagramNode:
    name: str
    shape: NodeShape
    about: str = ""
    """The tool, the shell text or the description."""
    visits: int = 0
    """A visit that runs now counts."""
    failed: bool = False
    running: bool = False


@dataclass(frozen=True, slots=True)
class DiagramEdge:
    start: str
    to: str
    label: str = ""
    style: Style = "plain"
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Diagram:
    title: str
    nodes: tuple[DiagramNode, ...]
    edges: tuple[DiagramEdge, ...] = ()
    is_run: bool = False
    """It shows the visits of a run."""


# ── from a document ──────────────────────────────────────────────────────


def make_diagram(document: nodes.Node, title: str) -> Diagram:
    """The diagram of a flow file of any kind, also of one with problems.

    `title` is for a flow without a name.
    """
    title = _word(document, "name") or title
    language = language_by_shape(document)
    match language and language.kind:
        case "graph":
            return _graph(document, title)
        case "ensemble":
            return _ensemble(document, title)
    return _workflow(document, title)


def directive_diagram(parts: DirectiveParts, title: str) -> Diagram:
    """The agent of a directive, and the tools that it may call."""
    head = parts.head
    permissions = head.get("permissions")
    holder, key = (
        (permissions, "tools") if isinstance(permissions, nodes.Mapping) else (head, "permissions")
    )
    tools = dict.fromkeys(tool for tool in _words(holder, key) if tool != "None")
    title = _word(head, "name") or title
    model = _word(head, "model") or _word(head.get("model"), "name")
    about = _first_line(_word(head, "description")) or model or "a prompt"
    agent = DiagramNode(title, "task", about)
    drawn = [DiagramNode(tool, "tool") for tool in tools if tool != title]
    edges = tuple(DiagramEdge(title, node.name, "may call") for node in drawn)
    return Diagram(title, (agent, *drawn), edges)


def _graph(document: nodes.Node, title: str) -> Diagram:
    body = document.get("config") if isinstance(document, nodes.Mapping) else None
    if not isinstance(body, nodes.Mapping) or body.get("nodes") is None:
        body = document if isinstance(document, nodes.Mapping) else None
    entries = _entries(body, "nodes")
    drawn = [DiagramNode(name, _shape(node), _about(node)) for name, node in entries]
    edges = [edge for name, node in entries for edge in _edges(name, node)]
    known = {node.name for node in drawn}
    start = _word(body, "start")
    ordered = sorted(drawn, key=lambda node: node.name != start)
    return Diagram(title, tuple(ordered), tuple(one for one in edges if one.to in known))


def _shape(node: nodes.Node) -> NodeShape:
    kind = _word(node, "type")
    if kind in ("gate", "return", "foreach"):
        return kind  # type: ignore[return-value]  # one of these three
    if _has(node, "over"):
        return "foreach"
    action = node.get("action") if isinstance(node, nodes.Mapping) else None
    if _word(node, "shell") or _word(action, "shell"):
        return "shell"
    if _has(node, "tool", "item_id", "action"):
        return "tool"
    return "return" if _has(node, "output", "return") else "gate"


def _about(node: nodes.Node) -> str:
    action = node.get("action") if isinstance(node, nodes.Mapping) else None
    ids = [_word(one, key) for key in ("tool", "item_id") for one in (node, action)]
    shell = _first_line(_word(node, "shell") or _word(action, "shell"))
    over = f"each of {_word(node, 'over') or 'a list'}: " if _has(node, "over") else ""
    return over + next(filter(None, ids), shell)


def _edges(name: str, node: nodes.Node) -> Iterator[DiagramEdge]:
    following = node.get("next") if isinstance(node, nodes.Mapping) else None
    edges = following.items if isinstance(following, nodes.Sequence) else (following,)
    rest = OTHERWISE if any(_has(edge, "when") for edge in edges if edge is not None) else ""
    for edge in edges:
        match edge:
            case nodes.Scalar(str(to)):
                yield DiagramEdge(name, to, rest)
            case nodes.Mapping():
                yield DiagramEdge(name, _word(edge, "to"), _condition(edge.get("when")) or rest)
    if to := _word(node, "on_error"):
        yield DiagramEdge(name, to, "on error", "error")


OPERATORS: Final = {"eq": "=", "ne": "≠", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤"}


def _condition(node: nodes.Node | None) -> str:
    """A condition as one line."""
    match node:
        case None:
            return ""
        case nodes.Mapping():
            for name, word in (("all", " and "), ("any", " or ")):
                if isinstance(parts := node.get(name), nodes.Sequence):
                    return word.join(_condition(part) for part in parts.items)
            if (inner := node.get("not")) is not None:
                return f"not ({_condition(inner)})"
            op, value = _word(node, "op") or "eq", node.get("value")
            operand = "" if value is None else f" {json_text(value.data())}"
            return f"{_word(node, 'path')} {OPERATORS.get(op, op)}{operand}"
    return str(node.data())


PHASES: Final = ("setup", "map", "reduce", "merge")


def _workflow(document: nodes.Node, title: str) -> Diagram:
    steps = document if isinstance(document, nodes.Sequence) else None
    for key in ("steps", "commands"):
        found = document.get(key) if isinstance(document, nodes.Mapping) else None
        steps = found if steps is None and isinstance(found, nodes.Sequence) else steps
    if steps is not None:
        return _in_a_row(title, [_step(at, step) for at, step in enumerate(steps.items)])
    parts = [(key, document.get(key)) for key in PHASES if isinstance(document, nodes.Mapping)]
    phases = [DiagramNode(key, "phase", _steps_in(node)) for key, node in parts if node is not None]
    return _in_a_row(title, phases)


def _in_a_row(title: str, drawn: Sequence[DiagramNode]) -> Diagram:
    pairs = pairwise(drawn)
    return Diagram(
        title, tuple(drawn), tuple(DiagramEdge(one.name, other.name) for one, other in pairs)
    )


def _step(at: int, node: nodes.Node) -> DiagramNode:
    kind, title = _kind(node), _title(node)
    about = f"{kind}: {title}" if title else kind
    return DiagramNode(_word(node, "id") or str(at), "step", about)


def _kind(step: nodes.Node) -> str:
    return next((key for key in ACTION_FIELDS if _has(step, key)), "step")


def _title(step: nodes.Node) -> str:
    text = str(step.data()) if isinstance(step, nodes.Scalar) else ""
    return _first_line(_word(step, "name") or _word(step, _kind(step)) or text)


def _steps_in(node: nodes.Node) -> str:
    steps = node
    for key in ("steps", "agent_template", "commands"):
        inner = steps.get(key) if isinstance(steps, nodes.Mapping) else None
        steps = steps if inner is None else inner
    if not isinstance(steps, nodes.Sequence):
        return ""
    titles = ", ".join(_title(step) or _kind(step) for step in steps.items)
    number = len(steps.items)
    return shorten(titles if number < 2 else f"{number} steps: {titles}", LABEL)


def _ensemble(document: nodes.Node, title: str) -> Diagram:
    """Tasks, and edges from the tasks in their context; in sequence if there are none."""
    if _word(document, "workflow") == "hierarchical":
        return _manager_diagram(document, title)
    tasks = _tasks(document)
    maps = _entries_in(document, "map")
    each = {task: _over(one) for one in maps for task in _words(one, "task")}
    drawn = [
        DiagramNode(
            name,
            "foreach" if name in each else "task",
            each.get(name, "") + _first_line(_word(node, "description")),
        )
        for name, node in tasks
    ]
    edges = [DiagramEdge(other, name) for name, node in tasks for other in _words(node, "context")]
    edges += [edge for one in maps for edge in _map_edges(one)]
    if not edges and _word(document, "workflow") != "parallel":
        edges += _in_a_row(title, drawn).edges
    edges += [edge for one in _entries_in(document, "loops") for edge in _loop_edges(one)]
    known = {node.name for node in drawn}
    between = dict.fromkeys(one for one in edges if {one.start, one.to} <= known)
    return Diagram(title, tuple(drawn), tuple(between))


def _over(node: nodes.Node) -> str:
    """The items of a map: an input, the output of a task, or a list in the file."""
    items = node.get("items") if isinstance(node, nodes.Mapping) else None
    return f"each of {_word(node, 'items') or _word(items, 'task') or 'a list'}: "


def _tasks(document: nodes.Node) -> list[tuple[str, nodes.Node]]:
    """By the names that other tasks use."""
    found = document.get("tasks") if isinstance(document, nodes.Mapping) else None
    if isinstance(found, nodes.Sequence):
        each = enumerate(found.items)
        return [(_word(node, "id") or _word(node, "name") or str(at), node) for at, node in each]
    return _entries(document, "tasks")


def _entries_in(document: nodes.Node, key: str) -> Sequence[nodes.Node]:
    """A list, or the one entry that stands for it."""
    found = document.get(key) if isinstance(document, nodes.Mapping) else None
    return found.items if isinstance(found, nodes.Sequence) else [] if found is None else [found]


def _map_edges(node: nodes.Node) -> Iterator[DiagramEdge]:
    """From the task that makes the items to the task per item, and on to the reduce task."""
    items = node.get("items") if isinstance(node, nodes.Mapping) else None
    for task in _words(node, "task"):
        if (made_by := _word(items, "task")) != "":
            yield DiagramEdge(made_by, task, "each item")
        if (reduce := _word(node, "reduce")) != "":
            yield DiagramEdge(task, reduce)


def _loop_edges(node: nodes.Node) -> Iterator[DiagramEdge]:
    """From the last task of a loop back to its first."""
    if tasks := _words(node, "tasks"):
        until = _condition(node.get("until")) if isinstance(node, nodes.Mapping) else ""
        yield DiagramEdge(tasks[-1], tasks[0], f"{AGAIN} until {until}" if until else AGAIN)


def _manager_diagram(document: nodes.Node, title: str) -> Diagram:
    """A manager, and the workers to whom it may delegate."""
    agents = dict(_entries(document, "agents"))
    tasks = _tasks(document)
    roles = dict.fromkeys(role for _, node in tasks if (role := _role_in(node, agents)))
    named = f"delegates: {', '.join(name for name, _ in tasks)}"
    workers = [DiagramNode(role, "task", "worker") for role in roles]
    edges = tuple(DiagramEdge(MANAGER, role) for role in roles)
    return Diagram(title, (DiagramNode(MANAGER, "task", shorten(named, LABEL)), *workers), edges)


def _role_in(task: nodes.Node, agents: Mapping[str, nodes.Node]) -> str:
    """The role of the agent of a task, which has a name or stands in the task."""
    inline = task.get("agent") if isinstance(task, nodes.Mapping) else None
    return _word(agents.get(_word(task, "agent"), inline), "role")


def _entries(node: nodes.Node | None, key: str) -> list[tuple[str, nodes.Node]]:
    found = node.get(key) if isinstance(node, nodes.Mapping) else None
    return (
        [(str(name.value), one) for name, one in found.entries]
        if isinstance(found, nodes.Mapping)
        else []
    )


def _word(node: nodes.Node | None, key: str) -> str:
    found = node.get(key) if isinstance(node, nodes.Mapping) else None
    return found.value if isinstance(found, nodes.Scalar) and isinstance(found.value, str) else ""


def _words(node: nodes.Node, key: str) -> list[str]:
    found = node.get(key) if isinstance(node, nodes.Mapping) else None
    items = found.items if isinstance(found, nodes.Sequence) else (found,)
    return [str(one.value) for one in items if isinstance(one, nodes.Scalar)]


def _has(node: nodes.Node, *keys: str) -> bool:
    return isinstance(node, nodes.Mapping) and any(node.get(key) is not None for key in keys)


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return shorten(lines[0], LABEL) if lines else ""


# ── the visits of a run ──────────────────────────────────────────────────


Visit: TypeAlias = tuple[str, bool] | tuple[str, bool, int | None]
"""A visit: the node, whether it failed, and the number of the edge that followed, if recorded."""


def mark_visits(diagram: Diagram, visits: Iterable[Visit], running: Sequence[str] = ()) -> Diagram:
    """The diagram with the visits of a run, which are in their order.

    `running`: the nodes that are visited now, after all those visits.
    """
    made: list[Visit] = [*visits, *((name, False) for name in running)]
    counts: dict[str, int] = {}
    failed = {visit[0] for visit in made if visit[1]}
    for name, *_ in made:
        counts[name] = counts.get(name, 0) + 1
    taken: dict[int, int] = {}
    edges_from: dict[str, list[tuple[int, DiagramEdge]]] = {}
    for at, edge in enumerate(diagram.edges):
        edges_from.setdefault(edge.start, []).append((at, edge))
    for one, other in pairwise(made):
        number = _edge_taken(edges_from.get(one[0], ()), one, other[0])
        if number is not None:
            taken[number] = taken.get(number, 0) + 1
    drawn = tuple(
        replace(
            node,
            visits=counts.get(node.name, 0),
            failed=node.name in failed,
            running=node.name in running,
        )
        for node in diagram.nodes
    )
    edges = tuple(replace(edge, taken=taken.get(at, 0)) for at, edge in enumerate(diagram.edges))
    return replace(diagram, nodes=drawn, edges=edges, is_run=True)


def mark_tasks(diagram: Diagram, visits: Iterable[Visit], running: Sequence[str] = ()) -> Diagram:
    """The same for tasks, which have no order: an edge was taken as often as both its tasks were done.

    A loop was closed before every visit but the first.  A manager delegates as often as others work.
    """
    marked = mark_visits(diagram, visits, running)
    done = {node.name: node.visits for node in marked.nodes}

    def taken(edge: DiagramEdge) -> int:
        start, to = done[edge.start], done[edge.to]
        if edge.label.startswith(AGAIN):
            return max(to - 1, 0) if start else 0
        return to if edge.start == MANAGER and start else min(start, to)

    edges = tuple(replace(one, taken=taken(one)) for one in diagram.edges)
    return replace(marked, edges=edges)


def task_visits(journal: Journal) -> list[Visit]:
    """The tasks of an ensemble that have ended, and the work that a manager delegated."""
    ended: dict[str, Visit] = {}
    for stamped in journal.events():
        match stamped.event:
            case StepFinished(path=path, title=title, outcome=outcome) if is_below(path, TASKS):
                if (name := task_at(path, title)) is not None:
                    ended[path] = (name, isinstance(outcome, Failed))
    return list(ended.values())


def task_at(path: str, title: str) -> str | None:
    """The node of a step of an ensemble, if it has one."""
    above, name = split_path(path)
    match split_name(name):
        case "task", key:
            return key
        case "item", _:
            return name_key(last_name(above))
        case "reduce", _:
            return title
        case "work", _ if is_call_name(last_name(above)):
            return title
        case "manager", _ if above == TASKS:
            return MANAGER
    return None


def graph_visits(journal: Journal, part: str) -> list[Visit]:
    """The visits of a graph, or the steps of a workflow, in their order."""
    found = [known for known in journal.steps_in(part) if is_visit(known.path, part)]
    return [
        (node_name(known.path), isinstance(known.outcome, Failed), _edge_in(known.outcome))
        for known in found
    ]


def is_visit(path: str, part: str) -> bool:
    """Is it directly below this part, and not an item or a hook?"""
    return parent_path(path) == part and ":" not in last_name(path)


def _edge_in(outcome: Outcome) -> int | None:
    match outcome:
        case Succeeded({"edge": int(number)}):
            return number
    return None


def _edge_taken(leaving: Sequence[tuple[int, DiagramEdge]], visit: Visit, to: str) -> int | None:
    """The edge that followed a visit: by its number, else the first one that leads there."""
    edges = [(at, edge) for at, edge in leaving if edge.style == "plain"]
    number = visit[2] if len(visit) == 3 else None
    if number is not None and 0 < number <= len(edges) and edges[number - 1][1].to == to:
        return edges[number - 1][0]
    errors = [(at, edge) for at, edge in leaving if edge.style == "error"]
    likely = [*errors, *edges] if visit[1] else [*edges, *errors]
    return next((at for at, edge in likely if edge.to == to), None)


# ── layout ───────────────────────────────────────────────────────────────

ROUNDS: Final = 8
"""How often the order of the layers is improved."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Layers from the top, each from the left: names of nodes, and of bends of edges."""

    layers: tuple[tuple[str, ...], ...]
    routes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By the number of an edge: the nodes and bends that it passes, both ends included."""
    back: frozenset[int] = frozenset()
    """The edges that lead back up."""


def layout(diagram: Diagram) -> Layout:
    names = [node.name for node in diagram.nodes]
    back = _find_back_edges(names, diagram.edges)
    forward = [(at, one) for at, one in enumerate(diagram.edges) if at not in back]
    # A label needs a layer between the nodes.
    depth = _depths(names, [(one.start, one.to, 2 if one.label else 1) for _, one in forward])
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    routes: dict[int, tuple[str, ...]] = {}
    for at, edge in forward:
        bends = [f"\0{at}:{level}" for level in range(depth[edge.start] + 1, depth[edge.to])]
        for level, bend in enumerate(bends, depth[edge.start] + 1):
            layers[level].append(bend)
        routes[at] = (edge.start, *bends, edge.to)
    return Layout(tuple(map(tuple, _with_few_crossings(layers, routes))), routes, back)


def _find_back_edges(names: Sequence[str], edges: Sequence[DiagramEdge]) -> frozenset[int]:
    """The edges that close a cycle, searched from the first node."""
    leaving: dict[str, list[int]] = {name: [] for name in names}
    for at, edge in enumerate(edges):
        leaving[edge.start].append(at)
    back: set[int] = set()
    seen: set[str] = set()
    for first in names:
        # Without recursion: a graph may have a path of a thousand nodes.
        path: list[tuple[str, Iterator[int]]] = (
            [] if first in seen else [(first, iter(leaving[first]))]
        )
        open_: set[str] = {first} if path else set()
        seen.add(first)
        while path:
            name, rest = path[-1]
            found = next(rest, None)
            if found is None:
                open_.discard(name)
                path.pop()
            elif (to := edges[found].to) in open_:
                back.add(found)
            elif to not in seen:
                seen.add(to)
                open_.add(to)
                path.append((to, iter(leaving[to])))
    return frozenset(back)


def _depths(names: Sequence[str], pairs: Sequence[tuple[str, str, int]]) -> dict[str, int]:
    """The length of the longest path to each node."""
    depth = dict.fromkeys(names, 0)
    waits = dict.fromkeys(names, 0)
    leaving: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
    for one, other, length in pairs:
        leaving[one].append((other, length))
        waits[other] += 1
    ready = [name for name in names if not waits[name]]
    while ready:
        one = ready.pop()
        for other, length in leaving[one]:
            depth[other] = max(depth[other], depth[one] + length)
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return depth


def _with_few_crossings(
    layers: list[list[str]], routes: Mapping[int, tuple[str, ...]]
) -> list[list[str]]:
    """Order each layer by the mean position of the neighbours, downwards and upwards in turn."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for route in routes.values():
        for one, other in pairwise(route):
            below.setdefault(one, []).append(other)
            above.setdefault(other, []).append(one)
    for number in range(ROUNDS):
        down = number % 2 == 0
        order = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
        for level in order:
            beside = layers[level - 1 if down else level + 1]
            place = {name: at for at, name in enumerate(beside)}
            layers[level] = _by_middle(layers[level], above if down else below, place)
    return layers


def _by_middle(
    layer: Sequence[str], neighbours: Mapping[str, Sequence[str]], place: Mapping[str, int]
) -> list[str]:
    middles: dict[str, float] = {}
    for at, name in enumerate(layer):
        found = [place[one] for one in neighbours.get(name, ()) if one in place]
        middles[name] = sum(found) / len(found) if found else float(at)
    return sorted(layer, key=lambda name: middles[name])
