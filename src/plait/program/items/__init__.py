"""The items of a map: their source, format, selection, order and keys.

    spec          the value of `input:` in a file
    commands      text that looks like a command where a file or pattern is expected
    sources       a spec → bytes, from a file below the project or from a command; paths of a glob
    formats       bytes → items: JSON, JSON Lines, CSV, lines of text; format detection
    json_stream   the elements of a list inside a JSON document, streamed
    json_path     JSONPath (RFC 9535), and how it selects items
    selection     json_path → filter → sort → distinct → offset → max_items
    sorting       `sort_by`, in bounded memory
    keys          the name of an item in the paths of a run
    spool         the selected items of a run in a file, written once
    find          the step that finds the items of a map

Items are streamed: memory holds one item, and the data of `distinct`, `sort_by` and duplicate keys.
A missing file is an error. Text runs as a command only if it is declared as one.

A line of text and a path of a glob are plain strings, so `${item}` prints them; `${item.value}` and
`${item.path}` are facts (`item_facts`), which a scope holds under the name `item:facts`.
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
from plait.scope.item_paths import item_facts

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
