"""`plait explain`: where every value of a template comes from, and what it becomes.

Nothing is run and no file is opened for a `${file:…}`: computed values are named, not
computed.  Values of the environment are never shown, only whether they are set.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping

from plait.cli.sh import SHOWN
from plait.cli.values import add_values, parse_values, read_template_text
from plait.core.errors import InputError, PlaitError, Problem, PromptTemplateError, closest_name
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.core.values import MASK, UNDEFINED, Json, Secret, json_text
from plait.lang.analysis.names import BuiltinName, detect_profile
from plait.lang.analysis.scopes import STEP_LISTS, TemplateField, find_templates
from plait.lang.analysis.shell import shell_pieces
from plait.scope import Scope
from plait.scope.frames import ALIASES
from plait.template.nodes import (
    Computed,
    ContextPlaceholder,
    EnvPlaceholder,
    Extract,
    FilledPlaceholder,
    InputPlaceholder,
    Literal,
    ParamPlaceholder,
    Parts,
    Path,
    Placeholder,
    PromptPlaceholder,
    Text,
    default_parts,
    nested_parts,
)
from plait.template.profiles import profile_named
from plait.template.program import PlacedValue
from plait.template.shell.binding import bind, plan
from plait.template.shell.lexer import SlotContext, ValueSlot, analyse
from plait.template.template import Leaf, compile_template
from plait.views.terminal import (
    Paint,
    cut,
    format_problem,
    paint_for,
    printable,
    problem_data,
    width,
    write_json,
)

if TYPE_CHECKING:
    from plait.cli.arguments import Parser
    from plait.core.documents.nodes import Node

EXAMPLES: Final = (
    """plait explain 'Hello ${name:-you}' --values '{"name": "world"}'""",
    "plait explain flow.yaml 'map[0]'",
)

BOUND: Final = {
    "bare": "bound as one word",
    "single": "bound inside '…'",
    "double": 'bound inside "…"',
    "dollar-single": "bound inside $'…'",
    "heredoc": "bound in the here-document",
    "parameter": "bound in an expansion",
    "quoted-parameter": "bound in an expansion",
    "quoted-pattern": "bound in an expansion",
    "arithmetic": "bound as an integer",
    "comment": "left out: a comment",
}
LEFT: Final = "left to the shell"
VALUELESS: Final = ("computed", "missing", "shell", "known", "environment")
MAX_VALUE: Final = 60
ONCE, ALWAYS_NEW = "read once per run", "new for every use"
COLOURS: Final = {
    "missing": "red",
    "alias": "yellow",
    "default": "yellow",
    "computed": "cyan",
    "shell": "dim",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One hole: what answers it, and what becomes of the value."""

    text: str
    kind: str
    stage: int
    status: str
    answer: str
    value: str | None = None
    bound: str | None = None
    inner: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    label: str
    place: str
    text: str
    profile: str
    rows: tuple[Row, ...]
    runs_as: str | None = None
    problems: tuple[Problem, ...] = ()


def configure(parser: Parser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", help="a template, - for standard input, or a YAML file"
    )
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a place in the file, for example map[0]"
    )
    parser.add_argument(
        "--profile", metavar="P", help="workflow (default), graph, config, prompt or directive"
    )
    add_values(parser)
    parser.add_argument(
        "--shell", action="store_true", help="TEXT is shell text: show how values are bound"
    )
    parser.add_argument("--json", action="store_true", help="the same for programs")


def run(options: argparse.Namespace) -> int:
    scope = Scope(parse_values(options))
    explained = list(_all_explained(options, scope))
    if options.json:
        write_json([_data(explanation) for explanation in explained])
        return 0
    paint, columns = paint_for(sys.stdout), width(sys.stdout)
    for number, explanation in enumerate(explained):
        if number:
            print()
        for line in render_explanation(explanation, paint, columns, headed=len(explained) > 1):
            print(line)
    return 0


def _all_explained(options: argparse.Namespace, scope: Scope) -> Iterator[Explanation]:
    if _names_a_file(options.text):
        yield from _file(options.text, options.path, options.profile, scope)
        return
    if options.path is not None:
        raise InputError(
            "there is no such file",
            options.text[:200],
            "PATH is a place in a YAML file",
            code="no-file",
        )
    profile = profile_named(options.profile or "workflow").name
    template = read_template_text(options.text)
    known = {name: BuiltinName(name, (), "given") for name in scope.names}
    field = TextField(template, profile, known, shell=options.shell)
    yield explain(field, Source("<template>", template), scope)


