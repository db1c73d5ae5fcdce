"""Everything that is wrong with a file and its templates, found before anything runs.

Nothing is filled, read or started.  Findings come sorted by place; an `error` would
fail or mislead a run, a `warning` works and should be looked at, a `note` says what
was not looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

from plait import schema as format
from plait.core import documents
from plait.core.errors import InputError, PlaitError, Problem, listed, nearest
from plait.core.hints import Final, TypeAlias
from plait.core.projects import nearest_project
from plait.core.records import replace
from plait.core.source import Span
from plait.core.values import UNDEFINED, Json, holds_unknown
from plait.lang.analysis.declarations import UNREAD, names_before_items, names_of_head
from plait.lang.analysis.names import (
    BEHIND_STEPS,
    BUILTIN_ROOTS,
    ENDED,
    HANDLER_NAMES,
    NAMES,
    profile_of,
    strings,
)
from plait.lang.analysis.scopes import Field, Reading, assumed, read_fields
from plait.lang.analysis.shell import check_names, check_shell, left_to_shell
from plait.lang.findings import Finding
from plait.lang.workflow.compose import Blocks, Calls, Composed, compose, compose_alone
from plait.lang.workflow.step_check import in_list, outside
from plait.scope import Scope
from plait.scope.frames import ALIASES
from plait.template.nodes import (
    Alternative,
    Computed,
    ContextHole,
    EnvHole,
    Extract,
    Flaw,
    Hole,
    InputHole,
    ParamHole,
    Path,
    PromptHole,
    holes,
)
from plait.template.program import walk
from plait.template.shell.script import Names, read_names
from plait.template.template import Leaf, compile_template
from plait.tools.spaces import EXTENSIONS

Around: TypeAlias = Callable[[str, str | None, documents.Node | None], Iterable[Finding]]
"""Of a file, its kind and its document: what is wrong with the tools and providers that it names.

