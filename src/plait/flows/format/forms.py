"""All tables of the workflow file, by the names of their maps."""

from __future__ import annotations

from functools import cache

from plait.flows.format import failure_tables, flow_tables, map_tables, step_tables
from plait.flows.format.kinds import Field, Form, Many, Map, OneOf
from plait.flows.format.shared import STEP
from plait.hints import Final

FORMS: Final[dict[str, Form]] = {
    form.name: form
    for form in (*flow_tables.FORMS, *map_tables.FORMS, *step_tables.FORMS, *failure_tables.FORMS)
}
FLOW: Final = OneOf((Map("flow"), Many(STEP)), "a map: flow, or a list of steps")
"""A whole file."""


@cache
def spelt(form: str) -> dict[str, Field]:
    """The fields of a form under every spelling."""
    return {name: field for field in FORMS[form].fields for name in field.spellings}