def _names_a_file(text: str) -> bool:
    if "\0" in text or "\n" in text:
        return False
    return os.path.isfile(text) or (text.endswith((".yaml", ".yml", *MARKDOWN)) and " " not in text)


# ── files ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TextField:
    """What is known about a template on its own; `Field` says the same for one in a file."""

    text: str
    profile: str
    known: Mapping[str, BuiltinName]
    shell: bool
    phase: str = "flow"
    label: str = "text"
    place: str = ""


def _file(
    path: str, wanted: str | None, profile: str | None, scope: Scope
) -> Iterator[Explanation]:
    document = _document(path)
    said = profile or ("directive" if path.endswith(MARKDOWN) else None)
    profile = profile_named(said).name if said else detect_profile(document)
    if profile is None:
        what = "this file has none of the shapes that Plait knows"
        raise InputError(what, path, "say what it is: --profile workflow", code="no-profile")
    fields = find_templates(document, profile, names=scope.names).fields
    chosen = [field for field in fields if wanted is None or _is_at(field, wanted)]
    if not chosen:
        raise _nothing_there(path, wanted, fields)
    for field in chosen:
        label = re.split(r"[.\[]", _without_index(field.path))[-1]
        place = f"{field.path} ({field.scalar.span})"
        known = TextField(
            str(field.scalar.value), profile, field.known, field.shell, field.phase, label, place
        )
        explanation = explain(known, field.scalar.source(), scope)
        if wanted is not None or explanation.rows or explanation.problems:
            yield explanation


MARKDOWN: Final = (".md", ".markdown")
"""What a directive is written in."""


def _document(path: str) -> Node:
    if path.endswith(MARKDOWN):
        from plait.lang.directive.read import directive_document

        return directive_document(path)
    from plait.core import documents

    return documents.load(path)


def _without_index(path: str) -> str:
    return re.sub(r"(\[\d+\])+$", "", path)


_LISTS: Final = re.compile(rf"\.({'|'.join(STEP_LISTS)})(?=\[)")


def _is_at(field: TemplateField, wanted: str) -> bool:
    """`map[0]` is short for `map.agent_template[0]`."""
    for path in (field.path, _LISTS.sub("", field.path)):
        if path == wanted or (path.startswith(wanted) and path[len(wanted)] in ".["):
            return True
    return False


def _nothing_there(path: str, wanted: str | None, fields: tuple[TemplateField, ...]) -> InputError:
    if wanted is None:
        return InputError(
            "there is no template in this file", path, "see plait check", code="no-template"
        )
    known = [_LISTS.sub("", field.path) for field in fields]
    guess = closest_name(wanted, known)
    fix = f"did you mean '{guess}'?" if guess else "without PATH, all templates are shown"
    return InputError(f"there is no template at '{wanted[:60]}'", path, fix, code="no-template")


# ── one template ─────────────────────────────────────────────────────────


def explain(field: TextField, source: Source, scope: Scope) -> Explanation:
    leaf = compile_template(field.text, field.profile, source=source).leaf
    flaws = [
        Problem(f.what, Span(source, f.start, f.end), f.fix, code=f.code)
        for f in leaf.program.flaws
    ]
    places, runs_as, refused = _bind_field(field, leaf, scope) if field.shell else ({}, None, [])
    rows = tuple(_rows(leaf.program.parts, field, source, scope, places))
    return Explanation(
        field.label, field.place, field.text, field.profile, rows, runs_as, (*flaws, *refused)
    )


def _rows(
    parts: Parts, field: TextField, source: Source, scope: Scope, places: Mapping[int, str]
) -> Iterator[Row]:
    for part in parts:
        if isinstance(part, Text | FilledPlaceholder):
            continue
        status, answer = _answer(part, field, scope)
        bound = places.get(part.start)
        if status == "missing":
            status, answer = ("shell", LEFT) if bound == LEFT else (status, answer)
            bound = None
        shown = None if status in VALUELESS else _value(part, field, source, scope)
        inner = tuple(
            row for nested in nested_parts(part) for row in _rows(nested, field, source, scope, {})
        )
        text = source.text[part.start : part.end]
        yield Row(text, part.kind, part.stage, status, answer, shown, bound, inner)