Only `app` knows where those are.  Of the file of a tool it says all that is wrong with the tool.
"""

MARKDOWN: Final = (".md", ".markdown")
YAML: Final = (".yaml", ".yml")
"""What a file is called that holds a directive."""
SKIPPED_FOLDERS: Final = frozenset({".git", ".hg", ".venv", "node_modules", "__pycache__"})
MOST_LISTED: Final = 16
MOST_LISTED_STRICTLY: Final = 1000
MOST_GUESSES: Final = 200
"""Of so many names the nearest is sought; a flow may have thousands, and as many mistakes."""
NO_NAMES: Final = Names(frozenset(), frozenset(), frozenset())
_WHEN_RUN: Final = frozenset({"file", "cmd"})
"""Computed values that only a run has."""
OPEN_PHASES: Final = frozenset({"hook", "block"})
"""What a hook knows depends on its event, what a block knows on its use; it is not all in our tables."""


def check_file(
    path: str,
    *,
    kind: str | None = None,
    profile: str | None = None,
    names: Iterable[str] = (),
    project: str | None = None,
    meant: bool = False,
    around: Around | None = None,
) -> list[Finding]:
    """All findings of one file and of those that it is made of, sorted by place.

    Its `kind` is seen by its place or shape, if nobody says it; `profile` looks at templates alone.
    `meant`: somebody takes it for a flow, so one that lacks its shape is held against the likeliest kind.
    `around` looks at what the file names: tools, their parameters, providers.
    """
    kind = kind or (kind_by_place(path) if profile is None else None)
    if kind == "directive":
        from plait.lang.directive.read import check_directive

        return _sorted([*check_directive(path), *(around(path, kind, None) if around else ())])
    if kind == "tool" and not path.endswith(YAML):
        return _sorted(around(path, kind, None) if around else ())
    try:
        read = documents.load_partly(path)
        if read.node is None and read.problems:
            found: list[Finding] = []
        elif kind is None:
            found = _of_file(read, path, profile, names, project, meant=meant)
        else:
            found = _of_kind(kind, read.node or documents.parse("", path), path, names, project)
        if around is not None and read.node is not None and profile is None:
            found += around(path, kind, read.node)
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]
    kept = [finding for finding in found if not _follows(finding, read)]
    return _sorted([*map(Finding, read.problems), *kept])


FILE_KINDS: Final = ("workflow", "graph", "directive", "ensemble", "tool", "hooks", "provider")


def kind_by_place(path: str) -> str | None:
    """What a file is because of where it lies or how it is called; None: its shape says so."""
    if path.endswith(MARKDOWN):
        return "directive"
    folders, name = os.path.split(os.path.abspath(path))
    above, folder = os.path.split(folders)
    if folder == "providers" and os.path.basename(above) in ("config", "system"):
        return "provider"
    if f"{os.sep}.ai{os.sep}tools{os.sep}" in os.path.join(folders, ""):
        return "tool"
    return {("config", "hooks.yaml"): "hooks", (".ai", "plait.yaml"): "settings"}.get((folder, name))


def _of_kind(
    kind: str, document: documents.Node, path: str, names: Iterable[str], project: str | None
) -> list[Finding]:
    """All findings of a file that is to be of this kind, whatever it looks like."""
    match kind:
        case "provider":
            from plait.lang.provider_check import file_problems

            return [Finding(problem) for problem in file_problems(document)]
        case "hooks":
            from plait.lang.hooks import check_hooks_file

            return check_hooks_file(document, space=_space_of(path))
        case "settings":
            return _of_settings(document)
        case "tool":  # one may be a flow, too
            return _of_document(document, path, profile_of(document) or "config", names, project)
    profile = PROFILE_OF[kind]
    if profile_of(document) == profile:
        return _of_document(document, path, profile, names, project)
    found = [_of_format(problem) for problem in format.problems(document, format.FILES[kind])]
    if found:
        return found
    what = f"this file does not look like a {kind}"
    fix = {"workflow": "write steps:", "graph": "write start: and nodes:", "ensemble": "write tasks:"}[kind]
    return [Finding(Problem(what, path, fix, code="no-flow"))]


def _of_settings(document: documents.Node) -> list[Finding]:
    from plait.tools.trust.decisions import expect_settings

    if isinstance(document, documents.Mapping):
        try:
            expect_settings(document)
        except PlaitError as error:
            return [Finding(problem) for problem in error.problems]
    return []


PROFILE_OF: Final = {"workflow": "workflow", "graph": "graph", "ensemble": "prompt"}


def _space_of(path: str) -> str:
    """Whose hooks are in a file: those of a user lie in their home."""
    own = os.path.join(os.path.expanduser("~"), ".ai", "config")
    folder = os.path.dirname(os.path.abspath(path))
    return "project" if folder != own and os.path.basename(os.path.dirname(folder)) == ".ai" else "user"


def _of_file(
    read: documents.Partly,
    path: str,
    profile: str | None,
    names: Iterable[str],
    project: str | None,
    *,
    meant: bool,
) -> list[Finding]:
    document = read.node or documents.parse("", path)
    if profile is None and profile_of(document) is None:
        from plait.lang.hooks import check_hooks_file, is_hooks_file

        if is_hooks_file(document):
            return check_hooks_file(document, space=_space_of(path))
        if _is_recording(document):
            return []  # what a model said, whatever that looks like
        from plait.lang.load import likely_kind

        kind = likely_kind(document) if meant else None
        if kind is not None and (wrong := format.problems(document, format.FILES[kind])):
            return [_of_format(problem) for problem in wrong]
        if meant and kind is None:
            from plait.lang.load import LOOKS

            return [Finding(Problem("this file is no flow", path, LOOKS, code="no-flow"))]
    return _of_document(document, path, profile, names, project)


def _is_recording(document: documents.Node) -> bool:
    """A list of exchanges, for a provider that plays them back."""
    items = document.items if isinstance(document, documents.Sequence) else ()
    return bool(items) and all(isinstance(one, documents.Mapping) and one.get("answer") for one in items)


def _of_document(
    document: documents.Node, path: str, profile: str | None, names: Iterable[str], project: str | None
) -> list[Finding]:
    if (profile or profile_of(document)) == "workflow":
        root = _project_of(path) if project is None else project
        return check_workflow(compose(document, path, project=project), names=names, project=root)
    return check_document(document, path, profile=profile, names=names)


ABOUT_THE_REST: Final = frozenset({
    "missing-field", "unknown-name", "unknown-input", "unknown-parameter", "unknown-block", "missing-with",
    "misplaced-field", "wrong-phases", "no-profile", "no-steps",
})  # fmt: skip
"""Findings that more of the file could refute."""


def _follows(finding: Finding, read: documents.Partly) -> bool:
    """Is it said only because something else could not be read?"""
    if not read.problems:
        return False
    if finding.code in ("no-profile", "no-flow") or (not read.whole and finding.code in ABOUT_THE_REST):
        return True
    return any(
        problem.code != "duplicate-key" and _overlap(problem.where, finding.problem.where)
        for problem in read.problems
    )


def _overlap(one: Span | str | None, other: Span | str | None) -> bool:
    if not (isinstance(one, Span) and isinstance(other, Span)):
        return False
    one, other = one.place, other.place
    return one.source is other.source and one.start <= other.end and other.start <= one.end


def check_document(
    document: documents.Node, name: str, *, profile: str | None = None, names: Iterable[str] = ()
) -> list[Finding]:
    """All findings of one document; a workflow is taken as it is, without the files that it extends."""
    profile = profile or profile_of(document)
    if profile is None:
        what = "this file has none of the shapes that Plait knows, so its templates are not checked"
        fix = f"say what it is: plait check --kind {'|'.join(FILE_KINDS)}"
        return [Finding(Problem(what, name, fix, code="no-profile"), "note")]
    if profile == "workflow":
        return check_workflow(compose_alone(document), names=names)
    if profile == "graph" and profile_of(document) == "graph":
        from plait.lang.graph.check import check_graph

        return check_graph(document)
    if profile == "prompt" and profile_of(document) == "prompt":
        from plait.lang.ensemble.compile import check_ensemble

        return check_ensemble(document, names=names)
    fields = read_fields(document, profile, names=names).fields
    return _sorted(finding for field in fields for finding in check_field(field, profile))


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    """By place; a block that is used twice has each problem once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.problem.place)


