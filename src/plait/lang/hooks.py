"""Check and read the hooks of a flow, of a user and of a project.

The names that a condition or a template of a hook may use depend on its event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from plait import schema
from plait.core import documents
from plait.core.digests import sha256_hex
from plait.core.documents import Mapping, Node, Scalar, Sequence
from plait.core.documents.nodes import span_at, text_field
from plait.core.errors import InputError, Problem, closest_name, format_names
from plait.core.hints import Final
from plait.core.source import Span
from plait.core.values import json_text
from plait.engine.hook_events import (
    ALWAYS,
    HOOK_EVENTS,
    LAYERS,
    NAMES,
    VERBS,
    Hook,
    HookCall,
    HookEvent,
)
from plait.lang.analysis.names import BuiltinName, strings
from plait.lang.analysis.scopes import KnownNames, TemplateField, with_script
from plait.lang.analysis.templates import check_template
from plait.lang.common import parse_condition
from plait.lang.findings import Finding
from plait.schema import Fields, fingerprint_data, to_template
from plait.schema.hook_tables import HOOKS, HOOKS_FILE
from plait.scope import Scope
from plait.scope.expressions import Expression
from plait.template.conditions import check as check_condition
from plait.template.grammar import parse_path
from plait.template.template import compile_template

FILE: Final = "hooks.yaml"
"""The file of hooks, below `config/` of the user space and of a project."""
_PREFIX: Final = "tool:"


# ── check ────────────────────────────────────────────────────────


def check_hooks_file(document: Node, *, space: str = "user") -> list[Finding]:
    """All findings of a hook file."""
    found = [Finding(problem) for problem in schema.validate(document, HOOKS_FILE)]
    return [*found, *hook_findings(_hooks_in(document), space=space)]


def hook_findings(node: Node | None, *, space: str = "flow") -> list[Finding]:
    """Findings of a list of hooks that the schema does not cover."""
    hooks = [item for item in _items(node) if isinstance(item, Mapping)]
    found = list(_same_ids(hooks))
    for hook in hooks:
        event = text_field(hook, "event")
        if event in HOOK_EVENTS:
            found += _of_event(hook, HOOK_EVENTS[event])
        found += _layer(hook, space)
    return found


def is_hooks_file(document: Node) -> bool:
    """Is it a list of hooks, or a map that has one and nothing else?"""
    match document:
        case Mapping(entries):
            return bool(entries) and all(key.value == "hooks" for key, _ in entries)
        case Sequence(items):
            return bool(items) and all(
                isinstance(one, Mapping) and one.get("event") for one in items
            )
    return False


def _hooks_in(document: Node) -> Node | None:
    return document.get("hooks") if isinstance(document, Mapping) else document


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if isinstance(node, Sequence) else ()


def _same_ids(hooks: Iterable[Mapping]) -> Iterator[Finding]:
    seen: set[str] = set()
    for hook in hooks:
        name, node = text_field(hook, "id"), hook.get("id")
        if name in seen and node is not None:
            what, fix = (
                f"two hooks of this list have the id '{name}'",
                "give one of them another id",
            )
            yield Finding(Problem(what, node.span, fix, code="duplicate-id"))
        seen.add(name or "")


def _of_event(hook: Mapping, event: HookEvent) -> Iterator[Finding]:
    verb, node = text_field(hook, "verb"), hook.get("verb")
    if node is not None and verb in VERBS and verb not in event.verbs:
        what = f"'{verb}' is not possible at {event.name}, where {event.what}"
        fix = f"use one of {', '.join(event.verbs)}"
        yield Finding(Problem(what, node.span, fix, code="hook-verb"))
    known = _event_names(event)
    yield from _literal_why(hook.get("why"), known)
    yield from _condition(hook.get("condition") or hook.get("when"), event, known)
    for action in (hook.get("action"), *_items(hook.get("actions"))):
        params = action.get("params") if isinstance(action, Mapping) else None
        if not isinstance(action, Mapping) or params is None:
            continue
        for field in with_script(
            action,
            [TemplateField("params", scalar, event.name, known) for scalar in strings(params)],
        ):
            yield from check_template(field, "graph")


def _literal_why(node: Node | None, known: KnownNames) -> Iterator[Finding]:
    """Find placeholders in a message: it is the author's text, so they are not filled."""
    if isinstance(node, Scalar) and isinstance(node.value, str):
        for named in compile_template(node.value, "workflow").placeholders:
            what = f"'why' is not a template: '{named}' stays as text"
            beside = (
                "; the failure itself is shown beside it"
                if "error" in known
                else ", or call a tool that reports it"
            )
            fix = f"remove it{beside}"
            yield Finding(Problem(what, node.span, fix, code="literal-placeholder"), "warning")


def _condition(node: Node | None, event: HookEvent, known: KnownNames) -> Iterator[Finding]:
    match node:
        case Scalar(str()):
            yield from check_template(
                TemplateField("condition", node, event.name, known, when=True), "workflow"
            )
        case Mapping():
            problems = check_condition(node.data(), locate=partial(span_at, node))
            yield from map(Finding, problems)
            yield from _paths(node, event, known)


