"""Workflow files that a step of another one calls: find, check and compile them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait.core import documents
from plait.core.digests import json_digest
from plait.core.documents import nodes
from plait.core.errors import InputError, PlaitError, Problem, closest_name
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, replace
from plait.core.values import Json, Undefined
from plait.lang.analysis.names import detect_profile
from plait.lang.analysis.scopes import find_templates
from plait.lang.environment import (
    Caller,
    find_secret_texts,
    load_environment,
    secret_texts,
    secrets_in,
)
from plait.lang.flow_text import file_stem
from plait.lang.parameters import (
    Parameter,
    flow_parameters,
    resolve_inputs,
)
from plait.lang.workflow.compose import Calls, ComposedWorkflow, compose
from plait.lang.workflow.derived_secrets import derived_secrets
from plait.program.subworkflow import NO_MAP, Entered, Subworkflow
from plait.schema import Fields, to_template
from plait.scope import Scope

if TYPE_CHECKING:
    from plait.lang.analysis.scopes import TemplateFields
    from plait.lang.workflow.compilation import Compilation
    from plait.template.template import Template

OF_THE_RUN: Final = ("hooks", "limits", "durability", "backend", "profiles", "allow")
"""Fields that apply to a whole run, so only the file that is run may have them."""
OF_ITS_MAP: Final = ("backend", "shared", "ship", "stall_timeout", "wait_for_workers")
"""The same fields below `map`."""


@dataclass(frozen=True, slots=True)
class CalledFile:
    path: str
    flow: ComposedWorkflow


def open_called(node: nodes.Node, project: str | None, calls: Calls) -> CalledFile:
    """The file that a step names, relative to its own file; InputError if it cannot be called."""
    written = str(node.value) if isinstance(node, nodes.Scalar) else ""
    if "$" in written:
        raise _wrong(
            node,
            "the path of a called workflow cannot have placeholders",
            "write workflow: other.yaml",
        )
    beside = os.path.dirname(node.span.place.source.name)
    path = os.path.join(beside, written)
    if not os.path.exists(path) and project is not None:
        path = os.path.join(project, beside, written)
    real = os.path.realpath(path)
    top = os.path.realpath(project if project is not None else beside or ".")
    if os.path.commonpath([top, real]) != top:
        raise _wrong(node, "this workflow is outside the project", "name a file below the project")
    calls.expect(real, node)
    try:
        document = documents.load(path)
    except PlaitError as error:
        if error.code in ("no-file", "unreadable", "not-found"):
            raise _wrong(
                node,
                f"there is no workflow '{written}'",
                "correct the path: it is relative to this file",
            ) from None
        raise
    if detect_profile(document) != "workflow":
        raise _wrong(
            node, f"'{written}' is not a workflow", "a graph or a directive is called by tool: ID"
        )
    return CalledFile(real, compose(document, path, project=project))


def files_called(
    reading: TemplateFields, path: str, project: str | None
) -> Iterator[ComposedWorkflow]:
    """The files that are called, directly or not, each once; without those that have problems."""
    seen = {os.path.realpath(path)}
    todo = [node for step, _ in reading.calls if (node := step.get("workflow")) is not None]
    while todo:
        node = todo.pop(0)
        try:
            called = open_called(node, project, Calls())
        except PlaitError:
            continue
        if called.path not in seen and not called.flow.problems:
            seen.add(called.path)
            yield called.flow
            inner = find_templates(called.flow.document, "workflow", blocks=called.flow.blocks)
            todo += [node for step, _ in inner.calls if (node := step.get("workflow")) is not None]


def call_problems(step: nodes.Mapping, called: CalledFile) -> Iterator[Problem]:
    """Parameters that a step passes wrongly or lacks, and fields that a called file may not
    have.
    """
    document = called.flow.document
    for name in OF_THE_RUN if isinstance(document, nodes.Mapping) else ():
        if isinstance(document, nodes.Mapping) and document.get(name) is not None:
            what = f"'{name}' counts for a whole run, but another file calls this one"
            yield Problem(
                what,
                document.key_span(name),
                "write it in the file that is run",
                code="misplaced-field",
            )
    own = document.get("map") if isinstance(document, nodes.Mapping) else None
    for name in OF_ITS_MAP if isinstance(own, nodes.Mapping) else ():
        if isinstance(own, nodes.Mapping) and own.get(name) is not None:
            what = (
                f"'{name}' counts for the map of the file that is run, but another file calls "
                "this one"
            )
            yield Problem(what, own.key_span(name), "remove it", code="misplaced-field")
    if isinstance(own, nodes.Mapping) and own.get("isolation") is not None:
        what = "only the map of the file that is run can isolate items"
        yield Problem(
            what,
            own.key_span("isolation"),
            "remove it, or run this file itself",
            code="misplaced-field",
        )
    try:
        parameters = flow_parameters(document)
    except PlaitError:
        return
    params = step.get("params")
    if params is not None and not isinstance(params, nodes.Mapping):
        if not (isinstance(params, nodes.Scalar) and "$" in str(params.value)):
            yield Problem(NO_MAP, params.span, "write params: {name: value}", code="wrong-type")
        return
    given = {} if params is None else {str(key.value): key for key, _ in params.entries}
    for name, key in given.items():
        if name not in parameters:
            meant = closest_name(name, parameters)
            fix = (
                f"did you mean '{meant}'?" if meant else "declare it under parameters of that file"
            )
            yield Problem(
                f"that workflow has no parameter '{name}'", key.span, fix, code="unknown-parameter"
            )
    for name, value in _literal_params(params).items():
        if name in parameters:
            found = resolve_inputs({name: parameters[name]}, {name: value})
            fix = f"pass {parameters[name].type_description}"
            for problem in found.problems.values():
                yield replace(problem, where=given[name].span, fix=fix)
    for name, parameter in parameters.items():
        if parameter.required and name not in given:
            what = f"that workflow needs the parameter '{name}'"
            yield Problem(
                what,
                step.key_span("workflow"),
                f"add it under params: {name}: …",
                code="missing-parameter",
            )


def build_subworkflow(builder: Compilation, fields: Fields, strict: bool) -> Subworkflow:
    node = fields.get("workflow")
    assert node is not None
    called = open_called(node, builder.project, builder.calls)
    flow = called.flow
    head = Fields("flow", flow.head, Scope())
    parameters = flow_parameters(flow.document)
    values = {**_defaults(parameters), **_literal_params(fields.get("params"))}
    environment = _environment_names(head, values, builder)
    scope = Scope({**builder.scope.names, **values}, sources=builder.scope.sources)
    if environment is not None:
        scope = Scope({**scope.names, **environment}, sources=builder.scope.sources)
    head_fields = replace(head, scope=scope)
    inner = builder.for_called_file(flow, head_fields, scope, called.path)
    name = head_fields.text("name") or file_stem(called.path)
    phases = inner.phases()
    for tool, span in inner.tools.items():
        builder.tools.setdefault(tool, span)
    builder.watches = builder.watches or inner.watches
    builder.tracks |= inner.tracks
    builder.derived_secrets |= inner.derived_secrets | _find_secrets(flow, head, scope, builder)
    builder.called.append(flow)
    builder.called += inner.called

    # Its items are not items of the run, so `plait retry` cannot select them.
    map_step = None if phases.map is None else replace(phases.map, expects_all=True)

    def enter(
        params: Mapping[str, Json], names: Scope, given: frozenset[str], data: frozenset[str]
    ) -> Entered:
        found = _resolve_params(parameters, params, fields)
        given |= found.keys() - params.keys()  # by its default
        own = load_environment(
            head, found, profile=None, environ=builder.environ, caller=Caller(names, given, data)
        )
        return Entered(
            {**own.names(), **found},
            own.process_env(),
            secret_texts(own, found),
            own.given | given,
            own.data | data,
        )

    return Subworkflow(
        name,
        replace(phases, map=map_step),
        called.path,
        fields.template("params"),
        _each(fields.get("params")),
        enter,
        {**values, **(environment or {})},
        json_digest([flow.document.data(), [step.fingerprint for step in phases.children]]),
        head_fields.seconds("timeout"),
        strict,
    )


def _environment_names(
    head: Fields, values: Mapping[str, Json], builder: Compilation
) -> Mapping[str, Json] | None:
    caller = Caller(builder.scope)
    try:
        return load_environment(
            head, dict(values), profile=None, environ=builder.environ, caller=caller
        ).names()
    except InputError:
        return None  # a run reports what only a run can know


def _find_secrets(
    flow: ComposedWorkflow, head: Fields, scope: Scope, builder: Compilation
) -> frozenset[str]:
    """The secrets of the file, and the texts that its steps make from them; a run masks them
    from the start.
    """
    texts = find_secret_texts(head, builder.environ)
    if not texts and next(secrets_in(scope.names), None) is None:
        return texts
    fields = find_templates(flow.document, "workflow", blocks=flow.blocks).fields
    return texts | derived_secrets(fields, scope)


def _resolve_params(
    parameters: Mapping[str, Parameter], params: Mapping[str, Json], fields: Fields
) -> dict[str, Json]:
    found = resolve_inputs(parameters, params)
    if found.problems:
        node = fields.get("params") or fields.get("workflow")
        where = None if node is None else node.span
        fix = "correct it under params of this step"
        raise InputError.together(
            replace(one, where=where, fix=fix) for one in found.problems.values()
        )
    return found.values


def _each(params: nodes.Node | None) -> dict[str, Template]:
    entries = params.entries if isinstance(params, nodes.Mapping) else ()
    return {str(key.value): to_template(value) for key, value in entries}


def _defaults(parameters: Mapping[str, Parameter]) -> dict[str, Json]:
    return {
        name: one.default
        for name, one in parameters.items()
        if not isinstance(one.default, Undefined)
    }


def _literal_params(params: nodes.Node | None) -> dict[str, Json]:
    """Literal values; numbers and durations of the called file may use them."""
    entries = params.entries if isinstance(params, nodes.Mapping) else ()
    return {
        str(key.value): value.data()
        for key, value in entries
        if isinstance(value, nodes.Scalar) and "$" not in str(value.value)
    }


def _wrong(node: nodes.Node, what: str, fix: str) -> InputError:
    return InputError(what, node.span, fix, code="bad-workflow-call")
