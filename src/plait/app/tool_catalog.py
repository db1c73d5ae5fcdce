"""The tools of a project as a model sees them: found by patterns, checked for trust, described.

A model reads a description like any other text, so the description of a file reaches the model only
if the file may run.  The same holds for the description of an MCP server: it must be approved.

"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.agents.permissions import DIRECTIVE, matches_any, normalize_tool_id
from plait.agents.tool_access import make_offer
from plait.app.subflows import directive_item, tool_schema
from plait.core.errors import NO_OUTCOMES, InternalError, MachineError, PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.lang.flow_text import FlowText
from plait.tools.spaces import DIRECTIVES

if TYPE_CHECKING:
    from plait.agents.messages import ToolOffer
    from plait.core.values import Json
    from plait.tools.prepare import Toolbox
    from plait.tools.tool_file import Header

MCP: Final = "core/primitives/mcp"
NO_TOOLS: Final = frozenset({"runtime", "primitive"})


def offers(
    tools: Toolbox, patterns: Sequence[str], *, ask_servers: bool = True
) -> tuple[ToolOffer, ...]:
    """Return the offers by id.  A name without `*` must exist; TrustError if it may not run.

    `ask_servers`: start MCP servers to get the schemas of their tools.
    """
    named = list(dict.fromkeys(_exact_tool_ids(patterns)))
    found = {one: _offer(tools, one, ask_servers=ask_servers) for one in named}
    for tool_id in sorted(_ids(tools, patterns)):
        if tool_id in found or not matches_any(patterns, tool_id):
            continue
        try:
            offer = _offer(tools, tool_id, ask_servers=ask_servers)
        except NO_OUTCOMES:
            raise
        except PlaitError:
            continue  # `plait tools` reports its problem; a pattern does not name it alone
        if offer is not None:
            found[tool_id] = offer
    return tuple(offer for _, offer in sorted(found.items()) if offer is not None)


def trusted_offers(tools: Toolbox, patterns: Sequence[str]) -> Iterator[tuple[ToolOffer, Header]]:
    """Yield what may run and has no problem, with its header, by id; no server is started."""
    for tool_id in sorted({*tools.spaces.ids(), *_directive_ids(tools)}):
        if not matches_any(patterns, tool_id):
            continue
        try:
            offer = _offer(tools, tool_id, ask_servers=False)
            if offer is not None:
                yield offer, _header(tools, tool_id)
        except (InternalError, MachineError):
            raise
        except PlaitError:
            continue  # `plait tools` and `plait verify` report its problem


def _header(tools: Toolbox, tool_id: str) -> Header:
    if tool_id.startswith(DIRECTIVE):
        return directive_item(tools, tool_id).header
    return tools.chains.get(tool_id).tool.header


def _exact_tool_ids(patterns: Iterable[str]) -> Iterator[str]:
    for pattern in patterns:
        if "*" not in pattern:
            yield normalize_tool_id(pattern) or pattern


def _ids(tools: Toolbox, patterns: Sequence[str]) -> Iterator[str]:
    if any("*" in pattern and not pattern.startswith(DIRECTIVE) for pattern in patterns):
        yield from tools.spaces.ids()
    if any("*" in pattern and pattern.startswith(DIRECTIVE) for pattern in patterns):
        yield from _directive_ids(tools)


def _directive_ids(tools: Toolbox) -> Iterator[str]:
    return (f"{DIRECTIVE}{one}" for one in tools.spaces.ids(folder=DIRECTIVES))


def _offer(tools: Toolbox, tool_id: str, *, ask_servers: bool) -> ToolOffer | None:
    if tool_id.startswith(DIRECTIVE):
        item = directive_item(tools, tool_id)
        tools.trust.require([item], running=False)
        return _of_directive(tool_id, FlowText.of_tool(item))
    chain = tools.chains.get(tool_id)
    header = chain.tool.header
    if header.tool_type in NO_TOOLS:
        return None
    tools.trust.require(chain.elements, running=False)
    if chain.primitive == MCP and ask_servers:
        return _of_server(tools, tool_id, header)
    return make_offer(tool_id, header.description, tool_schema(tools, tool_id))


def _of_server(tools: Toolbox, tool_id: str, header: Header) -> ToolOffer:
    """Complete an offer with what its MCP server says, unless the server depends on parameters."""
    from plait.adapters.mcp.client import require_approved
    from plait.tools.invocation import McpCall
    from plait.tools.prepare import prepare

    prepared = prepare(tools, tool_id, {}, checked=False)
    call = prepared.invocation
    if not isinstance(call, McpCall) or any(
        name not in prepared.all_params for name in call.chosen_by
    ):
        return make_offer(tool_id, header.description, header.config_schema)
    offered = require_approved(call)
    schema = header.config_schema or _without(offered.input_schema, call.params)
    return make_offer(tool_id, header.description or offered.description, schema)


def _without(schema: Json, given: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """Return the schema of the parameters that are still missing."""
    if not isinstance(schema, Mapping):
        return None
    names, required = schema.get("properties"), schema.get("required")
    left = dict(schema)
    if isinstance(names, Mapping):
        left["properties"] = {name: one for name, one in names.items() if name not in given}
    if isinstance(required, list):
        left["required"] = [name for name in required if name not in given]
    return left


def _of_directive(tool_id: str, source: FlowText) -> ToolOffer:
    from plait.lang.directive.read import read_flow
    from plait.lang.load import input_schema

    return make_offer(tool_id, read_flow(source).description, input_schema(source))
