"""Flows that are called like tools: found, judged and loaded by the road of every tool.

The chain is built, its rules are checked and its trust is required before anything in the file
is looked at; what is parsed are the very bytes that were judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.agents.permissions import DIRECTIVE
from plait.core.digests import sha256_hex
from plait.core.errors import InputError, MachineError, PlaitError, Problem
from plait.core.hints import TYPE_CHECKING
from plait.core.records import replace
from plait.core.values import Json
from plait.tools.bind import require_literal_code
from plait.tools.chain import FLOW
from plait.tools.items import Header, ToolFile
from plait.tools.rules import validate
from plait.tools.spaces import DIRECTIVES

if TYPE_CHECKING:
    from plait.lang.loaded import LoadedFlow
    from plait.tools.call import Toolbox
    from plait.tools.chain import Chain
    from plait.tools.code_params import CodeParams


def is_flow_tool(tools: Toolbox, tool_id: str) -> bool:
    return tools.chains.get(tool_id).primitive == FLOW


def load_tool(
    tools: Toolbox,
    tool_id: str,
    params: Mapping[str, Json],
    *,
    project: str,
    running: bool = True,
    strict: bool | None = None,
    max_parallel: int | None = None,
) -> LoadedFlow | None:
    """The flow that a tool or a directive is; None if it is another kind of tool."""
    if tool_id.startswith(DIRECTIVE):
        return _load_directive(
            tools, tool_id, params, project=project, running=running, strict=strict
        )
    chain = tools.chains.get(tool_id)
    if chain.primitive != FLOW:
        return None
    validate(chain)
    tools.trust.require(chain.elements, running=running)
    if chain.tool.header.tool_type == "ensemble":
        from plait.lang.ensemble.compile import ensemble_tool as flow_tool
    else:
        from plait.lang.graph.read import graph_tool as flow_tool

    tool = chain.tool
    loaded = flow_tool(
        tool.data,
        tool.path,
        params,
        project=project,
        environ=tools.host,
        max_parallel=max_parallel,
        strict=strict,
    )
    _require_tools(tools, loaded)
    return loaded


def schema_of_flow(chain: Chain) -> Mapping[str, Json] | None:
    """What a tool that is a flow takes, by the inputs that it declares; None if it is none."""
    if chain.primitive != FLOW or chain.tool.header.tool_type == "runtime":
        return None
    from plait.core import documents
    from plait.lang.directive.read import parameters_schema

    tool = chain.tool
    document = documents.parse(documents.decode_text(tool.data, tool.path), tool.path)
    if tool.header.tool_type == "ensemble":
        from plait.lang.ensemble.compile import read_ensemble

        return parameters_schema(read_ensemble(document, tool.path).parameters)
    from plait.lang.graph.read import read_graph

    return parameters_schema(read_graph(document, tool.path).parameters)


def _load_directive(
    tools: Toolbox,
    tool_id: str,
    params: Mapping[str, Json],
    *,
    project: str,
    running: bool,
    strict: bool | None,
) -> LoadedFlow:
    from plait.core.documents import decode_text
    from plait.lang.directive.read import load_directive

    item = directive_item(tools, tool_id)
    tools.trust.require([item], running=running)
    text = decode_text(item.data, item.path)
    loaded = load_directive(
        item.path, given=params, project=project, strict=strict, environ=tools.host, text=text
    )
    _require_tools(tools, loaded)
    return loaded


def directive_item(tools: Toolbox, tool_id: str) -> ToolFile:
    """The file of a directive, its bytes read once; InputError if there is none."""
    name = tool_id.removeprefix(DIRECTIVE)
    found = tools.spaces.find(name, folder=DIRECTIVES)
    if found is None:
        raise tools.spaces.missing(name, folder=DIRECTIVES)
    data = found.read()[0]
    return ToolFile(
        "directive", found.id, found.space, found.path, data, sha256_hex(data), Header()
    )


def chain_items(tools: Toolbox, tool_id: str) -> Sequence[ToolFile]:
    """The files that have to be trusted for a tool or a directive to run."""
    if tool_id.startswith(DIRECTIVE):
        return (directive_item(tools, tool_id),)
    chain = tools.chains.get(tool_id)
    require_literal_code(chain)
    return chain.elements


def find_code_params(tools: Toolbox, tool_id: str) -> CodeParams | None:
    """Which parameters of a tool are read as code; None if there is no tool that could be asked."""
    from plait.tools.code_params import CodeParams

    if tool_id.startswith(DIRECTIVE):
        return None
    try:
        chain = tools.chains.get(tool_id)
    except MachineError:
        raise
    except PlaitError:
        return None
    return CodeParams(tool_id, (item.header.config_schema for item in chain.elements))


def code_problems(tools: Toolbox, loaded: LoadedFlow) -> list[Problem]:
    """Every value of a flow that would become code of a tool which it names."""
    if not (loaded.calls or loaded.hooks):
        return []
    from plait.lang.analysis.tool_calls import calls_of_hooks, code_findings

    calls = (*loaded.calls, *calls_of_hooks(loaded.hooks))
    found = code_findings(calls, lambda tool_id: find_code_params(tools, tool_id))
    return [finding.problem for finding in dict.fromkeys(found) if finding.severity == "error"]


def _require_tools(tools: Toolbox, loaded: LoadedFlow) -> None:
    """Every tool that it names exists; whether it may run is asked when it is called."""
    problems = code_problems(tools, loaded)
    for tool_id, place in loaded.tool_uses.items():
        try:
            chain_items(tools, tool_id)
        except MachineError:
            raise
        except PlaitError as error:
            problems += [replace(one, where=one.where or place) for one in error.problems]
    if problems:
        raise InputError.together(problems)
