"""All tables, by the names of their maps; and which of them belong to a format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from plait.flows.format import (
    directive_tables,
    ensemble_tables,
    failure_tables,
    flow_tables,
    graph_tables,
    hook_tables,
    map_tables,
    provider_tables,
    step_tables,
)
from plait.flows.format.kinds import Each, Field, Form, Kind, Many, Map, OneOf
from plait.flows.format.shared import STEP
from plait.hints import Final

FORMS: Final[dict[str, Form]] = {
    form.name: form
    for form in (
        *flow_tables.FORMS,
        *map_tables.FORMS,
        *step_tables.FORMS,
        *failure_tables.FORMS,
        *graph_tables.FORMS,
        *directive_tables.FORMS,
        *ensemble_tables.FORMS,
        *hook_tables.FORMS,
        *provider_tables.FORMS,
    )
}
FLOW: Final = OneOf((Map("flow"), Many(STEP)), "a map: flow, or a list of steps")
"""A whole file."""
GRAPH: Final = Map("graph")
DIRECTIVE: Final = Map("directive")
ENSEMBLE: Final = Map("ensemble")
PROVIDER: Final = Map("provider")
FILES: Final[dict[str, Kind]] = {
    "workflow": FLOW,
    "graph": GRAPH,
    "directive": DIRECTIVE,
    "ensemble": ENSEMBLE,
    "provider": PROVIDER,
    "hooks": hook_tables.HOOKS_FILE,
}
"""What a whole file of each format is."""


def forms_in(kind: Kind) -> list[Form]:
    """The maps that may stand in a kind, those in other maps included, in the order of the tables."""
    found: set[str] = set()
    _collect(kind, found)
    return [form for form in FORMS.values() if form.name in found]


def _collect(kind: Kind, found: set[str]) -> None:
    for inner in _within(kind):
        _collect(inner, found)
    if isinstance(kind, Map) and kind.form not in found:
        found.add(kind.form)
        for field in FORMS[kind.form].fields:
            _collect(field.kind, found)


def _within(kind: Kind) -> Iterator[Kind]:
    match kind:
        case Each(inner) | Many(inner):
            yield inner
        case OneOf(kinds):
            yield from kinds


@cache
def spelt(form: str) -> dict[str, Field]:
    """The fields of a form under every spelling."""
    return {name: field for field in FORMS[form].fields for name in field.spellings}
