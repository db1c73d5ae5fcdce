"""A directive: a prompt in a Markdown file, and above it what it needs and may do.

    ---
    description: Look at one file
    inputs: {file: string, depth: {type: integer, default: 1}}
    permissions: [core/file/*]
    limits: {turns: 8}
    ---
    Read {input:file} and say what is wrong with it.

    read_directive   text → what the file says, or one error with everything that is wrong
    load_directive   the same with its inputs: an agent that can run

The head may stand in a block of XML as well, see `rye_xml`; a file without a head is a prompt.
What is given is put into the prompt once.  It is a value: whatever it looks like, it stays that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from plait import schema as format
from plait.agents.session import AgentStep
from plait.core import documents
from plait.core.documents import nodes
from plait.core.documents.files import read_text
from plait.core.documents.limits import MAX_TEXT
from plait.core.documents.positions import VERBATIM
from plait.core.errors import InputError, PlaitError, Problem
from plait.core.hints import Final
from plait.core.records import dataclass, replace
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED, Json
from plait.engine.hooks import Hook
from plait.engine.limits import Limits
from plait.lang.analysis.scopes import find_templates
from plait.lang.analysis.templates import check_template
from plait.lang.common import read_limits, with_default_turns
from plait.lang.directive.xml_head import is_head, parse_xml_head
from plait.lang.environment import FlowEnvironment
from plait.lang.findings import Finding
from plait.lang.hooks import hook_findings, hook_tools, read_hooks
from plait.lang.loaded import LoadedFlow
from plait.lang.parameters import Parameter, parse_parameters, resolve_parameters
from plait.program.program import STEP, DirectiveProgram, FilledDirective
from plait.schema import Fields, to_template
from plait.scope import Scope
from plait.template.sinks import render_json_value, render_text
from plait.template.template import Template


@dataclass(frozen=True, slots=True)
class Directive:
    """What a file says, before it is given anything."""

    name: str
    path: str
    description: str
    inputs: Mapping[str, Parameter]
    outputs: Mapping[str, Parameter]
    body: Template
    content: Template
    """The head, as it is written."""
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
    """As they are written."""
    max_output_retries: int
    uses: Mapping[str, Span]
    hooks: tuple[Hook, ...] = ()
    warnings: tuple[Finding, ...] = ()

    def fill(self, given: Mapping[str, Json], *, strict: bool = False) -> FilledDirective:
        """With its inputs; InputError with everything that does not fit, or is missing."""
        values = resolve_parameters(self.inputs, given)
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

    def conversation(self, filled: FilledDirective) -> AgentStep:
        return AgentStep(
            STEP,
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

    def input_schema(self) -> dict[str, Json]:
        """What it takes, for a model that may call it."""
        return parameters_schema(self.inputs) or {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        }


def load_directive(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,  # noqa: ARG001 - the signature of load_flow; a directive has no profiles
    strict: bool | None = None,
    max_parallel: int | None = None,  # noqa: ARG001 - one conversation
    environ: Mapping[str, str] | None = None,
    text: str | None = None,
) -> LoadedFlow:
    """The agent in a file; InputError with everything that is wrong with it or with what it is
    given.

    `text`: what the file holds, if somebody has read and judged it already.
    """
    directive = read_directive(read_text(path, MAX_TEXT) if text is None else text, path)
    filled = directive.fill(given or {}, strict=bool(strict))
    return LoadedFlow(
        DirectiveProgram(directive.name, directive.conversation(filled), filled, directive.limits),
        path,
        os.path.dirname(os.path.realpath(path)) if project is None else project,
        filled.inputs,
        FlowEnvironment({}, {}, {}),
        directive.inputs,
        tool_uses=directive.uses,
        warnings=directive.warnings,
        strict=bool(strict),
        kind="directive",
        hooks=directive.hooks,
        environ=environ or {},
    )


def parameters_schema(parameters: Mapping[str, Parameter]) -> dict[str, Json] | None:
    """Parameters as JSON Schema; None if there are none."""
    if not parameters:
        return None
    return {
        "type": "object",
        "properties": {name: _property(one) for name, one in parameters.items()},
        "required": [name for name, one in parameters.items() if one.required],
        "additionalProperties": False,
    }


def _property(parameter: Parameter) -> dict[str, Json]:
    schema: dict[str, Json] = {} if parameter.type == "any" else {"type": parameter.type}
    if parameter.description:
        schema["description"] = parameter.description
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.pattern is not None:
        schema["pattern"] = f"^(?:{parameter.pattern})$"
    if parameter.default is not UNDEFINED:
        schema["default"] = parameter.default
    return schema


# ── what a file says ─────────────────────────────────────────────────────


def read_directive(text: str, path: str) -> Directive:
    """InputError with every problem of the file."""
    parts = split_directive(text, path)
    findings = _findings(parts)
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    said = Fields("directive", parts.head, Scope())
    permissions = said.child("permissions")
    tools = said.strings("permissions") if permissions is None else permissions.strings("tools")
    model = said.child("model")
    options = {name: node.data() for name, node in said.entries("options")}
    system, actions = said.get("system"), said.get("actions")
    hooks = read_hooks(said.get("hooks"), scope=Scope())
    return Directive(
        name=said.text("name") or os.path.splitext(os.path.basename(path))[0],
        path=path,
        description=said.text("description") or "",
        inputs=_field_parameters(said, "inputs"),
        outputs=_field_parameters(said, "outputs"),
        body=_template(parts.body),
        content=_template(parts.content),
        raw=_template(parts.raw),
        actions=_template(actions or nodes.Sequence((), parts.head.span)),
        system=None if system is None else _template(system),
        provider=said.text("provider") or (None if model is None else model.text("provider")),
        model=said.text("model") if model is None else model.text("id") or model.text("tier"),
        options=options,
        tools=tools,
        once=() if permissions is None else permissions.strings("once"),
        limits=read_limits(said.child("limits")),
        max_output_retries=_whole(said, "max_output_retries"),
        uses={**hook_tools(hooks), **dict(_uses(tools, said))},
        hooks=hooks,
        warnings=tuple(finding for finding in findings if finding.severity == "warning"),
    )


def check_directive(path: str) -> list[Finding]:
    """All findings of one file, sorted by place."""
    try:
        return _findings(split_directive(read_text(path, MAX_TEXT), path))
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]


def hooks_in(path: str) -> nodes.Node | None:
    """The hooks of a file, as they are written; None if it has none that could be read."""
    try:
        return split_directive(read_text(path, MAX_TEXT), path).head.get("hooks")
    except PlaitError:
        return None


def _whole(fields: Fields, name: str) -> int:
    value = fields.integer(name)
    return value if value is not None else 0


def _template(node: nodes.Node) -> Template:
    return to_template(node, "directive")


def _uses(tools: Sequence[str], fields: Fields) -> Iterator[tuple[str, Span]]:
    """The tools that are named one by one: each has to be there before anything runs."""
    for tool in tools:
        if "*" not in tool and not tool.startswith("directive:"):
            yield tool.removeprefix("tool:"), fields.span("permissions")


def _field_parameters(fields: Fields, name: str) -> dict[str, Parameter]:
    node = fields.get(name)
    if node is None:
        return {}
    return parse_parameters(
        nodes.Mapping(((nodes.Scalar("parameters", node.span), node),), node.span)
    )


# ── what is wrong with it ────────────────────────────────────────────────


def _findings(parts: DirectiveParts) -> list[Finding]:
    found = [
        _of_format(one) for one in format.validate(parts.head, format.DIRECTIVE, called="the head")
    ]
    if any(finding.severity == "error" for finding in found):
        return _sort_findings(found)
    said = Fields("directive", parts.head, Scope())
    found += hook_findings(said.get("hooks"))
    for name in ("inputs", "outputs"):
        try:
            _field_parameters(said, name)
        except InputError as error:
            found += map(Finding, error.problems)
    known = frozenset(_names(said.get("inputs")))
    for field in find_templates(_as_document(parts), "directive").fields:
        found += map(_of_template, check_template(replace(field, declared=known), "directive"))
    if not str(parts.body.value).strip():
        fix = "write below the head what the model is to do"
        found.append(
            Finding(Problem("this directive has no prompt", parts.body.span, fix, code="no-prompt"))
        )
    return _sort_findings(found)


def directive_document(path: str) -> nodes.Mapping:
    """The head of a file with its prompt as `body`, for whoever looks at the templates in it."""
    return _as_document(split_directive(read_text(path, MAX_TEXT), path))


def _as_document(parts: DirectiveParts) -> nodes.Mapping:
    body = (nodes.Scalar("body", parts.body.span), parts.body)
    return nodes.Mapping((*parts.head.entries, body), parts.head.span)


def _of_format(problem: Problem) -> Finding:
    return Finding(problem, "warning" if problem.code in format.WARNED else "error")


def _of_template(finding: Finding) -> Finding:
    """A reference to something that is not declared stays as it is written, so it may be meant."""
    return replace(finding, severity="warning") if finding.code == "unknown-input" else finding


def _sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.problem.place)


def _names(node: nodes.Node | None) -> Iterator[str]:
    if node is None:
        return
    try:
        yield from parse_parameters(
            nodes.Mapping(((nodes.Scalar("parameters", node.span), node),), node.span)
        )
    except InputError:
        return  # which is told elsewhere


# ── head and prompt ──────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class DirectiveParts:
    """A file, taken apart."""

    head: nodes.Mapping
    content: nodes.Scalar
    body: nodes.Scalar
    raw: nodes.Scalar


_SIGNED: Final = re.compile(r"<!-- (?:plait|rye):signed:[^\n]*\n")
_DASHES: Final = re.compile(r"---[ \t]*\r?\n")
_END: Final = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.MULTILINE)
_FENCE: Final = re.compile(r"^(`{3,})([^\s`]*)[ \t]*\r?$", re.MULTILINE)


def split_directive(text: str, path: str) -> DirectiveParts:
    source = Source(path, text.removeprefix("\ufeff"))
    start = found.end() if (found := _SIGNED.match(source.text)) else 0
    if _DASHES.match(source.text, start):
        return _with_front_matter(source, start)
    fence = _xml_fence(source, start)
    return _without_head(source, start) if fence is None else _with_xml(source, start, *fence)


def _with_front_matter(source: Source, start: int) -> DirectiveParts:
    opened = _DASHES.match(source.text, start)
    assert opened is not None
    closed = _END.search(source.text, opened.end())
    if closed is None:
        what = "the head begins with '---' and has no end"
        raise InputError(
            what, Span(source, start, start + 3), "write '---' below it", code="bad-head"
        )
    # What is above it counts as empty lines, so that places are those of the file.
    above = "".join(char if char in "\r\n" else " " for char in source.text[: opened.end()])
    head = documents.parse(above + source.text[opened.end() : closed.start()], source.name)
    if isinstance(head, nodes.Scalar) and head.value is None:
        head = nodes.Mapping((), Span(source, start, opened.end()))
    if not isinstance(head, nodes.Mapping):
        raise InputError(
            "the head of a directive is a map", head.span, "write name: …", code="bad-head"
        )
    return _parts(source, start, head, (opened.end(), closed.start()), closed.end())


def _with_xml(source: Source, start: int, first: int, last: int, behind: int) -> DirectiveParts:
    return _parts(source, start, parse_xml_head(source, first, last), (first, last), behind)


def _without_head(source: Source, start: int) -> DirectiveParts:
    return _parts(
        source, start, nodes.Mapping((), Span(source, start, start)), (start, start), start
    )


def _parts(
    source: Source, start: int, head: nodes.Mapping, content: tuple[int, int], behind: int
) -> DirectiveParts:
    return DirectiveParts(
        head,
        _passage(source, *content),
        _passage(source, behind, len(source.text)),
        _passage(source, start, len(source.text)),
    )


def _passage(source: Source, start: int, end: int) -> nodes.Scalar:
    """A piece of the file without the blank space around it."""
    text = source.text[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    return nodes.Scalar(text, Span(source, start, start + len(text)), VERBATIM)


def _xml_fence(source: Source, start: int) -> tuple[int, int, int] | None:
    """The block of XML that holds the head: its text, and where it ends; not one inside another
    block.
    """
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(source.text, start):
        if opened is None:
            opened = fence
            continue
        if fence[2] or len(fence[1]) < len(opened[1]):
            continue
        first, last = opened.end() + 1, fence.start()
        if opened[2] == "xml" and is_head(source.text[first:last]):
            return first, last, fence.end()
        opened = None
    if opened is not None and opened[2] == "xml" and is_head(source.text[opened.end() :]):
        where = Span(source, opened.start(), opened.end())
        raise InputError(
            "this block of XML has no end", where, "write ``` below it", code="bad-head"
        )
    return None
