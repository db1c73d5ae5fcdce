"""Read a workflow file with those that it extends, and compile it with its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from plait import schema
from plait.core.errors import InputError, Problem
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import SHORTEST, Masker, mask_value
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.lang.analysis.names import detect_profile
from plait.lang.analysis.scopes import find_templates
from plait.lang.common import parse_backend, read_limits
from plait.lang.environment import (
    NO_ENVIRONMENT,
    FlowEnvironment,
    find_secret_texts,
    load_environment,
    secret_texts,
)
from plait.lang.findings import Finding, require_no_errors, warnings_in
from plait.lang.flow_text import FlowText
from plait.lang.loaded import LoadedFlow, LoadOptions
from plait.lang.parameters import Parameter, flow_parameters, resolve_inputs
from plait.lang.workflow.check import check_workflow
from plait.lang.workflow.compile import WorkflowCompiler
from plait.lang.workflow.compose import Calls, ComposedWorkflow, compose
from plait.program.program import Program
from plait.schema import Fields
from plait.scope import Scope
from plait.scope.computed import Sources

if TYPE_CHECKING:
    from plait.core.source import Span
    from plait.engine.hook_events import Hook
    from plait.lang.analysis.tool_calls import ToolCall

SHORT_SECRET: Final = 6
"""The limit in characters: a shorter text probably occurs in other data too."""


@dataclass(frozen=True, slots=True)
class WorkflowFile:
    """A workflow without inputs, composed of the files that it extends."""

    source: FlowText
    flow: ComposedWorkflow
    parameters: Mapping[str, Parameter]
    warnings: tuple[Finding, ...]

    def compile(self, inputs: Mapping[str, Json], options: LoadOptions) -> LoadedFlow:
        flow, environ, lenient = self.flow, options.environ, options.lenient
        head = Fields("flow", flow.head, Scope())
        values, environment = options.known or _resolve_values(
            head, self.parameters, inputs, options.profile, environ
        )
        scope = Scope({**environment.names(), **values}, sources=Sources(environ=environ))
        fields = replace(head, scope=scope)
        strictly = fields.flag("strict") if options.strict is None else options.strict
        builder = WorkflowCompiler(
            flow,
            fields,
            scope,
            strict=strictly,
            lenient=lenient,
            profile=options.profile,
            max_parallel=options.max_parallel,
            keep_going=options.keep_going,
            project=options.project,
            environ=environ,
            calls=Calls((os.path.realpath(self.source.path),)),
        )
        hooks, called = _hooks(fields, scope)
        phases = builder.phases()
        program = Program(
            "workflow",
            fields.text("name") or self.source.stem,
            phases,
            read_limits(fields.child("limits")),
            hooks,
            builder.tracks,
        )
        return LoadedFlow(
            program,
            self.source.path,
            options.project_folder(self.source),
            values,
            self.parameters,
            environment,
            tool_uses=builder.tools | called,
            calls=_calls((flow, *builder.called)) if builder.tools else (),
            warnings=(
                *self.warnings,
                *_env_file_warnings(environment, fields),
                *_short_secrets(environment, fields),
            ),
            strict=strictly and not lenient,
            keep_going=options.keep_going,
            timeout=fields.seconds("timeout"),
            durability=fields.text("durability") or "normal",
            backend=parse_backend(fields),
            shared=_of_map(fields, "shared"),
            shipped_files=_ships(fields),
            stall_timeout=_seconds_of_map(fields, "stall_timeout"),
            wait_for_workers=_seconds_of_map(fields, "wait_for_workers"),
            allow_outside="outside_files" in fields.strings("allow"),
            environ=environ,
            derived_secrets=_find_derived_secrets(flow, environment, values, environ)
            | builder.derived_secrets,
        )


def read_flow(source: FlowText, project: str | None = None) -> WorkflowFile:
    flow = compose(source.document, source.path, project=project)
    findings = require_no_errors(_require_workflow(flow, source.path, project))
    return WorkflowFile(source, flow, flow_parameters(flow.document), warnings_in(findings))


def _calls(flows: Iterable[ComposedWorkflow]) -> tuple[ToolCall, ...]:
    from plait.lang.analysis.tool_calls import tool_calls

    every = (tool_calls(flow.document, "workflow", blocks=flow.blocks) for flow in flows)
    return tuple(call for calls in every for call in calls)


def _find_derived_secrets(
    flow: ComposedWorkflow,
    environment: FlowEnvironment,
    values: Mapping[str, Json],
    environ: Mapping[str, str],
) -> frozenset[str]:
    """The texts that steps make of secrets."""
    if not secret_texts(environment, values):
        return frozenset()
    from plait.lang.workflow.derived_secrets import derived_secrets

    scope = Scope(
        {**environment.names(), **values}, sources=Sources(environ=environment.environ(environ))
    )
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
    found = schema.validate(flow.document)
    if found:
        raise InputError.together(found)
    fix = (
        "write steps:, or setup:, map: and reduce:; a graph has start: and nodes:, an ensemble "
        "tasks:"
    )
    raise InputError("this file has no steps", path, fix, code="no-steps")


def _resolve_values(
    head: Fields,
    parameters: Mapping[str, Parameter],
    given: Mapping[str, Json],
    profile: str | None,
    environ: Mapping[str, str],
) -> tuple[dict[str, Json], FlowEnvironment]:
    resolved = resolve_inputs(parameters, given)
    if resolved.problems and given:  # the messages may quote values without secrets
        masker = Masker(find_secret_texts(head, environ))
        hidden = {name for name, one in given.items() if mask_value(one, masker.mask) != one}
        resolved = resolve_inputs(parameters, given, secrets=hidden)
    problems = list(resolved.problems.values())
    # A parameter without a value counts as null, so that all problems of the head are found, too.
    values = resolved.values if not problems else {**dict.fromkeys(parameters), **resolved.values}
    environment = NO_ENVIRONMENT
    try:
        environment = load_environment(head, values, profile=profile, environ=environ)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError.together(problems)
    return values, environment


def _short_secrets(environment: FlowEnvironment, fields: Fields) -> Iterator[Finding]:
    for name, secret in environment.secrets.items():
        if len(secret.reveal()) < SHORT_SECRET:
            # The masker does not hide very short secrets inside words: a mask there would reveal
            # them.
            where_masked = (
                "only where it stands alone, not inside words"
                if len(secret.reveal()) < SHORTEST
                else "wherever it occurs, even in other data"
            )
            what = (
                f"the secret '{name}' has fewer than {SHORT_SECRET} characters: "
                f"it is masked {where_masked}"
            )
            where, fix = fields.span("secrets"), "choose a longer one, or do not declare it"
            yield Finding(Problem(what, where, fix, code="short-secret"), "warning")


def _env_file_warnings(environment: FlowEnvironment, fields: Fields) -> Iterator[Finding]:
    for name in environment.refused:
        what = f"the variable {name} of an env file is ignored: it could change which programs run"
        fix = f"write {name} under env if you want it"
        yield Finding(
            Problem(what, fields.span("env_files"), fix, code="refused-variable"), "warning"
        )
