"""Read a graph file, and compile it with its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait import schema
from plait.core.digests import json_digest
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem, format_names
from plait.core.hints import Final
from plait.core.records import dataclass, replace
from plait.core.source import Span
from plait.core.values import Json, Secret
from plait.engine.hook_events import Hook
from plait.engine.limits import Limits
from plait.engine.step import DEFAULT_POLICY, NO_RETRY, Policy
from plait.lang.analysis.tool_calls import ToolCall, tool_calls
from plait.lang.common import (
    parse_condition,
    parse_interpreter,
    parse_on_empty,
    parse_retry,
    read_limits,
)
from plait.lang.findings import Finding, require_no_errors, warnings_in
from plait.lang.flow_text import FlowText
from plait.lang.graph.check import (
    NOTHING,
    check_graph,
    graph_body,
    mentions_clock,
    node_kind,
    node_tool,
)
from plait.lang.hooks import hook_tools, read_hooks
from plait.lang.loaded import LoadedFlow, LoadOptions, make_flow
from plait.lang.parameters import (
    Parameter,
    parse_parameters,
    resolve_inputs,
    seal_inputs,
    secret_names,
)
from plait.program.actions.shell import ShellAction
from plait.program.graph.calls import Action, NodeCall, ShellCall
from plait.program.graph.graph_step import GraphStep
from plait.program.graph.spec import Edge, GraphSpec, NodeForeach, NodeSpec
from plait.program.program import OneStep, Program
from plait.schema import Fields, fingerprint_data, to_template
from plait.schema.graph_tables import MAX_CONCURRENCY, MAX_STEPS
from plait.template.template import Template
from plait.tools.config import validate_params
from plait.tools.spaces import Space
from plait.tools.tool_file import Header, ToolFile


@dataclass(frozen=True, slots=True)
class GraphFile:
    """A graph without inputs."""

    graph: GraphSpec
    parameters: Mapping[str, Parameter]
    schema: Mapping[str, Json] | None
    uses: Mapping[str, Span]
    calls: tuple[ToolCall, ...]
    warnings: tuple[Finding, ...]
    secrets: frozenset[str]
    limits: Limits
    hooks: tuple[Hook, ...]
    needs: Mapping[str, Span]
    """Environment variables that it requires."""
    timeout: float | None
    source: FlowText

    def compile(self, inputs: Mapping[str, Json], options: LoadOptions) -> LoadedFlow:
        problems = list(_missing_variables(self, options.environ))
        values: dict[str, Json] = {}
        try:
            values = _inputs(self, inputs)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError.together(problems)
        graph = replace(
            self.graph,
            inputs=values,
            strict=options.is_strict,
            has_secrets=any(isinstance(value, Secret) for value in values.values()),
            nodes=_at_most(self.graph.nodes, options.max_parallel),
        )
        program = Program("graph", graph.name, OneStep(GraphStep(graph)), self.limits, self.hooks)
        return make_flow(self, program, values, options)


def read_flow(source: FlowText, project: str | None = None) -> GraphFile:  # noqa: ARG001 - of Language
    document = source.document
    findings = require_no_errors(check_graph(document))
    assert isinstance(document, nodes.Mapping)
    head, body = Fields("graph", document, NOTHING), graph_body(document)
    graph = _graph(head, body, source.stem)
    hooks = read_hooks(body.get("hooks"))
    uses = {**hook_tools(hooks), **dict(_uses(body))}
    return GraphFile(
        graph,
        _parameters(document),
        config_schema.data()
        if isinstance(config_schema := head.get("config_schema"), nodes.Mapping)
        else None,
        uses,
        tool_calls(document, "graph") if uses else (),
        warnings_in(findings),
        frozenset(head.strings("secrets")),
        read_limits(head.child("limits")),
        hooks,
        dict(_needs(head, body)),
        body.seconds("timeout"),
        source,
    )


def _graph(head: Fields, body: Fields, stem: str) -> GraphSpec:
    name = head.text("name") or stem
    state = body.get("state")
    goes_on = body.text("on_error") == "continue"
    # Another start or another state invalidates the recorded visits.
    outer: Json = [body.text("start"), state.data() if state else {}, goes_on]
    most = body.integer("max_concurrency") or MAX_CONCURRENCY
    made = [_node(name, node, outer, goes_on, most) for name, node in body.entries("nodes")]
    return GraphSpec(
        name,
        body.text("start") or "",
        {node.name: node for node in made},
        state=dict(state.data()) if isinstance(state, nodes.Mapping) else {},
        max_steps=body.integer("max_steps") or MAX_STEPS,
        continue_on_error=goes_on,
    )


def _node(name: str, node: nodes.Node, outer: Json, goes_on: bool, most: int) -> NodeSpec:
    assert isinstance(node, nodes.Mapping)
    fields = Fields("node", node, NOTHING)
    kind = node_kind(fields)
    on_error = fields.text("on_error")
    retry = parse_retry(fields) or NO_RETRY
    policy = Policy(
        retry=retry,
        timeout=fields.seconds("timeout"),
        # The graph continues after this failure, and so does a resumed run.
        keep_failure=on_error is not None or goes_on,
    )
    return NodeSpec(
        name,
        kind,
        json_digest([outer, name, fingerprint_data(node, schema.Record("node"))]),
        call=_call(fields, outer, name),
        loop=_loop(fields, most, goes_on) if kind == "foreach" else None,
        assign=_template(fields, "assign"),
        output=_template(fields, "output"),
        edges=tuple(_edges(fields)),
        on_error=on_error,
        policy=DEFAULT_POLICY if policy == DEFAULT_POLICY else policy,
        clock=mentions_clock(node),
    )


def _template(fields: Fields, name: str) -> Template | None:
    node = fields.get(name)
    return None if node is None else to_template(node, "graph")


_BEHIND: Final = ("assign", "collect", "next", "on_error")
"""Fields of a node that take effect after its call, and so are not part of its fingerprint.
"""


def _call(fields: Fields, outer: Json, name: str) -> Action | None:
    assert isinstance(fields.node, nodes.Mapping)
    kept = tuple(entry for entry in fields.node.entries if entry[0].value not in _BEHIND)
    before = fingerprint_data(nodes.Mapping(kept, fields.node.span), schema.Record("node"))
    script, named = fields.get("shell"), node_tool(fields)
    if script is not None:
        action = ShellAction(to_template(script, "graph"), parse_interpreter(fields))
        return ShellCall(action, json_digest([outer, name, before]))
    if named is None:
        return None
    tool = named.id()
    params = (fields.child("action") or fields).get("params")
    has_params = params is not None and params.data() is not None
    return NodeCall(
        to_template(named.node, "graph") if tool is None else tool,
        to_template(params, "graph") if params is not None and has_params else None,
        cached=fields.flag("cache_result"),
        key=json_digest(before),
        fingerprint=json_digest([outer, name, before]),
        is_directive=named.is_directive,
    )


def _loop(fields: Fields, most: int, goes_on: bool) -> NodeForeach:
    over = fields.get("over")
    assert over is not None
    parallel = (fields.integer("max_concurrency") or most) if fields.flag("parallel") else 1
    return NodeForeach(
        to_template(over, "graph"),
        fields.text("as") or "item",
        fields.text("collect"),
        parallel,
        keeps_going=goes_on and not fields.has("on_error"),
        on_empty=parse_on_empty(fields),
    )


def _edges(fields: Fields) -> Iterator[Edge]:
    node = fields.get("next")
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
    return Edge(str(to.data()), None if when is None else parse_condition(when))


def _uses(body: Fields) -> Iterator[tuple[str, Span]]:
    """The tools and directives that nodes name without placeholders, each with its first place."""
    found: set[str] = set()
    for _, node in body.entries("nodes"):
        assert isinstance(node, nodes.Mapping)
        named = node_tool(Fields("node", node, NOTHING))
        tool = None if named is None else named.id()
        if tool is not None and named is not None and tool not in found:
            found.add(tool)
            yield tool, named.node.span


def _needs(head: Fields, body: Fields) -> Iterator[tuple[str, Span]]:
    in_nodes = [
        Fields("node", node, NOTHING)
        for _, node in body.entries("nodes")
        if isinstance(node, nodes.Mapping)
    ]
    for one in (head, *in_nodes):
        yield from ((name, one.span("env_requires")) for name in one.strings("env_requires"))


# ── inputs ─────────────────────────────────────────────────────


def _parameters(document: nodes.Mapping) -> dict[str, Parameter]:
    """The inputs, declared under `inputs` or by `config_schema`."""
    node = document.get("inputs")
    if node is not None:
        return parse_parameters(node, secret_names(document))
    config_schema = document.get("config_schema")
    if not isinstance(config_schema, nodes.Mapping):
        return {}
    properties, required = config_schema.get("properties"), config_schema.at("required")
    needed = required.data() if isinstance(required, nodes.Sequence) else []
    entries = properties.entries if isinstance(properties, nodes.Mapping) else ()
    return {str(key.value): _of_schema(key, value, needed) for key, value in entries}


def _of_schema(key: nodes.Scalar, value: nodes.Node, needed: list[Json]) -> Parameter:
    described = value.data() if isinstance(value, nodes.Mapping) else {}
    wanted = described.get("type")
    name = str(key.value)
    plain = Parameter(name, key.span, wanted if wanted in schema.TYPES else "any", required=False)
    if "default" in described:
        return replace(plain, default=described["default"])
    return replace(plain, required=name in needed)


def _at_most(made: Mapping[str, NodeSpec], most: int | None) -> Mapping[str, NodeSpec]:
    if most is None:
        return made
    return {
        name: replace(node, loop=replace(node.loop, parallel=min(most, node.loop.parallel)))
        if node.loop is not None
        else node
        for name, node in made.items()
    }


def _inputs(plan: GraphFile, given: Mapping[str, Json]) -> dict[str, Json]:
    # A schema may allow more than it describes.
    takes_more = plan.schema is not None or not plan.parameters
    values = resolve_inputs(
        plan.parameters, given, takes_more=takes_more, secrets=plan.secrets
    ).require()
    if plan.schema is not None:
        path = plan.source.path
        folder = Space("project", os.path.dirname(path))
        header = Header(config_schema=plan.schema, secrets=tuple(plan.secrets))
        values = validate_params(
            values, ToolFile("tool", plan.graph.name, folder, path, b"", "", header)
        )
    return seal_inputs(values, plan.secrets)


def _missing_variables(plan: GraphFile, environ: Mapping[str, str]) -> Iterator[Problem]:
    missing: dict[str, Span] = {
        name: span for name, span in plan.needs.items() if name not in environ
    }
    if missing:
        what = (
            f"the environment has no {format_names(list(missing), most=20)}, but the graph needs it"
        )
        yield Problem(
            what, next(iter(missing.values())), "set it and run again", code="missing-variable"
        )
