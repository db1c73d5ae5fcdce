"""Check a graph: edges, nodes, names, conditions.

A name of the state that no node assigns is a warning, because it may stay empty in a run.  An edge
to a missing node, a field without a meaning, and a name that cannot have a value are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from plait import schema
from plait.core.documents import nodes
from plait.core.errors import (
    InputError,
    PlaitError,
    Problem,
    closest_name,
    format_names,
    with_article,
)
from plait.core.hints import Final
from plait.core.json_schema import is_schema
from plait.core.records import dataclass
from plait.core.source import Span
from plait.lang.analysis.names import builtin_names
from plait.lang.analysis.scopes import TemplateField, find_templates
from plait.lang.analysis.templates import check_template, unknown_input
from plait.lang.findings import Finding, from_format, sort_findings
from plait.lang.flow_text import FlowText
from plait.lang.hooks import hook_findings
from plait.lang.parameters import parse_parameters, secret_names
from plait.lang.workflow.shared_checkout import shared_by_items
from plait.program.graph.calls import full_tool_id
from plait.program.graph.spec import NodeKind
from plait.schema import Fields
from plait.scope import Scope
from plait.template.conditions import check as check_condition
from plait.template.grammar import parse_path
from plait.template.nodes import ContextPlaceholder, Path, placeholders
from plait.template.template import compile_template

CLOCK: Final = ("_now", "_timestamp")
OWN_STATE: Final = "_last_error"
"""The name in the state that the engine sets."""
MEANT_FOR: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # field: the field that it needs, and the kinds of nodes that may have it
    "over": ("foreach", ("foreach",)),
    "as": ("foreach", ("foreach",)),
    "collect": ("foreach", ("foreach",)),
    "parallel": ("foreach", ("foreach",)),
    "max_concurrency": ("foreach", ("foreach",)),
    "on_empty": ("foreach", ("foreach",)),
    "output": ("return", ("return",)),
    "tool": ("action", ("tool", "foreach")),
    "shell": ("action", ("tool", "foreach")),
    "interpreter": ("action", ("tool", "foreach")),
    "action": ("action", ("tool", "foreach")),
    "params": ("action", ("tool", "foreach")),
    "cache_result": ("action", ("tool", "foreach")),
    "retry": ("action", ("tool", "foreach")),
    "next": ("node that leads on", ("tool", "gate", "foreach")),
    "assign": ("node that leads on", ("tool", "gate", "foreach")),
}
ACTIONS: Final = ("tool", "action", "shell")
"""Fields with the action of a node."""
NOTHING: Final = Scope()
"""A scope without names: numbers and durations of a graph are literals."""
KINDS: Final[dict[str, NodeKind]] = {
    "action": "tool",
    "gate": "gate",
    "return": "return",
    "foreach": "foreach",
}


# ── reading ──────────────────────────────────────────────────────────────


def graph_body(document: nodes.Mapping) -> Fields:
    """The map with the nodes: the file, or its `config`."""
    config = document.get("config")
    if isinstance(config, nodes.Mapping) and document.get("nodes") is None:
        return Fields("graph_body", config, NOTHING)
    return Fields("graph", document, NOTHING)


def node_kind(fields: Fields) -> NodeKind:
    """The `type` of a node, else the kind that its fields imply."""
    if (named := fields.text("type")) is not None and named in KINDS:
        return KINDS[named]
    if fields.has("over"):
        return "foreach"
    if any(fields.has(field) for field in ACTIONS):
        return "tool"
    return "return" if fields.has("output") else "gate"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The tool that a node calls, as written."""

    node: nodes.Scalar
    is_directive: bool
    """Its `item_type` is directive."""

    def id(self) -> str | None:
        """The id; None if it has placeholders."""
        template = compile_template(str(self.node.value), "graph")
        return (
            None
            if template.placeholders
            else full_tool_id(str(template.render({})), self.is_directive)
        )


def node_tool(fields: Fields) -> NamedTool | None:
    """The tool of a node or of its `action`."""
    inner = fields.child("action") or fields
    node = inner.get("tool")
    if not isinstance(node, nodes.Scalar):
        return None
    return NamedTool(node, inner.form == "action" and inner.text("item_type") == "directive")


def mentions_clock(node: nodes.Node) -> bool:
    match node:
        case nodes.Scalar(str(text)):
            return any(name in text for name in CLOCK)
        case nodes.Sequence(items):
            return any(map(mentions_clock, items))
        case nodes.Mapping(entries):
            return any(mentions_clock(value) for _, value in entries)
    return False


# ── checking ─────────────────────────────────────────────────────────────


def check_flow(source: FlowText, names: Iterable[str], project: str | None) -> list[Finding]:  # noqa: ARG001 - of Language
    return check_graph(source.document)


