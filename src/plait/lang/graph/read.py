"""A graph file becomes a graph that can run, or one error with everything that is wrong.

    load_graph    file → document → checked → inputs → nodes
    graph_tool    the same for a tool, of the bytes that were judged

Whatever `plait check` calls an error is an error here, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial

from plait import schema as format
from plait.core import documents
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem, listed
from plait.core.hints import Final
from plait.core.records import dataclass, replace
from plait.core.source import Span
from plait.core.values import Json, Secret
from plait.engine.step import ONCE_ONLY, PLAIN, Policy
from plait.lang.analysis.tool_calls import ToolCall, tool_calls
from plait.lang.common import digest, interpreter_of, on_empty_of, read_limits, retry_of
from plait.lang.environment import Surroundings
from plait.lang.findings import Finding
from plait.lang.graph.check import (
    NOTHING,
    body_of,
    check_graph,
    kind_of_node,
    mentions_clock,
    span_at,
    tool_of,
)
from plait.lang.hooks import read_hooks, tools_of
from plait.lang.loaded import Loaded
from plait.lang.parameters import Parameter, declared, resolve
from plait.program.actions.shell import Shell
from plait.program.graph.calls import Action, Call, ShellCall
from plait.program.graph.walk import Edge, Graph, Loop, Node
from plait.schema import Said, essence, template_of
from plait.schema.graph_tables import MAX_CONCURRENCY, MAX_STEPS
from plait.scope.expressions import read_when
from plait.template.template import Template
from plait.tools.config import checked_params
from plait.tools.items import Header, Item
from plait.tools.spaces import Space

MOST_GRAPHS: Final = 64
"""So many that are called as tools are kept as they were read."""


def load_graph(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,  # noqa: ARG001 - the signature of load_flow; a graph has no profiles
    strict: bool | None = None,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
    document: nodes.Node | None = None,
) -> Loaded:
    """The graph in a file; InputError with everything that is wrong with it or with what it is given.

    `document`: what is in the file, if it was read already.
    """
    plan = read_graph(document or documents.load(path), path)
    return _loaded(plan, path, given or {}, project, strict, max_parallel, environ or {})


def graph_tool(
    data: bytes,
    path: str,
    given: Mapping[str, Json],
    *,
    project: str,
    environ: Mapping[str, str],
    max_parallel: int | None = None,
    strict: bool | None = None,
) -> Loaded:
    """The graph in a file of which these bytes were judged."""
    return _loaded(_read_bytes(data, path), path, given, project, strict, max_parallel, environ)


@lru_cache(maxsize=MOST_GRAPHS)
def _read_bytes(data: bytes, path: str) -> Plan:
    return read_graph(documents.parse(documents.decoded(data, path), path), path)


# ── what a file says, whoever calls it ───────────────────────────────────


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph without inputs, and what it wants to be given."""

    graph: Graph
    parameters: Mapping[str, Parameter]
    schema: Mapping[str, Json] | None
    uses: Mapping[str, Span]
    calls: tuple[ToolCall, ...]
    warnings: tuple[Finding, ...]
    secrets: frozenset[str]
    needs: Mapping[str, Span]
    """Variables of the environment."""
    timeout: float | None


def read_graph(document: nodes.Node, path: str) -> Plan:
    """InputError with every problem of the file."""
    findings = check_graph(document)
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    assert isinstance(document, nodes.Mapping)
    head, body = Said("graph", document, NOTHING), body_of(document)
    graph = _graph(head, body, path)
    uses = {**tools_of(graph.hooks), **dict(_uses(body))}
    return Plan(
        graph,
        _parameters(document),
        schema.data() if isinstance(schema := head.get("config_schema"), nodes.Mapping) else None,
        uses,
        tool_calls(document, "graph") if uses else (),
        tuple(finding for finding in findings if finding.severity == "warning"),
        frozenset(head.words("secrets")),
        dict(_needs(head, body)),
        body.seconds("timeout"),
    )


