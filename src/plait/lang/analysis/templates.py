"""Check one template: are its names known at its place, and can they have a value?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import islice

from plait import schema
from plait.core.errors import PlaitError, Problem, closest_name, format_names
from plait.core.hints import TYPE_CHECKING
from plait.core.records import replace
from plait.core.source import Span
from plait.core.values import UNDEFINED, contains_unknown
from plait.lang.analysis.declarations import ANY_NAME
from plait.lang.analysis.names import (
    BEHIND_STEPS,
    BUILTIN_ROOTS,
    ENDED,
    HANDLER_NAMES,
    NAMES,
    strings,
)
from plait.lang.analysis.scopes import assumed
from plait.lang.analysis.shell import check_names, check_shell, is_shell_variable
from plait.lang.findings import Finding
from plait.scope.frames import ALIASES
from plait.template.compiled import follow_path
from plait.template.nodes import (
    Computed,
    ContextPlaceholder,
    EnvPlaceholder,
    Extract,
    InputPlaceholder,
    ParamPlaceholder,
    Path,
    PromptPlaceholder,
    placeholders,
)
from plait.template.shell.script_names import Names, read_names
from plait.template.template import compile_template

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json
    from plait.lang.analysis.scopes import TemplateField
    from plait.template.nodes import Alternative, MalformedPlaceholder, Placeholder
    from plait.template.template import Leaf


MOST_LISTED: Final = 16

MOST_LISTED_STRICTLY: Final = 1000

MOST_GUESSES: Final = 200
"""The number of names among which the closest is searched; a flow may have thousands of names and
mistakes.
"""

NO_NAMES: Final = Names(frozenset(), frozenset(), frozenset())

_WHEN_RUN: Final = frozenset({"file", "cmd"})
"""Computed values that exist only in a run."""

OPEN_PHASES: Final = frozenset({"hook", "block"})
"""Places whose names are not all in the tables: they depend on the event or on the use."""


def overlap(one: Span | str | None, other: Span | str | None) -> bool:
    if not (isinstance(one, Span) and isinstance(other, Span)):
        return False
    one, other = one.place, other.place
    return one.source is other.source and one.start <= other.end and other.start <= one.end


def check_template(field: TemplateField, profile: str) -> list[Finding]:
    try:
        leaf = compile_template(str(field.scalar.value), profile, source=field.scalar.source()).leaf
        read = (
            read_names(leaf.compiled.parts, leaf.source, field.dialect)
            if field.shell or field.is_script
            else NO_NAMES
        )
    except PlaitError as error:
        return [
            Finding(Problem(p.what, field.scalar.span, p.fix, code=p.code)) for p in error.problems
        ]
    found = [_flaw(flaw, leaf, strict=field.strict) for flaw in leaf.compiled.flaws]
    for placeholder in placeholders(leaf.compiled.parts):
        if placeholder.start not in read.own_placeholders:
            found += _placeholder_findings(placeholder, field, leaf, read.assigned)
    if field.shell:
        found += check_shell(field, leaf)
    elif field.is_script:  # the check of the tool call reports it
        found += check_names(field, leaf)
    if field.is_sized:
        found += _too_long(field, leaf, profile, read.assigned)
    if field.when:
        wrong = _when(field)
        found = [
            one for one in found if one.severity == "error" or not _is_covered_by(wrong, one)
        ] + wrong
    return found


def _too_long(
    field: TemplateField, leaf: Leaf, profile: str, own: frozenset[str]
) -> Iterator[Finding]:
    """A text or a tree that becomes too long with the known values."""
    if field.root is None and not leaf.compiled.may_grow:
        return
    if field.root is not None and next(strings(field.root)) is not field.scalar:
        return  # a tree is filled once
    node = field.root or field.scalar
    known = {} if field.phase in OPEN_PHASES else field.known
    try:
        template = schema.to_template(node, profile)
        if field.shell or field.when or field.is_script:
            template.counted = (
                template.counted and not field.when
            )  # each placeholder of a condition is an operand
            template.pieces(assumed(known, without=own))
        elif template.may_grow:
            template.render_checked(assumed(known), sealing=True)
    except PlaitError as error:
        yield from (
            Finding(replace(one, where=one.where or node.span))
            for one in error.problems
            if one.code == "output-too-long"
        )


def _is_covered_by(wrong: Sequence[Finding], finding: Finding) -> bool:
    """Does the check of the condition already report it?"""
    return any(overlap(one.problem.where, finding.problem.where) for one in wrong)


def _when(field: TemplateField) -> list[Finding]:
    from plait.scope.expressions import parse_when

    try:
        parse_when(
            field.scalar.value, source=field.scalar.source(), kinds=lambda root: _kind(root, field)
        )
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]
    return []


def _kind(root: str, field: TemplateField) -> str | None:
    name = field.known.get(root)
    return None if name is None else name.kind


def _flaw(flaw: MalformedPlaceholder, leaf: Leaf, *, strict: bool) -> Finding:
    problem = Problem(flaw.what, Span(leaf.source, flaw.start, flaw.end), flaw.fix, code=flaw.code)
    return Finding(problem, "error" if flaw.fatal or strict else "warning")


def _placeholder_findings(
    placeholder: Placeholder, field: TemplateField, leaf: Leaf, own: frozenset[str]
) -> Iterator[Finding]:
    span = Span(leaf.source, placeholder.start, placeholder.end)
    match placeholder:
        case ContextPlaceholder():
            for alternative in placeholder.alternatives:
                yield from _alternative(alternative, placeholder, field, span, own)
        case InputPlaceholder() | PromptPlaceholder():
            name = (
                placeholder.key if isinstance(placeholder, InputPlaceholder) else placeholder.name
            )
            optional = isinstance(placeholder, InputPlaceholder) and (
                placeholder.optional or placeholder.default is not None
            )
            if field.declared is not None and name not in field.declared and not optional:
                yield Finding(unknown_input(name, field.declared, span))
        case ParamPlaceholder():
            guess = closest_name(placeholder.name, field.declared or ())
            if field.declared is not None and placeholder.name not in field.declared and guess:
                what = f"unknown parameter '{placeholder.name}'"
                fix = f"did you mean '{guess}'?"
                yield Finding(Problem(what, span, fix, code="unknown-parameter"), "warning")
        case EnvPlaceholder():
            return  # the environment is known only when the tool runs


def unknown_input(
    name: str, declared: Collection[str], span: Span | None, *, prefix: str = "", most: int = 12
) -> Problem:
    """The problem of an unknown input; `prefix`: the text before the name of an input in this
    language.
    """
    guess = closest_name(name, declared)
    meant = f"did you mean '{prefix}{guess}'? " if guess else ""
    fix = f"{meant}declare it under inputs, next to: {format_names(sorted(declared), most=most)}"
    return Problem(f"unknown input '{name}'", span, fix, code="unknown-input")


def _alternative(
    alternative: Alternative,
    placeholder: ContextPlaceholder,
    field: TemplateField,
    span: Span,
    own: frozenset[str],
) -> Iterator[Finding]:
    if any(form.name == "raw" for form in alternative.formats):
        what = f"':raw' makes the value of '{placeholder.name}' part of the code"
        fix = "remove ':raw' unless the value is code that you wrote yourself"
        yield Finding(Problem(what, span, fix, code="raw-value"), "warning")
    match alternative.origin:
        case Path() as path:
            yield from _path(path, placeholder, field, span, own)
        case Extract(origin=path):
            yield from _path(path, placeholder, field, span, own)
        case Computed(kind=kind, variable=variable) if field.phase == "head" and kind in _WHEN_RUN:
            if variable is None or kind not in field.known:
                written = span.source.text[span.start : span.end]
                what = f"'{written}' has no value before anything runs"
                fix = "use it in a step; env_files reads variables from a file"
                yield Finding(Problem(what, span, fix, code="unknown-name"))


def _path(
    path: Path,
    placeholder: ContextPlaceholder,
    field: TemplateField,
    span: Span,
    own: frozenset[str],
) -> Iterator[Finding]:
    if field.when and path.keys[-1:] == ("exists",):
        return  # every name may be tested with `exists`
    name = field.known.get(path.root)
    if name is not None and not (
        path.root in ALIASES and name.in_environment and "item" in field.known
    ):
        first = path.keys[0] if path.keys else None
        if not name.fields or first is None or not isinstance(first, str) or first in name.fields:
            yield from _beyond(name.value, path, placeholder, field, span)
            return
        guess = closest_name(first, name.fields)
        meant = f"did you mean '{path.root}.{guess}'? " if guess else ""
        fix = f"{meant}{path.root} has: {format_names(name.fields, most=20)}"
        yield Finding(Problem(f"unknown variable '{path}'", span, fix, code="unknown-name"))
        return
    if path.root in ALIASES and "item" in field.known and not (field.shell and path.root in own):
        current = f"item.{ALIASES[path.root]}"
        what = f"'{path.root}' is a deprecated name of '{current}'"
        yield Finding(
            Problem(what, span, f"write ${{{current}}}", code="deprecated-alias"), "warning"
        )
        return
    if field.phase in OPEN_PHASES:
        return
    if placeholder.bare:
        yield from _unknown_bare(path, field, span)
        return
    if field.shell and is_shell_variable(
        path, own, strict=field.strict and not has_fallback(placeholder)
    ):
        return
    if ANY_NAME.name in field.known and path.root not in BUILTIN_ROOTS:
        return  # it may come from a file that could not be read, which is reported
    if not has_fallback(placeholder):
        yield Finding(_unknown(path, field, span))
    elif path.keys and path.root not in BUILTIN_ROOTS:
        # A plain name may become an input; a dotted one cannot.
        yield Finding(_unknown(path, field, span), "warning")


def _beyond(
    value: Json, path: Path, placeholder: ContextPlaceholder, field: TemplateField, span: Span
) -> Iterator[Finding]:
    """Find a path that does not exist in a value of the file: a run would keep it as text."""
    if (
        not path.keys
        or placeholder.bare
        or has_fallback(placeholder)
        or field.phase in (*OPEN_PHASES, "graph")
    ):
        return
    if path.root in BUILTIN_ROOTS:
        return  # it has precedence over a variable of the same name
    if not contains_unknown(value) and follow_path(value, path.keys) is UNDEFINED:
        what = (
            f"'{path}' does not exist: the value of '{path.root}' is in the file and has no such "
            "part"
        )
        fix = "correct the path; if you mean a step or a capture, give it another name"
        yield Finding(Problem(what, span, fix, code="unknown-name"), "warning")


def _unknown_bare(path: Path, field: TemplateField, span: Span) -> Iterator[Finding]:
    """Find an unknown `$NAME` or `${a-b}`: it stays as written, which may be a mistake."""
    problem = _unknown(path, field, span)
    if path.root in ALIASES and not field.shell:
        fix = f"'{path.root}' stands for the item, and there is none here: {problem.fix}"
        yield Finding(replace(problem, fix=fix))
    elif "-" in path.root and not field.shell:
        yield Finding(problem)
    elif "-" in path.root and (path.keys[:1] and path.keys[0] in ENDED):
        name, _, default = path.root.partition("-")
        what = (
            f"unknown variable '{path.root}', so the shell takes '{name}' with the default "
            f"'{default}…'"
        )
        yield Finding(replace(problem, what=what), "warning")


def has_fallback(placeholder: ContextPlaceholder) -> bool:
    filters = any(step.name == "default" for step in placeholder.filters)
    return placeholder.default is not None or filters or len(placeholder.alternatives) > 1


def _unknown(path: Path, field: TemplateField, span: Span) -> Problem:
    if field.phase == "graph" and path.root in (field.declared or ()):
        fix = f"did you mean 'inputs.{path}'?"
        return Problem(f"unknown variable '{path}'", span, fix, code="unknown-name")
    elsewhere = [name for name in NAMES if name.name == path.root]
    root = None if elsewhere else _guess(path.root, tuple(islice(field.known, MOST_GUESSES)))
    fix = f"did you mean '{Path(root, path.keys)}'? " if root else ""
    fix += _where_it_exists(path.root, field)
    fix += f"known in {field.phase}: {_format_known_names(field)}"
    if not (root or elsewhere or path.keys):
        in_graph = field.phase in ("graph", "hook")
        fix += (
            f"; an input is 'inputs.{path}'" if in_graph else "; declare an input under parameters"
        )
    return Problem(f"unknown variable '{path}'", span, fix, code="unknown-name")


def _where_it_exists(root: str, field: TemplateField) -> str:
    """Where a built-in name exists, for a message about a use elsewhere."""
    if root in BEHIND_STEPS:
        of = " of shell text" if root == "shell" else ""
        return f"'{root}' exists behind a step{of} of the same list; "
    handlers = [handler for handler, name in HANDLER_NAMES.items() if name.name == root]
    if handlers and field.phase not in ("graph", "hook"):
        return f"'{root}' exists in {', '.join(handlers)}; "
    return "".join(
        f"'{root}' exists in {', '.join(name.phases)}; " for name in NAMES if name.name == root
    )


@lru_cache(maxsize=1024)
def _guess(root: str, known: tuple[str, ...]) -> str | None:
    return closest_name(root, known)


def _format_known_names(field: TemplateField) -> str:
    offered = [name for name in field.known if field.known[name].offered]
    return format_names(offered, most=MOST_LISTED_STRICTLY if field.strict else MOST_LISTED)
