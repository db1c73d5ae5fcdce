"""Parameters that are code: how a schema marks them, and how values reach them.

    x-code: shell            the parameter is code in this language
    x-code-values: values    `${name}` in the code is the value of that name in `values`

A value never becomes part of such a parameter. If the tool has `x-code-values`, a placeholder in
the code becomes `${value_1}` and its value goes into that other parameter. Otherwise the
placeholder is refused. All code that fills parameters of tools uses `CodeParams.fill`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.core.errors import Problem, ShellRefusedError
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass
from plait.core.source import Span
from plait.core.values import Json
from plait.template.compiled import PlacedValue
from plait.template.nodes import ContextPlaceholder, FilledPlaceholder, Placeholder, Text
from plait.template.sinks import is_author_placeholder, original_placeholder, render_json_value
from plait.template.template import Branch, Constant, Leaf, Node, Template

if TYPE_CHECKING:
    from plait.template.compiled import Lookup, Piece
    from plait.template.shell.places import Dialect
    from plait.template.sinks import Values

CODE: Final = "x-code"
VALUES: Final = "x-code-values"
SHELLS: Final = frozenset({"shell", "sh", "dash", "bash"})
"""Languages whose text the shell's lexer reads."""
_SAME_PLACE: Final = ("allOf", "anyOf", "oneOf")
_SAME_PLACE_ONE: Final = ("if", "then", "else")
_BY_KEY: Final = ("additionalProperties", "unevaluatedProperties")
_BY_INDEX: Final = ("items", "additionalItems", "unevaluatedItems", "contains")

Schema: TypeAlias = Mapping[str, Json]
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """The marks of a schema for a parameter that is code."""

    language: str
    values: str | None = None
    """The parameter that takes the values of its placeholders."""


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A text with placeholders that would become code, or hold it."""

    path: Path
    leaf: Leaf
    mark: Mark
    is_code: bool
    """False: it is one placeholder whose value would contain the code."""

    @property
    def name(self) -> str:
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path]
        return "".join(steps).lstrip(".")


class CodeParams:
    """The parameters of one tool that are read as code."""

    def __init__(self, tool_id: str, schemas: Iterable[Schema | None]) -> None:
        self.tool_id = tool_id
        self._schemas = [
            schema
            for schema in schemas
            if schema is not None and any(CODE in part for part in _subschemas(schema))
        ]

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def places(self, template: Template) -> list[CodePlace]:
        """The places where placeholders of these parameters would become code."""
        if not self._schemas:
            return []
        roots = [_At(schema, schema) for schema in self._schemas]
        return list(_places(template.root, roots, None, ()))

    def refusals(self, template: Template) -> list[Problem]:
        """The problems of all placeholders that are refused whatever their value."""
        return [
            problem for place in self.places(template) for problem in _refusals(place, self.tool_id)
        ]

    def fill(self, template: Template, values: Values, *, strict: bool = False) -> Json:
        """The parameters with their placeholders filled; those in code are bound or refused."""
        places = self.places(template)
        if not places:
            return render_json_value(template, values, strict=strict)
        problems = [problem for place in places for problem in _refusals(place, self.tool_id)]
        if problems:
            raise ShellRefusedError.together(problems)
        return _fill_tree(template, places, values, strict=strict)


NO_CODE: Final = CodeParams("", ())


def schema_slips(schema: Json) -> Iterator[tuple[str, str]]:
    """Yield problems with the marks of a schema, and what to write instead."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    names = properties if isinstance(properties, Mapping) else {}
    for part in _subschemas(schema):
        for key in part:
            if key not in (CODE, VALUES) and str(key).lower().replace("_", "-").startswith(
                "x-code"
            ):
                meant = VALUES if "val" in str(key).lower() else CODE
                yield f"'{key}' is not a mark of a parameter", f"did you mean '{meant}'?"
        language, values = part.get(CODE), part.get(VALUES)
        if CODE in part and not (isinstance(language, str) and language.strip()):
            yield f"'{CODE}' names a language", f"write {CODE}: shell, python, sql, regex, …"
        if VALUES in part and CODE not in part:
            yield f"'{VALUES}' stands beside '{CODE}'", f"write {CODE}: and the language as well"
        if VALUES in part and not _takes_values(
            names.get(values) if isinstance(values, str) else None
        ):
            yield (
                f"'{VALUES}' names a parameter that is an object",
                f"declare one, such as values: {{type: object}}, and write {VALUES}: values",
            )


# ── schemas ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _At:
    """A schema that applies at a place, and the schema that its references point into."""

    schema: Schema
    whole: Schema