def _graph(head: Said, body: Said, path: str) -> Graph:
    name = head.text("name") or os.path.splitext(os.path.basename(path))[0]
    state = body.get("state")
    goes_on = body.text("on_error") == "continue"
    # What begins elsewhere, or with another state, has done none of what this one does.
    around: Json = [body.text("start"), state.data() if state else {}, goes_on]
    most = body.whole("max_concurrency") or MAX_CONCURRENCY
    made = [_node(name, node, around, goes_on, most) for name, node in body.entries("nodes")]
    return Graph(
        name,
        body.text("start") or "",
        {node.name: node for node in made},
        state=dict(state.data()) if isinstance(state, nodes.Mapping) else {},
        max_steps=body.whole("max_steps") or MAX_STEPS,
        goes_on=goes_on,
        limits=read_limits(head.inner("limits")),
        hooks=read_hooks(body.get("hooks")),
    )


def _node(name: str, node: nodes.Node, around: Json, goes_on: bool, most: int) -> Node:
    assert isinstance(node, nodes.Mapping)
    said = Said("node", node, NOTHING)
    kind = kind_of_node(said)
    on_error = said.text("on_error")
    retry = retry_of(said) or ONCE_ONLY
    policy = Policy(
        retry=retry,
        timeout=said.seconds("timeout"),
        # The graph has gone on from this failure, and so does a resumed run.
        failure_is_final=on_error is not None or goes_on,
    )
    return Node(
        name,
        kind,
        digest([around, name, essence(node, format.Map("node"))]),
        call=_call(said, around, name),
        loop=_loop(said, most, goes_on) if kind == "foreach" else None,
        assign=_template(said, "assign"),
        output=_template(said, "output"),
        edges=tuple(_edges(said)),
        on_error=on_error,
        policy=PLAIN if policy == PLAIN else policy,
        clock=mentions_clock(node),
    )


def _template(said: Said, name: str) -> Template | None:
    node = said.get(name)
    return None if node is None else template_of(node, "graph")


_BEHIND: Final = ("assign", "collect", "next", "on_error")
"""Fields of a node that say what follows its call: another text there does not make the call another one."""


def _call(said: Said, around: Json, name: str) -> Action | None:
    assert isinstance(said.node, nodes.Mapping)
    kept = tuple(entry for entry in said.node.entries if entry[0].value not in _BEHIND)
    before = essence(nodes.Mapping(kept, said.node.span), format.Map("node"))
    script, named = said.get("shell"), tool_of(said)
    if script is not None:
        action = Shell(template_of(script, "graph"), interpreter_of(said))
        return ShellCall(action, digest([around, name, before]))
    if named is None:
        return None
    tool = named.id()
    params = (said.inner("action") or said).get("params")
    has_params = params is not None and params.data() is not None
    return Call(
        template_of(named.node, "graph") if tool is None else tool,
        template_of(params, "graph") if params is not None and has_params else None,
        cached=said.flag("cache_result"),
        key=digest(before),
        fingerprint=digest([around, name, before]),
        is_directive=named.is_directive,
    )


def _loop(said: Said, most: int, goes_on: bool) -> Loop:
    over = said.get("over")
    assert over is not None
    parallel = (said.whole("max_concurrency") or most) if said.flag("parallel") else 1
    return Loop(
        template_of(over, "graph"),
        said.text("as") or "item",
        said.text("collect"),
        parallel,
        keeps_going=goes_on and not said.has("on_error"),
        on_empty=on_empty_of(said),
    )


def _edges(said: Said) -> Iterator[Edge]:
    node = said.get("next")
    match node:
        case nodes.Scalar(str(name)):
            yield Edge(name)
        case nodes.Sequence(items):
            yield from map(_edge, items)
        case nodes.Mapping():
            yield _edge(node)


def _edge(node: nodes.Node) -> Edge:
    assert isinstance(node, nodes.Mapping)
    to, when = node.get("to"), node.get("when")
    assert to is not None
    if when is None:
        return Edge(str(to.data()))
    source = when.source() if isinstance(when, nodes.Scalar) and isinstance(when.value, str) else None
    return Edge(str(to.data()), read_when(when.data(), source=source, locate=partial(span_at, when)))


def _uses(body: Said) -> Iterator[tuple[str, Span]]:
    """The tools and directives that nodes name outright, and where that is done first."""
    found: set[str] = set()
    for _, node in body.entries("nodes"):
        assert isinstance(node, nodes.Mapping)
        named = tool_of(Said("node", node, NOTHING))
        tool = None if named is None else named.id()
        if tool is not None and named is not None and tool not in found:
            found.add(tool)
            yield tool, named.node.span


