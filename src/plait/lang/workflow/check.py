"""Check a workflow: its steps, captures, conditions, policies and paths."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial

from plait import schema
from plait.core import documents
from plait.core.documents import nodes
from plait.core.errors import InputError, PlaitError, Problem
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.projects import project_of_file
from plait.core.records import replace
from plait.core.source import Span
from plait.lang.analysis.declarations import names_before_items, names_of_head
from plait.lang.analysis.names import BEHIND_STEPS, HANDLER_NAMES, NAMES, detect_profile, strings
from plait.lang.analysis.references import mentions_item, names_in
from plait.lang.analysis.scopes import find_templates
from plait.lang.analysis.templates import check_template, has_fallback
from plait.lang.environment import circular_variables, env_files, read_env_file
from plait.lang.findings import Finding, from_format, sort_findings
from plait.lang.flow_text import FlowText
from plait.lang.parameters import parse_parameters
from plait.lang.workflow.compose import Blocks, Calls, compose
from plait.lang.workflow.setup_captures import parse_output_part
from plait.lang.workflow.shared_checkout import check_shared_checkout
from plait.schema import to_template
from plait.schema.fields import valid_fields
from plait.scope import Scope
from plait.template.nodes import ContextPlaceholder, Path, placeholders
from plait.template.operators import OPERATORS, RefusedError
from plait.template.template import compile_template

if TYPE_CHECKING:
    from plait.lang.analysis.scopes import TemplateFields
    from plait.lang.workflow.compose import ComposedWorkflow
    from plait.schema import Fields


def check_step_list(steps: Sequence[documents.Node]) -> Iterator[Finding]:
    maps = [step for step in steps if isinstance(step, documents.Mapping)]
    yield from _same_ids(maps)
    for at, step in enumerate(maps):
        yield from _shadows(step)
        yield from _condition(step)
        yield from _check_result_schema(step)
        yield from _never_retried(step)
        yield from _never_written(step)
        if _always_fails(step) and at + 1 < len(maps):
            what, fix = (
                "the step before this one always fails, so this one never runs",
                "remove one of them",
            )
            span = maps[at + 1].entries[0][0].span if maps[at + 1].entries else maps[at + 1].span
            yield Finding(Problem(what, span, fix, code="unreachable"), "warning")


def _same_ids(steps: Sequence[documents.Mapping]) -> Iterator[Finding]:
    seen: set[str] = set()
    for step in steps:
        if (name := nodes.text_field(step, "id")) is None:
            continue
        if name in seen:
            what, fix = (
                f"two steps of this list have the id '{name}'",
                "give one of them another id",
            )
            where = step.get("id")
            yield Finding(Problem(what, where.span if where else None, fix, code="duplicate-id"))
        seen.add(name)


WORKFLOW_ROOTS: Final = frozenset(
    name.name
    for name in (*NAMES, *HANDLER_NAMES.values())
    if not name.phases or "flow" in name.phases
) | {"item", "item_index", "item_total", "item_id", "map", "merge"}


def _shadows(step: documents.Mapping) -> Iterator[Finding]:
    for key in ("capture_output", "capture"):
        name, node = nodes.text_field(step, key), step.get(key)
        if node is not None and name in WORKFLOW_ROOTS:
            what = f"this capture hides the built-in name '{name}' from all later steps"
            yield Finding(
                Problem(what, node.span, "choose another name", code="shadowed-name"), "warning"
            )


def _condition(step: documents.Mapping) -> Iterator[Finding]:
    """Check a `when` that is a map or is never true; `check_template` checks the names in a
    text.
    """
    node = step.get("when")
    if isinstance(node, documents.Mapping):
        from plait.template.conditions import check

        for problem in check(node.data(), locate=partial(nodes.span_at, node)):
            yield Finding(problem)
    elif isinstance(node, documents.Scalar) and _never_holds(node):
        what, fix = "this step never runs", "remove it, or its when"
        yield Finding(Problem(what, node.span, fix, code="unreachable"), "warning")


def _never_holds(when: documents.Scalar) -> bool:
    """Is it a condition without names that is false?"""
    if (literal := _literal(when)) is None:
        return when.value is False
    from plait.scope.expressions import parse_when

    try:
        return not parse_when(literal, source=when.source()).holds(Scope())
    except PlaitError:
        return False  # the check of the condition reports it


def _check_result_schema(step: documents.Mapping) -> Iterator[Finding]:
    """Find an `expected_schema` that is not JSON Schema."""
    check = step.get("validate")
    node = check.get("expected_schema") if isinstance(check, documents.Mapping) else None
    if not isinstance(node, documents.Mapping):
        return
    from plait.core.json_schema import is_schema

    if not is_schema(node.data()):
        what, fix = (
            "this is not JSON Schema",
            "every keyword has its form: type: object, required: [a]",
        )
        where = (
            check.key_span("expected_schema") if isinstance(check, documents.Mapping) else node.span
        )
        yield Finding(Problem(what, where, fix, code="wrong-type"))


def _never_retried(step: documents.Mapping) -> Iterator[Finding]:
    """Find a `retry` that names the failure of a check: it retries only the action."""
    retry = step.get("retry")
    node = retry.get("retry_on") if isinstance(retry, documents.Mapping) else None
    if node is None or step.get("validate") is None or any(step.get(key) for key in COMPOSED):
        return
    for word in node.items if isinstance(node, documents.Sequence) else (node,):
        if isinstance(word, documents.Scalar) and word.value == "incomplete":
            what = (
                "retry repeats only the action, which is never incomplete: validate runs after it"
            )
            fix = "use on_incomplete of validate, with max_attempts"
            yield Finding(Problem(what, word.span, fix, code="no-effect"), "warning")


def _never_written(step: documents.Mapping) -> Iterator[Finding]:
    """Find literal content that is not a valid document of its format."""
    written = step.get("write_file")
    content = written.get("content") if isinstance(written, documents.Mapping) else None
    format = nodes.text_field(written, "format")
    if not isinstance(content, documents.Scalar) or format not in ("json", "yaml"):
        return
    from plait.program.actions.write_file import content_problem

    try:
        problem = content_problem(
            to_template(content, "workflow"), "json" if format == "json" else "yaml"
        )
    except PlaitError:
        return  # the check of the template reports it
    if problem is not None:
        yield Finding(problem)


COMPOSED: Final = ("foreach", "use", "tool")
"""Commands that contain steps, which may have checks."""


def check_paths(step: documents.Node, project: str | None) -> Iterator[Finding]:
    """Literal paths that leave the project; a run checks those with placeholders."""
    if not isinstance(step, documents.Mapping):
        return
    written = step.get("write_file")
    path = written.get("path") if isinstance(written, documents.Mapping) else None
    place = step.get("working_dir") or step.get("cwd")
    for node in (place, path, step.get("output_file")):
        if node is None or (literal := _literal(node)) is None:
            continue
        if _leaves(literal, None if node is place else place, project):
            what, fix = "this path is outside the project", "name a path below the project"
            yield Finding(Problem(what, node.span, fix, code="file-outside"))


def _literal(node: documents.Node) -> str | None:
    value = node.value if isinstance(node, documents.Scalar) else None
    return value if isinstance(value, str) and "$" not in value else None


def _leaves(path: str, place: documents.Node | None, project: str | None) -> bool:
    """Does a path leave the project?  It is relative to the project, or to the folder `place`."""
    if os.path.isabs(path):
        return project is not None and not _is_below(path, project)
    if place is None:
        return (
            os.path.normpath(path).startswith(os.pardir + os.sep)
            or os.path.normpath(path) == os.pardir
        )
    start = _literal(place)
    return start is not None and _leaves(os.path.join(start, path), None, project)


def _is_below(path: str, project: str) -> bool:
    tops = {os.path.normpath(os.path.abspath(project)), os.path.realpath(project)}
    return any(os.path.commonpath([os.path.normpath(path), top]) == top for top in tops)


def _always_fails(step: documents.Mapping) -> bool:
    """Is it a command that always fails, without a handler?"""
    forgiving = (
        "on_failure",
        "on_exit_code",
        "continue_on_error",
        "allow_failure",
        "when",
        "metadata",
    )
    if any(step.get(key) is not None for key in forgiving):
        return False
    words = (nodes.text_field(step, "shell") or "").split()
    return words == ["false"] or (
        len(words) == 2 and words[0] == "exit" and words[1].strip("0").isdecimal()
    )


def capture_problems(fields: Fields) -> Iterator[Problem]:
    """`capture_outputs` with steps that do not exist or print nothing, and with wrong patterns."""
    steps = fields.items("steps")
    for name, node in fields.entries("capture_outputs"):
        at, extract = parse_output_part(name, node, fields.scope)
        if fields.has("steps") and not (at < len(steps) and _prints(steps[at])):
            what = f"'{name}' is the output of step {at}, but setup has {len(steps)} steps"
            where = node.span if isinstance(node, nodes.Scalar) else fields.span("capture_outputs")
            yield Problem(what, where, "count from 0", code="wrong-type")
        span = node.entries[0][0].span if isinstance(node, nodes.Mapping) else node.span
        if extract.pattern is not None:
            try:
                OPERATORS["regex"].build(extract.pattern)
            except RefusedError as refused:
                yield refused.problem(span, begin=f"the pattern of '{extract.name}' is")


def _prints(step: nodes.Node) -> bool:
    """Does a step have a command?"""
    keys = {str(key.value) for key, _ in step.entries} if isinstance(step, nodes.Mapping) else set()
    return "validate" not in keys or any(name in keys for name in _COMMANDS)


_COMMANDS: Final = [
    name
    for one in schema.ACTION_FIELDS
    for name in schema.fields_by_spelling("step")[one].spellings
]


def check_flow(source: FlowText, names: Iterable[str], project: str | None) -> list[Finding]:
    root = project_of_file(source.path) if project is None else project
    flow = compose(source.document, source.path, project=project)
    return check_workflow(flow, names=names, project=root)


def check_workflow(
    flow: ComposedWorkflow,
    *,
    names: Iterable[str] = (),
    project: str | None = None,
    calls: Calls | None = None,
) -> list[Finding]:
    """All findings of a composed flow; absolute paths are checked if the project is known."""
    is_called = calls is not None
    calls = Calls() if calls is None else calls
    names = tuple(names)
    found = [Finding(problem) for problem in flow.problems]
    # Reading blocks that use themselves would never end.
    broken = any(
        problem.code in ("cycle", "too-deep", "too-many-steps") for problem in flow.problems
    )
    if detect_profile(flow.document) == "workflow":
        found += [from_format(problem) for problem in schema.validate(flow.document)]
        found += map(from_format, _map_problems(flow.document, project))
        found += map(Finding, _policy_problems(flow.document))
        found += map(Finding, _capture_problems(flow.document))
        found += map(Finding, _parameter_problems(flow.document))
        found += map(Finding, _head_problems(flow.document, names))
        found += map(Finding, _env_file_problems(flow.document))
        found += _check_shadowed_names(flow.document)
        found += _hook_findings(flow.document)
    blocks = Blocks() if broken else flow.blocks
    reading = find_templates(
        flow.document, "workflow", names=names, blocks=blocks, whole=flow.whole
    )
    for field in reading.fields:
        found += check_template(field, "workflow")
    found += _address_findings(reading)
    found += _check_shared_checkout(flow, blocks, is_called=is_called)
    found += map(Finding, reading.too_long)
    found += _check_subworkflows(reading, project, calls)
    for steps in reading.lists:
        found += check_step_list(steps)
        found += (finding for step in steps for finding in check_paths(step, project))
    return sort_findings(found)


def _check_subworkflows(
    reading: TemplateFields, project: str | None, calls: Calls
) -> Iterator[Finding]:
    """Findings of the workflow files that its steps call; they know the names of this one."""
    reported: set[tuple[str, str]] = set()
    for step, known in reading.calls:
        from plait.lang.workflow.subworkflow import call_problems, open_called

        node = step.get("workflow")
        if node is None or schema.validate(
            node, schema.fields_by_spelling("step")["workflow"].kind
        ):
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
            # A file that is called twice has each problem once, although its known names differ.
            mark = (str(finding.problem.place), finding.problem.what)
            if mark not in reported:
                reported.add(mark)
                yield finding


def _check_shared_checkout(
    flow: ComposedWorkflow, blocks: Blocks, *, is_called: bool
) -> Iterator[Finding]:
    if detect_profile(flow.document) == "workflow":
        for finding in check_shared_checkout(flow.document, blocks):
            if is_called and "isolation" in (
                finding.problem.fix or ""
            ):  # a called file cannot have it
                fix = "write max_parallel: 1 in the map, or parallel: false"
                finding = replace(finding, problem=replace(finding.problem, fix=fix))
            yield finding


def _address_findings(reading: TemplateFields) -> Iterator[Finding]:
    steps = [
        step for steps in reading.lists for step in steps if isinstance(step, documents.Mapping)
    ]
    if any(step.get("http") is not None for step in steps):
        from plait.lang.analysis.requests import check_request_hosts

        yield from map(Finding, check_request_hosts(reading))


def _hook_findings(document: documents.Node) -> list[Finding]:
    hooks = document.get("hooks") if isinstance(document, documents.Mapping) else None
    if hooks is None:
        return []
    from plait.lang.hooks import hook_findings

    return hook_findings(hooks)


def _map_problems(document: documents.Node, project: str | None) -> Iterator[Problem]:
    """Problems of the input and the selection of a map."""
    node = document.get("map") if isinstance(document, documents.Mapping) else None
    if not isinstance(node, documents.Mapping):
        return
    from plait.program.items import AutoInput, command_problem, read_input, read_selection

    kept = valid_fields(node, "map", SELECTION)
    source = kept.get("input")
    try:
        read_selection(kept)
    except PlaitError as error:
        yield from error.problems
    try:
        input = None if source is None else read_input(source)
        if isinstance(input, AutoInput):
            wrong = command_problem(input.text, input.span, project)
            yield from () if wrong is None else (wrong,)
    except PlaitError as error:
        yield from error.problems
    yield from _of_items_in_input(node, names_before_items(document))
    id = node.get("id")
    if isinstance(id, documents.Scalar) and "$" not in str(id.value):
        what, fix = (
            "all items get this one id",
            f"use a value that differs, such as ${{item.{id.value}}}",
        )
        yield Problem(what, id.span, fix, code="no-effect")


def _of_items_in_input(node: documents.Mapping, declared: Container[str]) -> Iterator[Problem]:
    """Find variables of the map that the command of its input uses but does not get."""
    source = node.get("input")
    command = source.get("command") if isinstance(source, documents.Mapping) else None
    if command is None:
        return
    used = {name for name in names_in(command) if name.isupper()}
    for name, value in nodes.map_entries(node.get("env")):
        if name in used and mentions_item(value, declared):
            what = f"'{name}' uses the item, but this command finds the items"
            yield Problem(what, command.span, "use another variable here", code="unknown-name")


def _policy_problems(document: documents.Node) -> Iterator[Problem]:
    """Contradictions about failing items in a map and its flow."""
    own = document.get("map") if isinstance(document, documents.Mapping) else None
    places = [
        (form, valid_fields(node, form, POLICY))
        for form, node in (("map", own), ("flow", document))
        if isinstance(node, documents.Mapping)
    ]
    if own is None and not any(node.entries for _, node in places):
        return
    from plait.lang.workflow.map import isolation_problems, policy_problems

    for form, node in places:
        yield from policy_problems(schema.Fields(form, node, Scope()))
    if isinstance(own, documents.Mapping):
        yield from isolation_problems(schema.Fields("map", valid_fields(own, "map"), Scope()))


def _capture_problems(document: documents.Node) -> Iterator[Problem]:
    """The problems of `capture_outputs` in setup."""
    node = document.get("setup") if isinstance(document, documents.Mapping) else None
    if isinstance(node, documents.Mapping):
        pass

        yield from capture_problems(schema.Fields("setup", valid_fields(node, "setup"), Scope()))


def _parameter_problems(document: documents.Node) -> Iterator[Problem]:
    """Contradictions in parameters that have the right form."""
    node = document.get("parameters") if isinstance(document, documents.Mapping) else None
    if node is None:
        return
    try:
        parse_parameters(_readable(node))
    except InputError as error:
        yield from error.problems


def _env_file_problems(document: documents.Node) -> Iterator[Problem]:
    """Env files that cannot be read."""
    node = document.get("env_files") if isinstance(document, documents.Mapping) else None
    if node is None or schema.validate(node, schema.fields_by_spelling("flow")["env_files"].kind):
        return
    for file in env_files(node):
        try:
            read_env_file(file)
        except InputError as error:
            yield from error.problems


def _head_problems(document: documents.Node, names: Iterable[str]) -> Iterator[Problem]:
    """Values of the head that use a name which is declared below them."""
    if not isinstance(document, documents.Mapping) or document.get("env_files") is not None:
        return
    heads = {key: nodes.map_entries(document.get(key)) for key in ("vars", "env")}
    own = {name for entries in heads.values() for name, _ in entries}
    filled = (*heads, "profiles")
    elsewhere = tuple(entry for entry in document.entries if entry[0].value not in filled)
    given = {*names, *names_of_head(documents.Mapping(elsewhere, document.span))}
    yield from _check_declaration_order(heads["vars"], given, own)
    yield from _check_declaration_order(
        heads["env"], given.union(name for name, _ in heads["vars"]), own
    )
    for _, profile in nodes.map_entries(document.get("profiles")):
        yield from circular_variables(dict(heads["env"]), dict(nodes.map_entries(profile)))


def _check_shadowed_names(document: documents.Node) -> Iterator[Finding]:
    """Find names of the head that a step replaces for later steps."""
    for part in ("parameters", "vars", "env"):
        declared = document.get(part) if isinstance(document, documents.Mapping) else None
        for key, _ in declared.entries if isinstance(declared, documents.Mapping) else ():
            if key.value in BEHIND_STEPS:
                what = (
                    f"'{key.value}' is the output of the step before, behind the first step of a "
                    "list"
                )
                problem = Problem(what, key.span, "choose another name", code="shadowed-name")
                yield Finding(problem, "warning")


def _check_declaration_order(
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
        return  # the check of the template reports it
    for placeholder in placeholders(leaf.compiled.parts):
        if (
            not isinstance(placeholder, ContextPlaceholder)
            or placeholder.bare
            or has_fallback(placeholder)
        ):
            continue
        path = placeholder.alternatives[0].origin
        if isinstance(path, Path) and path.root in later:
            what = f"'{path.root}' is not known yet: it is declared here or below"
            fix = (
                "move it above: parameters, secrets, and what stands above are known; in env, vars "
                "are, too"
            )
            yield Problem(
                what,
                Span(leaf.source, placeholder.start, placeholder.end),
                fix,
                code="unknown-name",
            )


def _readable(node: documents.Node) -> documents.Node | None:
    """The parameters without schema problems."""
    match node:
        case documents.Sequence(items):
            kept: documents.Node = documents.Sequence(
                tuple(item for item in items if not schema.validate(item, schema.PARAMETER)),
                node.span,
            )
        case documents.Mapping(entries) if isinstance(
            each := schema.select_kind(schema.PARAMETERS, node), schema.MapOf
        ):
            sound = tuple(entry for entry in entries if not schema.validate(entry[1], each.kind))
            kept = documents.Mapping(sound, node.span)
        case _:
            kept = node
    return None if schema.validate(kept, schema.PARAMETERS) else kept


SELECTION: Final = ("input", "json_path", "filter", "sort_by", "distinct")

POLICY: Final = (
    "error_policy", "on_item_failure", "continue_on_failure", "max_failures", "failure_threshold",
    "circuit_breaker", "retry",
)  # fmt: skip
