"""What the code of a tool may import from Plait, beside the public names of `plait` itself.

It is for tools of `core/runtimes/python/function`, which run in Plait's process.  These names and
their meaning stay from version to version; other modules of Plait may change at any time.  The
tools below `core/` import nothing else.  docs/tools.md has an example.
"""

from __future__ import annotations

import os

from plait.core.errors import InputError, ProcessError
from plait.core.safe_files import MAX_FILE, OutsideError, find_guarded_folder, read_below
from plait.core.values import Json
from plait.core.values import text as value_text
from plait.tools.environment import FIXED

__all__ = [
    "MAX_FILE",
    "InputError",
    "Json",
    "OutsideError",
    "ProcessError",
    "find_guarded_folder",
    "find_json",
    "read_file",
    "tool_environment",
    "value_text",
]


def read_file(root: str, path: str) -> bytes | None:
    """The bytes of the regular file `path` below the folder `root`; None if there is no such file.

    OutsideError if `path` is absolute, holds '..', or leads through a symbolic link.
    LimitError if the file is larger than `MAX_FILE` bytes.
    """
    contents = read_below(root, path)
    return None if contents is None else contents[0]


def find_json(query: str, data: Json) -> list[tuple[str, Json]]:
    """The path and value of every match of a JSONPath (RFC 9535); InputError if it is not one."""
    from plait.template.json_paths import compile_query  # loads a library that few tools need

    return [(node.path(), node.value) for node in compile_query(query).nodes(data)]


def tool_environment() -> dict[str, str]:
    """The few variables that every tool gets, such as PATH and HOME, for a process that it starts.

    `os.environ` in a function is Plait's whole environment, with all its secrets.
    """
    return {name: os.environ[name] for name in FIXED if name in os.environ}
