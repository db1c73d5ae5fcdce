"""Everything that is wrong with a file and its templates, found before anything runs.

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
from plait.flows import format
from plait.flows.compose import Blocks, Composed, compose, compose_alone
from plait.flows.fields import Field, read_fields
from plait.flows.names import BUILTIN_ROOTS, COMMAND_KEYS, HANDLER_NAMES, NAMES, profile_of
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
    "wrong-type": "A field holds something else than it can.",
    "missing-field": "A map lacks a field that it needs.",
    "several-commands": "A step does two things; it has exactly one command.",
    "duplicate-field": "Two spellings of one field stand in one map.",
    "refused-field": "A field of other systems that cannot be meant here.",
    "no-effect": "A field of other systems that changes nothing here.",
    "deprecated-field": "A field of an earlier version, which will go away.",
    "wrong-phases": "A flow has steps, or phases, but not both.",
    "misplaced-field": "A field stands in a step to which it means nothing.",
    "duplicate-id": "Two steps of one list have the same id.",
    "parameter": "A parameter contradicts itself, or what is given for it does not fit.",
    "shadowed-name": "A flow gives a name of its own to something that hides a built-in one.",
    "unreachable": "A step that never runs.",
    "condition": "A condition cannot be read, or compares what cannot be compared.",
    "condition-limit": "A condition is too long or too deep.",
    "bad-input": "The input of a map cannot be read.",
    "bad-json-path": "A json_path is not JSONPath.",
    "bad-selection": "A field that chooses items cannot be read.",
    "bad-sort": "An order cannot be read.",
    "extends": "A file cannot be extended.",
    "imports": "The blocks of a file cannot be imported.",
    "cycle": "Files or blocks lead back to themselves.",
    "unknown-block": "A step uses a block that does not exist.",
    "missing-with": "A step does not give a block what it needs.",
    "unknown-with": "A step gives a block something that it does not know.",
    "too-deep": "Something is nested too deeply.",
    "too-many-steps": "A flow has too many steps when its blocks are written out.",
    "too-many-files": "A flow is made of too many files.",
    "file-outside": "A file is outside the project.",
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
OPEN_PHASES: Final = frozenset({"hook", "block"})
"""What a hook knows depends on its event, what a block knows on its use; it is not all in our tables."""


@dataclass(frozen=True, slots=True)
class Finding:
    problem: Problem
    severity: Severity = "error"

    @property
    def code(self) -> str:
        return self.problem.code or "problem"


def check_file(
    path: str, *, profile: str | None = None, names: Iterable[str] = (), project: str | None = None
) -> list[Finding]:
    """All findings of one YAML file and of those that it is made of, sorted by place."""
    try:
        document = documents.load(path)
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]
    if (profile or profile_of(document)) == "workflow":
        root = _project_of(path) if project is None else project
        return check_workflow(compose(document, path, project=project), names=names, project=root)
    return check_document(document, path, profile=profile, names=names)


def check_document(
    document: documents.Node, name: str, *, profile: str | None = None, names: Iterable[str] = ()
) -> list[Finding]:
    """All findings of one document; a workflow is taken as it is, without the files that it extends."""
    profile = profile or profile_of(document)
    if profile is None:
        what = "this file has none of the shapes that Plait knows, so its templates are not checked"
        fix = "choose one: plait check --profile workflow …"
        return [Finding(Problem(what, name, fix, code="no-profile"), "note")]
    if profile == "workflow":
        return check_workflow(compose_alone(document), names=names)
    fields = read_fields(document, profile, names=names).fields
    return _sorted(finding for field in fields for finding in check_field(field, profile))


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    """By place; a block that is used twice has each problem once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.problem.place)


# ── a workflow ───────────────────────────────────────────────────────────


def check_workflow(flow: Composed, *, names: Iterable[str] = (), project: str | None = None) -> list[Finding]:
    """All findings of a flow that was put together; absolute paths are judged where the project is known."""
    found = [Finding(problem) for problem in flow.problems]
    # Blocks that lead back to themselves could be read for ever.
    broken = any(problem.code in ("cycle", "too-deep", "too-many-steps") for problem in flow.problems)
    if profile_of(flow.document) == "workflow":
        found += [_of_format(problem) for problem in format.problems(flow.document)]
        found += map(Finding, phase_problems(flow.document))
        found += map(Finding, _map_problems(flow.document))
        found += map(Finding, _parameter_problems(flow.document))
    reading = read_fields(flow.document, "workflow", names=names, blocks=Blocks() if broken else flow.blocks)
    for field in reading.fields:
        found += check_field(field, "workflow")
    for steps in reading.lists:
        found += _in_list(steps)
        found += (finding for step in steps for finding in _outside(step, project))
    return _sorted(found)


def _project_of(path: str) -> str:
    """The nearest folder above that has a `.ai`, or the file's own."""
    own = folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(os.path.join(folder, ".ai")):
        above = os.path.dirname(folder)
        if above == folder:
            return own
        folder = above
    return folder


def _of_format(problem: Problem) -> Finding:
    return Finding(problem, "warning" if problem.code in format.WARNED else "error")