def check_graph(document: nodes.Node) -> list[Finding]:
    """All findings of a graph, sorted by place."""
    found = [from_format(problem) for problem in schema.validate(document, schema.GRAPH)]
    if isinstance(document, nodes.Mapping):
        try:
            found += _Graph(document).findings()
        except InputError as error:
            found += map(Finding, error.problems)
    return sort_findings(found)


@dataclass(frozen=True, slots=True)
class _Target:
    """A node that is named as the next one."""

    name: str
    span: Span
    field: str


class _Graph:
    def __init__(self, document: nodes.Mapping) -> None:
        self.document = document
        self.body = graph_body(document)
        every = self.body.get("nodes")
        entries = every.entries if isinstance(every, nodes.Mapping) else ()
        self.names = dict.fromkeys(str(key.value) for key, _ in entries)
        self.nodes = {
            str(key.value): (key, Fields("node", node, NOTHING))
            for key, node in entries
            if isinstance(node, nodes.Mapping)
        }
        self.start = self.body.get("start")
        self.targets = {name: list(_targets(fields)) for name, (_, fields) in self.nodes.items()}

    def findings(self) -> Iterator[Finding]:
        yield from self._two_bodies()
        yield from map(Finding, self._check_edges())
        for name, (_, fields) in self.nodes.items():
            yield from map(Finding, _check_node_fields(name, fields))
            yield from _conditions(fields)
            yield from shared_by_items(fields.node)
        yield from self._unreachable()
        yield from self._schema()
        yield from hook_findings(self.body.get("hooks"))
        yield from _Names(self).findings()

    def _two_bodies(self) -> Iterator[Finding]:
        both = [key for key in ("nodes", "config") if self.document.get(key) is not None]
        if len(both) == 2:
            what, fix = (
                "a graph is at the top of a file or below config, not both",
                "keep one of them",
            )
            yield Finding(
                Problem(what, self.document.key_span("config"), fix, code="contradiction")
            )
        missing = self.body.form == "graph" and self.document.get("nodes") is not None
        if missing and self.document.get("start") is None:
            what, fix = "a graph needs 'start': its first node", "add start: …"
            yield Finding(Problem(what, self.document.key_span("nodes"), fix, code="missing-field"))

    def _check_edges(self) -> Iterator[Problem]:
        start = self.start
        if isinstance(start, nodes.Scalar) and self.nodes:
            yield from self._check_target(_Target(str(start.value), start.span, "start"))
        for targets in self.targets.values():
            for target in targets:
                yield from self._check_target(target)

    def _check_target(self, target: _Target) -> Iterator[Problem]:
        known = self.names
        if target.name in known:
            return
        guess = closest_name(target.name, known)
        fix = f"did you mean '{guess}'? " if guess else ""
        what = f"'{target.field}' leads to '{target.name}', but this graph has no such node"
        yield Problem(
            what,
            target.span,
            f"{fix}nodes: {format_names(list(known), most=20)}",
            code="unknown-node",
        )

    def _unreachable(self) -> Iterator[Finding]:
        if not isinstance(self.start, nodes.Scalar) or str(self.start.value) not in self.nodes:
            return
        found, waiting = {str(self.start.value)}, [str(self.start.value)]
        while waiting:
            for target in self.targets.get(waiting.pop(), ()):
                if target.name in self.nodes and target.name not in found:
                    found.add(target.name)
                    waiting.append(target.name)
        for name, (key, _) in self.nodes.items():
            if name not in found:
                what, fix = f"no edge leads to node '{name}'", "add an edge to it, or remove it"
                yield Finding(Problem(what, key.span, fix, code="unreachable"), "warning")

    def _schema(self) -> Iterator[Finding]:
        inputs, config_schema = self.document.get("inputs"), self.document.get("config_schema")
        if inputs is not None and config_schema is not None:
            what, fix = "inputs and config_schema both declare the inputs", "keep one of them"
            yield Finding(
                Problem(what, self.document.key_span("config_schema"), fix, code="contradiction")
            )
        if isinstance(config_schema, nodes.Mapping) and not is_schema(config_schema.data()):
            what, fix = (
                "this is not JSON Schema",
                "every keyword has its form: type: object, required: [a]",
            )
            yield Finding(
                Problem(what, self.document.key_span("config_schema"), fix, code="wrong-type")
            )
        if inputs is not None and not schema.validate(inputs, schema.PARAMETERS):
            parse_parameters(inputs, secret_names(self.document))


def _targets(fields: Fields) -> Iterator[_Target]:
    node, other = fields.get("next"), fields.get("on_error")
    items = node.items if isinstance(node, nodes.Sequence) else (node,)
    for item in items:
        match item:
            case nodes.Scalar(str(name)):
                yield _Target(name, item.span, "next")
            case nodes.Mapping():
                to = item.get("to")
                if isinstance(to, nodes.Scalar) and isinstance(to.value, str):
                    yield _Target(to.value, to.span, "to")
    if isinstance(other, nodes.Scalar) and isinstance(other.value, str):
        yield _Target(other.value, other.span, "on_error")


