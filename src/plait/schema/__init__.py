"""The workflow file, written down once: its maps, their fields, what each may hold and what it
means.

    form_of      a kind of map by its name: fields with kind, default, meaning, other spellings
    problems     a node held against its kind: everything that is wrong with it
    Said         a map that has no problems, read by its table: defaults, durations, templates
    essence      what its author said, for fingerprints: no names, descriptions or places
    schema       the same tables for editors
    page         the same tables for people

The tables of templates (`names`) are made of these tables, too.  A field that means something
elsewhere and nothing here stands here as well, with the reason: `Refused` is an error,
`NoEffect` a warning; no field is ever ignored silently.
"""

from __future__ import annotations

from plait.schema.fields import (
    Fields,
    fingerprint_data,
    keep_number_text,
    text_template,
    to_template,
)
from plait.schema.forms import (
    DIRECTIVE,
    ENSEMBLE,
    FILES,
    FLOW,
    GRAPH,
    PROVIDER,
    all_forms,
    fields_by_spelling,
    record_type,
    record_types_in,
)
from plait.schema.kinds import (
    WARNED,
    AgentCommand,
    Boolean,
    Choice,
    Condition,
    Data,
    Duration,
    Field,
    Integer,
    Kind,
    ListOf,
    MapOf,
    NoEffect,
    Null,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    ShellText,
    SingleValue,
    TemplateText,
    TemplateTree,
)
from plait.schema.shared import (
    ALLOWED,
    AT_ODDS,
    COMMANDS,
    ENV,
    IDENTIFIER,
    MOST_ATTEMPTS,
    NAME,
    PARAMETER,
    PARAMETERS,
    STEP,
    STEPS,
    TYPES,
)
from plait.schema.step_tables import METHODS
from plait.schema.validate import (
    LONGEST,
    has_placeholders,
    node_type_name,
    seconds,
    select_kind,
    validate,
)

__all__ = [
    "ALLOWED",
    "AT_ODDS",
    "COMMANDS",
    "DIRECTIVE",
    "ENSEMBLE",
    "ENV",
    "FILES",
    "FLOW",
    "GRAPH",
    "IDENTIFIER",
    "LONGEST",
    "METHODS",
    "MOST_ATTEMPTS",
    "NAME",
    "PARAMETER",
    "PARAMETERS",
    "PROVIDER",
    "STEP",
    "STEPS",
    "TYPES",
    "WARNED",
    "AgentCommand",
    "Boolean",
    "Choice",
    "Condition",
    "Data",
    "Duration",
    "Field",
    "Fields",
    "Integer",
    "Kind",
    "ListOf",
    "MapOf",
    "NoEffect",
    "Null",
    "Number",
    "OneOf",
    "PlainText",
    "Record",
    "RecordType",
    "Refused",
    "ShellText",
    "SingleValue",
    "TemplateText",
    "TemplateTree",
    "all_forms",
    "fields_by_spelling",
    "fingerprint_data",
    "has_placeholders",
    "keep_number_text",
    "node_type_name",
    "record_type",
    "record_types_in",
    "seconds",
    "select_kind",
    "text_template",
    "to_template",
    "validate",
]