# ── a workflow ───────────────────────────────────────────────────────────


def check_workflow(
    flow: Composed, *, names: Iterable[str] = (), project: str | None = None, calls: Calls | None = None
) -> list[Finding]:
    """All findings of a flow that was put together; absolute paths are judged where the project is known."""
    is_called = calls is not None
    calls = Calls() if calls is None else calls
    names = tuple(names)
    found = [Finding(problem) for problem in flow.problems]
    # Blocks that lead back to themselves could be read for ever.
    broken = any(problem.code in ("cycle", "too-deep", "too-many-steps") for problem in flow.problems)
    if profile_of(flow.document) == "workflow":
        found += [_of_format(problem) for problem in format.problems(flow.document)]
        found += map(_of_format, _map_problems(flow.document, project))
        found += map(Finding, _policy_problems(flow.document))
        found += map(Finding, _capture_problems(flow.document))
        found += map(Finding, _parameter_problems(flow.document))
        found += map(Finding, _head_problems(flow.document, names))
        found += map(Finding, _env_file_problems(flow.document))
        found += _hidden_by_steps(flow.document)
        found += _hook_findings(flow.document)
    blocks = Blocks() if broken else flow.blocks
    reading = read_fields(flow.document, "workflow", names=names, blocks=blocks, whole=flow.whole)
    for field in reading.fields:
        found += check_field(field, "workflow")
    found += _address_findings(reading)
    found += _crowded(flow, blocks, is_called=is_called)
    found += map(Finding, reading.too_long)
    found += _called(reading, project, calls)
    for steps in reading.lists:
        found += in_list(steps)
        found += (finding for step in steps for finding in outside(step, project))
    return _sorted(found)


