"""A workflow file becomes a flow that can run, or one error with everything that is wrong.

    load_workflow   file → composed document → checked → parameters, environment, secrets → steps

Whatever `plait check` calls an error is an error here, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Many

from plait import schema as format
from plait.core import documents
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import replace
from plait.core.values import Json
from plait.lang.analysis.names import detect_profile
from plait.lang.common import parse_backend, read_limits
from plait.lang.environment import FlowEnvironment, load_environment, secret_texts
from plait.lang.findings import Finding
from plait.lang.loaded import LoadedFlow
from plait.lang.parameters import Parameter, parse_parameters, resolve_parameters
from plait.lang.workflow.check import check_workflow
from plait.lang.workflow.compile import WorkflowCompiler
from plait.lang.workflow.compose import Calls, ComposedWorkflow, compose
from plait.schema import Fields
from plait.scope import Scope
from plait.scope.computed import Sources

if TYPE_CHECKING:
    from plait.core.source import Span
    from plait.engine.hooks import Hook
    from plait.lang.analysis.tool_calls import ToolCall

SHORT_SECRET: Final = 6
"""Characters; what is shorter may well occur in data that is not secret."""


def load_workflow(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,
    strict: bool | None = None,
    lenient: bool = False,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
    known: tuple[Mapping[str, Json], FlowEnvironment] | None = None,
    document: nodes.Node | None = None,
) -> LoadedFlow:
    """The flow in a file; InputError with everything that is wrong with it or with what it is
    given.

    `lenient`: it is not strict, and has the fingerprints of one that is;
    `known`: parameters and surroundings that somebody has found out already, for another process;
    `document`: what is in the file, if it was read already.
    """
    environ = environ or {}
    flow = compose(document or documents.load(path), path, project=project)
    findings = _require_workflow(flow, path, project)
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    head = Fields("flow", _head(flow.document), Scope())
    parameters = parse_parameters(flow.document)
    values, around = known or _resolve_values(head, parameters, given or {}, profile, environ)
    scope = Scope({**around.names(), **values}, sources=Sources(environ=environ))
    said = replace(head, scope=scope)
    strictly = said.flag("strict") if strict is None else strict
    builder = WorkflowCompiler(
        flow,
        said,
        scope,
        strict=strictly,
        lenient=lenient,
        profile=profile,
        max_parallel=max_parallel,
        project=project,
        environ=environ,
        calls=Calls((os.path.realpath(path),)),
    )
    hooks, called = _hooks(said, scope)
    name = said.text("name") or os.path.splitext(os.path.basename(path))[0]
    program = builder.workflow(name)
    return LoadedFlow(
        program,
        path,
        os.path.dirname(os.path.realpath(path)) if project is None else project,
        values,
        around,
        parameters,
        tool_uses=builder.tools | called,
        calls=_calls((flow, *builder.called)) if builder.tools else (),
        warnings=(
            *_warnings(findings),
            *_env_file_warnings(around, said),
            *_short_secrets(around, said),
        ),
        strict=strictly and not lenient,
        timeout=said.seconds("timeout"),
        limits=read_limits(said.child("limits")),
        hooks=hooks,
        durability=said.text("durability") or "normal",
        backend=parse_backend(said),
        shared=_of_map(said, "shared"),
        shipped_files=_ships(said),
        stall_timeout=_seconds_of_map(said, "stall_timeout"),
        wait_for_workers=_seconds_of_map(said, "wait_for_workers"),
        allow_outside="outside_files" in said.strings("allow"),
        environ=environ,
        derived_secrets=_find_derived_secrets(flow, around, values, environ) | builder.made,
    )


def _calls(flows: Iterable[ComposedWorkflow]) -> tuple[ToolCall, ...]:
    from plait.lang.analysis.tool_calls import tool_calls

    every = (tool_calls(flow.document, "workflow", blocks=flow.blocks) for flow in flows)
    return tuple(call for calls in every for call in calls)


def _find_derived_secrets(
    flow: ComposedWorkflow,
    around: FlowEnvironment,
    values: Mapping[str, Json],
    environ: Mapping[str, str],
) -> frozenset[str]:
    """What the steps make of secrets; without any there is nothing to find out."""
    if not secret_texts(around, values):
        return frozenset()
    from plait.lang.analysis.scopes import find_templates
    from plait.lang.workflow.made_secrets import derived_secrets

    scope = Scope({**around.names(), **values}, sources=Sources(environ=around.environ(environ)))
    return derived_secrets(
        find_templates(flow.document, "workflow", blocks=flow.blocks).fields, scope
    )


def _hooks(flow: Fields, scope: Scope) -> tuple[tuple[Hook, ...], dict[str, Span]]:
    """Its hooks, and the tools that they call."""
    node = flow.get("hooks")
    if node is None:
        return (), {}
    from plait.lang.hooks import hook_tools, read_hooks

    hooks = read_hooks(node, scope=scope)
    return hooks, hook_tools(hooks)


def _of_map(flow: Fields, flag: str) -> bool:
    own = flow.child("map")
    return own is not None and own.flag(flag)


def _seconds_of_map(flow: Fields, field: str) -> float | None:
    own = flow.child("map")
    return None if own is None else own.seconds(field)


def _ships(flow: Fields) -> tuple[str, ...]:
    own = flow.child("map")
    return () if own is None else tuple(own.strings("ship"))


def _require_workflow(flow: ComposedWorkflow, path: str, project: str | None) -> list[Finding]:
    if detect_profile(flow.document) == "workflow" or flow.problems:
        return check_workflow(flow, project=project)
    found = format.validate(flow.document)
    if found:
        raise InputError.together(found)
    fix = (
        "write steps:, or setup:, map: and reduce:; a graph has start: and nodes:, an ensemble "
        "tasks:"
    )
    raise InputError("this file has no steps", path, fix, code="no-steps")


def _head(document: nodes.Node) -> nodes.Mapping:
    """What a flow says about itself; a file that is only a list of steps says nothing."""
    return document if isinstance(document, nodes.Mapping) else nodes.Mapping((), document.span)


def _resolve_values(
    head: Fields,
    parameters: Mapping[str, Parameter],
    given: Mapping[str, Json],
    profile: str | None,
    environ: Mapping[str, str],
) -> tuple[dict[str, Json], FlowEnvironment]:
    problems: list[Problem] = []
    # What stands in for a value that is missing lets everything else be looked at as well.
    values: dict[str, Json] = dict.fromkeys(parameters)
    around = FlowEnvironment({}, {}, {})
    try:
        values = resolve_parameters(parameters, given)
    except InputError as error:
        problems += error.problems
    try:
        around = load_environment(head, values, profile=profile, environ=environ)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError.together(problems)
    return values, around


def _warnings(findings: Many[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "warning")


def _short_secrets(around: FlowEnvironment, fields: Fields) -> Iterator[Finding]:
    for name, secret in around.secrets.items():
        if len(secret.reveal()) < SHORT_SECRET:
            what = (
                f"the secret '{name}' has fewer than {SHORT_SECRET} characters: "
                "they are masked wherever they occur, also in data"
            )
            where, fix = fields.span("secrets"), "choose a longer one, or do not declare it"
            yield Finding(Problem(what, where, fix, code="short-secret"), "warning")


def _env_file_warnings(around: FlowEnvironment, fields: Fields) -> Iterator[Finding]:
    for name in around.refused:
        what = f"the variable {name} of an env file is left away: it could change what programs run"
        fix = f"write {name} under env, where it is seen to be meant"
        yield Finding(
            Problem(what, fields.span("env_files"), fix, code="refused-variable"), "warning"
        )
