"""Compare the parameters of tool calls, as written, with the schemas of the tools.

`plait check` reports what it finds; a run refuses its errors before the first step.  Values that only
a run knows are left to the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from plait.agents.permissions import DIRECTIVE
from plait.core.documents import Mapping as MappingNode
from plait.core.errors import MachineError, PlaitError, Problem, closest_name
from plait.core.hints import TYPE_CHECKING, TypeAlias
from plait.core.source import Span
from plait.core.values import Json
from plait.lang.findings import Finding

if TYPE_CHECKING:
    from plait.lang.analysis.tool_calls import ToolCall


SchemaOf: TypeAlias = Callable[[str], Mapping[str, Json] | None]
"""The schema of a tool, by its id; None: it takes anything."""


def params_problems(calls: Iterable[ToolCall], schema_of: SchemaOf) -> Iterator[Problem]:
    """Yield the errors in the parameters of calls whose tools exist."""
    for call in calls:
        try:
            schema = None if is_elsewhere(call.tool_id) else schema_of(call.tool_id)
        except MachineError:
            raise
        except PlaitError:
            continue  # the tool itself is reported
        for finding in params_findings(call, schema):
            if finding.severity == "error":
                yield finding.problem


def is_elsewhere(tool_id: str) -> bool:
    """Is it something other than a file of a space?"""
    return ":" in tool_id and not tool_id.startswith(DIRECTIVE)


def params_findings(call: ToolCall, schema: Mapping[str, Json] | None) -> Iterator[Finding]:
    """Yield what the schema of a tool says about the parameters of a call, as far as known."""
    if schema is None or not call.is_whole:
        return
    from plait.tools.config import place_in, violations

    params = call.params_with_unknowns()
    declared = schema.get("properties")
    properties = declared if isinstance(declared, Mapping) else {}
    for one in violations(params, schema):
        if one.code == "bad-schema":
            continue  # the check of the tool reports it
        guesses = [guess for name in one.unexpected if (guess := closest_name(name, properties))]
        fix = (
            f"did you mean '{guesses[0]}'?" if guesses else f"see 'plait tools show {call.tool_id}'"
        )
        what = f"'{call.tool_id}': {place_in(one.path)}{one.what}"
        where = _place(call, (*one.path, *one.unexpected[:1]))
        yield Finding(Problem(what, where, fix, code="schema-violation"))
    if schema.keys() & {
        "additionalProperties",
        "patternProperties",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
    }:
        return
    for name in params.keys() - properties.keys() if properties else ():
        guess = closest_name(name, properties)
        fix = f"did you mean '{guess}'?" if guess else f"it takes {', '.join(properties)}"
        what = f"'{name}' is not among the parameters of '{call.tool_id}'"
        yield Finding(
            Problem(what, _place(call, (name,)), fix, code="unknown-parameter"), "warning"
        )


def _place(call: ToolCall, path: tuple[str | int, ...]) -> Span | None:
    """Return where a parameter is: its key in a map, its value in a list, or the tool's id."""
    if call.written is None or not path:
        return call.where
    inner = call.written.at(path[:-1]) if path[1:] else call.written
    if isinstance(inner, MappingNode) and inner.get(str(path[-1])) is not None:
        return inner.key_span(str(path[-1]))
    found = call.written.at(path)
    return call.where if found is None else found.span
