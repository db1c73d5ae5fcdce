"""Read the header of a tool file from its bytes; the file is never executed.

Every input gives a `ToolFile`, a `DocumentError` with all problems, or a `LimitError`. A file that
cannot be read never counts as a file without a header.

In reading order:

    entries            the keys of one header, their places, and all problems
    comments           keys in the comments at the top of a script
    python             names that a Python module assigns, from its syntax tree
    javascript         constants of JavaScript and TypeScript
    javascript_tokens  their text as tokens
    formats            the reader of each extension; names in code and their keys
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable

from plait.core import documents
from plait.core.digests import sha256_hex
from plait.core.errors import DocumentError, PlaitError, closest_name
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.safe_files import FileStamp
from plait.core.source import Source, Span
from plait.core.values import Json
from plait.tools.headers.entries import KEYS, MAX_ODD_NAMES, HeaderEntries, is_almost
from plait.tools.headers.formats import NAMES, Format, find_format
from plait.tools.spaces import FILE_TYPES, Space, ToolLocation
from plait.tools.tool_file import (
    FLOWS,
    INFORMATIONAL,
    Entry,
    Header,
    ToolFile,
    parse_header,
)
from plait.tools.trust.manifest_reader import manifest_header

if TYPE_CHECKING:
    from plait.tools.headers.javascript import MAX_JAVASCRIPT
    from plait.tools.headers.javascript_tokens import MAX_OPEN, MAX_PATTERN
    from plait.tools.headers.python import MAX_PYTHON

__all__ = [
    "MAX_CACHED",
    "MAX_CACHED_BYTES",
    "MAX_JAVASCRIPT",
    "MAX_ODD_NAMES",
    "MAX_OPEN",
    "MAX_PATTERN",
    "MAX_PYTHON",
    "ItemCache",
    "read_item",
]

_LIMITS: Final = {
    "MAX_JAVASCRIPT": "javascript",
    "MAX_OPEN": "javascript_tokens",
    "MAX_PATTERN": "javascript_tokens",
    "MAX_PYTHON": "python",
}
"""Limits of readers that are loaded only when they are needed."""


def __getattr__(name: str) -> object:
    if name not in _LIMITS:
        raise AttributeError(f"module 'plait.tools.headers' has no attribute '{name}'")
    from importlib import import_module

    limit: object = getattr(import_module(f"plait.tools.headers.{_LIMITS[name]}"), name)
    return limit


_Key: TypeAlias = tuple[Space, str, str]
"""Space, path and id. A path can belong to two spaces, such as a project in the home folder."""

MAX_CACHED: Final = 1_000
MAX_CACHED_BYTES: Final = 64 << 20
MAX_LOOKED_AT: Final = 4 << 20


def read_item(found: ToolLocation, *, kind: str = "tool") -> ToolFile:
    """Read the item in a file once: its bytes, digest and header."""
    return _read(found, kind)[0]


class ItemCache:
    """Items by file; an item whose stamp is unchanged is neither read nor hashed again.

    Safe to share between threads. If there are too many items, or too many bytes in them, the
    least recently used are removed first.
    """

    def __init__(
        self,
        *,
        kind: str = "tool",
        most: int = MAX_CACHED,
        most_bytes: int = MAX_CACHED_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.hits = 0
        self.misses = 0
        self._kind, self._most, self._most_bytes, self._clock = kind, most, most_bytes, clock
        self._known: dict[_Key, tuple[ToolFile, FileStamp]] = {}
        self._bytes = 0
        self._lock = allocate_lock()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, found: ToolLocation) -> ToolFile:
        key = (found.space, found.relative, found.id)
        with self._lock:
            known = self._forget(key)
            if known is not None and known[1] == found.stamp:
                self.hits += 1
                self._remember(key, *known)
                return known[0]
            self.misses += 1
        now = self._clock()
        item, stamp = _read(found, self._kind)
        if now - stamp.changed >= _GRAIN:
            with self._lock:
                self._forget(key)
                self._remember(key, item, stamp)
        return item

    def _forget(self, key: _Key) -> tuple[ToolFile, FileStamp] | None:
        known = self._known.pop(key, None)
        self._bytes -= len(known[0].data) if known else 0
        return known

    def _remember(self, key: _Key, item: ToolFile, stamp: FileStamp) -> None:
        self._known[key] = (item, stamp)
        self._bytes += len(item.data)
        while len(self._known) > self._most or self._bytes > self._most_bytes:
            self._forget(next(iter(self._known)))


# A file changed within the grain of the kernel's clock can change again and keep its stamp.
_GRAIN: Final = 20_000_000


def _read(found: ToolLocation, kind: str) -> tuple[ToolFile, FileStamp]:
    data, stamp = found.read()
    digest = sha256_hex(data)
    header = _system_header(found, digest, kind)
    if header is None:
        form = find_format(found.path)
        header = _build_header(_read_entries(_source(data, found.path), form), form, kind)
    return ToolFile(kind, found.id, found.space, found.path, data, digest, header), stamp


def _system_header(found: ToolLocation, digest: str, kind: str) -> Header | None:
    """The header of an installed file, from the manifest that was written when Plait was built."""
    if found.space.name != "system":
        return None
    keys: Json = manifest_header(found.space.root, found.relative, digest)
    if not isinstance(keys, dict):
        return None
    # it was read without errors, so no places are needed
    nowhere = Span(Source(found.path, ""), 0, 0)
    return parse_header({key: Entry(value, nowhere) for key, value in keys.items()}, kind=kind)


def header_values(path: str) -> dict[str, Json]:
    """The keys and values of a tool's header; raise an error if it has problems."""
    with open(path, "rb") as file:
        source = _source(file.read(), path)
    keys = _read_entries(source, find_format(path))
    _build_header(keys, find_format(path), "tool")
    return {key: entry.value for key, entry in keys.entries.items()}


