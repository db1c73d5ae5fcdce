"""Check a file against the tools and providers that it names.

`plait check` reports here what a run would refuse: a tool that does not exist or is invalid,
parameters that violate its schema, a provider that does not exist.  Nothing is started, and nothing
asks for trust.

"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from plait.agents.permissions import DIRECTIVE
from plait.core.documents import Mapping as MappingNode
from plait.core.documents import Node
from plait.core.errors import PlaitError, Problem
from plait.core.hints import TYPE_CHECKING
from plait.core.records import replace
from plait.core.source import Span
from plait.lang.analysis.names import strings
from plait.lang.findings import Finding, Severity

if TYPE_CHECKING:
    from plait.lang.analysis.tool_calls import ToolCall
    from plait.tools.prepare import Toolbox
    from plait.tools.tool_file import ToolFile


def findings_around(path: str, kind: str | None, document: Node | None) -> Iterable[Finding]:
    """Yield all findings about what a file names; for the file of a tool, about the tool."""
    if kind == "tool":
        yield from (_with_position(finding, path, document) for finding in _of_tool_file(path))
    yield from _of_calls(path, document)
    yield from _of_models(path, kind, document)
    if kind == "provider" and document is not None:
        from plait.agents.providers.provider_files import extends_problems
        from plait.core.projects import project_of_file

        spaces = _toolbox(project_of_file(path)).spaces
        yield from map(Finding, extends_problems(path, document, spaces))


# ── the file of a tool ───────────────────────────────────────────────────


def _of_tool_file(path: str) -> Iterator[Finding]:
    from plait.tools.tool_check import chain_problems

    path = os.path.abspath(path)
    folder, is_below, below = path.rpartition(f"{os.sep}.ai{os.sep}tools{os.sep}")
    if not is_below:  # a file outside of a space has no id yet
        folder, below = os.path.dirname(path), os.path.basename(path)
    tool_id = os.path.splitext(below)[0].replace(os.sep, "/")
    try:
        tools = _toolbox(folder)
        item = _item(tools, tool_id, path)
        yield from _without_effect(item)
        found = tools.spaces.find(tool_id)
        if found is not None and os.path.samefile(found.path, path):
            yield from map(Finding, chain_problems(tools.chains.get(tool_id), tools.spaces.project))
        else:
            tools.chains.require_executor(item)
    except PlaitError as error:
        yield from map(Finding, error.problems)


def _with_position(finding: Finding, path: str, document: Node | None) -> Finding:
    """Add the place in the file to a problem with a key of a YAML file."""
    problem = finding.problem
    if isinstance(problem.where, Span) and isinstance(document, MappingNode):
        source = problem.where.source
        node = next((one for one in strings(document) if one.value == source.text), None)
        if node is not None and source.name == os.path.abspath(path):
            return replace(finding, problem=replace(problem, where=node.span))
    key = re.match(r"config((?:\.\w+)+) |'(\w+)' is not read", problem.what)
    if (
        problem.where != os.path.abspath(path)
        or not isinstance(document, MappingNode)
        or key is None
    ):
        return finding
    names = ["config", *key[1].split(".")[1:]] if key[1] else [key[2]]
    while names:
        around = document.at(tuple(names[:-1])) if names[1:] else document
        if isinstance(around, MappingNode) and around.get(names[-1]) is not None:
            return replace(finding, problem=replace(problem, where=around.key_span(names[-1])))
        names.pop()
    return finding


def _item(tools: Toolbox, tool_id: str, path: str) -> ToolFile:
    """Return the tool in a file, even if its id leads to another file."""
    from plait.core.safe_files import stamp_below
    from plait.tools.headers import read_item
    from plait.tools.spaces import Space, ToolLocation

    folder, name = os.path.split(path)
    space = replace(tools.spaces.spaces[0], root=folder)
    assert isinstance(space, Space)
    stamp = stamp_below(folder, name)
    if stamp is None:
        from plait.core.errors import InputError

        raise InputError("there is no such file", path, "name a file that is there", code="no-file")
    return read_item(ToolLocation(tool_id, space, name, stamp))


def _without_effect(item: ToolFile) -> Iterator[Finding]:
    """Yield keys that look like declared parameters, but that Plait does not read."""
    from plait.tools.headers import header_values

    if item.header.config_schema is not None:
        return
    values = header_values(item.path)
    for key in ("input_schema", "parameters"):
        if isinstance(values.get(key), dict | list):
            what = f"'{key}' is not read, so no parameter is checked"
            fix = "write it as config_schema"
            yield Finding(Problem(what, item.path, fix, code="no-effect"), "warning")


# ── calls of tools ───────────────────────────────────────────────────────


def _of_calls(path: str, document: Node | None) -> Iterator[Finding]:
    """Yield the findings about every tool call of a file: the tool, its parameters, code."""
    from plait.app.call_check import is_elsewhere
    from plait.app.subflows import find_code_params
    from plait.core.projects import project_of_file
    from plait.lang.analysis.tool_calls import calls_in_file, code_findings

    project = project_of_file(path)
    try:
        calls = list(calls_in_file(path, document, project=project))
    except PlaitError:
        return  # the check of the file reports it
    tools = _toolbox(project)
    for call in calls:
        try:
            if call.where is not None and not is_elsewhere(call.tool_id):
                yield from _of_call(tools, call)
        except PlaitError as error:
            where = call.where or path
            yield from (Finding(replace(one, where=one.where or where)) for one in error.problems)
    yield from code_findings(calls, lambda tool_id: find_code_params(tools, tool_id))


def _of_call(tools: Toolbox, call: ToolCall) -> Iterator[Finding]:
    from plait.app.call_check import params_findings
    from plait.app.subflows import chain_items, tool_schema
    from plait.tools.tool_check import call_problems, chain_problems

    chain_items(tools, call.tool_id)  # which raises if there is no such tool
    schema = tool_schema(tools, call.tool_id)
    in_params = list(params_findings(call, schema))
    yield from in_params
    if call.tool_id.startswith(DIRECTIVE):
        return
    chain, project = tools.chains.get(call.tool_id), tools.spaces.project
    yield from map(Finding, chain_problems(chain, project))
    if call.is_whole and not any(finding.severity == "error" for finding in in_params):
        for problem in call_problems(chain, project, call.params_with_unknowns()):
            what = f"'{call.tool_id}' cannot be called like this: {problem.what}"
            yield Finding(replace(problem, what=what, where=call.where))


# ── providers ────────────────────────────────────────────────────────────


def _of_models(path: str, kind: str | None, document: Node | None) -> Iterator[Finding]:
    from plait.agents.providers.provider_files import provider_problems
    from plait.core.projects import project_of_file
    from plait.lang.analysis.models import find_models

    project = project_of_file(path)
    try:
        asked = list(find_models(path, kind, document, project=project))
    except PlaitError:
        return  # the check of the file reports it
    if not asked:
        return
    spaces = _toolbox(project).spaces
    for one in asked:
        for problem in provider_problems(one.provider, spaces, os.environ):
            # The default provider may be configured where the flow runs.
            severity: Severity = "error" if one.provider else "warning"
            what = f"{one.who} needs a model: {problem.what}" if one.who else problem.what
            yield Finding(replace(problem, what=what, where=problem.where or one.where), severity)


def _toolbox(project: str) -> Toolbox:
    from plait.app.toolbox import toolbox

    return toolbox(project)