def _called(reading: Reading, project: str | None, calls: Calls) -> Iterator[Finding]:
    """What is wrong with the workflow files that its steps call; they know the names of this one."""
    told: set[tuple[str, str]] = set()
    for step, known in reading.calls:
        from plait.lang.workflow.subworkflow import call_problems, open_called

        node = step.get("workflow")
        if node is None or format.problems(node, format.spelt("step")["workflow"].kind):
            continue
        own = os.path.realpath(node.span.place.source.name)
        inner = calls.inside(own)
        try:
            called = open_called(node, project, inner)
        except PlaitError as error:
            yield from map(Finding, error.problems)
            if error.code == "too-many-steps":
                return
            continue
        yield from map(Finding, call_problems(step, called))
        for finding in check_workflow(called.flow, names=list(known), project=project, calls=inner):
            # A file that is called twice has each problem once, though it knows other names each time.
            mark = (str(finding.problem.place), finding.problem.what)
            if mark not in told:
                told.add(mark)
                yield finding


def _crowded(flow: Composed, blocks: Blocks, *, is_called: bool) -> Iterator[Finding]:
    if profile_of(flow.document) == "workflow":
        from plait.lang.workflow.shared_checkout import shared_checkout

        for finding in shared_checkout(flow.document, blocks):
            if is_called and "isolation" in (
                finding.problem.fix or ""
            ):  # which a file that is called cannot say
                fix = "write max_parallel: 1 in the map, or parallel: false"
                finding = replace(finding, problem=replace(finding.problem, fix=fix))
            yield finding


def _address_findings(reading: Reading) -> Iterator[Finding]:
    steps = [step for steps in reading.lists for step in steps if isinstance(step, documents.Mapping)]
    if any(step.get("http") is not None for step in steps):
        from plait.lang.analysis.requests import address_problems

        yield from map(Finding, address_problems(reading))


def _hook_findings(document: documents.Node) -> list[Finding]:
    hooks = document.get("hooks") if isinstance(document, documents.Mapping) else None
    if hooks is None:
        return []
    from plait.lang.hooks import hook_findings

    return hook_findings(hooks)


def _project_of(path: str) -> str:
    """The nearest project, or the file's own folder."""
    own = os.path.dirname(os.path.realpath(path))
    return nearest_project(own) or own


def _of_format(problem: Problem) -> Finding:
    return Finding(problem, "warning" if problem.code in format.WARNED else "error")


def _map_problems(document: documents.Node, project: str | None) -> Iterator[Problem]:
    """What the input, filter, order and the like of a map are that cannot be read."""
    node = document.get("map") if isinstance(document, documents.Mapping) else None
    if not isinstance(node, documents.Mapping):
        return
    from plait.program.items import PlainInput, command_problem, read_input, read_selection

    kept = sound(node, "map", SELECTION)
    said = kept.get("input")
    try:
        read_selection(kept)
    except PlaitError as error:
        yield from error.problems
    try:
        input = None if said is None else read_input(said)
        if isinstance(input, PlainInput):
            wrong = command_problem(input.text, input.span, project)
            yield from () if wrong is None else (wrong,)
    except PlaitError as error:
        yield from error.problems
    yield from _of_items_in_input(node, names_before_items(document))
    id = node.get("id")
    if isinstance(id, documents.Scalar) and "$" not in str(id.value):
        what, fix = "all items get this one id", f"put in what differs, such as ${{item.{id.value}}}"
        yield Problem(what, id.span, fix, code="no-effect")


def _of_items_in_input(node: documents.Mapping, declared: Container[str]) -> Iterator[Problem]:
    """A name in capitals would be left to the shell, which does not have it either."""
    from plait.lang.analysis.mentions import mentions_item, names_in

    said = node.get("input")
    command = said.get("command") if isinstance(said, documents.Mapping) else None
    if command is None:
        return
    asked = {name for name in names_in(command) if name.isupper()}
    for name, value in _entries(node.get("env")):
        if name in asked and mentions_item(value, declared):
            what = f"'{name}' is made of the item, and this command is to find the items"
            yield Problem(what, command.span, "use another variable here", code="unknown-name")


