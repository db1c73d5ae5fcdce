"""Read a directive: a prompt in a Markdown file, with a head above it.

    ---
    description: Look at one file
    inputs: {file: string, depth: {type: integer, default: 1}}
    permissions: [core/file/*]
    limits: {turns: 8}
    ---
    Read {input:file} and say what is wrong with it.

The head may also be a block of XML, see `xml_head`; a file without a head is only a prompt.
Inputs are filled into the prompt once.  They are values: a placeholder in them is not filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait import schema
from plait.agents.session import AgentStep
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem
from plait.core.records import dataclass, replace
from plait.core.source import Span
from plait.core.values import Json
from plait.engine.hook_events import Hook
from plait.engine.limits import Limits
from plait.engine.paths import AGENT
from plait.lang.analysis.scopes import find_templates
from plait.lang.analysis.templates import check_template
from plait.lang.common import read_limits, with_default_turns
from plait.lang.directive.split import DirectiveParts, split_directive
from plait.lang.findings import (
    Finding,
    from_format,
    require_no_errors,
    sort_findings,
    warnings_in,
)
from plait.lang.flow_text import FlowText
from plait.lang.hooks import hook_findings, hook_tools, read_hooks
from plait.lang.loaded import LoadedFlow, LoadOptions
from plait.lang.parameters import (
    Parameter,
    parameters_schema,
    parse_parameters,
    resolve_inputs,
)
from plait.program.program import DirectiveSpec, FilledDirective, OneStep, Program
from plait.schema import Fields, to_template
from plait.scope import Scope
from plait.template.sinks import render_json_value, render_text
from plait.template.template import Template


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive without inputs."""

    name: str
    source: FlowText
    description: str
    parameters: Mapping[str, Parameter]
    outputs: Mapping[str, Parameter]
    body: Template
    content: Template
    """The text of the head."""
    raw: Template
    """The whole file."""
    actions: Template
    system: Template | None
    provider: str | None
    model: str | None
    options: Mapping[str, Json]
    tools: tuple[str, ...]
    once: tuple[str, ...]
    limits: Limits
    """As written, without defaults."""
    max_output_retries: int
    uses: Mapping[str, Span]
    hooks: tuple[Hook, ...] = ()
    warnings: tuple[Finding, ...] = ()

    def compile(self, inputs: Mapping[str, Json], options: LoadOptions) -> LoadedFlow:
        filled = self.fill(inputs, strict=options.is_strict)
        agent = self.make_session(filled)
        return LoadedFlow(
            Program(
                "directive",
                self.name,
                OneStep(agent),
                hooks=self.hooks,
                directive=DirectiveSpec(agent, filled, self.limits),
            ),
            self.source.path,
            options.project_folder(self.source),
            filled.inputs,
            self.parameters,
            tool_uses=self.uses,
            warnings=self.warnings,
            strict=options.is_strict,
            environ=options.environ,
        )

    def fill(self, given: Mapping[str, Json], *, strict: bool = False) -> FilledDirective:
        """Its texts with the inputs; InputError with all inputs that are missing or wrong."""
        values = resolve_inputs(self.parameters, given, secrets=frozenset()).require()
        scope: dict[str, Json] = {"inputs": values}
        actions = render_json_value(self.actions, scope, strict=strict)
        return FilledDirective(
            values,
            render_text(self.body, scope, strict=strict),
            render_text(self.content, scope, strict=strict),
            render_text(self.raw, scope, strict=strict),
            actions if isinstance(actions, list) else [],
            "" if self.system is None else render_text(self.system, scope, strict=strict),
        )

    def make_session(self, filled: FilledDirective) -> AgentStep:
        return AgentStep(
            AGENT,
            self.name,
            filled.body,
            filled.system,
            self.provider,
            self.model,
            self.tools,
            parameters_schema(self.outputs),
            with_default_turns(self.limits),
            self.options,
            once=self.once,
            max_output_retries=self.max_output_retries,
        )


# ── read ─────────────────────────────────────────────────────


def check_flow(source: FlowText, names: Iterable[str], project: str | None) -> list[Finding]:  # noqa: ARG001 - of Language
    return _findings(split_directive(source.text, source.path))


def read_flow(source: FlowText, project: str | None = None) -> Directive:  # noqa: ARG001 - of Language
    parts = split_directive(source.text, source.path)
    findings = require_no_errors(_findings(parts))
    fields = Fields("directive", parts.head, Scope())
    permissions = fields.child("permissions")
    tools = fields.strings("permissions") if permissions is None else permissions.strings("tools")
    model = fields.child("model")
    options = {name: node.data() for name, node in fields.entries("options")}
    system, actions = fields.get("system"), fields.get("actions")
    hooks = read_hooks(fields.get("hooks"), scope=Scope())
    return Directive(
        name=fields.text("name") or source.stem,
        source=source,
        description=fields.text("description") or "",
        parameters=parse_parameters(fields.get("inputs")),
        outputs=parse_parameters(fields.get("outputs")),
        body=_template(parts.body),
        content=_template(parts.content),
        raw=_template(parts.raw),
        actions=_template(actions or nodes.Sequence((), parts.head.span)),
        system=None if system is None else _template(system),
        provider=fields.text("provider") or (None if model is None else model.text("provider")),
        model=fields.text("model") if model is None else model.text("id") or model.text("tier"),
        options=options,
        tools=tools,
        once=() if permissions is None else permissions.strings("once"),
        limits=read_limits(fields.child("limits")),
        max_output_retries=_whole(fields, "max_output_retries"),
        uses={**hook_tools(hooks), **dict(_uses(tools, fields))},
        hooks=hooks,
        warnings=warnings_in(findings),
    )


def _whole(fields: Fields, name: str) -> int:
    value = fields.integer(name)
    return value if value is not None else 0


def _template(node: nodes.Node) -> Template:
    return to_template(node, "directive")


def _uses(tools: Sequence[str], fields: Fields) -> Iterator[tuple[str, Span]]:
    """The tools that are named without `*`: each must exist before a run."""
    for tool in tools:
        if "*" not in tool and not tool.startswith("directive:"):
            yield tool.removeprefix("tool:"), fields.span("permissions")


# ── check ────────────────────────────────────────────────


def _findings(parts: DirectiveParts) -> list[Finding]:
    found = [
        from_format(one) for one in schema.validate(parts.head, schema.DIRECTIVE, called="the head")
    ]
    if any(finding.severity == "error" for finding in found):
        return sort_findings(found)
    fields = Fields("directive", parts.head, Scope())
    found += hook_findings(fields.get("hooks"))
    declared: dict[str, frozenset[str]] = {}
    for name in ("inputs", "outputs"):
        try:
            declared[name] = frozenset(parse_parameters(fields.get(name)))
        except InputError as error:
            found += map(Finding, error.problems)
    known = declared.get("inputs", frozenset())
    for field in find_templates(parts.as_document(), "directive").fields:
        found += map(_of_template, check_template(replace(field, declared=known), "directive"))
    if not str(parts.body.value).strip():
        fix = "write below the head what the model should do"
        found.append(
            Finding(Problem("this directive has no prompt", parts.body.span, fix, code="no-prompt"))
        )
    return sort_findings(found)


def _of_template(finding: Finding) -> Finding:
    """Turn an undeclared placeholder into a warning: it stays as written, which may be intended."""
    return replace(finding, severity="warning") if finding.code == "unknown-input" else finding
