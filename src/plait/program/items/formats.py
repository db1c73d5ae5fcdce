"""Parse bytes into items: JSON, JSON Lines, CSV, lines of text.

Without a `format`, the file name extension decides, then the first character: `[` and `{` start
JSON, anything else is text. JSON is JSON Lines if its first line is a value and another line
follows. A single line with a map is one item of JSON Lines. It is a document if the file name ends
in `.json`, or if a `json_path` starts with one of its names.

Blank lines of text are skipped. Text is never converted to another type; CSV fields are text.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from itertools import chain

from plait.core.errors import DocumentError, LimitError
from plait.core.hints import Final
from plait.core.values import Json
from plait.program.items.json_path import JsonPath
from plait.program.items.json_stream import JsonReader, stream_elements

MAX_LINE: Final = 16 << 20
"""The maximum length of a line in bytes."""
MAX_LOADED: Final = 256 << 20
"""The maximum size, in bytes, of an input that must be held in memory."""
MAX_PEEKED: Final = 1 << 20
"""The maximum number of bytes to read for format detection."""

EXTENSIONS: Final = {
    ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
    ".txt": "text", ".lst": "text",
}  # fmt: skip


def parse_items(
    chunks: Iterator[bytes],
    name: str,
    *,
    form: str | None,
    file: str,
    path: JsonPath | None,
    most: int = MAX_LOADED,
) -> Iterator[Json]:
    """Yield the items in these bytes; messages use `name`, format detection uses `file`."""
    if form is None:
        form, chunks = _detect_format(chunks, os.path.splitext(file)[1].lower(), path)
    if form == "json":
        yield from _of_json(chunks, name, path, most)
        return
    needs_all = path is not None and not path.streams_items
    items = _BY_LINES[form](_limit_size(chunks, name, most) if needs_all else chunks, name)
    if path is None:
        yield from items
    elif path.streams_items:
        yield from path.of_elements(items)
    else:
        yield from path.of_document(list(items), name)


def _of_json(
    chunks: Iterator[bytes], name: str, path: JsonPath | None, most: int
) -> Iterator[Json]:
    if path is None:
        yield from stream_elements(_texts(chunks, name), None, name)
    elif path.names is not None:
        yield from path.of_elements(stream_elements(_texts(chunks, name), path, name))
    else:
        text = "".join(_texts(_limit_size(chunks, name, most), name))
        yield from path.of_document(JsonReader(name).value(text), name)


# ── format detection ─────────────────────────────────────────────────────


def _detect_format(
    chunks: Iterator[bytes], extension: str, path: JsonPath | None
) -> tuple[str, Iterator[bytes]]:
    known = EXTENSIONS.get(extension)
    if known not in (None, "json"):
        return str(known), chunks
    head, ended = _head(chunks)
    return _form(head, ended=ended, is_document=known == "json", path=path), chain([head], chunks)


def _head(chunks: Iterator[bytes]) -> tuple[bytes, bool]:
    """Read until the first non-blank line and the start of another, if there are any."""
    head = b""
    for chunk in chunks:
        head += chunk
        first, _, rest = _body(head).partition(b"\n")
        if (first.strip() and rest.strip()) or len(head) > MAX_PEEKED:
            return head, False
    return head, True


def _body(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _form(head: bytes, *, ended: bool, is_document: bool, path: JsonPath | None) -> str:
    body = _body(head)
    if not body.startswith((b"[", b"{")):
        return "json" if is_document else "text"
    first, _, rest = body.partition(b"\n")
    if not _is_json(first):
        return "json"
    if rest.strip():
        return "jsonl"
    by_name = path is not None and not path.streams_items
    alone = ended and body.startswith(b"{") and not is_document and not by_name
    return "jsonl" if alone else "json"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# ── formats of lines ─────────────────────────────────────────────────────


def _of_json_lines(chunks: Iterator[bytes], name: str) -> Iterator[Json]:
    read = JsonReader(name).value
    for number, line in _lines(chunks, name):
        if line.strip():
            yield read(line, number)


def _of_text(chunks: Iterator[bytes], name: str) -> Iterator[Json]:
    for _, line in _lines(chunks, name):
        if line.strip():
            yield line.removesuffix("\r")


def _of_csv(chunks: Iterator[bytes], name: str) -> Iterator[Json]:
    rows = csv.reader((f"{line}\n" for _, line in _lines(chunks, name)), strict=True)
    header: list[str] | None = None
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise _bad_csv(error, name, rows.line_num) from None
        if not row:
            continue  # a blank line
        if header is None:
            header = _header(row, name)
        elif len(row) != len(header):
            what = f"this row has {len(row)} fields, and the header has {len(header)}"
            few = "write an empty field for a missing value: a,,c"
            fix = (
                few
                if len(row) < len(header)
                else 'put fields with a comma in it in "double quotes"'
            )
            raise DocumentError(what, f"{name}:{rows.line_num}", fix, code="csv")
        else:
            yield dict(zip(header, row, strict=True))


def _header(row: list[str], name: str) -> list[str]:
    if "" in row or len(set(row)) < len(row):
        what = "the first row does not give every column a unique name"
        raise DocumentError(what, f"{name}:1", "write a header row with distinct names", code="csv")
    return row


def _bad_csv(error: csv.Error, name: str, line: int) -> DocumentError | LimitError:
    where = f"{name}:{max(1, line)}"
    if "field limit" in str(error):
        what = f"a field is longer than {csv.field_size_limit():,} characters"
        return LimitError(
            what, where, "keep long text in separate files, or use JSON Lines", code="too-large"
        )
    fix = "close every quote, and double a quote inside quotes"
    return DocumentError("the quotes of this row cannot be read", where, fix, code="csv")


_BY_LINES: Final = {"jsonl": _of_json_lines, "text": _of_text, "csv": _of_csv}


def _lines(chunks: Iterator[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, without its line break."""
    number, rest = 1, b""
    for chunk in chunks:
        whole, newline, last = chunk.rpartition(b"\n")
        if not newline:
            rest = _require_line_length(rest + last, name, number)
            continue
        for line in _decode_lines(rest + whole, name, number).split("\n"):
            yield number, line
            number += 1
        rest = _require_line_length(last, name, number)
    if rest:
        yield number, _decode_lines(rest, name, number)