def phase_problems(document: documents.Node) -> Iterator[Problem]:
    """Steps and phases in one flow; a flow with neither."""
    if not isinstance(document, documents.Mapping):
        return
    steps = next((key for key in ("steps", "commands") if document.get(key) is not None), None)
    phases = [key for key in ("setup", "map", "reduce") if document.get(key) is not None]
    if steps is not None and phases:
        what = f"a flow has either {steps} or phases, and this one has {steps} and {phases[0]}"
        yield Problem(what, document.key_span(steps), f"move {steps} to setup or reduce", code="wrong-phases")


def _map_problems(document: documents.Node) -> Iterator[Problem]:
    """What the input, filter, order and the like of a map are that cannot be read."""
    from plait.flows.inputs import read_input, read_selection

    node = document.get("map") if isinstance(document, documents.Mapping) else None
    if not isinstance(node, documents.Mapping):
        return
    yield from _no_steps(node)
    sound = documents.Mapping(tuple(_of_right_kind(node, SELECTION)), node.span)
    said = sound.get("input")
    try:
        read_selection(sound)
    except PlaitError as error:
        yield from error.problems
    try:
        if said is not None:
            read_input(said)
    except PlaitError as error:
        yield from error.problems


def _no_steps(node: documents.Mapping) -> Iterator[Problem]:
    for key in ("steps", "agent_template", "commands"):
        steps = node.get(key)
        if isinstance(steps, documents.Mapping):
            steps = steps.get("commands") or steps.get("steps")
        if isinstance(steps, documents.Sequence) and not steps.items:
            what, fix = "this map has no steps, so nothing is done for its items", "write at least one step"
            yield Problem(what, node.key_span(key), fix, code="missing-field")


def _parameter_problems(document: documents.Node) -> Iterator[Problem]:
    """Parameters that contradict themselves."""
    from plait.flows.parameters import declared

    node = document.get("parameters") if isinstance(document, documents.Mapping) else None
    if node is None or format.problems(node, format.PARAMETERS):
        return
    try:
        declared(document)
    except InputError as error:
        yield from error.problems


SELECTION: Final = ("input", "json_path", "filter", "sort_by", "distinct")


def _of_right_kind(
    node: documents.Mapping, names: Sequence[str]
) -> Iterator[tuple[documents.Scalar, documents.Node]]:
    """The fields with these names, but for those of which the format says that they are wrong."""
    table = format.spelt("map")
    for key, value in node.entries:
        if key.value in names and not format.problems(value, table[str(key.value)].kind):
            yield key, value


# ── a list of steps ──────────────────────────────────────────────────────


def _in_list(steps: Sequence[documents.Node]) -> Iterator[Finding]:
    maps = [step for step in steps if isinstance(step, documents.Mapping)]
    yield from _same_ids(maps)
    for at, step in enumerate(maps):
        yield from _shadows(step)
        yield from _misplaced(step)
        yield from _condition(step)
        yield from _expected_schema(step)
        if _always_fails(step) and at + 1 < len(maps):
            what, fix = "the step before this one always fails, so this one never runs", "remove one of them"
            span = maps[at + 1].entries[0][0].span if maps[at + 1].entries else maps[at + 1].span
            yield Finding(Problem(what, span, fix, code="unreachable"), "warning")


def _same_ids(steps: Sequence[documents.Mapping]) -> Iterator[Finding]:
    seen: set[str] = set()
    for step in steps:
        if (name := _word(step, "id")) is None:
            continue
        if name in seen:
            what, fix = f"two steps of this list have the id '{name}'", "give one of them another id"
            where = step.get("id")
            yield Finding(Problem(what, where.span if where else None, fix, code="duplicate-id"))
        seen.add(name)


WORKFLOW_ROOTS: Final = frozenset(
    name.name for name in (*NAMES, *HANDLER_NAMES.values()) if not name.phases or "flow" in name.phases
) | {"item", "map", "merge"}


def _shadows(step: documents.Mapping) -> Iterator[Finding]:
    for key in ("capture_output", "capture"):
        name, node = _word(step, key), step.get(key)
        if node is not None and name in WORKFLOW_ROOTS:
            what = f"this capture hides the built-in name '{name}' from all later steps"
            yield Finding(Problem(what, node.span, "choose another name", code="shadowed-name"), "warning")


FOR_COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "params": ("tool", "call"),
    "args": ("tool", "call"),
    "with": ("use",),
    "do": ("foreach",),
    "parallel": ("foreach",),
    "max_items": ("foreach",),
    "interpreter": ("shell",),
    "model": ("agent", "claude", "command", "prompt"),
}
"""Fields of a step that mean something to some commands only."""


