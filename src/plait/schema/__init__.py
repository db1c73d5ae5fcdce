"""The workflow file, written down once: its maps, their fields, what each may hold and what it means.

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

from plait.schema.fields import Said, as_written, essence, template_of, text_template
from plait.schema.forms import (
    DIRECTIVE,
    ENSEMBLE,
    FILES,
    FLOW,
    GRAPH,
    PROVIDER,
    all_forms,
    form_of,
    forms_in,
    spelt,
)
from plait.schema.kinds import (
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
from plait.schema.validate import LONGEST, has_holes, pick, problems, seconds, type_word

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
    "all_forms",
    "as_written",
    "essence",
    "form_of",
    "forms_in",
    "has_holes",
    "pick",
    "problems",
    "seconds",
    "spelt",
    "template_of",
    "text_template",
    "type_word",
]
