"""Find the tool calls of a file, and check values in their code.

A placeholder in a parameter that is code is bound, or refused before anything runs.  `plait check`
and a run use the same check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Many

from plait import schema
from plait.core.documents import Mapping as Map
from plait.core.documents import Node, Scalar, Sequence
from plait.core.documents.files import read_text
from plait.core.documents.limits import MAX_TEXT
from plait.core.errors import Problem
from plait.core.hints import Final, TypeAlias
from plait.core.records import dataclass, field
from plait.core.source import Span
from plait.core.values import NOT_KNOWN, Json
from plait.engine.hook_events import Hook
from plait.lang.analysis.names import detect_profile, strings
from plait.lang.analysis.scopes import KnownNames, TemplateField, TemplateFields, find_templates
from plait.lang.analysis.shell import check_options, shell_pieces
from plait.lang.findings import Finding
from plait.lang.flow_text import MARKDOWN
from plait.lang.workflow.compose import Blocks, ComposedWorkflow, compose
from plait.program.actions.cli_agent import CLAUDE
from plait.program.graph.calls import drop_nulls, full_tool_id
from plait.schema import Fields, to_template
from plait.scope import Scope
from plait.template.profiles import Profile
from plait.template.shell.lexer import analyse
from plait.template.template import Branch, Constant, Leaf, Template
from plait.tools.code_params import SHELLS, CodeParams, CodePlace, shell_dialect

CodeOf: TypeAlias = Callable[[str], CodeParams | None]
"""Returns the parameters of a tool that are code, by its id; None if there is no such tool."""
_NOTHING: Final = Scope()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, with its parameters as written."""

    tool_id: str
    params: Template | None
    fields: Mapping[int, TemplateField] = field(default_factory=dict, repr=False)
    """The template field of each text of the parameters, by its identity."""
    where: Span | None = field(default=None, repr=False)
    """The place of the id, if it stands in a file."""
    written: Map | None = field(default=None, repr=False)
    """The parameters, if they stand in a file."""
    is_whole: bool = True
    """Are these all parameters? A run may add others."""
    omits_null: bool = False
    """Is a null parameter left out of the call, as in a graph?"""

    def params_with_unknowns(self) -> dict[str, Json]:
        """The parameters; values that only a run knows are unknown."""
        known = (
            {} if self.params is None else _render_constants(self.params.root, self.params.profile)
        )
        params = known if isinstance(known, dict) else {}
        return drop_nulls(params) if self.omits_null else params


def calls_in_file(
    path: str, document: Node | None, *, project: str | None = None
) -> Iterator[ToolCall]:
    """Yield every call of a file, of the files that it consists of, and of those that it calls."""
    if document is None:
        if path.endswith(MARKDOWN):
            from plait.lang.directive.split import split_directive

            head = split_directive(read_text(path, MAX_TEXT), path).head
            yield from calls_in_hooks(head.get("hooks"))
        return
    yield from calls_in_hooks(document)
    for place in ("hooks", "config.hooks"):
        yield from calls_in_hooks(document.at(place) if isinstance(document, Map) else None)
    match detect_profile(document):
        case "workflow":
            flow = compose(document, path)
            if not flow.problems:  # problems are reported; blocks may use themselves
                reading = find_templates(flow.document, "workflow", blocks=flow.blocks)
                yield from calls_in(reading, "workflow")
                for other in find_subworkflows(reading, path, project):
                    yield from tool_calls(other.document, "workflow", blocks=other.blocks)
        case "graph" | "prompt" as profile:
            yield from tool_calls(document, profile)


def find_subworkflows(
    reading: TemplateFields, path: str, project: str | None
) -> Iterator[ComposedWorkflow]:
    """Yield the workflow files that a file calls, directly or not, each once; their problems
    are ignored.
    """
    if reading.calls:
        from plait.lang.workflow.subworkflow import files_called

        yield from files_called(reading, path, project)


def tool_calls(
    document: Node, profile: str, *, blocks: Blocks | None = None
) -> tuple[ToolCall, ...]:
    """Every call of a document whose tool has no placeholders."""
    return calls_in(find_templates(document, profile, blocks=blocks), profile)


def calls_in(reading: TemplateFields, profile: str) -> tuple[ToolCall, ...]:
    by_scalar = {id(one.scalar): one for one in reading.fields}
    # A block is read at each use.
    maps = {(form, id(node)): node for form, node in reading.maps}
    found = (_call(form, node, profile, by_scalar) for (form, _), node in maps.items())
    return tuple(call for call in found if call is not None)


