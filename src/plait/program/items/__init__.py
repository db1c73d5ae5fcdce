"""A map's items: where they come from, which of them, in which order, and what each is called.

    spec          what a file says under `input:`
    sources       a spec → bytes, from a file below the project or from a command; paths of a glob
    formats       bytes → items: JSON, JSON Lines, CSV, lines of text; which of them it is
    json_stream   the elements of a list inside a JSON document, one after the other
    json_path     RFC 9535
    selection     json_path → filter → sort → distinct → offset → max_items
    sorting       `sort_by`, in bounded memory
    keys          the name of an item in the paths of a run

Items are streamed: memory holds one item, and what `distinct`, `sort_by` and the numbering
of equal keys have to remember.  What does not exist is an error, and no text is ever run as
a command that was not given as one.

A line of text and a path of a glob are items that are plain strings, so `${item}` prints
them; `${item.value}` and `${item.path}` are facts about them (`item_facts`), which a scope
holds beside the item under the name `item:facts`.
"""

from __future__ import annotations

from plait.program.items.commands import command_problem
from plait.program.items.json_path import JsonPath, compile_json_path
from plait.program.items.keys import item_key, with_keys
from plait.program.items.selection import Selection, read_selection, select
from plait.program.items.sorting import SortOrder, compile_order
from plait.program.items.sources import RunCommand, is_pattern, read_items
from plait.program.items.spec import (
    AutoInput,
    CommandInput,
    FileInput,
    GlobInput,
    InputSpec,
    ItemsInput,
    read_input,
    spec_template,
)
from plait.scope.expressions import item_facts

__all__ = [
    "AutoInput",
    "CommandInput",
    "FileInput",
    "GlobInput",
    "InputSpec",
    "ItemsInput",
    "JsonPath",
    "RunCommand",
    "Selection",
    "SortOrder",
    "command_problem",
    "compile_json_path",
    "compile_order",
    "is_pattern",
    "item_facts",
    "item_key",
    "read_input",
    "read_items",
    "read_selection",
    "select",
    "spec_template",
    "with_keys",
]