def _require_line_length(rest: bytes, name: str, number: int) -> bytes:
    if len(rest) > MAX_LINE:
        what = f"a line is longer than {MAX_LINE:,} bytes"
        fix = "if this is not a file of lines, set its format"
        raise LimitError(what, f"{name}:{number}", fix, code="too-large")
    return rest


def _decode_lines(data: bytes, name: str, number: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        raise DocumentError(
            "this line is not UTF-8", f"{name}:{line}", "save it as UTF-8", code="not-utf-8"
        ) from None
    return text.removeprefix("\ufeff") if number == 1 else text


# ── bytes and text ───────────────────────────────────────────────────────


def _texts(chunks: Iterator[bytes], name: str) -> Iterator[str]:
    """Yield decoded text in chunks."""
    from codecs import getincrementaldecoder

    decoder, first, seen = getincrementaldecoder("utf-8")(), True, 0
    for chunk in chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            what = f"byte {seen + error.start:,} of this file is not UTF-8"
            raise DocumentError(what, name, "save the file as UTF-8", code="not-utf-8") from None
        seen += len(chunk)
        if text:
            yield text.removeprefix("\ufeff") if first else text
            first = False


def _limit_size(chunks: Iterator[bytes], name: str, most: int) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > most:
            raise LimitError(
                f"this json_path needs the whole input, which is larger than {most:,} bytes",
                name,
                "use a path such as $.items[*], which is streamed, and select with 'filter'",
                code="too-large",
            )
        yield chunk
