"""Read `input:`: a file, a glob, a command, a list, or a plain string.

    input: items.json                       a file that exists, or a glob if it has * ? [
    input: [a, b]                           these items
    input: {file: data.txt, format: csv}
    input: {glob: "src/**/*.py"}
    input: {command: git ls-files, format: text}
    input: {items: [{name: a}]}

A plain string is never a command. Texts are templates, filled when the items are read.
"""

from __future__ import annotations

from plait.core.documents import Mapping, Node, Scalar, Sequence, check_keys
from plait.core.errors import InputError, PlaitError, Problem, closest_name, format_names
from plait.core.hints import Final, TypeAlias
from plait.core.records import dataclass
from plait.core.source import Span
from plait.core.values import json_value
from plait.schema import to_template as tree_of
from plait.schema.map_tables import FORMATS
from plait.template.template import Template, compile_template

KINDS: Final = ("file", "glob", "command", "items")


@dataclass(frozen=True, slots=True)
class FileInput:
    path: Template
    span: Span
    format: str | None = None


@dataclass(frozen=True, slots=True)
class GlobInput:
    pattern: Template
    span: Span


@dataclass(frozen=True, slots=True)
class CommandInput:
    """Shell text; the code that runs it binds its values."""

    command: Template
    span: Span
    format: str | None = None


@dataclass(frozen=True, slots=True)
class ItemsInput:
    items: Template
    span: Span


@dataclass(frozen=True, slots=True)
class AutoInput:
    """A string: reading it decides whether it is a file or a glob."""

    text: Template
    span: Span


InputSpec: TypeAlias = FileInput | GlobInput | CommandInput | ItemsInput | AutoInput


def spec_template(spec: InputSpec) -> Template:
    """The template of an input."""
    match spec:
        case FileInput(template) | GlobInput(template) | CommandInput(template):
            return template
        case ItemsInput(template) | AutoInput(template):
            return template


def read_input(node: Node) -> InputSpec:
    """Read the value of `input:`; raises InputError with all problems."""
    match node:
        case Scalar(str(text)) if _is_json(text):
            what, fix = "these are items, written as text", "write them without quotes, as a list"
            raise InputError(what, node.span, fix, code="bad-input")
        case Scalar(str()):
            return AutoInput(_template(node), node.span)
        case Sequence():
            return ItemsInput(tree_of(node), node.span)
        case Mapping():
            return _parse_mapping(node)
        case Scalar():
            fix = "name a file, or write {command: …}, {glob: …} or a list"
            raise InputError("an input is text, a list or a map", node.span, fix, code="bad-input")


def _is_json(text: str) -> bool:
    if text[:1] not in ("[", "{"):
        return False
    try:
        json_value(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse_mapping(node: Mapping) -> InputSpec:
    problems = [*check_keys(node, (*KINDS, "format"), kind="map input"), *_kind_problems(node)]
    form = _format(node, problems)
    kind = next((kind for kind in KINDS if node.get(kind) is not None), "")
    entry = node.get(kind)
    if kind == "items" and not isinstance(entry, Sequence | None):
        problems.append(_wrong("'items' is a list", entry.span, "write items: [ … ]"))
    if kind in ("file", "glob", "command") and not _is_text(entry):
        span = entry.span if entry else node.span
        problems.append(_wrong(f"'{kind}' is text", span, f"write {kind}: and one text"))
    if problems or entry is None:
        raise InputError.together(problems)
    match kind:
        case "file":
            return FileInput(_template(entry), entry.span, form)
        case "glob":
            return GlobInput(_template(entry), entry.span)
        case "command":
            return CommandInput(_template(entry), entry.span, form)
        case _:
            return ItemsInput(tree_of(entry), entry.span)


def _kind_problems(node: Mapping) -> list[Problem]:
    kinds = [kind for kind in KINDS if node.get(kind) is not None]
    if len(kinds) == 1:
        return []
    if not kinds:
        return [
            _wrong("this input names no source", node.span, f"write one of: {format_names(KINDS)}")
        ]
    names = " and ".join(f"'{kind}'" for kind in kinds)
    return [_wrong(f"{names} cannot be combined in one input", node.span, "keep one of them")]


def _format(node: Mapping, problems: list[Problem]) -> str | None:
    entry = node.get("format")
    if entry is None:
        return None
    if node.get("file") is None and node.get("command") is None:
        problems.append(_wrong("only a file or a command has a format", entry.span, "leave it out"))
    name = entry.value if isinstance(entry, Scalar) else None
    if isinstance(name, str) and name in FORMATS:
        return name
    meant = closest_name(str(name), FORMATS)
    fix = (f"did you mean '{meant}'? " if meant else "") + f"formats: {format_names(FORMATS)}"
    problems.append(_wrong("there is no such format", entry.span, fix))
    return None


def _template(node: Node) -> Template:
    assert isinstance(node, Scalar)
    try:
        return compile_template(str(node.value), "workflow", source=node.source())
    except PlaitError as error:
        raise InputError.together(
            Problem(problem.what, node.span, problem.fix, code=problem.code)
            for problem in error.problems
        ) from None


def _is_text(node: Node | None) -> bool:
    return isinstance(node, Scalar) and isinstance(node.value, str) and bool(node.value.strip())


def _wrong(what: str, where: Span, fix: str) -> Problem:
    return Problem(what, where, fix, code="bad-input")