def _policy_problems(document: documents.Node) -> Iterator[Problem]:
    """What a map and its flow say about failing items that cannot both be meant."""
    own = document.get("map") if isinstance(document, documents.Mapping) else None
    places = [
        (form, sound(node, form, POLICY))
        for form, node in (("map", own), ("flow", document))
        if isinstance(node, documents.Mapping)
    ]
    if own is None and not any(node.entries for _, node in places):
        return
    from plait.lang.workflow.map import isolation_problems, policy_problems

    for form, node in places:
        yield from policy_problems(format.Said(form, node, Scope()))
    if isinstance(own, documents.Mapping):
        yield from isolation_problems(format.Said("map", sound(own, "map"), Scope()))


def _capture_problems(document: documents.Node) -> Iterator[Problem]:
    """What setup is to capture that it has not, or that cannot be read."""
    node = document.get("setup") if isinstance(document, documents.Mapping) else None
    if isinstance(node, documents.Mapping):
        from plait.lang.workflow.setup_captures import capture_problems

        yield from capture_problems(format.Said("setup", sound(node, "setup"), Scope()))


def _parameter_problems(document: documents.Node) -> Iterator[Problem]:
    """Parameters that contradict themselves, among those that can be read."""
    node = document.get("parameters") if isinstance(document, documents.Mapping) else None
    if node is None:
        return
    from plait.lang.parameters import declared

    try:
        declared(_readable(node))
    except InputError as error:
        yield from error.problems


def _env_file_problems(document: documents.Node) -> Iterator[Problem]:
    """Files with variables that cannot be read, and have to be there."""
    node = document.get("env_files") if isinstance(document, documents.Mapping) else None
    if node is None or format.problems(node, format.spelt("flow")["env_files"].kind):
        return
    from plait.lang.parameters import env_files, read_env_file

    for said in env_files(node):
        try:
            read_env_file(said)
        except InputError as error:
            yield from error.problems


def _head_problems(document: documents.Node, names: Iterable[str]) -> Iterator[Problem]:
    """Values of the head that need one which is not known before them."""
    if not isinstance(document, documents.Mapping) or document.get("env_files") is not None:
        return
    from plait.lang.parameters import variables_in_circles

    heads = {key: _entries(document.get(key)) for key in ("vars", "env")}
    own = {name for entries in heads.values() for name, _ in entries}
    filled = (*heads, "profiles")
    elsewhere = tuple(entry for entry in document.entries if entry[0].value not in filled)
    given = {*names, *names_of_head(documents.Mapping(elsewhere, document.span))}
    yield from _needed_too_early(heads["vars"], given, own)
    yield from _needed_too_early(heads["env"], given.union(name for name, _ in heads["vars"]), own)
    for _, profile in _entries(document.get("profiles")):
        yield from variables_in_circles(dict(heads["env"]), dict(_entries(profile)))


def _hidden_by_steps(document: documents.Node) -> Iterator[Finding]:
    """Names of the head that mean something else behind the first step of a list."""
    for part in ("parameters", "vars", "env"):
        declared = document.get(part) if isinstance(document, documents.Mapping) else None
        for key, _ in declared.entries if isinstance(declared, documents.Mapping) else ():
            if key.value in BEHIND_STEPS:
                what = f"'{key.value}' is the output of the step before, behind the first step of a list"
                problem = Problem(what, key.span, "choose another name", code="shadowed-name")
                yield Finding(problem, "warning")


def _entries(node: documents.Node | None) -> list[tuple[str, documents.Node]]:
    entries = node.entries if isinstance(node, documents.Mapping) else ()
    return [(str(key.value), value) for key, value in entries]


def _needed_too_early(
    entries: list[tuple[str, documents.Node]], known: set[str], own: set[str]
) -> Iterator[Problem]:
    above = set(known)
    for name, value in entries:
        for scalar in strings(value):
            yield from _too_early(scalar, own - above)
        above.add(name)