def _subschemas(schema: Json) -> Iterator[Schema]:
    """Yield every map in a schema that may be a schema; not the names of its parameters, and no
    data.
    """
    waiting: list[tuple[Json, bool]] = [(schema, True)]
    while waiting:
        value, is_schema = waiting.pop()
        match value:
            case Mapping():
                if is_schema:
                    yield value
                for key, inner in value.items():
                    if is_schema and key in ("default", "const", "enum", "examples", "required"):
                        continue
                    by_name = is_schema and key in _BY_NAME
                    waiting.append((inner, not by_name))
            case list():
                waiting += [(inner, True) for inner in value]


_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
"""Keywords whose keys are names and whose values are schemas."""


def _takes_values(schema: Json) -> bool:
    return (
        isinstance(schema, Mapping)
        and schema.get("type", "object") == "object"
        and CODE not in schema
    )


def _here(schemas: Iterable[_At]) -> list[_At]:
    """These schemas and all others for the same place: references, alternatives, conditions."""
    found: dict[int, _At] = {}
    waiting = list(schemas)
    while waiting:
        at = waiting.pop()
        if id(at.schema) in found:
            continue
        found[id(at.schema)] = at
        inner: list[Json] = [one for key in _SAME_PLACE for one in _as_list(at.schema.get(key))]
        inner += [at.schema.get(key) for key in _SAME_PLACE_ONE]
        dependent = at.schema.get("dependentSchemas")
        inner += dependent.values() if isinstance(dependent, Mapping) else ()
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := at.schema.get(key), str):
                inner.append(_resolve_reference(reference, at.whole))
        waiting += [_At(one, at.whole) for one in inner if isinstance(one, Mapping)]
    return list(found.values())


def _resolve_reference(reference: str, whole: Schema) -> Schema:
    """The target of a reference. If it is unknown, the whole schema, which has the marks of
    every part.
    """
    if not reference.startswith("#/"):
        return whole
    place: Json = whole
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return whole
    return place if isinstance(place, Mapping) else whole


def _below(schemas: Iterable[_At], step: str | int) -> list[_At]:
    """The schemas that apply to an entry of a map or list."""
    found: list[_At] = []
    for at in schemas:
        inner: list[Json]
        if isinstance(step, str):
            named = at.schema.get("properties")
            inner = [named.get(step)] if isinstance(named, Mapping) else []
            patterns = at.schema.get("patternProperties")
            inner += patterns.values() if isinstance(patterns, Mapping) else ()
            inner += [at.schema.get(key) for key in _BY_KEY]
        else:
            inner = [
                one for key in (*_BY_INDEX, "prefixItems") for one in _as_list(at.schema.get(key))
            ]
        found += [_At(one, at.whole) for one in inner if isinstance(one, Mapping)]
    return _here(found)


def _as_list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else [value]


def _mark(schemas: Iterable[_At]) -> Mark | None:
    marks = [at.schema for at in schemas if CODE in at.schema]
    if not marks:
        return None
    # If two schemas disagree, values are bound only if both name the same parameter.
    values = {schema.get(VALUES) for schema in marks}
    one = values.pop() if len(values) == 1 else None
    return Mark(str(marks[0][CODE]), one if isinstance(one, str) else None)


def _mark_below(schemas: Iterable[_At]) -> Mark | None:
    """The mark of any code that a value at this place could contain."""
    seen: set[int] = set()
    waiting = list(schemas)
    while waiting:
        at = waiting.pop()
        if id(at.schema) in seen:
            continue
        seen.add(id(at.schema))
        for one in _here([at]):
            if CODE in one.schema:
                return Mark(str(one.schema[CODE]))
            named = one.schema.get("properties")
            keys = list(named) if isinstance(named, Mapping) else []
            waiting += [inner for step in (*keys, "", 0) for inner in _below([one], step)]
    return None


# ── templates ────────────────────────────────────────────────────────────


def _places(node: Node, schemas: list[_At], outer: Mark | None, path: Path) -> Iterator[CodePlace]:
    schemas = _here(schemas)
    mark = outer or _mark(schemas)
    match node:
        case Leaf():
            if all(isinstance(part, Text) for part in node.compiled.parts):
                return
            if mark is not None:
                yield CodePlace(path, node, mark, is_code=True)
            elif node.compiled.whole and (inner := _mark_below(schemas)) is not None:
                yield CodePlace(path, node, inner, is_code=False)
        case Branch(items, None):
            for index, item in enumerate(items):
                yield from _places(item, _below(schemas, index), mark, (*path, index))
        case Branch(items, keys):
            for key, item in zip(keys or (), items, strict=True):
                yield from _places(item, _below(schemas, key), mark, (*path, key))