def _answer(placeholder: Placeholder, field: TextField, scope: Scope) -> tuple[str, str]:
    """Status, and in words what answers the hole."""
    match placeholder:
        case ContextPlaceholder():
            found = next(
                (
                    a
                    for a in (_origin(a.origin, field, scope) for a in placeholder.alternatives)
                    if a
                ),
                None,
            )
            if found is None and any(step.name == "default" for step in placeholder.filters):
                found = ("default", "its filter 'default'")
        case InputPlaceholder():
            inputs = scope.names.get("inputs")
            given = isinstance(inputs, Mapping) and placeholder.key in inputs
            found = (
                ("found", "an input")
                if given
                else ("default", "optional: empty")
                if placeholder.optional
                else None
            )
        case EnvPlaceholder():
            found = (
                ("environment", "the environment: set") if placeholder.name in os.environ else None
            )
        case ParamPlaceholder() | PromptPlaceholder():
            found = _name(Path(placeholder.name), field, scope)
    if found is not None:
        return found
    if default_parts(placeholder) is not None:
        return "default", "its default"
    return "missing", _missing(placeholder, field)


def _missing(placeholder: Placeholder, field: TextField) -> str:
    if (
        isinstance(placeholder, ContextPlaceholder | EnvPlaceholder)
        and placeholder.required is not None
    ):
        return "missing: an error, it is required"
    if isinstance(placeholder, EnvPlaceholder):
        return "not set: empty"
    if profile_named(field.profile).always_strict:
        return "missing: an error"
    empty = (
        isinstance(placeholder, ContextPlaceholder)
        and profile_named(field.profile).missing_context == "empty"
    )
    return "missing: empty" if empty else "missing: stays as written"


def _origin(
    origin: Path | Literal | Computed | Extract, field: TextField, scope: Scope
) -> tuple[str, str] | None:
    match origin:
        case Literal():
            return "found", "written here"
        case Path():
            return _name(origin, field, scope)
        case Extract(origin=holder):
            return _name(holder, field, scope)
        case Computed(kind, variable=variable):
            if variable is not None and kind in scope.names:
                return _name(Path(kind), field, scope)
            return "computed", f"computed, {ALWAYS_NEW if kind == 'date' else ONCE}"


def _name(path: Path, field: TextField, scope: Scope) -> tuple[str, str] | None:
    origin = scope.origin(path.root)
    if origin is not None:
        if scope.lookup(path) is UNDEFINED:
            return None
        return "found", f"frame {origin.frame}, level {origin.level}"
    if path.root in ALIASES and scope.lookup(path) is not UNDEFINED:
        return "alias", f"deprecated name of item.{ALIASES[path.root]}"
    if path.root == "env" and len(path.keys) == 1:
        state = "set" if str(path.keys[0]) in os.environ else "not set"
        return ("computed", f"environment, {ONCE}: {state}") if state == "set" else None
    if path.root == "uuid" and not path.keys:
        return "computed", f"computed, {ALWAYS_NEW}"
    if path.root in field.known:
        return "known", f"known in {field.phase}: {field.known[path.root].what}"
    if path.root in ALIASES and field.phase == "map":
        return "alias", f"deprecated name of item.{ALIASES[path.root]}"
    return None


def _value(placeholder: Placeholder, field: TextField, source: Source, scope: Scope) -> str | None:
    """The value as it will be, for people; None when it is not known here."""
    value = _placeholder_value(placeholder, field, source, scope)
    if value is UNDEFINED:
        return None
    if isinstance(value, PlaitError):
        return f"refused: {value.what}"
    if isinstance(value, Secret):
        return MASK
    return value if isinstance(value, str) and value else json_text(value)


def _placeholder_value(
    placeholder: Placeholder, field: TextField, source: Source, scope: Scope
) -> Json:
    # A hole is a template of its own, and this scope has no files, commands or environment behind
    # it.
    alone = compile_template(source.text[placeholder.start : placeholder.end], field.profile)
    try:
        [piece] = alone.pieces(scope)
    except PromptTemplateError:
        return UNDEFINED
    except PlaitError as error:
        return error
    return piece.value if isinstance(piece, PlacedValue) else UNDEFINED


# ── shell text ───────────────────────────────────────────────────────────


def _bind_field(
    field: TextField, leaf: Leaf, scope: Scope
) -> tuple[dict[int, str], str | None, list[Problem]]:
    """How each hole is bound, what would run, and what is refused."""
    pieces = shell_pieces(leaf, field.known)
    gaps = [piece for piece in pieces if isinstance(piece, ValueSlot)]
    lexed = analyse(pieces, "sh")
    places = {part.start: LEFT for part in leaf.program.parts if not isinstance(part, Text)}
    holes = {
        part.start: part
        for part in leaf.program.parts
        if not isinstance(part, Text | FilledPlaceholder)
    }
    values = [_stand_in(holes[gap.start], field, leaf.source, scope) for gap in gaps]
    for gap, place, (value, _) in zip(gaps, lexed.places, values, strict=True):
        places[gap.start] = _binding(gap, place, value)
    try:
        planned = plan(pieces, "sh", leaf.source)
        shown = bind(
            planned, [value for value, _ in values], trusted=[not given for _, given in values]
        ).shown
    except PlaitError as error:
        return places, None, list(error.problems)
    return places, shown, []