def _check_node_fields(name: str, fields: Fields) -> Iterator[Problem]:
    """Fields that a node of its kind lacks or may not have."""
    kind = node_kind(fields)
    word = next(word for word, one in KINDS.items() if one == kind)
    for field, (wanted, kinds) in MEANT_FOR.items():
        if fields.has(field) and kind not in kinds:
            what = f"'{field}' has no meaning in {with_article(word)}: it belongs to {with_article(wanted)}"
            yield Problem(
                what,
                fields.span(field),
                "remove it, or change the node's type",
                code="misplaced-field",
            )
    if kind == "foreach" and not fields.has("over"):
        yield _lacks(fields, "a foreach needs 'over': the items", "add over: ${state.…}")
    actions = [field for field in ACTIONS if fields.has(field)]
    if kind in ("tool", "foreach") and not actions:
        yield _lacks(
            fields,
            f"node '{name}' needs 'tool' or 'shell': what it does",
            "add tool: … or shell: …",
        )
    if len(actions) > 1:
        what, fix = f"{' and '.join(map(repr, actions))} are both actions", "keep one of them"
        yield Problem(what, fields.span(actions[-1]), fix, code="contradiction")
    elif fields.has("shell") and kind in ("tool", "foreach"):
        for field in ("params", "cache_result"):
            if fields.has(field):
                what, fix = (
                    f"'{field}' has no meaning for shell text",
                    "remove it; write the values into the text",
                )
                yield Problem(what, fields.span(field), fix, code="misplaced-field")
    if fields.has("interpreter") and not fields.has("shell"):
        what, fix = (
            "'interpreter' is the shell for 'shell', which is missing",
            "add shell: …, or remove it",
        )
        yield Problem(what, fields.span("interpreter"), fix, code="misplaced-field")
    if fields.has("action") and fields.has("params"):
        what, fix = "the parameters of an action belong into it", "move params below action"
        yield Problem(what, fields.span("params"), fix, code="misplaced-field")
    loop = fields.text("as")
    if loop is not None and loop in builtin_names("graph"):
        what = f"'{loop}' is a name of every graph, so no item can have it"
        yield Problem(what, fields.span("as"), "choose another name", code="shadowed-name")


def _lacks(fields: Fields, what: str, fix: str) -> Problem:
    entries = fields.node.entries
    where = entries[0][0].span if entries else fields.node.span
    return Problem(what, where, fix, code="missing-field")


def _conditions(fields: Fields) -> Iterator[Finding]:
    node = fields.get("next")
    edges = node.items if isinstance(node, nodes.Sequence) else (node,)
    is_open = False
    for edge in edges:
        if not isinstance(edge, nodes.Mapping):
            continue
        if is_open:
            what = "the edge before this one is always taken, so this one never is"
            yield Finding(
                Problem(what, edge.key_span("to"), "put it before", code="unreachable"), "warning"
            )
        when = edge.get("when")
        is_open = is_open or when is None
        if isinstance(when, nodes.Mapping):
            yield from map(
                Finding, check_condition(when.data(), locate=partial(nodes.span_at, when))
            )


# ── names ────────────────────────────────────────────────────────────────