def calls_of_hooks(hooks: Iterable[Hook]) -> Iterator[ToolCall]:
    for hook in hooks:
        for call in hook.calls:
            yield ToolCall(call.tool, call.params, where=call.where)


def calls_in_hooks(node: Node | None) -> Iterator[ToolCall]:
    """The calls of hooks that are not read yet."""
    for hook in node.items if isinstance(node, Sequence) else ():
        several = hook.get("actions") if isinstance(hook, Map) else None
        one = hook.get("action") if isinstance(hook, Map) else None
        for action in (one, *(several.items if isinstance(several, Sequence) else ())):
            call = _call("hook_action", action, "graph", {}) if isinstance(action, Map) else None
            if call is not None:
                yield call


def code_findings(calls: Iterable[ToolCall], code_of: CodeOf) -> Iterator[Finding]:
    """Yield every placeholder in these calls that code must not contain, or not at its place."""
    for call in calls:
        code = code_of(call.tool_id) if call.params is not None else None
        if code and call.params is not None:
            refused = code.refusals(call.params)
            yield from map(Finding, refused)
            yield from () if refused else _of_shell(code.places(call.params), call)


def _call(
    form: str, node: Map, profile: str, by_scalar: Mapping[int, TemplateField]
) -> ToolCall | None:
    """The call of a map; None if it is not one, or its tool has placeholders."""
    table = schema.fields_by_spelling(form)
    name = next((name for name in ("params", "options") if name in table), None)
    if name is None or "tool" not in table:
        return None
    call = Fields(form, node, _NOTHING)
    tool, params = call.get("tool"), call.get(name)
    named = (
        CLAUDE
        if tool is None and form == "agent"
        else tool.value
        if isinstance(tool, Scalar)
        else None
    )
    if not isinstance(named, str) or not named or any(char in named for char in "${}"):
        return None
    is_directive = form == "action" and call.text("item_type") == "directive"
    tool_id = full_tool_id(named, is_directive)
    where = tool.span if isinstance(tool, Scalar) else None
    if not isinstance(params, Map | Scalar):
        return ToolCall(tool_id, None, where=where, is_whole=form != "agent" and params is None)
    template = to_template(params, "graph" if form in ("hook_action", "task") else profile)
    pairs = zip(template.leaves(), strings(params), strict=True)
    fields = {id(leaf): by_scalar[id(text)] for leaf, text in pairs if id(text) in by_scalar}
    written = params if isinstance(params, Map) else None
    # The tool of an agent also gets its prompt.
    is_whole = form != "agent" and written is not None
    omits_null = profile == "graph" and form != "hook_action"
    return ToolCall(tool_id, template, fields, where, written, is_whole, omits_null)


def _render_constants(node: Leaf | Branch | Constant, profile: Profile) -> Json:
    match node:
        case Branch(items, None):
            return [_render_constants(item, profile) for item in items]
        case Branch(items, keys):
            return {
                key: _render_constants(item, profile)
                for key, item in zip(keys or (), items, strict=True)
            }
        case Leaf():
            leaf = Template(node, profile)
            return NOT_KNOWN if leaf.placeholders else leaf.render({})
        case Constant(value):
            return value


def _of_shell(places: Many[CodePlace], call: ToolCall) -> Iterator[Finding]:
    """Yield values that shell text must not contain at their place, as in a `shell:` step."""
    for place in places:
        if place.mark.language not in SHELLS or any(
            flaw.fatal for flaw in place.leaf.compiled.flaws
        ):
            continue
        at = call.fields.get(id(place.leaf))
        dialect = shell_dialect(place.mark, {"shell": _param_source(call.params, "shell")})
        known = at.known if at is not None else KnownNames("flow", {}, 0)
        pieces = shell_pieces(place.leaf, known, dialect=dialect)
        lexed = analyse(pieces, dialect)
        for refusal in lexed.refusals:
            span = Span(place.leaf.source, refusal.start, refusal.end)
            yield Finding(Problem(refusal.what, span, refusal.fix, code=refusal.code))
        if at is not None and not lexed.refusals:
            yield from check_options(at, place.leaf, pieces, lexed)


def _param_source(params: Template | None, name: str) -> str | None:
    root = None if params is None else params.root
    if not isinstance(root, Branch) or root.keys is None or name not in root.keys:
        return None
    leaf = root.items[root.keys.index(name)]
    return leaf.source.text if isinstance(leaf, Leaf) else None