def _too_early(scalar: documents.Scalar, later: set[str]) -> Iterator[Problem]:
    try:
        leaf = compile_template(str(scalar.value), "workflow", source=scalar.source()).leaf
    except PlaitError:
        return  # reported as the template that it is
    for hole in holes(leaf.program.parts):
        if not isinstance(hole, ContextHole) or hole.bare or _has_fallback(hole):
            continue
        path = hole.alternatives[0].origin
        if isinstance(path, Path) and path.root in later:
            what = f"'{path.root}' is not known yet: it is declared here or further below"
            fix = "move it above: parameters, secrets, and what stands above are known; in env, vars are, too"
            yield Problem(what, Span(leaf.source, hole.start, hole.end), fix, code="unknown-name")


def _readable(node: documents.Node) -> documents.Mapping:
    """A flow that has only those parameters of which the format has nothing to say."""
    match node:
        case documents.Sequence(items):
            kept: documents.Node = documents.Sequence(
                tuple(item for item in items if not format.problems(item, format.PARAMETER)), node.span
            )
        case documents.Mapping(entries) if isinstance(
            each := format.pick(format.PARAMETERS, node), format.Each
        ):
            sound = tuple(entry for entry in entries if not format.problems(entry[1], each.kind))
            kept = documents.Mapping(sound, node.span)
        case _:
            kept = node
    entries = () if format.problems(kept, format.PARAMETERS) else ((_key("parameters", node), kept),)
    return documents.Mapping(entries, node.span)


def _key(name: str, node: documents.Node) -> documents.Scalar:
    return documents.Scalar(name, node.span)


SELECTION: Final = ("input", "json_path", "filter", "sort_by", "distinct")
POLICY: Final = (
    "error_policy", "on_item_failure", "continue_on_failure", "max_failures", "failure_threshold",
    "circuit_breaker", "retry",
)  # fmt: skip


def sound(node: documents.Mapping, form: str, names: Container[str] | None = None) -> documents.Mapping:
    """A map with those of its fields, or of the ones named, of which the format has nothing to say."""
    table = format.spelt(form)
    kept = [
        (key, value)
        for key, value in node.entries
        if str(key.value) in table
        and (names is None or key.value in names)
        and not format.problems(value, table[str(key.value)].kind)
    ]
    return documents.Mapping(tuple(kept), node.span)


# ── files ────────────────────────────────────────────────────────────────


def flow_files(paths: Sequence[str]) -> list[str]:
    """The files that were named; and below directories every YAML file, every directive and every tool."""
    found: list[str] = []
    for path in paths:
        below = sorted(_below(path)) if os.path.isdir(path) else [path]
        if not below:
            what = "there is no YAML file and no directive below this directory"
            raise InputError(what, path, "name a file", code="no-file")
        found += below
    return list(dict.fromkeys(found))


def _below(directory: str) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for name in files:
            path = os.path.join(folder, name)
            if (
                name.endswith(YAML)
                or (name.endswith(MARKDOWN) and _is_directive(path))
                or (name.endswith(EXTENSIONS) and kind_by_place(path) == "tool" and _has_header(path))
            ):
                yield path


def _has_header(path: str) -> bool:
    """A file beside tools may be a part of one: a tool names what runs it, also if it misspells that."""
    from plait.tools.headers import says_anything

    return says_anything(path)


_OF_DIRECTIVES: Final = re.compile(
    r"^(?:inputs|outputs|permissions|limits|provider|model|actions|hooks):", re.MULTILINE
)
MOST_OF_A_HEAD: Final = 8192


def _is_directive(path: str) -> bool:
    """Markdown is mostly something else: a directive lies in a folder of them, or has the head of one."""
    if f"{os.sep}.ai{os.sep}directives{os.sep}" in os.path.abspath(path):
        return True
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            begin = file.read(MOST_OF_A_HEAD)
    except OSError:
        return False
    if begin.startswith("---"):
        return _OF_DIRECTIVES.search(begin.partition("\n---")[0]) is not None
    return "```xml\n<directive" in begin


# ── one template ─────────────────────────────────────────────────────────