def _refusals(place: CodePlace, tool_id: str) -> Iterator[Problem]:
    mark, source = place.mark, place.leaf.source
    for placeholder in place.leaf.compiled.parts:
        if isinstance(placeholder, Text):
            continue
        written = source.text[placeholder.start : placeholder.end]
        where = Span(source, placeholder.start, placeholder.end)
        code = f"'{place.name}' of '{tool_id}' is {mark.language} code"
        if not place.is_code:
            what = f"'{written}' would fill a parameter of '{tool_id}' that is {mark.language} code"
            fix = (
                "write the parameters out as a map, with the code in it; values go where the tool "
                "takes data"
            )
            yield Problem(what, where, fix, code="value-as-code")
        elif mark.values is None:
            what = f"{code}, and '{written}' would become part of it"
            yield Problem(what, where, _safe_form(mark), code="value-as-code")
        elif "raw" in _formats(placeholder):
            what = f"{code}, and ':raw' would make a value part of it"
            fix = f"leave ':raw' away: the value is bound, and given to the tool in '{mark.values}'"
            yield Problem(what, where, fix, code="value-as-code")


def _safe_form(mark: Mark) -> str:
    if mark.language in SHELLS:
        return (
            "use shell: instead, where values are bound, or give the value to a parameter that is "
            "data"
        )
    return (
        "write the code out without it, and give the value to a parameter that is data; "
        f"a tool that binds values says so by {VALUES} in its schema"
    )


def _formats(written: Placeholder | FilledPlaceholder) -> set[str]:
    placeholder = original_placeholder(written)
    alternatives = placeholder.alternatives if isinstance(placeholder, ContextPlaceholder) else ()
    return {form.name for alternative in alternatives for form in alternative.formats}


# ── binding ──────────────────────────────────────────────────────────────


def _fill_tree(
    template: Template, places: Sequence[CodePlace], values: Values, *, strict: bool
) -> Json:
    """The tree, with a reference in place of each placeholder in code, and the values beside it."""
    data = Template(_without(template.root, {id(place.leaf) for place in places}), template.profile)
    lookup = template.lookup(values, None)
    filled = render_json_value(data, lookup, strict=strict)
    for place in places:
        assert place.mark.values is not None, "code that is not bound was refused"
        given = filled.get(place.mark.values, {}) if isinstance(filled, dict) else {}
        pieces = _pieces(place, template, lookup, filled, strict=strict)
        code, bound = _bind_code(pieces, place, lookup, given if isinstance(given, Mapping) else {})
        holder = filled
        for step in place.path[:-1]:
            holder = holder[step]
        holder[place.path[-1]] = code
        if bound and isinstance(
            given, Mapping
        ):  # any other type violates the tool's schema, which reports it
            filled[place.mark.values] = {**given, **bound}
    return filled


def _without(node: Node, code: set[int]) -> Node:
    match node:
        case Leaf() if id(node) in code:
            return Constant(None)
        case Branch(items, keys):
            return Branch(tuple(_without(item, code) for item in items), keys)
    return node


def _pieces(
    place: CodePlace, template: Template, lookup: Lookup, filled: Json, *, strict: bool
) -> list[Piece]:
    own = Template(place.leaf, template.profile)
    if place.mark.language not in SHELLS:
        return own.pieces(lookup, strict=strict)
    from plait.template.shell.script import parse_script

    # A variable that the script sets itself belongs to the script, as in a `shell:` step.
    script = parse_script(own, shell_dialect(place.mark, filled), lookup.names)
    return script.template.pieces(lookup, strict=strict, shell_names=script.assigned)


def shell_dialect(mark: Mark, params: Json) -> Dialect:
    """The shell that reads the code, by its language or the parameter `shell`."""
    named = params.get("shell") if isinstance(params, Mapping) else None
    return "bash" if "bash" in (mark.language, named) else "sh"


def _bind_code(
    pieces: Sequence[Piece], place: CodePlace, lookup: Lookup, taken: Mapping[str, Json]
) -> tuple[str, dict[str, Json]]:
    written: list[str] = []
    bound: dict[str, Json] = {}
    number = 0
    for piece in pieces:
        if not isinstance(piece, PlacedValue):
            written.append(piece)
            continue
        if written and written[-1].endswith("$"):
            raise ShellRefusedError(
                "a '$' right before a value would hide that value",
                Span(place.leaf.source, piece.placeholder.start, piece.placeholder.end),
                "put something between them, or leave the '$' away",
                code="value-as-code",
            )
        number += 1
        while (name := f"value_{number}") in taken:
            number += 1
        bound[name] = piece.value
        written.append(f"${{{name}{_value_format(piece, place.mark, lookup)}}}")
    return "".join(written), bound


def _value_format(piece: PlacedValue, mark: Mark, lookup: Lookup) -> str:
    """The format of a value: `:opt` if it may begin with '-' in the flow, so the tool allows it
    too.
    """
    may = "opt" in _formats(piece.placeholder) or is_author_placeholder(
        piece.placeholder, lookup, of_author=True
    )
    return ":opt" if may and mark.language in SHELLS else ""