def _paths(node: Node, event: HookEvent, known: KnownNames) -> Iterator[Finding]:
    """Find paths of a condition whose first name the event does not know."""
    match node:
        case Mapping(entries):
            path = node.get("path")
            if isinstance(path, Scalar) and isinstance(path.value, str) and path.value:
                yield from _path(path.value, path.span, event, known)
            for key, value in entries:
                if key.value != "value":
                    yield from _paths(value, event, known)
        case Sequence(items):
            for item in items:
                yield from _paths(item, event, known)


def _path(text: str, span: Span, event: HookEvent, known: KnownNames) -> Iterator[Finding]:
    try:
        path = parse_path(text)
    except InputError:
        return  # the check of the condition reports it
    if path.root not in known:
        guess = closest_name(path.root, known)
        fix = (
            f"did you mean '{guess}'? " if guess else ""
        ) + f"known at {event.name}: {format_names(known, most=20)}"
        yield Finding(Problem(f"unknown variable '{text}'", span, fix, code="unknown-name"))
        return
    fields, first = known[path.root].fields, path.keys[0] if path.keys else None
    if fields and isinstance(first, str) and first not in fields:
        guess = closest_name(first, fields)
        fix = (
            f"did you mean '{path.root}.{guess}'? " if guess else ""
        ) + f"{path.root} has: {format_names(fields)}"
        yield Finding(Problem(f"unknown variable '{text}'", span, fix, code="unknown-name"))


def _event_names(event: HookEvent) -> KnownNames:
    """The names of an event, nearest first."""
    wanted = (*event.names, *ALWAYS)
    names = [BuiltinName(name, (), NAMES[name][0], NAMES[name][1]) for name in wanted]
    names += [BuiltinName(name, (), "computed", offered=False) for name in ("env", "uuid")]
    return KnownNames(
        event.name, {name.name: (at, name) for at, name in enumerate(names)}, len(names)
    )


def _layer(hook: Mapping, space: str) -> Iterator[Finding]:
    node = hook.get("layer")
    own = LAYERS[space]
    if isinstance(node, Scalar) and isinstance(node.value, int) and 0 <= node.value < own:
        what = f"a hook of a {space} cannot run before those of layer {own}"
        yield Finding(Problem(what, node.span, f"write layer: {own}, or more", code="hook-layer"))


# ── read ────────────────────────────────────────────────────────


def read_hooks(
    node: Node | None, *, space: str = "flow", scope: Scope | None = None
) -> tuple[Hook, ...]:
    """The hooks of a list without problems."""
    outer = Scope() if scope is None else scope
    return tuple(
        _hook(Fields("hook", item, outer), space)
        for item in _items(node)
        if isinstance(item, Mapping)
    )


def load_hooks(text: str, name: str, *, space: str) -> tuple[Hook, ...]:
    """The hooks of a file; InputError with everything that is wrong with it."""
    document = documents.parse(text, name)
    problems = [
        one.problem for one in check_hooks_file(document, space=space) if one.severity == "error"
    ]
    if problems:
        raise InputError.together(problems)
    return read_hooks(_hooks_in(document), space=space)


def load_hook_list(node: Node | None, *, space: str = "flow") -> tuple[Hook, ...]:
    """The hooks of a list; InputError with everything that is wrong with it."""
    problems = [] if node is None else schema.validate(node, HOOKS, called="'hooks'")
    problems += [one.problem for one in hook_findings(node, space=space) if one.severity == "error"]
    if problems:
        raise InputError.together(problems)
    return read_hooks(node, space=space)


def hook_tools(hooks: Iterable[Hook]) -> dict[str, Span]:
    """The tools that hooks call, and where they name them."""
    calls = (
        call
        for hook in hooks
        for call in hook.calls
        if call.where is not None and ":" not in call.tool
    )
    return {call.tool: call.where for call in calls if call.where is not None}


def _hook(fields: Fields, space: str) -> Hook:
    event = fields.text("event") or ""
    layer = fields.integer("layer")
    return Hook(
        fields.text("id") or "",
        event,
        calls=tuple(_calls(fields)),
        condition=_when(fields),
        layer=LAYERS[space] if layer is None else layer,
        space=space,
        gate=fields.has("verb") if fields.optional_flag("gate") is None else fields.flag("gate"),
        verb=next((verb for verb in VERBS if verb == fields.text("verb")), None),
        why=fields.text("why") or "",
        max_retries=fields.integer("max_retries") or 0,
        delay=fields.seconds("delay") or 0.0,
        timeout=fields.seconds("timeout"),
        description=fields.text("description") or "",
        fingerprint=sha256_hex(
            json_text(fingerprint_data(fields.node, schema.Record("hook"))).encode()
        )[:16],
    )


def _calls(fields: Fields) -> Iterator[HookCall]:
    maps = [fields.get("action"), *fields.items("actions")]
    for node in maps:
        if isinstance(node, Mapping):
            action = Fields("hook_action", node, fields.scope)
            tool, params = action.get("tool"), action.get("params")
            assert tool is not None
            yield HookCall(
                (action.text("tool") or "").removeprefix(_PREFIX),
                None if params is None else to_template(params, "graph"),
                tool.span,
            )


def _when(fields: Fields) -> Expression | None:
    node = fields.get("condition")
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return None
    return parse_condition(node)
