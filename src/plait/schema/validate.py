"""Find everything that is wrong with a node, compared with its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from plait.core.documents.limits import printable_name
from plait.core.documents.nodes import Mapping, Node, Scalar, Sequence, check_keys
from plait.core.errors import Problem, closest_name, format_names, shorten, with_article
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.source import Span
from plait.core.values import Json
from plait.schema.field_types import (
    AgentCommand,
    Boolean,
    Choice,
    Condition,
    Data,
    Duration,
    Field,
    Integer,
    Kind,
    ListOf,
    MapOf,
    NoEffect,
    Null,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    ShellText,
    SingleValue,
    TemplateText,
    TemplateTree,
)
from plait.schema.forms import FLOW, describe, fields_by_spelling, record_type
from plait.schema.shared import STEP
from plait.template import nodes
from plait.template.template import compile_template


def select_kind(kind: Kind, node: Node) -> Kind | None:
    """The kind to compare a node with; of a union, the part that fits; None if none fits."""
    if not isinstance(kind, OneOf):
        return kind if fits(kind, node) else None
    return next((found for one in kind.kinds if (found := select_kind(one, node))), None)


def fits(kind: Kind, node: Node) -> bool:
    """Does the node have the type of the kind? Nested nodes are not checked."""
    match kind:
        case PlainText() | TemplateText() | ShellText() | Choice():
            return isinstance(node, Scalar) and isinstance(node.value, str)
        case AgentCommand():
            return (
                isinstance(node, Scalar)
                and isinstance(node.value, str)
                and node.value.startswith("/")
            )
        case SingleValue():
            return isinstance(node, Scalar) and _is_one_placeholder(node.value)
        case Null():
            return isinstance(node, Scalar) and node.value is None
        case Boolean():
            return isinstance(node, Scalar) and isinstance(node.value, bool)
        case Integer():
            return isinstance(node, Scalar) and (is_whole(node.value) or has_placeholders(node))
        case Number():
            return isinstance(node, Scalar) and is_number(node.value)
        case Duration():
            return isinstance(node, Scalar) and (
                is_number(node.value) or isinstance(node.value, str)
            )
        case Condition():
            return isinstance(node, Mapping) or (
                isinstance(node, Scalar) and isinstance(node.value, str | bool)
            )
        case Record(form):
            marks = record_type(form).marks
            return isinstance(node, Mapping) and (
                not marks or any(isinstance(node.get(mark), Sequence) for mark in marks)
            )
        case MapOf():
            return isinstance(node, Mapping)
        case ListOf():
            return isinstance(node, Sequence)
        case OneOf(kinds):
            return any(fits(one, node) for one in kinds)
        case TemplateTree() | Data() | NoEffect() | Refused():
            return True


def is_allowed(node: Scalar, kind: Kind) -> bool:
    """Does the kind allow the value of a scalar?"""
    match kind, node.value:
        case PlainText(_, pattern), str(text):
            return not pattern or re.fullmatch(pattern, text) is not None
        case ShellText(), str(text):
            return bool(text.strip())
        case Choice(words), word:
            return word in words
        case ((Integer(least, most) | Number(least, most)), (int() | float()) as number):
            return least <= number and (most is None or number <= most)
        case Duration(), _:
            return has_placeholders(node) or seconds(node.value, zero=kind.zero) is not None
    return True


def _is_one_placeholder(value: Json) -> bool:
    if not isinstance(value, str) or not value.startswith("$"):
        return False
    parts = compile_template(value).leaf.compiled.parts
    return len(parts) == 1 and not isinstance(parts[0], nodes.Text)


def is_whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_placeholders(node: Node) -> bool:
    """Is it text with placeholders?"""
    if not (isinstance(node, Scalar) and isinstance(node.value, str)) or "$" not in node.value:
        return False
    return bool(compile_template(node.value).placeholders)


# ── durations ────────────────────────────────────────────────────────────

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SECONDS: Final = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
DURATION: Final = rf"(?:{SECONDS}(?:ms|s|m|h|d))+"
_PART: Final = lazy_pattern(r"([0-9.]+)(ms|s|m|h|d)")
LONGEST: Final = 366 * 86400.0


def seconds(value: Json, *, zero: bool = False) -> float | None:
    """A duration in seconds; None if it is not a duration."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(SECONDS, text):
            value = float(text)
        elif re.fullmatch(DURATION, text):
            value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        else:
            return None
    if not isinstance(value, int | float):
        return None
    return float(value) if (0 < value <= LONGEST or (zero and value == 0)) else None


def validate(node: Node, kind: Kind = FLOW, *, called: str = "this file") -> list[Problem]:
    """All problems of a node; problems with a code of `WARNED` are warnings."""
    return list(_problems(node, kind, called))


