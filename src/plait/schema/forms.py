"""All tables, by the names of their maps; and which of them belong to a format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from plait.core.hints import Final
from plait.schema.hook_tables import HOOKS_FILE
from plait.schema.kinds import Each, Field, Form, Kind, Many, Map, OneOf
from plait.schema.shared import STEP

TABLES: Final = ("flow", "map", "step", "failure", "graph", "directive", "ensemble", "hook", "provider")
"""Each is a module of its own, loaded when one of its maps is first asked for or may come later."""


def all_forms() -> Iterator[Form]:
    for name in TABLES:
        yield from import_module(f"plait.schema.{name}_tables").FORMS


@cache
def form_of(name: str) -> Form:
    return next(form for form in all_forms() if form.name == name)


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
    "hooks": HOOKS_FILE,
}
"""What a whole file of each format is."""


def forms_in(kind: Kind) -> list[Form]:
    """The maps that may stand in a kind, those in other maps included, in the order of the tables."""
    found: set[str] = set()
    _collect(kind, found)
    return [form for form in all_forms() if form.name in found]


def _collect(kind: Kind, found: set[str]) -> None:
    for inner in _within(kind):
        _collect(inner, found)
    if isinstance(kind, Map) and kind.form not in found:
        found.add(kind.form)
        for field in form_of(kind.form).fields:
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
    return {name: field for field in form_of(form).fields for name in field.spellings}
