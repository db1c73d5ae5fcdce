"""Find and load flows that are called like tools.

The chain is built, and its rules and its trust are checked, before the file is read.  The verified
bytes are the ones that are parsed.

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
from plait.tools.chain_rules import validate
from plait.tools.spaces import DIRECTIVES
from plait.tools.tool_file import Header, ToolFile

if TYPE_CHECKING:
    from plait.lang.flow_text import FlowText
    from plait.lang.loaded import LoadedFlow
    from plait.tools.code_params import CodeParams
    from plait.tools.prepare import Toolbox


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
    """Return the flow behind a tool or directive id; None: it is another kind of tool."""
    source = _trusted_source(tools, tool_id, running=running)
    if source is None:
        return None
    from plait.lang.load import load_flow
    from plait.lang.loaded import LoadOptions

    options = LoadOptions(project, strict=strict, max_parallel=max_parallel, environ=tools.host)
    loaded = load_flow(source, params, options)
    require_callable(tools, loaded)
    return loaded


def _trusted_source(tools: Toolbox, tool_id: str, *, running: bool) -> FlowText | None:
    """Return the bytes that trust accepted; None: the tool is not a flow."""
    from plait.lang.flow_text import FlowText

    if tool_id.startswith(DIRECTIVE):
        item = directive_item(tools, tool_id)
        tools.trust.require([item], running=running)
        return FlowText.of_tool(item)
    chain = tools.chains.get(tool_id)
    if chain.primitive != FLOW:
        return None
    validate(chain)
    tools.trust.require(chain.elements, running=running)
    return FlowText.of_tool(chain.tool)


def tool_schema(tools: Toolbox, tool_id: str) -> Mapping[str, Json] | None:
    """Return the schema of a tool, a flow or a directive; None: it takes anything."""
    if tool_id.startswith(DIRECTIVE):
        item = directive_item(tools, tool_id)
    else:
        chain = tools.chains.get(tool_id)
        item, header = chain.tool, chain.tool.header
        if header.config_schema or chain.primitive != FLOW or header.tool_type == "runtime":
            return header.config_schema
    from plait.lang.flow_text import FlowText
    from plait.lang.load import input_schema  # takes long to load; most tools have a schema

    return input_schema(FlowText.of_tool(item))


def directive_item(tools: Toolbox, tool_id: str) -> ToolFile:
    """Return the file of a directive, read once; InputError if there is none."""
    name = tool_id.removeprefix(DIRECTIVE)
    found = tools.spaces.find(name, folder=DIRECTIVES)
    if found is None:
        raise tools.spaces.missing_error(name, folder=DIRECTIVES)
    data = found.read()[0]
    return ToolFile(
        "directive", found.id, found.space, found.path, data, sha256_hex(data), Header()
    )


def chain_items(tools: Toolbox, tool_id: str) -> Sequence[ToolFile]:
    """Return the files that must be trusted before a tool or a directive runs."""
    if tool_id.startswith(DIRECTIVE):
        return (directive_item(tools, tool_id),)
    chain = tools.chains.get(tool_id)
    require_literal_code(chain)
    return chain.elements


def find_code_params(tools: Toolbox, tool_id: str) -> CodeParams | None:
    """Return which parameters of a tool are code; None: the tool is not known."""
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


def require_callable(tools: Toolbox, loaded: LoadedFlow) -> None:
    """Raise all errors about the tools that a flow names: values in code, parameters, missing ones.

    Nothing is started, and nothing is asked: trust is checked later.
    """
    problems: list[Problem] = []
    if loaded.calls or loaded.program.hooks:
        from plait.app.call_check import params_problems
        from plait.lang.analysis.tool_calls import calls_of_hooks, code_findings

        calls = (*loaded.calls, *calls_of_hooks(loaded.program.hooks))
        found = dict.fromkeys(code_findings(calls, lambda named: find_code_params(tools, named)))
        problems += [finding.problem for finding in found if finding.severity == "error"]
        written = (call for call in calls if call.where is not None)
        problems += params_problems(written, lambda named: tool_schema(tools, named))
    for tool_id, place in loaded.tool_uses.items():
        try:
            chain_items(tools, tool_id)
        except MachineError:
            raise
        except PlaitError as error:
            problems += [replace(one, where=one.where or place) for one in error.problems]
    if problems:
        raise InputError.together(problems)
