"""Stream the elements of one list in a JSON text.

Python's own decoder reads each element, so numbers stay exact. `documents.parse_json` reports
errors with their position in the file. Memory holds one element, and one member of the enclosing
objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from json.decoder import WHITESPACE  # type: ignore[attr-defined]
from math import isfinite

from plait.core.documents import MAX_DEPTH, MAX_JSON_TEXT, parse_json
from plait.core.errors import DocumentError, InternalError, LimitError
from plait.core.hints import Final, NoReturn
from plait.core.values import UNDEFINED, Json
from plait.program.items.json_path import JsonPath, no_list, not_a_list, path_elements
from plait.template.operators import type_name

NEAR_END: Final = 64
"""An error so close to the end of the buffer may only mean that the value is incomplete."""


class JsonReader:
    """Decodes the values of one input; `parse_json` checks doubtful ones again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._doubt = False
        decoder = json.JSONDecoder(
            object_pairs_hook=self._table, parse_constant=self._constant, parse_float=self._real
        )
        self._whole, self.raw = decoder.decode, decoder.raw_decode

    def value(self, text: str, line: int = 1, column: int = 1) -> Json:
        """Decode a text that starts at this line and column."""
        self._doubt = False
        try:
            value = self._whole(text)
        except (ValueError, RecursionError):
            self.explain(text, line, column)
        return self.check_value(value, text, lambda: (line, column))

    def check_value(self, value: Json, text: str, place: Callable[[], tuple[int, int]]) -> Json:
        """Return the value, or check the text again if something is doubtful."""
        deep = len(text) > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH
        if self._doubt or deep or "\\ud" in text or "\\uD" in text:
            self._doubt = False
            return parse_json(_pad_to_position(text, *place()), self.name)
        return value

    def explain(self, text: str, line: int, column: int) -> NoReturn:
        parse_json(_pad_to_position(text, line, column), self.name)
        raise InternalError("the JSON decoder refused a valid text", self.name)

    def _table(self, pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        table = dict(pairs)
        if len(table) < len(pairs):
            self._doubt = True
        return table

    def _constant(self, _: str) -> None:
        self._doubt = True

    def _real(self, text: str) -> float:
        number = float(text)
        if not isfinite(number):
            self._doubt = True
        return number


def _pad_to_position(text: str, line: int, column: int) -> str:
    # Leading blanks are ignored, and put the text at its line and column.
    return "\n" * (line - 1) + " " * (column - 1) + text


def stream_elements(
    texts: Iterator[str], path: JsonPath | None, name: str, *, most: int = MAX_JSON_TEXT
) -> Iterator[Json]:
    """Yield the elements of the list that the path names; the rest must be valid JSON, too."""
    document = _Document(texts, JsonReader(name), most)
    names = path.names if path is not None and path.names is not None else ()
    yield from document.find_elements(names, path)
    document.require_end()


class _Document:
    def __init__(self, texts: Iterator[str], reader: JsonReader, most: int) -> None:
        self.texts = texts
        self.reader = reader
        self.most = most
        """The maximum number of characters of one value."""
        self.buffer = ""
        self.at = 0
        self.ended = False
        self.line, self.column = 1, 1

    # ── structure ────────────────────────────────────────────────────────

    def find_elements(self, names: tuple[str, ...], path: JsonPath | None) -> Iterator[Json]:
        char = self.next_char()
        if names and char == "{":
            yield from self.member(names, path)
        elif not names and char == "[":
            yield from self.elements()
        else:
            value = self.value()
            if names:
                raise no_list(UNDEFINED, path, self.reader.name)
            if path is None:
                keys = (
                    [key for key in value if isinstance(value[key], list)]
                    if isinstance(value, dict)
                    else []
                )
                raise not_a_list(type_name(value), keys, "in it", self.reader.name)
            yield from path_elements(value, path, self.reader.name)

    def member(self, names: tuple[str, ...], path: JsonPath | None) -> Iterator[Json]:
        wanted, seen = names[0], False
        for key in self.keys():
            if key != wanted:
                self.value()
                continue
            if seen:
                self.wrong(
                    "a key stands twice in one object",
                    "remove or rename all but one",
                    "duplicate-key",
                )
            seen = True
            yield from self.find_elements(names[1:], path)
        if not seen:
            raise no_list(UNDEFINED, path, self.reader.name)

    def keys(self) -> Iterator[str]:
        """Yield each key of an object. The caller reads its value before the next key."""
        for _ in self.parts("{", "}"):
            if self.next_char() != '"':
                self.wrong(
                    "a key in double quotes is missing", "quote the key, or remove a last ','"
                )
            key = self.value()
            if self.next_char() != ":":
                self.wrong("a ':' is missing after the key", "write ':' and the value")
            self.at += 1
            yield key

    def elements(self) -> Iterator[Json]:
        for _ in self.parts("[", "]"):
            yield self.value()

    def parts(self, opening: str, closing: str) -> Iterator[None]:
        assert self.next_char() == opening
        self.at += 1
        if self.next_char() == closing:
            self.at += 1
            return
        while True:
            yield
            char = self.next_char()
            self.at += 1
            if char == closing:
                return
            if char != ",":
                self.at -= 1
                self.wrong(
                    "a ',' or a closing bracket is missing here", "separate the values by ','"
                )

    def require_end(self) -> None:
        if self.next_char():
            fix = "remove it, or set format: jsonl if every line is a value"
            self.wrong("this stands after the end of the data", fix)

    # ── values ───────────────────────────────────────────────────────────

    def value(self) -> Json:
        self.next_char()
        raw = self.reader.raw
        while True:
            try:
                value, end = raw(self.buffer, self.at)
            except json.JSONDecodeError as error:
                if self.ended or self.is_certain(error):
                    self.reader.explain(self.buffer[self.at : error.pos + NEAR_END], *self.place())
            except ValueError:
                self.wrong(
                    "this value contains a number with too many digits",
                    "write it as a string",
                    "value",
                )
            except RecursionError:
                self.reader.explain(self.buffer[self.at :], *self.place())
            else:
                if self.is_complete(value, end):
                    text = self.buffer[self.at : end]
                    value = self.reader.check_value(value, text, self.place)
                    self.at = end
                    return value
            self.grow()

    def is_complete(self, value: Json, end: int) -> bool:
        """Is the value complete? A number at the end of the buffer may continue: 1 may be the start
        of 1e+5.
        """
        return (
            self.ended or value.__class__ not in (int, float) or end + len("e+") < len(self.buffer)
        )

    def is_certain(self, error: json.JSONDecodeError) -> bool:
        """Would more text not change the error?"""
        return error.pos < len(self.buffer) - NEAR_END and not error.msg.startswith("Unterminated")

    def grow(self) -> None:
        """Double the buffer, so that a long value is not decoded too often."""
        wanted = 2 * (len(self.buffer) - self.at)
        if wanted > 2 * self.most:
            line, column = self.place()
            where = f"{self.reader.name}:{line}:{column}"
            what = f"one value of this file is larger than {self.most:,} characters"
            raise LimitError(what, where, "split it, or name files in the items", code="too-large")
        pieces = []
        while wanted > 0 and (text := next(self.texts, "")):
            pieces.append(text)
            wanted -= len(text)
        if not pieces:
            self.ended = True
            return
        self.line, self.column = self.place()
        self.buffer = "".join([self.buffer[self.at :], *pieces])
        self.at = 0

    def next_char(self) -> str:
        """The next non-blank character; empty at the end."""
        while True:
            self.at = WHITESPACE.match(self.buffer, self.at).end()
            if self.at < len(self.buffer) or self.ended:
                return self.buffer[self.at : self.at + 1]
            self.grow_past_end()

    def grow_past_end(self) -> None:
        text = next(self.texts, "")
        if not text:
            self.ended = True
            return
        self.line, self.column = self.place()
        self.buffer, self.at = text, 0

    # ── positions ────────────────────────────────────────────────────────

    def place(self) -> tuple[int, int]:
        """The line and column of the next character."""
        breaks = self.buffer.count("\n", 0, self.at)
        if not breaks:
            return self.line, self.column + self.at
        return self.line + breaks, self.at - self.buffer.rindex("\n", 0, self.at)

    def wrong(self, what: str, fix: str, code: str = "syntax") -> NoReturn:
        line, column = self.place()
        raise DocumentError(what, f"{self.reader.name}:{line}:{column}", fix, code=code)