def _binding(gap: ValueSlot, place: SlotContext, value: Json) -> str:
    if gap.raw:
        return "pasted as code (:raw)"
    return (
        "bound, one word per element"
        if place.spread and isinstance(value, list)
        else BOUND[place.state]
    )


def _stand_in(
    placeholder: Placeholder, field: TextField, source: Source, scope: Scope
) -> tuple[Json, bool]:
    """The value, and whether it was given; what is not known yet is shown as it is written."""
    status, _ = _answer(placeholder, field, scope)
    value = (
        UNDEFINED if status in VALUELESS else _placeholder_value(placeholder, field, source, scope)
    )
    if value is UNDEFINED or isinstance(value, PlaitError):
        return source.text[placeholder.start : placeholder.end], False
    return value, True


# ── drawing ──────────────────────────────────────────────────────────────


def render_explanation(
    explanation: Explanation, paint: Paint, columns: int | None, *, headed: bool
) -> Iterator[str]:
    if headed and explanation.place:
        yield paint(printable(explanation.place), "dim")
    margin = max(len(explanation.label), len("runs as")) + 1
    indent = " " * margin
    for number, line in enumerate(explanation.text.rstrip("\n").split("\n")):
        label = explanation.label.ljust(margin) if number == 0 else indent
        yield paint(label, "bold") + printable(line)
    cells = list(_cells(explanation.rows, ""))
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in range(3)]
    for *plain, colour in cells:
        yield from _lines(plain, widths, indent, paint, colour, columns)
    if not explanation.rows:
        yield indent + paint("no holes: this text is the same for every value", "dim")
    if explanation.runs_as is not None:
        first, *rest = printable(explanation.runs_as.rstrip("\n")).split("\n")
        note = paint(SHOWN, "dim")
        yield paint("runs as".ljust(margin), "bold") + first + ("" if rest else f"      {note}")
        yield from (indent + line for line in rest)
        if rest:
            yield indent + note
    for problem in explanation.problems:
        yield format_problem(problem, paint)


def _cells(rows: tuple[Row, ...], before: str) -> Iterator[tuple[str, str, str, str, str]]:
    for number, row in enumerate(rows):
        last = number == len(rows) - 1
        branch = "└ " if last else "├ "
        colour = COLOURS.get(row.status, "green")
        kind = f"{row.kind}, stage {row.stage}" if row.stage else row.kind
        value = "" if row.value is None else cut(row.value, MAX_VALUE)
        yield (
            before + branch + cut(row.text, 42),
            f"{kind}: {row.answer}",
            value,
            row.bound or "",
            colour,
        )
        yield from _cells(row.inner, before + ("  " if last else "│ "))


def _lines(
    cells: list[str], widths: list[int], indent: str, paint: Paint, colour: str, columns: int | None
) -> Iterator[str]:
    """One row; on a terminal too narrow for it, one line for each of its cells.

    Only the value is cut: what answers and how it is bound rather wraps than is lost.
    """
    hole, answer, value, bound = cells
    wide = len(indent) + sum(widths) + len(bound) + 9
    if columns is None or wide <= columns:
        value = value.ljust(widths[2]) if bound else value
        line = (
            f"{indent}{hole.ljust(widths[0])}   {paint(answer.ljust(widths[1]), colour)}   {value}"
        )
        yield f"{line}   {paint(bound, 'dim')}".rstrip()
        return
    below = indent + "    "
    yield indent + hole
    yield below + paint(answer, colour)
    if value:
        yield below + cut(value, max(columns - len(below), 8))
    if bound:
        yield below + paint(bound, "dim")


def _data(explanation: Explanation) -> Json:
    data: dict[str, Json] = {
        "place": explanation.place or None,
        "text": explanation.text,
        "profile": explanation.profile,
        "holes": [_row_data(row) for row in explanation.rows],
    }
    if explanation.runs_as is not None:
        data["runs_as"] = explanation.runs_as
    if explanation.problems:
        data["problems"] = [problem_data(problem) for problem in explanation.problems]
    return data


def _row_data(row: Row) -> Json:
    data: dict[str, Json] = {
        "hole": row.text,
        "kind": row.kind,
        "stage": row.stage,
        "status": row.status,
        "answer": row.answer,
        "value": row.value,
    }
    if row.bound is not None:
        data["bound"] = row.bound
    if row.inner:
        data["inner"] = [_row_data(inner) for inner in row.inner]
    return data