def check_field(field: Field, profile: str) -> list[Finding]:
    try:
        leaf = compile_template(str(field.scalar.value), profile, source=field.scalar.source()).leaf
        read = read_names(leaf, field.dialect) if field.shell or field.is_script else NO_NAMES
    except PlaitError as error:
        return [Finding(Problem(p.what, field.scalar.span, p.fix, code=p.code)) for p in error.problems]
    found = [_flaw(flaw, leaf, strict=field.strict) for flaw in leaf.program.flaws]
    for hole in holes(leaf.program.parts):
        if hole.start not in read.own_holes:
            found += _hole(hole, field, leaf, read.assigned)
    if field.shell:
        found += check_shell(field, leaf)
    elif field.is_script:  # what is refused in it is said with the tool
        found += check_names(field, leaf)
    if field.is_sized:
        found += _too_long(field, leaf, profile, read.assigned)
    if field.when:
        wrong = _when(field)
        found = [one for one in found if one.severity == "error" or not _is_said_by(wrong, one)] + wrong
    return found


def _too_long(field: Field, leaf: Leaf, profile: str, own: frozenset[str]) -> Iterator[Finding]:
    """A text or a tree that no run could make, by what stands in the file; it is filled as a run fills it."""
    if field.root is None and not leaf.program.may_grow:
        return
    if field.root is not None and next(strings(field.root)) is not field.scalar:
        return  # the tree is filled once
    node = field.root or field.scalar
    known = {} if field.phase in OPEN_PHASES else field.known
    try:
        template = format.template_of(node, profile)
        if field.shell or field.when or field.is_script:
            template.counted = template.counted and not field.when  # each hole of a condition is an operand
            template.pieces(assumed(known, without=own))
        elif template.may_grow:
            template.careful(assumed(known), sealing=True)
    except PlaitError as error:
        yield from (
            Finding(replace(one, where=one.where or node.span))
            for one in error.problems
            if one.code == "output-too-long"
        )


def _is_said_by(wrong: Sequence[Finding], finding: Finding) -> bool:
    """Is it what makes a condition unreadable, and said there?"""
    return any(_overlap(one.problem.where, finding.problem.where) for one in wrong)


def _when(field: Field) -> list[Finding]:
    from plait.scope.expressions import read_when

    try:
        read_when(field.scalar.value, source=field.scalar.source(), kinds=lambda root: _kind(root, field))
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]
    return []


def _kind(root: str, field: Field) -> str | None:
    name = field.known.get(root)
    return None if name is None else name.kind


def _flaw(flaw: Flaw, leaf: Leaf, *, strict: bool) -> Finding:
    problem = Problem(flaw.what, Span(leaf.source, flaw.start, flaw.end), flaw.fix, code=flaw.code)
    return Finding(problem, "error" if flaw.fatal or strict else "warning")


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
        case Computed(kind=kind, variable=variable) if field.phase == "head" and kind in _WHEN_RUN:
            if variable is None or kind not in field.known:
                what = f"'{span.source.text[span.start : span.end]}' has no answer before anything runs"
                fix = "put it where a step needs it; variables from a file are read by env_files"
                yield Finding(Problem(what, span, fix, code="unknown-name"))


def _path(path: Path, hole: ContextHole, field: Field, span: Span, own: frozenset[str]) -> Iterator[Finding]:
    if field.when and path.keys[-1:] == ("exists",):
        return  # whether something is there may be asked of everything
    name = field.known.get(path.root)
    if name is not None and not (path.root in ALIASES and name.in_environment and "item" in field.known):
        first = path.keys[0] if path.keys else None
        if not name.fields or first is None or not isinstance(first, str) or first in name.fields:
            yield from _beyond(name.value, path, hole, field, span)
            return
        guess = nearest(first, name.fields)
        meant = f"did you mean '{path.root}.{guess}'? " if guess else ""
        fix = f"{meant}{path.root} has: {listed(name.fields, most=20)}"
        yield Finding(Problem(f"nothing here is named '{path}'", span, fix, code="unknown-name"))
        return
    if path.root in ALIASES and "item" in field.known and not (field.shell and path.root in own):
        current = f"item.{ALIASES[path.root]}"
        what = f"'{path.root}' is a deprecated name of '{current}'"
        yield Finding(Problem(what, span, f"write ${{{current}}}", code="deprecated-alias"), "warning")
        return
    if field.phase in OPEN_PHASES:
        return
    if hole.bare:
        yield from _unknown_bare(path, field, span)
        return
    if field.shell and left_to_shell(path, own, strict=field.strict and not _has_fallback(hole)):
        return
    if UNREAD.name in field.known and path.root not in BUILTIN_ROOTS:
        return  # it may come from what could not be read, and that is reported
    if not _has_fallback(hole):
        yield Finding(_unknown(path, field, span))
    elif path.keys and path.root not in BUILTIN_ROOTS:
        # A plain name may be given when the flow is started; nobody can give a dotted one.
        yield Finding(_unknown(path, field, span), "warning")