class _Names:
    """Compares the names that nodes use with the state and the inputs."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.assigned = {OWN_STATE, *nodes.map_keys(graph.body.get("state"))}
        for _, fields in graph.nodes.values():
            self.assigned |= {
                *nodes.map_keys(fields.get("assign")),
                *filter(None, [fields.text("collect")]),
            }
        self.inputs = _input_names(graph.document)

    def findings(self) -> Iterator[Finding]:
        for field in find_templates(self.graph.document, "graph").fields:
            yield from check_template(field, "graph")
            node, place = self._place(field)
            for path, span in _template_paths(field):
                yield from self._check_path(path, span, node, place)
        for name, (_, fields) in self.graph.nodes.items():
            for path, span in _condition_paths(fields):
                yield from self._check_path(path, span, name, "next", tested=True)

    def _place(self, field: TemplateField) -> tuple[str, str]:
        """The node and the field of a template."""
        path = field.path.removeprefix("config.").removeprefix("nodes.")
        # The name of a node may contain dots.
        ends = [at for at, sign in enumerate(path) if sign == "." and path[:at] in self.graph.nodes]
        name = path[: ends[-1]] if ends else ""
        return name, path[len(name) + 1 :].partition(".")[0].partition("[")[0]

    def _check_path(
        self, path: Path, span: Span, node: str, place: str, *, tested: bool = False
    ) -> Iterator[Finding]:
        first = path.keys[0] if path.keys else None
        _, fields = self.graph.nodes.get(node, (None, None))
        loop = (
            (fields.text("as") or "item")
            if fields is not None and node_kind(fields) == "foreach"
            else None
        )
        match path.root:
            case "state" if first == loop and place in ("tool", "params", "action", "shell"):
                return  # other systems give the item this name
            case "state" if isinstance(first, str) and first not in self.assigned:
                yield Finding(self._never_assigned(path, first, span), "warning")
            case "inputs" if (
                self.inputs is not None and isinstance(first, str) and first not in self.inputs
            ):
                yield Finding(unknown_input(first, self.inputs, span, prefix="inputs.", most=20))
            case "result" if fields is not None and not _has_result(fields, place):
                what = "'result' is the result of a node's action: it exists in its assign and next"
                fix = "assign it in that node, and use state.…"
                yield Finding(Problem(what, span, fix, code="unknown-name"))
            case root if tested and root not in ("state", "inputs", "result", *CLOCK):
                guess = closest_name(root, ("state", "inputs", "result"))
                fix = f"did you mean '{guess}'? " if guess else ""
                fix += "a condition of an edge knows: state, inputs, result"
                yield Finding(Problem(f"unknown variable '{path}'", span, fix, code="unknown-name"))

    def _never_assigned(self, path: Path, name: str, span: Span) -> Problem:
        guess = closest_name(name, self.assigned)
        fix = f"did you mean 'state.{guess}'? " if guess else ""
        known = sorted(self.assigned - {OWN_STATE})
        return Problem(
            f"nothing assigns '{path}', so it stays empty",
            span,
            f"{fix}assigned are: {format_names(known, most=20) if known else 'none'}",
            code="unknown-name",
        )


def _has_result(fields: Fields, place: str) -> bool:
    return node_kind(fields) in ("tool", "foreach") and place in ("assign", "next")


def _template_paths(field: TemplateField) -> Iterator[tuple[Path, Span]]:
    """The paths of a template that have no fallback."""
    try:
        leaf = compile_template(str(field.scalar.value), "graph", source=field.scalar.source()).leaf
    except PlaitError:
        return  # `check_template` reports it
    for placeholder in placeholders(leaf.compiled.parts):
        if (
            not isinstance(placeholder, ContextPlaceholder)
            or placeholder.default is not None
            or len(placeholder.alternatives) != 1
        ):
            continue
        path = placeholder.alternatives[0].origin
        if isinstance(path, Path) and path.keys[-1:] != ("exists",) and not placeholder.filters:
            yield path, Span(leaf.source, placeholder.start, placeholder.end)


def _condition_paths(fields: Fields) -> Iterator[tuple[Path, Span]]:
    """The paths of the conditions that are data."""
    node = fields.get("next")
    for edge in node.items if isinstance(node, nodes.Sequence) else (node,):
        when = edge.get("when") if isinstance(edge, nodes.Mapping) else None
        if isinstance(when, nodes.Mapping):
            yield from _paths_in(when)


def _paths_in(node: nodes.Node) -> Iterator[tuple[Path, Span]]:
    match node:
        case nodes.Sequence(items):
            for item in items:
                yield from _paths_in(item)
        case nodes.Mapping():
            path, op = node.get("path"), node.get("op")
            asks = op is None or op.data() != "exists"
            if (
                isinstance(path, nodes.Scalar)
                and isinstance(path.value, str)
                and path.value
                and asks
            ):
                with suppress(PlaitError):  # the check of the condition reports it
                    yield parse_path(path.value), path.span
            for name in ("any", "all", "not"):
                if (inner := node.get(name)) is not None:
                    yield from _paths_in(inner)


def _input_names(document: nodes.Mapping) -> frozenset[str] | None:
    """The declared inputs; None if the file declares none."""
    inputs, config_schema = document.get("inputs"), document.get("config_schema")
    match inputs:
        case nodes.Sequence(items):
            return frozenset(_input_name(item) for item in items)
        case nodes.Mapping():
            groups = isinstance(schema.select_kind(schema.PARAMETERS, inputs), schema.Record)
            if not groups:
                return frozenset(nodes.map_keys(inputs))
            lists = [inputs.get("required"), inputs.get("optional")]
            every = [item for one in lists if isinstance(one, nodes.Sequence) for item in one.items]
            return frozenset(map(_input_name, every))
    properties = (
        config_schema.get("properties") if isinstance(config_schema, nodes.Mapping) else None
    )
    return frozenset(nodes.map_keys(properties)) if isinstance(properties, nodes.Mapping) else None


def _input_name(item: nodes.Node) -> str:
    name = item.get("name") if isinstance(item, nodes.Mapping) else item
    return str(name.data()) if name is not None else ""
