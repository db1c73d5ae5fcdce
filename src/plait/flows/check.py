"""Everything that is wrong with the templates of a file, found before anything runs.

Nothing is filled, read or started.  Findings come sorted by place; an `error` would
fail or mislead a run, a `warning` works and should be looked at, a `note` says what
was not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Literal, TypeAlias

from plait import documents
from plait.errors import InputError, PlaitError, Problem, listed, nearest
from plait.flows.fields import Field, read_fields
from plait.flows.names import BUILTIN_ROOTS, NAMES, profile_of
from plait.records import dataclass
from plait.scope.frames import ALIASES
from plait.source import Span
from plait.template.nodes import (
    Alternative,
    ContextHole,
    EnvHole,
    Extract,
    Flaw,
    Hole,
    InputHole,
    ParamHole,
    Path,
    PromptHole,
    Text,
    holes,
)
from plait.template.shell_lexer import REFUSALS, Gap, analyse
from plait.template.template import Leaf, compile_template

Severity: TypeAlias = Literal["error", "warning", "note"]

RULES: Final[dict[str, str]] = {
    "unknown-name": "A template uses a name that does not exist where it stands.",
    "unknown-input": "A template uses an input that the document does not declare.",
    "unknown-parameter": "A configuration uses a parameter that looks like a misspelt one.",
    "malformed-hole": "Something looks like a hole and is none; a lenient run keeps it as text.",
    "unknown-format": "A format after ':' does not exist.",
    "unknown-filter": "A filter after '|' does not exist.",
    "filter-arguments": "A filter has the wrong number of arguments.",
    "raw-value": "With ':raw' a value becomes code; every use of it should be looked at.",
    "deprecated-alias": "A name of an earlier version, which will go away.",
    "unknown-field": "A field that this kind of map does not have.",
    "no-profile": "The file has none of the shapes that Plait knows, so no template was checked.",
    "syntax": "The file is not YAML.",
    "duplicate-key": "A key stands twice in one map.",
    "no-file": "The file does not exist or cannot be read.",
    **{code: f"Shell text: {what}." for code, (what, _) in REFUSALS.items()},
}
"""What each code means, for people who meet it in a report."""

SKIPPED_FOLDERS: Final = frozenset({".git", ".hg", ".venv", "node_modules", "__pycache__"})
MOST_LISTED: Final = 16
MOST_GUESSES: Final = 200
"""Of so many names the nearest is sought; a flow may have thousands, and as many mistakes."""
OPEN_PHASES: Final = frozenset({"hook"})
"""What a hook knows depends on its event, and is not all in our tables."""


@dataclass(frozen=True, slots=True)
class Finding:
    problem: Problem
    severity: Severity = "error"

    @property
    def code(self) -> str:
        return self.problem.code or "problem"


def check_file(path: str, *, profile: str | None = None, names: Iterable[str] = ()) -> list[Finding]:
    """All findings of one YAML file, sorted by place."""
    try:
        document = documents.load(path)
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]
    return check_document(document, path, profile=profile, names=names)


def check_document(
    document: documents.Node, name: str, *, profile: str | None = None, names: Iterable[str] = ()
) -> list[Finding]:
    profile = profile or profile_of(document)
    if profile is None:
        what = "this file has none of the shapes that Plait knows, so its templates are not checked"
        fix = "choose one: plait check --profile workflow …"
        return [Finding(Problem(what, name, fix, code="no-profile"), "note")]
    reading = read_fields(document, profile, names=names)
    found = [_of_field(problem) for problem in reading.problems]
    for field in reading.fields:
        found += check_field(field, profile)
    return sorted(found, key=lambda finding: finding.problem.place)


def _of_field(problem: Problem) -> Finding:
    # A field that resembles none of ours may belong to another program that reads this file.
    misspelt = problem.fix is not None and problem.fix.startswith("did you mean")
    return Finding(problem, "error" if misspelt else "warning")


def yaml_files(paths: Sequence[str]) -> list[str]:
    """The files that were named, and every YAML file below the directories."""
    found: list[str] = []
    for path in paths:
        below = sorted(_below(path)) if os.path.isdir(path) else [path]
        if not below:
            what = "there is no YAML file below this directory"
            raise InputError(what, path, "name a file", code="no-file")
        found += below
    return list(dict.fromkeys(found))


def _below(directory: str) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        yield from (os.path.join(folder, name) for name in files if name.endswith((".yaml", ".yml")))


# ── one template ─────────────────────────────────────────────────────────


def check_field(field: Field, profile: str) -> list[Finding]:
    try:
        leaf = compile_template(str(field.scalar.value), profile, source=field.scalar.source()).leaf
        own = shell_names(leaf) if field.shell else frozenset[str]()
    except PlaitError as error:
        return [Finding(Problem(p.what, field.scalar.span, p.fix, code=p.code)) for p in error.problems]
    found = [_flaw(flaw, leaf) for flaw in leaf.program.flaws]
    for hole in holes(leaf.program.parts):
        found += _hole(hole, field, leaf, own)
    if field.shell:
        found += _shell(field, leaf)
    return found


def _flaw(flaw: Flaw, leaf: Leaf) -> Finding:
    problem = Problem(flaw.what, Span(leaf.source, flaw.start, flaw.end), flaw.fix, code=flaw.code)
    return Finding(problem, "error" if flaw.fatal else "warning")


def _hole(hole: Hole, field: Field, leaf: Leaf, own: frozenset[str]) -> Iterator[Finding]:
    span = Span(leaf.source, hole.start, hole.end)
    match hole:
        case ContextHole():
            for alternative in hole.alternatives:
                yield from _alternative(alternative, hole, field, span, own)
        case InputHole() | PromptHole():
            name = hole.key if isinstance(hole, InputHole) else hole.name
            optional = isinstance(hole, InputHole) and (hole.optional or hole.default is not None)
            if field.declared is not None and name not in field.declared and not optional:
                yield _unknown_input(name, field.declared, span)
        case ParamHole():
            guess = nearest(hole.name, field.declared or ())
            if field.declared is not None and hole.name not in field.declared and guess:
                what = f"no parameter is named '{hole.name}'"
                fix = f"did you mean '{guess}'?"
                yield Finding(Problem(what, span, fix, code="unknown-parameter"), "warning")
        case EnvHole():
            return  # what the environment will hold is known only when the tool runs


def _unknown_input(name: str, declared: frozenset[str], span: Span) -> Finding:
    guess = nearest(name, declared)
    meant = f"did you mean '{guess}'? " if guess else ""
    fix = f"{meant}declare it under inputs, next to: {listed(sorted(declared))}"
    return Finding(Problem(f"no input is named '{name}'", span, fix, code="unknown-input"))


def _alternative(
    alternative: Alternative, hole: ContextHole, field: Field, span: Span, own: frozenset[str]
) -> Iterator[Finding]:
    if any(form.name == "raw" for form in alternative.formats):
        what = f"':raw' makes the value of '{hole.name}' part of the code"
        fix = "leave ':raw' away unless the value is code that you wrote yourself"
        yield Finding(Problem(what, span, fix, code="raw-value"), "warning")
    match alternative.origin:
        case Path() as path:
            yield from _path(path, hole, field, span, own)
        case Extract(origin=path):
            yield from _path(path, hole, field, span, own)


def _path(path: Path, hole: ContextHole, field: Field, span: Span, own: frozenset[str]) -> Iterator[Finding]:
    name = field.known.get(path.root)
    if name is not None:
        first = path.keys[0] if path.keys else None
        if not name.fields or first is None or not isinstance(first, str) or first in name.fields:
            return
        guess = nearest(first, name.fields)
        meant = f"did you mean '{path.root}.{guess}'? " if guess else ""
        fix = f"{meant}{path.root} has: {listed(name.fields, most=20)}"
        yield Finding(Problem(f"nothing here is named '{path}'", span, fix, code="unknown-name"))
        return
    if path.root in ALIASES and field.phase == "map" and not (field.shell and path.root in own):
        current = f"item.{ALIASES[path.root]}"
        what = f"'{path.root}' is a deprecated name of '{current}'"
        yield Finding(Problem(what, span, f"write ${{{current}}}", code="deprecated-alias"), "warning")
        return
    if hole.bare or field.phase in OPEN_PHASES or (field.shell and left_to_shell(path, own)):
        return
    if not _has_fallback(hole):
        yield Finding(_unknown(path, field, span))
    elif path.keys and path.root not in BUILTIN_ROOTS:
        # A plain name may be given when the flow is started; nobody can give a dotted one.
        yield Finding(_unknown(path, field, span), "warning")


def _has_fallback(hole: ContextHole) -> bool:
    filters = any(step.name == "default" for step in hole.filters)
    return hole.default is not None or filters or len(hole.alternatives) > 1


def _unknown(path: Path, field: Field, span: Span) -> Problem:
    elsewhere = [name for name in NAMES if name.name == path.root]
    root = None if elsewhere else _guess(path.root, tuple(islice(field.known, MOST_GUESSES)))
    fix = f"did you mean '{Path(root, path.keys)}'? " if root else ""
    fix += "".join(f"'{name.name}' exists in {', '.join(name.phases)}; " for name in elsewhere)
    fix += f"known in {field.phase}: {_known_here(field)}"
    if not (root or elsewhere or path.keys):
        fix += "; a name that is given at the start is declared under parameters"
    return Problem(f"nothing here is named '{path}'", span, fix, code="unknown-name")


@lru_cache(maxsize=1024)
def _guess(root: str, known: tuple[str, ...]) -> str | None:
    return nearest(root, known)


def _known_here(field: Field) -> str:
    shown = ", ".join(islice(field.known, MOST_LISTED))
    more = len(field.known) - MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


# ── shell text ───────────────────────────────────────────────────────────


def shell_names(leaf: Leaf) -> frozenset[str]:
    """Variables that the script sets itself."""
    written = "".join(
        part.text if isinstance(part, Text) else leaf.source.text[part.start : part.end]
        for part in leaf.program.parts
    )
    return frozenset(analyse([written], "sh").assigned)


def left_to_shell(path: Path, own: frozenset[str]) -> bool:
    """Is `${path}` the shell's own when the scope does not know it?"""
    return not path.keys and (path.root in own or path.root.isupper())