def _misplaced(step: documents.Mapping) -> Iterator[Finding]:
    commands = [key for key in COMMAND_KEYS if step.get(key) is not None]
    for key, wanted in FOR_COMMANDS.items():
        if step.get(key) is not None and commands and not any(name in wanted for name in commands):
            what = f"'{key}' means nothing to a step with {commands[0]}: it belongs to {wanted[0]}"
            fix = "remove it, or say what the step does"
            yield Finding(Problem(what, step.key_span(key), fix, code="misplaced-field"))
    if step.get("foreach") is not None and step.get("do") is None:
        what, fix = "a foreach needs do: the steps for each item", "add do: [ … ]"
        yield Finding(Problem(what, step.key_span("foreach"), fix, code="missing-field"))
    if step.get("outputs") is not None and step.get("id") is None:
        what, fix = "outputs are known as id.name, and this step has no id", "add id: …"
        yield Finding(Problem(what, step.key_span("outputs"), fix, code="missing-field"))
    if step.get("capture_output") is None and step.get("capture") is None:
        for key in ("capture_format", "capture_streams"):
            if step.get(key) is not None:
                what, fix = (
                    f"'{key}' says how to capture, and nothing is captured",
                    "add capture_output: name",
                )
                yield Finding(Problem(what, step.key_span(key), fix, code="misplaced-field"))


def _condition(step: documents.Mapping) -> Iterator[Finding]:
    """A `when` that is a map, or that never holds; one that is text is checked with its names."""
    node = step.get("when")
    if isinstance(node, documents.Mapping):
        from plait.engine.conditions import check

        for problem in check(node.data(), locate=lambda place: _span_at(node, place)):
            yield Finding(problem)
    elif isinstance(node, documents.Scalar) and node.value in (False, "false"):
        what, fix = "this step never runs", "remove it, or its when"
        yield Finding(Problem(what, node.span, fix, code="unreachable"), "warning")


def _expected_schema(step: documents.Mapping) -> Iterator[Finding]:
    """A schema by which no result could be read."""
    check = step.get("validate")
    node = check.get("expected_schema") if isinstance(check, documents.Mapping) else None
    if not isinstance(node, documents.Mapping):
        return
    from plait.steps.result_schema import is_schema

    if not is_schema(node.data()):
        what, fix = "this is not JSON Schema", "every keyword has its form: type: object, required: [a]"
        where = check.key_span("expected_schema") if isinstance(check, documents.Mapping) else node.span
        yield Finding(Problem(what, where, fix, code="wrong-type"))


def _outside(step: documents.Node, project: str | None) -> Iterator[Finding]:
    """Paths that are written out and leave the project; those with holes are judged when they are filled."""
    if not isinstance(step, documents.Mapping):
        return
    written = step.get("write_file")
    path = written.get("path") if isinstance(written, documents.Mapping) else None
    place = step.get("working_dir") or step.get("cwd")
    for node in (place, path, step.get("output_file")):
        if node is None or (said := _literal(node)) is None:
            continue
        if _leaves(said, None if node is place else place, project):
            what, fix = "this path leads out of the project", "name a place below the project"
            yield Finding(Problem(what, node.span, fix, code="file-outside"))


def _literal(node: documents.Node) -> str | None:
    said = node.value if isinstance(node, documents.Scalar) else None
    return said if isinstance(said, str) and "$" not in said else None


def _leaves(path: str, place: documents.Node | None, project: str | None) -> bool:
    """A relative path is seen from the project, or from the step's own folder in it, if that is known."""
    if os.path.isabs(path):
        return project is not None and not _is_below(path, project)
    if place is None:
        return os.path.normpath(path).startswith(os.pardir + os.sep) or os.path.normpath(path) == os.pardir
    start = _literal(place)
    return start is not None and _leaves(os.path.join(start, path), None, project)


def _is_below(path: str, project: str) -> bool:
    tops = {os.path.normpath(os.path.abspath(project)), os.path.realpath(project)}
    return any(os.path.commonpath([os.path.normpath(path), top]) == top for top in tops)


def _span_at(node: documents.Node, place: tuple[str | int, ...]) -> Span:
    found = node.at(place)
    return (found or node).span


def _always_fails(step: documents.Mapping) -> bool:
    """Is it a command that can only fail, and nothing that makes up for it?"""
    forgiving = ("on_failure", "on_exit_code", "continue_on_error", "allow_failure", "when", "metadata")
    if any(step.get(key) is not None for key in forgiving):
        return False
    words = (_word(step, "shell") or "").split()
    return words == ["false"] or (len(words) == 2 and words[0] == "exit" and words[1].strip("0").isdecimal())


def _word(step: documents.Mapping, key: str) -> str | None:
    node = step.get(key)
    return node.value if isinstance(node, documents.Scalar) and isinstance(node.value, str) else None


# ── files ────────────────────────────────────────────────────────────────


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
    if field.when:
        found += _when(field)
    return found


def _when(field: Field) -> list[Finding]:
    from plait.engine.expressions import read_when

    try:
        read_when(field.scalar.value, source=field.scalar.source())
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]
    return []


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
    if field.when and path.keys[-1:] == ("exists",):
        return  # whether something is there may be asked of everything
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
    offered = [name for name in field.known if field.known[name].offered]
    return listed(offered, most=MOST_LISTED)


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
    # An index belongs to an array of the script itself: `items=(a b); echo ${items[1]}`.
    return path.root in own if path.keys else path.root in own or path.root.isupper()


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
