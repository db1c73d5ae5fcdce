"""The workflow file, written down once: its maps, their fields, what each may hold and what it means.

    FORMS        every kind of map: fields with kind, default, meaning, other spellings
    problems     a node held against its kind: everything that is wrong with it
    Said         a map that has no problems, read by its table: defaults, durations, templates
    essence      what its author said, for fingerprints: no names, descriptions or places
    json_schema  the same tables for editors
    reference    the same tables for people

The tables of templates (`names`) are made of these tables, too.  A field that means something
elsewhere and nothing here stands here as well, with the reason: `Refused` is an error,
`NoEffect` a warning; no field is ever ignored silently.
"""

from __future__ import annotations

from plait.flows.format.fitting import LONGEST, has_holes, pick, seconds
from plait.flows.format.forms import DIRECTIVE, ENSEMBLE, FILES, FLOW, FORMS, GRAPH, PROVIDER, forms_in, spelt
from plait.flows.format.kinds import (
    WARNED,
    Choice,
    Condition,
    Data,
    Duration,
    Each,
    Field,
    Flag,
    Form,
    Kind,
    Many,
    Map,
    NoEffect,
    Null,
    Number,
    OneHole,
    OneOf,
    Refused,
    Shell,
    Slash,
    Text,
    Tree,
    Whole,
    Word,
)
from plait.flows.format.page import reference
from plait.flows.format.said import Said, essence, template_of
from plait.flows.format.schema import SCHEMA_DIALECT, json_schema
from plait.flows.format.shared import (
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
from plait.flows.format.step_tables import METHODS
from plait.flows.format.wrong import problems, type_word

__all__ = [
    "ALLOWED",
    "AT_ODDS",
    "COMMANDS",
    "DIRECTIVE",
    "ENSEMBLE",
    "ENV",
    "FILES",
    "FLOW",
    "FORMS",
    "GRAPH",
    "IDENTIFIER",
    "LONGEST",
    "METHODS",
    "MOST_ATTEMPTS",
    "NAME",
    "PARAMETER",
    "PARAMETERS",
    "PROVIDER",
    "SCHEMA_DIALECT",
    "STEP",
    "STEPS",
    "TYPES",
    "WARNED",
    "Choice",
    "Condition",
    "Data",
    "Duration",
    "Each",
    "Field",
    "Flag",
    "Form",
    "Kind",
    "Many",
    "Map",
    "NoEffect",
    "Null",
    "Number",
    "OneHole",
    "OneOf",
    "Refused",
    "Said",
    "Shell",
    "Slash",
    "Text",
    "Tree",
    "Whole",
    "Word",
    "essence",
    "forms_in",
    "has_holes",
    "json_schema",
    "pick",
    "problems",
    "reference",
    "seconds",
    "spelt",
    "template_of",
    "type_word",
]