def shell_pieces(leaf: Leaf, known: Container[str], *, phase: str) -> list[str | Gap]:
    """Shell text with a gap for every hole that a run would fill; other holes are the shell's own."""
    own = shell_names(leaf)
    pieces: list[str | Gap] = []
    gaps = 0
    for part in leaf.program.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, ContextHole) and not _is_filled(part, known, phase, own):
            pieces.append(leaf.source.text[part.start : part.end])
        else:
            formats = _formats(part)
            pieces.append(Gap(gaps, part.start, part.end, "raw" in formats, "opt" in formats))
            gaps += 1
    return pieces


def _is_filled(hole: ContextHole, known: Container[str], phase: str, own: frozenset[str]) -> bool:
    if hole.default is not None or len(hole.alternatives) != 1:
        return True
    path = hole.alternatives[0].origin
    if not isinstance(path, Path) or path.root in known:
        return True
    if path.root in ALIASES and phase == "map":
        return path.root not in own
    return not (hole.bare or left_to_shell(path, own))


def _formats(part: object) -> set[str]:
    alternatives = part.alternatives if isinstance(part, ContextHole) else ()
    return {form.name for alternative in alternatives for form in alternative.formats}


def _shell(field: Field, leaf: Leaf) -> Iterator[Finding]:
    lexed = analyse(shell_pieces(leaf, field.known, phase=field.phase), "sh")
    for refusal in lexed.refusals:
        span = Span(leaf.source, refusal.start, refusal.end)
        yield Finding(Problem(refusal.what, span, refusal.fix, code=refusal.code))
