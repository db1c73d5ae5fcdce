"""All tables by the names of their maps, and the format of each file kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from plait.core.hints import Final
from plait.schema.field_types import Field, Kind, ListOf, MapOf, OneOf, Record, RecordType
from plait.schema.hook_tables import HOOKS_FILE
from plait.schema.shared import STEP

TABLES: Final = (
    "flow",
    "map",
    "step",
    "failure",
    "graph",
    "directive",
    "ensemble",
    "hook",
    "provider",
    "tool",
    "event",
)
"""Each is a module.  It is loaded when a lookup reaches it."""


def all_forms() -> Iterator[RecordType]:
    for name in TABLES:
        yield from import_module(f"plait.schema.{name}_tables").FORMS


@cache
def record_type(name: str) -> RecordType:
    return next(form for form in all_forms() if form.name == name)


FLOW: Final = OneOf((Record("flow"), ListOf(STEP)), "a map: flow, or a list of steps")
"""A whole workflow file."""
GRAPH: Final = Record("graph")
DIRECTIVE: Final = Record("directive")
ENSEMBLE: Final = Record("ensemble")
PROVIDER: Final = Record("provider")
TOOL: Final = Record("tool")
EVENTS: Final = OneOf(
    tuple(
        Record(name)
        for name in (
            "run_started",
            "step_started",
            "step_renamed",
            "step_retrying",
            "step_finished",
            "model_text",
            "items_counted",
            "items_replayed",
            "earlier_usage",
            "step_invalidated",
            "note",
            "run_ended",
            "stopping",
            "result",
            "error",
        )
    ),
    "an event",
)
"""A line that `plait run --json` or `plait events` prints."""
FILES: Final[dict[str, Kind]] = {
    "workflow": FLOW,
    "graph": GRAPH,
    "directive": DIRECTIVE,
    "ensemble": ENSEMBLE,
    "provider": PROVIDER,
    "hooks": HOOKS_FILE,
    "tool": TOOL,
    "events": EVENTS,
}
"""The format of a whole file, by its kind; for events, the format of one line."""


def record_types_in(kind: Kind) -> list[RecordType]:
    """The maps that a kind may contain at any depth, in the order of the tables."""
    found: set[str] = set()
    _collect(kind, found)
    return [form for form in all_forms() if form.name in found]


def _collect(kind: Kind, found: set[str]) -> None:
    match kind:
        case MapOf(inner) | ListOf(inner):
            _collect(inner, found)
        case OneOf(kinds):
            for one in kinds:
                _collect(one, found)
        case Record(form) if form not in found:
            found.add(form)
            for field in record_type(form).fields:
                _collect(field.kind, found)


@cache
def fields_by_spelling(form: str) -> dict[str, Field]:
    """The fields of a map under every spelling."""
    return {name: field for field in record_type(form).fields for name in field.spellings}


def describe(kind: Kind) -> str:
    """Describe a kind for a message: `a list of steps`."""
    match kind:
        case Record(form):
            return f"a map: {record_type(form).title}"
        case MapOf(inner):
            return f"a map from names to {describe(inner)}"
        case ListOf(inner):
            return f"a list of {_describe_several(inner)}"
        case OneOf(kinds, description):
            return description or ", or ".join(map(describe, kinds))
    return kind.description


def _describe_several(kind: Kind) -> str:
    """Describe several: `steps` for `a step`, `paths, or maps: import`; a word without article,
    as text, stays.
    """
    import re  # only messages and pages need it

    return re.sub(r"(^|, or )an? ((?:whole )?\w+)", r"\1\2s", describe(kind))