def _beyond(value: Json, path: Path, hole: ContextHole, field: Field, span: Span) -> Iterator[Finding]:
    """A path that leads out of a value which stands in the file: a run would leave it as it is written."""
    if not path.keys or hole.bare or _has_fallback(hole) or field.phase in (*OPEN_PHASES, "graph"):
        return
    if path.root in BUILTIN_ROOTS:
        return  # that goes before a variable of the same name
    if not holds_unknown(value) and walk(value, path.keys) is UNDEFINED:
        what = f"'{path}' leads nowhere: the value of '{path.root}' stands in the file, and has no such part"
        fix = "correct the path; if a step or a capture is meant, give it a name of its own"
        yield Finding(Problem(what, span, fix, code="unknown-name"), "warning")


def _unknown_bare(path: Path, field: Field, span: Span) -> Iterator[Finding]:
    """`$NAME` and `${a-b}` stay as they are written, if the name is not known: that may be a mistake."""
    problem = _unknown(path, field, span)
    if path.root in ALIASES and not field.shell:
        fix = f"'{path.root}' stands for the item, and there is none here: {problem.fix}"
        yield Finding(replace(problem, fix=fix))
    elif "-" in path.root and not field.shell:
        yield Finding(problem)
    elif "-" in path.root and (path.keys[:1] and path.keys[0] in ENDED):
        name, _, default = path.root.partition("-")
        what = (
            f"nothing here is named '{path.root}', so the shell takes '{name}' with the default '{default}…'"
        )
        yield Finding(replace(problem, what=what), "warning")


def _has_fallback(hole: ContextHole) -> bool:
    filters = any(step.name == "default" for step in hole.filters)
    return hole.default is not None or filters or len(hole.alternatives) > 1


def _unknown(path: Path, field: Field, span: Span) -> Problem:
    if field.phase == "graph" and path.root in (field.declared or ()):
        fix = f"did you mean 'inputs.{path}'?"
        return Problem(f"nothing here is named '{path}'", span, fix, code="unknown-name")
    elsewhere = [name for name in NAMES if name.name == path.root]
    root = None if elsewhere else _guess(path.root, tuple(islice(field.known, MOST_GUESSES)))
    fix = f"did you mean '{Path(root, path.keys)}'? " if root else ""
    fix += _where_it_exists(path.root, field)
    fix += f"known in {field.phase}: {_known_here(field)}"
    if not (root or elsewhere or path.keys):
        fix += "; a name that is given at the start is declared under parameters"
    return Problem(f"nothing here is named '{path}'", span, fix, code="unknown-name")


def _where_it_exists(root: str, field: Field) -> str:
    """Of a built-in name, for somebody who asks for it at another place."""
    if root in BEHIND_STEPS:
        of = " of shell text" if root == "shell" else ""
        return f"'{root}' exists behind a step{of} of the same list; "
    handlers = [handler for handler, name in HANDLER_NAMES.items() if name.name == root]
    if handlers and field.phase not in ("graph", "hook"):
        return f"'{root}' exists in {', '.join(handlers)}; "
    return "".join(f"'{root}' exists in {', '.join(name.phases)}; " for name in NAMES if name.name == root)


@lru_cache(maxsize=1024)
def _guess(root: str, known: tuple[str, ...]) -> str | None:
    return nearest(root, known)


def _known_here(field: Field) -> str:
    offered = [name for name in field.known if field.known[name].offered]
    return listed(offered, most=MOST_LISTED_STRICTLY if field.strict else MOST_LISTED)