def _problems(node: Node, kind: Kind, called: str) -> Iterator[Problem]:
    picked = select_kind(kind, node)
    if picked is None:
        yield _wrong_type(node, kind, called)
        return
    match picked:
        case Record(form):
            assert isinstance(node, Mapping)
            yield from _of_map(node, record_type(form))
        case MapOf(inner, keys):
            assert isinstance(node, Mapping)
            for key, value in node.entries:
                if keys.pattern and not re.fullmatch(keys.pattern, str(key.value)):
                    named = f"'{printable_name(str(key.value))}'"
                    what = f"{named} cannot be a key of {called}: a key is {keys.description}"
                    yield Problem(what, key.span, code="wrong-type")
                yield from _problems(value, inner, f"'{printable_name(str(key.value))}'")
        case ListOf(inner, least):
            assert isinstance(node, Sequence)
            if len(node.items) < least:
                what, fix = (
                    f"{called} is an empty list",
                    "write at least one",
                )
                yield Problem(what, node.span, fix, code="missing-field")
            for item in node.items:
                yield from _problems(item, inner, f"a part of {called}")
        case _:
            if (
                isinstance(node, Scalar)
                and isinstance(picked, ShellText)
                and not is_allowed(node, picked)
            ):
                what, fix = (
                    f"{called} is empty",
                    "write a command, such as 'true'",
                )
                yield Problem(what, node.span, fix, code="missing-field")
            elif isinstance(picked, ShellText) and (instead := _decision(node, picked)):
                what = f"{called} is shell text, so this would run a command called '{node.data()}'"
                yield Problem(what, node.span, instead, code="word-as-command")
            elif isinstance(node, Scalar) and not is_allowed(node, picked):
                yield _wrong_type(node, picked if isinstance(picked, Choice) else kind, called)


def _decision(node: Node, kind: ShellText) -> str | None:
    word = node.value if isinstance(node, Scalar) else None
    return dict(kind.decisions).get(word.strip().lower()) if isinstance(word, str) else None


def _of_map(node: Mapping, form: RecordType) -> Iterator[Problem]:
    table = fields_by_spelling(form.name)
    yield from check_keys(
        node,
        table,
        kind=form.title,
        elsewhere=lambda name: _further_in(name, node, form),
        meant=dict(form.elsewhere),
    )
    seen: dict[str, str] = {}
    for key, value in node.entries:
        name = str(key.value)
        field = table.get(name)
        if field is None:
            continue
        if seen.get(field.name, name) != name:
            yield Problem(
                f"'{name}' and '{seen[field.name]}' are two spellings of one field",
                key.span,
                "keep one of them",
                code="duplicate-field",
            )
        seen[field.name] = name
        yield from _of_field(key, value, field)
    yield from _missing_field_problems(node, form, seen)
    yield from _between(node, form, seen)


def _further_in(name: str, node: Mapping, form: RecordType) -> str | None:
    """The fix for a field that belongs into a nested map and fits there."""
    value = node.get(name)
    homes = [
        (field, inner)
        for field in form.fields
        for inner in _record_types(field.kind)
        if value is not None and (there := fields_by_spelling(inner.name).get(name)) is not None
        if not isinstance(there.kind, Refused | NoEffect)
        and not any(_problems(value, there.kind, name))
    ]
    if form.name == "flow" and name in fields_by_spelling("prompt") and not homes:
        return f"write it in a step: prompt: {{prompt: …, {name}: …}}"
    if len(homes) != 1:
        return None
    field, inner = homes[0]
    needed = "".join(
        f"{one.name}: …, " for one in inner.fields if one.required and name not in one.spellings
    )
    return f"write it further in: {field.name}: {{{needed}{name}: …}}"


def _record_types(kind: Kind) -> Iterator[RecordType]:
    """The maps that a kind allows directly, not inside of others."""
    match kind:
        case Record(form):
            yield record_type(form)
        case OneOf(kinds):
            for one in kinds:
                yield from _record_types(one)


def _of_field(key: Scalar, value: Node, field: Field) -> Iterator[Problem]:
    name = str(key.value)
    match field.kind:
        case Refused(why):
            yield Problem(f"'{name}' does not exist here", key.span, why, code="refused-field")
        case NoEffect(why):
            yield Problem(
                f"'{name}' has no effect here: {why}", key.span, "remove it", code="no-effect"
            )
        case kind:
            if name in field.deprecated:
                yield Problem(
                    f"'{name}' is an older name of '{field.name}'", key.span, f"write {field.name}",
                    code="deprecated-field",
                )  # fmt: skip
            yield from _problems(value, kind, f"'{name}'")


def _missing_field_problems(
    node: Mapping, form: RecordType, seen: dict[str, str]
) -> Iterator[Problem]:
    thing = with_article(form.title)
    for field in form.fields:
        if field.required and field.name not in seen:
            yield Problem(
                f"{thing} needs '{field.name}': {field.what}", _head(node), f"add {field.name}: …",
                code="missing-field",
            )  # fmt: skip
    if form.one_of:
        found = [name for name in form.one_of if name in seen]
        if len(found) > 1:
            yield Problem(
                f"{thing} has exactly one of {format_names(form.one_of, most=20)}; "
                f"this one has {', '.join(found[:-1])} and {found[-1]}",
                node.key_span(seen[found[1]]),
                "split it, or remove all but one",
                code="several-commands",
            )
        elif not (found or any(name in seen for name in form.alone) or _misspelt(node, form)):
            yield _nothing_to_do(node, form, thing)
    if form.some_of and not any(name in seen for name in form.some_of):
        what = f"{thing} needs one of {format_names(form.some_of, most=20)}"
        yield Problem(what, _head(node), "write what it does", code="missing-field")


