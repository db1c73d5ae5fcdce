"""What `plait mcp` offers: every trusted tool, directive and flow that a pattern names.

A description reaches a model, so a file that may not run is not even listed.  A flow outside `.ai`
has no signature; it is offered if the user trusts the whole project.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.agents.messages import ToolOffer
from plait.agents.permissions import DIRECTIVE, matches_any
from plait.agents.tool_access import ANYTHING, make_offer, wire_name
from plait.app.tool_catalog import MCP, trusted_offers
from plait.app.toolbox import toolbox
from plait.core.errors import PlaitError, TrustError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.tools.chain import FLOW

if TYPE_CHECKING:
    from plait.tools.prepare import Toolbox
    from plait.tools.tool_file import Header

FLOW_FILE: Final = "flow:"
"""Begins the id of a flow in a file of the project, and the patterns for such flows."""
EVERYTHING: Final = ("*", f"{DIRECTIVE}*", f"{FLOW_FILE}*")
RESERVED: Final = frozenset(
    f"plait_run_{name}" for name in ("start", "status", "wait", "cancel", "resume")
)
"""Names of the tools about runs."""
_SETTINGS: Final = os.path.join(".ai", "plait.yaml")
_PROCESS: Final = "core/primitives/subprocess"
_OUTSIDE: Final = frozenset({"core/primitives/http_client", MCP})
"""Primitives that reach other machines."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """A tool, directive or flow under the name that clients call it by."""

    name: str
    offer: ToolOffer
    path: str
    """The file of a flow; empty for tools that are not flows."""
    is_flow: bool
    hints: Mapping[str, Json]
    kind: str

    @property
    def id(self) -> str:
        return self.offer.tool_id

    def record(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "title": self.id,
            "description": self.offer.description,
            "inputSchema": _object_schema(self.offer.schema),
            "annotations": {"title": self.id, **self.hints},
        }


class Catalog:
    """What a project offers now.  Files are read again at each listing."""

    def __init__(self, project: str, patterns: Sequence[str] | None) -> None:
        self.project = project
        self._patterns = patterns
        self._known: dict[str, Exposed] = {}
        self._settings: object = None
        """How the file with the patterns looked when `_known` was found."""

    def entries(self) -> list[Exposed]:
        """Everything that is offered, by id."""
        found: dict[str, Exposed] = {}
        settings = self._look_at_settings()
        for one in self._find():
            name = one.name
            if name in found or name in RESERVED:
                name = wire_name(f"{one.id}.{one.kind}")  # the dot makes it end with a digest
            found[name] = replace(one, name=name)
        self._known, self._settings = found, settings
        return list(found.values())

    def get(self, name: str) -> Exposed | None:
        """By the name that was listed; a name that is not known yet is looked for again."""
        known = self._known_now().get(name)
        if known is None:
            self.entries()
            known = self._known.get(name)
        return known

    def _known_now(self) -> Mapping[str, Exposed]:
        """What was offered last, unless the patterns of the project have changed since."""
        if self._settings != self._look_at_settings():
            self.entries()
        return self._known

    def require_trust(self, file: str) -> None:
        """TrustError: it is a flow file of the project, which is no longer trusted.

        Tools and directives are judged when they are called.
        """
        flows = (one for one in self._known.values() if one.id.startswith(FLOW_FILE))
        found = _find_flow(flows, os.path.realpath(file))
        if found is not None and not toolbox(self.project).trust.project_trusted:
            named = found.id.removeprefix(FLOW_FILE)
            what = f"the flow {named} may not run: you no longer trust this project"
            fix = f"look at what it brings, then type: plait trust {shlex.quote(self.project)}"
            raise TrustError(what, self.project, fix, code="not-trusted")

    def has_run(self, file: str) -> bool:
        """Is a run of this file one of a flow that is offered?"""
        place = os.path.realpath(file)
        known = self._known_now().values()
        return (_find_flow(known, place) or _find_flow(self.entries(), place)) is not None

    def _look_at_settings(self) -> object:
        if self._patterns is not None:
            return None
        try:
            found = os.stat(os.path.join(self.project, _SETTINGS))
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def patterns(self) -> Sequence[str]:
        """Those of the command, else those of the project, else all."""
        if self._patterns is not None:
            return self._patterns
        return read_patterns(self.project) or EVERYTHING

    def patterns_without_entry(self, entries: Iterable[Exposed]) -> list[str]:
        """The chosen patterns that match none of the entries."""
        patterns = self.patterns()
        if patterns is EVERYTHING:
            return []
        ids = [one.id for one in entries]
        return [one for one in patterns if not any(matches_any([one], id) for id in ids)]

    def _find(self) -> Iterator[Exposed]:
        tools, patterns = toolbox(self.project), self.patterns()
        for offer, header in trusted_offers(tools, patterns):
            yield _tool_entry(tools, offer, header)
        if any(one.startswith(FLOW_FILE) for one in patterns) and tools.trust.project_trusted:
            yield from self._find_flows(patterns)

    def _find_flows(self, patterns: Sequence[str]) -> Iterator[Exposed]:
        from plait.app.flow_list import find_flows
        from plait.lang.parameters import parameters_schema

        for flow in find_flows(self.project):
            path = os.path.abspath(flow.path)
            inside = os.path.relpath(path, self.project)
            id = FLOW_FILE + inside.replace(os.sep, "/")
            if f"{os.sep}.ai{os.sep}" in path or not _names_flow(patterns, id):
                continue
            what = flow.description or f"Run the {flow.kind} {inside}"
            schema = parameters_schema(flow.parameters)
            offer = make_offer(id, flow.problem or what, schema)
            stem = os.path.splitext(inside)[0].replace(os.sep, "/")
            yield Exposed(wire_name(f"flow/{stem}"), offer, path, True, _FLOW_HINTS, flow.kind)


_FLOW_HINTS: Final[Mapping[str, Json]] = {"readOnlyHint": False, "idempotentHint": False}


def _tool_entry(tools: Toolbox, offer: ToolOffer, header: Header) -> Exposed:
    id = offer.tool_id
    if id.startswith(DIRECTIVE):
        from plait.app.subflows import directive_item

        path = directive_item(tools, id).path
        return Exposed(offer.name, offer, path, True, _FLOW_HINTS, "directive")
    chain = tools.chains.get(id)
    if chain.primitive == FLOW:
        return Exposed(offer.name, offer, chain.tool.path, True, _FLOW_HINTS, header.tool_type)
    hints: dict[str, Json] = {"readOnlyHint": header.read_only}
    if header.read_only:
        hints |= {"destructiveHint": False, "idempotentHint": True}
    if chain.primitive not in _OUTSIDE and chain.primitive != _PROCESS and header.read_only:
        hints["openWorldHint"] = False
    return Exposed(offer.name, offer, "", False, hints, "tool")


def _names_flow(patterns: Sequence[str], id: str) -> bool:
    return matches_any([one for one in patterns if one.startswith(FLOW_FILE)], id)


def _find_flow(entries: Iterable[Exposed], place: str) -> Exposed | None:
    return next(
        (one for one in entries if one.is_flow and os.path.realpath(one.path) == place), None
    )


def _object_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """The protocol wants `type: object` at the top of a schema."""
    return {"type": "object", **(schema or ANYTHING)}


def read_patterns(project: str) -> list[str] | None:
    """The setting `mcp_expose` of a project; None: it has none."""
    from plait.core.documents import Mapping as MappingNode
    from plait.core.documents import Sequence as SequenceNode
    from plait.core.documents import parse
    from plait.core.safe_files import read_below
    from plait.tools.trust.decisions import require_valid_settings

    try:
        contents = read_below(project, _SETTINGS)
    except PlaitError:
        return None
    if contents is None or b"mcp_expose" not in contents[0]:
        return None  # loading YAML takes long
    node = parse(contents[0].decode("utf-8", "replace"), os.path.join(project, _SETTINGS))
    if not isinstance(node, MappingNode):
        return None
    require_valid_settings(node)
    value = node.get("mcp_expose")
    return [str(one) for one in value.data()] if isinstance(value, SequenceNode) else None
