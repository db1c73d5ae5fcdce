"""Read YAML and JSON files into nodes that know their place, and merge them.

Every input gives a node, a `DocumentError` with all problems, or a `LimitError`. The limits count
aliases as if they were written out, and nothing larger is built.

In reading order:

    limits        how large a document may be
    files         path → bytes → text
    nodes         Scalar, Sequence, Mapping; paths into them; merge; unknown keys
    positions     a character of a YAML string → its place in the file
    yaml_events   text → PyYAML's events, and syntax errors in plain words
    yaml_reader   events → nodes, within the limits; the core schema of scalars
    json_reader   text → data without places

A module is loaded when one of its names is first used, so reading JSON loads no YAML.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from plait.core.documents.files import decode_text
    from plait.core.documents.json_reader import load_json, parse_json
    from plait.core.documents.limits import (
        MAX_DEPTH,
        MAX_DIGITS,
        MAX_JSON_TEXT,
        MAX_NODES,
        MAX_PROBLEMS,
        MAX_TEXT,
    )
    from plait.core.documents.nodes import (
        Mapping,
        Node,
        Scalar,
        Sequence,
        check_keys,
        merge,
        origins,
    )
    from plait.core.documents.yaml_reader import (
        PartialDocument,
        load,
        load_partial,
        parse,
        parse_partial,
    )

_HOME = {
    "MAX_DEPTH": "limits",
    "MAX_DIGITS": "limits",
    "MAX_JSON_TEXT": "limits",
    "MAX_NODES": "limits",
    "MAX_PROBLEMS": "limits",
    "MAX_TEXT": "limits",
    "Mapping": "nodes",
    "Node": "nodes",
    "PartialDocument": "yaml_reader",
    "Scalar": "nodes",
    "Sequence": "nodes",
    "decode_text": "files",
    "check_keys": "nodes",
    "load": "yaml_reader",
    "load_json": "json_reader",
    "load_partial": "yaml_reader",
    "merge": "nodes",
    "origins": "nodes",
    "parse": "yaml_reader",
    "parse_json": "json_reader",
    "parse_partial": "yaml_reader",
}

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "MAX_JSON_TEXT",
    "MAX_NODES",
    "MAX_PROBLEMS",
    "MAX_TEXT",
    "Mapping",
    "Node",
    "PartialDocument",
    "Scalar",
    "Sequence",
    "check_keys",
    "decode_text",
    "load",
    "load_json",
    "load_partial",
    "merge",
    "origins",
    "parse",
    "parse_json",
    "parse_partial",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'plait.core.documents' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"plait.core.documents.{_HOME[name]}"), name)
    globals()[name] = value
    return value