def _between(node: Mapping, form: RecordType, seen: dict[str, str]) -> Iterator[Problem]:
    """Yield problems between the fields of a map. `at_odds` is checked where several maps are
    read.
    """
    for field in form.fields:
        if field.name not in seen:
            continue
        where, name = node.key_span(seen[field.name]), seen[field.name]
        if field.only_for and not any(one in seen for one in field.only_for):
            yield from _belongs_elsewhere(name, where, field.only_for[0], form, seen)
        if field.needs is not None and field.needs[0] not in seen:
            other, why = field.needs
            yield Problem(
                f"'{name}' needs '{other}': {why}", where, f"add {other}: …", code="missing-field"
            )
    both = next((pair for pair in form.apart if pair[0] in seen and pair[1] in seen), None)
    if both is not None:
        one, other = seen[both[0]], both[1]
        what = f"{with_article(form.title)} has either {one} or phases, but this one has {one} and {other}"
        yield Problem(
            what, node.key_span(one), f"move {one} to setup or reduce", code="wrong-phases"
        )


def _belongs_elsewhere(
    name: str, where: Span, to: str, form: RecordType, seen: dict[str, str]
) -> Iterator[Problem]:
    if to not in form.one_of:
        what, fix = f"'{name}' belongs to {to}, which is missing", f"add {to}: …"
        yield Problem(what, where, fix, code="misplaced-field")
        return
    command = next((seen[one] for one in (*form.one_of, *form.alone) if one in seen), None)
    if command is not None:  # otherwise it was already reported
        what = f"'{name}' has no meaning in {with_article(form.title)} with {command}: it belongs to {to}"
        yield Problem(what, where, "remove it, or use the other command", code="misplaced-field")


def _nothing_to_do(node: Mapping, form: RecordType, thing: str) -> Problem:
    what = f"{thing} needs one of {format_names(form.one_of, most=20)}"
    name = node.get("name")
    fix = "write what it does: shell: …" if "shell" in form.one_of else f"write {form.one_of[0]}: …"
    if (
        form.name == "step"
        and isinstance(name, Scalar)
        and set(node.data()) <= {"name", "params", "args"}
    ):
        fix = "write what it does; a command of an agent is written claude: /name …"
    return Problem(what, _head(node), fix, code="missing-field")


def _misspelt(node: Mapping, form: RecordType) -> bool:
    """Is a key, which was reported as unknown, a misspelt form of the missing one?"""
    keys = [str(key.value) for key, _ in node.entries]
    meant = dict(form.elsewhere)
    return any(
        key not in fields_by_spelling(form.name)
        and (meant.get(key) in form.one_of or closest_name(key, form.one_of))
        for key in keys
    )


def _head(node: Mapping) -> Span:
    """The place of a map in a message: its first key, not all of it."""
    return node.entries[0][0].span if node.entries else node.span


def _wrong_type(node: Node, kind: Kind, called: str) -> Problem:
    what = f"{called} must be {describe(kind)}, not {node_type_name(node)}"
    fix = None
    if isinstance(kind, Choice) and isinstance(node, Scalar):
        what = f"{called} must be {describe(kind)}"
        close = dict(kind.elsewhere).get(str(node.value)) or closest_name(
            str(node.value), kind.words
        )
        fix = f"did you mean '{close}'?" if close else None
    elif isinstance(node, Scalar) and fits(kind, node):
        unsaid = isinstance(kind, Integer | Number) and not kind.least and kind.most is None
        what = f"{called} must be {describe(kind)}{' from 0' if unsaid else ''}"
    elif kind is STEP or (_takes_step(kind) and isinstance(node, Scalar)):
        fix = "shell text is written shell: …; a command of an agent begins with '/'"
    elif isinstance(kind, ListOf) and _takes_step(kind.kind) and isinstance(node, Scalar):
        first = str(node.value).partition("\n")[0]
        fix = f"write a list: - shell: {shorten(first, 40)}"
    return Problem(
        what, node.span if isinstance(node, Scalar) else _start(node), fix, code="wrong-type"
    )


def _takes_step(kind: Kind) -> bool:
    return kind is STEP or (isinstance(kind, OneOf) and kind.description.startswith("a step"))


def _start(node: Node) -> Span:
    match node:
        case Mapping():
            return _head(node)
        case Sequence(items) if items:
            return _start(items[0])
    return node.span


def node_type_name(node: Node) -> str:
    match node:
        case Mapping():
            return "a map"
        case Sequence():
            return "a list"
        case Scalar(bool()):
            return "true or false"
        case Scalar(None):
            return "nothing"
        case Scalar(str()):
            return "text"
    return "a number"