def says_anything(path: str) -> bool:
    """Does a file have header keys, right or wrong? True if it cannot be read."""
    try:
        with open(path, "rb") as file:
            keys = _read_entries(_source(file.read(MAX_LOOKED_AT), path), find_format(path))
    except (OSError, PlaitError):
        return True
    return bool(keys.entries or keys.problems)


def _source(data: bytes, path: str) -> Source:
    # Errors may quote the text: a header is written by the author.
    return Source(path, documents.decode_text(data, path, drawn=True).removeprefix("\ufeff"))


def _read_entries(source: Source, form: Format) -> HeaderEntries:
    keys = HeaderEntries(source, NAMES)
    form.reader.read(keys, form.comment)
    return keys


NO_HEADER: Final = "no-header"
"""The code for a file without a header: it is a file beside a tool, not a tool."""


def _build_header(keys: HeaderEntries, form: Format, kind: str) -> Header:
    if kind == "tool" and not keys.problems and not any(map(_looks_like_key, keys.entries)):
        raise DocumentError(
            "this tool says no executor_id",
            Span(keys.source, 0, 0),
            _executor_fix(form),
            code=NO_HEADER,
        )
    try:
        header = parse_header(keys.entries, kind=kind)
    except DocumentError as error:
        keys.problems += error.problems
    needs_none = keys.value("tool_type") in ("primitive", *FLOWS)
    if kind == "tool" and not needs_none and not keys.value("executor_id"):
        keys.report_missing(
            "executor_id", "this tool says no executor_id", _executor_fix(form), "no-executor"
        )
    if keys.problems:
        raise DocumentError.together(keys.problems[: documents.MAX_PROBLEMS])
    return header


def _looks_like_key(key: str) -> bool:
    return key in KEYS or key in INFORMATIONAL or is_almost(key, closest_name(key, KEYS))


def _executor_fix(form: Format) -> str:
    common = ", ".join(dict.fromkeys(each.executor for each in FILE_TYPES.values()))
    return f"write {form.executor_line} (common: {common}); only tool_type 'primitive' needs none"
