"""Choose the reader of a file by its extension, and the key by a name in code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from plait.core.errors import DocumentError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.tools.headers.entries import HeaderEntries, read_yaml
from plait.tools.spaces import FILE_TYPES


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of headers.

    `read` gets the mark of a comment; `sample` shows how such a file names its executor.
    """

    read: Callable[[HeaderEntries, str], None]
    sample: str


@dataclass(frozen=True, slots=True)
class Format:
    """How files of one extension are read; `executor` is their usual executor."""

    reader: Reader
    comment: str
    executor: str

    @property
    def executor_line(self) -> str:
        return self.reader.sample.format(self.executor, self.comment)


def find_format(path: str) -> Format:
    kind = FILE_TYPES.get(os.path.splitext(path)[1])
    if kind is None:
        known = ", ".join(FILE_TYPES)
        raise DocumentError(
            "no reader knows this kind of file", path, f"known: {known}", code="no-reader"
        )
    return Format(READERS[kind.reader], kind.comment, kind.executor)


# Each reader is loaded when the first file of its kind is read.


def _read_python(keys: HeaderEntries, comment: str) -> None:
    from plait.tools.headers.python import read_python

    read_python(keys, comment)


def _read_comments(keys: HeaderEntries, comment: str) -> None:
    from plait.tools.headers.comments import read_comments

    read_comments(keys, comment)


def _read_javascript(keys: HeaderEntries, comment: str) -> None:
    from plait.tools.headers.javascript import read_javascript

    read_javascript(keys, comment)


READERS: Final[Mapping[str, Reader]] = {
    "python": Reader(_read_python, '__executor_id__ = "{0}"'),
    "yaml": Reader(read_yaml, "executor_id: {0}"),
    "comments": Reader(_read_comments, "{1} executor_id: {0}"),
    "javascript": Reader(_read_javascript, 'const __executor_id__ = "{0}";'),
}

NAMES: Final[Mapping[str, str]] = {
    "__executor_id__": "executor_id",
    "__version__": "version",
    "__tool_type__": "tool_type",
    "__category__": "category",
    "__tool_description__": "description",
    "ENV_CONFIG": "env_config",
    "CONFIG": "config",
    "CONFIG_SCHEMA": "config_schema",
    "CONFIG_RESOLVE": "config_resolve",
    "SECRETS": "secrets",
    "__once__": "once",
    "__read_only__": "read_only",
    "ANCHOR": "anchor",
    "anchor": "anchor",
    "VERIFY_DEPS": "verify_deps",
    "verify_deps": "verify_deps",
    "INPUTS": "inputs",
    "OUTPUTS": "outputs",
    "CHILD_CONSTRAINTS": "child_constraints",
    "EXECUTION_PARAMS": "execution_params",
    "__execution_owner__": "execution_owner",
    "__native_async__": "native_async",
    "__native_resume__": "native_resume",
    "__allowed_threads__": "allowed_threads",
    "__allowed_targets__": "allowed_targets",
}
"""Names in Python, JavaScript and TypeScript, and the header keys that they mean."""
