"""The tables of all file formats: their maps, the fields of each, and what a field may hold.

In reading order:

    field_types    the kinds of values, and the records that describe fields and maps
    shared         kinds and fields that several tables share
    *_tables       the tables: flow, step, map, failure, hook, graph, directive, ensemble, tool,
                   provider, event
    forms          all tables by the names of their maps (`record_type`), and the file formats
    validate       all problems of a node
    fields         read a map without problems (`Fields`): defaults, durations, templates; the data
                   of a node for fingerprints (`fingerprint_data`)
    json_schema    the tables for editors
    reference      the tables for people

`lang.analysis.names` derives from these tables which fields are templates. A field that only other
systems have is in the tables too, with the reason: `Refused` is an error, `NoEffect` a warning. No
field is ignored silently.
"""

from __future__ import annotations

from plait.schema.field_types import (
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
    TOOL,
    all_forms,
    fields_by_spelling,
    record_type,
    record_types_in,
)
from plait.schema.shared import (
    ACTION_FIELDS,
    ALLOWED,
    AT_ODDS,
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
    "ACTION_FIELDS",
    "ALLOWED",
    "AT_ODDS",
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
    "TOOL",
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