def _needs(head: Said, body: Said) -> Iterator[tuple[str, Span]]:
    said = [
        Said("node", node, NOTHING) for _, node in body.entries("nodes") if isinstance(node, nodes.Mapping)
    ]
    for one in (head, *said):
        yield from ((name, one.span("env_requires")) for name in one.words("env_requires"))


# ── what it is given ─────────────────────────────────────────────────────


def _parameters(document: nodes.Mapping) -> dict[str, Parameter]:
    """The inputs that a graph declares, in either way."""
    node = document.get("inputs")
    if node is not None:
        return declared(nodes.Mapping(((nodes.Scalar("parameters", node.span), node),), document.span))
    schema = document.get("config_schema")
    if not isinstance(schema, nodes.Mapping):
        return {}
    properties, required = schema.get("properties"), schema.at("required")
    needed = required.data() if isinstance(required, nodes.Sequence) else []
    entries = properties.entries if isinstance(properties, nodes.Mapping) else ()
    return {str(key.value): _of_schema(key, value, needed) for key, value in entries}


def _of_schema(key: nodes.Scalar, value: nodes.Node, needed: list[Json]) -> Parameter:
    said = value.data() if isinstance(value, nodes.Mapping) else {}
    wanted = said.get("type")
    name = str(key.value)
    plain = Parameter(name, key.span, wanted if wanted in format.TYPES else "any", required=False)
    if "default" in said:
        return replace(plain, default=said["default"])
    return replace(plain, required=name in needed)


def _loaded(
    plan: Plan,
    path: str,
    given: Mapping[str, Json],
    project: str | None,
    strict: bool | None,
    max_parallel: int | None,
    environ: Mapping[str, str],
) -> Loaded:
    problems = list(_missing_variables(plan, environ))
    inputs: dict[str, Json] = {}
    try:
        inputs = _inputs(plan, path, given)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError.together(problems)
    graph = replace(
        plan.graph,
        inputs=inputs,
        strict=bool(strict),
        has_secrets=any(isinstance(value, Secret) for value in inputs.values()),
        nodes=_at_most(plan.graph.nodes, max_parallel),
    )
    return Loaded(
        graph,
        path,
        os.path.dirname(os.path.realpath(path)) if project is None else project,
        inputs,
        Surroundings({}, {}, {}),
        plan.parameters,
        uses=plan.uses,
        calls=plan.calls,
        warnings=plan.warnings,
        strict=bool(strict),
        timeout=plan.timeout,
        kind="graph",
        limits=graph.limits,
        hooks=graph.hooks,
        environ=environ,
    )


def _at_most(made: Mapping[str, Node], most: int | None) -> Mapping[str, Node]:
    if most is None:
        return made
    return {
        name: replace(node, loop=replace(node.loop, parallel=min(most, node.loop.parallel)))
        if node.loop is not None
        else node
        for name, node in made.items()
    }


def _inputs(plan: Plan, path: str, given: Mapping[str, Json]) -> dict[str, Json]:
    """What is given, of the types that are declared, with the defaults; secrets as such."""
    values = dict(given)
    if plan.parameters:
        # A schema may let in more than it describes.
        more = {} if plan.schema is None else {k: v for k, v in given.items() if k not in plan.parameters}
        values = {**more, **resolve(plan.parameters, {k: v for k, v in given.items() if k not in more})}
    if plan.schema is not None:
        folder = Space("project", os.path.dirname(path))
        header = Header(config_schema=plan.schema)
        values = checked_params(values, Item("tool", plan.graph.name, folder, path, b"", "", header))
    return {
        name: Secret(value) if name in plan.secrets and isinstance(value, str) else value
        for name, value in values.items()
    }


def _missing_variables(plan: Plan, environ: Mapping[str, str]) -> Iterator[Problem]:
    missing: dict[str, Span] = {name: span for name, span in plan.needs.items() if name not in environ}
    if missing:
        what = f"the environment has no {listed(list(missing), most=20)}, and the graph needs it"
        yield Problem(what, next(iter(missing.values())), "set it, and run it again", code="missing-variable")
