"""Choose the reader of a file by its extension, and the key by a name in code.

Both tables are in `system/extractors/tools.yaml`. They are part of Plait, so a project cannot
change how headers are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache

from plait.core import documents
from plait.core.digests import sha256_hex
from plait.core.errors import DocumentError, InternalError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.safe_files import read_below
from plait.core.values import Json
from plait.tools.headers.entries import KEYS, HeaderEntries, read_yaml
from plait.tools.items import INFORMATIONAL
from plait.tools.trust.manifest_reader import SYSTEM, manifest_header


@dataclass(frozen=True, slots=True)
class Reader:
    """`read` gets the mark of a comment; `sample` shows how such a file names its executor."""

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


@dataclass(frozen=True, slots=True)
class Extractors:
    """Formats by extension, and keys by their names in code."""

    formats: Mapping[str, Format]
    names: Mapping[str, str]


def find_format(path: str) -> Format:
    formats = extractors().formats
    form = formats.get(os.path.splitext(path)[1])
    if form is None:
        known = ", ".join(formats)
        raise DocumentError(
            "no reader knows this kind of file", path, f"known: {known}", code="no-reader"
        )
    return form


@cache
def extractors() -> Extractors:
    """The tables that come with Plait; an error in them is a bug of ours."""
    path = os.path.join(SYSTEM, _MAP)
    contents = read_below(SYSTEM, _MAP)
    known = contents and manifest_header(SYSTEM, _MAP, sha256_hex(contents[0]))
    data: Json = known or documents.load(path).data()
    extensions, names = data["extensions"], data["names"]
    unread = {form["reader"] for form in extensions.values()} - _READERS.keys()
    unknown = set(names.values()) - KEYS - INFORMATIONAL
    if unread or unknown:
        raise InternalError(f"no such reader or key: {', '.join(sorted(unread | unknown))}", path)
    formats = {
        extension: Format(_READERS[form["reader"]], form["comment"], form["executor"])
        for extension, form in extensions.items()
    }
    return Extractors(formats, names)


_MAP: Final = "extractors/tools.yaml"


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


_READERS: Final = {
    "python": Reader(_read_python, '__executor_id__ = "{0}"'),
    "yaml": Reader(read_yaml, "executor_id: {0}"),
    "comments": Reader(_read_comments, "{1} executor_id: {0}"),
    "javascript": Reader(_read_javascript, 'const __executor_id__ = "{0}";'),
}
